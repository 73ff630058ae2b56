/* tests/backend/test_mlx_products.c - our loops for MLX's CPU build give what MLX's own products give, and a row's bits are its
 * own. In builds that have MLX. */
#include "backend/backend_registry.h"
#include "test.h"
#ifdef RADISH_MLX
#include <math.h>
#include <stdlib.h>
#include "backend/cpu_pool.h"
#include "backend/mlx/mlx_backend.h"
#include "base/random.h"

enum { MOST_ROWS = 9, MOST_IN = 384, MOST_OUT = 7 };

static float x[MOST_ROWS * MOST_IN], scales[MOST_OUT * MOST_IN / 32], biases[MOST_OUT * MOST_IN / 32];
static uint32_t words[MOST_OUT * MOST_IN];

static struct random seeded;

static void fill(float *to, size_t n, float from, float by)
{
    for (size_t i = 0; i < n; i++) to[i] = from + by * 2 * (float)random_unit(&seeded);
}

static mlx_ref floats(struct mlx_context *g, uint64_t rows, uint64_t width, const float *from)
{
    return mlx_from(g, MLX_F32, mlx_dims2(rows, width), from);
}

/* Both products of n rows; how far they are apart, beside the largest value. */
static void compare(struct mlx_context *g, uint32_t n, uint32_t n_in, uint32_t n_out, const struct mlx_groups *w,
                    float *own, float bound)
{
    float theirs[MOST_ROWS * MOST_OUT], most = 0;
    const mlx_ref in = floats(g, n, n_in, x);
    const mlx_ref other =
        w->bits ? mlx_quantized_matmul(g, in, w) : mlx_as(g, mlx_matmul(g, mlx_as_of(g, in, w->w), w->w), MLX_F32);

    CHECK(mlx_get(g, mlx_own_matmul(g, in, w), own, (uint64_t)n * n_out * 4));
    CHECK(mlx_get(g, other, theirs, (uint64_t)n * n_out * 4));
    for (uint32_t i = 0; i < n * n_out; i++) most = fmaxf(most, fabsf(theirs[i]));
    for (uint32_t i = 0; i < n * n_out; i++)
        if (!(fabsf(own[i] - theirs[i]) <= bound * most))
            test_fail(__FILE__, __LINE__, "bits %u, group %u, value %u of %u x %u: %g, MLX says %g", w->bits, w->group,
                      i, n, n_out, (double)own[i], (double)theirs[i]);
}

/* Several rows, then each alone. */
static void check_rows(struct mlx_context *g, uint32_t n_in, uint32_t n_out, const struct mlx_groups *w, float bound)
{
    float all[MOST_ROWS * MOST_OUT], one[MOST_OUT];

    fill(x, MOST_ROWS * MOST_IN, -1, 1);
    compare(g, MOST_ROWS, n_in, n_out, w, all, bound);
    for (uint32_t r = 0; r < MOST_ROWS; r++) {
        CHECK(mlx_get(g, mlx_own_matmul(g, floats(g, 1, n_in, x + r * n_in), w), one, n_out * 4));
        CHECK(memcmp(one, all + r * n_out, n_out * 4) == 0);
    }
    mlx_end(g);
}

TEST(groups_of_all_bits_are_opened_as_mlx_opens_them)
{
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    char why[256] = "";
    struct mlx_context *g = mlx_open(false, why, sizeof(why));

    CHECK(g != NULL);
    random_init(&seeded, 7);
    for (uint32_t b = 0; b < 6; b++)
        for (uint32_t k = 0; k < 3; k++)
            for (uint32_t n_out = MOST_OUT - 1; n_out <= MOST_OUT;
                 n_out++) { /* MLX's own takes more where rows are few */
                struct mlx_groups w = {.bits = bits[b], .group = groups[k]};

                for (uint32_t i = 0; i < MOST_OUT * MOST_IN; i++) words[i] = (uint32_t)random_u64(&seeded);
                fill(scales, sizeof(scales) / 4, 0.01f, 0.02f);
                fill(biases, sizeof(biases) / 4, -0.3f, 0.3f);
                w.w = mlx_from(g, MLX_U32, mlx_dims2(n_out, MOST_IN * bits[b] / 32), words);
                w.scales = floats(g, n_out, MOST_IN / groups[k], scales);
                w.biases = floats(g, n_out, MOST_IN / groups[k], biases);
                check_rows(g, MOST_IN, n_out, &w, 1e-5f);
            }
    CHECK_EQ(mlx_failure(g, why, sizeof(why)), RD_OK);
    mlx_close(g);
}

