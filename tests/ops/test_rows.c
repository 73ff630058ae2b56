/* tests/ops/test_rows.c - row operations: each variant has the reference's bits, the reference is close to double
 * precision, and no row sees its neighbours.
 */
#include <float.h>
#include "backend/cpu/rows/row_kernels.h"
#include "op_fixture.h"

#define MAX_N 1100u

/* Ordinary values with some that are awkward for exp and tanh. */
static void fill(struct random *r, float *x, uint32_t n)
{
    static const float awkward[] = {0.0f,        -0.0f,  1e-30f, -1e-30f, 0.625f,   -0.625f,
                                    0.62499994f, 88.0f,  -88.0f, 104.5f,  -104.5f,  1e30f,
                                    -1e30f,      1e-42f, 9.0f,   -9.0f,   INFINITY, -INFINITY};

    for (uint32_t i = 0; i < n; i++) {
        x[i] = op_normal(r) * (random_below(r, 4) ? 2.0f : 30.0f);
        if (random_below(r, 16) == 0) x[i] = awkward[random_below(r, sizeof(awkward) / sizeof(awkward[0]))];
    }
}

static void fill_plain(struct random *r, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = op_normal(r);
}

struct row_case {
    float x[MAX_N], y[MAX_N], w[MAX_N], c[MAX_N], s[MAX_N], odd[MAX_N];
    uint16_t halves[9 * MAX_N], bf16s[9 * MAX_N];
};

static uint32_t run_stored(const struct cpu_stored_kernels *k, const struct row_case *in, const void *y,
                           uint32_t n_rows, uint32_t n, float *out)
{
    *out = k->dot(in->x, y, n);
    k->dots4(in->x, y, MAX_N, n, out + 1);
    memcpy(out + 5, in->x, n * sizeof(*out));
    k->add_rows(out + 5, y, MAX_N, in->c, n < n_rows ? n : n_rows, n);
    out += 5 + n;
    k->two_dots4((const float *const[2]){in->x, in->w}, y, MAX_N, n, out);
    memcpy(out + 8, in->x, n * sizeof(*out));
    memcpy(out + 8 + n, in->w, n * sizeof(*out));
    k->two_add_rows((float *const[2]){out + 8, out + 8 + n}, y, MAX_N, (const float *const[2]){in->c, in->s},
                    n < n_rows ? n : n_rows, n);
    return 13 + 3 * n;
}

/* The whole blocks of x and of odd values, as floats again: NaN has no payload to compare. */
static void store_blocks(const struct cpu_row_kernels *k, enum dtype t, const struct row_case *in, uint32_t n, float *o)
{
    uint8_t blocks[34 * (MAX_N / 32 + 1)];
    uint32_t whole = n / 32 * 32, half = n / 64 * 32;

    memset(o, 0, n * sizeof(*o));
    k->store_kv(t, in->odd, blocks, half);
    dtype_to_float(t, blocks, o, half);
    k->store_kv(t, in->x + half, blocks, whole - half);
    dtype_to_float(t, blocks, o + half, whole - half);
}

/* All kernels one after the other into out; returns the floats used. */
static uint32_t run_all(const struct cpu_row_kernels *k, const struct row_case *in, uint32_t n, float *out)
{
    float *o = out;

    *o++ = k->sum_squares(in->x, n);
    o += run_stored(&k->f32, in, in->y, 4, n, o); /* y, w, c, s */
    o += run_stored(&k->f16, in, in->halves, 9, n, o);
    o += run_stored(&k->bf16, in, in->bf16s, 9, n, o);
    *o++ = k->best(in->x, n) + 0.0f; /* -0 is as large as 0 */
    *o++ = k->best(in->odd, n) + 0.0f;
    k->layer_norm(in->x, in->w, in->y, 1e-6f, o, n), o += n;
    k->layer_norm(in->odd, in->w, in->y, 1e-6f, o, n), o += n;
    memcpy(o, in->x, n * sizeof(*o)), k->add(o, in->y, n), o += n;
    k->scale(in->x, 1.7f, in->w, o, n), o += n;
    k->scale(in->x, 0.3f, NULL, o, n), o += n;
    memcpy(o, in->x, n * sizeof(*o)), k->add_scaled(o, in->y, 0.77f, in->w, n), o += n;
    k->glu(ACT_SILU, in->odd, in->y, o, n), o += n;
    k->glu(ACT_GELU_TANH, in->odd, in->y, o, n), o += n;
    memcpy(o, in->odd, n * sizeof(*o)), k->softcap(o, 30.0f, n), o += n;
    memcpy(o, in->x, n * sizeof(*o)), k->rope(ROPE_HALF_SPLIT, o, in->c, in->s, n / 2 * 2), o += n;
    memcpy(o, in->x, n * sizeof(*o)), k->rope(ROPE_INTERLEAVED, o, in->c, in->s, n / 2 * 2), o += n;
    memset(o, 0, 3 * n * sizeof(*o));
    k->store_kv(DTYPE_F16, in->odd, o, n), o += n;
    k->store_kv(DTYPE_BF16, in->odd, o, n), o += n;
    k->store_kv(DTYPE_F32, in->odd, o, n), o += n;
    store_blocks(k, DTYPE_Q8_0, in, n, o), o += n;
    store_blocks(k, DTYPE_Q4_0, in, n, o), o += n;
    return (uint32_t)(o - out);
}

