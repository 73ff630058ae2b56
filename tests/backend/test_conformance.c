/* tests/backend/test_conformance.c - what every backend must do, run for each that can be used here and for the example.
 *
 *     RADISH_CONFORMANCE=/path/libradish-mine.so build/tests/test_conformance      a shared object (several: with : between)
 *
 * Every op against loops of doubles over the weights as they are written, at odd sizes; where the backend says that it is
 * exact, also against itself: each row alone, and a prompt cut anywhere, give the same bits. Then whole tiny models, with
 * pages that leave the device and come back, against the CPU's reference kernels.
 *
 * Bounds: 2e-4 of the largest value for f32 and f16 weights, 3e-2 for quantised ones (backends may quantise activations).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "backend/backend_registry.h"
#include "backend/shared_object.h"
#include "base/mem.h"
#include "base/os_file.h"
#include "base/random.h"
#include "engine/executor.h"
#include "test.h"

enum { MOST_BACKENDS = 16, ROWS = 7, WIDTH = 96, OUT = 37, VOCAB = 53, MOST_VOCAB = 4096 };

struct place {
    const char *device;
    const struct backend_ops *ops;
    struct backend *be;
};

/* ---- which ---- */

static const char *devices[MOST_BACKENDS];
static uint32_t n_devices;

static void find_devices(void)
{
    static char listed[4096];
    const char *more = getenv("RADISH_CONFORMANCE");
    char *save = NULL;

    if (n_devices) return;
    for (uint32_t i = 0; backend_at(i); i++) {
        struct device_probe p = {0};

        backend_at(i)->about->probe(&p);
        if (backend_at(i)->ops && p.is_usable) devices[n_devices++] = backend_at(i)->name;
    }
    devices[n_devices++] = RADISH_PLAIN_BACKEND;
    snprintf(listed, sizeof(listed), "%s", more ? more : "");
    for (char *at = strtok_r(listed, ":", &save); at && n_devices < MOST_BACKENDS; at = strtok_r(NULL, ":", &save))
        devices[n_devices++] = at;
}

static struct place enter(const char *device)
{
    struct backend_options o = {.n_threads = 2};
    struct place p = {.device = device};
    struct rd_error err = {RD_OK, ""};

    if (backend_open(device, &o, &p.ops, &p.be, &err) != RD_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", device, err.text);
        abort();
    }
    return p;
}

static void each(void (*run)(struct place *p))
{
    find_devices();
    for (uint32_t i = 0; i < n_devices; i++) {
        struct place p = enter(devices[i]);

        run(&p);
        p.ops->life.destroy(p.be);
    }
}

/* ---- numbers there and back ---- */

static float pattern(struct random *r)
{
    return (float)(random_unit(r) * 2 - 1);
}

static void fill(struct random *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = pattern(r);
}

static void must(const struct place *p, const char *what, rd_status st)
{
    if (st == RD_OK) return;
    test_fail(__FILE__, __LINE__, "%s: %s: %s", p->device, what, rd_status_name(st));
    abort();
}

static struct span put(struct place *p, const void *x, uint64_t n_bytes, uint64_t cap_bytes)
{
    struct buffer *b = NULL;

    must(p, "alloc", p->ops->memory.alloc(p->be, cap_bytes, &b));
    if (x) must(p, "write", p->ops->memory.write(p->be, span_of(b, 0), x, n_bytes));
    must(p, "sync", p->ops->memory.sync(p->be));
    return span_of(b, 0);
}

static void get(struct place *p, void *x, struct span s, uint64_t n_bytes)
{
    CHECK_OK(p->ops->memory.read(p->be, x, s, n_bytes));
    CHECK_OK(p->ops->memory.sync(p->be));
}

static void drop(struct place *p, struct span s)
{
    p->ops->memory.free(p->be, s.buffer);
}

static void near(const struct place *p, const char *what, const float *got, const double *want, size_t n, double bound)
{
    double most = 1e-6;

    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        if (fabs(got[i] - want[i]) <= bound * most) continue; /* NaN is not */
        test_fail(__FILE__, __LINE__, "%s, %s: value %zu is %g, expected %g (within %g)", p->device, what, i,
                  (double)got[i], want[i], bound * most);
        return;
    }
}

static void same(const struct place *p, const char *what, const float *a, const float *b, size_t n)
{
    if (memcmp(a, b, n * sizeof(*a)) != 0)
        test_fail(__FILE__, __LINE__, "%s says that it is exact, but %s has other bits", p->device, what);
}

