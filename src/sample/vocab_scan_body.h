/* sample/vocab_scan_body.h - the kernels of vocab_scan.h in plain C, compiled once per instruction set.
 *
 * e^x = 2^k * e^r with r = x - k ln 2, |r| <= 0.35: 12 terms of Taylor's series are exact to 10^-14. Adding
 * 1.5 * 2^52 rounds to the nearest integer and leaves k in the low bits. 8 lanes of double: one register of AVX-512.
 */
#include <math.h>
#include <string.h>
#include "sample/vocab_scan.h"

typedef double f64x8 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));

#define LANES    16u
#define LOG2_E   1.44269504088896340736
#define LN2_HIGH 6.93145751953125e-1
#define LN2_LOW  1.42860682030941723212e-6
#define ROUND    6755399441055744.0 /* 1.5 * 2^52 */

/* The largest of the lanes, halved step by step: that is two instructions a step. */
static inline float most_of(float *lanes)
{
    for (uint32_t k = 0; k < 8; k++) lanes[k] = lanes[k + 8] > lanes[k] ? lanes[k + 8] : lanes[k];
    for (uint32_t k = 0; k < 4; k++) lanes[k] = lanes[k + 4] > lanes[k] ? lanes[k + 4] : lanes[k];
    for (uint32_t k = 0; k < 2; k++) lanes[k] = lanes[k + 2] > lanes[k] ? lanes[k + 2] : lanes[k];
    return lanes[1] > lanes[0] ? lanes[1] : lanes[0];
}

static bool scan_best(const float *row, uint32_t n, float *best)
{
    uint32_t wrong[LANES] = {0}, bad = 0, n_whole = n / VOCAB_BLOCK;

    for (uint32_t b = 0; b < n_whole; b++) {
        const float *v = row + b * VOCAB_BLOCK;
        float lanes[LANES];

        for (uint32_t k = 0; k < LANES; k++) lanes[k] = -INFINITY;
        for (uint32_t i = 0; i < VOCAB_BLOCK; i += LANES)
            for (uint32_t k = 0; k < LANES; k++) {
                wrong[k] |= !(v[i + k] < INFINITY); /* NaN compares false */
                lanes[k] = v[i + k] > lanes[k] ? v[i + k] : lanes[k];
            }
        best[b] = most_of(lanes);
    }
    if (n_whole * VOCAB_BLOCK < n) best[n_whole] = -INFINITY;
    for (uint32_t i = n_whole * VOCAB_BLOCK; i < n; i++) {
        bad |= !(row[i] < INFINITY);
        best[n_whole] = row[i] > best[n_whole] ? row[i] : best[n_whole];
    }
    for (uint32_t k = 0; k < LANES; k++) bad |= wrong[k];
    return bad == 0;
}

/* One block of VOCAB_BLOCK. weights: [VOCAB_BLOCK] or NULL. */
static inline double block_weights(const float *row, double max, double factor, double *weights)
{
    static const double terms[12] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                                     1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1,          1};
    f64x8 sum = {0};

    for (uint32_t i = 0; i < VOCAB_BLOCK; i += 8) {
        f32x8 v;
        f64x8 x, k, r, e = {0};
        u64x8 keep, bits;

        memcpy(&v, row + i, sizeof(v));
        x = (__builtin_convertvector(v, f64x8) - max) * factor;
        keep = (u64x8)(x > VOCAB_LEAST_POWER);
        k = x * LOG2_E + ROUND;
        bits = (u64x8)k;
        k -= ROUND;
        r = (x - k * LN2_HIGH) - k * LN2_LOW;
        for (uint32_t t = 0; t < 12; t++) e = e * r + terms[t];
        bits = ((bits << 52) + (u64x8)e) & keep;
        e = (f64x8)bits;
        sum += e;
        if (weights) memcpy(weights + i, &e, sizeof(e));
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static void scan_weights(const float *row, uint32_t n, double max, double factor, double *weights)
{
    float padded[VOCAB_BLOCK];

    for (uint32_t i = 0; i < VOCAB_BLOCK; i++) padded[i] = i < n ? row[i] : -INFINITY;
    (void)block_weights(padded, max, factor, weights);
}

/* philox_4x32 of 8 counters at a time: words of 64 bits, of which products use the lower halves. */
static void scan_words(uint64_t seed, uint32_t position, uint32_t id, uint32_t *words)
{
    const u64x8 low = (u64x8){0} + 0xffffffffu;

    for (uint32_t at = 0; at < VOCAB_BLOCK / 4; at += 8) {
        u64x8 c[4] = {(u64x8){0, 1, 2, 3, 4, 5, 6, 7} + (id / 4 + at), (u64x8){0} + position, {0}, {0}};
        uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);

        for (int round = 0; round < 10; round++) {
            const u64x8 p0 = (c[0] & low) * 0xD2511F53u, p1 = (c[2] & low) * 0xCD9E8D57u;

            c[0] = (p1 >> 32) ^ c[1] ^ key0;
            c[1] = p1 & low;
            c[2] = (p0 >> 32) ^ c[3] ^ key1;
            c[3] = p0 & low;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t k = 0; k < 4; k++) words[(at + i) * 4 + k] = (uint32_t)c[k][i];
    }
}

static void scan_sums(const float *row, uint32_t n, double max, double factor, double *sums)
{
    uint32_t n_whole = n / VOCAB_BLOCK;
    float padded[VOCAB_BLOCK];

    for (uint32_t b = 0; b < n_whole; b++) sums[b] = block_weights(row + b * VOCAB_BLOCK, max, factor, NULL);
    if (n_whole * VOCAB_BLOCK == n) return;
    for (uint32_t i = 0; i < VOCAB_BLOCK; i++)
        padded[i] = n_whole * VOCAB_BLOCK + i < n ? row[n_whole * VOCAB_BLOCK + i] : -INFINITY;
    sums[n_whole] = block_weights(padded, max, factor, NULL);
}