/* Equal bits, or both NaN (whose payload x86 leaves to operand order). */
static bool equal_or_nan(const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(*a)) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

TEST(every_variant_has_the_bits_of_the_reference)
{
    static struct row_case in;
    static float want[28 * MAX_N], got[28 * MAX_N];
    struct random r;

    random_init(&r, test_seed());
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t n = round < 100 ? round + 1 : 1 + (uint32_t)random_below(&r, MAX_N), used;

        fill_plain(&r, in.x, n);
        fill_plain(&r, in.y, n);
        fill_plain(&r, in.w, n);
        fill_plain(&r, in.c, n);
        fill_plain(&r, in.s, n);
        fill(&r, in.odd, n);
        for (uint32_t i = 0; i < 9 * MAX_N; i++) {
            in.halves[i] =
                float_to_half(ldexpf(op_normal(&r), (int)random_below(&r, 30) - 25)); /* subnormal ones, too */
            in.bf16s[i] = float_to_bf16(op_normal(&r));
        }
        used = run_all(cpu_kernels[CPU_ISA_REF].rows, &in, n, want);
        for (int isa = 1; isa <= (int)cpu_isa_best(); isa++) {
            memset(got, 0xff, sizeof(got));
            CHECK_EQ(run_all(cpu_kernels[isa].rows, &in, n, got), used);
            CHECK(equal_or_nan(want, got, used));
        }
    }
}

TEST(every_half_and_every_rounding_is_the_references)
{
    /* Every half, and the floats around the middle between it and the next. */
    static float x[65536 * 3];
    static uint16_t want[65536 * 3], got[65536 * 3];
    enum dtype types[] = {DTYPE_F16, DTYPE_BF16};

    for (uint32_t h = 0; h < 65536; h++) {
        float v = half_to_float((uint16_t)h), next = half_to_float((uint16_t)(h + 1)), middle = v + (next - v) / 2;

        x[3 * h] = v;
        x[3 * h + 1] = isfinite(middle) ? middle : 65520.0f;
        x[3 * h + 2] = nextafterf(x[3 * h + 1], (h & 1) ? INFINITY : -INFINITY);
    }
    for (int t = 0; t < 2; t++) {
        cpu_rows_ref.store_kv(types[t], x, want, 65536 * 3);
        for (int isa = 1; isa <= (int)cpu_isa_best(); isa++) {
            cpu_kernels[isa].rows->store_kv(types[t], x, got, 65536 * 3);
            CHECK(memcmp(want, got, sizeof(want)) == 0);
        }
    }
}

/* Error in units of the last place of the wanted value. */
static double ulps(float got, double want)
{
    double ulp = fabs(want) < FLT_MIN ? 0x1p-149 : ldexp(1.0, ilogb(want) - 23);

    return fabs((double)got - want) / ulp;
}