static struct weight load(struct place *p, enum weight_role role, enum dtype t, uint32_t n_out, uint32_t n_in,
                          const void *data)
{
    const struct host_tensor host = {"test", t, n_out, n_in, data, true, NULL, 0};
    struct rd_error err = {RD_OK, ""};
    struct weight w = {0};

    if (p->ops->weights.load(p->be, &host, role, &w, &err) != RD_OK || !w.data)
        test_fail(__FILE__, __LINE__, "%s: %s weights: %s", p->device, dtype_name(t), err.text);
    if (p->ops->weights.done) must(p, "weights.done", p->ops->weights.done(p->be, &err));
    return w;
}

static struct weight vector(struct place *p, const float *x, uint32_t n)
{
    return load(p, WEIGHT_VECTOR, DTYPE_F32, 1, n, x);
}

static void unload(struct place *p, struct weight *w)
{
    p->ops->weights.unload(p->be, w);
}

/* ---- memory ---- */

static void memory_keeps(struct place *p)
{
    uint8_t a[513], b[513];
    struct span s;

    for (size_t i = 0; i < sizeof(a); i++) a[i] = (uint8_t)(i * 7);
    s = put(p, a, sizeof(a), sizeof(a));
    get(p, b, s, sizeof(b));
    CHECK(memcmp(a, b, sizeof(a)) == 0);
    CHECK_OK(p->ops->memory.write(p->be, span_of(s.buffer, 128), a, 64));
    get(p, b, span_of(s.buffer, 128), 65);
    CHECK(memcmp(a, b, 64) == 0 && b[64] == a[192]);
    drop(p, s);
    p->ops->memory.free(p->be, NULL);
}

TEST(memory_gives_back_what_was_written)
{
    each(memory_keeps);
}

/* ---- rows ---- */

static void rows_are_right(struct place *p)
{
    static float x[ROWS * WIDTH], delta[ROWS * WIDTH], norm[WIDTH], got[ROWS * WIDTH], one[ROWS * WIDTH],
        x2[ROWS * WIDTH];
    static double want[ROWS * WIDTH], wx[ROWS * WIDTH];
    const uint32_t bytes = sizeof(x), row = WIDTH * sizeof(float);
    struct span sx, sd, so, sg;
    struct weight wn;
    struct random r;

    random_init(&r, 5);
    fill(&r, x, ROWS * WIDTH);
    fill(&r, delta, ROWS * WIDTH);
    fill(&r, norm, WIDTH);
    wn = vector(p, norm, WIDTH);
    for (int kind = 0; kind < 3; kind++) { /* alone, with delta, with a normed delta */
        struct residual_norm_args a = {.n_rows = ROWS, .width = WIDTH, .norm = &wn, .eps = 1e-5f};

        for (int i = 0; i < ROWS; i++) {
            double sum = 0, dsum = 0;

            for (int j = 0; j < WIDTH; j++) dsum += (double)delta[i * WIDTH + j] * delta[i * WIDTH + j];
            for (int j = 0; j < WIDTH; j++) {
                double d = kind == 0 ? 0 : delta[i * WIDTH + j];

                if (kind == 2) d *= norm[j] / sqrt(dsum / WIDTH + 1e-5);
                wx[i * WIDTH + j] = x[i * WIDTH + j] + d;
                sum += wx[i * WIDTH + j] * wx[i * WIDTH + j];
            }
            for (int j = 0; j < WIDTH; j++)
                want[i * WIDTH + j] = wx[i * WIDTH + j] / sqrt(sum / WIDTH + 1e-5) * norm[j];
        }
        a.x = sx = put(p, x, bytes, bytes);
        sd = put(p, delta, bytes, bytes);
        a.out = so = put(p, NULL, 0, bytes);
        if (kind) a.delta = sd;
        if (kind == 2) a.delta_norm = &wn;
        CHECK_OK(p->ops->op.residual_norm(p->be, &a));
        get(p, got, so, bytes);
        near(p, "residual_norm", got, want, ROWS * WIDTH, 2e-4);
        get(p, x2, sx, bytes);
        near(p, "residual_norm's x", x2, wx, ROWS * WIDTH, 2e-4);
        CHECK_OK(p->ops->memory.write(p->be, sx, x, bytes));
        CHECK_OK(p->ops->memory.write(p->be, sd, delta, bytes));
        a.n_rows = 1;
        for (uint32_t i = ROWS; i-- > 0;) {
            a.x.at = sx.at + (uint64_t)i * row;
            a.out.at = so.at + (uint64_t)i * row;
            if (kind) a.delta.at = sd.at + (uint64_t)i * row;
            CHECK_OK(p->ops->op.residual_norm(p->be, &a));
        }
        get(p, one, so, bytes);
        if (!p->ops->traits.is_inexact) same(p, "residual_norm of one row", got, one, ROWS * WIDTH);
        drop(p, sx), drop(p, sd), drop(p, so);
    }
    unload(p, &wn);

    sx = put(p, x, bytes, bytes);
    sd = put(p, delta, bytes, bytes);
    sg = put(p, NULL, 0, bytes);
    for (int act = ACT_SILU; act <= ACT_GELU_TANH; act++) {
        CHECK_OK(p->ops->op.glu(p->be, (enum activation)act, ROWS, WIDTH, sx, sd, sg));
        for (int i = 0; i < ROWS * WIDTH; i++) {
            double g = x[i], f = act == ACT_SILU
                                     ? g / (1 + exp(-g))
                                     : 0.5 * g * (1 + tanh(0.79788456080286536 * (g + 0.044715 * g * g * g)));

            want[i] = f * delta[i];
        }
        get(p, got, sg, bytes);
        near(p, "glu", got, want, ROWS * WIDTH, 2e-4);
    }
    CHECK_OK(p->ops->op.gather(p->be, 3, WIDTH, sx, (const uint32_t[]){5, 0, 5}, sg));
    get(p, got, sg, 3 * row);
    CHECK(memcmp(got, x + 5 * WIDTH, row) == 0 && memcmp(got + WIDTH, x, row) == 0 &&
          memcmp(got + 2 * WIDTH, x + 5 * WIDTH, row) == 0);
    if (p->ops->op.softcap) {
        CHECK_OK(p->ops->op.softcap(p->be, sx, ROWS * WIDTH, 0.5f));
        for (int i = 0; i < ROWS * WIDTH; i++) want[i] = 0.5 * tanh(x[i] / 0.5);
        get(p, got, sx, bytes);
        near(p, "softcap", got, want, ROWS * WIDTH, 2e-4);
    }
    drop(p, sx), drop(p, sd), drop(p, sg);
}

