/* backend/cuda/host/cuda_backend.c - opening a device, and what becomes of its errors. */
#include "backend/cuda/host/cuda_backend.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

#define OLDEST_COMPUTE 80u

rd_status cuda_check(struct backend *be, int error, const char *what)
{
    if (be->is_dead) return RD_E_DEVICE;
    if (error == 0) return RD_OK;
    be->is_dead = true;
    log_error("CUDA device %d (%s): %s: %s (%s): it is not used any more", be->device, be->name, what,
              cudaGetErrorString((cudaError_t)error), cudaGetErrorName((cudaError_t)error));
    return RD_E_DEVICE;
}

rd_status cuda_here(struct backend *be)
{
    return cuda_check(be, be->is_dead ? 0 : (int)cudaSetDevice(be->device), "device");
}

static void cuda_destroy(struct backend *be)
{
    if (!be) return;
    cudaSetDevice(be->device);
    cuda_graphs_free(be); /* before NCCL, which waits until none of them has its kernels */
    cuda_joins_free(be);
    cuda_loader_free(be);
    cuda_lanes_free(be);
    pin_map_deinit(&be->pins);
    cudaFree(be->meta_device);
    cudaFree(be->l.scratch);
    cudaFree(be->l.counters);
    for (int i = 0; i < 2; i++)
        if (be->meta_hosts[i]) cudaFreeHost(be->meta_hosts[i]);
    if (be->branch.fork) cudaEventDestroy(be->branch.fork);
    if (be->branch.join) cudaEventDestroy(be->branch.join);
    if (be->branch.stream) cudaStreamDestroy((cudaStream_t)be->branch.stream);
    if (be->l.stream) cudaStreamDestroy((cudaStream_t)be->l.stream);
    mem_free(be);
}