TEST(tanh_and_silu_and_gelu_are_close_to_double_precision)
{
    double worst_tanh = 0, worst_silu = 0, worst_gelu = 0;
    const float one = 1.0f;

    for (int i = -400000; i <= 400000; i++) {
        float x = (float)i * 1e-4f, y = x, g;
        double u = sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * (double)x * x * x), want;

        cpu_rows_ref.softcap(&y, 1.0f, 1);
        worst_tanh = fmax(worst_tanh, ulps(y, tanh(x)));
        cpu_rows_ref.glu(ACT_SILU, &x, &one, &g, 1);
        worst_silu = fmax(worst_silu, ulps(g, x / (1 + exp(-(double)x))));
        cpu_rows_ref.glu(ACT_GELU_TANH, &x, &one, &g, 1);
        want = 0.5 * x * (1 + tanh(u));
        worst_gelu = fmax(worst_gelu, fabs(g - want) / fmax(fabs(x), 1e-30)); /* 1 + tanh cancels: absolute in x */
    }
    test_note("tanh %.2f ulp, silu %.2f ulp, gelu %.2g of |x|", worst_tanh, worst_silu, worst_gelu);
    CHECK(worst_tanh < 3);
    CHECK(worst_silu < 4);
    CHECK(worst_gelu < 3e-7);
}

TEST(extremes_give_the_limits)
{
    float big[4] = {200.0f, -200.0f, INFINITY, 0.0f}, ones[4] = {1, 1, 1, 1}, out[4];

    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        cpu_kernels[isa].rows->glu(ACT_SILU, big, ones, out, 4);
        CHECK(out[0] == 200.0f && out[1] == 0 && isinf(out[2]) && out[3] == 0);
        cpu_kernels[isa].rows->glu(ACT_GELU_TANH, big, ones, out, 4);
        CHECK(out[0] == 200.0f && out[1] == 0 && isinf(out[2]) && out[3] == 0);
        memcpy(out, big, sizeof(out));
        cpu_kernels[isa].rows->softcap(out, 30.0f, 4);
        CHECK(out[0] > 29.9f && out[1] == -out[0] && out[2] == 30.0f && out[3] == 0);
        out[0] = NAN;
        cpu_kernels[isa].rows->softcap(out, 30.0f, 1);
        CHECK(isnan(out[0]));
    }
}

TEST(the_best_of_a_row_tells_of_numbers_that_are_none_wherever_they_are)
{
    float x[50];

    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        for (uint32_t n = 1; n <= 50; n++) {
            for (uint32_t i = 0; i < n; i++) x[i] = -1.0f - (float)i;
            CHECK(cpu_kernels[isa].rows->best(x, n) == -1.0f);
            for (uint32_t i = 0; i < n; i++) {
                float was = x[i];

                x[i] = i % 2 ? NAN : INFINITY;
                CHECK(cpu_kernels[isa].rows->best(x, n) == INFINITY);
                x[i] = was;
            }
            for (uint32_t i = 0; i < n; i++) x[i] = -INFINITY;
            CHECK(cpu_kernels[isa].rows->best(x, n) == -INFINITY);
        }
    }
}

/* x += rmsnorm(delta) * dn, out = rmsnorm(x) * norm in double. */
static double naive_norm_error(const float *x0, const float *delta, const float *dn, const float *norm, uint32_t n,
                               float eps, const float *x1, const float *out)
{
    double ss = 0, worst = 0, *x = mem_zalloc(n, sizeof(*x));

    if (!x) return INFINITY;
    for (uint32_t i = 0; i < n; i++) ss += (double)delta[i] * delta[i];
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x0[i] + (dn ? delta[i] / sqrt(ss / n + eps) * dn[i] : delta[i]);
        worst = fmax(worst, fabs(x[i] - x1[i]) / (fabs(x[i]) + 1));
    }
    ss = 0;
    for (uint32_t i = 0; i < n; i++) ss += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++) {
        double want = x[i] / sqrt(ss / n + eps) * norm[i];

        worst = fmax(worst, fabs(want - out[i]) / (fabs(want) + 1));
    }
    mem_free(x);
    return worst;
}