TEST(rows_are_computed_right_and_alone)
{
    each(rows_are_right);
}

/* ---- matrices ---- */

/* Weights of a type whose values anybody can read: random bytes with scales that are numbers. */
static void make_weights(struct random *r, enum dtype t, uint8_t *to, float *as_float, uint64_t n)
{
    const uint32_t per = dtype_block_weights(t), bytes = dtype_block_bytes(t);

    for (uint64_t i = 0; i < n / per; i++, to += bytes, as_float += per)
        for (bool good = false; !good;) {
            for (uint32_t k = 0; k < bytes; k++) to[k] = (uint8_t)random_below(r, 256);
            if (t == DTYPE_F32) memcpy(to, &(float){pattern(r)}, 4);
            dtype_to_float(t, to, as_float, per);
            good = true;
            for (uint32_t k = 0; k < per; k++) good &= isfinite(as_float[k]) && fabsf(as_float[k]) < 4;
        }
}

static void linear_of(struct place *p, enum dtype t)
{
    enum { IN = 512 };
    static uint8_t data[OUT * IN * 4];
    static float w[OUT * IN], x[ROWS * IN], bias[OUT], got[ROWS * OUT], one[ROWS * OUT];
    static double want[ROWS * OUT];
    struct linear_args a = {.n_rows = ROWS, .x_stride = IN, .n_outs = 1};
    struct weight m, b;
    struct random r;
    char what[64];

    random_init(&r, 11 + (uint64_t)t);
    make_weights(&r, t, data, w, (uint64_t)OUT * IN);
    fill(&r, x, ROWS * IN);
    fill(&r, bias, OUT);
    for (int i = 0; i < ROWS; i++)
        for (int o = 0; o < OUT; o++) {
            want[i * OUT + o] = bias[o];
            for (int k = 0; k < IN; k++) want[i * OUT + o] += (double)x[i * IN + k] * w[o * IN + k];
        }
    m = load(p, WEIGHT_MATRIX, t, OUT, IN, data);
    b = vector(p, bias, OUT);
    a.x = put(p, x, sizeof(x), sizeof(x));
    a.outs[0] = (struct linear_out){&m, &b, put(p, NULL, 0, sizeof(got)), OUT};
    CHECK_OK(p->ops->op.linear(p->be, &a));
    get(p, got, a.outs[0].out, sizeof(got));
    snprintf(what, sizeof(what), "linear of %s", dtype_name(t));
    near(p, what, got, want, ROWS * OUT, t == DTYPE_F32 || t == DTYPE_F16 ? 2e-4 : t == DTYPE_BF16 ? 1e-2 : 3e-2);
    for (uint32_t i = 0; i < ROWS; i++) {
        struct linear_args of_one = a;

        of_one.n_rows = 1;
        of_one.x.at += (uint64_t)i * IN * sizeof(float);
        of_one.outs[0].out.at += (uint64_t)i * OUT * sizeof(float);
        CHECK_OK(p->ops->op.linear(p->be, &of_one));
    }
    get(p, one, a.outs[0].out, sizeof(one));
    if (!p->ops->traits.is_inexact) same(p, what, got, one, ROWS * OUT);
    drop(p, a.x), drop(p, a.outs[0].out);
    unload(p, &m), unload(p, &b);
}

