/* kv/ghosts.c - see the header. A table of single places: a newer ghost takes the place of an older one. */
#include "kv/ghosts.h"

#define BASE 0x9E3779B97F4A7C15ull /* odd: powers never vanish */

static uint64_t power(uint32_t n)
{
    uint64_t p = 1;

    for (uint64_t b = BASE; n; n >>= 1, b *= b)
        if (n & 1) p *= b;
    return p;
}

uint64_t ghosts_sum(const uint32_t *keys, uint32_t n, uint32_t start)
{
    uint64_t sum = 0, p = power(start + 1);

    for (uint32_t i = 0; i < n; i++, p *= BASE) sum += ((uint64_t)keys[i] + 1) * p;
    return sum;
}

static uint32_t place(uint64_t hash)
{
    return (uint32_t)((hash ^ (hash >> 31)) * 0xBF58476D1CE4E5B9ull >> 40) % N_GHOSTS;
}

void ghosts_note(struct ghosts *g, uint64_t hash, enum ghost_cause cause)
{
    g->hash[place(hash)] = hash;
    g->cause[place(hash)] = (uint8_t)cause;
}

enum ghost_cause ghosts_find(const struct ghosts *g, uint64_t hash)
{
    return g->hash[place(hash)] == hash ? (enum ghost_cause)g->cause[place(hash)] : GHOST_NONE;
}
