/* engine/executors/model_executor.c - forwards the engine's batch to the model, and page copies to the backend. */
#include "engine/executors/model_executor.h"
#include <string.h>
#include "backend/compose.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/mem.h"

#define MOVE_AT_ONCE 64u /* pages: their addresses lie on the stack */

/* Of a rank without heads there is nothing to keep. */
static rd_status create_pages(struct model_executor *x, const struct kv_layout *layout, uint32_t n_pages,
                              struct kv_storage *out)
{
    if (layout->n_kv_heads > 0) return x->ops->pages.create(x->backend, layout, n_pages, out);
    *out = (struct kv_storage){.layout = *layout, .n_pages = n_pages};
    return RD_OK;
}

rd_status model_executor_init(struct model_executor *x, const struct backend_ops *ops, struct backend *backend,
                              struct model *model, const struct kv_layout *layout, uint32_t n_pages)
{
    memset(x, 0, sizeof(*x));
    x->ops = ops;
    x->backend = backend;
    x->model = model;
    return create_pages(x, layout, n_pages, &x->kv);
}

uint32_t model_executor_window_layers(const struct backend_ops *ops, const struct model_config *c)
{
    uint32_t n = c->n_layers - model_n_global(c, c->n_layers);

    return ops->traits.keeps_windows && n < c->n_layers && c->window < c->n_ctx_train ? n : 0;
}

rd_status model_executor_init_windows(struct model_executor *x, const struct backend_ops *ops, struct backend *backend,
                                      struct model *model, const struct kv_layout *layout, uint32_t n_pages,
                                      uint32_t n_windows, uint32_t max_rows)
{
    const struct model_config *c = model_config(model);
    struct kv_layout global = *layout, local = *layout;
    rd_status st;

    local.n_layers = model_executor_window_layers(ops, c);
    global.n_layers -= local.n_layers;
    st = model_executor_init(x, ops, backend, model, &global, n_pages);
    if (st != RD_OK || local.n_layers == 0) return st;
    x->window = c->window;
    x->row_windows = mem_zalloc(max_rows, sizeof(*x->row_windows));
    x->window_runs = mem_zalloc(max_rows, sizeof(*x->window_runs));
    st = x->row_windows && x->window_runs ? create_pages(x, &local, n_windows, &x->windows) : RD_E_NOMEM;
    x->windows.window = c->window;
    if (st != RD_OK) model_executor_deinit(x);
    return st;
}

void model_executor_deinit(struct model_executor *x)
{
    if (x->kv.base) x->ops->pages.destroy(x->backend, &x->kv);
    if (x->windows.base) x->ops->pages.destroy(x->backend, &x->windows);
    mem_free(x->row_windows);
    mem_free(x->window_runs);
    x->kv.base = x->windows.base = NULL;
    x->row_windows = NULL;
    x->window_runs = NULL;
}

static void use_windows(void *self, const uint32_t *of)
{
    ((struct model_executor *)self)->window_of = of;
}

/* The same batch, which says where the windows of its rows are. */
static struct model_batch with_windows(struct model_executor *x, const struct model_batch *batch)
{
    struct model_batch b = *batch;

    for (uint32_t i = 0; i < b.n_runs; i++) {
        x->window_runs[i] = b.runs[i];
        x->window_runs[i].block_table = b.run_windows[i];
    }
    for (uint32_t i = 0; i < b.n_rows; i++) x->row_windows[i] = x->window_of[b.row_page[i]];
    b.windows = (struct model_windows){&x->windows, x->row_windows, x->window_runs};
    return b;
}

static rd_status forward(void *self, const struct model_batch *batch, float *logits)
{
    struct model_executor *x = self;
    const struct model_batch b = x->window ? with_windows(x, batch) : *batch;
    rd_status st = model_forward(x->model, &x->kv, &b, logits);

    if (x->n_copy_failed) { /* a copy before this step failed: its rows are not to be trusted */
        x->n_copy_failed = 0;
        return RD_E_DEVICE;
    }
    return st;
}