static void matrices_are_right(struct place *p)
{
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0,
                                       DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K,
                                       DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
    static uint8_t data[VOCAB * WIDTH * 4];
    static float w[VOCAB * WIDTH], got[3 * WIDTH];
    static double want[3 * WIDTH];
    const int32_t tokens[3] = {52, 0, 17};
    struct random r;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) linear_of(p, types[i]);
    random_init(&r, 3);
    for (int t = 0; t < 3; t++) {
        const enum dtype type = t == 0 ? DTYPE_F32 : t == 1 ? DTYPE_F16 : DTYPE_Q8_0;
        struct weight e;
        struct span out;

        make_weights(&r, type, data, w, VOCAB * WIDTH);
        e = load(p, WEIGHT_EMBED, type, VOCAB, WIDTH, data);
        out = put(p, NULL, 0, sizeof(got));
        CHECK_OK(p->ops->op.embed(p->be, &e, 3, tokens, 2.5f, out));
        get(p, got, out, sizeof(got));
        for (int i = 0; i < 3 * WIDTH; i++) want[i] = 2.5 * w[tokens[i / WIDTH] * WIDTH + i % WIDTH];
        near(p, "embed", got, want, 3 * WIDTH, 2e-4);
        drop(p, out);
        unload(p, &e);
    }
}

TEST(matrices_of_every_type_are_computed_right_and_row_by_row)
{
    each(matrices_are_right);
}

/* ---- keys, values and attention ---- */

enum { HEADS = 4, KV_HEADS = 2, DIM = 64, LAYERS = 2, PER_PAGE = 8, N_TOKENS = 21, PAGES = 12 };

struct sequence {
    float q[N_TOKENS * HEADS * DIM], k[N_TOKENS * KV_HEADS * DIM], v[N_TOKENS * KV_HEADS * DIM];
    float q_norm[DIM], inv_freq[DIM / 2], out[N_TOKENS * HEADS * DIM];
};

