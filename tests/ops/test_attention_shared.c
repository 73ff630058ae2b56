/* tests/ops/test_attention_shared.c - runs that share pages: every row has the bits that it has alone. */
#include <math.h>
#include "backend/cpu/rows/row_kernels.h"
#include "backend/kv_storage.h"
#include "base/checked.h"
#include "op_fixture.h"

#if defined(__SANITIZE_ADDRESS__)
#define N_ROUNDS 1 /* the plain C reference is slow, and twenty times as slow here */
#else
#define N_ROUNDS (IS_EMULATED ? 1 : 3)
#endif

enum { N_PAGES = 600, MAX_RUNS = 24, MAX_PAGES = 160 };

struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, window, page_tokens;
    enum dtype k, v;
    float softcap;
};

static void fill_pages(struct kv_storage *kv, struct random *r)
{
    const struct kv_layout *l = &kv->layout;
    float row[256];

    for (uint32_t page = 0; page < N_PAGES; page++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            for (uint32_t slot = 0; slot < l->page_tokens; slot++)
                for (uint32_t which = 0; which < 2; which++) {
                    for (uint32_t i = 0; i < l->head_dim; i++) row[i] = op_normal(r);
                    cpu_rows_ref.store_kv(which ? l->dtype_v : l->dtype_k, row,
                                          (uint8_t *)kv->base + page * kv->page_bytes +
                                              kv_head_offset(kv, 0, which, h) + slot * kv->row_bytes[which],
                                          l->head_dim);
                }
}

/* Runs in random order; each begins with some of the pages of an earlier one, or with none. */
static uint32_t make_runs(struct seq_run *runs, kv_page tables[MAX_RUNS][MAX_PAGES], uint32_t page_tokens,
                          struct random *r, uint32_t *n_rows)
{
    uint32_t n_runs = 2 + (uint32_t)random_below(r, MAX_RUNS - 2);

    *n_rows = 0;
    for (uint32_t i = 0; i < n_runs; i++) {
        uint32_t n_shared = 0, n = random_below(r, 6) ? 1 : 1 + (uint32_t)random_below(r, 9);
        uint32_t pos0 = (uint32_t)random_below(r, MAX_PAGES * page_tokens - 10);

        for (uint32_t k = 0; k < MAX_PAGES; k++) tables[i][k] = (kv_page)random_below(r, N_PAGES);
        if (i > 0 && random_below(r, 8)) n_shared = (uint32_t)random_below(r, MAX_PAGES + 1);
        if (n_shared) memcpy(tables[i], tables[random_below(r, i)], n_shared * sizeof(kv_page));
        runs[i] = (struct seq_run){*n_rows, n, pos0, tables[i], 0, 0};
        *n_rows += n;
    }
    return n_runs;
}

static void check_shape(const struct shape *s, enum cpu_isa isa, uint32_t n_threads, struct random *r)
{
    struct kv_layout layout = {1, s->n_kv_heads, s->head_dim, s->page_tokens, s->k, s->v};
    struct backend *be = op_backend(isa, n_threads);
    static kv_page tables[MAX_RUNS][MAX_PAGES];
    struct seq_run runs[MAX_RUNS];
    uint32_t n_rows, n_runs, stride = s->n_heads * s->head_dim;
    struct kv_storage kv;

    CHECK(be);
    CHECK_OK(backend_cpu_ops.pages.create(be, &layout, N_PAGES, &kv));
    fill_pages(&kv, r);
    for (int round = 0; round < N_ROUNDS; round++) {
        n_runs = make_runs(runs, tables, s->page_tokens, r, &n_rows);
        float *q = op_floats(r, (uint64_t)n_rows * stride, 1), *together = op_floats(r, (uint64_t)n_rows * stride, 0);
        float *alone = op_floats(r, (uint64_t)n_rows * stride, 0);
        struct attention_args a = {.n_rows = n_rows,
                                   .n_heads = s->n_heads,
                                   .n_kv_heads = s->n_kv_heads,
                                   .head_dim = s->head_dim,
                                   .q = span_of_host(q),
                                   .q_stride = stride,
                                   .out = span_of_host(together),
                                   .out_stride = stride,
                                   .scale = 1.0f / sqrtf((float)s->head_dim),
                                   .softcap = s->softcap,
                                   .window = s->window,
                                   .n_runs = n_runs,
                                   .runs = runs,
                                   .kv = &kv};

        CHECK(q && together && alone);
        CHECK_OK(backend_cpu_ops.op.attention(be, &a));
        a.out = span_of_host(alone);
        a.n_runs = 1;
        for (uint32_t i = 0; i < n_runs; i++) {
            a.runs = &runs[i];
            CHECK_OK(backend_cpu_ops.op.attention(be, &a));
        }
        CHECK(op_same(together, alone, (uint64_t)n_rows * stride));
        mem_free_aligned(q), mem_free_aligned(together), mem_free_aligned(alone);
    }
    backend_cpu_ops.pages.destroy(be, &kv);
    backend_cpu_ops.life.destroy(be);
}

TEST(runs_that_share_pages_have_the_bits_of_each_alone)
{
    static const struct shape shapes[] = {
        {14, 2, 64, 0, 16, DTYPE_F16, DTYPE_F16, 0},    {9, 3, 64, 0, 8, DTYPE_F16, DTYPE_F16, 0},
        {4, 1, 256, 512, 16, DTYPE_F16, DTYPE_F16, 0},  {8, 4, 80, 300, 4, DTYPE_BF16, DTYPE_F32, 30},
        {12, 2, 128, 0, 16, DTYPE_Q8_0, DTYPE_Q8_0, 0}, {32, 2, 64, 0, 16, DTYPE_Q8_0, DTYPE_Q4_0, 0}};
    struct random r;

    random_init(&r, test_seed());
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        check_shape(&shapes[i], cpu_isa_best(), 1 + (uint32_t)i % 3, &r);
        if (i % 2 == 0) check_shape(&shapes[i], CPU_ISA_REF, 2, &r);
    }
}

