/* backend/cpu/linear/linear_k_amx.c - linear of K types and many rows with AMX: 32 rows x 16 outputs x 256 k per step.
 *
 * Sums          as linear_kernels.h. scale * (quant - offset) is a number of up to 13 bits (Q6_K: -4,064 .. 4,096; Q4_K:
 *               0 .. 945), opened as two planes of bytes: of Q3_K and Q6_K 128 * high + low, 0 <= low < 128, signed; of
 *               Q4_K and Q5_K 8 * high + low, quant times the upper and the lower half of the scale, unsigned. A tile
 *               product sums each over the whole unit, and that many times H, plus L, is the exact sum. Q2_K (0 .. 45) is
 *               one plane. The sum of min * sum(q) over 16 parts is one tdpbf16ps: sum(q) = 64 * high + low, met by
 *               64 * min and min; each is an integer of at most 8 bits, so a bf16, and their sum stays below 2^24:
 *               exact in float, in any order.
 * Work          SPAN_UNITS units of PANEL_TILES tiles are opened, into the L2 cache; then BLOCK_ROWS rows after another
 *               meet all of them, unit after unit, so that their activations stay in the L1 cache. A step is 32 rows x
 *               16 outputs of a unit; between its tile instructions, two rows at a time, are the float operations of
 *               the step before: one after the other they take 1.6 times as long.
 *               Up to BLOCK_ROWS rows meet one tile at a time, opened into the L1 cache as its weights stream by; a
 *               third of them is asked for while a unit opens, the rest between the products of its step.
 * Bytes         per step 8 (9 with mins) KiB of opened weights from L2, 8 (10) of activations from L1, 4 (6) of sums.
 * Bound         of a step's 131,072 multiplications: 16 products of 16 cycles (2 more for mins), 4 (6) stores of 16.
 * Measured      one thread of an Intel Xeon, 2.6 GHz clock, in 2.6 GHz cycles per step with mins: 230 products alone,
 *               290 with stores, 320 with mins, 340 with float operations between them, all in the L1 cache; in a
 *               linear of 512 rows 840, because opened weights come from L2 (180), outputs from farther away (100), and
 *               opening (60). 16 rows, weights from memory, two threads at once: Q4_K 770, Q6_K 950; 640 and 770 from
 *               the caches; when all weights were asked for while a unit opened 950 and 1,340.
 */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear/linear_amx.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/linear/linear_prefetch.h"
#include "backend/cpu/linear/linear_v512.h"

#define PLANE_SIGNED     7 /* bits of the low plane where planes are signed bytes */
#define PLANE_SMALL      3 /* and where they are unsigned: open_line_small */
#define SPAN_UNITS       8u
#define PANEL_TILES      8u /* 8 x 8 x 9.1 KiB: less than a third of an L2 cache */
#define STEP_ROWS        32u
#define BLOCK_ROWS       64u
#define OPEN_LINES(bits) ((uint32_t)(bits) / 3) /* of a block's lines of quants: asked for while it is opened */
#define PANEL_MIN_ROWS   13u /* 12 rows: tiles 560 us, panels 620; 16: 740 and 660 (one 8960 x 1536 Q4_K) */

/* ---- activations ---- */

/* The sums of 16 k of a row, q: 4 x 64 bytes, each in the matrix of its 64 k. */
INLINE void sums_of_row(struct linear_unit16 *out, uint32_t r)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    __m512i v[4], a, b, high, low;

    for (int i = 0; i < 4; i++) v[i] = _mm512_dpbusd_epi32(zero, ones, _mm512_load_si512(out->q[i][r]));
    a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    a = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); /* lane 4 l + i: part 4 i + l */
    a = _mm512_permutexvar_epi32(order, a);
    high = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(a, 6)));
    low = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_and_si512(a, _mm512_set1_epi32(63))));
    _mm512_store_si512(out->sums[r], _mm512_or_si512(_mm512_srli_epi32(high, 16), low)); /* the rest of low is 0 */
}

static void quantise_row(const float *x, struct linear_unit16 *out, uint32_t r)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512();
    __m512 scale;
    int32_t bits;
    float amax;

    for (int i = 0; i < 16; i++)
        top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16 * i)), magnitude));
    bits = _mm512_reduce_max_epi32(top);
    memcpy(&amax, &bits, sizeof(amax));
    if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) {
        out->d[r] = bits >= 0x7f800000 ? NAN : 0;
        for (int i = 0; i < 4; i++) memset(out->q[i][r], 0, 64);
        memset(out->sums[r], 0, sizeof(out->sums[r]));
        return;
    }
    out->d[r] = amax / 127.0f;
    scale = _mm512_set1_ps(127.0f / amax);
    for (int i = 0; i < 16; i++) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), scale));

        _mm_store_si128((__m128i *)(void *)(out->q[i / 4][r] + i % 4 * 16), _mm512_cvtepi32_epi8(v));
    }
    sums_of_row(out, r);
}

