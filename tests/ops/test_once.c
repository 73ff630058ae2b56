/* tests/ops/test_once.c - an op whose output is read once may be done with the op that follows: the same bits as both alone,
 * whatever comes between. On every backend that this build has and this machine can use. */
#include <string.h>
#include "backend/backend_registry.h"
#include "backend/compose.h"
#include "base/mem.h"
#include "base/random.h"
#include "sanitized.h"
#include "test.h"

enum { WIDTH = 896, FFN = 1216, MOST_ROWS = 300 };
enum how { APART, ONCE, INTERRUPTED };

struct layer_weights {
    struct weight norm, q, o, gate, up, down;
};
struct buffers {
    struct span x, norm, delta, q, gate, up, out;
};
struct result {
    float x[MOST_ROWS * WIDTH], norm[MOST_ROWS * WIDTH], out[MOST_ROWS * WIDTH];
};

static void load(const struct backend_entry *e, struct backend *be, struct random *r, enum dtype t, uint32_t n_out,
                 uint32_t n_in, struct weight *out)
{
    float *values = mem_alloc((size_t)n_out * n_in, sizeof(*values));
    uint16_t *halves = mem_alloc((size_t)n_out * n_in, sizeof(*halves));
    struct host_tensor host = {"w", t, n_out, n_in, t == DTYPE_F32 ? (const void *)values : halves, false, NULL, 0};

    for (size_t i = 0; i < (size_t)n_out * n_in; i++) {
        values[i] = ((float)random_unit(r) - 0.5f) * 0.2f;
        halves[i] = t == DTYPE_F16 ? float_to_half(values[i]) : float_to_bf16(values[i]);
    }
    CHECK_OK(e->ops->weights.load(be, &host, n_out == 1 ? WEIGHT_VECTOR : WEIGHT_MATRIX, out, NULL));
    CHECK_OK(backend_weights_done(e->ops, be, NULL));
    mem_free(values);
    mem_free(halves);
}

/* Something else between two ops: what is held back is launched for it. */
static void interrupt(const struct backend_entry *e, struct backend *be, enum how how, const struct buffers *b)
{
    float one = 0;

    if (how != INTERRUPTED) return;
    CHECK_OK(e->ops->memory.read(be, &one, b->x, sizeof(one)));
    CHECK_OK(e->ops->memory.sync(be));
}

static void product(const struct backend_entry *e, struct backend *be, const struct weight *w, struct span x,
                    uint32_t n_rows, struct span out, bool once)
{
    const struct linear_args a = {
        .n_rows = n_rows, .x = x, .x_stride = w->n_in, .n_outs = 1, .outs = {{w, NULL, out, w->n_out}}, .once = once};

    CHECK_OK(e->ops->op.linear(be, &a));
}

static void add_and_norm(const struct backend_entry *e, struct backend *be, const struct layer_weights *w,
                         const struct buffers *b, uint32_t n_rows, bool has_delta, bool once)
{
    const struct residual_norm_args a = {.n_rows = n_rows,
                                         .width = WIDTH,
                                         .x = b->x,
                                         .delta = has_delta ? b->delta : span_none(),
                                         .norm = &w->norm,
                                         .eps = 1e-6f,
                                         .out = b->norm,
                                         .once = once};

    CHECK_OK(e->ops->op.residual_norm(be, &a));
}

