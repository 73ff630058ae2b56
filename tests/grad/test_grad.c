/* tests/grad/test_grad.c - radish/grad.h: every op against differences in double, forward against reverse on random programs,
 * checkpoints to the bit, threads to the bit, failing allocations. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "radish/grad.h"
#include "test.h"

enum { ROWS = 5, COLS = 8 };

struct rig {
    rd_grad *g;
    enum rd_array_type type;
    int op;
};

static const uint32_t positions[ROWS] = {0, 3, 4, 7, 900};
static const int32_t ids[ROWS] = {3, 0, 4, 3, 1};
static const float weights[ROWS] = {1, 0, 2, 0.5f, 1};

/* The ops under test: in[0], in[1] [ROWS, COLS], in[2] [1, COLS], in[3] [1, COLS]. */
enum { N_OPS = 25 };
static const rd_array *apply(rd_grad *g, int op, const rd_array *const *in)
{
    const struct rd_attention heads = {2, 2, 0.5, 0, 0}, grouped = {2, 1, 0.5, 3, 2};

    switch (op) {
    case 0:
        return rd_add(g, in[0], in[1]);
    case 1:
        return rd_add(g, in[0], in[2]);
    case 2:
        return rd_sub(g, in[0], in[2]);
    case 3:
        return rd_mul(g, in[0], in[1]);
    case 4:
        return rd_mul(g, in[0], in[2]);
    case 5:
        return rd_scale(g, in[0], -1.5);
    case 6:
        return rd_silu(g, in[0]);
    case 7:
        return rd_gelu(g, in[0]);
    case 8:
        return rd_tanh(g, in[0]);
    case 9:
        return rd_exp(g, in[0]);
    case 10:
        return rd_matmul(g, in[0], rd_transpose(g, in[1]));
    case 11:
        return rd_linear(g, in[0], in[1]);
    case 12:
        return rd_reshape(g, in[0], COLS, ROWS);
    case 13:
        return rd_transpose(g, in[0]);
    case 14:
        return rd_rms_norm(g, in[0], in[2], 1e-5);
    case 15:
        return rd_layer_norm(g, in[0], in[2], in[3], 1e-5);
    case 16:
        return rd_softmax(g, in[0]);
    case 17:
        return rd_rope(g, in[0], 2, positions, 10000, false);
    case 18:
        return rd_rope(g, in[0], 1, positions, 10000, true);
    case 19:
        return rd_attend(g, in[0], in[1], rd_mul(g, in[0], in[2]), &heads);
    case 20:
        return rd_attend(g, in[0], rd_reshape(g, rd_matmul(g, in[1], rd_transpose(g, in[4])), ROWS, COLS / 2),
                         rd_reshape(g, rd_linear(g, in[0], in[4]), ROWS, COLS / 2), &grouped);
    case 21:
        return rd_embed_rows(g, in[0], ids, ROWS);
    case 22:
        return rd_cross_entropy(g, in[0], ids, NULL);
    case 23:
        return rd_cross_entropy(g, in[0], ids, weights);
    default:
        return rd_mse(g, in[0], in[1]);
    }
}

static const rd_array *one_op(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n)
{
    return apply(g, *(int *)arg, in);
}

/* Its numbers each by a weight of its own, summed. */
static const rd_array *one_op_summed(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n)
{
    const rd_array *y = apply(g, *(int *)arg, in);

    if (!y) return NULL;
    y = rd_reshape(g, y, 1, rd_array_rows(y) * rd_array_cols(y));
    return rd_sum(g, rd_mul(g, y, rd_sub(g, rd_exp(g, rd_scale(g, y, 0.125)), rd_scale(g, y, 0.25))));
}

enum { N_IN = 5 };
static const uint32_t shapes[N_IN][2] = {{ROWS, COLS}, {ROWS, COLS}, {1, COLS}, {1, COLS}, {COLS / 2, COLS}};

static double uniform(struct random *r)
{
    return (double)random_below(r, 2000001) / 1e6 - 1;
}

static const rd_array *make(rd_grad *g, enum rd_array_type t, uint32_t rows, uint32_t cols, const double *values)
{
    float f[256];

    for (uint32_t i = 0; i < rows * cols; i++) f[i] = (float)values[i];
    return rd_array_new(g, t, rows, cols, t == RD_F64 ? (const void *)values : f);
}