/* All rows at once, with 1, 2 and 5 threads and every variant, against one row at a time in the reference. */
static void check_norm(uint32_t width, uint32_t n_rows, bool post_norm, struct random *r)
{
    uint64_t n = (uint64_t)width * n_rows;
    float *x0 = op_floats(r, n, 3), *delta = op_floats(r, n, 1), *dn = op_floats(r, width, 1),
          *norm = op_floats(r, width, 1);
    float *want_x = op_copy(x0, n), *want = op_floats(r, n, 1), *x = op_copy(x0, n), *out = op_floats(r, n, 1);
    struct weight w_dn = op_vector(dn, width), w_norm = op_vector(norm, width);
    struct backend *ref = op_backend(CPU_ISA_REF, 1);
    static const uint32_t threads[] = {1, 2, 5};

    CHECK(x0 && delta && dn && norm && want_x && want && x && out && ref);
    for (uint32_t i = 0; i < n_rows; i++) {
        uint64_t at = (uint64_t)i * width;
        struct residual_norm_args a = {1,
                                       width,
                                       span_of_host(want_x + at),
                                       span_of_host(delta + at),
                                       post_norm ? &w_dn : NULL,
                                       &w_norm,
                                       1e-5f,
                                       span_of_host(want + at),
                                       false,
                                       false};

        CHECK_OK(backend_cpu_ops.op.residual_norm(ref, &a));
        CHECK(naive_norm_error(x0 + at, delta + at, post_norm ? dn : NULL, norm, width, 1e-5f, want_x + at, want + at) <
              2e-6);
    }
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        for (int t = 0; t < 3; t++) {
            struct backend *be = op_backend((enum cpu_isa)isa, threads[t]);
            struct residual_norm_args a = {n_rows,
                                           width,
                                           span_of_host(x),
                                           span_of_host(delta),
                                           post_norm ? &w_dn : NULL,
                                           &w_norm,
                                           1e-5f,
                                           span_of_host(out),
                                           false,
                                           false};

            CHECK(be);
            memcpy(x, x0, n * sizeof(*x));
            CHECK_OK(backend_cpu_ops.op.residual_norm(be, &a));
            CHECK(op_same(x, want_x, n) && op_same(out, want, n));
            backend_cpu_ops.life.destroy(be);
        }
    }
    backend_cpu_ops.life.destroy(ref);
    mem_free_aligned(x0), mem_free_aligned(delta), mem_free_aligned(dn), mem_free_aligned(norm);
    mem_free_aligned(want_x), mem_free_aligned(want), mem_free_aligned(x), mem_free_aligned(out);
}

TEST(residual_norm_of_a_row_is_its_own_affair)
{
    static const uint32_t widths[] = {16, 30, 576, 640, 1023};
    struct random r;

    random_init(&r, test_seed());
    for (uint32_t i = 0; i < 5; i++) {
        check_norm(widths[i], 1, false, &r);
        check_norm(widths[i], 37, i % 2, &r);
    }
    check_norm(896, 70, true, &r);
}

TEST(residual_norm_parts_may_be_absent)
{
    float x[20], out[20], norm[20], keep[20];
    struct weight w = op_vector(norm, 20);
    struct backend *be = op_backend(cpu_isa_best(), 1);
    struct residual_norm_args a = {1,  20,    span_of_host(x),   span_none(), NULL,
                                   &w, 1e-6f, span_of_host(out), false,       false};

    CHECK(be);
    for (int i = 0; i < 20; i++) x[i] = keep[i] = (float)i - 7, norm[i] = 1;
    CHECK_OK(backend_cpu_ops.op.residual_norm(be, &a));
    CHECK(op_same(x, keep, 20));
    a = (struct residual_norm_args){1,     20,   span_of_host(x), span_of_host(keep), NULL, NULL, 1e-6f, span_none(),
                                    false, false};
    CHECK_OK(backend_cpu_ops.op.residual_norm(be, &a));
    for (int i = 0; i < 20; i++) CHECK(x[i] == 2 * keep[i]);
    backend_cpu_ops.life.destroy(be);
}

