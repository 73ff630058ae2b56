/* backend/cpu/linear/linear_amx.c - linear of block types and many rows with AMX-INT8: 16 rows x 16 outputs x 32 k per tile
 * product.
 *
 * Sums          as linear_kernels.h. Quants are opened as signed bytes, offset taken off, so one tdpbssd is the exact
 *               integer dot of 16 rows and 16 outputs; AVX-512 then does the float operations, row by row, in the
 *               order of every other variant.
 * Work          weights of SPAN_BLOCKS blocks of a tile are opened once and meet all rows; where the rows' activations
 *               fit no L2 cache, several tiles are opened and meet 16 rows after another. Weights are asked for ahead,
 *               for up to 16 rows each block once, while the block a span before it is multiplied.
 *               More than 16 rows meet two tiles together, four blocks at a time: eight products, then their floats, of
 *               8 rows by both tiles, whose sums fill 16 registers and go to the L1 cache and back once in four blocks;
 *               after the products the lines of the outputs are asked for (16 rows are on 16 pages).
 *               Up to 16 rows meet one tile, the products of the block after next under way.
 * Bytes         16 of opened weights and 24 of activations per k, for 256 multiplications.
 * Bound         of the 8,192 multiplications of 16 rows x 16 outputs x 32 k, in cycles: product 18, store 17, which
 *               overlap only where no store waits for a product in order; 3 to 4 float operations per row; and loads,
 *               of which two start per cycle: 24 of tiles and 48 of floats, for two tiles together 16 and 36.
 * Measured      one thread of an Intel Xeon, 2.6 GHz clock at a turbo of 3.4, cycles of 2.6 GHz per block with all that
 *               a linear does, 256 rows: 61 (Q5_0), 71 (Q4_1); before outputs were asked for 69 and 80, before tiles
 *               came in pairs 63 and 75; 16 rows, weights from memory, two threads at once: 109 (Q4_1), 106 (Q5_0), 137
 *               (Q8_0), from the caches 80, 79 and 79. Tried, and slower or faster by only a few per cent: 32
 *               rows x 32 outputs with sums of 2, 4 or 8 blocks in between, stores one or two blocks later than
 *               products, sums that start at the bits of 1.5 * 2^23 and need no conversion, prefetching activations,
 *               quants as bf16, whose product is a float already (more loads and bytes than the conversion costs).
 */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear/linear_amx.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/linear/linear_v512.h"

#define SPAN_BLOCKS    32u        /* 16 KiB of quants and up to 4 KiB of scales: half of an L1 cache */
#define PANEL_X_BYTES  (1u << 20) /* activations that stay in the L2 cache; with more of them, this many tiles */
#define PANEL_TILES    8u         /* are opened together: 160 KiB */
#define QUANTISE_AHEAD 96u        /* floats: 16 rows are more streams than prefetchers follow */
#define PANEL_MIN_ROWS 9u         /* 8 rows are one pass of AVX-512, whose opened quants stay in registers */
#define AHEAD          2u         /* blocks whose products are under way; a power of two */

/* ---- activations ---- */

/* Lane r: the greatest of v[r]'s lanes. */
static __m512i max_of_rows(const __m512i v[16])
{
    __m512i four[4], a, b;

    for (int i = 0; i < 4; i++) {
        const __m512i *r = v + 4 * i;
        __m512i x = _mm512_max_epi32(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
        __m512i y = _mm512_max_epi32(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));

        four[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y)); /* 4 lanes of 4 rows */
    }
    a = _mm512_max_epi32(_mm512_shuffle_i32x4(four[0], four[1], 0x44), _mm512_shuffle_i32x4(four[0], four[1], 0xee));
    b = _mm512_max_epi32(_mm512_shuffle_i32x4(four[2], four[3], 0x44), _mm512_shuffle_i32x4(four[2], four[3], 0xee));
    return _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* The sum of every row's quants. */