static void quantise16_k_amx(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t n_in, void *acts)
{
    static const float zeros[LINEAR_UNIT];
    struct linear_unit16 *out = acts;

    for (uint32_t i = 0; i < n_in / LINEAR_UNIT; i++, x += LINEAR_UNIT, out++)
        for (uint32_t r = 0; r < 16; r++) quantise_row(r < n_rows ? x + r * x_stride : zeros, out, r);
}

/* ---- weights ---- */

/* All tiles have 16 rows of 64 bytes. */
static const struct tile_config config = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .n_rows = {16, 16, 16, 16, 16, 16, 16, 16}};

struct k_unit {                                          /* a unit of a tile, opened */
    _Alignas(64) int8_t low[4][16][64], high[4][16][64]; /* [64 k][4 k][16 outputs, 4 k] */
    uint16_t mins[16][16][2];                            /* [16 k][output]: 64 * min, min, as bf16 */
    float d[16], neg_dmin[16];
};

/* The scale of 16 outputs in the low byte of every 16 bits. */
INLINE __m512i scale_words(const uint8_t *unit, int kind, int b, int half)
{
    const uint8_t *p =
        kind == SCALES_KM ? unit + 64 + b * 32 : unit + (kind == SCALES_K ? 32 : 64) + b * 32 + half * 16;
    __m512i v = bytes_at(p);

    if (kind == SCALES_K2) v = _mm512_and_si512(v, _mm512_set1_epi32(15));
    return _mm512_or_si512(v, _mm512_slli_epi32(v, 16));
}

/* A line of quants of 4 or 5 bits times scales of 6: the planes are of the scale's upper and lower three bits, whose
 * products with a quant stay in its byte (31 * 7), so that one multiplication of 16 bits makes two of them. */
INLINE void open_line_small(__m512i w, __m512i scale, int8_t *low, int8_t *high)
{
    const __m512i seven = _mm512_set1_epi16(7);

    _mm512_store_si512(low, _mm512_mullo_epi16(w, _mm512_and_si512(scale, seven)));
    _mm512_store_si512(high, _mm512_mullo_epi16(w, _mm512_srli_epi16(scale, 3)));
}

/* A line of quants times its scales, to the two planes. offset: of 16 bits, scale << offset_shift. */
INLINE void open_line(__m512i w, __m512i scale, __m512i offset, int8_t *low, int8_t *high, bool two, bool has_offset)
{
    const __m512i even_bytes = _mm512_set1_epi16(0x00ff);
    __m512i even = _mm512_maddubs_epi16(w, scale); /* u8 * s8 + u8 * 0 */
    __m512i odd = _mm512_maddubs_epi16(w, _mm512_slli_epi16(scale, 8));
    __m512i v;

    if (has_offset) {
        even = _mm512_sub_epi16(even, offset);
        odd = _mm512_sub_epi16(odd, offset);
    }
    v = _mm512_ternarylogic_epi32(even_bytes, even, _mm512_slli_epi16(odd, 8), 0xca); /* even or odd, by byte */
    _mm512_store_si512(low, two ? _mm512_and_si512(v, _mm512_set1_epi8(127)) : v);
    if (!two) return;
    v = _mm512_ternarylogic_epi32(even_bytes, _mm512_srli_epi16(even, 7), _mm512_slli_epi16(odd, 1), 0xca);
    _mm512_store_si512(high, v);
}

INLINE void open_mins(const uint8_t *unit, int kind, struct k_unit *out)
{
    const int each = kind == SCALES_KM ? 2 : 1; /* parts of 16 k that share a min */

    for (int part = 0; part < 16; part += each) {
        __m512i v = bytes_at(kind == SCALES_KM ? unit + 80 + part * 16 : unit + 64 + part * 16), v64;

        if (kind == SCALES_K2) v = _mm512_srli_epi32(v, 4);
        v64 = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_slli_epi32(v, 6)));
        v = _mm512_or_si512(_mm512_srli_epi32(v64, 16), _mm512_castps_si512(_mm512_cvtepi32_ps(v)));
        for (int i = 0; i < each; i++) _mm512_store_si512(out->mins[part + i], v);
    }
    _mm512_store_ps(out->neg_dmin, _mm512_xor_ps(halves_at(unit + 32), _mm512_set1_ps(-0.0f)));
}