static rd_status begin(void *self, const struct model_batch *batch, const uint32_t *from)
{
    struct model_executor *x = self;
    const struct model_batch b = x->window ? with_windows(x, batch) : *batch;

    return model_begin(x->model, &x->kv, &b, from);
}

static rd_status end(void *self)
{
    struct model_executor *x = self;
    rd_status st = model_end(x->model);

    if (x->n_copy_failed) { /* as in forward */
        x->n_copy_failed = 0;
        return RD_E_DEVICE;
    }
    return st;
}

static rd_status warm_up(void *self)
{
    struct model_executor *x = self;

    return model_warm_up(x->model, &x->kv, x->window ? &x->windows : NULL);
}

static rd_status head(void *self, uint32_t n, const float *const *states, float *logits)
{
    struct model_executor *x = self;

    return model_head(x->model, n, states, logits);
}

static rd_status read_logits(void *self, uint32_t row, float *logits)
{
    return model_read_logits(((struct model_executor *)self)->model, row, logits);
}

static void *page(void *self, kv_page id)
{
    struct model_executor *x = self;

    return backend_page(x->ops, &x->kv, id);
}

/* A page's bytes, then its window's, then whether it has one: executor_has_window. */
static rd_status page_out(void *self, kv_page id, void *to)
{
    struct model_executor *x = self;
    uint8_t *window = (uint8_t *)to + x->kv.page_bytes;
    uint64_t has_window = x->window && x->window_of[id] != KV_NO_PAGE;
    rd_status st = backend_page_out(x->ops, x->backend, &x->kv, id, to);

    if (st != RD_OK || !x->window) return st;
    memcpy(window + x->windows.page_bytes, &has_window, sizeof(has_window));
    if (has_window) return backend_page_out(x->ops, x->backend, &x->windows, x->window_of[id], window);
    memset(window, 0, x->windows.page_bytes);
    return RD_OK;
}

static rd_status page_in(void *self, kv_page id, const void *from)
{
    struct model_executor *x = self;
    rd_status st = backend_page_in(x->ops, x->backend, &x->kv, id, from);

    if (st != RD_OK || !x->window || x->window_of[id] == KV_NO_PAGE) return st;
    return backend_page_in(x->ops, x->backend, &x->windows, x->window_of[id], (const uint8_t *)from + x->kv.page_bytes);
}

/* The windows of some pages, at most MOVE_AT_ONCE, between them and their places; which have one stands there, or will. */
static rd_status move_windows(struct model_executor *x, const struct page_places *at, bool out, uint32_t n,
                              const kv_page *ids, void *const *host, uint64_t *ticket)
{
    kv_page windows[MOVE_AT_ONCE];
    void *bytes[MOVE_AT_ONCE];
    uint32_t n_windows = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint8_t *page = host[i];
        uint64_t has_window = x->window_of[ids[i]] != KV_NO_PAGE, had_window = has_window;

        if (out)
            memcpy(page + at->word, &has_window, sizeof(has_window));
        else
            memcpy(&had_window, page + at->word, sizeof(had_window));
        if (!has_window || !had_window) continue;
        windows[n_windows] = x->window_of[ids[i]];
        bytes[n_windows++] = page + at->window;
    }
    return n_windows ? backend_move_begin(x->ops, x->backend, &x->windows, out, n_windows, windows, bytes, ticket)
                     : RD_OK;
}

/* Pages without their windows, at most MOVE_AT_ONCE. */
static rd_status move_pages(struct model_executor *x, const struct page_places *at, bool out, uint32_t n,
                            const kv_page *ids, void *const *host, uint64_t *ticket)
{
    void *bytes[MOVE_AT_ONCE];

    for (uint32_t i = 0; i < n; i++) bytes[i] = (uint8_t *)host[i] + at->page;
    return backend_move_begin(x->ops, x->backend, &x->kv, out, n, ids, bytes, ticket);
}