static double at(const rd_array *a, enum rd_array_type t, uint32_t i)
{
    return t == RD_F64 ? ((const double *)rd_array_values(a))[i] : (double)((const float *)rd_array_values(a))[i];
}

TEST(gradients_of_every_op_are_the_differences_in_double)
{
    static double values[N_IN][ROWS * COLS];
    double worst_all = 0;
    struct random r;
    rd_grad *g, *f;

    random_init(&r, test_seed());
    CHECK_OK(rd_grad_open(1, &g, NULL));
    CHECK_OK(rd_grad_open(2, &f, NULL));
    for (int op = 0; op < N_OPS; op++) {
        const rd_array *in[N_IN], *in32[N_IN], *value, *grads[N_IN], *grads32[N_IN];
        double diff = 0, size = 0;

        for (int k = 0; k < N_IN; k++) {
            for (uint32_t i = 0; i < shapes[k][0] * shapes[k][1]; i++) values[k][i] = (float)uniform(&r);
            in[k] = make(g, RD_F64, shapes[k][0], shapes[k][1], values[k]);
            in32[k] = make(f, RD_F32, shapes[k][0], shapes[k][1], values[k]);
        }
        CHECK_OK(rd_grad_value(g, one_op_summed, &op, in, N_IN, &value, grads));
        CHECK_OK(rd_grad_value(f, one_op_summed, &op, in32, N_IN, &value, grads32));
        for (int k = 0; k < N_IN; k++)
            for (uint32_t i = 0; i < shapes[k][0] * shapes[k][1]; i++) {
                const double step = 1e-5, old = values[k][i];
                double y[2], want, got = at(grads[k], RD_F64, i);
                size_t mark = rd_grad_mark(g);

                for (int side = 0; side < 2; side++) {
                    const rd_array *changed[N_IN];

                    memcpy(changed, in, sizeof(changed));
                    values[k][i] = old + (side ? step : -step);
                    changed[k] = make(g, RD_F64, shapes[k][0], shapes[k][1], values[k]);
                    y[side] = at(one_op_summed(g, &op, changed, N_IN), RD_F64, 0);
                }
                values[k][i] = old;
                rd_grad_release(g, mark);
                want = (y[1] - y[0]) / (2 * step);
                if (fabs(got - want) > 1e-6 * fmax(1, fabs(want)))
                    test_note("op %d, input %d, number %u: %.9g, differences say %.9g", op, k, i, got, want);
                CHECK(fabs(got - want) <= 1e-6 * fmax(1, fabs(want)));
                diff += (at(grads32[k], RD_F32, i) - want) * (at(grads32[k], RD_F32, i) - want);
                size += want * want;
            }
        if (sqrt(diff / size) > worst_all) worst_all = sqrt(diff / size);
        CHECK(sqrt(diff / size) < 1e-4);
        rd_grad_release(g, 0);
        rd_grad_release(f, 0);
    }
    test_note("f32 gradients within %.1e", worst_all);
    rd_grad_close(g);
    rd_grad_close(f);
}

/* tests/golden/make_grad.py's numbers. */
TEST(gradients_of_every_op_are_those_of_torch)
{
    double worst = 0;
    int op, n_ops = 0;
    rd_grad *g;
    FILE *file = fopen(test_path("tests/golden/train/ops.ref"), "r");

    CHECK(file != NULL);
    CHECK_OK(rd_grad_open(2, &g, NULL));
    while (fscanf(file, "%d", &op) == 1) {
        const rd_array *in[N_IN], *value, *grads[N_IN];
        double values[ROWS * COLS] = {0}, diff = 0, size = 0, want;

        for (int k = 0; k < N_IN; k++) {
            for (uint32_t i = 0; i < shapes[k][0] * shapes[k][1]; i++) values[i] = (float)sin(0.9 * i + 1.7 * k + op);
            in[k] = make(g, RD_F32, shapes[k][0], shapes[k][1], values);
        }
        CHECK_OK(rd_grad_value(g, one_op_summed, &op, in, N_IN, &value, grads));
        for (int k = 0; k < 4; k++)
            for (uint32_t i = 0; i < shapes[k][0] * shapes[k][1]; i++) {
                CHECK(fscanf(file, "%lf", &want) == 1);
                diff += (at(grads[k], RD_F32, i) - want) * (at(grads[k], RD_F32, i) - want);
                size += want * want;
            }
        if (sqrt(diff / size) >= 1e-4) test_note("op %d: %.1e", op, sqrt(diff / size));
        CHECK(sqrt(diff / size) < 1e-4);
        worst = fmax(worst, sqrt(diff / size));
        n_ops++;
        rd_grad_release(g, 0);
    }
    CHECK_EQ(n_ops, N_OPS - 1); /* attention of windows and caps is held to differences alone */
    test_note("within %.1e", worst);
    rd_grad_close(g);
    fclose(file);
}