/* Layer 1 of the sequence in chunks that end where cuts says; its pages are 3, 9, 1. */
static void attend(struct place *p, struct kv_storage *kv, struct sequence *s, const uint32_t *cuts, uint32_t n_cuts,
                   uint32_t window, float softcap)
{
    static const kv_page table[] = {3, 9, 1};
    const uint64_t qb = HEADS * DIM * sizeof(float), kb = KV_HEADS * DIM * sizeof(float);
    struct weight norm = vector(p, s->q_norm, DIM), freq = vector(p, s->inv_freq, DIM / 2);
    uint32_t positions[N_TOKENS], slots[N_TOKENS];
    kv_page pages[N_TOKENS];

    for (uint32_t c = 0, from = 0; c < n_cuts; from = cuts[c++]) {
        const uint32_t n = cuts[c] - from;
        const struct seq_run run = {.row0 = 0, .n_rows = n, .pos0 = from, .block_table = table};
        struct qkv_args w = {.n_rows = n,
                             .layer = 1,
                             .n_heads = HEADS,
                             .n_kv_heads = KV_HEADS,
                             .head_dim = DIM,
                             .q_stride = HEADS * DIM,
                             .k_stride = KV_HEADS * DIM,
                             .v_stride = KV_HEADS * DIM,
                             .q_norm = &norm,
                             .k_norm = &norm,
                             .norm_eps = 1e-6f,
                             .positions = positions,
                             .inv_freq = &freq,
                             .n_rot = DIM,
                             .rope_mscale = 1,
                             .layout = ROPE_HALF_SPLIT,
                             .row_page = pages,
                             .row_slot = slots,
                             .kv = kv};
        struct attention_args a = {.n_rows = n,
                                   .layer = 1,
                                   .n_heads = HEADS,
                                   .n_kv_heads = KV_HEADS,
                                   .head_dim = DIM,
                                   .q_stride = HEADS * DIM,
                                   .out_stride = HEADS * DIM,
                                   .layout = ROPE_HALF_SPLIT,
                                   .n_rot = DIM,
                                   .scale = 0.125f,
                                   .softcap = softcap,
                                   .window = window,
                                   .n_runs = 1,
                                   .runs = &run,
                                   .kv = kv};

        for (uint32_t i = 0; i < n; i++) {
            positions[i] = from + i;
            pages[i] = table[(from + i) / PER_PAGE];
            slots[i] = (from + i) % PER_PAGE;
        }
        w.q = a.q = put(p, s->q + from * HEADS * DIM, n * qb, n * qb);
        w.k = put(p, s->k + from * KV_HEADS * DIM, n * kb, n * kb);
        w.v = put(p, s->v + from * KV_HEADS * DIM, n * kb, n * kb);
        a.out = put(p, NULL, 0, n * qb);
        CHECK_OK(p->ops->op.qkv_rope_write(p->be, &w));
        CHECK_OK(p->ops->op.attention(p->be, &a));
        get(p, s->out + from * HEADS * DIM, a.out, n * qb);
        drop(p, w.q), drop(p, w.k), drop(p, w.v), drop(p, a.out);
    }
    unload(p, &norm), unload(p, &freq);
}

static void turn(const struct sequence *s, const float *x, uint32_t pos, double *out)
{
    double sum = 0;

    for (int i = 0; i < DIM; i++) sum += (double)x[i] * x[i];
    for (int i = 0; i < DIM; i++) out[i] = x[i] / sqrt(sum / DIM + 1e-6) * s->q_norm[i];
    for (int i = 0; i < DIM / 2; i++) {
        double c = cos(pos * (double)s->inv_freq[i]), n = sin(pos * (double)s->inv_freq[i]), u = out[i],
               v = out[i + DIM / 2];

        out[i] = u * c - v * n;
        out[i + DIM / 2] = u * n + v * c;
    }
}

static void expect(const struct sequence *s, uint32_t window, double softcap, double *out)
{
    static double k[N_TOKENS][DIM], q[DIM];

    for (uint32_t h = 0; h < HEADS; h++) {
        const uint32_t kh = h / (HEADS / KV_HEADS);

        for (uint32_t t = 0; t < N_TOKENS; t++) turn(s, s->k + (t * KV_HEADS + kh) * DIM, t, k[t]);
        for (uint32_t t = 0; t < N_TOKENS; t++) {
            double total = 0, *to = out + (t * HEADS + h) * DIM;

            turn(s, s->q + (t * HEADS + h) * DIM, t, q);
            memset(to, 0, DIM * sizeof(*to));
            for (uint32_t u = window && t + 1 > window ? t + 1 - window : 0; u <= t; u++) {
                double score = 0;

                for (int i = 0; i < DIM; i++) score += q[i] * k[u][i];
                score *= 0.125;
                if (softcap > 0) score = softcap * tanh(score / softcap);
                total += exp(score);
                for (int i = 0; i < DIM; i++) to[i] += exp(score) * s->v[(u * KV_HEADS + kh) * DIM + i];
            }
            for (int i = 0; i < DIM; i++) to[i] /= total;
        }
    }
}

static bool stores(const struct place *p, enum dtype t)
{
    return p->ops->traits.kv_types == 0 || (p->ops->traits.kv_types >> (unsigned)t & 1);
}

