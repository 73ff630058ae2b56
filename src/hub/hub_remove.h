/* hub/hub_remove.h - takes models out of the shared cache.
 *
 * A blob that another snapshot has stays. A snapshot without files goes, with the revisions that name it; without
 * snapshots all of the model goes. A server that has a file open keeps its bytes until it ends.
 * Thread  any thread.
 * Errors  RD_E_AGAIN: a pull of it is running, nothing was done. Else as hub_cache.h; what could be removed is gone then.
 */
#pragma once
#include "hub/hub_cache.h"

/* The files of a snapshot that `wanted` says yes to. *n_bytes: what is free then. is_dry: only that is told. */
rd_status hub_repo_remove(const char *repo, const char *commit, bool (*wanted)(void *arg, const char *path), void *arg,
                          bool is_dry, uint64_t *n_bytes, struct rd_error *err);
/* All of a model, what is left of broken pulls included. */
rd_status hub_repo_remove_all(const char *repo, bool is_dry, uint64_t *n_bytes, struct rd_error *err);