/* ahead: where the weights are read once, in order, and asked for ahead; else NULL. */
INLINE void open_unit(const uint8_t *lines, const uint8_t *unit, const struct stream_ahead *ahead, struct k_unit *out,
                      int bits, int offset_shift, int kind)
{
    for (int b = 0; b < 8; b++, lines += bits * 64) {
        __m512i w[8], scale[2], offset[2];

        if (ahead)
            prefetch_block_far(ahead, lines, OPEN_LINES(bits) * 64, b ? NULL : unit, kind == SCALES_K ? 288 : 320);
        open_block(lines, bits, w);
        for (int h = 0; h < 2; h++) {
            scale[h] = scale_words(unit, kind, b, h);
            offset[h] = _mm512_srai_epi16(_mm512_slli_epi16(scale[h], 8), (unsigned)(8 - offset_shift));
        }
        for (int g = 0; g < 8 && kind == SCALES_KM; g++)
            open_line_small(w[g], scale[0], out->low[b / 2][b % 2 * 8 + g], out->high[b / 2][b % 2 * 8 + g]);
        for (int g = 0; g < 8 && kind != SCALES_KM; g++)
            open_line(w[g], scale[g / 4], offset[g / 4], out->low[b / 2][b % 2 * 8 + g],
                      out->high[b / 2][b % 2 * 8 + g], bits > 2, offset_shift != 0);
    }
    _mm512_store_ps(out->d, halves_at(unit));
    if (kind != SCALES_K) open_mins(unit, kind, out);
}

/* ---- a step: 32 rows, 16 outputs, a unit ---- */

struct k_sums { /* of 16 rows */
    _Alignas(64) int32_t low[16][16], high[16][16];
    float mins[16][16];
};

struct k_step {
    const struct linear_unit16 *x[2]; /* 16 rows each */
    const struct k_unit *w;
    struct k_sums *sums;  /* [2] */
    float (*acc)[16];     /* [32 rows][16 outputs] */
    const uint8_t *lines; /* the unit's quants where they are read once, in order; or NULL */
};

INLINE void tiles_load(int tile, const void *p)
{
    const uint64_t step = 64;

    switch (tile) {
    case 4:
        __asm__ volatile("tileloadd (%0, %1, 1), %%tmm4" : : "r"(p), "r"(step) : "memory");
        break;
    case 5:
        __asm__ volatile("tileloadd (%0, %1, 1), %%tmm5" : : "r"(p), "r"(step) : "memory");
        break;
    case 6:
        __asm__ volatile("tileloadd (%0, %1, 1), %%tmm6" : : "r"(p), "r"(step) : "memory");
        break;
    default:
        __asm__ volatile("tileloadd (%0, %1, 1), %%tmm7" : : "r"(p), "r"(step) : "memory");
        break;
    }
}

INLINE void tiles_store(int tile, void *p)
{
    const uint64_t step = 64;

    switch (tile) {
    case 0:
        __asm__ volatile("tilestored %%tmm0, (%0, %1, 1)" : : "r"(p), "r"(step) : "memory");
        break;
    case 1:
        __asm__ volatile("tilestored %%tmm1, (%0, %1, 1)" : : "r"(p), "r"(step) : "memory");
        break;
    case 2:
        __asm__ volatile("tilestored %%tmm2, (%0, %1, 1)" : : "r"(p), "r"(step) : "memory");
        break;
    default:
        __asm__ volatile("tilestored %%tmm3, (%0, %1, 1)" : : "r"(p), "r"(step) : "memory");
        break;
    }
}

/* The float step of n rows from row on. */
INLINE void float_rows(const struct k_step *s, int row, int n, int planes, bool has_mins)
{
    const struct k_sums *sums = &s->sums[row / 16];
    const struct linear_unit16 *x = s->x[row / 16];
    const __m512 d = _mm512_load_ps(s->w->d), neg_dmin = _mm512_load_ps(s->w->neg_dmin);

#pragma GCC unroll 4
    for (int i = row; i < row + n; i++) {
        const int r = i % 16;
        __m512i sum = _mm512_load_si512(sums->low[r]);
        __m512 t;

        if (planes) sum = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(sums->high[r]), (unsigned)planes), sum);
        t = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum));
        if (has_mins) t = _mm512_fmadd_ps(neg_dmin, _mm512_load_ps(sums->mins[r]), t);
        _mm512_store_ps(s->acc[i], _mm512_fmadd_ps(_mm512_set1_ps(x->d[r]), t, _mm512_load_ps(s->acc[i])));
    }
}