static void sum_of_rows(struct linear_act16 *out)
{
    const __m512i even = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(4));
    __m512i part[8], eight[2];

    for (int i = 0; i < 8; i++) /* two rows: 4 lanes of each half */
        part[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(out->q[2 * i]));
    for (int i = 0; i < 2; i++) {
        const __m512i *p = part + 4 * i;
        __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(p[0], p[1]), _mm512_unpackhi_epi32(p[0], p[1]));
        __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(p[2], p[3]), _mm512_unpackhi_epi32(p[2], p[3]));

        eight[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    }
    _mm512_store_ps(out->sum, _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_permutex2var_epi32(eight[0], even, eight[1]),
                                                                  _mm512_permutex2var_epi32(eight[0], odd, eight[1]))));
}

static void quantise16_amx(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t n_in, void *acts)
{
    static const float zeros[LINEAR_BLOCK];
    struct linear_act16 *out = acts;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);

    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        float scales[16];
        __m512i top[16];
        __m512 amax, d;
        __mmask16 finite, used;

#pragma GCC unroll 16
        for (uint32_t r = 0; r < 16; r++) {
            const float *row = r < n_rows ? x + r * x_stride : zeros;

            _mm_prefetch((const char *)(row + QUANTISE_AHEAD), _MM_HINT_T0);
            _mm_prefetch((const char *)(row + QUANTISE_AHEAD + 16), _MM_HINT_T0);
            top[r] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(row)), magnitude),
                                      _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(row + 16)), magnitude));
        }
        top[0] = max_of_rows(top);
        amax = _mm512_castsi512_ps(top[0]);
        finite = _mm512_cmplt_epi32_mask(top[0], _mm512_set1_epi32(0x7f800000));
        used = finite & _mm512_cmp_ps_mask(amax, _mm512_set1_ps(LINEAR_ACT_TINY), _CMP_GE_OQ);
        d = _mm512_maskz_div_ps(used, amax, _mm512_set1_ps(127.0f));
        _mm512_store_ps(out->d, _mm512_mask_blend_ps(finite, _mm512_set1_ps(NAN), d));
        /* a row not used gets the scale 0: x * 0 is 0 or NaN, which converts to 2^31, whose low byte is 0 */
        _mm512_storeu_ps(scales, _mm512_maskz_div_ps(used, _mm512_set1_ps(127.0f), amax));
#pragma GCC unroll 16
        for (uint32_t r = 0; r < 16; r++) {
            const float *row = r < n_rows ? x + r * x_stride : zeros;
            __m512 scale = _mm512_set1_ps(scales[r]);
            __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(row), scale));
            __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(row + 16), scale));

            _mm_store_si128((__m128i *)(void *)out->q[r], _mm512_cvtepi32_epi8(q0));
            _mm_store_si128((__m128i *)(void *)(out->q[r] + 16), _mm512_cvtepi32_epi8(q1));
        }
        sum_of_rows(out);
    }
}

/* ---- tiles of the matrix unit ---- */

/* tmm0 .. tmm3: int32 [16 rows][16 outputs]; tmm4, tmm5: int8 [16 rows][32 k]; tmm6, tmm7: int8 [8][16 outputs][4 k] */
static const struct tile_config config = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 32, 32, 64, 64}, .n_rows = {16, 16, 16, 16, 16, 16, 8, 8}};

/* One block: sums = q x w. */
INLINE void tiles_multiply(const int8_t (*q)[32], const uint8_t *w, int32_t (*sums)[16])
{
    __asm__ volatile("tilezero %%tmm0\n\t"
                     "tileloadd (%[q], %[q_step], 1), %%tmm4\n\t"
                     "tileloadd (%[w], %[step], 1), %%tmm6\n\t"
                     "tdpbssd %%tmm6, %%tmm4, %%tmm0\n\t"
                     "tilestored %%tmm0, (%[sums], %[step], 1)"
                     :
                     : [q] "r"(q), [q_step] "r"((uint64_t)32), [w] "r"(w), [step] "r"((uint64_t)64), [sums] "r"(sums)
                     : "memory");
}

typedef int32_t tile_sums[16][16];

