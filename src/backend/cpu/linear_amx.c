/* backend/cpu/linear_amx.c - linear of block types and many rows with AMX-INT8: 16 rows x 16 outputs x 32 k per tile
 * product.
 *
 * Sums          as linear_kernels.h. Quants are opened as signed bytes, offset taken off, so one tdpbssd is the exact
 *               integer dot of 16 rows and 16 outputs; AVX-512 then does the float operations, row by row, in the
 *               order of every other variant.
 * Work          weights of SPAN_BLOCKS blocks of a tile are opened once and meet all rows; where the rows' activations
 *               fit no L2 cache, several tiles are opened and meet 16 rows after another. The products of the next
 *               block are under way while the floats of this one are computed; weights are asked for ahead, and so are
 *               the lines of the outputs (6 % of Q4_1, 9 % of Q5_0: 16 rows are on 16 pages).
 * Bytes         16 of opened weights and 24 of activations per k, for 256 multiplications.
 * Bound         of the 8,192 multiplications of 16 rows x 16 outputs x 32 k, in cycles: tile loads 13, product 18,
 *               store 17, which overlap only where no store waits for a product in order; float work 3 to 4 operations
 *               per row, of which one starts per cycle while tile instructions are under way, and 1.5 otherwise
 *               (two, less what operands from the L1 cache cost).
 * Measured      one thread of an Intel Xeon, 2.6 GHz clock at a turbo of 3.4, per 2.6 GHz cycle with all that a linear
 *               does: 100 (Q4_0, Q5_0, Q8_0), 90 (Q4_1) multiplications at 256 rows; 85, 79 at 16 rows. Tried, and
 *               slower or faster by only a few per cent: 32 rows x 32 outputs with sums of 2, 4 or 8 blocks in between,
 *               stores one or two blocks later than products, sums that start at the bits of 1.5 * 2^23 and need no
 *               conversion, prefetching activations.
 */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear_amx.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/linear_v512.h"

