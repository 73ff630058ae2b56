/* tests/ops/test_attention.c - attention against double precision, and the promise: a row's bits do not depend on
 * instruction set, threads, batch, chunks or page size. Memory that no row may see holds NaN.
 */
#include "backend/cpu/rows/kv_quant.h"
#include "backend/cpu/rows/row_kernels.h"
#include "backend/kv_storage.h"
#include "base/limits.h"
#include "op_fixture.h"
#include "sanitized.h"

struct attn_case {
    uint32_t n_heads, n_kv_heads, head_dim;
    enum dtype dtype_k, dtype_v;
    uint32_t window;
    float softcap;
    uint32_t pos0, n_rows;
};

enum { LAYER = 1, N_LAYERS = 2 };

/* Logical keys and values [n_ctx, n_kv_heads, head_dim], queries [n_rows, n_heads * head_dim + 3]. */
struct fixture {
    uint32_t n_ctx, q_stride, out_stride;
    float *k, *v, *q, *want, *got;
};
struct cache {
    struct kv_storage kv;
    kv_page *table;
};

static bool fixture_init(struct fixture *f, const struct attn_case *c, struct random *r)
{
    uint64_t width = (uint64_t)c->n_heads * c->head_dim;

    f->n_ctx = c->pos0 + c->n_rows;
    f->q_stride = (uint32_t)width + 3, f->out_stride = (uint32_t)width + 1;
    f->k = op_floats(r, (uint64_t)f->n_ctx * c->n_kv_heads * c->head_dim, 1);
    f->v = op_floats(r, (uint64_t)f->n_ctx * c->n_kv_heads * c->head_dim, 1);
    f->q = op_floats(r, (uint64_t)c->n_rows * f->q_stride, 2);
    f->want = op_floats(r, (uint64_t)c->n_rows * f->out_stride, 0);
    f->got = op_floats(r, (uint64_t)c->n_rows * f->out_stride, 0);
    if (!f->k || !f->v || !f->q || !f->want || !f->got) return false;
    memset(f->want, 0, (size_t)c->n_rows * f->out_stride * sizeof(*f->want)); /* the gaps between rows stay 0 */
    memset(f->got, 0, (size_t)c->n_rows * f->out_stride * sizeof(*f->got));
    return true;
}

static void fixture_deinit(struct fixture *f)
{
    mem_free_aligned(f->k), mem_free_aligned(f->v), mem_free_aligned(f->q), mem_free_aligned(f->want),
        mem_free_aligned(f->got);
}

/* The same keys and values in pages of page_tokens, scattered; everything else NaN. */
static bool cache_init(struct cache *cache, struct backend *be, const struct attn_case *c, const struct fixture *f,
                       uint32_t page_tokens, struct random *r)
{
    struct kv_layout layout = {N_LAYERS, c->n_kv_heads, c->head_dim, page_tokens, c->dtype_k, c->dtype_v};
    uint32_t n = (f->n_ctx + page_tokens - 1) / page_tokens + 2;
    struct kv_storage *kv = &cache->kv;

    cache->table = mem_zalloc(n, sizeof(*cache->table));
    if (!cache->table || backend_cpu_ops.pages.create(be, &layout, n, kv) != RD_OK) return false;
    memset(kv->base, 0xff, (size_t)(kv->page_bytes * n));
    for (uint32_t i = 0; i < n; i++) cache->table[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)random_below(r, i + 1);
        kv_page p = cache->table[i];

        cache->table[i] = cache->table[j], cache->table[j] = p;
    }
    for (uint32_t t = 0; t < f->n_ctx; t++) {
        for (uint32_t h = 0; h < c->n_kv_heads; h++) {
            uint8_t *page = (uint8_t *)kv->base + cache->table[t / page_tokens] * kv->page_bytes;
            uint32_t slot = t % page_tokens;
            float key[LIMIT_HEAD_DIM];
            size_t at = ((size_t)t * c->n_kv_heads + h) * c->head_dim;

            memcpy(key, f->k + at, c->head_dim * sizeof(*key));
            if (kv_type_turns(c->dtype_k)) kv_turn(key, c->head_dim, kv_key_factor(c->head_dim));
            cpu_rows_ref.store_kv(c->dtype_k, key, page + kv_head_offset(kv, LAYER, 0, h) + slot * kv->row_bytes[0],
                                  c->head_dim);
            cpu_rows_ref.store_kv(c->dtype_v, f->v + at,
                                  page + kv_head_offset(kv, LAYER, 1, h) + slot * kv->row_bytes[1], c->head_dim);
        }
    }
    return true;
}