/* Products of 16 or, two, 32 rows by the sums of the mins. */
INLINE void multiply_mins(const struct k_step *s, bool two)
{
    __asm__ volatile("tilezero %%tmm0" : : : "memory");
    tiles_load(6, s->w->mins);
    tiles_load(4, s->x[0]->sums);
    __asm__ volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0" : : : "memory");
    if (two) {
        __asm__ volatile("tilezero %%tmm2" : : : "memory");
        tiles_load(5, s->x[1]->sums);
        __asm__ volatile("tdpbf16ps %%tmm6, %%tmm5, %%tmm2" : : : "memory");
    }
    tiles_store(0, s->sums[0].mins);
    if (two) tiles_store(2, s->sums[1].mins);
}

/* Of block b, what open_unit() has not asked for. */
INLINE void prefetch_rest(const struct stream_ahead *ahead, const uint8_t *lines, uint32_t b, int bits)
{
    const uint32_t n_bytes = (uint32_t)bits * 64, from = OPEN_LINES(bits) * 64;

    prefetch_block_far(ahead, lines + b * n_bytes + from, n_bytes - from, NULL, 0);
}

/* The products of `next`, and between them, two rows at a time, the floats of `done`: apart from each other they take
 * 1.6 times as long. All bools are constants where this is inlined. */
INLINE void run_step(const struct k_step *next, const struct k_step *done, const struct stream_ahead *ahead, bool adds,
                     bool two, int bits, int planes, bool has_mins)
{
    const int n = planes ? 2 : 4, n_slots = (two ? 32 : 16) / n, per_block = n_slots / 8 ? n_slots / 8 : 1;
    int slot = 0;

#define MULTIPLY(tiles)                                                                                                \
    do {                                                                                                               \
        if (planes == PLANE_SMALL)                                                                                     \
            __asm__ volatile("tdpbsud " tiles : : : "memory");                                                         \
        else                                                                                                           \
            __asm__ volatile("tdpbssd " tiles : : : "memory");                                                         \
    } while (0)
#define SLOT()                                                                                                         \
    do {                                                                                                               \
        if (adds) float_rows(done, slot *n, n, planes, has_mins);                                                      \
        if (ahead && next->lines && slot % per_block == 0)                                                             \
            prefetch_rest(ahead, next->lines, (uint32_t)(slot / per_block), bits);                                     \
        slot++;                                                                                                        \
    } while (0)
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3" : : : "memory");
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        tiles_load(6, next->w->low[i]);
        tiles_load(4, next->x[0]->q[i]);
        MULTIPLY("%%tmm6, %%tmm4, %%tmm0");
        SLOT();
        if (two) {
            tiles_load(5, next->x[1]->q[i]);
            MULTIPLY("%%tmm6, %%tmm5, %%tmm2");
            SLOT();
        }
        if (!planes) continue;
        tiles_load(7, next->w->high[i]);
        MULTIPLY("%%tmm7, %%tmm4, %%tmm1");
        SLOT();
        if (two) {
            MULTIPLY("%%tmm7, %%tmm5, %%tmm3");
            SLOT();
        }
    }
#undef SLOT
#undef MULTIPLY
    tiles_store(0, next->sums[0].low);
    if (two) tiles_store(2, next->sums[1].low);
    if (planes) tiles_store(1, next->sums[0].high);
    if (planes && two) tiles_store(3, next->sums[1].high);
    if (has_mins) multiply_mins(next, two);
}

/* ---- panels ---- */

struct k_panel { /* opened: units from .. from + n_units - 1 of n_tiles tiles */
    const struct linear_panel *p;
    const struct k_unit (*units)[SPAN_UNITS];
    uint32_t from, n_units, n_tiles, out0;
    struct tiles_best *best;   /* or NULL */
    const uint8_t *lines;      /* of one tile: the first unit's quants, or NULL */
    struct stream_ahead ahead; /* where lines */
};

/* The lanes of a tile that are outputs. */
static __mmask16 outs_of(const struct k_panel *k, uint32_t tile)
{
    const uint32_t n = k->p->n_out - k->out0 - tile * LINEAR_TILE;

    return (__mmask16)((1u << (n < LINEAR_TILE ? n : LINEAR_TILE)) - 1);
}

