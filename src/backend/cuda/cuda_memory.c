/* backend/cuda/cuda_memory.c - device memory: activations with their shadows, weights, KV pages, copies.
 *
 * A tensor streams from the mapped file through two pinned buffers: while one is sent and converted, the other is
 * filled. Rows are cut at whole rows, so that every piece can be converted alone.
 */
#include <assert.h>
#include <string.h>
#include "backend/cuda/cuda_backend.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/thread.h"

#define COPY_THREADS 8u
#define COPY_LEAST   (1ull << 20) /* bytes per thread */

static cudaStream_t stream_of(const struct backend *be)
{
    return (cudaStream_t)be->l.stream;
}

/* cudaMalloc; a refusal leaves no error behind. */
static rd_status device_alloc(struct backend *be, uint64_t n_bytes, void **out)
{
    cudaError_t error;

    if (be->is_dead) return RD_E_DEVICE;
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

    cuda_stages_free(be); /* it is asked for once the weights are there */
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/* ---- activations ---- */

rd_status cuda_alloc(struct backend *be, uint64_t n_bytes, void **out)
{
    uint64_t all;
    void *p = NULL;
    rd_status st;

    if (!checked_align(n_bytes, 256, &n_bytes) || !checked_add(n_bytes, n_bytes / 2, &all)) return RD_E_NOMEM;
    if (!mem_grow((void **)&be->regions, &be->cap_regions, be->n_regions + 1, sizeof(*be->regions))) return RD_E_NOMEM;
    st = device_alloc(be, all, &p);
    if (st != RD_OK) return st;
    st = cuda_check(be, (int)cudaMemsetAsync(p, 0, (size_t)all, stream_of(be)), "alloc");
    if (st != RD_OK) {
        cudaFree(p);
        return st;
    }
    be->regions[be->n_regions++] = (struct cuda_region){p, n_bytes, (uint16_t *)((char *)p + n_bytes)};
    *out = p;
    return RD_OK;
}

void cuda_free(struct backend *be, void *p, uint64_t n_bytes)
{
    (void)n_bytes;
    for (size_t i = 0; i < be->n_regions; i++)
        if (be->regions[i].base == p) {
            be->regions[i] = be->regions[--be->n_regions];
            cudaFree(p);
            return;
        }
    assert(!p);
}

uint16_t *cuda_shadow(const struct backend *be, const float *x)
{
    for (size_t i = 0; i < be->n_regions; i++) {
        const struct cuda_region *r = &be->regions[i];
        uint64_t at = (uint64_t)((uintptr_t)x - (uintptr_t)r->base); /* wraps to a large number before the region */

        if (at < r->n_bytes) return r->shadow + at / sizeof(float);
    }
    return NULL;
}

rd_status cuda_copy(struct backend *be, void *to, const void *from, uint64_t n_bytes)
{
    uint16_t *shadow = cuda_shadow(be, to);
    rd_status st = cuda_check(be, cuda_copy_out(&be->l, to, from, n_bytes), "copy");

    if (st != RD_OK || !shadow) return st;
    return cuda_check(be, cuda_to_bf16(&be->l, n_bytes / sizeof(float), to, shadow), "copy");
}

void cuda_pin(struct backend *be, void *p, uint64_t n_bytes, bool on)
{
    cudaError_t error;

    if (be->is_dead) return;
    cudaSetDevice(be->device);                      /* any thread may pin */
    error = on ? cudaHostRegister(p, (size_t)n_bytes, cudaHostRegisterDefault) : cudaHostUnregister(p);
    if (error != cudaSuccess) cudaGetLastError(); /* copies are slower, no more */
}

/* ---- weights ---- */

void cuda_stages_free(struct backend *be)
{
    for (int i = 0; i < 2; i++) {
        if (be->stage_host[i]) cudaFreeHost(be->stage_host[i]);
        cudaFree(be->stage_device[i]);
        if (be->stage_free[i]) cudaEventDestroy(be->stage_free[i]);
        be->stage_host[i] = be->stage_device[i] = NULL;
        be->stage_free[i] = NULL;
    }
}

static cudaError_t stages_create(struct backend *be)
{
    cudaError_t error = cudaSuccess;

    for (int i = 0; i < 2 && error == cudaSuccess && !be->stage_free[i]; i++) {
        error = cudaHostAlloc(&be->stage_host[i], CUDA_STAGE_BYTES, cudaHostAllocDefault);
        if (error == cudaSuccess) error = cudaMalloc(&be->stage_device[i], CUDA_STAGE_BYTES);
        if (error == cudaSuccess) error = cudaEventCreateWithFlags(&be->stage_free[i], cudaEventDisableTiming);
    }
    return error;
}

struct copy_part { struct thread thread; char *to; const char *from; size_t n; };

static void copy_part(void *arg)
{
    struct copy_part *p = arg;

    memcpy(p->to, p->from, p->n);
}

/* Several threads: the pages of a mapped file are found one by one, which one thread does at a few GB/s. */
static void copy_fast(char *to, const char *from, uint64_t n_bytes)
{
    struct copy_part parts[COPY_THREADS] = {{{0}, NULL, NULL, 0}};
    uint32_t n = u32_min(u32_min(COPY_THREADS, thread_n_cores()), (uint32_t)(n_bytes / COPY_LEAST) + 1);
    uint64_t step = n_bytes / n / 4096 * 4096;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = i * step;

        parts[i] = (struct copy_part){{0}, to + at, from + at, (size_t)(i == n - 1 ? n_bytes - at : step)};
        if (i == n - 1 || thread_start(&parts[i].thread, "load", copy_part, &parts[i]) != RD_OK) copy_part(&parts[i]);
    }
    for (uint32_t i = 0; i < n; i++) thread_join(&parts[i].thread);
}