/* These three say what they touch, and no more: what else the compiler has in registers stays there. */
#define LOAD_ROWS(tile, from)                                                                                          \
    __asm__ volatile("tileloadd (%0, %1, 1), %%tmm" #tile                                                              \
                     :                                                                                                 \
                     : "r"(from), "r"((uint64_t)32), "m"(*(const int8_t(*)[512])(from)))
#define MULTIPLY(tile, rows, w, from)                                                                                  \
    __asm__ volatile("tileloadd (%0, %1, 1), %%tmm" #w "\n\t"                                                          \
                     "tilezero %%tmm" #tile "\n\t"                                                                     \
                     "tdpbssd %%tmm" #w ", %%tmm" #rows ", %%tmm" #tile                                                \
                     :                                                                                                 \
                     : "r"(from), "r"((uint64_t)64), "m"(*(const uint8_t(*)[512])(from)))
#define STORE(tile, to)                                                                                                \
    __asm__ volatile("tilestored %%tmm" #tile ", (%1, %2, 1)" : "=m"(*(tile_sums *)(to)) : "r"(to), "r"((uint64_t)64))

/* Two blocks of 16 rows by two tiles of weights, the first of four such or the next: sums[2 * block + tile], of which a
 * tile's four are stored while later products are under way. */
INLINE void multiply_2x2(const struct linear_act16 *x, const uint8_t *w0, const uint8_t *w1, tile_sums *sums,
                         bool first)
{
    LOAD_ROWS(4, x[0].q);
    MULTIPLY(0, 4, 6, w0);
    if (!first) STORE(2, sums[-2]);
    MULTIPLY(1, 4, 7, w1);
    if (!first) STORE(3, sums[-1]);
    LOAD_ROWS(5, x[1].q);
    MULTIPLY(2, 5, 6, w0 + 512);
    STORE(0, sums[0]);
    MULTIPLY(3, 5, 7, w1 + 512);
    STORE(1, sums[1]);
}

/* The same of n_blocks, 1, 2 or 4. */
INLINE void multiply_pair(const struct linear_act16 *x, const uint8_t *w0, const uint8_t *w1, tile_sums *sums,
                          uint32_t n_blocks)
{
    if (n_blocks == 1) {
        LOAD_ROWS(4, x[0].q);
        MULTIPLY(0, 4, 6, w0);
        MULTIPLY(1, 4, 7, w1);
        STORE(0, sums[0]);
        STORE(1, sums[1]);
        return;
    }
    multiply_2x2(x, w0, w1, sums, true);
    if (n_blocks == 4) multiply_2x2(x + 2, w0 + 1024, w1 + 1024, sums + 4, false);
    STORE(2, sums[n_blocks * 2 - 2]);
    STORE(3, sums[n_blocks * 2 - 1]);
}

/* ---- weights ---- */

/* What is asked for while a span is multiplied: one block for each of its blocks, first from `quants` and `scales` on,
 * from the end of their tile on from next_tile. quants: NULL where nothing is asked for. */
struct blocks_ahead {
    const uint8_t *quants, *scales, *next_tile;
    uint32_t n_left, scale_bytes;
    uint64_t quant_bytes;
};

/* Asks for a block, and goes on to the one after it. */
INLINE void prefetch_ahead(struct blocks_ahead *s, int bits)
{
    if (!s->quants) return;
    if (s->n_left-- == 0) {
        s->quants = s->next_tile;
        s->scales = s->next_tile + s->quant_bytes;
    }
    for (int l = 0; l < bits; l++, s->quants += 64) _mm_prefetch((const char *)s->quants, _MM_HINT_T1);
    _mm_prefetch((const char *)s->scales, _MM_HINT_T1);
    s->scales += s->scale_bytes;
}

struct open_span { /* a tile's weights of SPAN_BLOCKS blocks, opened */
    _Alignas(64) uint8_t q[SPAN_BLOCKS][8][64];
    float d[SPAN_BLOCKS][16], m[SPAN_BLOCKS][16];
};

INLINE void open_blocks(const uint8_t *tile, uint32_t n_blocks_all, uint32_t from, uint32_t n_blocks,
                        struct open_span *span, int bits, int offset_shift, int kind)
{
    const uint32_t unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint8_t *scales = tile + (uint64_t)n_blocks_all * (uint32_t)bits * 64 + from * unit_bytes;
    const __m512i offset = _mm512_set1_epi8(offset_shift ? (char)(1 << offset_shift) : 0);

    for (uint32_t i = 0; i < n_blocks; i++, scales += unit_bytes) {
        __m512i w[8];

        open_block(tile + (uint64_t)(from + i) * (uint32_t)bits * 64, bits, w);
        for (int g = 0; g < 8; g++) _mm512_store_si512(span->q[i][g], _mm512_sub_epi8(w[g], offset));
        _mm512_store_ps(span->d[i], halves_at(scales));
        if (kind == SCALES_DM) _mm512_store_ps(span->m[i], halves_at(scales + 32));
    }
}

/* ---- rows ---- */

/* One block's floats of n_rows rows. */
INLINE void block_floats(const struct open_span *span, uint32_t i, const struct linear_act16 *a, int32_t (*sums)[16],
                         int n_rows, int kind, __m512 *acc)
{
    const __m512 d = _mm512_load_ps(span->d[i]), m = _mm512_load_ps(span->m[i]);

#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++) {
        __m512 t = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_load_si512(sums[r])));

        if (kind == SCALES_DM) t = _mm512_fmadd_ps(m, _mm512_set1_ps(a->sum[r]), t);
        acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(a->d[r]), t, acc[r]);
    }
}