/* Fetches and writes the sums of n_rows rows, row after row: a row's outputs lie side by side, the next one's on
 * another page. */
static void acc_load(const struct k_panel *k, uint32_t row, uint32_t n_rows, float (*acc)[BLOCK_ROWS][16])
{
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *out = k->p->out + (row + r) * k->p->out_stride + k->out0;

        for (uint32_t t = 0; t < k->n_tiles; t++)
            _mm512_store_ps(acc[t][r], _mm512_maskz_loadu_ps(outs_of(k, t), out + t * LINEAR_TILE));
    }
}

static void acc_store(const struct k_panel *k, uint32_t row, uint32_t n_rows, float (*acc)[BLOCK_ROWS][16])
{
    const bool ends = k->from + k->n_units == k->p->n_in / LINEAR_UNIT;
    const float *bias = ends ? k->p->bias : NULL;

    for (uint32_t r = 0; r < n_rows; r++) {
        float *out = k->p->out + (row + r) * k->p->out_stride + k->out0;

        for (uint32_t t = 0; t < k->n_tiles; t++) {
            __m512 v = _mm512_load_ps(acc[t][r]);

            if (bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(outs_of(k, t), bias + k->out0 + t * LINEAR_TILE));
            if (ends && k->best)
                tiles_best_put(k->best, r, out + t * LINEAR_TILE, outs_of(k, t), v);
            else
                _mm512_mask_storeu_ps(out + t * LINEAR_TILE, outs_of(k, t), v);
        }
    }
}

/* Up to BLOCK_ROWS rows times all that is open: unit after unit, whose activations stay in L1, by all tiles. */
INLINE void run_rows(const struct k_panel *k, uint32_t row, bool two, int bits, int planes, bool has_mins)
{
    const struct linear_panel *p = k->p;
    const uint32_t n_units_all = p->n_in / LINEAR_UNIT;
    const uint32_t n_rows = p->n_rows - row < BLOCK_ROWS ? p->n_rows - row : BLOCK_ROWS;
    const uint32_t n_groups = (n_rows + 15) / 16, n_sub = (n_rows + 31) / 32;
    const struct linear_unit16 *x = (const struct linear_unit16 *)p->x + (uint64_t)(row / 16) * n_units_all + k->from;
    struct k_sums sums[2];
    _Alignas(64) float acc[PANEL_TILES][BLOCK_ROWS][16];
    struct k_step done = {.sums = NULL};

    memset(acc, 0, k->n_tiles * sizeof(*acc));
    if (k->from > 0) acc_load(k, row, n_rows, acc);
    for (uint32_t u = 0; u < k->n_units; u++)
        for (uint32_t tile = 0; tile < k->n_tiles; tile++)
            for (uint32_t sub = 0; sub < n_sub; sub++) {
                const struct linear_unit16 *x0 = x + sub * 2 * n_units_all + u;
                struct k_step next = {{x0, sub * 2 + 1 < n_groups ? x0 + n_units_all : x0},
                                      &k->units[tile][u],
                                      sums,
                                      acc[tile] + sub * STEP_ROWS,
                                      k->lines && sub == 0 ? k->lines + (uint64_t)u * 8 * (uint32_t)bits * 64 : NULL};

                if (done.sums)
                    run_step(&next, &done, &k->ahead, true, two, bits, planes, has_mins);
                else
                    run_step(&next, &done, &k->ahead, false, two, bits, planes, has_mins);
                done = next;
            }
    for (int r = 0; r < (two ? 32 : 16); r += 4) float_rows(&done, r, 4, planes, has_mins);
    acc_store(k, row, n_rows, acc);
}

/* Asks for a share, part of n_parts, of what will be opened next: n_units units of n_tiles tiles. */
static void prefetch_part(const uint8_t *tiles, uint64_t tile_bytes, uint32_t n_tiles, uint32_t from, uint32_t n_units,
                          uint64_t scales_at, int bits, uint32_t part, uint32_t n_parts)
{
    const uint32_t n_lines = n_units * 8 * (uint32_t)bits, scale_lines = n_units * 5;

    for (uint32_t i = 0; i < n_tiles; i++, tiles += tile_bytes) {
        const uint8_t *quants = tiles + (uint64_t)from * 8 * (uint32_t)bits * 64;
        const uint8_t *scales = tiles + scales_at + (uint64_t)from * 320;

        for (uint32_t l = n_lines * part / n_parts; l < n_lines * (part + 1) / n_parts; l++)
            _mm_prefetch((const char *)quants + l * 64, _MM_HINT_T1);
        for (uint32_t l = scale_lines * part / n_parts; l < scale_lines * (part + 1) / n_parts; l++)
            _mm_prefetch((const char *)scales + l * 64, _MM_HINT_T1);
    }
}

