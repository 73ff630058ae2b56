/* text/string_table.h - a flat hash table from byte strings to the numbers 0, 1, 2 ... in the order they were added.
 *
 * The bytes live in one block, an entry is an offset, so that a vocabulary of 262,144 tokens costs four allocations.
 * The hash is seeded from the operating system: a file cannot be made to collide (docs/faults.md F09). Results do not
 * depend on the seed.
 *
 * Thread  its owner while adding; then read-only, any thread.
 * Errors  RD_E_NOMEM, RD_E_LIMIT (more than 4 GiB of bytes).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#define STRING_NONE UINT32_MAX

struct string_slot {
    uint32_t id, tag;
}; /* id STRING_NONE: free; tag: upper half of the hash */
struct string_table {
    char *bytes;
    size_t n_bytes, bytes_cap;
    uint32_t *ends; /* [n]: string i is bytes[ends[i-1] .. ends[i]) */
    size_t n, ends_cap;
    struct string_slot *slots; /* [n_slots], a power of two, at most 5/8 full */
    size_t n_slots;
    uint64_t seed;
};

/* Room for n strings of n_bytes in all; both may be exceeded later. */
rd_status string_table_init(struct string_table *t, size_t n, size_t n_bytes);
void string_table_deinit(struct string_table *t);
/* Finds or adds. *id: the string's number; *is_new may be NULL. */
rd_status string_table_add(struct string_table *t, const char *s, size_t n, uint32_t *id, bool *is_new);
/* Adds a number for a string that is never found (an empty vocabulary entry). */
rd_status string_table_add_hidden(struct string_table *t, uint32_t *id);
uint32_t string_table_find(const struct string_table *t, const char *s, size_t n);
static inline const char *string_table_at(const struct string_table *t, uint32_t id, size_t *n)
{
    uint32_t start = id ? t->ends[id - 1] : 0;

    *n = t->ends[id] - start;
    return t->bytes + start;
}
