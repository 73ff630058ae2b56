/* tests/ops/test_linear.c - linear on the CPU: every type, variant, batch size and thread count gives the reference's
 * bits. */
#include "backend/backend.h"
#include <math.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/linear_soon.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,
                                   DTYPE_Q8_0, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

struct fixture {
    struct host_tensor t;
    void *data;  /* random blocks with sane scales */
    float *x;    /* [n_rows, x_stride] */
    float *bias; /* [n_out] */
    uint32_t n_rows, x_stride, out_stride;
};

static float uniform(struct random *rng)
{
    return (float)(random_unit(rng) * 2 - 1);
}

static void put_half(uint8_t *p, float v)
{
    uint16_t h = float_to_half(v);

    memcpy(p, &h, sizeof(h));
}

/* Where the f16 scales of a block lie: d, and the minimum's or -1. */
static void scale_places(enum dtype t, int *d, int *m)
{
    *d = t == DTYPE_Q2_K ? 80 : t == DTYPE_Q3_K ? 108 : t == DTYPE_Q6_K ? 208 : 0;
    *m = t == DTYPE_Q2_K ? 82 : t == DTYPE_Q4_1 || t == DTYPE_Q5_1 || t == DTYPE_Q4_K || t == DTYPE_Q5_K ? 2 : -1;
}

static void fill_weights(struct random *rng, enum dtype type, uint8_t *data, uint64_t n_blocks)
{
    uint32_t bytes = dtype_block_bytes(type);
    int d, m;

    scale_places(type, &d, &m);
    for (uint64_t b = 0; b < n_blocks; b++, data += bytes) {
        float v = uniform(rng);
        uint16_t h;

        if (type == DTYPE_F32) {
            memcpy(data, &v, 4);
        } else if (type == DTYPE_F16 || type == DTYPE_BF16) {
            h = type == DTYPE_F16 ? float_to_half(v) : float_to_bf16(v);
            memcpy(data, &h, 2);
        } else {
            for (uint32_t i = 0; i < bytes; i++) data[i] = (uint8_t)random_u64(rng);
            put_half(data + d, v * 0.01f);
            if (m >= 0) put_half(data + m, uniform(rng) * 0.01f);
        }
    }
}

static void fixture_init(struct fixture *f, struct random *rng, enum dtype type, uint32_t n_out, uint32_t n_in,
                         uint32_t n_rows)
{
    uint64_t row_bytes = 0, n_blocks = (uint64_t)n_out * (n_in / dtype_block_weights(type));

    memset(f, 0, sizeof(*f));
    if (!dtype_row_bytes(type, n_in, &row_bytes)) abort();
    f->data = mem_alloc(n_out, (size_t)row_bytes);
    f->n_rows = n_rows;
    f->x_stride = n_in + 3;
    f->out_stride = n_out + 5;
    f->x = mem_zalloc((size_t)n_rows * f->x_stride, sizeof(float));
    f->bias = mem_zalloc(n_out, sizeof(float));
    if (!f->data || !f->x || !f->bias) abort();
    fill_weights(rng, type, f->data, n_blocks);
    for (uint64_t i = 0; i < (uint64_t)n_rows * f->x_stride; i++) f->x[i] = uniform(rng) * (i % 97 == 0 ? 20.0f : 1.0f);
    for (uint32_t i = 0; i < n_in && i < 32; i++) f->x[i] = 0; /* a block of zeros */
    for (uint32_t i = 0; i < n_out; i++) f->bias[i] = uniform(rng);
    f->t = (struct host_tensor){"test", type, n_out, n_in, f->data, false, NULL, 0};
}

static void fixture_deinit(struct fixture *f)
{
    mem_free(f->data);
    mem_free(f->x);
    mem_free(f->bias);
}

static struct backend *backend_new(enum cpu_isa isa, uint32_t n_threads)
{
    struct backend_options o = {.n_threads = n_threads, .isa = cpu_isa_name(isa)};
    struct backend *be = NULL;
    struct rd_error err = {0};

    if (backend_cpu_ops.life.create(&o, &be, &err) != RD_OK) {
        fprintf(stderr, "no backend: %s\n", err.text);
        abort();
    }
    return be;
}

static rd_status run(struct backend *be, const struct fixture *f, const struct weight *w, uint32_t row0,
                     uint32_t n_rows, bool bias, float *out)
{
    struct weight b = {.dtype = DTYPE_F32, .role = WEIGHT_VECTOR, .n_out = 1, .n_in = w->n_out, .data = f->bias};
    struct linear_args a = {
        .n_rows = n_rows, .x = span_of_host(f->x + (size_t)row0 * f->x_stride), .x_stride = f->x_stride, .n_outs = 1};

    a.outs[0] = (struct linear_out){w, bias ? &b : NULL, span_of_host(out), f->out_stride};
    return backend_cpu_ops.op.linear(be, &a);
}

