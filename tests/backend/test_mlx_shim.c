/* tests/backend/test_mlx_shim.c - what MLX throws comes out as a status with its text, and the next call works; pages are updated
 * where they are. In builds that have MLX. */
#include "backend/backend_registry.h"
#include "test.h"
#ifdef RADISH_MLX
#include "backend/mlx/mlx_backend.h"

static struct mlx_context *open_context(void)
{
    char why[256] = "";
    struct mlx_context *g = mlx_open(mlx_has_gpu(), why, sizeof(why));

    if (!g) test_fail(__FILE__, __LINE__, "mlx_open: %s", why);
    return g;
}

static mlx_ref some(struct mlx_context *g, int32_t rows, int32_t width)
{
    return mlx_zeros(g, MLX_F32, (struct mlx_shape){2, {rows, width}});
}

TEST(what_mlx_throws_is_a_status)
{
    struct mlx_context *g = open_context();
    char why[256];
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    mlx_ref bad, after;

    CHECK(g != NULL);
    bad = mlx_add(g, some(g, 2, 3), some(g, 4, 5)); /* shapes that do not go together */
    after = mlx_tanh(g, mlx_multiply(g, bad, bad)); /* what hangs on it */
    CHECK(!bad && !after && !mlx_get(g, after, y, sizeof(y)));
    CHECK_EQ(mlx_failure(g, why, sizeof(why)), RD_E_DEVICE);
    CHECK(strstr(why, "broadcast") != NULL);
    CHECK_EQ(mlx_failure(g, why, sizeof(why)), RD_OK);

    bad = mlx_reshape(g, some(g, 2, 3), (struct mlx_shape){1, {7}});
    CHECK(!bad && mlx_failure(g, why, sizeof(why)) == RD_E_DEVICE);
    bad =
        mlx_zeros(g, MLX_F32, (struct mlx_shape){4, {1 << 14, 1 << 14, 1 << 14, 1 << 10}}); /* 16 PiB, when computed */
    CHECK(bad && !mlx_eval(g, 1, &bad));
    CHECK_EQ(mlx_failure(g, why, sizeof(why)), RD_E_NOMEM);

    after = mlx_add(g, mlx_from(g, MLX_F32, (struct mlx_shape){1, {4}}, x),
                    mlx_from(g, MLX_F32, (struct mlx_shape){1, {4}}, x));
    CHECK(mlx_get(g, after, y, sizeof(y)) && y[0] == 2 && y[3] == 8);
    CHECK_EQ(mlx_failure(g, why, sizeof(why)), RD_OK);
    mlx_end(g);
    mlx_close(g);
}

TEST(a_gpu_that_is_not_there_is_refused_with_the_reason)
{
    char why[256] = "";

    if (mlx_has_gpu()) return;
    CHECK(mlx_open(true, why, sizeof(why)) == NULL && why[0]);
}

TEST(freed_arrays_are_given_back)
{
    struct mlx_context *g = open_context();
    struct mlx_memory before, held, kept, cleared;
    mlx_ref a;

    CHECK(g != NULL);
    mlx_memory_read(&before);
    a = some(g, 1024, 4096);
    CHECK(mlx_eval(g, 1, &a));
    mlx_memory_read(&held);
    mlx_end(g);
    mlx_memory_read(&kept);
    CHECK(mlx_memory_clear(g));
    mlx_memory_read(&cleared);
    CHECK(held.active >= before.active + (16u << 20) && held.peak >= held.active && held.limit > 0);
    CHECK(kept.active <= before.active && kept.cache >= (16u << 20) && cleared.cache == 0);
    mlx_close(g);
}

/* Steps that write rows, attention that reads them, copies and pages that come and go: the arrays behind the pages stay where they
 * are, or every step would copy the whole cache. */