/* Sends n_bytes of the file to the device; *out is good for launches until two sends later. */
static cudaError_t stage(struct backend *be, const void *bytes, uint64_t n_bytes, const void **out)
{
    uint32_t i = be->next_stage;
    cudaError_t error = cudaEventSynchronize(be->stage_free[i]);

    if (error != cudaSuccess) return error;
    copy_fast(be->stage_host[i], bytes, n_bytes);
    *out = be->stage_device[i];
    return cudaMemcpyAsync(be->stage_device[i], be->stage_host[i], (size_t)n_bytes, cudaMemcpyHostToDevice,
                           stream_of(be));
}

/* After the launches that read what was sent. */
static cudaError_t stage_done(struct backend *be)
{
    uint32_t i = be->next_stage;

    be->next_stage = !i;
    return cudaEventRecord(be->stage_free[i], stream_of(be));
}

static cudaError_t send_matrix(struct backend *be, const struct host_tensor *t, const struct cuda_matrix *m)
{
    uint64_t row_bytes = (uint64_t)t->n_in / dtype_block_weights(t->dtype) * dtype_block_bytes(t->dtype);
    uint32_t step = (uint32_t)u64_min(CUDA_STAGE_BYTES / row_bytes, t->n_out);
    cudaError_t error = stages_create(be);

    if (error == cudaSuccess) error = cudaMemsetAsync(be->overflow, 0, sizeof(*be->overflow), stream_of(be));
    for (uint32_t row = 0; row < t->n_out && error == cudaSuccess; row += step) {
        uint32_t n = u32_min(step, t->n_out - row);
        const void *sent = NULL;

        error = stage(be, (const char *)t->data + row * row_bytes, n * row_bytes, &sent);
        if (error == cudaSuccess)
            error = (cudaError_t)cuda_convert_rows(&be->l, (int)t->dtype, sent, row, n, m, be->overflow);
        if (error == cudaSuccess) error = stage_done(be);
    }
    return error;
}

/* Where values and scales lie in the weight's memory, and its size. */
static bool place_matrix(struct cuda_matrix *m, uint64_t *at_scales, uint64_t *n_bytes)
{
    const uint32_t align = cuda_row_align(m);
    uint64_t n, values, scales = 0;

    m->row_stride = u32_ceil_div(m->n_in, align) * align;
    if (!checked_mul((uint64_t)m->n_out, (uint64_t)m->row_stride, &n) || n > UINT64_MAX / 8) return false;
    values = m->format == CUDA_BF16 ? 2 * n : m->format == CUDA_INT4 ? n / 2 : n;
    if (m->group) scales = n / m->group * 2 * cuda_scale_numbers(m);
    if (!checked_align(values, 256, at_scales)) return false;
    *n_bytes = *at_scales + scales;
    return true;
}

static struct cuda_matrix bf16_form(const struct host_tensor *t)
{
    return (struct cuda_matrix){.format = CUDA_BF16, .n_out = t->n_out, .n_in = t->n_in};
}

static rd_status make_matrix(struct backend *be, const struct host_tensor *t, struct cuda_weight *w)
{
    uint64_t at_scales;
    uint32_t overflow = 0;
    cudaError_t error;
    rd_status st;

    if (!place_matrix(&w->m, &at_scales, &w->n_bytes)) return RD_E_NOMEM;
    st = device_alloc(be, w->n_bytes, &w->memory);
    if (st != RD_OK) return st;
    w->m.values = w->memory;
    w->m.scales = w->m.group ? (char *)w->memory + at_scales : NULL;
    error = send_matrix(be, t, &w->m);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return RD_E_NOMEM;
    }
    if (error == cudaSuccess && w->m.group) {
        error = cudaMemcpyAsync(&overflow, be->overflow, sizeof(overflow), cudaMemcpyDeviceToHost, stream_of(be));
        if (error == cudaSuccess) error = cudaStreamSynchronize(stream_of(be));
    }
    st = cuda_check(be, (int)error, t->name);
    if (st != RD_OK || !overflow) return st;
    cudaFree(w->memory); /* scales that are no halves: the weights themselves then */
    w->memory = NULL;
    w->m = bf16_form(t);
    return make_matrix(be, t, w);
}