/* Rows row0.. of got against the reference's, bit by bit; the space between rows must be untouched. */
static bool rows_equal(const struct fixture *f, const float *want, const float *got, uint32_t row0, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *g = got + (size_t)r * f->out_stride;

        if (memcmp(want + (size_t)(row0 + r) * f->out_stride, g, f->t.n_out * sizeof(float))) return false;
        for (uint32_t i = f->t.n_out; i < f->out_stride; i++)
            if (g[i] != 12345.0f) return false;
    }
    return true;
}

static float *out_new(const struct fixture *f)
{
    size_t n = (size_t)f->n_rows * f->out_stride;
    float *out = mem_alloc(n, sizeof(float));

    if (!out) abort();
    for (size_t i = 0; i < n; i++) out[i] = 12345.0f;
    return out;
}

/* One variant and thread count against the reference's output, in the batch sizes from step to n_rows. */
static void check_variant(const struct fixture *f, const float *want, enum cpu_isa isa, uint32_t n_threads,
                          bool every_size)
{
    struct backend *be = backend_new(isa, n_threads);
    struct weight w = {0};
    rd_status st = backend_cpu_ops.weights.load(be, &f->t, WEIGHT_MATRIX, &w, NULL);
    bool equal = true;

    for (uint32_t n = 1; st == RD_OK && equal && n <= f->n_rows; n += every_size ? 1 : n < 9 ? 2 : 20) {
        uint32_t row0 = (f->n_rows - n) / 2;
        float *out = out_new(f);

        st = run(be, f, &w, row0, n, true, out);
        equal = rows_equal(f, want, out, row0, n);
        if (!equal) {
            test_fail(__FILE__, __LINE__, "%s, %s, %u threads, %u x %u, %u rows: not the reference's bits",
                      dtype_name(f->t.dtype), cpu_isa_name(isa), n_threads, f->t.n_out, f->t.n_in, n);
        }
        mem_free(out);
    }
    if (w.data) backend_cpu_ops.weights.unload(be, &w);
    backend_cpu_ops.life.destroy(be);
    CHECK_OK(st);
}

static float *reference(const struct fixture *f)
{
    struct backend *be = backend_new(CPU_ISA_REF, 1);
    struct weight w = {0};
    float *out = out_new(f);

    if (backend_cpu_ops.weights.load(be, &f->t, WEIGHT_MATRIX, &w, NULL) != RD_OK) abort();
    if (run(be, f, &w, 0, f->n_rows, true, out) != RD_OK) abort();
    backend_cpu_ops.weights.unload(be, &w);
    backend_cpu_ops.life.destroy(be);
    return out;
}

TEST(every_variant_thread_count_and_batch_size_gives_the_reference_bits)
{
    static const uint32_t shapes[][3] = {{17, 32, 20},  {1, 64, 70},    {40, 96, 20},   {16, 256, 70}, {31, 512, 12},
                                         {48, 576, 12}, {130, 768, 10}, {15, 1024, 40}, {33, 256, 150}};
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t i = 0; i < N_TYPES; i++) {
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            struct fixture f;
            float *want;

            if (shapes[s][1] % dtype_block_weights(types[i])) continue;
            fixture_init(&f, &rng, types[i], shapes[s][0], shapes[s][1], shapes[s][2]);
            want = reference(&f);
            for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
                if (isa == CPU_ISA_REF && s > 2) continue;
                for (uint32_t n_threads = IS_EMULATED ? 2 : 1; n_threads <= 3; n_threads++)
                    check_variant(&f, want, (enum cpu_isa)isa, n_threads, s == 3 && n_threads == 2);
            }
            mem_free(want);
            fixture_deinit(&f);
        }
    }
    test_note("variants up to %s", cpu_isa_name(cpu_isa_best()));
}

/* Sums of even and of odd k apart, 512 k at a time, groups of four to six rows, chunks of rows: every remainder of each. */
TEST(float_weights_give_the_reference_bits_at_every_row_count_and_depth)
{
    static const uint32_t shapes[][3] = {{16, 1, 30}, {33, 33, 30}, {17, 511, 30}, {16, 1025, 30}, {40, 514, 260}};
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t i = 0; i < 3; i++) {
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            struct fixture f;
            float *want;

            fixture_init(&f, &rng, types[i], shapes[s][0], shapes[s][1], shapes[s][2]);
            want = reference(&f);
            for (int isa = CPU_ISA_REF + 1; isa <= (int)cpu_isa_best(); isa++)
                check_variant(&f, want, (enum cpu_isa)isa, 2, s < 4);
            mem_free(want);
            fixture_deinit(&f);
        }
    }
}