TEST(pages_are_updated_where_they_are)
{
    enum { HEADS = 2, DIM = 32, ROWS = 4 };
    const struct kv_layout layout = {2, HEADS, DIM, 16, DTYPE_F16, DTYPE_F16};
    const struct backend_ops *ops = backend_find("mlx")->ops;
    const struct backend_options o = {.n_threads = 1};
    const void *where[4];
    const kv_page table[1] = {5};
    uint32_t positions[ROWS] = {0, 1, 2, 3}, slots[ROWS] = {0, 1, 2, 3};
    kv_page pages[ROWS] = {5, 5, 5, 5};
    float freq[DIM / 2], *page;
    struct host_tensor host = {"freq", DTYPE_F32, 1, DIM / 2, freq, false, NULL, 0};
    struct rd_error err = {RD_OK, ""};
    struct backend *be = NULL;
    struct kv_storage kv = {0};
    struct buffer *b = NULL;
    struct weight w = {0};

    for (int i = 0; i < DIM / 2; i++) freq[i] = 1.0f / (float)(i + 1);
    CHECK_OK(ops->life.create(&o, &be, &err));
    CHECK_OK(ops->pages.create(be, &layout, 8, &kv));
    CHECK_OK(ops->weights.load(be, &host, WEIGHT_VECTOR, &w, &err));
    CHECK_OK(ops->memory.alloc(be, 4 * ROWS * HEADS * DIM * sizeof(float), &b));
    page = malloc(kv.page_bytes);
    CHECK(page != NULL);
    for (uint32_t i = 0; i < 4; i++) where[i] = mlx_address_of(((struct mlx_pages *)kv.base)->arrays[i]);
    for (int step = 0; step < 5; step++) {
        const struct seq_run run = {0, ROWS, 0, table, 0, 0};
        struct qkv_args q = {.n_rows = ROWS,
                             .n_heads = HEADS,
                             .n_kv_heads = HEADS,
                             .head_dim = DIM,
                             .positions = positions,
                             .inv_freq = &w,
                             .n_rot = DIM,
                             .rope_mscale = 1,
                             .row_page = pages,
                             .row_slot = slots,
                             .kv = &kv,
                             .q_stride = HEADS * DIM,
                             .k_stride = HEADS * DIM,
                             .v_stride = HEADS * DIM};
        struct attention_args a = {.n_rows = ROWS,
                                   .n_heads = HEADS,
                                   .n_kv_heads = HEADS,
                                   .head_dim = DIM,
                                   .scale = 0.1f,
                                   .n_runs = 1,
                                   .runs = &run,
                                   .kv = &kv,
                                   .q_stride = HEADS * DIM,
                                   .out_stride = HEADS * DIM};

        q.q = a.q = span_of(b, 0);
        q.k = span_add(q.q, ROWS * HEADS * DIM);
        q.v = span_add(q.k, ROWS * HEADS * DIM);
        a.out = span_add(q.v, ROWS * HEADS * DIM);
        for (q.layer = a.layer = 0; q.layer < 2; a.layer = ++q.layer) {
            CHECK_OK(ops->op.qkv_rope_write(be, &q));
            CHECK_OK(ops->op.attention(be, &a));
        }
        CHECK_OK(ops->memory.sync(be));
        CHECK_OK(ops->pages.copy_rows(be, &kv, 2, 5, 3));
        CHECK_OK(ops->pages.read(be, &kv, page, 2));
        CHECK_OK(ops->pages.write(be, &kv, 1, page));
        CHECK_OK(ops->memory.sync(be));
    }
    for (uint32_t i = 0; i < 4; i++) CHECK(mlx_address_of(((struct mlx_pages *)kv.base)->arrays[i]) == where[i]);
    free(page);
    ops->memory.free(be, b);
    ops->weights.unload(be, &w);
    ops->pages.destroy(be, &kv);
    ops->life.destroy(be);
}
#else
TEST(the_shim_is_in_builds_that_have_mlx)
{
    CHECK(backend_find("mlx")->ops == NULL);
    test_skip("this build is without MLX");
}
#endif
