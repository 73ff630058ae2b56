/* api/api_flat.c - radish/flat.h: an executor, a pool of its pages and a table of handles, and a loop of passes over them. */
#include "radish/flat.h"
#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"
#include "kv/kv_handles.h"

_Static_assert(KV_EMPTY == RD_EMPTY && KV_MOST_HANDLES == RD_FLAT_HANDLES, "they are the same");

struct rd_flat {
    struct mutex turn; /* of what is below */
    struct model_file *file;
    struct executor *executor;
    struct executor_traits traits;
    uint32_t n_ctx, max_runs;
    struct page_pool *pool;
    struct kv_handles *handles;
    struct model_batch batch;
    float *logits; /* [max_logits, n_vocab] of a pass */
    float **to;    /* [max_logits] where each row goes */
};

static void enter(struct rd_flat *f)
{
    mutex_lock(&f->turn);
    page_pool_hand_over(f->pool);
}

static void leave(struct rd_flat *f)
{
    mutex_unlock(&f->turn);
}

/* ---- open and close ---- */

static rd_status open_model(struct rd_flat *f, const struct rd_options *o, struct rd_error *err)
{
    struct executor_options xo;
    struct kv_layout types = {0};
    struct model_config c;
    rd_status st = api_kv_type_parse(o->kv_type, &types, err);

    if (st == RD_OK) st = model_file_open(o->model, model_hub_families(), &f->file, err);
    if (st == RD_OK) st = model_read_config(f->file, &c, err);
    if (st == RD_OK) st = api_kv_type_check(&c, o, &types, err);
    if (st == RD_OK) st = api_check_reduce(o, err);
    if (st != RD_OK) return st;
    xo = api_executor_options(o, f->file, &types);
    xo.no_warm_up = true;
    xo.whole_pages = true; /* a slice sees what the window of its end sees */
    f->max_runs = xo.max_running;
    st = executor_open(&xo, &f->executor, &f->traits, err);
    if (st != RD_OK) return st;
    f->n_ctx = (uint32_t)u64_min((uint64_t)f->traits.n_pages * f->traits.layout.page_tokens, LIMIT_CONTEXT);
    if (o->n_ctx || c.n_ctx_train) f->n_ctx = u32_min(f->n_ctx, o->n_ctx ? o->n_ctx : c.n_ctx_train);
    return RD_OK;
}

static rd_status make_room(struct rd_flat *f)
{
    const struct executor *x = f->executor;
    const struct model_batch_room room = {.n_rows = x->max_rows, .n_runs = f->max_runs, .n_logits = x->max_logits};
    rd_status st = page_pool_create(f->traits.n_pages, f->traits.layout.page_tokens, &f->pool);

    if (st == RD_OK) st = kv_handles_create(f->pool, KV_MOST_HANDLES, &f->handles);
    if (st == RD_OK) st = model_batch_init(&f->batch, room);
    if (st != RD_OK) return st;
    f->logits = mem_alloc((size_t)x->max_logits * x->n_vocab, sizeof(*f->logits));
    f->to = (float **)mem_zalloc(x->max_logits, sizeof(*f->to));
    return f->logits && f->to ? RD_OK : RD_E_NOMEM;
}

rd_status rd_flat_open(const struct rd_options *o, rd_flat **out, struct rd_error *err)
{
    struct rd_flat *f;
    rd_status st;

    *out = NULL;
    if (err) *err = (struct rd_error){RD_OK, ""};
    if (api_check_size(o->size, sizeof(*o), "rd_options_default", err) != RD_OK) return RD_E_INVALID;
    if (!o->model) return error_set(err, RD_E_INVALID, "no model given");
    if (o->max_running > 4096 || o->max_chunk > 65536)
        return error_set(err, RD_E_INVALID, "max_running: at most 4096; max_chunk: at most 65536");
    if (api_is_process(o->device))
        return error_set(err, RD_E_UNSUPPORTED,
                         "a program of its own (%s) has the model: it gives no logits to handles", o->device);
    json_set_alloc_funcs(api_json_alloc, mem_free);
    f = mem_zalloc(1, sizeof(*f));
    if (!f) return error_set(err, RD_E_NOMEM, "out of memory");
    mutex_init(&f->turn);
    st = open_model(f, o, err);
    if (st == RD_OK) {
        st = make_room(f);
        if (st != RD_OK) error_set(err, st, "out of memory for a model's handles");
    }
    if (st == RD_OK) {
        *out = f;
        return RD_OK;
    }
    rd_flat_close(f);
    if (err && !err->text[0]) error_set(err, st, "cannot open the model: %s", rd_status_text(st));
    return st;
}