static void attention_of(struct place *p, enum dtype t)
{
    static const uint32_t whole[] = {N_TOKENS}, parts[] = {1, 2, 8, 13, 20, N_TOKENS};
    static const struct {
        uint32_t window;
        float softcap;
    } kinds[] = {{0, 0}, {5, 0}, {0, 2}};
    static struct sequence s, cut;
    static double want[N_TOKENS * HEADS * DIM];
    const struct kv_layout layout = {.n_layers = LAYERS,
                                     .n_kv_heads = KV_HEADS,
                                     .head_dim = DIM,
                                     .page_tokens = PER_PAGE,
                                     .dtype_k = t,
                                     .dtype_v = t};
    struct kv_storage kv = {0};
    struct random r;
    uint8_t *a, *b;

    CHECK_OK(p->ops->pages.create(p->be, &layout, PAGES, &kv));
    CHECK_EQ(kv.page_bytes, kv_page_bytes(&layout));
    random_init(&r, 23);
    fill(&r, s.q, N_TOKENS * HEADS * DIM);
    fill(&r, s.k, N_TOKENS * KV_HEADS * DIM);
    fill(&r, s.v, N_TOKENS * KV_HEADS * DIM);
    for (int i = 0; i < DIM; i++) s.q_norm[i] = 1 + pattern(&r) / 4;
    for (int i = 0; i < DIM / 2; i++) s.inv_freq[i] = powf(10000, -2.0f * (float)i / DIM);
    for (int i = 0; i < 3; i++) {
        cut = s;
        attend(p, &kv, &s, whole, 1, kinds[i].window, kinds[i].softcap);
        expect(&s, kinds[i].window, kinds[i].softcap, want);
        near(p, "attention", s.out, want, N_TOKENS * HEADS * DIM, t == DTYPE_F32 ? 2e-4 : t == DTYPE_F16 ? 2e-3 : 1e-2);
        attend(p, &kv, &cut, parts, 6, kinds[i].window, kinds[i].softcap);
        if (!p->ops->traits.is_inexact)
            same(p, "attention of a prompt in chunks", s.out, cut.out, N_TOKENS * HEADS * DIM);
    }

    /* pages leave, come back, and are copied row by row */
    a = mem_zalloc(3, kv.page_bytes);
    b = a + kv.page_bytes;
    CHECK_OK(p->ops->pages.read(p->be, &kv, a, 3));
    CHECK_OK(p->ops->pages.write(p->be, &kv, 5, a));
    CHECK_OK(p->ops->pages.read(p->be, &kv, b, 5));
    CHECK_OK(p->ops->memory.sync(p->be));
    CHECK(memcmp(a, b, kv.page_bytes) == 0);
    memset(b, 0, kv.page_bytes);
    CHECK_OK(p->ops->pages.write(p->be, &kv, 7, b));
    CHECK_OK(p->ops->pages.copy_rows(p->be, &kv, 7, 3, 3));
    CHECK_OK(p->ops->pages.read(p->be, &kv, b, 7));
    CHECK_OK(p->ops->memory.sync(p->be));
    for (uint32_t head = 0; head < LAYERS * 2 * KV_HEADS; head++) {
        const uint64_t row = kv_type_row_bytes(t, DIM), at = head * PER_PAGE * row;

        CHECK(memcmp(a + at, b + at, 3 * row) == 0);
        for (uint64_t i = 3 * row; i < PER_PAGE * row; i++)
            if (b[at + i]) {
                test_fail(__FILE__, __LINE__, "%s: copy_rows of 3 rows has written more", p->device);
                break;
            }
    }
    mem_free(a);
    p->ops->pages.destroy(p->be, &kv);
}

static void attention_is_right(struct place *p)
{
    const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

    for (int i = 0; i < 3; i++)
        if (stores(p, types[i])) attention_of(p, types[i]);
}

TEST(attention_reads_the_pages_right_and_however_a_prompt_is_cut)
{
    each(attention_is_right);
}

/* ---- whole models ---- */

