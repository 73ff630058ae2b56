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
};

/* ops, backend and model are borrowed; allocates the KV storage. */
rd_status model_executor_init(struct model_executor *x, const struct backend_ops *ops, struct backend *backend,
                              struct model *model, const struct kv_layout *layout, uint32_t n_pages);
void model_executor_deinit(struct model_executor *x);
struct executor model_executor_view(struct model_executor *x, uint32_t max_rows, uint32_t max_logits);
