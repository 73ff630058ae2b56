/* format/hub/fp8_matrix.c - shapes of scales, and rows of 8-bit floats opened. */
#include "format/hub/fp8_matrix.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"

#define BLOCK 128u /* of DTYPE_E4M3_128 */

static uint64_t ceil_div(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

static uint64_t scale_cols(const struct fp8_matrix *m)
{
    return ceil_div(m->n_in, m->block_in);
}

/* The block of weights that one number of the scale's shape stands for. false: the shape fits nothing. */
static bool blocks_of(const struct st_tensor *scale, uint64_t n_out, uint64_t n_in, uint32_t block_out,
                      uint32_t block_in, struct fp8_matrix *m)
{
    const uint64_t rows = scale->dims[0], cols = scale->dims[1];
    const bool many = scale->n_dims == 2;

    m->block_out = m->block_in = 0;
    if (scale->n_dims > 2) return false;
    if (rows == 1 && (!many || cols == 1)) { /* [] and [1] have dims 1, too */
        m->block_out = n_out;
        m->block_in = n_in;
    } else if (rows == n_out && (!many || cols == 1)) {
        m->block_out = 1;
        m->block_in = n_in;
    }
    if (many && rows == ceil_div(n_out, block_out) && cols == ceil_div(n_in, block_in)) {
        m->block_out = block_out;
        m->block_in = block_in;
    }
    return m->block_out > 0;
}

rd_status fp8_check(const char *base, const struct st_tensor *weight, const struct st_tensor *scale, uint32_t block_out,
                    uint32_t block_in, struct fp8_matrix *out, struct rd_error *err)
{
    const uint64_t n_out = weight->dims[0], n_in = weight->dims[1];
    struct fp8_matrix m = {.n_out = n_out, .n_in = n_in};
    char found[96] = "";
    size_t n = 0;

    assert(block_out > 0 && block_in > 0);
    if (weight->type != ST_F8_E4M3 || weight->n_dims != 2 || weight->n_bytes == 0)
        return error_set(err, RD_E_FORMAT, "%s.weight: type %s with %u dims and %llu bytes, expected F8_E4M3 with 2",
                         base, st_type_name(weight->type), weight->n_dims, (unsigned long long)weight->n_bytes);
    if (!scale)
        return error_set(err, RD_E_FORMAT,
                         "%s.weight: type F8_E4M3 without \"weight_scale_inv\" or \"weight_scale\" beside it", base);
    if (scale->type != ST_F32 && scale->type != ST_BF16 && scale->type != ST_F16 && scale->type != ST_F8_E8M0)
        return error_set(err, RD_E_FORMAT, "%s: scales of type %s, expected F32, BF16, F16 or F8_E8M0", base,
                         st_type_name(scale->type));
    if (!blocks_of(scale, n_out, n_in, block_out, block_in, &m)) {
        for (uint32_t d = 0; d < scale->n_dims && n + 24 < sizeof(found); d++)
            n += (size_t)snprintf(found + n, sizeof(found) - n, "%s%llu", d ? "," : "",
                                  (unsigned long long)scale->dims[d]);
        return error_set(err, RD_E_FORMAT,
                         "%s: scales [%s] of %llu x %llu weights; expected [1], [%llu,1] or, of blocks of %u x %u, "
                         "[%llu,%llu]",
                         base, found, (unsigned long long)n_out, (unsigned long long)n_in, (unsigned long long)n_out,
                         block_out, block_in, (unsigned long long)ceil_div(n_out, block_out),
                         (unsigned long long)ceil_div(n_in, block_in));
    }
    m.scale_type = scale->type;
    *out = m;
    return RD_OK;
}

static float scale_at(const struct fp8_matrix *m, uint64_t i)
{
    uint16_t half;
    float f;

    if (m->scale_type == ST_F8_E8M0) return m->scales[i] == 0xff ? NAN : ldexpf(1.0f, (int)m->scales[i] - 127);
    if (m->scale_type == ST_F32) {
        memcpy(&f, m->scales + 4 * i, sizeof(f));
        return f;
    }
    memcpy(&half, m->scales + 2 * i, sizeof(half));
    return m->scale_type == ST_F16 ? half_to_float(half) : bf16_to_float(half);
}

rd_status fp8_check_scales(const char *base, const struct fp8_matrix *m, struct rd_error *err)
{
    const uint64_t cols = scale_cols(m), n = ceil_div(m->n_out, m->block_out) * cols;

    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(scale_at(m, i)))
            return error_set(err, RD_E_FORMAT, "%s: scale [%llu,%llu] is %g, expected a number", base,
                             (unsigned long long)(i / cols), (unsigned long long)(i % cols), (double)scale_at(m, i));
    return RD_OK;
}

bool fp8_has_blocks(const struct fp8_matrix *m)
{
    return m->n_in % BLOCK == 0 && (m->block_in % BLOCK == 0 || m->block_in >= m->n_in);
}

/* No byte is 0x7f or 0xff, eight at a time: adding 1 to the seven bits of such a byte carries into its eighth. */
static bool are_numbers(const uint8_t *v, uint64_t n)
{
    const uint64_t seven = 0x7f7f7f7f7f7f7f7fu;
    uint64_t carries = 0, i = 0;

    for (; i + 8 <= n; i += 8) {
        uint64_t word;

        memcpy(&word, v + i, sizeof(word));
        carries |= (word & seven) + 0x0101010101010101u;
    }
    for (; i < n; i++) carries |= (uint64_t)(v[i] & 0x7f) + 1;
    return !(carries & ~seven);
}

static void open_bf16(const float table[256], const struct fp8_matrix *m, uint64_t row, uint8_t *dst)
{
    const uint8_t *v = m->weight + row * m->n_in;
    const uint64_t cols = scale_cols(m);

    for (uint64_t c = 0; c < cols; c++) {
        const uint64_t end = u64_min((c + 1) * m->block_in, m->n_in);
        const float scale = scale_at(m, row / m->block_out * cols + c);

        for (uint64_t k = c * m->block_in; k < end; k++) {
            uint16_t w = float_to_bf16(scale * table[v[k]]);

            memcpy(dst + 2 * k, &w, sizeof(w));
        }
    }
}

bool fp8_open_rows(const struct fp8_matrix *m, enum dtype t, uint64_t first, uint64_t n, uint8_t *dst)
{
    const uint64_t cols = scale_cols(m);
    float table[256];

    assert(t == DTYPE_BF16 || (t == DTYPE_E4M3_128 && fp8_has_blocks(m)));
    for (int i = 0; i < 256; i++) table[i] = e4m3_to_float((uint8_t)i);
    for (uint64_t row = first; row < first + n; row++) {
        const uint8_t *v = m->weight + row * m->n_in;

        if (!are_numbers(v, m->n_in)) return false;
        if (t == DTYPE_BF16) {
            open_bf16(table, m, row, dst);
            dst += 2 * m->n_in;
            continue;
        }
        for (uint64_t k = 0; k < m->n_in; k += BLOCK, dst += 4 + BLOCK) {
            const float scale = scale_at(m, row / m->block_out * cols + k / m->block_in);

            memcpy(dst, &scale, sizeof(scale));
            memcpy(dst + 4, v + k, BLOCK);
        }
    }
    return true;
}