static void cache_deinit(struct cache *cache, struct backend *be)
{
    backend_cpu_ops.pages.destroy(be, &cache->kv);
    mem_free(cache->table);
}

static rd_status attend(struct backend *be, const struct attn_case *c, const struct fixture *f,
                        const struct cache *cache, const struct seq_run *runs, uint32_t n_runs, float *out)
{
    struct attention_args a = {
        .n_rows = c->n_rows,
        .layer = LAYER,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .q = span_of_host(f->q),
        .q_stride = f->q_stride,
        .out = span_of_host(out),
        .out_stride = f->out_stride,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .softcap = c->softcap,
        .window = c->window,
        .n_runs = n_runs,
        .runs = runs,
        .kv = &cache->kv,
    };

    return backend_cpu_ops.op.attention(be, &a);
}

/* Largest error of out against double precision over the cached (rounded) keys and values; values are about 1. */
static double naive_error(const struct attn_case *c, const struct fixture *f, const struct cache *cache,
                          uint32_t page_tokens)
{
    double worst = 0, *p = mem_zalloc(f->n_ctx, sizeof(*p)), *sum = mem_zalloc(c->head_dim, sizeof(*sum));
    float *x = mem_zalloc(c->head_dim, sizeof(*x));

    if (!p || !sum || !x) return INFINITY;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        uint32_t pos = c->pos0 + r, first = c->window && pos >= c->window ? pos - c->window + 1 : 0;

        for (uint32_t h = 0; h < c->n_heads; h++) {
            const float *q = f->q + (size_t)r * f->q_stride + (size_t)h * c->head_dim;
            uint32_t kv_head = h / (c->n_heads / c->n_kv_heads);
            double top = -INFINITY, total = 0;

            memset(sum, 0, c->head_dim * sizeof(*sum));
            for (int pass = 0; pass < 2; pass++) {
                for (uint32_t t = first; t <= pos; t++) {
                    const uint8_t *page = (const uint8_t *)cache->kv.base +
                                          cache->table[t / page_tokens] * cache->kv.page_bytes +
                                          t % page_tokens * cache->kv.row_bytes[pass];

                    dtype_to_float(pass ? c->dtype_v : c->dtype_k,
                                   page + kv_head_offset(&cache->kv, LAYER, (uint32_t)pass, kv_head), x, c->head_dim);
                    if (pass == 0 && kv_type_turns(c->dtype_k)) /* H H = n: turned back */
                        kv_turn(x, c->head_dim, kv_query_factor(c->head_dim));
                    if (pass == 0) {
                        p[t] = 0;
                        for (uint32_t i = 0; i < c->head_dim; i++) p[t] += (double)q[i] * x[i];
                        p[t] *= 1 / sqrt(c->head_dim);
                        if (c->softcap > 0) p[t] = c->softcap * tanh(p[t] / c->softcap);
                        top = fmax(top, p[t]);
                    } else {
                        double e = exp(p[t] - top);

                        total += e;
                        for (uint32_t i = 0; i < c->head_dim; i++) sum[i] += e * x[i];
                    }
                }
            }
            for (uint32_t i = 0; i < c->head_dim; i++) {
                double got = f->want[(size_t)r * f->out_stride + (size_t)h * c->head_dim + i];

                worst = fmax(worst, fabs(got - sum[i] / total));
                if (isnan(got)) worst = INFINITY;
            }
        }
    }
    mem_free(p), mem_free(sum), mem_free(x);
    return worst;
}

/* The rows cut at random into chunks, all of them runs of one call (each sees the cache alone, so that is the same). */
static uint32_t cut_runs(const struct attn_case *c, const struct cache *cache, struct seq_run *runs, uint32_t most,
                         struct random *r)
{
    uint32_t n = 0, row = 0;

    while (row < c->n_rows) {
        uint32_t len = n + 1 == most ? c->n_rows - row : 1 + (uint32_t)random_below(r, c->n_rows - row);

        runs[n++] = (struct seq_run){row, len, c->pos0 + row, cache->table, 0, 0};
        row += len;
    }
    return n;
}