/* ---- random programs ---- */

struct program {
    uint32_t n;
    int op[12];
    int from[12][2]; /* which value each reads */
    bool checkpointed;
};

static struct program draw(struct random *r)
{
    static const int shaped[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 19, 21}; /* give [ROWS, COLS] */
    struct program p = {.n = 3 + (uint32_t)random_below(r, 8)};

    for (uint32_t i = 0; i < p.n; i++) {
        p.op[i] = shaped[random_below(r, sizeof(shaped) / sizeof(shaped[0]))];
        for (int k = 0; k < 2; k++) p.from[i][k] = (int)random_below(r, i + 2);
    }
    return p;
}

struct link {
    int op;
};
static const rd_array *one_link(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n)
{
    return rd_tanh(g, apply(g, ((const struct link *)arg)->op, in));
}

static const rd_array *run(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n)
{
    static struct link links[N_OPS];
    const struct program *p = arg;
    const rd_array *values[16] = {in[0], in[1]};

    for (int i = 0; i < N_OPS; i++) links[i].op = i;
    for (uint32_t i = 0; i < p->n; i++) {
        const rd_array *now[N_IN] = {values[p->from[i][0]], values[p->from[i][1]], in[2], in[3], in[4]};

        values[i + 2] = p->checkpointed && i % 3 != 2 ? rd_checkpoint(g, one_link, &links[p->op[i]], now, N_IN)
                                                      : one_link(g, &links[p->op[i]], now, N_IN);
    }
    return values[p->n + 1];
}

static const rd_array *run_number(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n)
{
    return rd_cross_entropy(g, run(g, arg, in, n), ids, weights);
}

TEST(forward_and_reverse_agree_on_a_thousand_random_programs)
{
    double values[ROWS * COLS], worst = 0;
    struct random r;
    rd_grad *g;

    random_init(&r, test_seed());
    CHECK_OK(rd_grad_open(1, &g, NULL));
    for (int i = 0; i < 1000; i++) {
        struct program p = draw(&r);
        enum rd_array_type t = i % 2 ? RD_F64 : RD_F32;
        const rd_array *in[N_IN], *along[N_IN], *value, *out, *cotangent, *grads[N_IN];
        double forward = 0, reverse = 0, size = 0;

        p.checkpointed = i % 4 >= 2;
        for (int k = 0; k < N_IN; k++) {
            uint32_t n = shapes[k][0] * shapes[k][1];

            for (uint32_t x = 0; x < n; x++) values[x] = uniform(&r);
            in[k] = make(g, t, shapes[k][0], shapes[k][1], values);
            for (uint32_t x = 0; x < n; x++) values[x] = uniform(&r);
            along[k] = make(g, t, shapes[k][0], shapes[k][1], values);
        }
        for (uint32_t x = 0; x < ROWS * COLS; x++) values[x] = uniform(&r);
        cotangent = make(g, t, ROWS, COLS, values);
        CHECK_OK(rd_jvp(g, run, &p, in, N_IN, along, &value, &out));
        CHECK_OK(rd_vjp(g, run, &p, in, N_IN, cotangent, &value, grads));
        for (uint32_t x = 0; x < ROWS * COLS; x++) {
            forward += at(out, t, x) * at(cotangent, t, x);
            size += fabs(at(out, t, x) * at(cotangent, t, x));
        }
        for (int k = 0; k < N_IN; k++)
            for (uint32_t x = 0; x < shapes[k][0] * shapes[k][1]; x++) {
                reverse += at(grads[k], t, x) * at(along[k], t, x);
                size += fabs(at(grads[k], t, x) * at(along[k], t, x));
            }
        if (size > 0) {
            double error = fabs(forward - reverse) / size;

            if (t == RD_F32 && error > worst) worst = error;
            CHECK(error < (t == RD_F64 ? 1e-12 : 1e-4));
        }
        rd_grad_release(g, 0);
    }
    test_note("f32 within %.1e", worst);
    rd_grad_close(g);
}

