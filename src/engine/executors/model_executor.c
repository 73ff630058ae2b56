/* engine/executors/model_executor.c - forwards the engine's batch to the model, and page copies to the backend. */
#include "engine/executors/model_executor.h"
#include <string.h>
#include "base/checked.h"
#include "base/log.h"

#define MOVE_PAGES 64u                   /* in one call of the backend */

rd_status model_executor_init(struct model_executor *x, const struct backend_ops *ops, struct backend *backend,
                              struct model *model, const struct kv_layout *layout, uint32_t n_pages)
{
    memset(x, 0, sizeof(*x));
    x->ops = ops;
    x->backend = backend;
    x->model = model;
    return ops->kv_create(backend, layout, n_pages, &x->kv);
}

void model_executor_deinit(struct model_executor *x)
{
    if (x->kv.base) x->ops->kv_destroy(x->backend, &x->kv);
    x->kv.base = NULL;
}

static rd_status forward(void *self, const struct model_batch *batch, float *logits)
{
    struct model_executor *x = self;
    rd_status st = model_forward(x->model, &x->kv, batch, logits);

    if (x->n_copy_failed) { /* a copy before this step failed: its rows are not to be trusted */
        x->n_copy_failed = 0;
        return RD_E_DEVICE;
    }
    return st;
}

static rd_status begin(void *self, const struct model_batch *batch, const uint32_t *from)
{
    struct model_executor *x = self;

    return model_begin(x->model, &x->kv, batch, from);
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

    return (uint8_t *)x->kv.base + id * x->kv.page_bytes;
}

static rd_status page_out(void *self, kv_page id, void *to)
{
    struct model_executor *x = self;
    void *from = page(x, id);
    uint64_t ticket;
    rd_status st;

    if (x->ops->move_begin) {                               /* beside a step that may be under way */
        st = x->ops->move_begin(x->backend, true, 1, &from, &to, x->kv.page_bytes, &ticket);
        return st == RD_OK ? x->ops->move_end(x->backend, true, ticket, true) : st;
    }
    st = x->ops->copy(x->backend, to, from, x->kv.page_bytes);
    return st == RD_OK ? x->ops->sync(x->backend) : st;
}

static rd_status page_in(void *self, kv_page id, const void *from)
{
    struct model_executor *x = self;
    void *to = page(x, id), *host = (void *)(uintptr_t)from;
    uint64_t ticket;
    rd_status st;

    if (x->ops->move_begin) {                               /* where a copy that fails is no step that fails */
        st = x->ops->move_begin(x->backend, false, 1, &to, &host, x->kv.page_bytes, &ticket);
        return st == RD_OK ? x->ops->move_end(x->backend, false, ticket, true) : st;
    }
    st = x->ops->copy(x->backend, to, from, x->kv.page_bytes);
    return st == RD_OK ? x->ops->sync(x->backend) : st;
}

/* On a CPU pages are host memory: a copy, done when it begins. */
static rd_status move_begin(void *self, bool out, uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket)
{
    struct model_executor *x = self;
    void *pages[MOVE_PAGES];
    rd_status st = RD_OK;

    *ticket = 0;
    for (uint32_t at = 0, n_now; at < n && st == RD_OK; at += n_now) {
        n_now = u32_min(n - at, MOVE_PAGES);
        for (uint32_t i = 0; i < n_now; i++) {
            pages[i] = page(self, ids[at + i]);
            if (!x->ops->move_begin)
                memcpy(out ? host[at + i] : pages[i], out ? pages[i] : host[at + i], x->kv.page_bytes);
        }
        if (x->ops->move_begin)
            st = x->ops->move_begin(x->backend, out, n_now, pages, host + at, x->kv.page_bytes, ticket);
        if (st != RD_OK && at > 0) (void)x->ops->move_end(x->backend, out, *ticket, true);  /* those before */
    }
    return st;
}

static rd_status move_end(void *self, bool out, uint64_t ticket, bool wait)
{
    struct model_executor *x = self;

    return x->ops->move_end ? x->ops->move_end(x->backend, out, ticket, wait) : RD_OK;
}

static bool is_dead(void *self)
{
    struct model_executor *x = self;

    if (model_is_broken(x->model)) {
        log_error("the model's file, or its packed copy, was cut short or its disk failed while it was in use");
        return true;
    }
    return x->ops->is_dead && x->ops->is_dead(x->backend);
}

static void pin(void *self, void *p, uint64_t n_bytes, bool on)
{
    struct model_executor *x = self;

    if (x->ops->pin) x->ops->pin(x->backend, p, n_bytes, on);
}

static void copy_rows(void *self, kv_page to, kv_page from, uint32_t n_rows)
{
    struct model_executor *x = self;

    if (x->ops->kv_copy_rows(x->backend, &x->kv, to, from, n_rows) != RD_OK) x->n_copy_failed++;
}

static bool differs(void *self, kv_page a, kv_page b, uint32_t n_rows, struct page_difference *where)
{
    const struct kv_storage *kv = &((struct model_executor *)self)->kv;
    const struct kv_layout *l = &kv->layout;
    const uint8_t *pa = page(self, a), *pb = page(self, b);

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

struct executor model_executor_view(struct model_executor *x, uint32_t max_rows, uint32_t max_logits)
{
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
                             .is_dead = is_dead,
                             .pin = x->ops->pin ? pin : NULL,
                             .copy_rows = copy_rows,
                             .page = x->ops->traits.shares_memory ? page : NULL,
                             .move_begin = move_begin,
                             .move_end = move_end,
                             .page_out = page_out,
                             .page_in = page_in,
                             .page_bytes = x->kv.page_bytes,
                             .differs = x->ops->traits.shares_memory ? differs : NULL};
}