/* The rows as one run, then as several, must give f->want. */
static void check_variant(const struct attn_case *c, const struct fixture *f, const struct cache *cache,
                          uint32_t page_tokens, enum cpu_isa isa, uint32_t n_threads, struct random *r)
{
    struct backend *be = op_backend(isa, n_threads);
    struct seq_run runs[8];
    uint64_t n = (uint64_t)c->n_rows * f->out_stride;

    CHECK(be);
    for (int round = isa == CPU_ISA_REF ? 1 : 0; round < 2; round++) {
        uint32_t n_runs = cut_runs(c, cache, runs, round == 0 ? 1 : 8, r);

        memset(f->got, 0, n * sizeof(*f->got));
        CHECK_OK(attend(be, c, f, cache, runs, n_runs, f->got));
        if (op_same(f->want, f->got, n)) continue;
        test_fail(__FILE__, __LINE__,
                  "%s, %u threads, %u runs: heads %u/%u of %u, pages of %u, window %u, rows %u at %u",
                  cpu_isa_name(isa), n_threads, n_runs, c->n_heads, c->n_kv_heads, c->head_dim, page_tokens, c->window,
                  c->n_rows, c->pos0);
        break;
    }
    backend_cpu_ops.life.destroy(be);
}

static double check_case(const struct attn_case *c, uint32_t page_tokens, struct random *r)
{
    static const uint32_t threads[] = {1, 2, 5};
    struct backend *ref = op_backend(CPU_ISA_REF, 1);
    struct fixture f = {0};
    struct cache base = {0}, cache = {0};
    struct seq_run run;
    double error = INFINITY;

    if (!ref || !fixture_init(&f, c, r) || !cache_init(&base, ref, c, &f, 32, r) ||
        !cache_init(&cache, ref, c, &f, page_tokens, r)) {
        test_fail(__FILE__, __LINE__, "no memory for the fixture");
        return error;
    }
    for (uint32_t i = 0; i < c->n_rows; i++) { /* the judge: one row at a time, pages of 32, one thread */
        run = (struct seq_run){i, 1, c->pos0 + i, base.table, 0, 0};
        if (attend(ref, c, &f, &base, &run, 1, f.want) != RD_OK) test_fail(__FILE__, __LINE__, "attention failed");
    }
    error = naive_error(c, &f, &base, 32);
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        if (!op_has_own_kernels(isa)) continue;
        for (int t = isa == CPU_ISA_REF ? 2 : 0; t < 3; t++) /* the reference is slow: once */
            check_variant(c, &f, &cache, page_tokens, (enum cpu_isa)isa, threads[t], r);
    }
    cache_deinit(&base, ref), cache_deinit(&cache, ref);
    backend_cpu_ops.life.destroy(ref);
    fixture_deinit(&f);
    return error;
}

/* Error bound of every case: 8e-6 where values are about 1 and at most about 5 (scores sum 256 products in a chain). */
#define BOUND 8e-6

TEST(head_groups_sizes_types_and_pages)
{
    static const struct attn_case cases[] = {
        {3, 3, 64, DTYPE_F16, DTYPE_F16, 0, 0, 0, 70},    {6, 3, 32, DTYPE_F16, DTYPE_F16, 0, 0, 0, 40},
        {9, 3, 64, DTYPE_F16, DTYPE_F16, 0, 0, 50, 33},   {7, 1, 16, DTYPE_BF16, DTYPE_BF16, 0, 0, 130, 9},
        {8, 1, 128, DTYPE_F16, DTYPE_F16, 0, 0, 0, 12},   {4, 1, 256, DTYPE_BF16, DTYPE_BF16, 20, 0, 0, 50},
        {4, 2, 80, DTYPE_F32, DTYPE_F32, 0, 50, 3, 30},   {2, 2, 18, DTYPE_F16, DTYPE_F16, 0, 0, 0, 66},
        {40, 1, 32, DTYPE_F32, DTYPE_F32, 0, 0, 60, 5},   {2, 1, 64, DTYPE_F16, DTYPE_F16, 1, 0, 0, 70},
        {2, 1, 64, DTYPE_F16, DTYPE_F16, 64, 30, 0, 200}, {2, 1, 34, DTYPE_BF16, DTYPE_BF16, 100, 0, 250, 40},
        {5, 1, 48, DTYPE_F32, DTYPE_F32, 65, 5, 120, 20}, {1, 1, 2, DTYPE_F16, DTYPE_F16, 0, 0, 0, 80},
    };
    static const uint32_t pages[] = {1, 4, 16, 32, 64, 128};
    struct random r;
    double worst = 0;

    random_init(&r, test_seed());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        worst = fmax(worst, check_case(&cases[i], pages[i % 6], &r));
        worst = fmax(worst, check_case(&cases[i], pages[(i + 3) % 6], &r));
    }
    test_note("largest error %.2g", worst);
    CHECK(worst < BOUND);
}