static void logits_of(const char *file, const char *device, const char *isa, uint32_t first, enum dtype kv,
                      float *logits, uint32_t *n_vocab)
{
    enum { N = 9 };
    int32_t tokens[N] = {1, 5, 9, 2, 7, 3, 11, 4, 6};
    uint32_t positions[N], slots[N], row0 = 0;
    kv_page pages[N], table[N];
    struct executor_options o = {.device = device,
                                 .isa = isa,
                                 .n_threads = 2,
                                 .max_running = 2,
                                 .max_chunk = 16,
                                 .page_tokens = PER_PAGE,
                                 .dtype_k = kv,
                                 .dtype_v = kv,
                                 .kv_tokens = 64,
                                 .whole_pages = true};
    struct executor_traits t;
    struct executor *x = NULL;
    struct rd_error err = {RD_OK, ""};
    struct model_file *f = NULL;
    void *page;

    CHECK_OK(model_file_open(test_path(file), model_hub_families(), &f, &err));
    o.file = f;
    if (executor_open(&o, &x, &t, &err) != RD_OK) {
        test_fail(__FILE__, __LINE__, "%s on %s: %s", file, device, err.text);
        abort();
    }
    page = mem_alloc(1, x->page_bytes);
    for (uint32_t i = 0; i < N; i++) {
        positions[i] = i;
        slots[i] = i % PER_PAGE;
        pages[i] = table[i / PER_PAGE] = i / PER_PAGE;
    }
    for (uint32_t from = 0, to = first; from < N; from = to, to = N) {
        struct seq_run run = {.row0 = 0, .n_rows = to - from, .pos0 = from, .block_table = table};
        struct model_batch b = {.n_rows = to - from,
                                .tokens = tokens + from,
                                .positions = positions + from,
                                .row_page = pages + from,
                                .row_slot = slots + from,
                                .n_runs = 1,
                                .runs = &run,
                                .n_logits = 1,
                                .logit_rows = &row0};

        row0 = to - from - 1;
        CHECK_OK(x->forward(x->self, &b, logits));
        CHECK_OK(x->page_out(x->self, 0, page));
        CHECK_OK(x->page_in(x->self, 3, page));
        table[0] = 3; /* the page went away and came back elsewhere */
        for (uint32_t i = 0; i < PER_PAGE && i < N; i++) pages[i] = 3;
    }
    *n_vocab = x->n_vocab;
    mem_free(page);
    executor_close(x);
    model_file_close(f);
}

TEST(tiny_models_give_the_reference_logits)
{
    static const char *const files[] = {"tests/golden/llama/tiny-llama.gguf", "tests/golden/qwen2/tiny-qwen2.gguf",
                                        "tests/golden/qwen3/tiny-qwen3.gguf", "tests/golden/gemma3/tiny-gemma3.gguf",
                                        "tests/golden/gemma2/tiny-gemma2.gguf"};
    static float want[MOST_VOCAB], got[MOST_VOCAB], cut[MOST_VOCAB];
    static double reference[MOST_VOCAB];
    uint32_t n = 0, m = 0;

    find_devices();
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        logits_of(files[f], "cpu", "ref", 9, DTYPE_F32, want, &n);
        CHECK(n > 0 && n <= MOST_VOCAB);
        for (uint32_t i = 0; i < n; i++) reference[i] = want[i];
        for (uint32_t d = 0; d < n_devices; d++) {
            struct place p = enter(devices[d]);
            const enum dtype kv = stores(&p, DTYPE_F32) ? DTYPE_F32 : stores(&p, DTYPE_F16) ? DTYPE_F16 : DTYPE_BF16;

            if (strstr(files[f], "gemma2") && !p.ops->op.softcap) {
                test_note("%s has no soft caps: %s is not asked of it", devices[d], files[f]);
                p.ops->life.destroy(p.be);
                continue;
            }
            logits_of(files[f], devices[d], NULL, 9, kv, got, &m);
            CHECK_EQ(n, m);
            near(&p, files[f], got, reference, n, 1e-2);
            logits_of(files[f], devices[d], NULL, 4, kv, cut, &m);
            if (!p.ops->traits.is_inexact) same(&p, files[f], got, cut, n);
            p.ops->life.destroy(p.be);
        }
    }
}

/* ---- what a registry says ---- */

TEST(a_shared_object_says_who_it_is)
{
    struct shared_object_about about;
    struct rd_error err = {RD_OK, ""};

    CHECK_OK(shared_object_about(RADISH_PLAIN_BACKEND, &about, &err));
    CHECK_STR(about.name, "plain");
    CHECK(about.exact && about.is_usable && about.has_softcap && about.why[0]);
}

TEST(objects_that_do_not_fit_are_refused_by_what_is_wrong)
{
    static const struct {
        const char *file, *word;
    } bad[] = {{"nothing", "exports no rd_backend_library"},
               {"magic", "begins with"},
               {"abi", "made for version 77"},
               {"short", "at least"},
               {"name", "small letters"},
               {"types", "weight_types lacks F32"},
               {"kv", "kv_types"},
               {"op", "no function attention"},
               {"probe", "no such card"},
               {"create", "out of order"}};
    struct backend_options o = {.n_threads = 1};
    const struct backend_ops *ops = NULL;
    struct backend *be = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct rd_error err = {RD_OK, ""};
        char path[1024];

        snprintf(path, sizeof(path), "%s/bad_%s.so", RADISH_BAD_BACKENDS, bad[i].file);
        CHECK_EQ(backend_open(path, &o, &ops, &be, &err),
                 strcmp(bad[i].file, "create") == 0 ? RD_E_DEVICE : RD_E_UNSUPPORTED);
        CHECK(ops == NULL && be == NULL);
        if (!strstr(err.text, bad[i].word)) test_fail(__FILE__, __LINE__, "bad_%s: %s", bad[i].file, err.text);
    }
}