TEST(equal_runs_and_drafts_share_everything_before_them)
{
    enum { N = 12, POS = 1000 };
    const struct shape s = {6, 2, 64, 0, 16, DTYPE_F16, DTYPE_F16, 0};
    struct kv_layout layout = {1, s.n_kv_heads, s.head_dim, s.page_tokens, s.k, s.v};
    struct backend *be = op_backend(cpu_isa_best(), 2);
    kv_page table[MAX_PAGES];
    struct seq_run runs[N];
    struct kv_storage kv;
    struct random r;
    uint32_t stride = s.n_heads * s.head_dim;

    random_init(&r, test_seed());
    CHECK(be);
    CHECK_OK(backend_cpu_ops.pages.create(be, &layout, N_PAGES, &kv));
    fill_pages(&kv, &r);
    for (uint32_t k = 0; k < MAX_PAGES; k++) table[k] = k;
    for (uint32_t i = 0; i < N; i++)
        runs[i] = (struct seq_run){i, 1, POS + i, table, 0, 0}; /* one table, rows in a row */
    float *q = op_floats(&r, N * stride, 1), *apart = op_floats(&r, N * stride, 0),
          *whole = op_floats(&r, N * stride, 0);
    const struct seq_run one = {0, N, POS, table, 0, 0};
    struct attention_args a = {.n_rows = N,
                               .n_heads = s.n_heads,
                               .n_kv_heads = s.n_kv_heads,
                               .head_dim = s.head_dim,
                               .q = span_of_host(q),
                               .q_stride = stride,
                               .out = span_of_host(apart),
                               .out_stride = stride,
                               .scale = 0.125f,
                               .n_runs = N,
                               .runs = runs,
                               .kv = &kv};

    CHECK_OK(backend_cpu_ops.op.attention(be, &a));
    a.out = span_of_host(whole), a.n_runs = 1, a.runs = &one;
    CHECK_OK(backend_cpu_ops.op.attention(be, &a));
    CHECK(op_same(apart, whole, N * stride));
    mem_free_aligned(q), mem_free_aligned(apart), mem_free_aligned(whole);
    backend_cpu_ops.pages.destroy(be, &kv);
    backend_cpu_ops.life.destroy(be);
}