TEST(every_pair_of_kv_types)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_F8_E4M3};
    static const uint32_t dims[] = {32, 64, 96, 128, 256};
    struct random r;
    double worst = 0;

    random_init(&r, test_seed() + 2);
    for (uint32_t i = 0; i < 36; i++) {
        struct attn_case many = {4, 2, dims[i % 4], types[i / 6], types[i % 6], 0, 0, 40, 30};
        struct attn_case one = {3, 1, dims[1 + i % 4], types[i / 6], types[i % 6], i % 2 ? 200 : 0, 0, 700, 1};

        const uint32_t pages[2] = {(uint32_t)1 << random_below(&r, 8), (uint32_t)1 << random_below(&r, 8)};

        for (uint32_t k = 0; k < 2;
             k++) /* sanitized, each type of keys and each of values with both, each pair with one */
            if (!IS_SANITIZED || test_is_long() || (i / 6 + i) % 2 == k)
                worst = fmax(worst, check_case(k ? &one : &many, pages[k], &r));
    }
    test_note("largest error %.2g", worst);
    CHECK(worst < BOUND);
}

TEST(long_contexts_split_over_threads_keep_the_bits)
{
    static const struct attn_case cases[] = {
        {3, 1, 64, DTYPE_F16, DTYPE_F16, 0, 0, 2999, 1},     {2, 2, 64, DTYPE_F16, DTYPE_F16, 0, 0, 1023, 2},
        {4, 1, 32, DTYPE_BF16, DTYPE_BF16, 512, 0, 1500, 3}, {2, 1, 128, DTYPE_F32, DTYPE_F32, 700, 50, 2300, 1},
        {3, 3, 16, DTYPE_F16, DTYPE_F16, 0, 30, 255, 3},     {1, 1, 256, DTYPE_F16, DTYPE_F16, 0, 0, 1800, 1},
        {2, 1, 32, DTYPE_F16, DTYPE_F16, 300, 0, 500, 80},
    };
    struct random r;
    double worst = 0;

    random_init(&r, test_seed());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        worst = fmax(worst, check_case(&cases[i], (uint32_t)1 << random_below(&r, 8), &r));
    test_note("largest error %.2g", worst);
    CHECK(worst < BOUND);
}

TEST(random_shapes_keep_the_bits)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    static const uint32_t groups[] = {1, 2, 3, 7, 8};
    struct random r;
    double worst = 0;

    random_init(&r, test_seed() + 1);
    for (int i = 0; i < (test_is_long() ? 300 : 16); i++) {
        uint32_t n_kv = 1 + (uint32_t)random_below(&r, 3), n_heads = n_kv * groups[random_below(&r, 5)];
        struct attn_case c = {n_heads,
                              n_kv,
                              2 * (1 + (uint32_t)random_below(&r, 24)),
                              types[random_below(&r, 3)],
                              types[random_below(&r, 3)],
                              random_below(&r, 2) ? 0 : 1 + (uint32_t)random_below(&r, 300),
                              random_below(&r, 2) ? 0 : 20.0f,
                              (uint32_t)random_below(&r, 400),
                              1 + (uint32_t)random_below(&r, 12)};

        worst = fmax(worst, check_case(&c, (uint32_t)1 << random_below(&r, 8), &r));
    }
    test_note("largest error %.2g", worst);
    CHECK(worst < BOUND);
}

