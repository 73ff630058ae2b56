/* backend/compose.c - what a backend leaves out, made of what every backend has. */
#include "backend/compose.h"
#include <string.h>
#include "base/checked.h"
#include "base/sysinfo.h"

#define HOST_MIN_BYTES (256ull << 20)
#define HOST_MAX_BYTES (8ull << 30)

bool backend_is_dead(const struct backend_ops *ops, const struct backend *be)
{
    return ops->life.is_dead && ops->life.is_dead(be);
}

uint64_t backend_free_bytes(const struct backend_ops *ops, struct backend *be)
{
    if (ops->memory.free_bytes) return ops->memory.free_bytes(be);
    return u64_min(HOST_MAX_BYTES, u64_max(HOST_MIN_BYTES, sysinfo_memory() / 5));
}

rd_status backend_weights_done(const struct backend_ops *ops, struct backend *be, struct rd_error *err)
{
    return ops->weights.done ? ops->weights.done(be, err) : RD_OK;
}

rd_status backend_linear_glu(const struct backend_ops *ops, struct backend *be, const struct linear_glu_args *a)
{
    const uint32_t width = a->gate->n_out;
    const struct linear_args in = {
        .n_rows = a->n_rows,
        .x = a->x,
        .x_stride = a->x_stride,
        .n_outs = 2,
        .outs = {{a->gate, NULL, a->gate_out, width}, {a->up, NULL, a->up_out, width}},
    };
    rd_status st;

    if (ops->op.linear_glu) return ops->op.linear_glu(be, a);
    st = ops->op.linear(be, &in);
    return st == RD_OK ? ops->op.glu(be, a->act, a->n_rows, width, a->gate_out, a->up_out, a->out) : st;
}

void *backend_page(const struct backend_ops *ops, const struct kv_storage *kv, kv_page id)
{
    return ops->traits.shares_memory ? kv_page_at(kv, id) : NULL;
}

rd_status backend_move_begin(const struct backend_ops *ops, struct backend *be, const struct kv_storage *kv, bool out,
                             uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket)
{
    rd_status st = RD_OK;

    if (ops->async && ops->async->move_begin) return ops->async->move_begin(be, kv, out, n, ids, host, ticket);
    *ticket = 0;
    for (uint32_t i = 0; i < n && st == RD_OK; i++)
        st = out ? ops->pages.read(be, kv, host[i], ids[i]) : ops->pages.write(be, kv, ids[i], host[i]);
    return st == RD_OK && !ops->traits.shares_memory ? ops->memory.sync(be) : st;
}

rd_status backend_move_end(const struct backend_ops *ops, struct backend *be, bool out, uint64_t ticket, bool wait)
{
    if (!ops->async || !ops->async->move_begin) return RD_OK; /* done when it began */
    return ops->async->move_end(be, out, ticket, wait);
}

static rd_status move_one(const struct backend_ops *ops, struct backend *be, const struct kv_storage *kv, bool out,
                          kv_page id, void *host)
{
    uint64_t ticket;
    rd_status st = backend_move_begin(ops, be, kv, out, 1, &id, &host, &ticket);

    return st == RD_OK ? backend_move_end(ops, be, out, ticket, true) : st;
}

rd_status backend_page_out(const struct backend_ops *ops, struct backend *be, const struct kv_storage *kv, kv_page id,
                           void *to)
{
    return move_one(ops, be, kv, true, id, to);
}

rd_status backend_page_in(const struct backend_ops *ops, struct backend *be, const struct kv_storage *kv, kv_page id,
                          const void *from)
{
    return move_one(ops, be, kv, false, id, (void *)(uintptr_t)from);
}
