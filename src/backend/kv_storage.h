/* backend/kv_storage.h - the memory behind the pages of kv/page_pool.h.
 *
 *     page:  [n_layers][K, V][n_kv_heads][page_tokens][head_dim], contiguous; K and V each in a type of their own
 *     pages: page id p begins at base + p * page_bytes
 *
 * A row (one token, one head, K or V) of a quantised type is head_dim / 32 blocks as in GGUF files, quantised when it
 * is written; quantised keys are turned by a Hadamard matrix before (cpu/kv_quant.h). Attention reads runs of whole
 * token rows; a page moves between tiers with one copy. Thread  the backend's ops, called by the engine thread.
 */
#pragma once
#include <stdint.h>
#include "kv/page_pool.h"
#include "tensor/dtype.h"

struct kv_layout {
    uint32_t n_layers, n_kv_heads, head_dim, page_tokens;
    enum dtype dtype_k, dtype_v; /* each DTYPE_F16 (default), BF16, F32, Q8_0, Q4_0, F8_E4M3; kv_type_fits */
};

struct kv_storage {
    struct kv_layout layout;
    uint32_t n_pages;
    uint32_t
        window; /* tokens that a row of these layers sees; a run's table may name nothing, or what is another's by now,
                        before the pages of those that its first row sees. 0: it names all pages. Set by who has tables */
    uint64_t row_bytes[2]; /* one token, one head: K, V */
    uint64_t page_bytes;
    void *base; /* backend memory, n_pages * page_bytes, touched lazily on a CPU */
};

/* Whether a head is whole blocks of the type, and the type one that keys and values can have. */
static inline bool kv_type_fits(enum dtype t, uint32_t head_dim)
{
    return (t == DTYPE_F16 || t == DTYPE_BF16 || t == DTYPE_F32 || t == DTYPE_Q8_0 || t == DTYPE_Q4_0 ||
            t == DTYPE_F8_E4M3) &&
           head_dim % dtype_block_weights(t) == 0;
}
/* Bytes of one token's K or V of one head. */
static inline uint64_t kv_type_row_bytes(enum dtype t, uint32_t head_dim)
{
    return (uint64_t)head_dim / dtype_block_weights(t) * dtype_block_bytes(t);
}
/* Of K (which = 0) or V (1). */
static inline uint64_t kv_row_bytes(const struct kv_layout *l, uint32_t which)
{
    return kv_type_row_bytes(which ? l->dtype_v : l->dtype_k, l->head_dim);
}
static inline uint64_t kv_page_bytes(const struct kv_layout *l)
{
    return (kv_row_bytes(l, 0) + kv_row_bytes(l, 1)) * l->page_tokens * l->n_kv_heads * l->n_layers;
}
/* Where page `id` begins. */
static inline uint8_t *kv_page_at(const struct kv_storage *s, kv_page id)
{
    return (uint8_t *)s->base + id * s->page_bytes;
}
/* Byte offset in a page of K (which = 0) or V (1) of a layer and kv head, row 0. */
static inline uint64_t kv_head_offset(const struct kv_storage *s, uint32_t layer, uint32_t which, uint32_t kv_head)
{
    uint64_t rows = (uint64_t)layer * s->layout.n_kv_heads * (s->row_bytes[0] + s->row_bytes[1]);

    if (which) rows += s->layout.n_kv_heads * s->row_bytes[0];
    return (rows + kv_head * s->row_bytes[which]) * s->layout.page_tokens;
}