/* Keys with a few biases of a hundred, written by qkv_rope_write and read by attention, as q8_0 and as floats. */
static bool biased(enum dtype keys, const struct weight *bias, enum cpu_isa isa, float *out)
{
    enum { HEADS = 4, KV_HEADS = 2, DIM = 64, N = 40 };
    const struct kv_layout layout = {N_LAYERS, KV_HEADS, DIM, 16, keys, DTYPE_F32};
    static const kv_page pages[] = {2, 0, 1};
    struct backend *be = op_backend(isa, 2);
    struct seq_run run = {0, N, 0, pages, 0, 0};
    float *q, *k, *v, inv_freq[DIM / 2];
    uint32_t positions[N], slots[N];
    kv_page row_pages[N];
    struct kv_storage kv;
    struct random r;
    bool ok;

    random_init(&r, 5);
    q = op_floats(&r, N * HEADS * DIM, 1), k = op_floats(&r, N * KV_HEADS * DIM, 1);
    v = op_floats(&r, N * KV_HEADS * DIM, 1);
    if (!be || !q || !k || !v || backend_cpu_ops.pages.create(be, &layout, 3, &kv) != RD_OK) return false;
    for (uint32_t i = 0; i < DIM / 2; i++) inv_freq[i] = powf(10000.0f, -2.0f * (float)i / DIM);
    for (uint32_t i = 0; i < N; i++) {
        positions[i] = i, slots[i] = i % 16, row_pages[i] = pages[i / 16];
        for (uint32_t j = 0; j < KV_HEADS * DIM; j++) k[i * KV_HEADS * DIM + j] += ((const float *)bias->data)[j];
        for (uint32_t j = 0; j < HEADS * DIM; j++) /* as in real models, they mean little to q */
            if (((const float *)bias->data)[j / (2 * DIM) * DIM + j % (DIM / 2)] != 0) q[i * HEADS * DIM + j] *= 0.01f;
    }
    struct weight freqs = {.role = WEIGHT_VECTOR, .n_out = 1, .n_in = DIM / 2, .data = inv_freq};
    struct qkv_args w = {.n_rows = N,
                         .layer = LAYER,
                         .n_heads = HEADS,
                         .n_kv_heads = KV_HEADS,
                         .head_dim = DIM,
                         .q = span_of_host(q),
                         .q_stride = HEADS * DIM,
                         .k = span_of_host(k),
                         .k_stride = KV_HEADS * DIM,
                         .v = span_of_host(v),
                         .v_stride = KV_HEADS * DIM,
                         .k_bias = bias,
                         .positions = positions,
                         .inv_freq = &freqs,
                         .n_rot = DIM,
                         .rope_mscale = 1,
                         .layout = ROPE_HALF_SPLIT,
                         .row_page = row_pages,
                         .row_slot = slots,
                         .kv = &kv};
    struct attention_args a = {.n_rows = N,
                               .layer = LAYER,
                               .n_heads = HEADS,
                               .n_kv_heads = KV_HEADS,
                               .head_dim = DIM,
                               .q = span_of_host(q),
                               .q_stride = HEADS * DIM,
                               .out = span_of_host(out),
                               .out_stride = HEADS * DIM,
                               .k_bias = bias,
                               .layout = ROPE_HALF_SPLIT,
                               .n_rot = DIM,
                               .scale = 0.125f,
                               .n_runs = 1,
                               .runs = &run,
                               .kv = &kv};
    ok = backend_cpu_ops.op.qkv_rope_write(be, &w) == RD_OK && backend_cpu_ops.op.attention(be, &a) == RD_OK;
    backend_cpu_ops.pages.destroy(be, &kv);
    backend_cpu_ops.life.destroy(be);
    mem_free_aligned(q), mem_free_aligned(k), mem_free_aligned(v);
    return ok;
}

TEST(large_biases_of_keys_do_not_cost_the_precision_of_the_rest)
{
    enum { FLOATS = 40 * 4 * 64 };
    static float bias[128], want[FLOATS], ref[FLOATS], got[FLOATS];
    struct weight w = op_vector(bias, 128);
    double error = 0;

    bias[3] = 150, bias[20] = -90, bias[64 + 9] = 120;
    CHECK(biased(DTYPE_F32, &w, CPU_ISA_REF, want));
    CHECK(biased(DTYPE_Q8_0, &w, CPU_ISA_REF, ref));
    for (uint32_t i = 0; i < FLOATS; i++) error = fmax(error, fabs(want[i] - ref[i]));
    test_note("largest error %.2g", error);
    CHECK(error < 0.1);
    for (int isa = 1; isa <= (int)cpu_isa_best(); isa++) {
        CHECK(biased(DTYPE_Q8_0, &w, (enum cpu_isa)isa, got));
        CHECK(op_same(ref, got, FLOATS));
    }
}

