/* grad/float_pool.c - a list of idle blocks; the one that fits best is taken.
 *
 * The list is beside the blocks: hundreds of them are idle, and a look into each is a miss of the caches. */
#include "grad/float_pool.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define HEAD  64u   /* bytes before the floats: a cache line, which holds their number */
#define SPARE 4096u /* floats that a block may have too many, and an eighth */
#define OLD   8u

struct idle_floats {
    float *x;
    uint64_t n;
    uint32_t age; /* calls of trim since it was used */
};

static void *block_of(float *x)
{
    return (char *)x - HEAD;
}

static float *make(uint64_t n)
{
    char *block = n > (SIZE_MAX - HEAD) / sizeof(float) ? NULL : mem_alloc_aligned(HEAD + n * sizeof(float));

    if (!block) return NULL;
    memcpy(block, &n, sizeof(n));
    return (float *)(void *)(block + HEAD);
}

static void take_out(struct float_pool *pool, size_t i)
{
    memmove(pool->idle + i, pool->idle + i + 1, (--pool->n_idle - i) * sizeof(*pool->idle));
}

float *float_pool_take(struct float_pool *pool, uint64_t n)
{
    size_t best = pool->n_idle;
    float *x;

    for (size_t i = pool->n_idle; i-- > 0;) {
        const struct idle_floats *f = &pool->idle[i];

        if (f->n >= n && f->n <= n + n / 8 + SPARE && (best == pool->n_idle || f->n < pool->idle[best].n)) best = i;
    }
    if (best == pool->n_idle) {
        x = make(n);
        if (x) return x;
        float_pool_deinit(pool);
        return make(n);
    }
    x = pool->idle[best].x;
    take_out(pool, best);
    return x;
}

void float_pool_give(struct float_pool *pool, float *x)
{
    struct idle_floats f = {.x = x};

    if (!x) return;
    memcpy(&f.n, block_of(x), sizeof(f.n));
    if (mem_grow((void **)&pool->idle, &pool->cap_idle, pool->n_idle + 1, sizeof(f)))
        pool->idle[pool->n_idle++] = f;
    else
        mem_free_aligned(block_of(x));
}

void float_pool_trim(struct float_pool *pool)
{
    for (size_t i = pool->n_idle; i-- > 0;) {
        if (++pool->idle[i].age < OLD) continue;
        mem_free_aligned(block_of(pool->idle[i].x));
        take_out(pool, i);
    }
}

void float_pool_deinit(struct float_pool *pool)
{
    for (size_t i = 0; i < pool->n_idle; i++) mem_free_aligned(block_of(pool->idle[i].x));
    mem_free(pool->idle);
    *pool = (struct float_pool){0};
}
