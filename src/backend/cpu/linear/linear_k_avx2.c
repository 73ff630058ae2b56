/* backend/cpu/linear/linear_k_avx2.c - linear of K types with AVX2: one output per 32-bit lane; a tile is two halves of 8
 * outputs.
 *
 * Sums          as linear_kernels.h, all integer until a unit of 256 k is complete. vpmaddubsw multiplies u8 weights by
 *               int8 activations into pairs of 16 bits; as many are added in 16 bits as cannot overflow (u <= 15: 8
 *               groups, <= 31: 4, <= 63: 2); vpmaddwd then multiplies by the scale and widens at once. What does not
 *               depend on the weights comes at the unit's end from the activations' sums, two parts per vpmaddwd: mins,
 *               or what the offset of signed quants makes, offset * sum of scale_j * sum_j(q).
 * Work          up to 4 rows share a tile, a group of which is opened where it is multiplied: 8 sums of 16 bits stay in
 *               registers, 4 rows by both halves, and each activation loaded meets both. From 12 rows on a unit is
 *               opened once, into the L1 cache, for up to MANY.
 * Bytes         per weight as in the file; decode is bound by memory, many rows by vpmaddubsw and what adds it up.
 */
#include "backend/cpu/linear/linear_kernels.h"
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear/linear_prefetch.h"
#include "backend/cpu/linear/linear_v256.h"

static void quantise_unit(const float *x, struct linear_unit *out)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    int32_t bits;
    __m256 scale;
    float amax;

    for (int i = 0; i < 32; i++)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), magnitude));
    bits = max_of(top);
    memcpy(&amax, &bits, sizeof(amax));
    memset(out, 0, sizeof(*out));
    if (bits >= 0x7f800000) out->d = NAN;
    if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) return;
    out->d = amax / 127.0f;
    scale = _mm256_set1_ps(127.0f / amax);
    for (int i = 0; i < 16; i++, x += 16) {
        __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
        __m256i q1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));

        _mm_storeu_si128((__m128i *)(out->q + 16 * i), bytes_of(q0, q1));
        out->sum16[i] = (int16_t)sum_of(_mm256_add_epi32(q0, q1));
    }
    for (int i = 0; i < 8; i++) out->sum32[i] = (int16_t)(out->sum16[2 * i] + out->sum16[2 * i + 1]);
}

static void quantise_k_avx2(const float *x, uint32_t n_in, void *acts)
{
    struct linear_unit *out = acts;

    for (uint32_t i = 0; i < n_in / LINEAR_UNIT; i++) quantise_unit(x + i * LINEAR_UNIT, out + i);
}

/* 8 unsigned bytes. */
INLINE __m256i bytes_at(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

/* Two parts' bytes of 8 outputs, as pairs of 16 bits: parts of 16 k, of SCALES_KM mins of 32 k. */
INLINE __m256i pair_at(const uint8_t *unit, int kind, int half, int j)
{
    const uint8_t *p = unit + half * 8 +
                       (kind == SCALES_K    ? 32 + j * 32
                        : kind == SCALES_KM ? 80 + j * 64
                                            : 64 + j * 32);
    const uint8_t *odd = p + (kind == SCALES_KM ? 32 : 16);
    __m256i v = _mm256_or_si256(bytes_at(p), _mm256_slli_epi32(bytes_at(odd), 16));

    if (kind == SCALES_K) return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
    if (kind == SCALES_K2) return _mm256_srli_epi16(v, 4);
    return v;
}

/* The scale of a block's half, twice in 16 bits. */
INLINE __m256i scale_at(const uint8_t *unit, int kind, int half, int b, int k_half)
{
    const __m256i low = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5,
                                         -1, 6, -1, 6, -1, 7, -1, 7, -1);
    const __m256i high = _mm256_or_si256(_mm256_slli_epi16(low, 8), _mm256_set1_epi16(255));
    const uint8_t *p = unit + half * 8 + b * 32 + (kind == SCALES_K ? 32 : 64) + k_half * 16;
    int64_t eight;
    __m256i v;

    memcpy(&eight, p, sizeof(eight));
    v = _mm256_set1_epi64x(eight);
    if (kind == SCALES_K) return _mm256_srai_epi16(_mm256_shuffle_epi8(v, high), 8);
    v = _mm256_shuffle_epi8(v, low);
    return kind == SCALES_KM ? v : _mm256_and_si256(v, _mm256_set1_epi16(15));
}