#define SPAN_BLOCKS 32u                  /* 16 KiB of quants and up to 4 KiB of scales: half of an L1 cache */
#define PANEL_X_BYTES (1u << 20)         /* activations that stay in the L2 cache; with more of them, so many tiles */
#define PANEL_TILES 8u                   /* are opened together: 160 KiB */
#define QUANTISE_AHEAD 96u               /* floats: 16 rows are more streams than prefetchers follow */
#define PANEL_MIN_ROWS 9u               /* 8 rows are one pass of AVX-512, whose opened quants stay in registers */
#define AHEAD 2u                         /* blocks whose products are under way; a power of two */

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

    for (int i = 0; i < 8; i++)                                 /* two rows: 4 lanes of each half */
        part[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(out->q[2 * i]));
    for (int i = 0; i < 2; i++) {
        const __m512i *p = part + 4 * i;
        __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(p[0], p[1]), _mm512_unpackhi_epi32(p[0], p[1]));
        __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(p[2], p[3]), _mm512_unpackhi_epi32(p[2], p[3]));

        eight[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    }
    _mm512_store_ps(out->sum,
                    _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_permutex2var_epi32(eight[0], even, eight[1]),
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

/* tmm0: int32 [16 rows][16 outputs]; tmm2: int8 [16 rows][32 k]; tmm4: int8 [8][16 outputs][4 k] */
static const struct tile_config config = {
    .palette = 1, .row_bytes = {[0] = 64, [2] = 32, [4] = 64}, .n_rows = {[0] = 16, [2] = 16, [4] = 8}};

/* One block: sums = q x w. */
INLINE void tiles_multiply(const int8_t (*q)[32], const uint8_t *w, int32_t (*sums)[16])
{
    __asm__ volatile("tilezero %%tmm0\n\t"
                     "tileloadd (%[q], %[q_step], 1), %%tmm2\n\t"
                     "tileloadd (%[w], %[step], 1), %%tmm4\n\t"
                     "tdpbssd %%tmm4, %%tmm2, %%tmm0\n\t"
                     "tilestored %%tmm0, (%[sums], %[step], 1)"
                     :
                     : [q] "r"(q), [q_step] "r"((uint64_t)32), [w] "r"(w), [step] "r"((uint64_t)64), [sums] "r"(sums)
                     : "memory");
}

/* ---- weights ---- */

struct span {                            /* a tile's weights of SPAN_BLOCKS blocks, opened */
    _Alignas(64) uint8_t q[SPAN_BLOCKS][8][64];
    float d[SPAN_BLOCKS][16], m[SPAN_BLOCKS][16];
};

INLINE void open_span(const uint8_t *tile, uint32_t n_blocks_all, uint32_t from, uint32_t n_blocks, struct span *span,
                      int bits, int offset_shift, int kind)
{
    const uint32_t unit_bytes = kind == SCALES_D ? 32 : 64;
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
INLINE void block_floats(const struct span *span, uint32_t i, const struct linear_act16 *a, int32_t (*sums)[16],
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
    const struct span *span;
    const struct linear_act16 *x;        /* of the span's first block */
    uint32_t n_blocks, n_rows;
    bool first, last;
    __mmask16 outs;
    float *out;
    uint64_t out_stride;
    const float *bias;
    struct tiles_best *best;             /* or NULL */
    const uint8_t *next, *next_scales;   /* what will be opened next, asked for block by block; or NULL */
    uint32_t next_lines, next_scale_bytes;
};

INLINE void prefetch_next(const struct span_rows *s, uint32_t i)
{
    for (uint32_t l = 0; l < s->next_lines; l++)
        _mm_prefetch((const char *)s->next + (i * s->next_lines + l) * 64, _MM_HINT_T1);
    _mm_prefetch((const char *)s->next_scales + i * s->next_scale_bytes, _MM_HINT_T1);
}

INLINE void run_rows(const struct span_rows *s, int n_rows, int kind)
{
    _Alignas(64) int32_t sums[AHEAD * 2][16][16];
    __m512 acc[16];

#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++)
        acc[r] = s->first || r >= (int)s->n_rows
            ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(s->outs, s->out + (uint64_t)r * s->out_stride);
    for (uint32_t i = 0; i < AHEAD && i < s->n_blocks; i++)
        tiles_multiply(s->x[i].q, s->span->q[i][0], sums[i]);
    for (uint32_t i = 0; i < s->n_blocks; i++) {
        uint32_t next = i + AHEAD;

        if (s->next) prefetch_next(s, i);
        if (i < s->n_rows && !s->best) __builtin_prefetch(s->out + (uint64_t)i * s->out_stride, 1, 3);
        if (next < s->n_blocks)
            tiles_multiply(s->x[next].q, s->span->q[next][0], sums[next % (AHEAD * 2)]);
        block_floats(s->span, i, s->x + i, sums[i % (AHEAD * 2)], n_rows, kind, acc);
    }
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++) {
        if (s->last && s->bias) acc[r] = _mm512_add_ps(acc[r], _mm512_maskz_loadu_ps(s->outs, s->bias));
        if (r >= (int)s->n_rows) break;
        if (s->last && s->best)
            tiles_best_put(s->best, (uint32_t)r, s->out + (uint64_t)r * s->out_stride, s->outs, acc[r]);
        else _mm512_mask_storeu_ps(s->out + (uint64_t)r * s->out_stride, s->outs, acc[r]);
    }
}

typedef void rows_fn(const struct span_rows *s);

/* 16 rows from row on times an opened tile: outputs o .. o + 15, blocks from .. from + n - 1. */
INLINE struct span_rows rows_of(const struct linear_panel *p, const struct span *span, uint32_t from, uint32_t n,
                                uint32_t o, uint32_t row)
{
    const uint32_t n_blocks = p->n_in / LINEAR_BLOCK;
    const uint32_t n_outs = p->n_out - o < LINEAR_TILE ? p->n_out - o : LINEAR_TILE;

    return (struct span_rows){
        .span = span,
        .x = (const struct linear_act16 *)p->x + (uint64_t)(row / 16) * n_blocks + from,
        .n_blocks = n,
        .n_rows = p->n_rows - row < 16 ? p->n_rows - row : 16,
        .first = from == 0,
        .last = from + n == n_blocks,
        .outs = (__mmask16)((1u << n_outs) - 1),
        .out = p->out + row * p->out_stride + o,
        .out_stride = p->out_stride,
        .bias = p->bias ? p->bias + o : NULL,
    };
}

/* What will be opened next: up to SPAN_BLOCKS blocks of n_tiles tiles. */
struct stream { const uint8_t *tiles; uint32_t from, n_blocks_all, n_tiles; uint64_t tile_bytes; };

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
                      rows_fn *rows_8)
{
    const uint32_t n_blocks = p->n_in / LINEAR_BLOCK, n_groups = (p->n_rows + 15) / 16;
    const uint32_t at_once =
        (uint64_t)n_groups * n_blocks * sizeof(struct linear_act16) > PANEL_X_BYTES ? PANEL_TILES : 1;
    const uint32_t block_bytes = (uint32_t)bits * 64;
    const uint64_t quant_bytes = (uint64_t)n_blocks * block_bytes;
    const uint32_t scale_bytes = (uint32_t)((p->tile_bytes - quant_bytes) / n_blocks);
    struct span spans[PANEL_TILES];
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
            struct stream next = {last ? next_tiles : tile, last ? 0 : from + n, n_blocks, n_open, p->tile_bytes};

            for (uint32_t i = 0; i < n_open; i++)
                open_span(tile + i * p->tile_bytes, n_blocks, from, n, &spans[i], bits, offset_shift, kind);
            for (uint32_t row = 0; row < p->n_rows; row += 16) {
                if (next.tiles && at_once > 1) prefetch_part(&next, block_bytes, row / 16, n_groups);
                for (uint32_t i = 0; i < n_open; i++) {
                    struct span_rows s = rows_of(p, &spans[i], from, n, o0 + i * LINEAR_TILE, row);

                    if (row == 0 && at_once == 1 && next.tiles) {
                        s.next = next.tiles + (uint64_t)next.from * block_bytes;
                        s.next_scales = next.tiles + quant_bytes + next.from * scale_bytes;
                        s.next_lines = block_bytes / 64;
                        s.next_scale_bytes = scale_bytes;
                    }
                    s.best = p->best ? &best : NULL;
                    if (s.n_rows > 8) rows_16(&s);
                    else rows_8(&s);
                }
            }
        }
        if (p->best && ends_block(p, o0 + LINEAR_TILE))
            tiles_best_end(&best, p->n_rows, p->best + o0 / BEST_BLOCK, p->best_stride);
    }
    tiles_release();
}