/* Why there is no device, in words that say what to do. */
static rd_status explain(cudaError_t error, struct rd_error *err)
{
    int driver = 0, runtime = 0;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        return error_set(err, RD_E_UNSUPPORTED,
                         "device cuda: no NVIDIA driver was found (libcuda.so.1); install one "
                         "for CUDA %d.%d or newer, or use --device cpu",
                         runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorInsufficientDriver)
        return error_set(err, RD_E_UNSUPPORTED,
                         "device cuda: the NVIDIA driver supports CUDA up to %d.%d, but radish "
                         "was built with %d.%d: update the driver, or use --device cpu",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorNoDevice)
        return error_set(err, RD_E_UNSUPPORTED,
                         "device cuda: the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES, "
                         "container options); use --device cpu");
    return error_set(err, RD_E_DEVICE, "device cuda: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

/* $RADISH_CUDA_COMPUTE, such as 80: the kernels that an older GPU would run, to test them on a newer one. */
static uint32_t compute_of(const struct cudaDeviceProp *p)
{
    const uint32_t real = (uint32_t)(p->major * 10 + p->minor);
    const char *set = getenv("RADISH_CUDA_COMPUTE");
    uint32_t wanted = set ? (uint32_t)strtoul(set, NULL, 10) : real;

    return wanted >= OLDEST_COMPUTE && wanted < real ? wanted : real;
}

static rd_status open_device(struct backend *be, uint32_t device, struct rd_error *err)
{
    struct cudaDeviceProp p;
    int n = 0, smem = 0;
    cudaError_t error = cudaGetDeviceCount(&n);

    if (error != cudaSuccess) return explain(error, err);
    if (n == 0) return explain(cudaErrorNoDevice, err);
    if (device >= (uint32_t)n)
        return error_set(err, RD_E_INVALID, "device cuda:%u: this machine has %d (0 .. %d)", device, n, n - 1);
    be->device = (int)device;
    error = cudaSetDevice(be->device);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&p, be->device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, be->device);
    if (error != cudaSuccess) return explain(error, err);
    snprintf(be->name, sizeof(be->name), "%s", p.name);
    be->memory_bytes = p.totalGlobalMem;
    be->l.n_sms = (uint32_t)p.multiProcessorCount;
    be->l.compute = compute_of(&p);
    be->l.smem_block_max = (uint32_t)smem;
    be->l.pdl = be->l.compute >= 90;
    be->l.scratch_bytes = CUDA_SCRATCH_BYTES;
    if (be->l.compute < OLDEST_COMPUTE)
        return error_set(err, RD_E_UNSUPPORTED,
                         "device cuda: %s has compute capability %d.%d; 8.0 (Ampere) or newer is "
                         "needed",
                         p.name, p.major, p.minor);
    return RD_OK;
}

static cudaError_t make_buffers(struct backend *be)
{
    cudaStream_t stream = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);

    be->l.stream = stream;
    stream = NULL;
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    be->branch.stream = stream;
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&be->branch.fork, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&be->branch.join, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaMalloc(&be->l.scratch, CUDA_SCRATCH_BYTES);
    if (error == cudaSuccess) error = cudaMalloc((void **)&be->l.counters, CUDA_N_COUNTERS * sizeof(uint32_t));
    if (error == cudaSuccess) error = cudaMemset(be->l.counters, 0, CUDA_N_COUNTERS * sizeof(uint32_t));
    if (error == cudaSuccess) error = cudaMalloc((void **)&be->meta_device, CUDA_META_BYTES);
    for (int i = 0; i < 2 && error == cudaSuccess; i++)
        error = cudaHostAlloc((void **)&be->meta_hosts[i], CUDA_META_BYTES, cudaHostAllocDefault);
    be->meta_host = be->meta_hosts[0];
    for (uint32_t i = 0; i < CUDA_MARKS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&be->marks[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    return error;
}

static rd_status cuda_create(const struct backend_options *o, struct backend **out, struct rd_error *err)
{
    struct backend *be = mem_zalloc(1, sizeof(*be));
    cudaError_t error;
    rd_status st;

    if (!be) return error_set(err, RD_E_NOMEM, "device cuda: out of memory");
    pin_map_init(&be->pins);
    be->no_graphs = o->no_graphs;
    be->join_way = o->join_way;
    be->device = (int)o->device;
    be->graphs = mem_zalloc(CUDA_MAX_GRAPHS, sizeof(*be->graphs));
    if (!be->graphs) {
        cuda_destroy(be);
        return error_set(err, RD_E_NOMEM, "device cuda: out of memory");
    }
    st = open_device(be, o->device, err);
    if (st != RD_OK) goto fail;
    error = make_buffers(be);
    if (error == cudaSuccess) error = (cudaError_t)cuda_kernels_init(&be->l);
    if (error != cudaSuccess) {
        st = error == cudaErrorMemoryAllocation ? RD_E_NOMEM : RD_E_DEVICE;
        error_set(err, st, "device cuda (%s): %s", be->name, cudaGetErrorString(error));
        goto fail;
    }
    *out = be;
    return RD_OK;

fail:
    cuda_destroy(be);
    return st;
}

static void cuda_describe(const struct backend *be, char *buf, size_t n)
{
    snprintf(buf, n, "cuda: %s, compute %u.%u, %llu GiB", be->name, be->l.compute / 10, be->l.compute % 10,
             (unsigned long long)(be->memory_bytes >> 30));
}

static bool cuda_is_dead(const struct backend *be)
{
    return be->is_dead;
}

static rd_status cuda_sync(struct backend *be)
{
    rd_status st;

    st = cuda_let_go(be);
    if (st != RD_OK) return st;
    be->n_sent = 0;
    be->n_meta = 0;
    cuda_timing_end(be);
    st = cuda_wait_all(be, "sync");
    cuda_timing_read(be, be->n_begun);
    return st;
}

static const struct backend_async async = {
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .can_mark = cuda_can_mark,
    .mark = cuda_mark,
    .wait_mark = cuda_wait_mark,
    .move_begin = cuda_move_begin,
    .move_end = cuda_move_end,
};

const struct backend_ops backend_cuda_ops = {
    .name = "cuda",
    .traits = {.keeps_windows = true, .sees_both_ways = true, .turns_axes = true},
    .life = {.create = cuda_create,
             .destroy = cuda_destroy,
             .is_dead = cuda_is_dead,
             .describe = cuda_describe,
             .connect = cuda_connect},
    .memory = {.free_bytes = cuda_free_bytes,
               .alloc = cuda_alloc,
               .free = cuda_free,
               .read = cuda_read,
               .write = cuda_write,
               .sync = cuda_sync,
               .pin = cuda_pin},
    .weights = {.takes = cuda_weight_takes,
                .load = cuda_weight_load,
                .done = cuda_weights_done,
                .unload = cuda_weight_unload,
                .load_pairs = cuda_load_pairs},
    .pages = {.create = cuda_kv_create,
              .destroy = cuda_kv_destroy,
              .copy_rows = cuda_op_kv_copy_rows,
              .read = cuda_kv_read,
              .write = cuda_kv_write},
    .op = {.embed = cuda_op_embed,
           .residual_norm = cuda_op_residual_norm,
           .linear = cuda_op_linear,
           .qkv_rope_write = cuda_op_qkv_rope_write,
           .attention = cuda_op_attention,
           .glu = cuda_op_glu,
           .linear_glu = cuda_op_linear_glu,
           .join = cuda_op_join,
           .low_rank = cuda_op_low_rank,
           .low_rank_rows = cuda_op_low_rank_rows,
           .gather = cuda_op_gather,
           .softcap = cuda_op_softcap,
           .choose = cuda_op_choose,
           .layer_norm = cuda_op_layer_norm,
           .gelu = cuda_op_gelu,
           .turn = cuda_op_turn,
           .mean_rows = cuda_op_mean_rows,
           .attend_pack = cuda_op_attend_pack,
           .attend = cuda_op_attend,
           .attend_fill = cuda_op_attend_fill,
           .linear_choose = cuda_op_linear_choose},
    .async = &async,
};