/* A unit opened for many rows: its quants as bytes, [8 blocks][8 groups] lines, and what scale_at and pair_at say. */
struct opened_unit {
    _Alignas(64) uint8_t lines[64 * 64];
    __m256i scale[16][2], pairs[8][2];
};

INLINE void open_unit(const uint8_t *lines, const uint8_t *unit, int bits, int kind, struct opened_unit *out)
{
    for (int b = 0; b < 8; b++) open_block(lines + b * bits * 64, bits, out->lines + b * 512);
    for (int half = 0; half < 2; half++) {
        for (int b = 0; b < 8; b++)
            for (int h = 0; h < (kind == SCALES_KM ? 1 : 2); h++)
                out->scale[2 * b + h][half] = scale_at(unit, kind, half, b, h);
        for (int j = 0; j < (kind == SCALES_KM ? 4 : 8); j++) out->pairs[j][half] = pair_at(unit, kind, half, j);
    }
}

/* sum += scale * dot, for groups g0 .. g1 - 1 of both halves and n rows whose activations of the block lie at q. */
INLINE void add_groups(const uint8_t *lines, int bits, int g0, int g1, const __m256i scale[2], const int8_t *q,
                       uint64_t q_stride, int n, __m256i sum[2][ROWS])
{
    __m256i words[2][ROWS];

#pragma GCC unroll 8
    for (int g = g0; g < g1; g++) {
        const __m256i w0 = group_at(lines, bits, g), w1 = group_at(lines + 32, bits, g);

#pragma GCC unroll 4
        for (int r = 0; r < n; r++) {
            const __m256i x = four_at(q + (uint64_t)r * q_stride + 4 * g);
            const __m256i p0 = _mm256_maddubs_epi16(w0, x), p1 = _mm256_maddubs_epi16(w1, x);

            add_words(&words[0][r], p0, g == g0);
            add_words(&words[1][r], p1, g == g0);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) {
        add_widened(&sum[0][r], words[0][r], scale[0]);
        add_widened(&sum[1][r], words[1][r], scale[1]);
    }
}

/* What the activations' sums add, then the unit's float step. opened: or NULL. */
INLINE void finish_unit(const uint8_t *unit, const struct opened_unit *opened, const struct linear_unit *a,
                        uint64_t x_stride, int n_rows, int offset_shift, int kind, __m256i sum[2][ROWS],
                        __m256 (*acc)[2])
{
    const int n_pairs = kind == SCALES_KM ? 4 : 8;
    __m256i ready[8][2], low[2][ROWS];
    const __m256i(*pairs)[2] = opened ? opened->pairs : ready;

    for (int j = 0; j < n_pairs && !opened; j++)
        for (int half = 0; half < 2; half++) ready[j][half] = pair_at(unit, kind, half, j);
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        const struct linear_unit *row = a + (uint64_t)r * x_stride;
        const int8_t *sums = (const int8_t *)(kind == SCALES_KM ? row->sum32 : row->sum16);

        low[0][r] = low[1][r] = _mm256_setzero_si256();
        for (int j = 0; j < n_pairs; j++) {
            const __m256i two = four_at(sums + 4 * j);

            low[0][r] = _mm256_add_epi32(low[0][r], _mm256_madd_epi16(pairs[j][0], two));
            low[1][r] = _mm256_add_epi32(low[1][r], _mm256_madd_epi16(pairs[j][1], two));
        }
    }
    for (int half = 0; half < 2; half++) {
        const __m256 d = halves_at(unit + half * 16);

#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            __m256i s = sum[half][r];
            __m256 t;

            if (kind == SCALES_K) s = _mm256_sub_epi32(s, _mm256_slli_epi32(low[half][r], offset_shift));
            t = _mm256_mul_ps(d, _mm256_cvtepi32_ps(s));
            if (kind != SCALES_K)
                t = _mm256_fnmadd_ps(halves_at(unit + 32 + half * 16), _mm256_cvtepi32_ps(low[half][r]), t);
            acc[r][half] = _mm256_fmadd_ps(_mm256_set1_ps(a[(uint64_t)r * x_stride].d), t, acc[r][half]);
        }
    }
}

/* sum += scale * dot of what has one scale: half h of block b, or all of it. bits: as lines are stored; step: groups
 * whose sum fits 16 bits. */
