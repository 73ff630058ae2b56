/* grad/float_pool.c - a list of idle blocks; the one that fits best is taken. */
#include "grad/float_pool.h"
#include <stddef.h>
#include "base/checked.h"
#include "base/mem.h"

#define HEAD  64u   /* bytes before the floats: a cache line */
#define SPARE 4096u /* floats that a block may have too many, and an eighth */
#define OLD   8u

struct float_block {
    struct float_block *next;
    uint64_t n;
    uint32_t age; /* calls of trim since it was used */
};
_Static_assert(sizeof(struct float_block) <= HEAD, "the head of a block");

static float *floats_of(struct float_block *b)
{
    return (float *)(void *)((char *)b + HEAD);
}

static struct float_block *make(uint64_t n)
{
    struct float_block *b = n > (SIZE_MAX - HEAD) / sizeof(float) ? NULL : mem_alloc_aligned(HEAD + n * sizeof(float));

    if (b) b->n = n;
    return b;
}

float *float_pool_take(struct float_pool *pool, uint64_t n)
{
    struct float_block **best = NULL, *b;

    for (struct float_block **at = &pool->idle; *at; at = &(*at)->next)
        if ((*at)->n >= n && (*at)->n <= n + n / 8 + SPARE && (!best || (*at)->n < (*best)->n)) best = at;
    if (best) {
        b = *best;
        *best = b->next;
    } else if (!(b = make(n))) {
        float_pool_deinit(pool);
        if (!(b = make(n))) return NULL;
    }
    b->age = 0;
    return floats_of(b);
}

void float_pool_give(struct float_pool *pool, float *x)
{
    struct float_block *b;

    if (!x) return;
    b = (struct float_block *)(void *)((char *)x - HEAD);
    b->next = pool->idle;
    pool->idle = b;
}

void float_pool_trim(struct float_pool *pool)
{
    for (struct float_block **at = &pool->idle, *b; (b = *at);) {
        if (++b->age < OLD) {
            at = &b->next;
        } else {
            *at = b->next;
            mem_free_aligned(b);
        }
    }
}

void float_pool_deinit(struct float_pool *pool)
{
    for (struct float_block *b; (b = pool->idle);) {
        pool->idle = b->next;
        mem_free_aligned(b);
    }
}
