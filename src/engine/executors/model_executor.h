/* engine/executors/model_executor.h - the real executor: a model on a backend, with its KV storage.
 * Thread  created by the loading thread, then the engine thread's. Errors as model_load and kv_create.
 */
#pragma once
#include "engine/executor.h"

struct model_executor {
    const struct backend_ops *ops;
    struct backend *backend;
    struct model *model;
    struct kv_storage kv;
    uint64_t n_copy_failed;
    /* With windows: kv holds the layers that see everything, windows the others. */
    struct kv_storage windows;
    uint32_t window;           /* tokens; 0: kv holds all layers */
    const uint32_t *window_of; /* executor.use_windows */
    uint32_t *row_windows;     /* [max_rows] of a batch; likewise: */
    struct seq_run *window_runs;
    struct vision_encoder *eyes; /* NULL: it sees nothing */
};

/* ops, backend and model are borrowed; allocates the KV storage. */
rd_status model_executor_init(struct model_executor *x, const struct backend_ops *ops, struct backend *backend,
                              struct model *model, const struct kv_layout *layout, uint32_t n_pages);
/* The same with n_windows windows, 1 .. n_pages, for the layers of the model that have one; layout is of all layers. Without
 * such layers, or where the backend has no way to (device_traits), all are in the pages. */
rd_status model_executor_init_windows(struct model_executor *x, const struct backend_ops *ops, struct backend *backend,
                                      struct model *model, const struct kv_layout *layout, uint32_t n_pages,
                                      uint32_t n_windows, uint32_t max_rows);
/* What is behind an executor of executor_open that is not of ranks. */
struct model_executor *model_executor_of(const struct executor *x);
/* How many of a model's layers have a window that it is worth to keep apart: 0, or fewer than all. */
uint32_t model_executor_window_layers(const struct backend_ops *ops, const struct model_config *c);
void model_executor_deinit(struct model_executor *x);
/* executor.move_begin, with the bytes of a page, of its window and of executor_has_window at these places. */
struct page_places {
    uint64_t page, window, word;
};
rd_status model_executor_move(struct model_executor *x, const struct page_places *at, bool out, uint32_t n,
                              const kv_page *ids, void *const *host, uint64_t *ticket);
struct executor model_executor_view(struct model_executor *x, uint32_t max_rows, uint32_t max_logits);
