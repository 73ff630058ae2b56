/* tests/ops/test_dense.c - products of an encoder in bf16 parts: right to 2^-15 of what a row's terms amount to, a row's bits its
 * own, and on a matrix unit those of the plain C. */
#include <stdlib.h>
#include "backend/cpu/linear/linear_dense.h"
#include "base/checked.h"
#include "op_fixture.h"

#define N_ROWS 83u
#define N_OUT  70u

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

/* Random weights of a type, and their values. */
static void *weights_of(struct random *r, enum dtype t, uint64_t n, float *values)
{
    uint8_t *bytes = mem_alloc_aligned(n * 4);

    for (uint64_t i = 0; i < n; i++) {
        const float v = op_normal(r) * 0.1f;
        const uint16_t half = t == DTYPE_F16 ? float_to_half(v) : float_to_bf16(v);

        if (t == DTYPE_F32)
            memcpy(bytes + 4 * i, &v, 4);
        else
            memcpy(bytes + 2 * i, &half, 2);
    }
    dtype_to_float(t, bytes, values, n);
    return bytes;
}

/* A backend with these kernels; every processor computes the plain ones. */
static struct backend *dense_backend(const struct cpu_dense_kernels *kernels, uint32_t n_threads)
{
    struct backend *be = op_backend(kernels == &dense_kernels_ref ? (enum cpu_isa)0 : cpu_isa_best(), n_threads);

    if (be) be->dense = kernels;
    return be;
}

static void multiply(struct backend *be, const struct weight *w, const struct weight *bias, uint32_t n_outs,
                     uint32_t n_rows, const float *x, uint32_t x_stride, float *out)
{
    struct linear_args a = {.n_rows = n_rows, .x = span_of_host(x), .x_stride = x_stride, .n_outs = n_outs};

    for (uint32_t i = 0; i < n_outs; i++)
        a.outs[i] = (struct linear_out){w, i ? NULL : bias, span_of_host(out + i * N_OUT), n_outs * N_OUT};
    CHECK_OK(backend_cpu_ops.op.linear(be, &a));
}

static void check_type(struct random *r, enum dtype t, uint32_t n_in, const struct cpu_dense_kernels *kernels)
{
    const uint32_t stride = n_in + 5;
    float *values = mem_alloc_aligned((uint64_t)N_OUT * n_in * sizeof(float)), *x = op_floats(r, N_ROWS * stride, 1),
          *b = op_floats(r, N_OUT, 1),
          *out[2] = {op_floats(r, 2 * N_ROWS * N_OUT, 1), op_floats(r, 2 * N_ROWS * N_OUT, 1)};
    void *bytes = weights_of(r, t, (uint64_t)N_OUT * n_in, values);
    const struct host_tensor host = {"w", t, N_OUT, n_in, bytes, false, NULL, 0};
    const struct weight bias = op_vector(b, N_OUT);
    double worst = 0;

    for (int i = 0; i < 2; i++) { /* the plain kernels, one thread; these, three */
        struct backend *be = dense_backend(i ? kernels : &dense_kernels_ref, i ? 3 : 1);
        struct weight w = {0};
        struct rd_error err;

        CHECK(be);
        CHECK_OK(backend_cpu_ops.weights.load(be, &host, WEIGHT_DENSE, &w, &err));
        CHECK_EQ(w.format, CPU_DENSE);
        multiply(be, &w, &bias, 2, N_ROWS, x, stride, out[i]);
        if (i) { /* rows alone, and few of them */
            float *some = op_floats(r, 2 * 17 * N_OUT, 1);

            for (uint32_t row = 0, n; row < N_ROWS; row += n) {
                n = 1 + (uint32_t)random_below(r, 17);
                if (n > N_ROWS - row) n = N_ROWS - row;
                multiply(be, &w, &bias, 2, n, x + row * stride, stride, some);
                CHECK(op_same(some, out[1] + row * 2 * N_OUT, (uint64_t)n * 2 * N_OUT));
            }
            mem_free_aligned(some);
        }
        backend_cpu_ops.weights.unload(be, &w);
        backend_cpu_ops.life.destroy(be);
    }
    CHECK(op_same(out[0], out[1], 2 * N_ROWS * N_OUT));
    for (uint32_t row = 0; row < N_ROWS; row++)
        for (uint32_t o = 0; o < 2 * N_OUT; o++) {
            double want = o < N_OUT ? (double)b[o] : 0, terms = fabs(want);

            for (uint32_t k = 0; k < n_in; k++) {
                const double term = (double)x[row * stride + k] * (double)values[o % N_OUT * n_in + k];

                want += term;
                terms += fabs(term);
            }
            worst = fmax(worst, fabs(want - (double)out[1][row * 2 * N_OUT + o]) / terms);
        }
    test_note("%s, %u: %.1e of the terms", dtype_name(t), n_in, worst);
    CHECK(worst < 0x1p-15);
    mem_free_aligned(values), mem_free_aligned(x), mem_free_aligned(b), mem_free_aligned(bytes);
    mem_free_aligned(out[0]), mem_free_aligned(out[1]);
}

TEST(products_in_parts_are_right_and_a_rows_own)
{
    static const uint32_t widths[] = {32, 5, 147, 588};
    struct random r;

    random_init(&r, test_seed());
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
            check_type(&r, types[t], widths[i], &dense_kernels_ref);
}

#if defined(__x86_64__)
static bool has_amx(void)
{
    return strcmp(cpu_isa_name(cpu_isa_best()), "amx") == 0;
}

TEST(a_matrix_unit_gives_the_bits_of_plain_c)
{
    static const uint32_t widths[] = {32, 5, 147, 588, 1152};
    struct random r;

    if (!has_amx()) {
        test_skip("no AMX");
        return;
    }
    random_init(&r, test_seed());
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
            check_type(&r, types[t], widths[i], &dense_kernels_amx);
}
#endif

/* Where there is no matrix unit weights are as those of text models. */
TEST(without_a_matrix_unit_nothing_is_in_parts)
{
    const float values[32] = {1, 2, 3};
    const struct host_tensor host = {"w", DTYPE_F32, 1, 32, values, false, NULL, 0};
    struct backend *be = op_backend((enum cpu_isa)0, 1);
    struct weight w = {0};
    struct rd_error err;

    CHECK(be);
    CHECK_OK(backend_cpu_ops.weights.load(be, &host, WEIGHT_DENSE, &w, &err));
    CHECK_EQ(w.format, 0);
    CHECK_EQ(w.role, WEIGHT_MATRIX);
    backend_cpu_ops.weights.unload(be, &w);
    backend_cpu_ops.life.destroy(be);
}