TEST(a_batch_of_strangers_changes_nothing)
{
    /* Ten sequences of different lengths decode and prefill in one call, each row as alone. */
    enum { N = 10, HEADS = 6, KV_HEADS = 2, DIM = 64 };
    struct attn_case c[N];
    struct fixture f[N];
    struct cache cache[N];
    struct seq_run runs[N];
    struct random r;
    struct backend *be = op_backend(cpu_isa_best(), 3);
    struct kv_storage kv;
    uint32_t n_rows = 0, row, stride = HEADS * DIM;
    float *q, *out;

    CHECK(be);
    random_init(&r, test_seed());
    for (uint32_t i = 0; i < N; i++) {
        c[i] = (struct attn_case){
            HEADS, KV_HEADS, DIM, DTYPE_F16, DTYPE_F16, 0, 0, (uint32_t)random_below(&r, 600), i % 2 ? 1 : 1 + i * 3};
        memset(&f[i], 0, sizeof(f[i]));
        CHECK(fixture_init(&f[i], &c[i], &r));
        CHECK(cache_init(&cache[i], be, &c[i], &f[i], 32, &r));
        n_rows += c[i].n_rows;
    }
    q = op_floats(&r, (uint64_t)n_rows * stride, 0), out = op_floats(&r, (uint64_t)n_rows * stride, 0);
    CHECK(q && out);
    CHECK_OK(backend_cpu_ops.pages.create(be, &cache[0].kv.layout, 400, &kv));
    for (uint32_t i = 0, page = 0; i < N; i++) { /* all caches into one storage */
        uint32_t n = (f[i].n_ctx + 31) / 32;

        for (uint32_t j = 0; j < n; j++, page++) {
            CHECK(page < 400);
            memcpy((uint8_t *)kv.base + page * kv.page_bytes,
                   (uint8_t *)cache[i].kv.base + cache[i].table[j] * kv.page_bytes, (size_t)kv.page_bytes);
        }
    }
    row = 0;
    for (uint32_t i = 0, page = 0; i < N; i++) {
        struct seq_run alone = {0, c[i].n_rows, c[i].pos0, cache[i].table, 0, 0};

        CHECK_OK(attend(be, &c[i], &f[i], &cache[i], &alone, 1, f[i].want));
        for (uint32_t j = 0; j < c[i].n_rows; j++)
            memcpy(q + (size_t)(row + j) * stride, f[i].q + (size_t)j * f[i].q_stride, stride * sizeof(*q));
        for (uint32_t j = 0; j < (f[i].n_ctx + 31) / 32; j++) cache[i].table[j] = page++;
        runs[i] = (struct seq_run){row, c[i].n_rows, c[i].pos0, cache[i].table, 0, 0};
        row += c[i].n_rows;
    }
    struct attention_args a = {
        .n_rows = n_rows,
        .layer = LAYER,
        .n_heads = HEADS,
        .n_kv_heads = KV_HEADS,
        .head_dim = DIM,
        .q = span_of_host(q),
        .q_stride = stride,
        .out = span_of_host(out),
        .out_stride = stride,
        .scale = 1.0f / sqrtf(DIM),
        .n_runs = N,
        .runs = runs,
        .kv = &kv,
    };
    CHECK_OK(backend_cpu_ops.op.attention(be, &a));
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < c[i].n_rows; j++)
            CHECK(op_same(out + (size_t)(runs[i].row0 + j) * stride, f[i].want + (size_t)j * f[i].out_stride, stride));
    for (uint32_t i = 0; i < N; i++) cache_deinit(&cache[i], be), fixture_deinit(&f[i]);
    backend_cpu_ops.pages.destroy(be, &kv);
    backend_cpu_ops.life.destroy(be);
    mem_free_aligned(q), mem_free_aligned(out);
}

