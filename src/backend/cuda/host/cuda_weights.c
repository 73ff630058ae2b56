/* backend/cuda/host/cuda_weights.c - weights from the mapped file to the device, while the next ones are read.
 *
 *     file --load_ring.h--> pinned stages --copies' stream--> device's stages --convert_rows, ops' stream--> weight
 *
 * A tensor is cut at whole rows, so that every piece can be converted alone. Events order a stage's users; the copy
 * engine never waits for a kernel except for one that is N_ON_DEVICE pieces behind. The stages are the metadata's buffers,
 * which nobody else needs before a model stands: pinning others would take longer than filling them.
 * Vectors are made into f32 by the host, in a stage of their own.
 *
 * Nothing is waited for at the end of a tensor that stays in memory (host_tensor.stays). What a conversion found out
 * (scales beyond the halves) is read for many weights at once; such a weight is loaded again, as bf16.
 */
#include <assert.h>
#include <string.h>
#include "backend/cuda/host/cuda_backend.h"
#include "backend/load_ring.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

#define STAGE_BYTES (16ull << 20)
#define PER_BUFFER  ((uint32_t)(CUDA_META_BYTES / STAGE_BYTES))
#define N_ON_HOST   (2 * PER_BUFFER - 1) /* the last one: vectors */
#define N_ON_DEVICE PER_BUFFER
#define MAX_THREADS 12u /* beside the loading one: more fill no faster than an H200 is sent to */
#define MAX_CHECKS  1024u

/* What the rows of a stage become. */
struct piece {
    struct cuda_matrix m;
    int dtype;
    uint32_t row, n_rows;
    uint32_t *overflow;
};

/* A quantised weight that may have to be loaded again. */
struct check {
    struct cuda_weight *w;
    struct host_tensor t;
};

struct cuda_loader {
    struct load_ring *ring;
    bool is_open; /* something was begun since the last weights_done */
    cudaStream_t copies;
    cudaEvent_t copied[N_ON_HOST], converted[N_ON_DEVICE];
    struct piece pieces[N_ON_HOST];
    uint64_t n_sent;         /* pieces: by whoever sends */
    uint64_t n_vector_bytes; /* of the vectors' stage */
    uint32_t *overflow;      /* device: [MAX_CHECKS] */
    uint32_t n_checks;
    struct check checks[MAX_CHECKS];
    /* for the log */
    uint64_t begin_ns, n_bytes;
};

static cudaStream_t stream_of(const struct backend *be)
{
    return (cudaStream_t)be->l.stream;
}

bool cuda_is_loading(const struct backend *be)
{
    return be->loader && be->loader->is_open;
}

/* ---- the ring and what it sends to ---- */

static char *host_stage(const struct backend *be, uint32_t i)
{
    return be->meta_hosts[i / PER_BUFFER] + i % PER_BUFFER * STAGE_BYTES;
}

/* load_target.send: any thread. */
static int send_stage(void *arg, uint32_t stage, uint64_t n_bytes)
{
    struct backend *be = arg;
    struct cuda_loader *l = be->loader;
    const struct piece *p = &l->pieces[stage];
    const uint32_t i = (uint32_t)(l->n_sent++ % N_ON_DEVICE);
    char *at = be->meta_device + i * STAGE_BYTES;
    cudaError_t error = cudaSetDevice(be->device);

    if (error == cudaSuccess) error = cudaStreamWaitEvent(l->copies, l->converted[i], 0);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(at, host_stage(be, stage), (size_t)n_bytes, cudaMemcpyHostToDevice, l->copies);
    if (error == cudaSuccess) error = cudaEventRecord(l->copied[stage], l->copies);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_of(be), l->copied[stage], 0);
    if (error == cudaSuccess)
        error = (cudaError_t)cuda_convert_rows(&be->l, p->dtype, at, p->row, p->n_rows, &p->m, p->overflow);
    if (error == cudaSuccess) error = cudaEventRecord(l->converted[i], stream_of(be));
    if (error == cudaErrorMemoryAllocation) cudaGetLastError();
    return (int)error;
}

