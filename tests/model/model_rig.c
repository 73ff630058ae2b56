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

    if (st == RD_OK) st = test_backend_ops()->create(options, &r->be, err);
    if (st == RD_OK) st = model_load(r->g, test_backend_ops(), r->be, r->max_rows, r->max_rows, NULL, &r->m, err);
    if (st != RD_OK) return st;

    const struct model_config *c = model_config(r->m);
    const struct kv_layout layout = {c->n_layers, c->n_kv_heads, c->head_dim, PAGE_TOKENS, kv_dtype, kv_dtype};

    r->n_pages = u32_ceil_div(r->n_ctx, PAGE_TOKENS);
    r->table = mem_zalloc(r->n_pages, sizeof(*r->table));
    r->row_page = mem_zalloc(r->max_rows, sizeof(*r->row_page));
    r->row_slot = mem_zalloc(r->max_rows, sizeof(*r->row_slot));
    r->positions = mem_zalloc(r->max_rows, sizeof(*r->positions));
    r->logit_rows = mem_zalloc(r->max_rows, sizeof(*r->logit_rows));
    if (!r->table || !r->row_page || !r->row_slot || !r->positions || !r->logit_rows) return RD_E_NOMEM;
    for (uint32_t i = 0; i < r->n_pages; i++) r->table[i] = r->n_pages - 1 - i;
    return test_backend_ops()->kv_create(r->be, &layout, r->n_pages, &r->kv);
}

rd_status rig_open(struct model_rig *r, const char *path, enum dtype kv_dtype, uint32_t n_ctx, uint32_t max_rows,
                   const char *isa, uint32_t n_threads)
{
    const struct backend_options options = {n_threads, isa, 0, false};
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
    if (r->kv.base) test_backend_ops()->kv_destroy(r->be, &r->kv);
    mem_free(r->table);
    mem_free(r->row_page);
    mem_free(r->row_slot);
    mem_free(r->positions);
    mem_free(r->logit_rows);
    model_destroy(r->m);
    test_backend_ops()->destroy(r->be);
    model_file_close(r->g);
    memset(r, 0, sizeof(*r));
}

rd_status rig_step(struct model_rig *r, const int32_t *tokens, uint32_t pos0, uint32_t n, uint32_t n_logits,
                   float *logits)
{
    const struct seq_run run = {0, n, pos0, r->table};
    const struct model_batch b = {.n_rows = n, .tokens = tokens, .positions = r->positions, .row_page = r->row_page,
                                  .row_slot = r->row_slot, .n_runs = 1, .runs = &run, .n_logits = n_logits,
                                  .logit_rows = r->logit_rows};

    if (n > r->max_rows || n_logits > n || pos0 + n > r->n_ctx) return RD_E_INVALID;
    for (uint32_t i = 0; i < n; i++) {
        r->positions[i] = pos0 + i;
        r->row_page[i] = r->table[(pos0 + i) / PAGE_TOKENS];
        r->row_slot[i] = (pos0 + i) % PAGE_TOKENS;
    }
    for (uint32_t i = 0; i < n_logits; i++) r->logit_rows[i] = n - n_logits + i;
    return model_forward(r->m, &r->kv, &b, logits);
}