void rd_flat_close(rd_flat *f)
{
    if (!f) return;
    if (f->pool) page_pool_hand_over(f->pool);
    kv_handles_destroy(f->handles);
    page_pool_destroy(f->pool);
    model_batch_deinit(&f->batch);
    mem_free(f->logits);
    mem_free(f->to);
    executor_close(f->executor);
    model_file_close(f->file);
    mutex_deinit(&f->turn);
    mem_free(f);
}

void rd_flat_get_info(rd_flat *f, struct rd_flat_info *out)
{
    struct rd_flat_info all = {.n_vocab = f->executor->n_vocab,
                               .n_ctx = f->n_ctx,
                               .page_tokens = f->traits.layout.page_tokens,
                               .n_pages = f->traits.n_pages,
                               .kv_bytes = f->traits.kv_bytes,
                               .exact = !f->traits.device.is_inexact};

    api_kv_type_name(&f->traits.layout, all.kv_type, sizeof(all.kv_type));
    snprintf(all.backend, sizeof(all.backend), "%s", f->traits.about);
    enter(f);
    all.n_pages_free = page_pool_n_free(f->pool);
    all.n_handles = kv_handles_n(f->handles);
    leave(f);
    api_give(out, &all, sizeof(all), API_FIRST_FLAT);
}

/* ---- forward ---- */

static rd_status unknown(rd_handle handle, struct rd_error *err)
{
    return error_set(err, RD_E_NOT_FOUND, "handle %llu: freed before, or none of this model",
                     (unsigned long long)handle);
}

static rd_status check_run(const struct rd_flat *f, const struct rd_flat_run *r, uint32_t i, struct rd_error *err)
{
    struct kv_line base;

    if (r->n == 0) return error_set(err, RD_E_INVALID, "run %u: no tokens: at least 1 is needed", i);
    if (r->n_logits > r->n)
        return error_set(err, RD_E_INVALID, "run %u: logits of %u tokens, it has %u", i, r->n_logits, r->n);
    if (kv_handles_find(f->handles, r->base, &base) != RD_OK) return unknown(r->base, err);
    if (r->n > f->n_ctx - base.n_tokens)
        return error_set(err, RD_E_CONTEXT, "run %u: %u tokens behind %u: the context is %u", i, r->n, base.n_tokens,
                         f->n_ctx);
    for (uint32_t k = 0; k < r->n; k++)
        if (r->tokens[k] < 0 || (uint32_t)r->tokens[k] >= f->executor->n_vocab)
            return error_set(err, RD_E_INVALID, "run %u: token %d at %u: the vocabulary has %u", i, r->tokens[k], k,
                             f->executor->n_vocab);
    return RD_OK;
}

static rd_status grow(struct rd_flat *f, const struct rd_flat_run *r, uint32_t i, kv_handle *grown,
                      struct rd_error *err)
{
    const struct executor *x = f->executor;
    rd_status st = kv_handles_grow(f->handles, r->base, r->n, x->copy_rows, x->self, grown);

    if (st == RD_E_NO_PAGES)
        return error_set(err, st, "run %u: %u tokens more want pages, and %u of %u are free: free some handles", i,
                         r->n, page_pool_n_free(f->pool), f->traits.n_pages);
    if (st == RD_E_LIMIT) return error_set(err, st, "there are %u handles: no more at once", KV_MOST_HANDLES);
    return st == RD_OK ? st : error_set(err, st, "out of memory for a handle");
}

/* Rows of a run from its token `from` on, as many as the pass has room for. */
static uint32_t add_rows(struct rd_flat *f, const struct rd_flat_run *r, kv_handle grown, uint32_t from)
{
    struct model_batch *b = &f->batch;
    const uint32_t silent = r->n - r->n_logits; /* the first ones */
    const uint32_t n_silent = from < silent ? silent - from : 0;
    const uint32_t n = u32_min(u32_min(r->n - from, f->executor->max_rows - b->n_rows),
                               n_silent + f->executor->max_logits - b->n_logits);
    struct kv_line line;

    if (n == 0 || kv_handles_find(f->handles, grown, &line) != RD_OK) return 0;
    model_batch_begin_run(b, line.n_tokens - r->n + from, line.pages, NULL);
    for (uint32_t k = from; k < from + n; k++) {
        const uint32_t row = model_batch_add_row(b, r->tokens[k], f->traits.layout.page_tokens);

        if (k < silent) continue;
        f->to[b->n_logits] = r->logits + (size_t)(k - silent) * f->executor->n_vocab;
        model_batch_want_logits(b, row, NULL);
    }
    return n;
}