/* Two pairs, of widths that are no whole lines, in memory whose lines are marked. */
struct soon_case {
    uint8_t *marks[4];
    struct weight w[4];
    struct low_rank_term terms[2];
    struct low_rank_args args;
};

static void soon_case_init(struct soon_case *c)
{
    static const uint32_t shapes[4][2] = {{16, 576}, {16, 33}, {5, 129}, {5, 7}};

    for (int i = 0; i < 4; i++) {
        c->w[i] = (struct weight){.dtype = i < 2 ? DTYPE_F16 : DTYPE_F32,
                                  .n_out = shapes[i][0],
                                  .n_in = shapes[i][1],
                                  .role = WEIGHT_LOW_RANK};
        c->marks[i] = mem_alloc_aligned(soon_lines_of(&c->w[i]) * SOON_LINE);
        if (!c->marks[i]) abort();
        memset(c->marks[i], 0, soon_lines_of(&c->w[i]) * SOON_LINE);
        c->w[i].data = c->marks[i];
    }
    for (int i = 0; i < 2; i++) c->terms[i] = (struct low_rank_term){.a = &c->w[2 * i], .b = &c->w[2 * i + 1]};
    c->args = (struct low_rank_args){.n_terms = 2, .terms = c->terms};
}

static void soon_case_deinit(struct soon_case *c)
{
    for (int i = 0; i < 4; i++) mem_free_aligned(c->marks[i]);
}

TEST(what_adapters_read_next_is_asked_for_once_by_pieces_together)
{
    struct soon_case c;
    uint64_t all, n_marked = 0;

    soon_case_init(&c);
    all = soon_lines(&c.args);
    CHECK_EQ(soon_lines(NULL), 0);
    CHECK_EQ(all, 288 + 17 + 41 + 3);
    for (uint64_t from = 0, to; from < all; from = to) { /* a piece of 50 lines in parts of at most 7 */
        struct soon_place p = soon_place_of(&c.args, from);
        struct soon_part some;

        to = u64_min(all, from + 50);
        for (uint64_t part = from; p.all < to;) {
            part = u64_min(to, part + 7);
            some = soon_next(&c.args, &p, part);
            CHECK(some.end - some.at <= 50 * SOON_LINE);
            for (; some.at < some.end; some.at += SOON_LINE, n_marked++) (*(uint8_t *)(uintptr_t)some.at)++;
        }
        some = soon_next(&c.args, &p, to);
        CHECK(some.at == some.end);
    }
    CHECK_EQ(n_marked, all);
    for (int i = 0; i < 4; i++)
        for (uint64_t k = 0; k < soon_lines_of(&c.w[i]); k++) CHECK_EQ(c.marks[i][k * SOON_LINE], 1);
    soon_case_deinit(&c);
}

/* Pairs of two adapters, of a matrix's shape: one for the even rows, one for the odd. */
struct pairs {
    struct weight w[4];
    uint32_t rows[2][35];
    struct low_rank_term terms[2];
    float *t;
};

static void pairs_init(struct pairs *p, struct random *rng, const struct fixture *f)
{
    static const uint32_t ranks[2] = {16, 5};

    for (int i = 0; i < 4; i++) {
        const uint32_t n_in = i % 2 ? f->t.n_out : f->t.n_in, n = ranks[i / 2] * n_in;
        void *data = mem_alloc_aligned(n * sizeof(float));

        if (!data) abort();
        for (uint32_t k = 0; k < n; k++)
            if (i < 2)
                ((uint16_t *)data)[k] = float_to_half(uniform(rng) * 0.1f);
            else
                ((float *)data)[k] = uniform(rng) * 0.1f;
        p->w[i] = (struct weight){.dtype = i < 2 ? DTYPE_F16 : DTYPE_F32,
                                  .role = WEIGHT_LOW_RANK,
                                  .n_out = ranks[i / 2],
                                  .n_in = n_in,
                                  .data = data};
    }
    for (uint32_t i = 0; i < 70; i++) p->rows[i % 2][i / 2] = i;
    p->t = mem_alloc(70 * 32, sizeof(float));
    if (!p->t) abort();
}

static void pairs_deinit(struct pairs *p)
{
    for (int i = 0; i < 4; i++) mem_free_aligned((void *)(uintptr_t)p->w[i].data);
    mem_free(p->t);
}

