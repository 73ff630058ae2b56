/* tests/grad/test_compute.c - products with a file's matrix: one order of sums, whatever opens, cuts and computes them. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/linear_dense.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/random.h"
#include "grad/compute.h"
#include "tensor/quantise.h"
#include "sanitized.h"
#include "test.h"

enum { M = 101, K = 270, N = 256, ODD_N = 77 };

static float *some(struct random *r, size_t n)
{
    float *x = mem_alloc(n, sizeof(*x));

    assert(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(random_unit(r) * 2 - 1);
    return x;
}

/* Rows of w of this type; for what quantise does not write, bytes that are finite numbers. */
static uint8_t *matrix_of(struct random *r, enum dtype type, uint32_t n_rows, uint32_t n)
{
    const uint32_t block = dtype_block_weights(type), bytes = dtype_block_bytes(type);
    const uint64_t n_blocks = (uint64_t)n_rows * (n / block);
    uint8_t *w = mem_alloc(n_blocks, bytes);
    float *x = some(r, (size_t)n_rows * n);
    const float scale = 0.01f;
    const uint16_t half = float_to_half(scale);

    assert(w);
    if (quantise_knows(type)) {
        quantise(type, x, w, (uint64_t)n_rows * n);
    } else {
        for (uint64_t i = 0; i < n_blocks * bytes; i++) w[i] = (uint8_t)(random_u64(r) & 0x77);
        for (uint64_t i = 0; i < n_blocks; i++)
            if (type == DTYPE_E4M3_128)
                memcpy(w + i * bytes, &scale, sizeof(scale));
            else
                memcpy(w + i * bytes, (uint16_t[]){half, half}, 2 * sizeof(half));
    }
    mem_free(x);
    return w;
}

/* c (+)= a w, k by k. */
static void plainly(const float *a, const float *w, uint32_t n, float *c, bool add)
{
    for (uint32_t m = 0; m < M; m++)
        for (uint32_t i = 0; i < n; i++) {
            float sum = add ? c[m * n + i] : 0;

            for (uint32_t k = 0; k < K; k++) sum = fmaf(a[m * K + k], w[k * n + i], sum);
            c[m * n + i] = sum;
        }
}

static void check_type(enum dtype type, uint32_t n)
{
    static const uint32_t threads[] = {1, 2, 3, 16};
    struct random r;
    float *a, *opened = mem_alloc((size_t)K * n, sizeof(float)), *c, *got, *want;
    uint8_t *w;

    random_init(&r, type + n);
    a = some(&r, M * K);
    c = some(&r, (size_t)M * n);
    w = matrix_of(&r, type, K, n);
    got = mem_alloc((size_t)M * n, sizeof(*got));
    want = mem_alloc((size_t)M * n, sizeof(*want));
    CHECK(got && want && opened);
    memcpy(want, c, (size_t)M * n * sizeof(*c));
    dtype_to_float(type, w, opened, (uint64_t)K * n);
    plainly(a, opened, n, want, true);
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (uint32_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
            const struct gemm g = {.m = M, .n = n, .k = K, .a = a, .a_m = K, .a_k = 1, .c = got, .c_m = n, .add = true};
            struct grad_compute *compute;

            CHECK_OK(grad_compute_create(threads[t], cpu_isa_name((enum cpu_isa)isa), &compute, NULL));
            memcpy(got, c, (size_t)M * n * sizeof(*c));
            grad_gemm_matrix(compute, &g, &(struct grad_matrix){type, K, n, w});
            CHECK_EQ(memcmp(got, want, (size_t)M * n * sizeof(*got)), 0);
            grad_compute_destroy(compute);
        }
    mem_free(a), mem_free(opened), mem_free(c), mem_free(got), mem_free(want), mem_free(w);
}

TEST(any_type_set_and_threads_give_the_same_sums)
{
    static const enum dtype types[] = {DTYPE_F32,   DTYPE_F16,   DTYPE_BF16,    DTYPE_Q4_0, DTYPE_Q4_1,
                                       DTYPE_Q5_0,  DTYPE_Q5_1,  DTYPE_Q8_0,    DTYPE_Q4_K, DTYPE_Q6_K,
                                       DTYPE_U8_32, DTYPE_U8_64, DTYPE_E4M3_128};

    /* sanitized: the ways are the same for every type, and take twenty times as long */
    for (uint32_t i = 0; i < sizeof(types) / sizeof(types[0]); i += IS_SANITIZED && !test_is_long() ? 3 : 1)
        check_type(types[i], u32_max(N, 2 * dtype_block_weights(types[i])));
    check_type(DTYPE_Q4_1, 224); /* tiles that are not full */
    check_type(DTYPE_F32, ODD_N);
}

