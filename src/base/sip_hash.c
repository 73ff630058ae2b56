/* base/sip_hash.c - rounds of additions, rotations and exclusive ors over four words. */
#include "base/sip_hash.h"
#include <string.h>

struct state {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

static uint64_t little_endian(const uint8_t *p, size_t n)
{
    uint64_t x = 0;

    for (size_t i = 0; i < n; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static void rounds(struct state *s, unsigned n)
{
    while (n-- > 0) {
        s->v0 += s->v1, s->v1 = rotate(s->v1, 13) ^ s->v0, s->v0 = rotate(s->v0, 32);
        s->v2 += s->v3, s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 += s->v3, s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 += s->v1, s->v1 = rotate(s->v1, 17) ^ s->v2, s->v2 = rotate(s->v2, 32);
    }
}

static void absorb(struct state *s, uint64_t word)
{
    s->v3 ^= word;
    rounds(s, 2);
    s->v0 ^= word;
}

struct hash128 sip_hash128(struct sip_key key, const void *data, size_t n)
{
    const uint8_t *p = data;
    struct state s = {key.k0 ^ 0x736f6d6570736575ull, key.k1 ^ 0x646f72616e646f6dull ^ 0xee,
                      key.k0 ^ 0x6c7967656e657261ull, key.k1 ^ 0x7465646279746573ull};
    struct hash128 h;
    size_t i;

    for (i = 0; i + 8 <= n; i += 8) absorb(&s, little_endian(p + i, 8));
    absorb(&s, little_endian(p + i, n - i) | (uint64_t)n << 56);
    s.v2 ^= 0xee;
    rounds(&s, 4);
    h.low = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    rounds(&s, 4);
    h.high = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return h;
}
