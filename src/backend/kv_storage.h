/* backend/kv_storage.h - the memory behind the pages of kv/page_pool.h.
 *
 *     page:  [n_layers][K, V][n_kv_heads][page_tokens][head_dim] of the KV type, contiguous
 *     pages: page id p begins at base + p * page_bytes
 *
 * Attention reads runs of whole token rows [page_tokens][head_dim]; a page moves between tiers with one copy.
 * Thread  the backend's ops, called by the engine thread.
 */
#pragma once
#include <stdint.h>
#include "kv/page_pool.h"
#include "tensor/dtype.h"

struct kv_layout {
    uint32_t n_layers, n_kv_heads, head_dim, page_tokens;
    enum dtype dtype;                    /* DTYPE_F16 (default), DTYPE_BF16 or DTYPE_F32 */
};

struct kv_storage {
    struct kv_layout layout;
    uint32_t n_pages;
    uint64_t row_bytes;                  /* one token, one head, K or V */
    uint64_t head_bytes;                 /* page_tokens rows */
    uint64_t page_bytes;
    void *base;                          /* backend memory, n_pages * page_bytes, touched lazily on a CPU */
};

/* Bytes of one token's K or V of one head. */
static inline uint64_t kv_type_row_bytes(enum dtype dtype, uint32_t head_dim)
{
    return (uint64_t)head_dim / dtype_block_weights(dtype) * dtype_block_bytes(dtype);
}
static inline uint64_t kv_row_bytes(const struct kv_layout *l) { return kv_type_row_bytes(l->dtype, l->head_dim); }
static inline uint64_t kv_page_bytes(const struct kv_layout *l)
{
    return kv_row_bytes(l) * l->page_tokens * l->n_kv_heads * 2 * l->n_layers;
}
/* Byte offset in a page of K (which = 0) or V (1) of a layer and kv head, row 0. */
static inline uint64_t kv_head_offset(const struct kv_storage *s, uint32_t layer, uint32_t which, uint32_t kv_head)
{
    return (((uint64_t)layer * 2 + which) * s->layout.n_kv_heads + kv_head) * s->head_bytes;
}