static int wait_stage(void *arg, uint32_t stage)
{
    struct backend *be = arg;

    return (int)cudaEventSynchronize(be->loader->copied[stage]);
}

void cuda_loader_free(struct backend *be)
{
    struct cuda_loader *l = be->loader;

    if (!l) return;
    load_ring_destroy(l->ring);
    if (l->copies) cudaStreamSynchronize(l->copies);
    for (uint32_t i = 0; i < N_ON_HOST; i++)
        if (l->copied[i]) cudaEventDestroy(l->copied[i]);
    for (uint32_t i = 0; i < N_ON_DEVICE; i++)
        if (l->converted[i]) cudaEventDestroy(l->converted[i]);
    if (l->copies) cudaStreamDestroy(l->copies);
    cudaFree(l->overflow);
    mem_free(l);
    be->loader = NULL;
}

static cudaError_t make_events(struct cuda_loader *l)
{
    cudaError_t error = cudaStreamCreateWithFlags(&l->copies, cudaStreamNonBlocking);

    for (uint32_t i = 0; i < N_ON_HOST && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&l->copied[i], cudaEventDisableTiming);
    for (uint32_t i = 0; i < N_ON_DEVICE && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&l->converted[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaMalloc((void **)&l->overflow, MAX_CHECKS * sizeof(*l->overflow));
    return error;
}

static rd_status loader_create(struct backend *be)
{
    const struct load_target target = {send_stage, wait_stage, be};
    const uint32_t n_threads = u32_min(thread_n_cores() - 1, MAX_THREADS);
    struct cuda_loader *l = mem_zalloc(1, sizeof(*l));
    char *stages[N_ON_HOST];
    cudaError_t error;
    rd_status st;

    if (!l) return RD_E_NOMEM;
    be->loader = l;
    for (uint32_t i = 0; i < N_ON_HOST; i++) stages[i] = host_stage(be, i);
    error = make_events(l);
    if (error == cudaErrorMemoryAllocation) cudaGetLastError();
    st = error == cudaErrorMemoryAllocation ? RD_E_NOMEM : cuda_check(be, (int)error, "loading");
    if (st == RD_OK) st = load_ring_create(stages, N_ON_HOST, n_threads, &target, &l->ring);
    if (st != RD_OK) cuda_loader_free(be);
    return st;
}

/* Before anything is loaded: the buffers are not the steps' any more. */
static rd_status loader_open(struct backend *be)
{
    struct cuda_loader *l = be->loader;
    cudaError_t error;
    rd_status st;

    if (be->is_dead) return RD_E_DEVICE;
    if (!l) {
        st = loader_create(be);
        if (st != RD_OK) return st;
        l = be->loader;
    }
    if (l->is_open) return RD_OK;
    assert(be->n_waited == be->n_begun);
    be->n_sent = 0;
    be->n_meta = 0;
    l->n_checks = 0;
    l->n_vector_bytes = 0;
    l->n_bytes = 0;
    l->begin_ns = clock_now_ns(clock_system());
    error = cudaStreamSynchronize(stream_of(be));
    if (error == cudaSuccess) error = cudaMemsetAsync(l->overflow, 0, MAX_CHECKS * sizeof(*l->overflow), stream_of(be));
    l->is_open = error == cudaSuccess;
    return cuda_check(be, (int)error, "loading");
}

/* ---- matrices ---- */

/* RD_E_NOMEM of a launch or a copy harms nothing but what is loaded. */
static rd_status check_load(struct backend *be, int error, const char *name)
{
    if (error != (int)cudaErrorMemoryAllocation) return cuda_check(be, error, name);
    cudaGetLastError();
    return RD_E_NOMEM;
}

/* overflow: for the conversion, on the device. */
static rd_status send_matrix(struct backend *be, const struct host_tensor *t, const struct cuda_matrix *m,
                             uint32_t *overflow)
{
    struct cuda_loader *l = be->loader;
    uint64_t row_bytes = (uint64_t)t->n_in / dtype_block_weights(t->dtype) * dtype_block_bytes(t->dtype);
    uint32_t step = (uint32_t)u64_min(STAGE_BYTES / row_bytes, t->n_out);

    assert(step > 0); /* LIMIT_FFN */
    for (uint32_t row = 0; row < t->n_out; row += step) {
        uint32_t n = u32_min(step, t->n_out - row), stage;
        int error = load_ring_take(l->ring, &stage);

        if (error) return check_load(be, error, t->name);
        l->pieces[stage] = (struct piece){*m, (int)t->dtype, row, n, overflow};
        load_ring_put(l->ring, (const char *)t->data + row * row_bytes, n * row_bytes);
    }
    l->n_bytes += t->n_out * row_bytes;
    return RD_OK;
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
    return (struct cuda_matrix){.format = CUDA_BF16, .n_out = t->n_out, .n_in = t->n_in, .n_whole = t->n_whole};
}

static rd_status make_matrix(struct backend *be, const struct host_tensor *t, struct cuda_weight *w)
{
    struct cuda_loader *l = be->loader;
    uint32_t *overflow = l->overflow;
    uint64_t at_scales;
    rd_status st;

    if (!place_matrix(&w->m, &at_scales, &w->n_bytes)) return RD_E_NOMEM;
    st = cuda_device_alloc(be, w->n_bytes, &w->memory);
    if (st != RD_OK) return st;
    w->m.values = w->memory;
    w->m.scales = w->m.group ? (char *)w->memory + at_scales : NULL;
    if (w->m.group) {
        overflow += l->n_checks;
        l->checks[l->n_checks] = (struct check){w, *t};
        l->checks[l->n_checks++].t.name = "a weight as bf16"; /* t's may be gone then */
    }
    return send_matrix(be, t, &w->m, overflow);
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

/* What was put is on the device, and what was found out in *n_found of `found`. */
static rd_status settle(struct backend *be, uint32_t found[MAX_CHECKS], uint32_t *n_found)
{
    struct cuda_loader *l = be->loader;
    int error = load_ring_drain(l->ring);

    *n_found = l->n_checks;
    l->n_checks = 0;
    l->n_vector_bytes = 0;
    l->is_open = false;
    if (!error) error = (int)cudaStreamSynchronize(l->copies);
    if (!error && *n_found)
        error =
            (int)cudaMemcpyAsync(found, l->overflow, *n_found * sizeof(*found), cudaMemcpyDeviceToHost, stream_of(be));
    if (!error) error = (int)cudaStreamSynchronize(stream_of(be));
    return check_load(be, error, "loading");
}

/* Waits for all that was begun; weights whose scales are no halves become bf16. */
static rd_status finish(struct backend *be)
{
    uint32_t found[MAX_CHECKS], n_found;
    rd_status st = RD_OK;

    if (!cuda_is_loading(be)) return be->is_dead ? RD_E_DEVICE : RD_OK;
    st = settle(be, found, &n_found);
    for (uint32_t i = 0; st == RD_OK && i < n_found; i++) {
        struct check *c = &be->loader->checks[i]; /* bf16 has no checks of its own: they stay */

        if (!found[i]) continue;
        if (c->t.n_whole) { /* other ranks' parts may be as they were: sums would be of another order than one rank's */
            log_error("a weight has scales beyond 16 bits: such a model has one rank on a GPU");
            return RD_E_UNSUPPORTED;
        }
        cudaFree(c->w->memory);
        c->w->memory = NULL;
        c->w->m = bf16_form(&c->t);
        st = loader_open(be);
        if (st == RD_OK) st = make_matrix(be, &c->t, c->w);
    }
    if (st == RD_OK && be->loader->is_open) st = settle(be, found, &n_found);
    if (st != RD_OK) cuda_loader_free(be); /* the ring keeps its error */
    return st;
}

static rd_status load_matrix(struct backend *be, const struct host_tensor *t, struct weight *out)
{
    struct cuda_weight *w;
    rd_status st;

    for (w = be->weights; w; w = w->next)
        if (w->key == t->data && w->m.n_out == t->n_out && w->m.n_in == t->n_in && w->m.n_whole == t->n_whole) {
            w->n_holders++;
            out->data = w;
            return RD_OK;
        }
    if (be->loader && be->loader->n_checks == MAX_CHECKS && (st = finish(be)) != RD_OK) return st;
    if ((st = loader_open(be)) != RD_OK) return st;
    w = mem_zalloc(1, sizeof(*w));
    if (!w) return RD_E_NOMEM;
    w->key = out->role == WEIGHT_EMBED ? t->data : NULL; /* which stays: other bytes may be made for the load alone */
    w->n_holders = 1;
    w->m.n_out = t->n_out;
    w->m.n_in = t->n_in;
    w->m.n_whole = t->n_whole;
    cuda_matrix_form((int)t->dtype, &w->m);
    w->m.in_eights = be->l.compute != 90 && w->m.format != CUDA_BF16;
    st = cuda_linear_takes(&be->l, &w->m) ? RD_E_NOMEM : make_bf16(be, t, w);
    if (st == RD_E_NOMEM) st = make_matrix(be, t, w);
    w->next = be->weights;
    be->weights = w;
    out->data = w;
    out->bytes = w->n_bytes;
    out->format = w->m.format;
    return st;
}

/* ---- vectors ---- */

static rd_status load_vector(struct backend *be, const struct host_tensor *t, struct weight *out)
{
    const uint32_t at_once = STAGE_BYTES / sizeof(float);
    rd_status st = loader_open(be);
    struct cuda_loader *l = be->loader;
    int error = 0;
    void *p = NULL;

    if (st == RD_OK) st = cuda_device_alloc(be, (uint64_t)t->n_in * sizeof(float), &p);
    if (st != RD_OK) return st;
    out->data = p;
    out->bytes = (uint64_t)t->n_in * sizeof(float);
    for (uint32_t done = 0, n; done < t->n_in && !error; done += n) {
        float *values;

        n = u32_min(t->n_in - done, at_once);
        if (l->n_vector_bytes + n * sizeof(float) > STAGE_BYTES) {
            error = (int)cudaStreamSynchronize(l->copies);
            l->n_vector_bytes = 0;
        }
        values = (float *)(void *)(host_stage(be, N_ON_HOST) + l->n_vector_bytes);
        l->n_vector_bytes += n * sizeof(float);
        dtype_to_float(t->dtype, (const char *)t->data + (uint64_t)done * dtype_block_bytes(t->dtype), values, n);
        if (!error)
            error =
                (int)cudaMemcpyAsync((float *)p + done, values, n * sizeof(float), cudaMemcpyHostToDevice, l->copies);
    }
    return check_load(be, error, t->name);
}

/* what: whose load failed. */
static rd_status explain(struct backend *be, rd_status st, const char *what, struct rd_error *err)
{
    size_t left = 0, all = 0;

    if (st == RD_OK) return st;
    if (st != RD_E_NOMEM) return error_set(err, st, "%s: the GPU failed (see the log)", what);
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) left = 0;
    return error_set(err, st, "%s: no room on the GPU (%s: %llu MiB free of %llu)", what, be->name,
                     (unsigned long long)(left >> 20), (unsigned long long)(be->memory_bytes >> 20));
}

/* ---- adapters ---- */

/* Beside the steps that run: on a stream of this thread's own, and without what is the loader's. */
static rd_status to_device(struct backend *be, const void *host, uint64_t n_bytes, struct weight *out)
{
    cudaError_t error = cudaSetDevice(be->device);
    void *p = NULL;

    if (error == cudaSuccess) error = cudaMalloc(&p, (size_t)n_bytes);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(p, host, (size_t)n_bytes, cudaMemcpyHostToDevice, cudaStreamPerThread);
    if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamPerThread);
    out->data = p;
    out->bytes = n_bytes;
    if (error == cudaSuccess) return RD_OK;
    if (p) cudaFree(p);
    out->data = NULL;
    if (error == cudaErrorMemoryAllocation) cudaGetLastError();
    return error == cudaErrorMemoryAllocation ? RD_E_NOMEM : RD_E_DEVICE;
}

static rd_status load_low_rank(struct backend *be, const struct host_tensor *t, struct weight *out)
{
    assert(t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16);
    return to_device(be, t->data, (uint64_t)t->n_out * t->n_in * dtype_block_bytes(t->dtype), out);
}

rd_status cuda_load_pairs(struct backend *be, const struct low_rank_pair *pairs, uint32_t n, struct weight *out,
                          struct rd_error *err)
{
    const uint64_t n_bytes = n * sizeof(struct cuda_low_rank_pair);
    struct cuda_low_rank_pair *table = mem_zalloc(n, sizeof(*table));
    struct weight w = {.role = WEIGHT_LOW_RANK, .n_out = n};
    rd_status st;

    if (!table) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        if (pairs[i].a) {
            table[i] = cuda_pair_of(pairs[i].a, pairs[i].b, pairs[i].scale);
            w.format |= cuda_low_rank_kinds(&table[i]);
        }
    st = to_device(be, table, n_bytes, &w);
    mem_free(table);
    if (st == RD_OK) *out = w;
    return explain(be, st, "an adapter", err);
}

static void unload_low_rank(struct backend *be, struct weight *w)
{
    if (cudaSetDevice(be->device) == cudaSuccess) cudaFree((void *)(uintptr_t)w->data);
}

/* ---- the backend's functions ---- */

bool cuda_weight_takes(const struct backend *be, enum dtype t)
{
    struct cuda_matrix m = {.n_out = 32, .n_in = dtype_block_weights(t)};

    cuda_matrix_form((int)t, &m);
    m.row_stride = cuda_row_align(&m);
    m.in_eights = be->l.compute != 90;
    return m.format != CUDA_BF16 && cuda_linear_takes(&be->l, &m);
}

rd_status cuda_weights_done(struct backend *be, struct rd_error *err)
{
    uint64_t n_bytes = be->loader ? be->loader->n_bytes : 0, began = be->loader ? be->loader->begin_ns : 0;
    uint32_t n_threads = be->loader ? load_ring_n_threads(be->loader->ring) : 0;
    rd_status st = finish(be);
    double ms;

    if (st == RD_OK && n_bytes >> 20) {
        ms = (double)(clock_now_ns(clock_system()) - began) / 1e6;
        log_debug("weights: %llu MiB to the GPU in %.1f ms, %.1f GB/s, by %u threads",
                  (unsigned long long)(n_bytes >> 20), ms, (double)n_bytes / ms / 1e6, n_threads + 1);
    }
    return explain(be, st, "the weights", err);
}

rd_status cuda_weight_load(struct backend *be, const struct host_tensor *t, enum weight_role role, struct weight *out,
                           struct rd_error *err)
{
    struct weight w = {.dtype = t->dtype, .role = role, .n_out = t->n_out, .n_in = t->n_in};
    rd_status st;

    if (role == WEIGHT_LOW_RANK) {
        if ((st = load_low_rank(be, t, &w)) == RD_OK) *out = w;
        return explain(be, st, t->name, err);
    }
    st = role == WEIGHT_VECTOR ? load_vector(be, t, &w) : load_matrix(be, t, &w);
    if (st == RD_OK && !t->stays) st = finish(be);
    if (st != RD_OK) {
        (void)finish(be); /* nothing writes to what is freed */
        cuda_weight_unload(be, &w);
        return explain(be, st, t->name, err);
    }
    *out = w;
    return RD_OK;
}

void cuda_weight_unload(struct backend *be, struct weight *w)
{
    if (!w || !w->data) return;
    assert(w->role == WEIGHT_LOW_RANK || !cuda_is_loading(be));
    if (w->role == WEIGHT_LOW_RANK) {
        unload_low_rank(be, w);
    } else if (w->role == WEIGHT_VECTOR) {
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
