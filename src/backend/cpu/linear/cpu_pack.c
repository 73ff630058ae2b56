/* backend/cpu/linear/cpu_pack.c - weights from the file's blocks to tiles of 16 outputs (linear_kernels.h), in parallel over
 * tiles.
 *
 * Per unit (32 or 256 k): each of the 16 rows' blocks is opened to a byte per quant, which is in natural k order; then
 * every 32 k are put together as lines. Scales keep their bits: d, m, dmin as f16, sub-scales as bytes.
 */
#include "backend/cpu/cpu_backend.h"
#include <assert.h>
#include <string.h>
#include "backend/cpu/linear/linear_kernels.h"
#include "base/checked.h"
#include "base/error.h"

/* Indexed by type; a type without a form has block_bytes 0. */
static const struct linear_form forms[] = {
#define BLOCK_FORM(tag, type, bits, offset_shift, scales)                                                              \
    [DTYPE_##type] = {bits, offset_shift, scales, (bits)*64, LINEAR_BLOCK, LINEAR_SCALE_BYTES(scales)},
#define K_FORM(tag, type, bits, offset_shift, scales)                                                                  \
    [DTYPE_##type] = {bits, offset_shift, scales, (bits)*64, LINEAR_UNIT, LINEAR_SCALE_BYTES(scales)},
    [DTYPE_F32] = {0, 0, SCALES_NONE, 64, 0, 0},
    [DTYPE_F16] = {0, 0, SCALES_NONE, 32, 0, 0},
    [DTYPE_BF16] = {0, 0, SCALES_NONE, 32, 0, 0},
    LINEAR_BLOCK_FORMS(BLOCK_FORM) LINEAR_K_FORMS(K_FORM)};

const struct linear_form *linear_form_of(enum dtype t)
{
    if (t < 0 || (size_t)t >= sizeof(forms) / sizeof(forms[0])) return NULL;
    return forms[t].block_bytes ? &forms[t] : NULL;
}

uint64_t linear_scales_offset(const struct linear_form *f, uint32_t n_in)
{
    return (uint64_t)(f->bits ? n_in / LINEAR_BLOCK : n_in) * f->block_bytes;
}

uint64_t linear_tile_bytes(const struct linear_form *f, uint32_t n_in)
{
    uint64_t bytes = linear_scales_offset(f, n_in);

    if (f->bits) bytes += (uint64_t)(n_in / f->unit_k) * f->unit_bytes;
    return (bytes + 63) / 64 * 64;
}

/* dst[i] = (or |=) (src[i] >> down & take) << up for n bytes, 8 at a time; n is a multiple of 8. A field stays in its
 * byte. */
static inline void move_fields(uint8_t *restrict dst, const uint8_t *restrict src, int n, int down, uint8_t take,
                               int up, bool keep)
{
    const uint64_t mask = take * 0x0101010101010101u;

    for (int i = 0; i < n; i += 8) {
        uint64_t v, old = 0;

        memcpy(&v, src + i, 8);
        if (keep) memcpy(&old, dst + i, 8);
        v = old | (v >> down & mask) << up;
        memcpy(dst + i, &v, 8);
    }
}

/* ---- one row's block: quants to u, scales to column o of the unit ---- */

static void nibbles_32(const uint8_t *restrict src, uint8_t *restrict u)
{
    move_fields(u, src, 16, 0, 15, 0, false);
    move_fields(u + 16, src, 16, 4, 15, 0, false);
}

static void open_q4_0(const uint8_t *src, uint8_t *u, uint8_t *unit, uint32_t o)
{
    memcpy(unit + 2 * o, src, 2);
    nibbles_32(src + 2, u);
}

static void open_q4_1(const uint8_t *src, uint8_t *u, uint8_t *unit, uint32_t o)
{
    memcpy(unit + 2 * o, src, 2);
    memcpy(unit + 32 + 2 * o, src + 2, 2);
    nibbles_32(src + 4, u);
}

/* bits[4]: bit i of the little-endian word is the fifth bit of weight i. */
static void add_fifth_bits(const uint8_t *bits, uint8_t *restrict u)
{
    for (int byte = 0; byte < 4; byte++) {
        /* Spread 8 bits over 8 bytes: copy the byte, keep bit i in byte i, move it to bit 4 by "not zero". */
        uint64_t v = bits[byte] * 0x0101010101010101u & 0x8040201008040201u, low;

        v = ((v + 0x7f7f7f7f7f7f7f7fu) | v) >> 3 & 0x1010101010101010u;
        memcpy(&low, u + 8 * byte, 8);
        low |= v;
        memcpy(u + 8 * byte, &low, 8);
    }
}

static void open_q5_0(const uint8_t *src, uint8_t *u, uint8_t *unit, uint32_t o)
{
    memcpy(unit + 2 * o, src, 2);
    nibbles_32(src + 6, u);
    add_fifth_bits(src + 2, u);
}

static void open_q5_1(const uint8_t *src, uint8_t *u, uint8_t *unit, uint32_t o)
{
    memcpy(unit + 2 * o, src, 2);
    memcpy(unit + 32 + 2 * o, src + 2, 2);
    nibbles_32(src + 8, u);
    add_fifth_bits(src + 4, u);
}

static void open_q8_0(const uint8_t *restrict src, uint8_t *restrict u, uint8_t *unit, uint32_t o)
{
    memcpy(unit + 2 * o, src, 2);
    for (int i = 0; i < 32; i++) u[i] = src[2 + i] ^ 0x80; /* signed -> + 128 */
}

/* Two-bit planes of Q2_K and Q3_K: byte i of a 32-byte plane has weights i, i + 32, i + 64, i + 96 of its 128. */
static void two_bits_256(const uint8_t *restrict qs, uint8_t *restrict u)
{
    for (int part = 0; part < 8; part++) move_fields(u + part * 32, qs + part / 4 * 32, 32, part % 4 * 2, 3, 0, false);
}

static void open_q2_k(const uint8_t *src, uint8_t *u, uint8_t *unit, uint32_t o)
{
    memcpy(unit + 2 * o, src + 80, 2);
    memcpy(unit + 32 + 2 * o, src + 82, 2);
    for (uint32_t sub = 0; sub < 16; sub++) unit[64 + sub * 16 + o] = src[sub];
    two_bits_256(src + 16, u);
}

static void open_q3_k(const uint8_t *restrict src, uint8_t *restrict u, uint8_t *unit, uint32_t o)
{
    const uint8_t *packed = src + 96;

    memcpy(unit + 2 * o, src + 108, 2);
    for (uint32_t sub = 0; sub < 16; sub++) {
        int low = packed[sub % 8] >> (sub / 8 * 4) & 15, high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;

        unit[32 + sub * 16 + o] = (uint8_t)((low | high << 4) - 32);
    }
    two_bits_256(src + 32, u);
    for (int part = 0; part < 8; part++) move_fields(u + part * 32, src, 32, part, 1, 2, true);
}

/* d, dmin and the 6-bit scales and minima of Q4_K and Q5_K (layout: tensor/dtype_k_quants.c). */
static void open_scales_km(const uint8_t *src, uint8_t *unit, uint32_t o)
{
    const uint8_t *packed = src + 4;

    memcpy(unit + 2 * o, src, 2);
    memcpy(unit + 32 + 2 * o, src + 2, 2);
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t *low = unit + 64 + i * 32 + o, *high = low + 4 * 32;

        low[0] = packed[i] & 63;
        low[16] = packed[4 + i] & 63;
        high[0] = (uint8_t)((packed[8 + i] & 15) | (packed[i] >> 6 << 4));
        high[16] = (uint8_t)((packed[8 + i] >> 4) | (packed[4 + i] >> 6 << 4));
    }
}

static void nibbles_256(const uint8_t *restrict qs, uint8_t *restrict u)
{
    for (int part = 0; part < 8; part++) move_fields(u + part * 32, qs + part / 2 * 32, 32, part % 2 * 4, 15, 0, false);
}

static void open_q4_k(const uint8_t *src, uint8_t *u, uint8_t *unit, uint32_t o)
{
    open_scales_km(src, unit, o);
    nibbles_256(src + 16, u);
}

static void open_q5_k(const uint8_t *restrict src, uint8_t *restrict u, uint8_t *unit, uint32_t o)
{
    open_scales_km(src, unit, o);
    nibbles_256(src + 48, u);
    for (int part = 0; part < 8; part++) move_fields(u + part * 32, src + 16, 32, part, 1, 4, true);
}

static void open_q6_k(const uint8_t *restrict src, uint8_t *restrict u, uint8_t *unit, uint32_t o)
{
    memcpy(unit + 2 * o, src + 208, 2);
    for (uint32_t sub = 0; sub < 16; sub++) unit[32 + sub * 16 + o] = src[192 + sub];
    for (int part = 0; part < 8; part++) {
        const uint8_t *low = src + part / 4 * 64 + part % 2 * 32, *high = src + 128 + part / 4 * 32;
        int low_shift = part % 4 / 2 * 4, high_shift = part % 4 * 2;

        move_fields(u + part * 32, low, 32, low_shift, 15, 0, false);
        move_fields(u + part * 32, high, 32, high_shift, 3, 4, true);
    }
}

typedef void open_fn(const uint8_t *src, uint8_t *u, uint8_t *unit, uint32_t o);

static open_fn *open_of(enum dtype t)
{
    switch (t) {
#define OPEN_CASE(tag, type, ...)                                                                                      \
    case DTYPE_##type:                                                                                                 \
        return open_##tag;
        LINEAR_FORMS(OPEN_CASE)
    default:
        return NULL;
    }
}

/* ---- 16 rows x 32 k of bytes to lines ---- */

/* u: [16 outputs][row_bytes], 32 k of each; lines: zeroed. */
static inline __attribute__((always_inline)) void put_lines(const uint8_t *u, uint32_t row_bytes, uint32_t bits,
                                                            uint8_t *lines)
{
    uint8_t g_lines[8][64];
    uint8_t *high = lines + (bits == 3 ? 128 : 256);

    for (uint32_t o = 0; o < 16; o++) {
        uint32_t words[8];

        memcpy(words, u + o * row_bytes, 32);
        for (int g = 0; g < 8; g++) memcpy(&g_lines[g][o * 4], &words[g], 4);
    }
    for (int g = 0; g < 8; g++) {
        const uint8_t *line = g_lines[g];

        if (bits == 8) memcpy(lines + g * 64, line, 64);
        if (bits >= 4 && bits <= 6) move_fields(lines + g % 4 * 64, line, 64, 0, 15, g / 4 * 4, true);
        if (bits <= 3) move_fields(lines + g / 4 * 64, line, 64, 0, 3, g % 4 * 2, true);
        if (bits == 3) move_fields(high, line, 64, 2, 1, g, true);
        if (bits == 5) move_fields(high, line, 64, 4, 1, g, true);
        if (bits == 6) move_fields(high + g / 4 * 64, line, 64, 4, 3, g % 4 * 2, true);
    }
}

/* put_lines with constant bits: the shifts become immediate. */
static void put_block(const uint8_t *u, uint32_t row_bytes, uint32_t bits, uint8_t *lines)
{
    switch (bits) {
    case 2:
        put_lines(u, row_bytes, 2, lines);
        break;
    case 3:
        put_lines(u, row_bytes, 3, lines);
        break;
    case 4:
        put_lines(u, row_bytes, 4, lines);
        break;
    case 5:
        put_lines(u, row_bytes, 5, lines);
        break;
    case 6:
        put_lines(u, row_bytes, 6, lines);
        break;
    default:
        put_lines(u, row_bytes, 8, lines);
        break;
    }
}

struct pack_job {
    const struct linear_form *form;
    open_fn *open; /* NULL for float weights */
    const uint8_t *src;
    uint64_t row_bytes, block_bytes;
    uint32_t n_in, n_out;
    uint8_t *dst;
    uint64_t tile_bytes;
};

static void pack_quant_tile(const struct pack_job *j, const uint8_t *rows, uint32_t n_rows, uint8_t *tile)
{
    uint32_t unit_k = j->form->unit_k;
    uint8_t *unit = tile + linear_scales_offset(j->form, j->n_in);
    uint8_t u[16 * 256];

    memset(u, 0, sizeof(u));
    for (uint32_t i = 0; i < j->n_in / unit_k; i++, unit += j->form->unit_bytes) {
        for (uint32_t o = 0; o < n_rows; o++)
            j->open(rows + o * j->row_bytes + i * j->block_bytes, u + o * unit_k, unit, o);
        for (uint32_t k = 0; k < unit_k; k += LINEAR_BLOCK, tile += j->form->block_bytes)
            put_block(u + k, unit_k, j->form->bits, tile);
    }
}

static void pack_float_tile(const struct pack_job *j, const uint8_t *rows, uint32_t n_rows, uint8_t *tile)
{
    uint32_t size = j->form->block_bytes / LINEAR_TILE;

    for (uint32_t k0 = 0; k0 < j->n_in; k0 += 32) { /* 32 k of every row at a time: lines stay in L1 */
        uint32_t k1 = u32_min(k0 + 32, j->n_in);

        for (uint32_t o = 0; o < n_rows; o++) {
            const uint8_t *row = rows + o * j->row_bytes;

            if (size == 2)
                for (uint32_t k = k0; k < k1; k++) memcpy(tile + ((uint64_t)k * 16 + o) * 2, row + (uint64_t)k * 2, 2);
            else
                for (uint32_t k = k0; k < k1; k++) memcpy(tile + ((uint64_t)k * 16 + o) * 4, row + (uint64_t)k * 4, 4);
        }
    }
}

static void pack_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct pack_job *j = arg;
    const uint8_t *rows = j->src + (uint64_t)tile * LINEAR_TILE * j->row_bytes;
    uint32_t n_rows = u32_min(LINEAR_TILE, j->n_out - tile * LINEAR_TILE);
    uint8_t *dst = j->dst + tile * j->tile_bytes;

    if (j->open)
        pack_quant_tile(j, rows, n_rows, dst);
    else
        pack_float_tile(j, rows, n_rows, dst);
}

