/* base/random.h - the one source of random numbers.
 *
 * random_at() is counter-based: a pure function of (seed, counter), so that sampling depends on the request's
 * seed and the position only. Source: Philox4x32-10, Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2,
 * 3"). struct random is a small sequential generator for tests, ids and jitter (xoshiro256**, Blackman and Vigna 2018).
 * Thread  random_at, random_os: any thread. struct random: its owner.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* 64 random bits at (seed, counter). */
uint64_t random_at(uint64_t seed, uint64_t counter);
/* [0, 1) with 53 bits. */
double random_at_unit(uint64_t seed, uint64_t counter);

struct random {
    uint64_t s[4];
};
void random_init(struct random *r, uint64_t seed);
uint64_t random_u64(struct random *r);
/* Uniform in 0 .. n-1, unbiased; n >= 1. */
uint64_t random_below(struct random *r, uint64_t n);
double random_unit(struct random *r);

/* From the operating system; for ids and default seeds. Never fails (falls back to clock and address mixing). */
void random_os(void *out, size_t n_bytes);