/* A span times up to 16 rows: continues the sums that lie in out unless it is the first. */
struct span_rows {
    const struct open_span *span;
    const struct linear_act16 *x; /* of the span's first block */
    uint32_t n_blocks, n_rows;
    bool first, last;
    __mmask16 outs;
    float *out;
    uint64_t out_stride;
    const float *bias;
    struct tiles_best *best; /* or NULL */
    struct blocks_ahead ahead;
};

INLINE void run_rows(const struct span_rows *s, int n_rows, int bits, int kind)
{
    _Alignas(64) int32_t sums[AHEAD * 2][16][16];
    struct blocks_ahead ahead = s->ahead;
    __m512 acc[16];

#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++)
        acc[r] = s->first || r >= (int)s->n_rows ? _mm512_setzero_ps()
                                                 : _mm512_maskz_loadu_ps(s->outs, s->out + (uint64_t)r * s->out_stride);
    for (uint32_t i = 0; i < AHEAD && i < s->n_blocks; i++) tiles_multiply(s->x[i].q, s->span->q[i][0], sums[i]);
    for (uint32_t i = 0; i < s->n_blocks; i++) {
        uint32_t next = i + AHEAD;

        prefetch_ahead(&ahead, bits);
        if (next < s->n_blocks) tiles_multiply(s->x[next].q, s->span->q[next][0], sums[next % (AHEAD * 2)]);
        block_floats(s->span, i, s->x + i, sums[i % (AHEAD * 2)], n_rows, kind, acc);
    }
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++) {
        if (s->last && s->bias) acc[r] = _mm512_add_ps(acc[r], _mm512_maskz_loadu_ps(s->outs, s->bias));
        if (r >= (int)s->n_rows) break;
        if (s->last && s->best)
            tiles_best_put(s->best, (uint32_t)r, s->out + (uint64_t)r * s->out_stride, s->outs, acc[r]);
        else
            _mm512_mask_storeu_ps(s->out + (uint64_t)r * s->out_stride, s->outs, acc[r]);
    }
}

typedef void rows_fn(const struct span_rows *s);

/* ---- 16 rows by two tiles ---- */

/* An opened tile from some block on. */
struct opened {
    const uint8_t *q;
    const float *d, *m;
};

INLINE struct opened opened_at(const struct open_span *span, uint32_t i)
{
    return (struct opened){span->q[i][0], span->d[i], span->m[i]};
}