TEST(attention_allocates_nothing)
{
    struct attn_case c = {4, 2, 64, DTYPE_F16, DTYPE_F16, 0, 0, 900, 4};
    struct backend *be = op_backend(cpu_isa_best(), 2);
    struct fixture f = {0};
    struct cache cache = {0};
    struct seq_run run = {0, 4, 900, NULL, 0, 0};
    struct random r;
    uint64_t n;

    random_init(&r, test_seed());
    CHECK(be && fixture_init(&f, &c, &r) && cache_init(&cache, be, &c, &f, 32, &r));
    run.block_table = cache.table;
    n = mem_n_allocs();
    for (int i = 0; i < 10; i++) CHECK_OK(attend(be, &c, &f, &cache, &run, 1, f.got));
    CHECK_EQ(mem_n_allocs(), n);
    cache_deinit(&cache, be);
    fixture_deinit(&f);
    backend_cpu_ops.life.destroy(be);
}

TEST(more_runs_than_ever_before_need_memory_and_say_so)
{
    enum { N = 150 };
    struct attn_case c = {2, 1, 32, DTYPE_F16, DTYPE_F16, 0, 0, 10, N};
    struct backend *be = op_backend(cpu_isa_best(), 2);
    struct fixture f = {0};
    struct cache cache = {0};
    struct seq_run runs[N], whole = {0, N, 10, NULL, 0, 0};
    struct random r;

    random_init(&r, test_seed());
    CHECK(be && fixture_init(&f, &c, &r) && cache_init(&cache, be, &c, &f, 16, &r));
    whole.block_table = cache.table;
    for (uint32_t i = 0; i < N; i++) runs[i] = (struct seq_run){i, 1, 10 + i, cache.table, 0, 0};
    CHECK_OK(attend(be, &c, &f, &cache, &whole, 1, f.want));
    mem_fail_after(0);
    CHECK_EQ(attend(be, &c, &f, &cache, runs, N, f.got), RD_E_NOMEM);
    mem_fail_after(-1);
    for (uint64_t i = 0; i < (uint64_t)N * f.out_stride; i++) CHECK(f.got[i] == 0); /* nothing was done */
    CHECK_OK(attend(be, &c, &f, &cache, runs, N, f.got));
    CHECK(op_same(f.want, f.got, (uint64_t)N * f.out_stride));
    cache_deinit(&cache, be);
    fixture_deinit(&f);
    backend_cpu_ops.life.destroy(be);
}

TEST(what_does_not_fit_the_split_buffer_runs_whole_with_the_same_bits)
{
    struct attn_case c = {32, 1, 16, DTYPE_F32, DTYPE_F32,
                          0,  0, 0,  1}; /* 32 heads of 16 + 4 floats: 3,276 segments fit */
    struct backend *one = op_backend(cpu_isa_best(), 1), *two = op_backend(cpu_isa_best(), 2);
    struct kv_layout layout = {N_LAYERS, 1, 16, 64, DTYPE_F32, DTYPE_F32};
    struct fixture f = {0};
    struct cache cache = {0};
    struct seq_run run = {0, 1, 3300 * 256, NULL, 0, 0};
    struct random r;
    float *kv;

    if (IS_EMULATED) {
        test_skip("an emulated processor would take a minute; how pieces are cut is the same on all");
        backend_cpu_ops.life.destroy(one), backend_cpu_ops.life.destroy(two);
        return;
    }
    random_init(&r, test_seed());
    CHECK(one && two && fixture_init(&f, &c, &r));
    CHECK_OK(backend_cpu_ops.pages.create(one, &layout, 8, &cache.kv));
    kv = cache.kv.base;
    for (uint64_t i = 0; i < cache.kv.page_bytes * 8 / sizeof(*kv); i++) kv[i] = op_normal(&r);
    cache.table = mem_zalloc(3301 * 4, sizeof(*cache.table));
    CHECK(cache.table);
    for (uint32_t i = 0; i < 3301 * 4; i++) cache.table[i] = (kv_page)random_below(&r, 8); /* shared pages */
    run.block_table = cache.table;
    for (int fits = 0; fits < 2; fits++) { /* and what just fits is split */
        if (fits) run.pos0 = 3200 * 256;
        CHECK_OK(attend(two, &c, &f, &cache, &run, 1, f.got));
        if (IS_SANITIZED && !test_is_long()) continue; /* the buffer is what these look at */
        CHECK_OK(attend(one, &c, &f, &cache, &run, 1, f.want));
        CHECK(op_same(f.want, f.got, f.out_stride));
    }
    cache_deinit(&cache, one);
    fixture_deinit(&f);
    backend_cpu_ops.life.destroy(one);
    backend_cpu_ops.life.destroy(two);
}