static struct low_rank_args pairs_of(struct pairs *p, const struct fixture *f, uint32_t n_rows, float *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t mine = (n_rows + 1 - i) / 2;

        if (mine > 0)
            p->terms[n++] = (struct low_rank_term){&p->w[2 * i], &p->w[2 * i + 1],  0.5f + (float)i, mine,
                                                   p->rows[i],   span_of_host(out), f->out_stride};
    }
    return (struct low_rank_args){
        .x = span_of_host(f->x), .x_stride = f->x_stride, .n_terms = n, .terms = p->terms, .t = span_of_host(p->t)};
}

/* Told of what comes next, a product has its bits, and so has what comes next: what it was told of, or another. */
TEST(told_of_adapters_a_product_and_they_have_their_bits)
{
    static const enum dtype kinds[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_BF16};
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct fixture f;
        struct pairs p, other;
        float *want;

        fixture_init(&f, &rng, kinds[k], 100, 512, 70);
        pairs_init(&p, &rng, &f);
        pairs_init(&other, &rng, &f);
        want = reference(&f);
        for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
            struct backend *be = backend_new((enum cpu_isa)isa, 2);
            struct weight w = {0};

            CHECK_OK(backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL));
            for (uint32_t n = 1; n <= f.n_rows; n += n < 20 ? 5 : 49) { /* 1, 6, 11, 16, 21, 70 */
                struct weight b = {
                    .dtype = DTYPE_F32, .role = WEIGHT_VECTOR, .n_out = 1, .n_in = w.n_out, .data = f.bias};
                float *outs[3];

                for (int way = 0; way < 3; way++) { /* not told; told; told of others */
                    float *out = outs[way] = out_new(&f);
                    const struct low_rank_args low = pairs_of(&p, &f, n, out), no = pairs_of(&other, &f, n, out);
                    const struct linear_args a = {.n_rows = n,
                                                  .x = span_of_host(f.x),
                                                  .x_stride = f.x_stride,
                                                  .n_outs = 1,
                                                  .outs = {{&w, &b, span_of_host(out), f.out_stride}},
                                                  .soon = way == 0   ? NULL
                                                          : way == 1 ? &low
                                                                     : &no};

                    CHECK_OK(backend_cpu_ops.op.linear(be, &a));
                    CHECK(rows_equal(&f, want, out, 0, n));
                    CHECK_OK(backend_cpu_ops.op.low_rank(be, &low));
                    CHECK(!rows_equal(&f, want, out, 0, n));
                    CHECK(memcmp(out, outs[0], (size_t)f.n_rows * f.out_stride * sizeof(*out)) == 0);
                }
                for (int way = 0; way < 3; way++) mem_free(outs[way]);
            }
            backend_cpu_ops.weights.unload(be, &w);
            backend_cpu_ops.life.destroy(be);
        }
        mem_free(want);
        pairs_deinit(&p);
        pairs_deinit(&other);
        fixture_deinit(&f);
    }
}

/* Rows so many that they go in chunks have the bits that they have one by one: of an output of one pair, and of one with two pairs,
 * the second of which begins at a later row. */
TEST(many_rows_of_an_adapter_have_the_bits_of_each_alone)
{
    enum { ROWS = 230, N_IN = 100, N_OUT = 150, LATER = 60 };
    struct random rng;
    struct weight w[4];
    uint32_t rows[ROWS];
    float *x = mem_alloc((size_t)ROWS * N_IN, sizeof(*x)), *t = mem_alloc(2 * ROWS * 16, sizeof(*t));
    float *first = mem_alloc((size_t)ROWS * N_OUT, sizeof(*first)), *outs[2];

    random_init(&rng, test_seed());
    CHECK(x && t && first);
    for (uint32_t i = 0; i < ROWS * N_IN; i++) x[i] = uniform(&rng);
    for (uint32_t i = 0; i < ROWS * N_OUT; i++) first[i] = uniform(&rng);
    for (uint32_t i = 0; i < ROWS; i++) rows[i] = i;
    for (int i = 0; i < 4; i++) {
        const uint32_t n_in = i % 2 ? N_OUT : N_IN, rank = i < 2 ? 16 : 5;
        float *data = mem_alloc_aligned((size_t)rank * n_in * sizeof(*data));

        CHECK(data != NULL);
        for (uint32_t k = 0; k < rank * n_in; k++) data[k] = uniform(&rng) * 0.1f;
        w[i] = (struct weight){.dtype = DTYPE_F32, .role = WEIGHT_LOW_RANK, .n_out = rank, .n_in = n_in, .data = data};
    }
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (uint32_t n_threads = 1; n_threads < 5; n_threads += 3)
            for (uint32_t n_terms = 1; n_terms < 3; n_terms++) {
                struct backend *be = backend_new((enum cpu_isa)isa, n_threads);

                for (int way = 0; way < 2; way++) { /* all; one by one */
                    float *out = outs[way] = mem_alloc((size_t)ROWS * N_OUT, sizeof(*out));

                    CHECK(out != NULL);
                    memcpy(out, first, (size_t)ROWS * N_OUT * sizeof(*out));
                    for (uint32_t r = 0; r < (way ? ROWS : 1); r++) {
                        const uint32_t n = way ? 1 : ROWS, later = way ? 0 : LATER;
                        const struct low_rank_term terms[2] = {
                            {&w[0], &w[1], 0.5f, n, rows + r, span_of_host(out), N_OUT},
                            {&w[2], &w[3], 1.5f, n - later, rows + r + later, span_of_host(out), N_OUT}};
                        const struct low_rank_args a = {.x = span_of_host(x),
                                                        .x_stride = N_IN,
                                                        .n_terms = way && r < LATER ? 1 : n_terms,
                                                        .terms = terms,
                                                        .t = span_of_host(t)};

                        CHECK_OK(backend_cpu_ops.op.low_rank(be, &a));
                    }
                }
                CHECK(memcmp(outs[0], outs[1], (size_t)ROWS * N_OUT * sizeof(float)) == 0);
                mem_free(outs[0]), mem_free(outs[1]);
                backend_cpu_ops.life.destroy(be);
            }
    for (int i = 0; i < 4; i++) mem_free_aligned((void *)(uintptr_t)w[i].data);
    mem_free(x), mem_free(t), mem_free(first);
}

