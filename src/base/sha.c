/* base/sha.c - see sha.h. */
#include "base/sha.h"
#include <assert.h>
#include <string.h>

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t left(uint32_t v, unsigned n)
{
    return v << n | v >> (32 - n);
}

static uint32_t right(uint32_t v, unsigned n)
{
    return v >> n | v << (32 - n);
}

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void mix_256(uint32_t state[8], const uint8_t block[64])
{
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6];
    uint32_t h = state[7], w[64];

    for (int i = 0; i < 16; i++) w[i] = word_at(block + 4 * i);
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (right(w[i - 15], 7) ^ right(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (right(w[i - 2], 17) ^ right(w[i - 2], 19) ^ w[i - 2] >> 10);
    for (int i = 0; i < 64; i++) {
        uint32_t one =
            h + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + (g ^ (e & (f ^ g))) + round_constants[i] + w[i];
        uint32_t two = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) | (c & (a | b)));

        h = g;
        g = f;
        f = e;
        e = d + one;
        d = c;
        c = b;
        b = a;
        a = one + two;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

static void mix_1(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];

    for (int i = 0; i < 16; i++) w[i] = word_at(block + 4 * i);
    for (int i = 16; i < 80; i++) w[i] = left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                     : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                              : (b ^ c ^ d) + 0xca62c1d6;
        uint32_t next = left(a, 5) + f + e + w[i];

        e = d;
        d = c;
        c = left(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

void sha256_begin(struct sha *s)
{
    *s = (struct sha){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
        .mix = mix_256,
        .n_words = 8};
}

void sha1_begin(struct sha *s)
{
    *s =
        (struct sha){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}, .mix = mix_1, .n_words = 5};
}

void sha_add(struct sha *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t n_waiting = s->n_bytes % sizeof(s->block);

    s->n_bytes += n;
    if (n_waiting) {
        size_t part = sizeof(s->block) - n_waiting < n ? sizeof(s->block) - n_waiting : n;

        memcpy(s->block + n_waiting, p, part);
        if (n_waiting + part < sizeof(s->block)) return;
        s->mix(s->state, s->block);
        p += part;
        n -= part;
    }
    for (; n >= sizeof(s->block); p += sizeof(s->block), n -= sizeof(s->block)) s->mix(s->state, p);
    if (n) memcpy(s->block, p, n);
}

void sha_end_bytes(struct sha *s, uint8_t *digest)
{
    static const uint8_t padding[64] = {0x80};
    uint64_t n_bits = s->n_bytes * 8;
    size_t n_waiting = s->n_bytes % sizeof(s->block);
    uint8_t length[8];

    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(n_bits >> (56 - 8 * i));
    sha_add(s, padding, (n_waiting < 56 ? 56 : 120) - n_waiting);
    sha_add(s, length, sizeof(length));
    for (uint32_t i = 0; i < 4 * s->n_words; i++) digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha_end(struct sha *s, char hex[SHA_HEX_BYTES])
{
    uint8_t digest[SHA_BYTES];

    sha_end_bytes(s, digest);
    for (uint32_t i = 0; i < 8 * s->n_words; i++) hex[i] = "0123456789abcdef"[digest[i / 2] >> (4 * (1 - i % 2)) & 15];
    hex[8 * s->n_words] = 0;
}

void sha_hmac256(const void *key, size_t n_key, const void *data, size_t n, char hex[SHA_HEX_BYTES])
{
    uint8_t inner[64] = {0}, outer[64], digest[SHA_BYTES];
    struct sha s;

    assert(n_key <= sizeof(inner));
    memcpy(inner, key, n_key);
    for (size_t i = 0; i < sizeof(inner); i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    sha256_begin(&s);
    sha_add(&s, inner, sizeof(inner));
    sha_add(&s, data, n);
    sha_end_bytes(&s, digest);
    sha256_begin(&s);
    sha_add(&s, outer, sizeof(outer));
    sha_add(&s, digest, sizeof(digest));
    sha_end(&s, hex);
}
