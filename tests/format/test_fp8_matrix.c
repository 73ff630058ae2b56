/* tests/format/test_fp8_matrix.c - matrices of 8-bit floats: every shape and type of scale against the definition
 * w = scale * v; what is no number, and scales that do not fit, are refused. */
#include "format/hub/fp8_matrix.h"
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define MAX_OUT 5u
#define MAX_IN  384u

static const struct {
    enum st_type type;
    uint32_t size;
} scale_types[] = {{ST_F32, 4}, {ST_BF16, 2}, {ST_F16, 2}, {ST_F8_E8M0, 1}};

struct sample {
    uint8_t weight[MAX_OUT * MAX_IN], scales[4 * MAX_OUT * MAX_IN];
    float scale[MAX_OUT * MAX_IN];
    struct st_tensor w, s;
};

static float put_scale(enum st_type type, uint8_t *at, float v)
{
    uint16_t h = type == ST_F16 ? float_to_half(v) : float_to_bf16(v);
    int e;

    switch (type) {
    case ST_F32:
        memcpy(at, &v, 4);
        return v;
    case ST_F8_E8M0:
        frexpf(v, &e);
        *at = (uint8_t)(e - 1 + 127);
        return ldexpf(1.0f, e - 1);
    default:
        memcpy(at, &h, 2);
        return type == ST_F16 ? half_to_float(h) : bf16_to_float(h);
    }
}

static void make_sample(struct random *r, uint64_t n_out, uint64_t n_in, size_t type, uint32_t n_dims, uint64_t rows,
                        uint64_t cols, struct sample *s)
{
    memset(s, 0, sizeof(*s));
    s->w = (struct st_tensor){.type = ST_F8_E4M3, .n_dims = 2, .dims = {n_out, n_in}, .n_bytes = n_out * n_in};
    s->s = (struct st_tensor){.type = scale_types[type].type, .n_dims = n_dims, .dims = {rows, cols}};
    for (uint64_t i = 0; i < rows * cols; i++)
        s->scale[i] =
            put_scale(s->s.type, s->scales + scale_types[type].size * i, 0.001f + (float)random_below(r, 1000) / 8192);
    for (uint64_t i = 0; i < n_out * n_in; i++) {
        s->weight[i] = (uint8_t)random_u64(r);
        if ((s->weight[i] & 127) == 127) s->weight[i] ^= 1;
    }
}

/* block_out, block_in: what a number of the scale stands for, if it is the matrix's. */
static void check_sample(struct sample *s, uint64_t block_out, uint64_t block_in, bool whole_blocks)
{
    const uint64_t n_out = s->w.dims[0], n_in = s->w.dims[1], cols = (n_in + block_in - 1) / block_in;
    static float rows[MAX_OUT * MAX_IN], blocks[MAX_OUT * MAX_IN];
    static uint8_t opened[MAX_OUT * MAX_IN * 2], small[MAX_OUT * MAX_IN * 2];
    struct fp8_matrix m;

    CHECK_OK(fp8_check("x", &s->w, &s->s, 3, 128, &m, NULL));
    m.weight = s->weight;
    m.scales = s->scales;
    CHECK_OK(fp8_check_scales("x", &m, NULL));
    CHECK(fp8_open_rows(&m, DTYPE_BF16, 0, 1, opened)); /* in two parts */
    CHECK(fp8_open_rows(&m, DTYPE_BF16, 1, n_out - 1, opened + 2 * n_in));
    dtype_to_float(DTYPE_BF16, opened, rows, n_out * n_in);
    CHECK_EQ(fp8_has_blocks(&m), whole_blocks);
    if (whole_blocks) {
        CHECK(fp8_open_rows(&m, DTYPE_E4M3_128, 0, n_out, small));
        dtype_to_float(DTYPE_E4M3_128, small, blocks, n_out * n_in);
    }
    for (uint64_t i = 0; i < n_out * n_in; i++) {
        const float scale = s->scale[i / n_in / block_out * cols + i % n_in / block_in];
        const float want = scale * e4m3_to_float(s->weight[i]);

        CHECK(rows[i] == bf16_to_float(float_to_bf16(want)));
        CHECK(!whole_blocks || blocks[i] == want);
    }
}

TEST(e4m3_is_what_its_definition_says)
{
    CHECK(isnan(e4m3_to_float(0x7f)) && isnan(e4m3_to_float(0xff)));
    CHECK(e4m3_to_float(0x7e) == 448 && e4m3_to_float(0xfe) == -448 && e4m3_to_float(0x38) == 1);
    CHECK(signbit(e4m3_to_float(0x80)) && e4m3_to_float(0x80) == 0);
    for (int v = 0; v < 128; v++) {
        const int e = v >> 3, m = v & 7;
        const float want = e ? ldexpf(1.0f + (float)m / 8, e - 7) : ldexpf((float)m, -9);

        if (v != 127) CHECK(e4m3_to_float((uint8_t)v) == want && e4m3_to_float((uint8_t)(v | 128)) == -want);
    }
}

