/* backend/cpu/weight_memory.c - a list of mappings; the newest gives from its front. */
#include "backend/cpu/weight_memory.h"
#include <assert.h>
#include "base/checked.h"
#include "base/mem.h"

#define CHUNK_BYTES  ((uint64_t)64 << 20) /* its untouched end costs addresses, not memory */
#define WEIGHT_ALIGN 64u

struct weight_chunk {
    struct weight_chunk *next;
    uint8_t *base;
    uint64_t n_bytes, n_used;
    uint32_t n_alive; /* weights in it */
};

static rd_status chunk_add(struct weight_memory *m, uint64_t n_bytes)
{
    struct weight_chunk *c = mem_zalloc(1, sizeof(*c));

    if (!c) return RD_E_NOMEM;
    c->n_bytes = u64_max(n_bytes, CHUNK_BYTES);
    c->base = c->n_bytes <= SIZE_MAX / 2 ? mem_map((size_t)c->n_bytes) : NULL;
    if (!c->base) {
        mem_free(c);
        return RD_E_NOMEM;
    }
    c->next = m->chunks;
    m->chunks = c;
    return RD_OK;
}

rd_status weight_memory_take(struct weight_memory *m, uint64_t n_bytes, void **out)
{
    struct weight_chunk *c = m->chunks;
    uint64_t rounded;
    rd_status st;

    if (!checked_align(n_bytes ? n_bytes : 1, WEIGHT_ALIGN, &rounded)) return RD_E_NOMEM;
    if (!c || rounded > c->n_bytes - c->n_used) {
        st = chunk_add(m, rounded);
        if (st != RD_OK) return st;
        c = m->chunks;
    }
    *out = c->base + c->n_used;
    c->n_used += rounded;
    c->n_alive++;
    return RD_OK;
}

void weight_memory_release(struct weight_memory *m, const void *p)
{
    struct weight_chunk **at = &m->chunks, *c;

    if (!p) return;
    while (*at && (uint64_t)((uintptr_t)p - (uintptr_t)(*at)->base) >= (*at)->n_bytes) at = &(*at)->next;
    c = *at;
    assert(c && c->n_alive > 0);
    if (--c->n_alive > 0) return;
    *at = c->next;
    mem_unmap(c->base, (size_t)c->n_bytes);
    mem_free(c);
}

void weight_memory_deinit(struct weight_memory *m)
{
    assert(!m->chunks);
    (void)m;
}
