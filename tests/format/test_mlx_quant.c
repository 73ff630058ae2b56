/* tests/format/test_mlx_quant.c - MLX's groups: every number of bits, group and type of scale against the definition
 * w = scale * q + bias; exact where the blocks can hold it, rounded once to f16 elsewhere. */
#include "format/hub/mlx_quant.h"
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define ROWS       3u
#define N_IN       256u
#define MAX_GROUPS (ROWS * N_IN / 32)

struct sample {
    uint8_t weight[ROWS * N_IN], scales[4 * MAX_GROUPS], biases[4 * MAX_GROUPS];
    float want[ROWS * N_IN];
    struct mlx_matrix m;
};

static float put_scale(enum st_type type, uint8_t *at, float v)
{
    uint16_t h = type == ST_F16 ? float_to_half(v) : float_to_bf16(v);

    if (type == ST_F32) {
        memcpy(at, &v, 4);
        return v;
    }
    memcpy(at, &h, 2);
    return type == ST_F16 ? half_to_float(h) : bf16_to_float(h);
}

/* tiny: bf16 scales that f16 does not have. */
static void make_sample(struct random *r, uint32_t bits, uint32_t group, enum st_type type, bool tiny, struct sample *s)
{
    uint32_t size = type == ST_F32 ? 4 : 2;
    float scale[MAX_GROUPS], bias[MAX_GROUPS];

    memset(s, 0, sizeof(*s));
    s->m = (struct mlx_matrix){bits, group, ROWS, N_IN, type, s->weight, s->scales, s->biases};
    for (uint32_t g = 0; g < ROWS * N_IN / group; g++) {
        float v = (float)random_below(r, 1000) / 8192 + 0.001f;

        scale[g] = put_scale(type, s->scales + size * g, tiny ? v * 1e-7f : v);
        bias[g] = put_scale(type, s->biases + size * g, -(float)random_below(r, 1000) / 512);
    }
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < N_IN; i++) {
            uint32_t q = (uint32_t)random_below(r, 1u << bits), g = (row * N_IN + i) / group;

            for (uint32_t b = 0; b < bits; b++) { /* a little-endian stream of bits */
                uint32_t at = i * bits + b;

                s->weight[row * N_IN * bits / 8 + at / 8] |= (uint8_t)((q >> b & 1) << (at % 8));
            }
            s->want[row * N_IN + i] = scale[g] * (float)q + bias[g];
        }
}

static void check_rows(const struct sample *s, enum dtype t)
{
    uint64_t row_bytes;
    uint8_t *rows;
    float back[N_IN];

    CHECK(dtype_row_bytes(t, N_IN, &row_bytes));
    rows = mem_alloc(ROWS, row_bytes);
    CHECK(rows);
    mlx_open_rows(&s->m, t, 0, 1, rows); /* in two parts */
    mlx_open_rows(&s->m, t, 1, ROWS - 1, rows + row_bytes);
    for (uint32_t row = 0; row < ROWS; row++) {
        dtype_to_float(t, rows + row * row_bytes, back, N_IN);
        for (uint32_t i = 0; i < N_IN; i++) {
            float want = s->want[row * N_IN + i];

            if (t == DTYPE_F16) want = half_to_float(float_to_half(want));
            CHECK(back[i] == want);
        }
    }
    mem_free(rows);
}

/* hub: what it can be for a backend that takes such types, or none. */
static void check_sample(const struct sample *s, enum dtype t, enum dtype hub)
{
    CHECK_EQ(mlx_dtype(&s->m), t);
    CHECK_EQ(mlx_hub_dtype(&s->m), hub);
    check_rows(s, t);
    if (hub != DTYPE_NONE) check_rows(s, hub);
}

TEST(every_form_stands_for_scale_times_quant_plus_bias)
{
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const enum st_type scale_types[] = {ST_F16, ST_BF16, ST_F32};
    static struct sample s;
    struct random r;

    random_init(&r, test_seed());
    for (size_t b = 0; b < 6; b++)
        for (size_t g = 0; g < 3; g++)
            for (size_t t = 0; t < 3; t++) {
                enum dtype exact = bits[b] <= 4 ? DTYPE_Q4_1 : bits[b] == 5 ? DTYPE_Q5_1 : DTYPE_F16;
                enum dtype hub = bits[b] < 6 ? DTYPE_NONE : groups[g] == 32 ? DTYPE_U8_32 : DTYPE_U8_64;

                make_sample(&r, bits[b], groups[g], scale_types[t], false, &s);
                check_sample(&s, scale_types[t] == ST_F32 ? DTYPE_F16 : exact,
                             scale_types[t] == ST_F32 ? DTYPE_NONE : hub);
                make_sample(&r, bits[b], groups[g], ST_BF16, true, &s);
                check_sample(&s, DTYPE_F16, DTYPE_NONE);
            }
}

TEST(a_bf16_number_counts_as_exact_when_f16_has_it)
{
    static uint8_t weight[16];
    uint16_t scale, zero = 0;
    struct mlx_matrix m = {4, 32, 1, 32, ST_BF16, weight, (const uint8_t *)&scale, (const uint8_t *)&zero};

    for (uint32_t bits = 0; bits < 65536; bits++) {
        float f = bf16_to_float((uint16_t)bits), back = half_to_float(float_to_half(f));
        bool exact = memcmp(&f, &back, sizeof(f)) == 0;

        scale = (uint16_t)bits;
        CHECK_EQ(mlx_dtype(&m), exact ? DTYPE_Q4_1 : DTYPE_F16);
    }
}

TEST(shapes_and_types_that_do_not_fit_are_refused)
{
    const struct st_tensor w = {.type = ST_U32, .n_dims = 2, .dims = {4, 8}};
    const struct st_tensor s = {.type = ST_F16, .n_dims = 2, .dims = {4, 1}};
    struct st_tensor other;
    struct rd_error err;
    struct mlx_matrix m;

    CHECK_OK(mlx_check("x", &w, &s, &s, 4, 64, &m, &err));
    CHECK(m.n_in == 64 && m.n_out == 4);
    CHECK_EQ(mlx_check("x", &w, NULL, &s, 4, 64, &m, &err), RD_E_FORMAT);
    CHECK_EQ(mlx_check("x", &w, &s, NULL, 4, 64, &m, &err), RD_E_FORMAT);
    CHECK_EQ(mlx_check("x", &w, &s, &s, 7, 64, &m, &err), RD_E_UNSUPPORTED);
    CHECK_EQ(mlx_check("x", &w, &s, &s, 4, 48, &m, &err), RD_E_UNSUPPORTED);
    CHECK_EQ(mlx_check("x", &w, &s, &s, 8, 64, &m, &err), RD_E_FORMAT);
    CHECK_EQ(mlx_check("x", &w, &s, &s, 4, 128, &m, &err), RD_E_FORMAT);
    other = s;
    other.type = ST_BF16;
    CHECK_EQ(mlx_check("x", &w, &s, &other, 4, 64, &m, &err), RD_E_FORMAT);
    other = s;
    other.dims[0] = 3;
    CHECK_EQ(mlx_check("x", &w, &other, &s, 4, 64, &m, &err), RD_E_FORMAT);
    other = s;
    other.dims[1] = UINT64_MAX / 2;
    CHECK_EQ(mlx_check("x", &w, &other, &other, 4, 64, &m, &err), RD_E_FORMAT);
    other = w;
    other.type = ST_I32;
    CHECK_EQ(mlx_check("x", &other, &s, &s, 4, 64, &m, &err), RD_E_FORMAT);
}