TEST(checkpoints_and_threads_change_no_bit)
{
    double values[N_IN][ROWS * COLS];
    struct random r;

    random_init(&r, test_seed());
    for (int i = 0; i < 100; i++) {
        struct program p = draw(&r);
        float want[1 + N_IN * ROWS * COLS], got[1 + N_IN * ROWS * COLS];

        for (int k = 0; k < N_IN; k++)
            for (uint32_t x = 0; x < ROWS * COLS; x++) values[k][x] = uniform(&r);
        for (uint32_t way = 0; way < 4; way++) {
            const rd_array *in[N_IN], *value, *grads[N_IN];
            float *to = way ? got : want;
            rd_grad *g;

            memset(to, 0, sizeof(want));
            p.checkpointed = way & 1;
            CHECK_OK(rd_grad_open(way & 2 ? 3 : 1, &g, NULL));
            for (int k = 0; k < N_IN; k++)
                in[k] = make(g, i % 2 ? RD_BF16 : RD_F32, shapes[k][0], shapes[k][1], values[k]);
            CHECK_OK(rd_grad_value(g, run_number, &p, in, N_IN, &value, grads));
            to[0] = (float)at(value, RD_F32, 0);
            for (int k = 0; k < N_IN; k++)
                memcpy(to + 1 + k * ROWS * COLS, rd_array_values(grads[k]),
                       shapes[k][0] * shapes[k][1] * sizeof(float));
            CHECK(memcmp(want, to, sizeof(want)) == 0);
            rd_grad_close(g);
        }
    }
}

static const rd_array *nested(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n)
{
    const rd_array *value, *grads[1];

    return rd_grad_value(g, one_op_summed, arg, in, 1, &value, grads) == RD_OK ? value : NULL;
}

TEST(what_cannot_be_is_refused_and_any_allocation_may_fail)
{
    struct program p = {.n = 4, .op = {19, 14, 3, 16}, .from = {{0, 1}, {2, 1}, {3, 0}, {4, 2}}, .checkpointed = true};
    double values[ROWS * COLS] = {0.5, -0.25, 1};
    int op = 10;
    bool done = false;
    struct rd_error err;
    rd_grad *g;

    CHECK_OK(rd_grad_open(1, &g, NULL));
    {
        const rd_array *a = make(g, RD_F32, ROWS, COLS, values), *b = make(g, RD_F64, ROWS, COLS, values);
        const rd_array *value, *grads[2], *in[2] = {a, b};

        CHECK(!rd_add(g, a, b) && rd_grad_error(g, &err) == RD_E_INVALID && strstr(err.text, "types"));
        CHECK(!rd_matmul(g, a, a) && rd_grad_error(g, &err) == RD_E_INVALID);
        CHECK(!rd_embed_rows(g, a, (int32_t[]){ROWS}, 1) && rd_grad_error(g, &err) == RD_E_INVALID);
        CHECK(!rd_cross_entropy(g, a, ids, (float[ROWS]){0}) && rd_grad_error(g, &err) == RD_E_INVALID);
        CHECK(!rd_add(g, NULL, a) && rd_grad_error(g, &err) == RD_OK);
        CHECK_EQ(rd_grad_value(g, one_op, &(int){6}, in, 1, &value, grads), RD_E_INVALID); /* no number */
        CHECK_OK(rd_grad_error(g, NULL) == RD_E_INVALID ? RD_OK : RD_E_INTERNAL);
        CHECK_EQ(rd_grad_value(g, nested, &op, in, 1, &value, grads), RD_E_INVALID);
    }
    for (int64_t i = 0; !done && i < 2000; i++) {
        const rd_array *in[N_IN], *value, *grads[N_IN];
        rd_status st = RD_OK;

        rd_grad_release(g, 0);
        for (int k = 0; k < N_IN; k++) in[k] = make(g, RD_F32, shapes[k][0], shapes[k][1], values);
        mem_fail_after(i);
        st = rd_grad_value(g, run_number, &p, in, N_IN, &value, grads);
        mem_fail_after(-1);
        done = st == RD_OK;
        CHECK(done || st == RD_E_NOMEM);
    }
    CHECK(done);
    rd_grad_close(g);
}
