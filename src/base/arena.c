/* base/arena.c - a chain of zeroed blocks; the newest serves, each is about twice the size of the one before. */
#include "base/arena.h"
#include <stdint.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define ARENA_ALIGN       16u
#define ARENA_FIRST_BLOCK 4096u
#define ARENA_MAX_BLOCK   (1u << 20)

struct arena_block {
    struct arena_block *next;
    size_t n_used, n_bytes; /* of data */
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

void arena_init(struct arena *a, size_t limit)
{
    *a = (struct arena){.limit = limit};
}

void arena_deinit(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    a->blocks = NULL;
    a->n_bytes = 0;
    a->out_of_limit = false;
}

/* A block for at least want bytes becomes the serving one, unless want alone nearly fills it: then it goes behind. */
static struct arena_block *add_block(struct arena *a, size_t want)
{
    size_t n = a->blocks ? a->blocks->n_bytes : 0, total;
    struct arena_block *b;

    n = n < ARENA_FIRST_BLOCK ? ARENA_FIRST_BLOCK : n >= ARENA_MAX_BLOCK / 2 ? ARENA_MAX_BLOCK : n * 2;
    bool own = a->blocks && want > n / 4;
    if (own || n < want) n = want;
    if (!checked_add(n, sizeof(*b), &total)) return NULL;
    b = mem_zalloc(total, 1);
    if (!b) return NULL;
    b->n_bytes = n;
    if (own) {
        b->next = a->blocks->next;
        a->blocks->next = b;
    } else {
        b->next = a->blocks;
        a->blocks = b;
    }
    return b;
}

void *arena_alloc(struct arena *a, size_t n, size_t size)
{
    struct arena_block *b = a->blocks;
    uint64_t want, total;
    size_t bytes;

    a->out_of_limit = false;
    if (!checked_mul(n, size, &bytes) || !checked_align(bytes ? bytes : 1, ARENA_ALIGN, &want) ||
        !checked_add((uint64_t)a->n_bytes, want, &total) || (a->limit && total > a->limit)) {
        a->out_of_limit = a->limit != 0;
        return NULL;
    }
    if (!b || b->n_bytes - b->n_used < want) b = add_block(a, want);
    if (!b) return NULL;

    void *p = b->data + b->n_used;
    b->n_used += want;
    a->n_bytes = total;
    return p;
}

char *arena_memdup(struct arena *a, const void *p, size_t n)
{
    size_t bytes;
    char *copy = checked_add(n, (size_t)1, &bytes) ? arena_alloc(a, bytes, 1) : NULL;

    if (copy && n) memcpy(copy, p, n);
    return copy;
}