/* Bytes of a whole matrix. RD_E_NOMEM: more than memory can ever be. */
static rd_status packed_bytes(const struct linear_form *form, const struct host_tensor *t, uint64_t *out)
{
    uint64_t n_tiles = u32_ceil_div(t->n_out, LINEAR_TILE);

    return checked_mul(linear_tile_bytes(form, t->n_in), n_tiles, out) && *out <= SIZE_MAX / 2 ? RD_OK : RD_E_NOMEM;
}

rd_status cpu_pack_matrix(struct backend *be, const struct host_tensor *t, struct weight *out, struct rd_error *err)
{
    struct pack_job job = {.form = linear_form_of(t->dtype)};
    uint32_t n_tiles = u32_ceil_div(t->n_out, LINEAR_TILE);
    uint64_t bytes;
    void *memory;

    if (!job.form) return error_set(err, RD_E_UNSUPPORTED, "%s: weights of type %d", t->name, (int)t->dtype);
    if (t->n_out == 0 || t->n_in == 0 || !dtype_row_bytes(t->dtype, t->n_in, &job.row_bytes))
        return error_set(err, RD_E_FORMAT, "%s: %u rows of %u weights of type %s", t->name, t->n_out, t->n_in,
                         dtype_name(t->dtype));
    job.open = open_of(t->dtype);
    job.src = t->data;
    job.block_bytes = dtype_block_bytes(t->dtype);
    job.n_in = t->n_in;
    job.n_out = t->n_out;
    job.tile_bytes = linear_tile_bytes(job.form, t->n_in);
    if (packed_bytes(job.form, t, &bytes) != RD_OK) return RD_E_NOMEM;
    if (weight_memory_take(&be->weights, bytes, &memory) != RD_OK)
        return error_set(err, RD_E_NOMEM, "%s: no memory for %llu bytes of weights", t->name,
                         (unsigned long long)bytes);
    job.dst = memory;
    cpu_pool_run(be->pool, pack_tile, &job, n_tiles);
    *out = (struct weight){
        .dtype = t->dtype, .role = WEIGHT_MATRIX, .n_out = t->n_out, .n_in = t->n_in, .data = job.dst, .bytes = bytes};
    return RD_OK;
}

rd_status cpu_adopt_matrix(struct backend *be, const struct host_tensor *t, uint32_t format, const void *data,
                           uint64_t n_bytes, struct weight *out)
{
    const struct linear_form *form = linear_form_of(t->dtype);
    uint64_t bytes;

    (void)be;
    assert((uintptr_t)data % 64 == 0);
    if (!form || format != 0 || packed_bytes(form, t, &bytes) != RD_OK || bytes != n_bytes) return RD_E_FORMAT;
    *out = (struct weight){
        .dtype = t->dtype, .role = WEIGHT_MATRIX, .n_out = t->n_out, .n_in = t->n_in, .data = data, .bytes = 0};
    return RD_OK;
}

void cpu_unpack_matrix(struct backend *be, struct weight *w)
{
    if (w->bytes) weight_memory_release(&be->weights, w->data);
    memset(w, 0, sizeof(*w));
}