/* Two layers without attention. */
static void run(const struct backend_entry *e, struct backend *be, const struct layer_weights *w,
                const struct buffers *b, const float *x0, uint32_t n_rows, enum how how, struct result *out)
{
    const struct linear_glu_args glu = {n_rows,   b->norm, WIDTH, &w->gate, &w->up,
                                        ACT_SILU, b->gate, b->up, b->gate,  NULL};
    const uint64_t n_bytes = (uint64_t)n_rows * WIDTH * sizeof(float);
    const bool once = how != APART;

    CHECK_OK(e->ops->memory.write(be, b->x, x0, n_bytes));
    for (int layer = 0; layer < 2; layer++) {
        add_and_norm(e, be, w, b, n_rows, layer > 0, once);
        interrupt(e, be, how, b);
        product(e, be, &w->q, b->norm, n_rows, b->q, false);
        CHECK_OK(e->ops->op.glu(be, ACT_SILU, n_rows, WIDTH, b->q, b->q, b->q));
        product(e, be, &w->o, b->q, n_rows, b->delta, once);
        interrupt(e, be, how, b);
        add_and_norm(e, be, w, b, n_rows, true, once);
        interrupt(e, be, how, b);
        CHECK_OK(backend_linear_glu(e->ops, be, &glu));
        product(e, be, &w->down, b->gate, n_rows, b->delta, once);
        interrupt(e, be, how, b);
    }
    add_and_norm(e, be, w, b, n_rows, true, false);
    product(e, be, &w->q, b->norm, n_rows, b->out, false);
    CHECK_OK(e->ops->memory.read(be, out->x, b->x, n_bytes));
    CHECK_OK(e->ops->memory.read(be, out->norm, b->norm, n_bytes));
    CHECK_OK(e->ops->memory.read(be, out->out, b->out, n_bytes));
    CHECK_OK(e->ops->memory.sync(be));
}

static bool same(const struct result *a, const struct result *b, uint32_t n_rows)
{
    const size_t n_bytes = (size_t)n_rows * WIDTH * sizeof(float);

    return !memcmp(a->x, b->x, n_bytes) && !memcmp(a->norm, b->norm, n_bytes) && !memcmp(a->out, b->out, n_bytes);
}

static void check_type(const struct backend_entry *e, struct backend *be, struct random *r, enum dtype t)
{
    static const uint32_t rows[] = {1, 2, 8, 17, 64, 256, 257, MOST_ROWS};
    const size_t n_sizes = IS_EMULATED    ? 2
                           : IS_SANITIZED ? 4
                                          : sizeof(rows) / sizeof(rows[0]); /* more take minutes there */
    static struct result apart, once, interrupted;
    static float x0[MOST_ROWS * WIDTH];
    struct layer_weights w;
    struct weight *all[] = {&w.norm, &w.q, &w.o, &w.gate, &w.up, &w.down};
    const uint64_t n_bytes = (uint64_t)MOST_ROWS * FFN * sizeof(float);
    struct buffers b;
    struct buffer *memory[7];
    struct span *parts[] = {&b.x, &b.norm, &b.delta, &b.q, &b.gate, &b.up, &b.out};

    load(e, be, r, DTYPE_F32, 1, WIDTH, &w.norm);
    load(e, be, r, t, WIDTH, WIDTH, &w.q);
    load(e, be, r, t, WIDTH, WIDTH, &w.o);
    load(e, be, r, t, FFN, WIDTH, &w.gate);
    load(e, be, r, t, FFN, WIDTH, &w.up);
    load(e, be, r, t, WIDTH, FFN, &w.down);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        CHECK_OK(e->ops->memory.alloc(be, n_bytes, &memory[i]));
        *parts[i] = span_of(memory[i], 0);
    }
    for (size_t i = 0; i < MOST_ROWS * WIDTH; i++) x0[i] = (float)random_unit(r) * 2 - 1;
    for (size_t i = 0; i < n_sizes; i++) {
        run(e, be, &w, &b, x0, rows[i], APART, &apart);
        run(e, be, &w, &b, x0, rows[i], ONCE, &once);
        run(e, be, &w, &b, x0, rows[i], INTERRUPTED, &interrupted);
        if (!same(&apart, &once, rows[i]) || !same(&apart, &interrupted, rows[i]))
            test_fail(__FILE__, __LINE__, "%s, %s, %u rows: other bits than apart", e->name, dtype_name(t), rows[i]);
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) e->ops->memory.free(be, memory[i]);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) e->ops->weights.unload(be, all[i]);
}

TEST(what_is_read_once_has_the_bits_of_ops_apart)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    const struct backend_entry *e;
    struct random r;

    for (uint32_t i = 0; (e = backend_at(i)); i++) {
        const struct backend_options o = {.n_threads = 2};
        struct rd_error why = {RD_OK, ""};
        struct backend *be = NULL;

        if (!e->ops || e->ops->life.create(&o, &be, &why) != RD_OK) {
            test_note("%s: %s", e->name, e->ops ? why.text : "not in this build");
            continue;
        }
        random_init(&r, test_seed());
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) check_type(e, be, &r, types[t]);
        e->ops->life.destroy(be);
    }
}
