/* tests/backend/test_mlx_ahead.c - marks of the backend mlx: steps that are computed while others are written down, what they
 * give, and what becomes of them when one fails; and the tokens that it chooses. In builds that have MLX. */
#include "backend/backend_registry.h"
#include "test.h"
#ifdef RADISH_MLX
#include <math.h>
#include <string.h>
#include "backend/mlx/mlx_backend.h"
#include "base/mem.h"
#include "base/random.h"
#include "draw_reference.h"

static const struct backend_ops *ops;

static struct backend *open_backend(void)
{
    const struct backend_options o = {.n_threads = 2};
    struct rd_error err = {RD_OK, ""};
    struct backend *be = NULL;

    ops = backend_find("mlx")->ops;
    if (ops->life.create(&o, &be, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    return be;
}

static bool begin(struct backend *be)
{
    const struct graph_step s = {.choices = span_none()};
    enum graph_action action = GRAPH_RECORD;

    return ops->async->graph_begin(be, &s, &action) == RD_OK && action == GRAPH_PLAIN;
}

/* A step: what is at x times itself comes to x, and to `to`. */
static rd_status square(struct backend *be, struct span x, uint32_t n, float *to)
{
    const mlx_ref a = mlx_load(be, x, 1, n, n);

    mlx_store(be, x, mlx_multiply(be->g, a, a), 1, n, n);
    return ops->memory.read(be, to, x, n * sizeof(*to));
}

TEST(marks_give_what_their_steps_computed_in_order)
{
    enum { N = 4096 };
    struct backend *be = open_backend();
    float *x = mem_alloc(N, sizeof(*x)), *got = mem_zalloc(3 * N, sizeof(*got));
    struct buffer *b = NULL;

    CHECK(be && x && got);
    for (uint32_t i = 0; i < N; i++) x[i] = 1 + (float)i / N;
    CHECK_OK(ops->memory.alloc(be, N * sizeof(*x), &b));
    CHECK_OK(ops->memory.write(be, span_of(b, 0), x, N * sizeof(*x)));
    CHECK(begin(be));
    CHECK_OK(square(be, span_of(b, 0), N, got));
    CHECK_OK(ops->async->mark(be));
    for (int step = 1; step < 3; step++) {
        CHECK(begin(be));
        CHECK_OK(square(be, span_of(b, 0), N, got + step * N));
        CHECK_OK(ops->async->mark(be));
        CHECK_OK(ops->async->wait_mark(be));
        for (uint32_t i = 0; i < N; i++) CHECK_EQ(got[(step - 1) * N + i], (x[i] *= x[i]));
    }
    CHECK_OK(ops->async->wait_mark(be));
    for (uint32_t i = 0; i < N; i++) CHECK_EQ(got[2 * N + i], (x[i] *= x[i]));
    ops->memory.free(be, b);
    ops->life.destroy(be);
    mem_free(x), mem_free(got);
}

/* An array that no memory can hold, in the step's graph: it fails when the thread beside computes it. */
static rd_status want_too_much(struct backend *be, float *to)
{
    const struct mlx_shape huge = {4, {1 << 14, 1 << 14, 1 << 14, 1 << 10}};
    const rd_status st = mlx_want(be, mlx_zeros(be->g, MLX_F32, huge), to, sizeof(*to));

    return st == RD_OK ? mlx_settle(be, "test") : st;
}

TEST(a_step_that_fails_takes_the_one_behind_it_along_and_no_other)
{
    struct backend *be = open_backend();
    float x[4] = {1, 2, 3, 4}, y[4] = {0}, z[4] = {0};
    struct buffer *b = NULL;

    CHECK(be != NULL);
    CHECK_OK(ops->memory.alloc(be, sizeof(x), &b));
    for (int round = 0; round < 3; round++) {
        CHECK_OK(ops->memory.write(be, span_of(b, 0), x, sizeof(x)));
        CHECK(begin(be));
        CHECK_OK(want_too_much(be, z));
        CHECK_OK(square(be, span_of(b, 0), 4, y));
        CHECK_OK(ops->async->mark(be));
        CHECK(begin(be));
        CHECK_OK(square(be, span_of(b, 0), 4, z));
        CHECK_OK(ops->async->mark(be));
        CHECK_EQ(ops->async->wait_mark(be), RD_E_DEVICE);
        CHECK_EQ(ops->async->wait_mark(be), RD_E_DEVICE);
        CHECK(!ops->life.is_dead(be));

        CHECK_OK(ops->memory.write(be, span_of(b, 0), x, sizeof(x)));
        CHECK(begin(be));
        CHECK_OK(square(be, span_of(b, 0), 4, y));
        CHECK_OK(ops->async->mark(be));
        CHECK_OK(ops->async->wait_mark(be));
        CHECK(y[0] == 1 && y[1] == 4 && y[2] == 9 && y[3] == 16);
    }
    ops->memory.free(be, b);
    ops->life.destroy(be);
}

TEST(a_backend_goes_while_a_step_is_under_way)
{
    struct backend *be = open_backend();
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    struct buffer *b = NULL;

    CHECK(be != NULL);
    CHECK_OK(ops->memory.alloc(be, sizeof(x), &b));
    CHECK_OK(ops->memory.write(be, span_of(b, 0), x, sizeof(x)));
    CHECK(begin(be));
    CHECK_OK(square(be, span_of(b, 0), 4, y));
    CHECK_OK(ops->async->mark(be));
    ops->memory.free(be, b);
    ops->life.destroy(be);
}

enum { ROWS = 64, VOCAB = 3001 };

static void choose_on(struct backend *be, const float *logits, const struct row_draw *draws, struct row_choice *out)
{
    struct buffer *x = NULL, *p = NULL;

    CHECK_OK(ops->memory.alloc(be, ROWS * VOCAB * sizeof(*logits), &x));
    CHECK_OK(ops->memory.alloc(be, ROWS * sizeof(*out), &p));
    CHECK_OK(ops->memory.write(be, span_of(x, 0), logits, ROWS * VOCAB * sizeof(*logits)));
    CHECK_OK(ops->op.choose(be, ROWS, VOCAB, span_of(x, 0), draws, span_of(p, 0)));
    CHECK_OK(ops->memory.read(be, out, span_of(p, 0), ROWS * sizeof(*out)));
    CHECK_OK(ops->memory.sync(be));
    ops->memory.free(be, x);
    ops->memory.free(be, p);
}

TEST(it_chooses_the_token_that_the_reference_draws)
{
    static const float temperatures[] = {0, 0.001f, 0.3f, 0.8f, 1, 2.5f, 40};
    struct backend *be = open_backend();
    struct row_draw draws[ROWS];
    struct row_choice out[ROWS];
    float *x = mem_alloc(ROWS * VOCAB, sizeof(*x));
    struct random rng;

    CHECK(be && x);
    random_init(&rng, test_seed());
    for (uint32_t round = 0; round < 12; round++) {
        for (uint32_t i = 0; i < ROWS * VOCAB; i++)
            x[i] = round % 2 ? (float)random_below(&rng, 9) : (float)(8 * random_unit(&rng)); /* many ties, and none */
        for (uint32_t r = 0; r < ROWS; r++) {
            draws[r] = (struct row_draw){temperatures[random_below(&rng, 7)], random_below(&rng, 2) ? 0.2f : 0,
                                         random_u64(&rng), (uint32_t)random_below(&rng, 5000), 0};
            if (r % 16 == 3) x[r * VOCAB + random_below(&rng, VOCAB)] = random_below(&rng, 2) ? NAN : INFINITY;
            for (uint32_t i = 0; r % 16 == 5 && i < VOCAB; i++) x[r * VOCAB + i] = -INFINITY;
        }
        choose_on(be, x, draws, out);
        for (uint32_t r = 0; r < ROWS; r++) {
            const float *row = x + r * VOCAB;
            int32_t want;

            if (r % 16 == 3) {
                CHECK(isnan(out[r].value));
                continue;
            }
            if (r % 16 == 5) {
                CHECK_EQ(out[r].value, -INFINITY);
                continue;
            }
            if (draws[r].temperature > 0) {
                want =
                    draw_reference(row, VOCAB, draws[r].temperature, draws[r].min_p, draws[r].seed, draws[r].position);
            } else {
                want = 0;
                for (int32_t i = 1; i < VOCAB; i++)
                    if (row[i] > row[want]) want = i;
            }
            CHECK_EQ(out[r].token, want);
            CHECK_EQ(out[r].value, row[want]);
        }
    }
    mem_free(x);
    ops->life.destroy(be);
}
#else
TEST(mlx_is_in_this_build)
{
    test_skip("this build is without MLX");
}
#endif