TEST(matrices_of_floats_and_of_their_halves)
{
    static const uint32_t widths[] = {384, 37, 16, 3};
    static float values[MOST_OUT * MOST_IN];
    char why[256] = "";
    struct mlx_context *g = mlx_open(false, why, sizeof(why));

    CHECK(g != NULL);
    random_init(&seeded, 8);
    fill(values, MOST_OUT * MOST_IN, -1, 1);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t t = 0; t < 2; t++) {
            struct mlx_groups w = {.w = mlx_as(g, floats(g, MOST_OUT, widths[i], values), t ? MLX_BF16 : MLX_F32)};

            CHECK(mlx_eval(g, 1, &w.w));
            check_rows(g, widths[i], MOST_OUT, &w, t ? 2e-2f : 1e-5f); /* MLX's rounds x and the result to bf16 */
        }
    CHECK_EQ(mlx_failure(g, why, sizeof(why)), RD_OK);
    mlx_close(g);
}
static void run(void *pool, void (*fn)(void *arg, uint32_t tile, uint32_t thread), void *arg, uint32_t n_tiles)
{
    cpu_pool_run(pool, fn, arg, n_tiles);
}

/* A matrix that is shared out, and one that is too small for it: by one thread and by four. */
TEST(any_number_of_threads_gives_the_same_bits)
{
    static const uint32_t sizes[2][2] = {{1037, 160}, {5, 160}}; /* n_out, n_in */
    enum { ROWS = 5, MOST = 1037 * 160 };
    float *values = malloc(MOST * sizeof(*values)), *in = malloc(ROWS * 160 * sizeof(*in));
    float *one = malloc(ROWS * 1037 * sizeof(*one)), *four = malloc(ROWS * 1037 * sizeof(*four));
    char why[256] = "";
    struct mlx_context *g = mlx_open(false, why, sizeof(why));
    struct cpu_pool *pool = NULL;

    CHECK(g && values && in && one && four);
    CHECK_OK(cpu_pool_create(4, &pool));
    random_init(&seeded, 9);
    fill(values, MOST, -1, 1);
    fill(in, ROWS * 160, -1, 1);
    for (int i = 0; i < 2; i++) {
        const uint32_t n_out = sizes[i][0], n_in = sizes[i][1], n_bytes = ROWS * n_out * 4;
        const struct mlx_threads alone = {1, NULL, NULL}, all = {4, pool, run};
        const struct mlx_groups w = {.w = floats(g, n_out, n_in, values)};

        mlx_use_threads(g, &alone);
        CHECK(mlx_get(g, mlx_own_matmul(g, floats(g, ROWS, n_in, in), &w), one, n_bytes));
        mlx_use_threads(g, &all);
        for (int again = 0; again < 20; again++) {
            memset(four, 0, n_bytes);
            CHECK(mlx_get(g, mlx_own_matmul(g, floats(g, ROWS, n_in, in), &w), four, n_bytes));
            CHECK(memcmp(one, four, n_bytes) == 0);
        }
    }
    CHECK_EQ(mlx_failure(g, why, sizeof(why)), RD_OK);
    mlx_close(g);
    cpu_pool_destroy(pool);
    free(values), free(in), free(one), free(four);
}
#else
TEST(the_products_are_in_builds_that_have_mlx)
{
    CHECK(backend_find("mlx")->ops == NULL);
    test_skip("this build is without MLX");
}
#endif