INLINE void run_panel(const struct linear_panel *p, int bits, int offset_shift, int kind)
{
    const int planes = kind == SCALES_KM ? PLANE_SMALL : bits > 2 ? PLANE_SIGNED : 0;
    const bool has_mins = kind != SCALES_K;
    const uint32_t n_units = p->n_in / LINEAR_UNIT, unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint32_t n_parts = (p->n_rows + BLOCK_ROWS - 1) / BLOCK_ROWS, n_tiles_all = (p->n_out + 15) / 16;
    const uint32_t at_once = n_parts > 1 ? PANEL_TILES : 1, n_span = n_parts > 1 ? SPAN_UNITS : p->n_rows > 16 ? 1 : 2;
    const uint64_t scales_at = (uint64_t)n_units * 8 * (uint32_t)bits * 64;
    struct k_unit(*units)[SPAN_UNITS] = p->scratch;
    struct tiles_best best;

    tiles_configure(&config);
    tiles_best_start(&best);
    for (uint32_t tile0 = 0; tile0 < n_tiles_all; tile0 += at_once) {
        const uint8_t *tiles = p->w + tile0 * p->tile_bytes;
        const uint32_t left = n_tiles_all - tile0;
        struct k_panel k = {.p = p,
                            .units = (const struct k_unit(*)[SPAN_UNITS])units,
                            .out0 = tile0 * 16,
                            .n_tiles = left < at_once ? left : at_once,
                            .best = p->best ? &best : NULL};

        for (uint32_t from = 0; from < n_units; from += n_span) {
            const uint32_t next = from + n_span < n_units ? from + n_span : 0;
            const uint8_t *next_tiles = next ? tiles : left > at_once ? tiles + at_once * p->tile_bytes : p->next_w;

            k.from = from;
            k.n_units = n_units - from < n_span ? n_units - from : n_span;
            for (uint32_t i = 0; i < k.n_tiles; i++) {
                const uint8_t *tile = tiles + i * p->tile_bytes, *scales = tile + scales_at;
                const uint8_t *first = tile + (uint64_t)from * 8 * (uint32_t)bits * 64;

                k.ahead = stream_ahead_of(tile, scales, (uint64_t)n_units * unit_bytes, true);
                k.lines = n_parts > 1 ? NULL : first;
                for (uint32_t u = 0; u < k.n_units; u++)
                    open_unit(first + (uint64_t)u * 8 * (uint32_t)bits * 64, scales + (from + u) * unit_bytes,
                              n_parts > 1 ? NULL : &k.ahead, &units[i][u], bits, offset_shift, kind);
            }
            for (uint32_t part = 0; part < n_parts; part++) {
                if (next_tiles && n_parts > 1)
                    prefetch_part(next_tiles, p->tile_bytes, k.n_tiles, next, k.n_units, scales_at, bits, part,
                                  n_parts);
                if (p->n_rows > 16)
                    run_rows(&k, part * BLOCK_ROWS, true, bits, planes, has_mins);
                else
                    run_rows(&k, part * BLOCK_ROWS, false, bits, planes, has_mins);
            }
        }
        if (p->best && ends_block(p, (tile0 + 1) * LINEAR_TILE))
            tiles_best_end(&best, p->n_rows, p->best + tile0 * LINEAR_TILE / BEST_BLOCK, p->best_stride);
    }
    tiles_release();
}

#define PANEL(tag, type, bits, offset_shift, kind)                                                                     \
    static void panel_##tag(const struct linear_panel *p)                                                              \
    {                                                                                                                  \
        run_panel(p, bits, offset_shift, kind);                                                                        \
    }

LINEAR_K_FORMS(PANEL)

static linear_panel_fn *panel_k_amx(enum dtype type)
{
    switch (type) {
        LINEAR_K_FORMS(LINEAR_PANEL_CASE)
    default:
        return NULL;
    }
}

const struct cpu_panel_kernels panel_k_kernels_amx = {LINEAR_UNIT,
                                                      sizeof(struct linear_unit16),
                                                      PANEL_MIN_ROWS,
                                                      sizeof(struct k_unit[PANEL_TILES][SPAN_UNITS]),
                                                      quantise16_k_amx,
                                                      panel_k_amx,
                                                      NULL};