/* Where a later copy fails to begin, nothing of the earlier ones is under way (backend_async). */
rd_status model_executor_move(struct model_executor *x, const struct page_places *at, bool out, uint32_t n,
                              const kv_page *ids, void *const *host, uint64_t *ticket)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < n && st == RD_OK; i += MOVE_AT_ONCE)
        st = move_pages(x, at, out, u32_min(n - i, MOVE_AT_ONCE), ids + i, host + i, ticket);
    for (uint32_t i = 0; x->window && i < n && st == RD_OK; i += MOVE_AT_ONCE)
        st = move_windows(x, at, out, u32_min(n - i, MOVE_AT_ONCE), ids + i, host + i, ticket);
    return st;
}

static rd_status move_begin(void *self, bool out, uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket)
{
    struct model_executor *x = self;
    const struct page_places at = {0, x->kv.page_bytes, x->kv.page_bytes + x->windows.page_bytes};

    return model_executor_move(x, &at, out, n, ids, host, ticket);
}

static rd_status move_end(void *self, bool out, uint64_t ticket, bool wait)
{
    struct model_executor *x = self;

    return backend_move_end(x->ops, x->backend, out, ticket, wait);
}

static bool is_dead(void *self)
{
    struct model_executor *x = self;

    if (model_is_broken(x->model)) {
        log_error("the model's file, or its packed copy, was cut short or its disk failed while it was in use");
        return true;
    }
    return backend_is_dead(x->ops, x->backend);
}

static void pin(void *self, void *p, uint64_t n_bytes, bool on)
{
    struct model_executor *x = self;

    x->ops->memory.pin(x->backend, p, n_bytes, on);
}

static void copy_rows(void *self, kv_page to, kv_page from, uint32_t n_rows)
{
    struct model_executor *x = self;

    if (x->ops->pages.copy_rows(x->backend, &x->kv, to, from, n_rows) != RD_OK) x->n_copy_failed++;
    if (x->window &&
        x->ops->pages.copy_rows(x->backend, &x->windows, x->window_of[to], x->window_of[from], n_rows) != RD_OK)
        x->n_copy_failed++;
}

static rd_status image_begin(void *self, struct vision_image *image, struct vision_run **out)
{
    return vision_run_begin(((struct model_executor *)self)->eyes, image, out);
}

static rd_status image_step(void *self, struct vision_run *run, uint64_t n_flops, uint64_t *n_done)
{
    (void)self;
    return vision_run_step(run, n_flops, n_done);
}

static uint32_t image_phase(void *self, const struct vision_run *run)
{
    (void)self;
    return vision_run_phase(run);
}

static const float *image_rows(void *self, const struct vision_run *run)
{
    (void)self;
    return vision_run_rows(run);
}

static void image_end(void *self, struct vision_run *run)
{
    (void)self;
    vision_run_end(run);
}

static rd_status point_begin(void *self, const struct vision_pointed *images, uint32_t n,
                             struct vision_pointer_run **out)
{
    return vision_pointer_begin(((struct model_executor *)self)->eyes, images, n, out);
}

static rd_status point_step(void *self, struct vision_pointer_run *run, uint64_t n_flops)
{
    (void)self;
    return vision_pointer_step(run, n_flops);
}

static rd_status point_scores(void *self, struct vision_pointer_run *run, const float *state, float *scores)
{
    (void)self;
    return vision_pointer_scores(run, state, scores);
}

static void point_end(void *self, struct vision_pointer_run *run)
{
    (void)self;
    vision_pointer_end(run);
}

static rd_status load_adapter(void *self, const char *path, struct adapter **out, struct rd_error *err)
{
    return adapter_load(((struct model_executor *)self)->model, path, out, err);
}

static bool rows_differ(const struct kv_storage *kv, kv_page a, kv_page b, uint32_t n_rows,
                        struct page_difference *where)
{
    const struct kv_layout *l = &kv->layout;
    const uint8_t *pa = kv_page_at(kv, a), *pb = kv_page_at(kv, b);

