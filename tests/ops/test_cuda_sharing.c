/* tests/ops/test_cuda_sharing.c - sequences that begin with the same pages, on a GPU: who shares what with whom, and
 * that a row has the bits that it has alone, where nothing is shared, with runs of no rows (padding) beside it or not.
 * Only where the build has CUDA; the second only with a GPU. */
#include <math.h>
#include <string.h>
#include "backend/backend.h"
#include "backend/kv_storage.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#ifdef RADISH_CUDA

extern const struct backend_ops backend_cuda_ops;

#include "backend/cuda/host/cuda_sharing.h"

enum { N_RUNS = 40, N_PADDING = 9, N_PAGES = 400, TABLE = 300 };

/* Runs whose tables begin as an earlier one's do, or not. */
static void make_runs(struct random *r, uint32_t n_runs, uint32_t page_tokens, struct cuda_run *runs, uint32_t *tables)
{
    uint32_t row = 0;

    for (uint32_t i = 0; i < n_runs; i++) {
        uint32_t n_shared = i > 0 && random_below(r, 5) ? (uint32_t)random_below(r, TABLE + 1) : 0;
        uint32_t *table = tables + i * TABLE;
        uint32_t n_rows = random_below(r, 8) ? 1 : 1 + (uint32_t)random_below(r, 6);

        for (uint32_t k = 0; k < TABLE; k++) table[k] = (uint32_t)random_below(r, N_PAGES);
        if (n_shared) memcpy(table, tables + random_below(r, i) * TABLE, n_shared * sizeof(*table));
        runs[i] = (struct cuda_run){.row0 = row,
                                    .n_rows = n_rows,
                                    .pos0 = (uint32_t)random_below(r, TABLE * page_tokens - n_rows),
                                    .table = i * TABLE};
        row += n_rows;
    }
}

/* Every claim of a group against its members' tables, and the segments saved. */
static void check_groups(const struct cuda_run *runs, uint32_t n_runs, const uint32_t *tables, uint32_t page_tokens,
                         const struct cuda_shared *s, uint64_t claimed)
{
    uint32_t n_members = 0;
    uint64_t saved = 0;

    for (uint32_t g = 0; g < s->head->n_groups; g++) {
        const struct cuda_group *group = &s->groups[g];
        uint32_t rows = 0, n_in = 0;

        CHECK(group->n_segments > 0 && group->n_segments <= s->head->longest);
        CHECK_EQ(group->first_member, n_members);
        for (uint32_t i = 0; i < n_runs; i++) {
            const struct cuda_shared_run *run = &s->runs[i];

            if (!run->n_segments || run->member < n_members || run->member >= n_members + group->n_members) continue;
            CHECK_EQ(run->n_segments, group->n_segments);
            CHECK(runs[i].pos0 >= group->n_segments * 128);
            CHECK(memcmp(tables + runs[i].table, tables + group->table,
                         group->n_segments * 128 / page_tokens * sizeof(*tables)) == 0);
            CHECK_EQ(run->member, n_members + rows);
            for (uint32_t r = 0; r < runs[i].n_rows; r++) CHECK_EQ(s->rows[n_members + rows + r], runs[i].row0 + r);
            rows += runs[i].n_rows;
            n_in++;
        }
        CHECK_EQ(rows, group->n_members);
        CHECK(n_in > 1);
        n_members += rows;
        saved += (uint64_t)(n_in - 1) * group->n_segments;
    }
    CHECK_EQ(n_members, s->head->n_members);
    CHECK_EQ(saved, claimed);
}

TEST(cuda_groups_have_in_common_what_they_say)
{
    static const uint32_t sizes[] = {8, 16, 64, 128};
    static uint32_t tables[N_RUNS * TABLE];
    struct cuda_run runs[N_RUNS];
    void *memory = mem_zalloc(1, cuda_sharing_bytes(N_RUNS));
    uint64_t all = 0;
    struct random r;

    CHECK(memory);
    random_init(&r, test_seed());
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n_runs = 1 + (uint32_t)random_below(&r, N_RUNS), page_tokens = sizes[round % 4];
        uint64_t saved;

        make_runs(&r, n_runs, page_tokens, runs, tables);
        saved = cuda_sharing_make(runs, n_runs, tables, page_tokens, memory);
        struct cuda_shared s = cuda_sharing_view(memory, n_runs);
        check_groups(runs, n_runs, tables, page_tokens, &s, saved);
        all += saved;
    }
    CHECK(all > 1000);
    mem_free(memory);
}