/* ---- a matrix unit: in plain C, and where this processor has one by that ---- */

struct unit_case {
    enum dtype type;
    uint32_t m, n, k;
    bool add;
};

/* NULL: it failed. */
static float *unit_product(const struct unit_case *u, const float *a, const uint8_t *w, const float *c, const char *isa,
                           uint32_t n_threads)
{
    float *got = mem_alloc((size_t)u->m * u->n, sizeof(*got));
    const struct gemm g = {
        .m = u->m, .n = u->n, .k = u->k, .a = a, .a_m = u->k, .a_k = 1, .c = got, .c_m = u->n, .add = u->add};
    struct grad_compute *compute = NULL;
    rd_status st = grad_compute_create(n_threads, isa, &compute, NULL);

    if (st == RD_OK && strcmp(isa, "ref") == 0) st = grad_use_matrix_unit(compute, &dense_kernels_ref);
    if (st == RD_OK && got && grad_has_matrix_unit(compute)) {
        memcpy(got, c, (size_t)u->m * u->n * sizeof(*c));
        grad_gemm_frozen(compute, &g, &(struct grad_matrix){u->type, u->k, u->n, w});
    } else {
        mem_free(got);
        got = NULL;
    }
    grad_compute_destroy(compute);
    return got;
}

static void check_unit(const struct unit_case *u)
{
    const size_t n_c = (size_t)u->m * u->n;
    struct random r;
    float *a, *c, *opened = mem_alloc((size_t)u->k * u->n, sizeof(float)), *got, *same;
    uint8_t *w;
    double worst = 0;

    random_init(&r, u->type + u->n);
    a = some(&r, (size_t)u->m * u->k);
    c = some(&r, n_c);
    w = matrix_of(&r, u->type, u->k, u->n);
    dtype_to_float(u->type, w, opened, (uint64_t)u->k * u->n);
    got = unit_product(u, a, w, c, "ref", 1);
    CHECK(got != NULL);
    for (uint32_t m = 0; m < u->m; m++)
        for (uint32_t n = 0; n < u->n; n++) {
            double sum = u->add ? (double)c[m * u->n + n] : 0, size = fabs(sum);

            for (uint32_t k = 0; k < u->k; k++) {
                const double x = (double)a[m * u->k + k] * (double)opened[(size_t)k * u->n + n];

                sum += x;
                size += fabs(x);
            }
            worst = fmax(worst, fabs((double)got[m * u->n + n] - sum) / size);
        }
    test_note("%s, k %u: within %.1e of what is added up", dtype_name(u->type), u->k, worst);
    CHECK(worst < 0x1p-16);
    same = unit_product(u, a, w, c, "ref", 3);
    CHECK(same && memcmp(got, same, n_c * sizeof(*got)) == 0);
    mem_free(same);
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        if (!cpu_kernels[isa].dense) continue;
        for (uint32_t t = 1; t < 18; t += 5) {
            same = unit_product(u, a, w, c, cpu_isa_name((enum cpu_isa)isa), t);
            CHECK(same && memcmp(got, same, n_c * sizeof(*got)) == 0);
            mem_free(same);
        }
    }
    mem_free(a), mem_free(c), mem_free(opened), mem_free(got), mem_free(w);
}

TEST(a_matrix_unit_gives_floats_products_to_2_to_the_minus_16)
{
    static const struct unit_case cases[] = {{DTYPE_F32, 37, 77, 270, true},    {DTYPE_BF16, 16, 96, 64, false},
                                             {DTYPE_Q4_1, 101, 160, 270, true}, {DTYPE_Q8_0, 33, 64, 2100, false},
                                             {DTYPE_Q4_K, 5, 512, 131, true},   {DTYPE_F16, 1, 2064, 40, false},
                                             {DTYPE_F32, 2070, 16, 33, true}};

    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) check_unit(&cases[i]);
}