INLINE void add_scaled(const uint8_t *lines, int bits, int step, const uint8_t *unit, const struct opened_unit *opened,
                       int kind, int b, int h, const struct linear_unit *a, uint64_t x_stride, int n_rows,
                       __m256i sum[2][ROWS])
{
    const int n_groups = kind == SCALES_KM ? 8 : 4;
    const __m256i scale[2] = {opened ? opened->scale[2 * b + h][0] : scale_at(unit, kind, 0, b, h),
                              opened ? opened->scale[2 * b + h][1] : scale_at(unit, kind, 1, b, h)};

#pragma GCC unroll 2
    for (int g = h * n_groups; g < (h + 1) * n_groups; g += step)
        add_groups(lines, bits, g, g + step, scale, a->q + b * 32, x_stride * sizeof(*a), n_rows, sum);
}

/* A unit of up to 4 rows, packed at lines where it is not opened. n_rows, bits, offset_shift, kind, and whether it is
 * opened, are constants where this is inlined. */
INLINE void unit_rows(const uint8_t *lines, const uint8_t *unit, const struct opened_unit *opened,
                      const struct linear_unit *a, uint64_t x_stride, int n_rows, int bits, int offset_shift, int kind,
                      __m256 (*acc)[2])
{
    const int step = bits == 6 ? 2 : bits == 5 || kind != SCALES_KM ? 4 : 8, stored = opened ? OPENED : bits;
    const uint32_t block_bytes = opened ? 512 : (uint32_t)bits * 64;
    __m256i sum[2][ROWS];

    if (opened) lines = opened->lines;
    for (int r = 0; r < n_rows; r++) sum[0][r] = sum[1][r] = _mm256_setzero_si256();
    for (int b = 0; b < 8; b++, lines += block_bytes) {
        add_scaled(lines, stored, step, unit, opened, kind, b, 0, a, x_stride, n_rows, sum);
        if (kind != SCALES_KM) add_scaled(lines, stored, step, unit, opened, kind, b, 1, a, x_stride, n_rows, sum);
    }
    finish_unit(unit, opened, a, x_stride, n_rows, offset_shift, kind, sum, acc);
}

/* n_rows: 1, 2, 4, or a multiple of 4 up to MANY, which meet opened units. */
INLINE void k_rows(const struct linear_tile *t, uint32_t row0, int n_rows, int bits, int offset_shift, int kind)
{
    const struct linear_unit *a = (const struct linear_unit *)t->x + row0 * t->x_stride;
    const uint32_t n_units = t->n_in / LINEAR_UNIT, block_bytes = (uint32_t)bits * 64;
    const uint32_t unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint8_t *lines = t->w, *unit = t->w + (uint64_t)n_units * 8 * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, unit, (uint64_t)n_units * unit_bytes, t->ask_l2);
    const bool first = row0 == 0, asks = soon_is_asked(t, row0); /* later rows find the tile in the cache */
    __m256 acc[MANY][2];

    for (int r = 0; r < n_rows; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n_units; i++, a++, lines += 8 * block_bytes, unit += unit_bytes) {
        for (int b = 0; first && b < 8; b++)
            prefetch_block(&ahead, lines + b * block_bytes, block_bytes, b ? NULL : unit, unit_bytes);
        if (asks) prefetch_soon(t->soon, 8);
        if (n_rows > ROWS) {
            struct opened_unit opened;

            open_unit(lines, unit, bits, kind, &opened);
            for (int r = 0; r < n_rows; r += ROWS) {
                if (r > 0) prefetch_soon(t->soon, 8);
                unit_rows(NULL, unit, &opened, a + (uint64_t)r * t->x_stride, t->x_stride, ROWS, bits, offset_shift,
                          kind, acc + r);
            }
        } else {
            unit_rows(lines, unit, NULL, a, t->x_stride, n_rows, bits, offset_shift, kind, acc);
        }
    }
    store_rows(t, row0, n_rows, acc);
}

#define K_TILE(tag, type, bits, offset_shift, scales) TILE(tile_##tag, MANY, k_rows, bits, offset_shift, scales)
LINEAR_K_FORMS(K_TILE)

static linear_tile_fn *tile_k_avx2(enum dtype type)
{
    switch (type) {
        LINEAR_K_FORMS(LINEAR_TILE_CASE)
    default:
        return NULL;
    }
}

const struct cpu_linear_kernels linear_k_kernels_avx2 = {LINEAR_UNIT, sizeof(struct linear_unit), quantise_k_avx2,
                                                         tile_k_avx2, NULL};