static rd_status compute(struct rd_flat *f, const struct rd_flat_run *runs, const kv_handle *grown, uint32_t n_runs)
{
    const size_t n_vocab = f->executor->n_vocab;
    uint32_t i = 0, at = 0;

    while (i < n_runs) {
        rd_status st;

        model_batch_clear(&f->batch);
        while (i < n_runs && f->batch.n_runs < f->max_runs) {
            at += add_rows(f, &runs[i], grown[i], at);
            if (at < runs[i].n) break;
            at = 0;
            i++;
        }
        assert(f->batch.n_rows > 0);
        st = f->executor->forward(f->executor->self, &f->batch, f->logits);
        if (st != RD_OK) return st;
        for (uint32_t k = 0; k < f->batch.n_logits; k++)
            memcpy(f->to[k], f->logits + k * n_vocab, n_vocab * sizeof(float));
    }
    return RD_OK;
}

static rd_status forward_all(struct rd_flat *f, const struct rd_flat_run *runs, uint32_t n_runs, kv_handle *grown,
                             struct rd_error *err)
{
    uint32_t n_grown = 0;
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < n_runs && st == RD_OK; i++) st = check_run(f, &runs[i], i, err);
    for (; st == RD_OK && n_grown < n_runs; n_grown += st == RD_OK)
        st = grow(f, &runs[n_grown], n_grown, &grown[n_grown], err);
    if (st == RD_OK) {
        st = compute(f, runs, grown, n_runs);
        if (st != RD_OK) error_set(err, st, "the computation failed: %s", rd_status_text(st));
    }
    for (uint32_t i = n_grown; i-- > 0;) {
        if (st != RD_OK)
            kv_handles_take_back(f->handles, grown[i]);
        else if (runs[i].out)
            *runs[i].out = grown[i];
        else
            kv_handles_free(f->handles, grown[i]);
    }
    return st;
}

rd_status rd_flat_forward_many(rd_flat *f, const struct rd_flat_run *runs, uint32_t n_runs, struct rd_error *err)
{
    kv_handle one, *grown = n_runs > 1 ? mem_alloc(n_runs, sizeof(*grown)) : &one;
    rd_status st;

    for (uint32_t i = 0; i < n_runs; i++)
        if (runs[i].out) *runs[i].out = RD_EMPTY;
    if (!grown) return error_set(err, RD_E_NOMEM, "out of memory for %u runs", n_runs);
    enter(f);
    st = forward_all(f, runs, n_runs, grown, err);
    leave(f);
    if (grown != &one) mem_free(grown);
    return st;
}

rd_status rd_flat_forward(rd_flat *f, rd_handle base, const int32_t *tokens, uint32_t n, float *logits, rd_handle *out,
                          struct rd_error *err)
{
    const struct rd_flat_run run = {base, tokens, n, logits && n > 0, logits, out};

    return rd_flat_forward_many(f, &run, 1, err);
}

/* ---- handles ---- */

rd_status rd_flat_slice(rd_flat *f, rd_handle base, uint32_t keep, rd_handle *out, struct rd_error *err)
{
    struct kv_line line;
    rd_status st;

    enter(f);
    kv_handles_find(f->handles, base, &line);
    st = kv_handles_slice(f->handles, base, keep, out);
    leave(f);
    if (st == RD_OK) return st;
    if (st == RD_E_NOT_FOUND) return unknown(base, err);
    if (st == RD_E_INVALID) return error_set(err, st, "cannot keep %u of %u tokens", keep, line.n_tokens);
    if (st == RD_E_LIMIT) return error_set(err, st, "there are %u handles: no more at once", KV_MOST_HANDLES);
    return error_set(err, st, "out of memory for a handle");
}

uint32_t rd_flat_length(rd_flat *f, rd_handle handle)
{
    struct kv_line line;

    enter(f);
    kv_handles_find(f->handles, handle, &line);
    leave(f);
    return line.n_tokens;
}

void rd_flat_free(rd_flat *f, rd_handle handle)
{
    enter(f);
    kv_handles_free(f->handles, handle);
    leave(f);
}