    for (uint32_t i = 0; i < l->n_layers * 2 * l->n_kv_heads; i++) {
        uint32_t layer = i / (2 * l->n_kv_heads), which = i / l->n_kv_heads % 2, head_at = i % l->n_kv_heads;
        uint64_t at = kv_head_offset(kv, layer, which, head_at), n = n_rows * kv->row_bytes[which], k = 0;

        if (memcmp(pa + at, pb + at, n) == 0) continue;
        while (pa[at + k] == pb[at + k]) k++;
        *where = (struct page_difference){.layer = layer,
                                          .is_value = which,
                                          .kv_head = head_at,
                                          .row = (uint32_t)(k / kv->row_bytes[which]),
                                          .byte = (uint32_t)(k % kv->row_bytes[which]),
                                          .a = pa[at + k],
                                          .b = pb[at + k]};
        return true;
    }
    return false;
}

/* In layers of the model, whichever memory they are in. */
static bool differs(void *self, kv_page a, kv_page b, uint32_t n_rows, struct page_difference *where)
{
    const struct model_executor *x = self;
    const struct model_config *c = model_config(x->model);
    uint32_t n = 0, layer = 0;
    bool in_window = false, found = rows_differ(&x->kv, a, b, n_rows, where);

    if (!x->window) return found;
    if (!found && x->window_of[a] != KV_NO_PAGE && x->window_of[b] != KV_NO_PAGE)
        found = in_window = rows_differ(&x->windows, x->window_of[a], x->window_of[b], n_rows, where);
    if (!found) return false;
    for (;; layer++) {
        bool is_in_window = model_n_global(c, layer + 1) == model_n_global(c, layer);

        if (is_in_window == in_window && n++ == where->layer) break;
    }
    where->layer = layer;
    return true;
}

struct executor model_executor_view(struct model_executor *x, uint32_t max_rows, uint32_t max_logits)
{
    const bool points = x->eyes && vision_encoder_traits(x->eyes)->points;

    return (struct executor){.self = x,
                             .n_vocab = model_config(x->model)->n_vocab,
                             .max_rows = max_rows,
                             .max_logits = max_logits,
                             .n_state = model_config(x->model)->hidden,
                             .forward = forward,
                             .head = head,
                             .gives_choices = model_gives_choices(x->model),
                             .gives_best = model_gives_best(x->model),
                             .read_logits = read_logits,
                             .begin = model_can_begin(x->model) ? begin : NULL,
                             .end = end,
                             .begins_adapted = model_begins_adapted(x->model),
                             .warm_up = model_can_begin(x->model) ? warm_up : NULL,
                             .is_dead = is_dead,
                             .pin = x->ops->memory.pin ? pin : NULL,
                             .copy_rows = copy_rows,
                             .window = x->window,
                             .n_windows = x->windows.n_pages,
                             .use_windows = x->window ? use_windows : NULL,
                             .page = x->ops->traits.shares_memory && !x->window ? page : NULL,
                             .move_begin = move_begin,
                             .move_end = move_end,
                             .crosses_bus = !x->ops->traits.shares_memory,
                             .page_out = page_out,
                             .page_in = page_in,
                             .page_bytes =
                                 x->kv.page_bytes + (x->window ? x->windows.page_bytes + sizeof(uint64_t) : 0),
                             .adapter_load = load_adapter,
                             .vision = x->eyes ? vision_encoder_traits(x->eyes) : NULL,
                             .image_begin = x->eyes ? image_begin : NULL,
                             .image_step = x->eyes ? image_step : NULL,
                             .image_phase = x->eyes ? image_phase : NULL,
                             .image_rows = x->eyes ? image_rows : NULL,
                             .image_end = x->eyes ? image_end : NULL,
                             .point_begin = points ? point_begin : NULL,
                             .point_step = points ? point_step : NULL,
                             .point_scores = points ? point_scores : NULL,
                             .point_end = points ? point_end : NULL,
                             .differs = x->ops->traits.shares_memory ? differs : NULL};
}