#if defined(__x86_64__)
/* Rows in groups of 16, outputs in tiles of 16 and pairs of tiles, k in spans of 1,024, of block types in fours of 32:
 * every remainder of each. */
TEST(amx_gives_the_reference_bits_at_every_row_count_output_count_and_span)
{
    static const uint32_t shapes[][3] = {
        {1, 256, 40},   {15, 512, 40},  {16, 256, 40},   {17, 768, 40}, {47, 256, 40}, {33, 1024, 130}, {5, 1280, 40},
        {20, 2048, 19}, {18, 2304, 35}, {150, 256, 600}, {33, 32, 40},  {40, 96, 40},  {64, 576, 70},   {95, 1184, 40}};
    struct random rng;

    if (cpu_isa_best() < CPU_ISA_AMX) {
        test_skip("this CPU or system has no AMX");
        return;
    }
    random_init(&rng, test_seed());
    for (size_t i = 3; i < N_TYPES; i++) {
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            struct fixture f;
            float *want;

            if (shapes[s][1] % dtype_block_weights(types[i])) continue;
            fixture_init(&f, &rng, types[i], shapes[s][0], shapes[s][1], shapes[s][2]);
            want = reference(&f);
            check_variant(&f, want, CPU_ISA_AMX, 1 + (uint32_t)(s % 3), shapes[s][2] == 40);
            mem_free(want);
            fixture_deinit(&f);
        }
    }
}
#endif

TEST(float_weights_take_any_row_length)
{
    static const uint32_t lengths[] = {1, 2, 7, 33, 101};
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t i = 0; i < 3; i++) {
        for (size_t s = 0; s < sizeof(lengths) / sizeof(lengths[0]); s++) {
            struct fixture f;
            float *want;

            fixture_init(&f, &rng, types[i], 19, lengths[s], 11);
            want = reference(&f);
            for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) check_variant(&f, want, (enum cpu_isa)isa, 2, true);
            mem_free(want);
            fixture_deinit(&f);
        }
    }
}

/* The bound, per output. Float weights: n 2^-23 sum |w x|. Quantised: each activation is off by at most half a step of
 * its block of 32 or, with K types, 256 (amax / 254), so sum over blocks of amax / 254 * sum |w|, and 1e-4 of
 * sum |w x| + that for the float sums. */
static double error_bound(const float *w, const float *x, uint32_t n, uint32_t block)
{
    double bound = 0, sum = 0;

    for (uint32_t k = 0; k < n; k++) sum += fabs((double)w[k] * x[k]);
    if (block == 1) return n * sum / (1 << 23);
    for (uint32_t b = 0; b < n; b += block) {
        double amax = 0, weights = 0;

        for (uint32_t k = b; k < b + block; k++) {
            amax = fmax(amax, fabs(x[k]));
            weights += fabs(w[k]);
        }
        bound += amax / 254 * weights;
    }
    return bound * 1.0001 + sum * 1e-4;
}

