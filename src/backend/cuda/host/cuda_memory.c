/* backend/cuda/host/cuda_memory.c - device memory: activations with their shadows, KV pages, copies. */
#include <assert.h>
#include <string.h>
#include "backend/cuda/host/cuda_backend.h"
#include "base/checked.h"
#include "base/mem.h"

static cudaStream_t stream_of(const struct backend *be)
{
    return (cudaStream_t)be->l.stream;
}

rd_status cuda_device_alloc(struct backend *be, uint64_t n_bytes, void **out)
{
    cudaError_t error;

    if (cuda_here(be) != RD_OK) return RD_E_DEVICE;
    error = cudaMalloc(out, (size_t)u64_max(n_bytes, 1));
    if (error == cudaSuccess) return RD_OK;
    *out = NULL;
    if (error != cudaErrorMemoryAllocation) return cuda_check(be, (int)error, "alloc");
    cudaGetLastError();
    return RD_E_NOMEM;
}

uint64_t cuda_free_bytes(struct backend *be)
{
    size_t left = 0, all = 0;

    cuda_loader_free(be); /* it is asked for once the weights are there */
    if (cuda_here(be) != RD_OK) return 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/* ---- activations ---- */

rd_status cuda_alloc(struct backend *be, uint64_t n_bytes, struct buffer **out)
{
    uint64_t all;
    struct buffer *b;
    void *p = NULL;
    rd_status st;

    if (!checked_align(n_bytes, 256, &n_bytes) || !checked_add(n_bytes, n_bytes / 2, &all)) return RD_E_NOMEM;
    b = mem_alloc(1, sizeof(*b));
    if (!b) return RD_E_NOMEM;
    st = cuda_device_alloc(be, all, &p);
    if (st != RD_OK) goto fail;
    st = cuda_check(be, (int)cudaMemsetAsync(p, 0, (size_t)all, stream_of(be)), "alloc");
    if (st != RD_OK) goto fail;
    *b = (struct buffer){p, n_bytes, (uint16_t *)((char *)p + n_bytes)};
    *out = b;
    return RD_OK;

fail:
    if (p) cudaFree(p);
    mem_free(b);
    return st;
}

void cuda_free(struct backend *be, struct buffer *b)
{
    be->held.op = CUDA_HELD_NONE; /* of a pass that failed: nothing reads what it would write */
    if (b) cudaFree(b->base);
    mem_free(b);
}

static rd_status copy(struct backend *be, void *to, const void *from, uint64_t n_bytes)
{
    rd_status st = cuda_let_go(be);

    return st != RD_OK ? st : cuda_check(be, cuda_copy_out(&be->l, to, from, n_bytes), "copy");
}

rd_status cuda_read(struct backend *be, void *to, struct span from, uint64_t n_bytes)
{
    return copy(be, to, cuda_at(from), n_bytes);
}

rd_status cuda_write(struct backend *be, struct span to, const void *from, uint64_t n_bytes)
{
    rd_status st = copy(be, cuda_at(to), from, n_bytes);

    if (st != RD_OK) return st;
    return cuda_check(be, cuda_to_bf16(&be->l, n_bytes / sizeof(float), cuda_at(to), cuda_shadow(to)), "copy");
}

rd_status cuda_kv_read(struct backend *be, const struct kv_storage *kv, void *to, kv_page from)
{
    return copy(be, to, kv_page_at(kv, from), kv->page_bytes);
}

rd_status cuda_kv_write(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from)
{
    return copy(be, kv_page_at(kv, to), from, kv->page_bytes);
}

void cuda_pin(struct backend *be, void *p, uint64_t n_bytes, bool on)
{
    cudaError_t error;

    if (be->is_dead) return;
    cudaSetDevice(be->device); /* any thread may pin */
    if (!on && !pin_map_remove(&be->pins, p)) return;
    error = on ? cudaHostRegister(p, (size_t)n_bytes, cudaHostRegisterPortable) : cudaHostUnregister(p);
    if (error == cudaSuccess && on && !pin_map_add(&be->pins, p, n_bytes)) error = cudaHostUnregister(p);
    if (error != cudaSuccess) cudaGetLastError(); /* copies are slower, no more */
}

/* ---- KV pages ---- */

rd_status cuda_kv_create(struct backend *be, const struct kv_layout *layout, uint32_t n_pages, struct kv_storage *out)
{
    struct kv_storage kv = {.layout = *layout, .n_pages = n_pages};
    uint64_t bytes;
    rd_status st;

    assert(layout->page_tokens && (layout->page_tokens & (layout->page_tokens - 1)) == 0 && n_pages > 0);
    assert(kv_type_fits(layout->dtype_k, layout->head_dim) && kv_type_fits(layout->dtype_v, layout->head_dim));
    for (uint32_t which = 0; which < 2; which++) kv.row_bytes[which] = kv_row_bytes(layout, which);
    bytes = (kv.row_bytes[0] + kv.row_bytes[1]) * layout->page_tokens;
    if (!checked_mul(bytes, (uint64_t)layout->n_kv_heads, &kv.page_bytes)) return RD_E_NOMEM;
    if (!checked_mul(kv.page_bytes, (uint64_t)layout->n_layers, &kv.page_bytes)) return RD_E_NOMEM;
    if (!checked_mul(kv.page_bytes, (uint64_t)n_pages + 1, &bytes)) return RD_E_NOMEM; /* one for padding rows */
    cuda_loader_free(be);                                                              /* the weights are there */
    st = cuda_device_alloc(be, bytes, &kv.base);
    if (st != RD_OK) return st;
    /* rows that attention reads and multiplies by 0 are numbers from the start */
    st = cuda_check(be, (int)cudaMemsetAsync(kv.base, 0, (size_t)bytes, stream_of(be)), "KV cache");
    if (st == RD_OK)
        *out = kv;
    else
        cudaFree(kv.base);
    return st;
}

void cuda_kv_destroy(struct backend *be, struct kv_storage *kv)
{
    (void)be;
    if (!kv || !kv->base) return;
    cudaFree(kv->base);
    memset(kv, 0, sizeof(*kv));
}
