/* tests/model/model_rig.c - see model_rig.h. */
#include "model_rig.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "format/model_file.h"
#include "test.h"
#include "test_backend.h"

#define PAGE_TOKENS 16u

static rd_status rig_build(struct model_rig *r, const char *path, enum dtype kv_dtype,
                           const struct backend_options *options, struct rd_error *err)
{
    rd_status st = model_file_open(path, model_hub_families(), &r->g, err);

    if (st == RD_OK) st = test_backend_ops()->life.create(options, &r->be, err);
    if (st == RD_OK) st = model_load(r->g, test_backend_ops(), r->be, r->max_rows, r->max_rows, NULL, &r->m, err);
    if (st != RD_OK) return st;

    const struct model_config *c = model_config(r->m);
    const struct kv_layout layout = {c->n_layers, c->n_kv_heads, c->head_dim, PAGE_TOKENS, kv_dtype, kv_dtype};

    r->n_pages = u32_ceil_div(r->n_ctx, PAGE_TOKENS);
    r->table = mem_zalloc(r->n_pages, sizeof(*r->table));
    if (!r->table) return RD_E_NOMEM;
    st = model_batch_init(&r->batch, (struct model_batch_room){r->max_rows, 1, r->max_rows, 0});
    if (st != RD_OK) return st;
    for (uint32_t i = 0; i < r->n_pages; i++) r->table[i] = r->n_pages - 1 - i;
    return test_backend_ops()->pages.create(r->be, &layout, r->n_pages, &r->kv);
}

rd_status rig_open(struct model_rig *r, const char *path, enum dtype kv_dtype, uint32_t n_ctx, uint32_t max_rows,
                   const char *isa, uint32_t n_threads)
{
    const struct backend_options options = {.n_threads = n_threads, .isa = isa};
    struct rd_error err = {0};
    rd_status st;

    memset(r, 0, sizeof(*r));
    r->n_ctx = n_ctx;
    r->max_rows = max_rows;
    st = rig_build(r, path, kv_dtype, &options, &err);
    if (st != RD_OK) {
        test_note("%s: %s", path, err.text);
        rig_close(r);
    }
    return st;
}

void rig_close(struct model_rig *r)
{
    if (r->kv.base) test_backend_ops()->pages.destroy(r->be, &r->kv);
    mem_free(r->table);
    model_batch_deinit(&r->batch);
    model_destroy(r->m);
    test_backend_ops()->life.destroy(r->be);
    model_file_close(r->g);
    memset(r, 0, sizeof(*r));
}

bool rig_fill(struct model_rig *r, const int32_t *tokens, uint32_t pos0, uint32_t n, uint32_t n_logits)
{
    if (n > r->max_rows || n_logits > n || pos0 + n > r->n_ctx) return false;
    model_batch_clear(&r->batch);
    model_batch_begin_run(&r->batch, pos0, r->table, NULL);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = model_batch_add_row(&r->batch, tokens[i], PAGE_TOKENS);

        if (i >= n - n_logits) model_batch_want_logits(&r->batch, row, NULL);
    }
    return true;
}

rd_status rig_step(struct model_rig *r, const int32_t *tokens, uint32_t pos0, uint32_t n, uint32_t n_logits,
                   float *logits)
{
    if (!rig_fill(r, tokens, pos0, n, n_logits)) return RD_E_INVALID;
    return model_forward(r->m, &r->kv, &r->batch, logits);
}