TEST(every_type_is_within_its_bound_of_the_double_precision_product)
{
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t i = 0; i < N_TYPES; i++) {
        uint32_t block = dtype_block_weights(types[i]); /* of the activations, too */
        double err2 = 0, sum2 = 0;
        struct fixture f;
        float *got, *w;
        uint64_t row_bytes;

        fixture_init(&f, &rng, types[i], 37, 512, 60); /* enough that the rms error hardly depends on the seed */
        CHECK(dtype_row_bytes(types[i], f.t.n_in, &row_bytes));
        got = reference(&f);
        w = mem_alloc(f.t.n_in, sizeof(float));
        CHECK(w);
        for (uint32_t o = 0; o < f.t.n_out; o++) {
            dtype_to_float(types[i], (const uint8_t *)f.data + o * row_bytes, w, f.t.n_in);
            for (uint32_t r = 0; r < f.n_rows; r++) {
                const float *x = f.x + (size_t)r * f.x_stride;
                double want = f.bias[o], err;

                for (uint32_t k = 0; k < f.t.n_in; k++) want += (double)w[k] * x[k];
                err = fabs(want - got[(size_t)r * f.out_stride + o]);
                if (err > error_bound(w, x, f.t.n_in, block) + 1e-6) {
                    test_fail(__FILE__, __LINE__, "%s: row %u output %u: %g, wanted %g", dtype_name(types[i]), r, o,
                              got[(size_t)r * f.out_stride + o], want);
                    return;
                }
                err2 += err * err;
                sum2 += want * want;
            }
        }
        test_note("%s: rms error %.2g of rms output", dtype_name(types[i]), sqrt(err2 / sum2));
        /* One activation in 97 is up to 20 times the others: every block of 256 has one, of those of 32 every third. */
        CHECK(sqrt(err2 / sum2) < (block == 256 ? 0.04 : block == 32 ? 0.02 : 1e-6));
        mem_free(w);
        mem_free(got);
        fixture_deinit(&f);
    }
}

TEST(three_outputs_of_different_types_equal_three_calls)
{
    static const enum dtype mix[3] = {DTYPE_Q4_K, DTYPE_F16, DTYPE_Q6_K};
    static const uint32_t widths[3] = {50, 16, 23};
    struct random rng;
    struct fixture f[3];
    struct weight w[3] = {{0}};
    float *alone[3], *together[3];
    struct backend *be = backend_new(cpu_isa_best(), 2);
    struct linear_args a = {.n_rows = 21, .n_outs = 3};

    random_init(&rng, test_seed());
    for (int i = 0; i < 3; i++) {
        fixture_init(&f[i], &rng, mix[i], widths[i], 512, 21);
        if (i) memcpy(f[i].x, f[0].x, sizeof(float) * 21 * f[0].x_stride);
        CHECK_OK(backend_cpu_ops.weights.load(be, &f[i].t, WEIGHT_MATRIX, &w[i], NULL));
        alone[i] = out_new(&f[i]);
        together[i] = out_new(&f[i]);
        CHECK_OK(run(be, &f[i], &w[i], 0, 21, false, alone[i]));
        a.outs[i] = (struct linear_out){&w[i], NULL, span_of_host(together[i]), f[i].out_stride};
    }
    a.x = span_of_host(f[0].x);
    a.x_stride = f[0].x_stride;
    CHECK_OK(backend_cpu_ops.op.linear(be, &a));
    for (int i = 0; i < 3; i++) {
        CHECK(rows_equal(&f[i], alone[i], together[i], 0, 21));
        backend_cpu_ops.weights.unload(be, &w[i]);
        mem_free(alone[i]);
        mem_free(together[i]);
        fixture_deinit(&f[i]);
    }
    backend_cpu_ops.life.destroy(be);
}

static float most_of(const float *x, uint32_t n)
{
    float most = -INFINITY;

    for (uint32_t i = 0; i < n; i++) most = !(x[i] < INFINITY) ? INFINITY : x[i] > most ? x[i] : most;
    return most;
}