/* The floats of n blocks and 8 rows, by two tiles: a row's scale and sum are read once for both. */
INLINE void pair_floats(const struct linear_act16 *x, const struct opened w[2], const tile_sums *sums, uint32_t n,
                        int row, int kind, float (*acc)[16][16])
{
    __m512 a[2][8];

#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) {
        a[0][r] = _mm512_load_ps(acc[0][row + r]);
        a[1][r] = _mm512_load_ps(acc[1][row + r]);
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++) {
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) {
            const __m512 d = _mm512_set1_ps(x[i].d[row + r]), sum = _mm512_set1_ps(x[i].sum[row + r]);

#pragma GCC unroll 2
            for (int t = 0; t < 2; t++) {
                const __m512i s = _mm512_load_si512(sums[2 * i + (uint32_t)t][row + r]);
                __m512 v = _mm512_mul_ps(_mm512_load_ps(w[t].d + 16 * i), _mm512_cvtepi32_ps(s));

                if (kind == SCALES_DM) v = _mm512_fmadd_ps(_mm512_load_ps(w[t].m + 16 * i), sum, v);
                a[t][r] = _mm512_fmadd_ps(d, v, a[t][r]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) {
        _mm512_store_ps(acc[0][row + r], a[0][r]);
        _mm512_store_ps(acc[1][row + r], a[1][r]);
    }
}

/* Two spans times up to 16 rows; s: the first one's, all of whose outputs are used. */
struct pair_rows {
    struct span_rows s;
    const struct open_span *second;
    __mmask16 second_outs;
};

INLINE void pair_step(const struct pair_rows *p, uint32_t i, uint32_t n, tile_sums *sums, int kind,
                      float (*acc)[16][16])
{
    const struct opened w[2] = {opened_at(p->s.span, i), opened_at(p->second, i)};

    multiply_pair(p->s.x + i, w[0].q, w[1].q, sums, n);
    if (n == 4)
        for (uint32_t r = i % 16; r < i % 16 + 4; r++) { /* both tiles': 128 bytes of a row */
            __builtin_prefetch(p->s.out + r * p->s.out_stride, 1, 3);
            __builtin_prefetch(p->s.out + r * p->s.out_stride + 16, 1, 3);
        }
    pair_floats(p->s.x + i, w, sums, n, 0, kind, acc);
    pair_floats(p->s.x + i, w, sums, n, 8, kind, acc);
}

/* Four blocks at a time: sums of floats go to memory and back once in four. */
INLINE void run_pair(const struct pair_rows *p, int kind)
{
    _Alignas(64) tile_sums sums[8];
    _Alignas(64) float acc[2][16][16];
    const struct span_rows *s = &p->s;
    const __mmask16 outs[2] = {s->outs, p->second_outs};
    uint32_t i = 0;

    if (s->first) memset(acc, 0, sizeof(acc));
    for (uint32_t r = 0; r < s->n_rows && !s->first; r++)
        for (int t = 0; t < 2; t++)
            _mm512_store_ps(acc[t][r], _mm512_maskz_loadu_ps(outs[t], s->out + r * s->out_stride + t * 16));
    for (; i + 4 <= s->n_blocks; i += 4) {
        pair_step(p, i, 4, sums, kind, acc);
    }
    if (i + 2 <= s->n_blocks) {
        pair_step(p, i, 2, sums, kind, acc);
        i += 2;
    }
    if (i < s->n_blocks) pair_step(p, i, 1, sums, kind, acc);
    for (uint32_t r = 0; r < s->n_rows; r++)
        for (int t = 0; t < 2; t++) {
            __m512 v = _mm512_load_ps(acc[t][r]);

            if (s->last && s->bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(outs[t], s->bias + t * 16));
            _mm512_mask_storeu_ps(s->out + r * s->out_stride + t * 16, outs[t], v);
        }
}

typedef void pair_fn(const struct pair_rows *p);

/* The lanes of the tile of output o that are outputs. */
INLINE __mmask16 outs_of(const struct linear_panel *p, uint32_t o)
{
    return (__mmask16)((1u << (p->n_out - o < LINEAR_TILE ? p->n_out - o : LINEAR_TILE)) - 1);
}

/* 16 rows from row on times an opened tile: outputs o .. o + 15, blocks from .. from + n - 1. */
INLINE struct span_rows rows_of(const struct linear_panel *p, const struct open_span *span, uint32_t from, uint32_t n,
                                uint32_t o, uint32_t row)
{
    const uint32_t n_blocks = p->n_in / LINEAR_BLOCK;

    return (struct span_rows){
        .span = span,
        .x = (const struct linear_act16 *)p->x + (uint64_t)(row / 16) * n_blocks + from,
        .n_blocks = n,
        .n_rows = p->n_rows - row < 16 ? p->n_rows - row : 16,
        .first = from == 0,
        .last = from + n == n_blocks,
        .outs = outs_of(p, o),
        .out = p->out + row * p->out_stride + o,
        .out_stride = p->out_stride,
        .bias = p->bias ? p->bias + o : NULL,
    };
}

/* What lies SPAN_BLOCKS, or a whole tile if it has fewer, after block `from` of a tile. */
INLINE struct blocks_ahead ahead_of(const uint8_t *tile, const uint8_t *next_tile, uint32_t from, uint32_t n_blocks,
                                    uint32_t block_bytes, uint32_t scale_bytes)
{
    const uint32_t at = from + (n_blocks < SPAN_BLOCKS ? n_blocks : SPAN_BLOCKS);
    const uint64_t quant_bytes = (uint64_t)n_blocks * block_bytes;
    const bool wraps = at >= n_blocks;
    const uint8_t *next = next_tile ? next_tile : tile, *in = wraps ? next : tile;
    const uint32_t first = wraps ? at - n_blocks : at;

    return (struct blocks_ahead){in + (uint64_t)first * block_bytes,
                                 in + quant_bytes + (uint64_t)first * scale_bytes,
                                 next,
                                 wraps ? UINT32_MAX : n_blocks - at,
                                 scale_bytes,
                                 quant_bytes};
}

/* What will be opened next: up to SPAN_BLOCKS blocks of n_tiles tiles. */
struct stream {
    const uint8_t *tiles;
    uint32_t from, n_blocks_all, n_tiles;
    uint64_t tile_bytes;
};

/* Asks for a share of it (part of n_parts), while there is other work. */
INLINE void prefetch_part(const struct stream *s, uint32_t block_bytes, uint32_t part, uint32_t n_parts)
{
    const uint32_t left = s->n_blocks_all - s->from, n = left < SPAN_BLOCKS ? left : SPAN_BLOCKS;
    const uint64_t quant_bytes = (uint64_t)s->n_blocks_all * block_bytes, scale_bytes = s->tile_bytes - quant_bytes;
    const uint32_t n_lines = n * block_bytes / 64, scale_lines = s->from ? 0 : (uint32_t)(scale_bytes / 64);

    for (uint32_t i = 0; i < s->n_tiles; i++) {
        const uint8_t *quants = s->tiles + i * s->tile_bytes + (uint64_t)s->from * block_bytes;
        const uint8_t *scales = s->tiles + i * s->tile_bytes + quant_bytes;

        for (uint32_t l = n_lines * part / n_parts; l < n_lines * (part + 1) / n_parts; l++)
            _mm_prefetch((const char *)quants + l * 64, _MM_HINT_T1);
        for (uint32_t l = scale_lines * part / n_parts; l < scale_lines * (part + 1) / n_parts; l++)
            _mm_prefetch((const char *)scales + l * 64, _MM_HINT_T1);
    }
}

INLINE void run_panel(const struct linear_panel *p, int bits, int offset_shift, int kind, rows_fn *rows_16,
                      rows_fn *rows_8, pair_fn *pair)
{
    const uint32_t n_blocks = p->n_in / LINEAR_BLOCK, n_groups = (p->n_rows + 15) / 16;
    const uint32_t at_once = (uint64_t)n_groups * n_blocks * sizeof(struct linear_act16) > PANEL_X_BYTES ? PANEL_TILES
                             : n_groups > 1                                                              ? 2
                                                                                                         : 1;
    const uint32_t block_bytes = (uint32_t)bits * 64;
    const uint64_t quant_bytes = (uint64_t)n_blocks * block_bytes;
    const uint32_t scale_bytes = (uint32_t)((p->tile_bytes - quant_bytes) / n_blocks);
    struct open_span spans[PANEL_TILES];
    struct tiles_best best;

    tiles_configure(&config);
    tiles_best_start(&best);
    for (uint32_t o0 = 0; o0 < p->n_out; o0 += at_once * LINEAR_TILE) {
        const uint32_t n_tiles = (p->n_out - o0 + LINEAR_TILE - 1) / LINEAR_TILE;
        const uint32_t n_open = n_tiles < at_once ? n_tiles : at_once;
        const uint8_t *tile = p->w + o0 / LINEAR_TILE * p->tile_bytes;
        const uint8_t *next_tiles = n_open < n_tiles ? tile + n_open * p->tile_bytes : p->next_w;

        for (uint32_t from = 0; from < n_blocks; from += SPAN_BLOCKS) {
            const uint32_t n = n_blocks - from < SPAN_BLOCKS ? n_blocks - from : SPAN_BLOCKS;
            const bool last = from + n == n_blocks;
            const struct stream next = {last ? next_tiles : tile, last ? 0 : from + n, n_blocks, n_open, p->tile_bytes};
            for (uint32_t i = 0; i < n_open; i++)
                open_blocks(tile + i * p->tile_bytes, n_blocks, from, n, &spans[i], bits, offset_shift, kind);
            for (uint32_t row = 0; row < p->n_rows; row += 16) {
                uint32_t i = 0;

                if (next.tiles && at_once > 1) prefetch_part(&next, block_bytes, row / 16, n_groups);
                for (; n_groups > 1 && i + 2 <= n_open; i += 2) {
                    const struct pair_rows two = {rows_of(p, &spans[i], from, n, o0 + i * LINEAR_TILE, row),
                                                  &spans[i + 1], outs_of(p, o0 + (i + 1) * LINEAR_TILE)};

                    pair(&two);
                }
                for (; i < n_open; i++) {
                    struct span_rows s = rows_of(p, &spans[i], from, n, o0 + i * LINEAR_TILE, row);

                    if (row == 0 && at_once == 1)
                        s.ahead = ahead_of(tile, next_tiles, from, n_blocks, block_bytes, scale_bytes);
                    s.best = p->best ? &best : NULL;
                    if (s.n_rows > 8)
                        rows_16(&s);
                    else
                        rows_8(&s);
                }
            }
        }
        if (p->best && ends_block(p, o0 + LINEAR_TILE))
            tiles_best_end(&best, p->n_rows, p->best + o0 / BEST_BLOCK, p->best_stride);
    }
    tiles_release();
}

#define PANEL(tag, type, bits, offset_shift, kind)                                                                     \
    static void panel_##tag##_16(const struct span_rows *s)                                                            \
    {                                                                                                                  \
        run_rows(s, 16, bits, kind);                                                                                   \
    }                                                                                                                  \
    static void panel_##tag##_8(const struct span_rows *s)                                                             \
    {                                                                                                                  \
        run_rows(s, 8, bits, kind);                                                                                    \
    }                                                                                                                  \
    static void panel_##tag##_pair(const struct pair_rows *p)                                                          \
    {                                                                                                                  \
        run_pair(p, kind);                                                                                             \
    }                                                                                                                  \
    static void panel_##tag(const struct linear_panel *p)                                                              \
    {                                                                                                                  \
        run_panel(p, bits, offset_shift, kind, panel_##tag##_16, panel_##tag##_8, panel_##tag##_pair);                 \
    }

LINEAR_BLOCK_FORMS(PANEL)

static linear_panel_fn *panel_amx(enum dtype type)
{
    switch (type) {
        LINEAR_BLOCK_FORMS(LINEAR_PANEL_CASE)
    default:
        return NULL;
    }
}

const struct cpu_panel_kernels panel_kernels_amx = {
    LINEAR_BLOCK, sizeof(struct linear_act16), PANEL_MIN_ROWS, 0, quantise16_amx, panel_amx, &panel_k_kernels_amx};