#define ROWS(name, kind)                                                                                     \
    static void name##_16(const struct span_rows *s) { run_rows(s, 16, kind); }                              \
    static void name##_8(const struct span_rows *s) { run_rows(s, 8, kind); }

ROWS(rows_d, SCALES_D)
ROWS(rows_m, SCALES_DM)

#define PANEL(name, bits, offset_shift, kind, rows)                                                          \
    static void name(const struct linear_panel *p) { run_panel(p, bits, offset_shift, kind, rows##_16, rows##_8); }

PANEL(panel_q4_0, 4, 3, SCALES_D, rows_d)
PANEL(panel_q4_1, 4, 0, SCALES_DM, rows_m)
PANEL(panel_q5_0, 5, 4, SCALES_D, rows_d)
PANEL(panel_q5_1, 5, 0, SCALES_DM, rows_m)
PANEL(panel_q8_0, 8, 7, SCALES_D, rows_d)

static linear_panel_fn *panel_amx(enum dtype type)
{
    switch (type) {
    case DTYPE_Q4_0: return panel_q4_0;
    case DTYPE_Q4_1: return panel_q4_1;
    case DTYPE_Q5_0: return panel_q5_0;
    case DTYPE_Q5_1: return panel_q5_1;
    case DTYPE_Q8_0: return panel_q8_0;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_NONE: break;
    }
    return NULL;
}

const struct cpu_panel_kernels panel_kernels_amx = {
    LINEAR_BLOCK, sizeof(struct linear_act16), PANEL_MIN_ROWS, 0, quantise16_amx, panel_amx, &panel_k_kernels_amx};