TEST(the_best_of_every_block_of_outputs_comes_with_them)
{
    static const enum dtype some[] = {DTYPE_F16, DTYPE_Q8_0, DTYPE_Q6_K};
    static const uint32_t n_outs[] = {16, 128, 129, 1000}, n_rows[] = {1, 5, 16, 70};
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t i = 0; i < 3 * 4; i++) {
        struct fixture f;
        uint32_t n_blocks, rows = n_rows[(i + i / 4) % 4];

        fixture_init(&f, &rng, some[i / 4], n_outs[i % 4], 256, rows);
        if (rows > 4) f.x[3 * f.x_stride + 70] = NAN;
        n_blocks = (f.t.n_out + BEST_BLOCK - 1) / BEST_BLOCK;
        for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
            struct backend *be = backend_new((enum cpu_isa)isa, isa % 3 + 1);
            struct weight w = {0};
            float *out = out_new(&f), *best = mem_alloc((size_t)rows * n_blocks, sizeof(*best));
            struct linear_args a = {.n_rows = rows,
                                    .x = span_of_host(f.x),
                                    .x_stride = f.x_stride,
                                    .n_outs = 1,
                                    .best = span_of_host(best)};

            CHECK_OK(backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL));
            a.outs[0] = (struct linear_out){&w, NULL, span_of_host(out), f.out_stride};
            CHECK(best != NULL);
            CHECK_OK(backend_cpu_ops.op.linear(be, &a));
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t b = 0; b < n_blocks; b++) {
                    uint32_t n = f.t.n_out - b * BEST_BLOCK < BEST_BLOCK ? f.t.n_out - b * BEST_BLOCK : BEST_BLOCK;

                    CHECK(best[r * n_blocks + b] == most_of(out + (size_t)r * f.out_stride + b * BEST_BLOCK, n));
                }
            backend_cpu_ops.weights.unload(be, &w);
            backend_cpu_ops.life.destroy(be);
            mem_free(best);
            mem_free(out);
        }
        fixture_deinit(&f);
    }
}

TEST(a_row_with_nan_or_infinity_is_nan_in_every_variant_and_touches_no_other_row)
{
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t i = 3; i < N_TYPES; i++) {
        struct fixture f;
        float *want;

        fixture_init(&f, &rng, types[i], 18, 512, 20);
        want = reference(&f);
        f.x[2 * f.x_stride + 70] = NAN;
        f.x[3 * f.x_stride + 5] = -INFINITY;
        f.x[4 * f.x_stride + 9] = 1e-38f;
        for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
            struct backend *be = backend_new((enum cpu_isa)isa, 1);
            struct weight w = {0};
            float *out = out_new(&f);

            CHECK_OK(backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL));
            CHECK_OK(run(be, &f, &w, 0, 20, true, out));
            CHECK(rows_equal(&f, want, out, 0, 2));
            CHECK(rows_equal(&f, want, out + (size_t)5 * f.out_stride, 5, 15));
            for (uint32_t o = 0; o < 18; o++) {
                CHECK(isnan(out[(size_t)2 * f.out_stride + o]));
                CHECK(isnan(out[(size_t)3 * f.out_stride + o]));
                CHECK(isfinite(out[(size_t)4 * f.out_stride + o]));
            }
            backend_cpu_ops.weights.unload(be, &w);
            backend_cpu_ops.life.destroy(be);
            mem_free(out);
        }
        mem_free(want);
        fixture_deinit(&f);
    }
}

TEST(weights_of_random_bytes_with_nan_and_infinite_scales_do_not_crash)
{
    struct random rng;

    random_init(&rng, test_seed());
    for (size_t i = 0; i < N_TYPES; i++) {
        struct fixture f;
        uint64_t row_bytes;

        fixture_init(&f, &rng, types[i], 33, 512, 19);
        CHECK(dtype_row_bytes(types[i], 512, &row_bytes));
        for (uint64_t b = 0; b < 33 * row_bytes; b++) ((uint8_t *)f.data)[b] = (uint8_t)random_u64(&rng);
        for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
            struct backend *be = backend_new((enum cpu_isa)isa, 2);
            struct weight w = {0};
            float *out = out_new(&f);

            CHECK_OK(backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL));
            CHECK_OK(run(be, &f, &w, 0, 19, true, out));
            backend_cpu_ops.weights.unload(be, &w);
            backend_cpu_ops.life.destroy(be);
            mem_free(out);
        }
        fixture_deinit(&f);
    }
}

TEST(packed_weights_take_at_most_a_few_percent_more_than_the_file)
{
    struct random rng;
    struct backend *be = backend_new(CPU_ISA_REF, 1);

    random_init(&rng, test_seed());
    for (size_t i = 0; i < N_TYPES; i++) {
        struct fixture f;
        struct weight w = {0};
        uint64_t row_bytes;

        fixture_init(&f, &rng, types[i], 64, 1024, 1);
        CHECK(dtype_row_bytes(types[i], 1024, &row_bytes));
        CHECK_OK(backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL));
        CHECK(w.bytes >= 64 * row_bytes && w.bytes * 100 <= 64 * row_bytes * 105);
        backend_cpu_ops.weights.unload(be, &w);
        CHECK(!w.data);
        fixture_deinit(&f);
    }
    backend_cpu_ops.life.destroy(be);
}