TEST(glu_softcap_gather_and_embed_do_not_depend_on_threads_or_batch)
{
    enum { ROWS = 50, WIDTH = 700, VOCAB = 90 };
    struct random r;
    float *gate, *up, *table, *want, *got;
    int32_t tokens[ROWS];
    uint32_t pick[3] = {49, 0, 7};
    struct backend *one = op_backend(CPU_ISA_REF, 1);
    struct weight w;

    random_init(&r, test_seed());
    gate = op_floats(&r, ROWS * WIDTH, 3), up = op_floats(&r, ROWS * WIDTH, 1), table = op_floats(&r, VOCAB * WIDTH, 1);
    want = op_floats(&r, ROWS * WIDTH, 1), got = op_floats(&r, ROWS * WIDTH, 1);
    CHECK(one && gate && up && table && want && got);
    for (int i = 0; i < ROWS; i++) tokens[i] = (int32_t)random_below(&r, VOCAB);
    CHECK_OK(backend_cpu_ops.weights.load(
        one, &(struct host_tensor){"embed", DTYPE_F32, VOCAB, WIDTH, table, false, NULL, 0}, WEIGHT_EMBED, &w, NULL));
    CHECK(w.data == table && w.bytes == 0);
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        struct backend *be = op_backend((enum cpu_isa)isa, 3);

        CHECK(be);
        for (int act = 0; act < 2; act++) {
            for (int i = 0; i < ROWS; i++)
                CHECK_OK(backend_cpu_ops.op.glu(one, (enum activation)act, 1, WIDTH, span_of_host(gate + i * WIDTH),
                                                span_of_host(up + i * WIDTH), span_of_host(want + i * WIDTH)));
            memcpy(got, gate, ROWS * WIDTH * sizeof(*got));
            CHECK_OK(backend_cpu_ops.op.glu(be, (enum activation)act, ROWS, WIDTH, span_of_host(got), span_of_host(up),
                                            span_of_host(got)));
            CHECK(op_same(want, got, ROWS * WIDTH));
        }
        memcpy(want, gate, ROWS * WIDTH * sizeof(*got)), memcpy(got, gate, ROWS * WIDTH * sizeof(*got));
        for (int i = 0; i < ROWS; i++)
            CHECK_OK(backend_cpu_ops.op.softcap(one, span_of_host(want + i * WIDTH), WIDTH, 30.0f));
        CHECK_OK(backend_cpu_ops.op.softcap(be, span_of_host(got), ROWS * WIDTH, 30.0f));
        CHECK(op_same(want, got, ROWS * WIDTH));
        CHECK_OK(backend_cpu_ops.op.embed(be, &w, ROWS, tokens, 1.5f, span_of_host(got)));
        for (int i = 0; i < ROWS * WIDTH; i++) CHECK(got[i] == table[tokens[i / WIDTH] * WIDTH + i % WIDTH] * 1.5f);
        CHECK_OK(backend_cpu_ops.op.gather(be, 3, WIDTH, span_of_host(gate), pick, span_of_host(got)));
        for (int i = 0; i < 3; i++) CHECK(op_same(got + i * WIDTH, gate + pick[i] * WIDTH, WIDTH));
        CHECK_OK(backend_cpu_ops.memory.sync(be));
        backend_cpu_ops.life.destroy(be);
    }
    backend_cpu_ops.weights.unload(one, &w);
    backend_cpu_ops.life.destroy(one);
    mem_free_aligned(gate), mem_free_aligned(up), mem_free_aligned(table), mem_free_aligned(want),
        mem_free_aligned(got);
}

TEST(vectors_become_floats)
{
    uint16_t h[5] = {0x3c00, 0x4000, 0xc000, 0x0001, 0x7bff};
    struct backend *be = op_backend(cpu_isa_best(), 1);
    struct weight w;

    CHECK(be);
    CHECK_OK(backend_cpu_ops.weights.load(be, &(struct host_tensor){"v", DTYPE_F16, 1, 5, h, false, NULL, 0},
                                          WEIGHT_VECTOR, &w, NULL));
    CHECK_EQ(w.bytes, 20);
    for (int i = 0; i < 5; i++) CHECK(((const float *)w.data)[i] == half_to_float(h[i]));
    backend_cpu_ops.weights.unload(be, &w);
    backend_cpu_ops.weights.unload(be, &w);
    backend_cpu_ops.life.destroy(be);
}

TEST(create_says_what_is_wrong_and_leaks_nothing)
{
    struct backend_options o = {.n_threads = 2, .isa = "sse9"};
    struct backend *be = NULL;
    struct rd_error err;
    uint64_t alive = mem_n_alive();
    rd_status st = RD_E_NOMEM;
    char text[64];

    CHECK_EQ(backend_cpu_ops.life.create(&o, &be, &err), RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, "sse9") && strstr(err.text, cpu_isa_name(cpu_isa_best())));
    o = (struct backend_options){.n_threads = 65};
    CHECK_EQ(backend_cpu_ops.life.create(&o, &be, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "65"));
    o.n_threads = 2;
    for (int64_t i = 0; st == RD_E_NOMEM && i < 100; i++) {
        be = NULL;
        mem_fail_after(i);
        st = backend_cpu_ops.life.create(&o, &be, &err);
        mem_fail_after(-1);
        CHECK((st == RD_OK) == (be != NULL));
        if (st != RD_OK) CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_OK(st);
    backend_cpu_ops.life.describe(be, text, sizeof(text));
    CHECK(strstr(text, ", 2 threads"));
    backend_cpu_ops.life.destroy(be);
    backend_cpu_ops.life.destroy(NULL);
    CHECK_EQ(mem_n_alive(), alive);
}