TEST(cuda_groups_are_cut_where_most_is_saved_and_end_before_new_rows)
{
    enum { N = 6 };
    static uint32_t tables[N * TABLE];
    struct cuda_run runs[N];
    void *memory = mem_zalloc(1, cuda_sharing_bytes(N));
    struct cuda_shared s;

    CHECK(memory);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < TABLE; k++) tables[i * TABLE + k] = k < (i < 2 ? 200 : 80) ? k : 1000 * i + k;
        runs[i] = (struct cuda_run){.row0 = i, .n_rows = 1, .pos0 = 3999, .table = i * TABLE};
    }
    CHECK_EQ(cuda_sharing_make(runs, N, tables, 16, memory), 5 * 10); /* 80 pages of all, not 200 of two */
    s = cuda_sharing_view(memory, N);
    CHECK_EQ(s.head->n_groups, 1);
    CHECK_EQ(s.groups[0].n_members, N);
    runs[3].pos0 = 1279; /* its row lies in the tenth segment */
    CHECK_EQ(cuda_sharing_make(runs, N, tables, 16, memory), 5 * 9);
    runs[3].pos0 = 1280;
    CHECK_EQ(cuda_sharing_make(runs, N, tables, 16, memory), 5 * 10);
    runs[3].n_rows = 5; /* a prompt's */
    CHECK_EQ(cuda_sharing_make(runs, N, tables, 16, memory), 4 * 10);
    CHECK_EQ(s.runs[3].n_segments, 0);
    CHECK_EQ(cuda_sharing_make(runs, 1, tables, 16, memory), 0);
    mem_free(memory);
}

/* ---- on a GPU ---- */

struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, page_tokens, window;
    enum dtype dtype;
    float softcap;
};

static float *random_floats(struct random *r, uint64_t n)
{
    float *x = mem_zalloc(n, sizeof(*x));

    for (uint64_t i = 0; x && i < n; i++) x[i] = (float)(random_unit(r) + random_unit(r) + random_unit(r) - 1.5);
    return x;
}

