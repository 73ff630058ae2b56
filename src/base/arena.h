/* base/arena.h - a request's data: many small allocations, freed at once. Grows in blocks; an optional byte limit.
 * Thread  the arena's owner.
 * Errors  NULL when memory is out or the limit is reached.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct arena_block;
struct arena {
    struct arena_block *blocks;
    size_t n_bytes, limit; /* n_bytes: handed out; limit 0 = none */
    bool out_of_limit;     /* the last NULL was the limit, not the machine */
};

void arena_init(struct arena *a, size_t limit);
/* Frees everything; the arena can be used again. A zeroed arena is fine. */
void arena_deinit(struct arena *a);
/* Zeroed, aligned to 16. */
void *arena_alloc(struct arena *a, size_t n, size_t size);
char *arena_memdup(struct arena *a, const void *p, size_t n); /* a 0 byte beyond n */
