/* base/random.c - Philox4x32-10 (philox.h) and xoshiro256** (Blackman and Vigna 2018). */
#include "base/random.h"
#include <string.h>
#include "base/clock.h"
#include "base/os_machine.h"
#include "base/philox.h"

uint64_t random_at(uint64_t seed, uint64_t counter)
{
    struct philox_words words = philox_4x32((uint32_t)counter, (uint32_t)(counter >> 32), 0, 0, seed);

    return (uint64_t)words.w[1] << 32 | words.w[0];
}

static double unit_of(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

double random_at_unit(uint64_t seed, uint64_t counter)
{
    return unit_of(random_at(seed, counter));
}

/* splitmix64's finaliser: spreads any seed, 0 too, over a whole state that is never all zero. */
static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

void random_init(struct random *r, uint64_t seed)
{
    for (uint64_t i = 0; i < 4; i++) r->s[i] = mix64(seed + (i + 1) * 0x9E3779B97F4A7C15ull);
}

static uint64_t rotate_left(uint64_t v, int n)
{
    return v << n | v >> (64 - n);
}

uint64_t random_u64(struct random *r)
{
    uint64_t *s = r->s, result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t random_below(struct random *r, uint64_t n)
{
    uint64_t surplus = (0 - n) % n, v; /* 2^64 mod n: the lowest values that would make some results likelier */

    do v = random_u64(r);
    while (v < surplus);
    return v % n;
}

double random_unit(struct random *r)
{
    return unit_of(random_u64(r));
}

void random_os(void *out, size_t n_bytes)
{
    unsigned char *p = out;

    struct random r;

    if (os_random(out, n_bytes)) return;
    /* the system has none to give: unlike in other processes, and that is all */
    random_init(&r, clock_now_ns(clock_system()) ^ (uint64_t)clock_wall_s(clock_system()) << 32 ^ (uintptr_t)&r);
    for (size_t i = 0; i < n_bytes; i++) p[i] = (unsigned char)(random_u64(&r) >> 56);
}