/* RD_E_NOMEM: w is as before. */
static rd_status make_bf16(struct backend *be, const struct host_tensor *t, struct cuda_weight *w)
{
    struct cuda_matrix native = w->m;
    rd_status st;

    w->m = bf16_form(t);
    st = make_matrix(be, t, w);
    if (st == RD_E_NOMEM) {
        cudaFree(w->memory);
        w->memory = NULL;
        w->m = native;
    }
    return st;
}

static rd_status load_matrix(struct backend *be, const struct host_tensor *t, struct weight *out)
{
    struct cuda_weight *w;
    rd_status st;

    for (w = be->weights; w; w = w->next)
        if (w->key == t->data && w->m.n_out == t->n_out && w->m.n_in == t->n_in) {
            w->n_holders++;
            out->data = w;
            return RD_OK;
        }
    w = mem_zalloc(1, sizeof(*w));
    if (!w) return RD_E_NOMEM;
    w->key = out->role == WEIGHT_EMBED ? t->data : NULL; /* which stays: other bytes may be made for the load alone */
    w->n_holders = 1;
    w->m.n_out = t->n_out;
    w->m.n_in = t->n_in;
    cuda_matrix_form((int)t->dtype, &w->m);
    w->m.in_eights = be->l.compute != 90 && w->m.format != CUDA_BF16;
    st = cuda_linear_takes(&be->l, &w->m) ? RD_E_NOMEM : make_bf16(be, t, w);
    if (st == RD_E_NOMEM) st = make_matrix(be, t, w);
    if (st != RD_OK) {
        cudaFree(w->memory);
        mem_free(w);
        return st;
    }
    w->next = be->weights;
    be->weights = w;
    out->data = w;
    out->bytes = w->n_bytes;
    out->format = w->m.format;
    return RD_OK;
}

static rd_status load_vector(struct backend *be, const struct host_tensor *t, struct weight *out)
{
    uint64_t n_bytes = (uint64_t)t->n_in * sizeof(float);
    float *values = mem_alloc(t->n_in, sizeof(*values));
    void *p = NULL;
    rd_status st = RD_E_NOMEM;

    if (!values) return st;
    dtype_to_float(t->dtype, t->data, values, t->n_in);
    st = device_alloc(be, n_bytes, &p);
    if (st == RD_OK)
        st = cuda_check(be, (int)cudaMemcpyAsync(p, values, (size_t)n_bytes, cudaMemcpyHostToDevice, stream_of(be)),
                        t->name);
    if (st == RD_OK) st = cuda_check(be, (int)cudaStreamSynchronize(stream_of(be)), t->name);
    mem_free(values);
    if (st != RD_OK) {
        cudaFree(p);
        return st;
    }
    out->data = p;
    out->bytes = n_bytes;
    return RD_OK;
}

bool cuda_weight_takes(const struct backend *be, enum dtype t)
{
    struct cuda_matrix m = {.n_out = 32, .n_in = dtype_block_weights(t)};

    cuda_matrix_form((int)t, &m);
    m.row_stride = cuda_row_align(&m);
    m.in_eights = be->l.compute != 90;
    return m.format != CUDA_BF16 && cuda_linear_takes(&be->l, &m);
}

rd_status cuda_weight_load(struct backend *be, const struct host_tensor *t, enum weight_role role, struct weight *out,
                           struct rd_error *err)
{
    struct weight w = {.dtype = t->dtype, .role = role, .n_out = t->n_out, .n_in = t->n_in};
    rd_status st = role == WEIGHT_VECTOR ? load_vector(be, t, &w) : load_matrix(be, t, &w);

    if (st == RD_E_NOMEM)
        return error_set(err, st, "%s: no room on the GPU (%s: %llu MiB free of %llu)", t->name, be->name,
                         (unsigned long long)(cuda_free_bytes(be) >> 20), (unsigned long long)(be->memory_bytes >> 20));
    if (st != RD_OK) return error_set(err, st, "%s: the GPU failed (see the log)", t->name);
    *out = w;
    return RD_OK;
}

void cuda_weight_unload(struct backend *be, struct weight *w)
{
    if (!w || !w->data) return;
    if (w->role == WEIGHT_VECTOR) {
        cudaFree((void *)(uintptr_t)w->data);
    } else {
        struct cuda_weight *held = (struct cuda_weight *)(uintptr_t)w->data, **at = &be->weights;

        if (--held->n_holders == 0) {
            while (*at != held) at = &(*at)->next;
            *at = held->next;
            cudaFree(held->memory);
            mem_free(held);
        }
    }
    memset(w, 0, sizeof(*w));
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
    cuda_stages_free(be); /* the weights are there */
    st = device_alloc(be, bytes, &kv.base);
    if (st != RD_OK) return st;
    /* rows that attention reads and multiplies by 0 are numbers from the start */
    st = cuda_check(be, (int)cudaMemsetAsync(kv.base, 0, (size_t)bytes, stream_of(be)), "KV cache");
    if (st == RD_OK) *out = kv;
    else cudaFree(kv.base);
    return st;
}

void cuda_kv_destroy(struct backend *be, struct kv_storage *kv)
{
    (void)be;
    if (!kv || !kv->base) return;
    cudaFree(kv->base);
    memset(kv, 0, sizeof(*kv));
}