TEST(what_is_no_shared_object_is_refused)
{
    struct backend_options o = {.n_threads = 1};
    const struct backend_ops *ops = NULL;
    struct rd_error err = {RD_OK, ""};
    struct backend *be = NULL;

    CHECK_EQ(backend_open("/nowhere/lib.so", &o, &ops, &be, &err), RD_E_NOT_FOUND);
    CHECK_EQ(backend_open("./", &o, &ops, &be, &err), RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, "not a file") != NULL);
    CHECK_EQ(backend_open(test_path("README.md"), &o, &ops, &be, &err), RD_E_UNSUPPORTED);
    CHECK(ops == NULL && be == NULL);
}

/* The system's loader maps what is not there, and who touches it gets SIGBUS. */
TEST(a_shared_object_that_is_cut_short_is_refused_at_every_length)
{
    enum { PARTS = 32 };
    const struct backend_options o = {.n_threads = 1};
    const size_t end = (size_t)os_object_end(RADISH_PLAIN_BACKEND);
    FILE *whole = fopen(RADISH_PLAIN_BACKEND, "rb");
    uint8_t *bytes = mem_alloc(end + 1, 1);
    char path[] = "/tmp/radish-cut-XXXXXX";
    const int fd = mkstemp(path);

    CHECK(whole && bytes && fd >= 0 && fread(bytes, 1, end, whole) == end);
    for (size_t part = 0; part < PARTS && end; part++) {
        const size_t from = end * part / PARTS, to = end * (part + 1) / PARTS - 1;
        const struct backend_ops *ops = NULL;
        struct rd_error err = {RD_OK, ""};
        struct backend *be = NULL;

        CHECK_EQ(pwrite(fd, bytes + from, to - from, (off_t)from), (ssize_t)(to - from));
        CHECK_EQ(backend_open(path, &o, &ops, &be, &err), RD_E_UNSUPPORTED);
        CHECK(ops == NULL && be == NULL && err.text[0]);
        if (part == PARTS - 1) CHECK(strstr(err.text, "cut short") != NULL);
        CHECK_EQ(pwrite(fd, bytes + to, 1, (off_t)to), 1);
    }
    close(fd);
    unlink(path);
    fclose(whole);
    mem_free(bytes);
}

TEST(keys_that_a_backend_does_not_store_are_refused_by_their_name)
{
    struct executor_options o = {.device = RADISH_PLAIN_BACKEND,
                                 .n_threads = 1,
                                 .max_running = 1,
                                 .max_chunk = 8,
                                 .page_tokens = 8,
                                 .dtype_k = DTYPE_Q8_0,
                                 .dtype_v = DTYPE_Q8_0,
                                 .kv_tokens = 64};
    struct executor *x = NULL;
    struct executor_traits t;
    struct rd_error err = {RD_OK, ""};
    struct model_file *f = NULL;

    CHECK_OK(model_file_open(test_path("tests/golden/llama/tiny-llama.gguf"), model_hub_families(), &f, &err));
    o.file = f;
    CHECK_EQ(executor_open(&o, &x, &t, &err), RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, "Q8_0") && strstr(err.text, "--kv-type f16"));
    o.dtype_k = o.dtype_v = DTYPE_F16;
    CHECK_OK(executor_open(&o, &x, &t, &err));
    CHECK(t.device.build != 0 && strncmp(t.computes, "plain ", 6) == 0); /* stored pages name the file */
    executor_close(x);
    model_file_close(f);
}

TEST(a_failing_allocation_leaves_nothing_behind)
{
    struct backend_options o = {.n_threads = 1};
    const struct backend_ops *ops = NULL;
    struct backend *be = NULL;
    uint64_t alive;
    rd_status st = RD_E_NOMEM;

    CHECK_OK(backend_open(RADISH_PLAIN_BACKEND, &o, &ops, &be, NULL));
    ops->life.destroy(be);
    alive = mem_n_alive();
    for (int i = 0; st != RD_OK && i < 100; i++) {
        mem_fail_after(i);
        st = backend_open(RADISH_PLAIN_BACKEND, &o, &ops, &be, NULL);
        mem_fail_after(-1);
        if (st == RD_OK) ops->life.destroy(be);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_OK(st);
}