static void check_shape(struct backend *be, struct random *r, const struct shape *s)
{
    static uint32_t tables[N_RUNS * TABLE];
    const struct backend_ops *ops = &backend_cuda_ops;
    struct kv_layout layout = {1, s->n_kv_heads, s->head_dim, s->page_tokens, s->dtype, s->dtype};
    struct cuda_run made[N_RUNS];
    struct seq_run runs[N_RUNS + N_PADDING];
    uint32_t width = s->n_heads * s->head_dim, n_rows;
    void *shared = mem_zalloc(1, cuda_sharing_bytes(N_RUNS));
    struct kv_storage kv = {0};
    struct buffer *q_device = NULL, *out_device = NULL;

    CHECK_OK(ops->pages.create(be, &layout, N_PAGES, &kv));
    uint64_t n_numbers = N_PAGES * kv.page_bytes / 2;
    uint16_t *numbers = mem_zalloc(n_numbers, 2); /* halves of 2^-8 .. 2, or bf16 of 2^-64 .. 2 */
    CHECK(numbers);
    for (uint64_t i = 0; i < n_numbers; i++)
        numbers[i] = (uint16_t)((0x1C00 + random_below(r, 0x2400)) | random_below(r, 2) << 15);
    for (kv_page id = 0; id < N_PAGES; id++)
        CHECK_OK(ops->pages.write(be, &kv, id, (const char *)numbers + id * kv.page_bytes));
    CHECK_OK(ops->memory.sync(be));
    CHECK(shared);
    make_runs(r, N_RUNS, s->page_tokens, made, tables);
    for (uint32_t i = 0; i < N_RUNS; i++) { /* most of them long and alike: too little is not shared */
        if (i % 4 == 3) continue;
        if (i > 0) memcpy(tables + i * TABLE, tables, (TABLE - 20) * sizeof(*tables));
        made[i].pos0 = TABLE * s->page_tokens - 8 - i;
    }
    CHECK(cuda_sharing_make(made, N_RUNS, tables, s->page_tokens, shared) * s->n_kv_heads >= CUDA_SHARING_LEAST);
    mem_free(shared);
    for (uint32_t i = 0; i < N_RUNS; i++)
        runs[i] = (struct seq_run){made[i].row0, made[i].n_rows, made[i].pos0, tables + made[i].table, 0, 0};
    n_rows = made[N_RUNS - 1].row0 + made[N_RUNS - 1].n_rows;
    for (uint32_t i = 0; i < N_PADDING; i++) runs[N_RUNS + i] = (struct seq_run){n_rows + i, 0, 0, tables, 0, 0};
    uint64_t n = (uint64_t)n_rows * width, n_padded = n + N_PADDING * width;
    float *q = random_floats(r, n_padded), *together = mem_zalloc(n, sizeof(float)),
          *alone = mem_zalloc(n, sizeof(float));
    CHECK(q && together && alone);
    CHECK_OK(ops->memory.alloc(be, n_padded * sizeof(float), &q_device));
    CHECK_OK(ops->memory.alloc(be, n_padded * sizeof(float), &out_device));
    CHECK_OK(ops->memory.write(be, span_of(q_device, 0), q, n_padded * sizeof(float)));
    struct attention_args a = {.n_rows = n_rows + N_PADDING,
                               .n_heads = s->n_heads,
                               .n_kv_heads = s->n_kv_heads,
                               .head_dim = s->head_dim,
                               .q = span_of(q_device, 0),
                               .q_stride = width,
                               .out = span_of(out_device, 0),
                               .out_stride = width,
                               .scale = 1.0f / sqrtf((float)s->head_dim),
                               .softcap = s->softcap,
                               .window = s->window,
                               .n_runs = N_RUNS + N_PADDING,
                               .runs = runs,
                               .kv = &kv};
    CHECK_OK(ops->op.attention(be, &a));
    CHECK_OK(ops->memory.read(be, together, span_of(out_device, 0), n * sizeof(float)));
    CHECK_OK(ops->memory.sync(be));
    a.n_rows = n_rows;
    a.n_runs = 1;
    for (uint32_t i = 0; i < N_RUNS; i++) {
        a.runs = &runs[i];
        CHECK_OK(ops->op.attention(be, &a));
    }
    CHECK_OK(ops->memory.read(be, alone, span_of(out_device, 0), n * sizeof(float)));
    CHECK_OK(ops->memory.sync(be));
    CHECK(memcmp(together, alone, n * sizeof(float)) == 0);
    ops->memory.free(be, q_device);
    ops->memory.free(be, out_device);
    ops->pages.destroy(be, &kv);
    mem_free(numbers), mem_free(q), mem_free(together), mem_free(alone);
}

TEST(cuda_rows_that_begin_with_the_same_pages_have_their_bits_alone_beside_padding)
{
    static const struct shape shapes[] = {{32, 8, 128, 16, 0, DTYPE_F16, 0},    {16, 8, 128, 16, 0, DTYPE_BF16, 0},
                                          {14, 7, 64, 32, 0, DTYPE_F16, 0},     {32, 8, 64, 16, 0, DTYPE_BF16, 30},
                                          {12, 12, 128, 64, 0, DTYPE_F16, 50},  {32, 8, 128, 16, 1000, DTYPE_F16, 0},
                                          {8, 8, 128, 16, 99999, DTYPE_F16, 0}, {16, 8, 256, 16, 0, DTYPE_F16, 0}};
    struct backend_options o = {.n_threads = 2};
    struct rd_error err = {RD_OK, ""};
    struct backend *be = NULL;
    struct random r;

    random_init(&r, test_seed());
    if (backend_cuda_ops.life.create(&o, &be, &err) != RD_OK) {
        test_skip("%s", err.text);
        return;
    }
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) check_shape(be, &r, &shapes[i]);
    backend_cuda_ops.life.destroy(be);
}

#else

TEST(cuda_sharing_is_tested_in_the_build_with_cuda)
{
    test_skip("this build has no CUDA (cmake --preset cuda)");
}

#endif
