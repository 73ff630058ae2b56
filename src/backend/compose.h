/* backend/compose.h - the backend's entries, with what is done where an optional one is NULL.
 *
 *     is_dead        it is not                          free_bytes    a share of the host's memory
 *     weights.done   nothing: load waited               pin           nothing: copies are as fast
 *     linear_glu     linear, then glu                   move_begin    copies that are waited for (a copy where memory is
 *                                                                     shared): tickets are done when they are given
 * choose and the rest of asynchrony have no function here: without them the engine draws from the logits, and steps are
 * waited for. Thread, errors  as backend.h.
 */
#pragma once
#include "backend/backend.h"

bool backend_is_dead(const struct backend_ops *ops, const struct backend *be);
uint64_t backend_free_bytes(const struct backend_ops *ops, struct backend *be);
rd_status backend_weights_done(const struct backend_ops *ops, struct backend *be, struct rd_error *err);
rd_status backend_linear_glu(const struct backend_ops *ops, struct backend *be, const struct linear_glu_args *a);

/* A page's bytes where traits.shares_memory, else NULL. */
void *backend_page(const struct backend_ops *ops, const struct kv_storage *kv, kv_page id);
/* One page, waited for: RD_E_DEVICE, or RD_E_IO where the copy alone failed. */
rd_status backend_page_out(const struct backend_ops *ops, struct backend *be, const struct kv_storage *kv, kv_page id,
                           void *to);
rd_status backend_page_in(const struct backend_ops *ops, struct backend *be, const struct kv_storage *kv, kv_page id,
                          const void *from);
rd_status backend_move_begin(const struct backend_ops *ops, struct backend *be, const struct kv_storage *kv, bool out,
                             uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket);
rd_status backend_move_end(const struct backend_ops *ops, struct backend *be, bool out, uint64_t ticket, bool wait);