/* Against the nearest of all 126 numbers; of two that are as near the one with an even last bit. */
TEST(a_float_becomes_the_nearest_e4m3)
{
    struct random r;

    random_init(&r, test_seed());
    CHECK(float_to_e4m3(INFINITY) == 0x7f && float_to_e4m3(-INFINITY) == 0xff && (float_to_e4m3(NAN) & 0x7f) == 0x7f);
    CHECK(float_to_e4m3(1e30f) == 0x7e && float_to_e4m3(-470.0f) == 0xfe && float_to_e4m3(-0.0f) == 0x80);
    for (int v = 0; v < 126; v++) {
        const float low = e4m3_to_float((uint8_t)v), high = e4m3_to_float((uint8_t)(v + 1)), middle = (low + high) / 2;

        CHECK(float_to_e4m3(low) == v && float_to_e4m3(-high) == (v + 1) + 128);
        CHECK(float_to_e4m3(middle) == (v % 2 ? v + 1 : v));
        CHECK(float_to_e4m3(nextafterf(middle, 1e9f)) == v + 1 && float_to_e4m3(nextafterf(middle, 0)) == v);
    }
    for (int i = 0; i < 100000; i++) {
        const float f = ldexpf((float)random_unit(&r) * 2 - 1, (int)random_below(&r, 24) - 14);
        const float error = fabsf(e4m3_to_float(float_to_e4m3(f)) - f);

        CHECK(error <= fmaxf(fabsf(f) / 16, 0x1p-10f) || fabsf(f) > 448);
    }
}

TEST(every_shape_and_type_of_scale_stands_for_scale_times_value)
{
    static struct sample s;
    struct random r;

    random_init(&r, test_seed());
    for (size_t type = 0; type < 4; type++)
        for (uint64_t n_in = 128; n_in <= MAX_IN; n_in += 64) {
            const bool whole = n_in % 128 == 0;

            make_sample(&r, 5, n_in, type, 0, 1, 1, &s);
            check_sample(&s, 5, n_in, whole);
            make_sample(&r, 5, n_in, type, 2, 1, 1, &s);
            check_sample(&s, 5, n_in, whole);
            make_sample(&r, 5, n_in, type, 1, 5, 1, &s);
            check_sample(&s, 1, n_in, whole);
            make_sample(&r, 5, n_in, type, 2, 5, 1, &s);
            check_sample(&s, 1, n_in, whole);
            make_sample(&r, 5, n_in, type, 2, 2, (n_in + 127) / 128, &s); /* blocks of 3 rows x 128 */
            check_sample(&s, 3, 128, whole);
        }
}

TEST(a_value_or_scale_that_is_no_number_is_found_wherever_it_is)
{
    static uint8_t out[4 * MAX_IN];
    static struct sample s;
    struct rd_error err = {RD_OK, ""};
    struct fp8_matrix m;
    struct random r;
    const float bad[] = {INFINITY, -INFINITY, NAN};

    random_init(&r, test_seed());
    make_sample(&r, 2, 131, 0, 2, 2, 1, &s);
    CHECK_OK(fp8_check("x", &s.w, &s.s, 128, 128, &m, NULL));
    m.weight = s.weight;
    m.scales = s.scales;
    for (uint32_t i = 0; i < 2 * 131; i++)
        for (int sign = 0; sign < 256; sign += 128) {
            const uint8_t before = s.weight[i];

            s.weight[i] = (uint8_t)(127 | sign);
            CHECK(!fp8_open_rows(&m, DTYPE_BF16, 0, 2, out));
            CHECK_EQ(fp8_open_rows(&m, DTYPE_BF16, 0, 1, out), i >= 131);
            s.weight[i] = before;
        }
    for (size_t i = 0; i < 3; i++) {
        memcpy(s.scales + 4, &bad[i], 4);
        CHECK_EQ(fp8_check_scales("x", &m, &err), RD_E_FORMAT);
        CHECK(strstr(err.text, "scale [1,0]"));
    }
    m.scale_type = ST_F8_E8M0;
    memcpy(s.scales, "\x7f\xff", 2);
    CHECK_EQ(fp8_check_scales("x", &m, &err), RD_E_FORMAT);
}

TEST(scales_that_do_not_fit_are_refused)
{
    const struct st_tensor w = {.type = ST_F8_E4M3, .n_dims = 2, .dims = {300, 200}, .n_bytes = 60000};
    static const struct {
        enum st_type type;
        uint32_t n_dims;
        uint64_t dims[3];
        bool fits;
    } rows[] = {
        {ST_F32, 2, {3, 2}, true},    {ST_F32, 2, {300, 1}, true},   {ST_F32, 1, {300}, true},
        {ST_BF16, 1, {1}, true},      {ST_F32, 2, {2, 2}, false},    {ST_F32, 2, {3, 1}, false},
        {ST_F32, 2, {2, 3}, false},   {ST_F32, 1, {200}, false},     {ST_F32, 2, {1, 300}, false},
        {ST_F32, 2, {300, 2}, false}, {ST_F32, 3, {3, 2, 1}, false}, {ST_F32, 1, {UINT64_MAX}, false},
        {ST_U8, 2, {3, 2}, false},    {ST_F8_E4M3, 1, {1}, false},
    };
    struct st_tensor other = w;
    struct rd_error err;
    struct fp8_matrix m;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_tensor s = {.type = rows[i].type, .n_dims = rows[i].n_dims, .dims = {1, 1, 1, 1, 1, 1, 1, 1}};

        memcpy(s.dims, rows[i].dims, rows[i].n_dims * sizeof(s.dims[0]));
        CHECK_EQ(fp8_check("x", &w, &s, 128, 128, &m, &err), rows[i].fits ? RD_OK : RD_E_FORMAT);
    }
    CHECK_EQ(fp8_check("x", &w, NULL, 128, 128, &m, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "without \"weight_scale_inv\""));
    other.n_dims = 1;
    CHECK_EQ(fp8_check("x", &other, NULL, 128, 128, &m, &err), RD_E_FORMAT);
}