TEST(after_the_biggest_batch_nothing_is_allocated)
{
    struct random rng;
    struct fixture f;
    struct weight w = {0};
    struct backend *be = backend_new(cpu_isa_best(), 2);
    uint64_t n_allocs;
    float *out;

    random_init(&rng, test_seed());
    fixture_init(&f, &rng, DTYPE_Q8_0, 40, 96, 30);
    out = out_new(&f);
    CHECK_OK(backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL));
    CHECK_OK(run(be, &f, &w, 0, 30, true, out));
    n_allocs = mem_n_allocs();
    for (uint32_t n = 1; n <= 30; n++) CHECK_OK(run(be, &f, &w, 0, n, true, out));
    CHECK_EQ(mem_n_allocs(), n_allocs);
    backend_cpu_ops.weights.unload(be, &w);
    backend_cpu_ops.life.destroy(be);
    mem_free(out);
    fixture_deinit(&f);
}

TEST(without_memory_nothing_leaks_and_the_next_try_works)
{
    struct random rng;
    struct fixture f;
    struct backend *be = backend_new(CPU_ISA_REF, 1);
    uint64_t alive;
    rd_status st = RD_E_NOMEM;
    float *out;

    random_init(&rng, test_seed());
    fixture_init(&f, &rng, DTYPE_Q4_0, 20, 64, 3);
    out = out_new(&f);
    alive = mem_n_alive();
    for (int64_t i = 0; st != RD_OK; i++) {
        struct weight w = {0};

        CHECK(i < 20);
        mem_fail_after(i);
        st = backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL);
        if (st == RD_OK) {
            st = run(be, &f, &w, 0, 3, true, out);
            backend_cpu_ops.weights.unload(be, &w);
        }
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        if (st != RD_OK) CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_EQ(mem_n_alive(), alive + 1); /* the activations' scratch */
    backend_cpu_ops.life.destroy(be);
    mem_free(out);
    fixture_deinit(&f);
}

TEST(odd_shapes_are_refused_by_name)
{
    struct backend *be = backend_new(CPU_ISA_REF, 1);
    struct weight w = {0};
    struct rd_error err = {0};
    uint8_t data[512] = {0};
    struct host_tensor ragged = {"blk.0.attn_q.weight", DTYPE_Q4_K, 1, 96, data, false, NULL, 0};

    CHECK_EQ(backend_cpu_ops.weights.load(be, &ragged, WEIGHT_MATRIX, &w, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "blk.0.attn_q.weight"));
    CHECK(!w.data);
    backend_cpu_ops.life.destroy(be);
}

#ifdef NDEBUG
/* Seconds of the fastest of several runs. */
static double best_seconds(struct backend *be, const struct fixture *f, const struct weight *w, uint32_t n_rows,
                           float *out)
{
    double best = 1e9;

    for (int i = 0; i < 5; i++) {
        uint64_t t0 = clock_now_ns(clock_system());

        if (run(be, f, w, 0, n_rows, false, out) != RD_OK) return 0;
        best = fmin(best, (double)(clock_now_ns(clock_system()) - t0) * 1e-9);
    }
    return best;
}

TEST(speed_is_noted)
{
    struct random rng;

    if (IS_EMULATED) {
        test_skip("an emulated processor: its speed means nothing");
        return;
    }
    random_init(&rng, test_seed());
    for (int isa = CPU_ISA_REF + 1; isa <= (int)cpu_isa_best(); isa++) {
        for (size_t i = 0; i < N_TYPES; i++) {
            struct backend *be = backend_new((enum cpu_isa)isa, 2);
            struct fixture f;
            struct weight w = {0};
            uint64_t t0;
            double load, one, many;
            float *out;

            fixture_init(&f, &rng, types[i], 4096, 2048, 128);
            out = out_new(&f);
            t0 = clock_now_ns(clock_system());
            CHECK_OK(backend_cpu_ops.weights.load(be, &f.t, WEIGHT_MATRIX, &w, NULL));
            load = (double)(clock_now_ns(clock_system()) - t0) * 1e-9;
            one = best_seconds(be, &f, &w, 1, out);
            many = best_seconds(be, &f, &w, 128, out);
            test_note("%-6s %-4s 2 threads, 4096 x 2048: load %.2f GB/s, 1 row %.1f GB/s, 128 rows %.0f GOP/s",
                      cpu_isa_name(be->isa), dtype_name(types[i]), (double)w.bytes / load * 1e-9,
                      (double)w.bytes / one * 1e-9, 2.0 * 4096 * 2048 * 128 / many * 1e-9);
            backend_cpu_ops.weights.unload(be, &w);
            backend_cpu_ops.life.destroy(be);
            mem_free(out);
            fixture_deinit(&f);
        }
    }
}
#endif
