/* model/adapter.h - low-rank adapters (LoRA) of a loaded model, and which of them a request's rows are computed with.
 *
 *     adapter       one file's pairs (format/adapter/adapter_file.h), on the model's backend
 *     adapter_mix   one or several of them, each with a scale: W x + sum_k scale_k * B_k (A_k x)
 *
 * Where several ranks compute (share.h), an adapter has a part for each, and a mix is one for all of them.
 * A batch says of every run which mix it has (model_batch.h). Rows of no mix have the bits that they have where no adapter is
 * loaded; rows of one have those of that mix alone, whoever shares the batch. A mix has an identity: equal ones, and they
 * alone, give equal keys and values, so the tree's namespace holds it (kv/kv_space.h).
 *
 * Thread  load: any, while the model computes; a loaded adapter and a mix are read-only, references are counted. The last one
 *         must go before the model does.
 * Errors  adapter_load: as adapter_file.h; RD_E_FORMAT also names a matrix whose shape is not the model's; RD_E_UNSUPPORTED: a
 *         backend without low_rank, or another architecture's adapter.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/hash.h"
#include "radish/status.h"

#define ADAPTER_MIX_MAX   8u    /* adapters in one */
#define ADAPTER_MIX_RANKS 1024u /* their ranks, together */

struct model;
struct adapter;
struct adapter_mix;

struct adapter_info {
    struct hash128 digest; /* of what it does: equal for the same numbers in another kind of file */
    uint32_t n_matrices, max_rank;
    uint64_t n_bytes; /* of memory */
    char base[256];   /* what its file says of the model it was made for; "" */
};

rd_status adapter_load(struct model *m, const char *path, struct adapter **out, struct rd_error *err);
/* For the models of several ranks (share.h), by rank, n <= RANKS_MAX: one adapter, of which each has its part. */
rd_status adapter_load_ranks(struct model *const *models, uint32_t n, const char *path, struct adapter **out,
                             struct rd_error *err);
const struct adapter_info *adapter_info(const struct adapter *a);
void adapter_ref(struct adapter *a);
void adapter_unref(struct adapter *a);         /* NULL is fine */
bool adapter_is_used(const struct adapter *a); /* there is more than one reference */

struct adapter_use {
    struct adapter *adapter;
    float scale;
};
/* n uses, none of an adapter twice; those of scale 0 are left out. *out NULL: nothing is left. RD_E_INVALID: a scale that is
 * no number; RD_E_LIMIT. */
rd_status adapter_mix_create(const struct adapter_use *uses, uint32_t n, struct adapter_mix **out,
                             struct rd_error *err);
struct hash128 adapter_mix_id(const struct adapter_mix *x); /* of NULL: zeros */
struct adapter_mix *adapter_mix_ref(struct adapter_mix *x); /* NULL is fine */
void adapter_mix_unref(struct adapter_mix *x);              /* NULL is fine */
