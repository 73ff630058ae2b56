/* bench/gpu/bench_gpu_join.cu - what a join of two ranks takes (src/backend/cuda/rows/join_*.cu), and whether it is right.
 *
 *     bench_gpu_join [peer|host|nccl|staged]     ranks on GPUs 0 and 1, or both on GPU 0 where there is one
 *
 * peer: over peer memory; host: through host memory; staged: likewise, no letters; nccl: packed, NCCL's all-gather, unpacked, as
 * --reduce nccl does it (two GPUs).
 *
 * Rows of 5,120 values, half of them from each rank, as f32 and as bf16: microseconds a join in a recorded step of 128 joins
 * to two outputs in turns, medians of 20 replays; NVLink's share: bytes that a rank sends, in GB/s. Every value is compared.
 */
#include <string.h>
#include <thread>
#include "backend/cuda/nccl_probe.h"
#include "backend/cuda/rows/join_ranks.h"
#include "gpu_bench.cuh"

enum { WIDTH = 5120, JOINS = 128, ROUNDS = 20, MOST_ROWS = 8192 };

struct rank {
    int device;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    cuda_joint *own;
    cuda_join_counts *counts;
    cuda_join_stage *stage;
    uint8_t *parts;
    void *comm;
    uint32_t *values[2], *outs[2];
};

static rank ranks[2];
static uint32_t *words;
static int n_gpus;
static bool by_host, by_nccl, no_letters;
static nccl_library nccl;
static nccl_id id;

static void open_rank(int r)
{
    rank *k = &ranks[r];

    k->device = r % n_gpus;
    GPU(cudaSetDevice(k->device));
    if (n_gpus > 1 && !by_host && !by_nccl) GPU(cudaDeviceEnablePeerAccess(!k->device, 0));
    GPU(cudaStreamCreateWithFlags(&k->stream, cudaStreamNonBlocking));
    if (by_host) {
        GPU(cudaHostAlloc((void **)&k->own, sizeof(cuda_joint), cudaHostAllocPortable | cudaHostAllocMapped));
        GPU(cudaHostAlloc((void **)&k->stage, sizeof(cuda_join_stage), cudaHostAllocPortable | cudaHostAllocMapped));
        memset(k->own, 0, sizeof(cuda_joint));
    } else {
        GPU(cudaMalloc((void **)&k->own, sizeof(cuda_joint)));
        GPU(cudaMemset(k->own, 0, sizeof(cuda_joint)));
    }
    GPU(cudaMalloc((void **)&k->counts, sizeof(cuda_join_counts)));
    GPU(cudaMemset(k->counts, 0, sizeof(cuda_join_counts)));
    if (by_nccl) GPU(cudaMalloc((void **)&k->parts, 2ull * MOST_ROWS * WIDTH * 2));
    for (int i = 0; i < 2; i++) {
        GPU(cudaMalloc((void **)&k->values[i], MOST_ROWS * WIDTH * 2ull));
        GPU(cudaMalloc((void **)&k->outs[i], MOST_ROWS * WIDTH * 4ull));
        fill_f32<<<256, 256>>>((float *)k->values[i], MOST_ROWS * WIDTH / 2, r * 2 + i, 1.0f);
    }
    GPU((cudaError_t)cuda_join_load());
    GPU(cudaDeviceSynchronize());
}

static cuda_join_args args_of(int r, uint32_t n_rows, uint32_t value_bytes, int which)
{
    cuda_join_args a = {};

    a.rank = r;
    a.n_ranks = 2;
    a.n_rows = n_rows;
    a.width = WIDTH;
    a.ends[0] = WIDTH / 2, a.ends[1] = WIDTH;
    a.first = r * WIDTH / 2;
    a.n = a.most = WIDTH / 2;
    a.value_bytes = value_bytes;
    a.own = ranks[r].values[which];
    a.own_stride = WIDTH / 2;
    for (int p = 0; p < 2; p++) {
        a.outs[p] = ranks[p].outs[which];
        a.joints[p] = ranks[p].own;
        a.stages[p] = ranks[p].stage;
    }
    a.counts = ranks[r].counts;
    a.letter_bytes = no_letters ? 0 : by_host ? CUDA_STAGED_LETTERS : CUDA_JOIN_LETTERS;
    a.most_blocks = n_gpus > 1 ? CUDA_JOIN_BLOCKS : CUDA_JOIN_BLOCKS / CUDA_JOIN_RANKS;
    a.words = words;
    a.patience_ns = 5000000000ull;
    return a;
}

/* As cuda_nccl.c, in one piece. */
static int join_by_nccl(const cuda_launch *l, const cuda_join_args *a)
{
    const uint64_t part = (uint64_t)a->n_rows * a->most * a->value_bytes;
    rank *k = &ranks[a->rank];
    int e = cuda_join_pack(l, a, 0, a->n_rows, k->parts + a->rank * part);

    if (!e) e = nccl.all_gather(k->parts + a->rank * part, k->parts, part, NCCL_BYTES, k->comm, l->stream);
    return e ? e : cuda_join_unpack(l, a, 0, a->n_rows, k->parts, part);
}

static void connect_nccl(int r)
{
    GPU(cudaSetDevice(ranks[r].device));
    if (nccl.comm_init_rank(&ranks[r].comm, 2, id, r) != 0) {
        printf("NCCL does not connect\n");
        exit(1);
    }
    for (uint64_t n : {16ull, 1ull << 20}) /* the first of a kind connects: not in a recording */
        nccl.all_gather(ranks[r].parts + r * n, ranks[r].parts, n, NCCL_BYTES, ranks[r].comm, ranks[r].stream);
    GPU(cudaStreamSynchronize(ranks[r].stream));
}

static void record(int r, uint32_t n_rows, uint32_t value_bytes, bool pdl)
{
    cuda_launch l = {};
    cudaGraph_t graph;

    GPU(cudaSetDevice(ranks[r].device));
    l.stream = ranks[r].stream;
    l.compute = 90;
    l.pdl = pdl;
    GPU(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < JOINS; i++) {
        const cuda_join_args a = args_of(r, n_rows, value_bytes, i % 2);

        GPU((cudaError_t)(by_nccl ? join_by_nccl : by_host ? cuda_join_staged : cuda_join)(&l, &a));
    }
    GPU(cudaStreamEndCapture(ranks[r].stream, &graph));
    GPU(cudaGraphInstantiate(&ranks[r].graph, graph, 0));
    GPU(cudaGraphUpload(ranks[r].graph, ranks[r].stream));
    GPU(cudaGraphDestroy(graph));
}

static double replay_us(void)
{
    cudaEvent_t begin, end;
    float ms = 0;

    GPU(cudaSetDevice(ranks[0].device));
    GPU(cudaEventCreate(&begin));
    GPU(cudaEventCreate(&end));
    GPU(cudaGraphLaunch(ranks[0].graph, ranks[0].stream)); /* so that the next begins when both are there */
    GPU(cudaEventRecord(begin, ranks[0].stream));
    GPU(cudaGraphLaunch(ranks[0].graph, ranks[0].stream));
    GPU(cudaEventRecord(end, ranks[0].stream));
    GPU(cudaSetDevice(ranks[1].device));
    for (int i = 0; i < 2; i++) GPU(cudaGraphLaunch(ranks[1].graph, ranks[1].stream));
    for (int r = 0; r < 2; r++) GPU(cudaStreamSynchronize(ranks[r].stream));
    GPU(cudaEventElapsedTime(&ms, begin, end));
    GPU(cudaEventDestroy(begin));
    GPU(cudaEventDestroy(end));
    return ms * 1e3 / JOINS;
}

static uint64_t count_wrong(uint32_t n_rows, uint32_t value_bytes)
{
    const uint64_t half = WIDTH / 2 * value_bytes / 4, n = half * n_rows;
    std::vector<uint32_t> own(n), out(2 * n);
    uint64_t wrong = 0;

    for (int which = 0; which < 2; which++)
        for (int to = 0; to < 2; to++) {
            GPU(cudaMemcpy(out.data(), ranks[to].outs[which], 2 * n * 4, cudaMemcpyDefault));
            for (int r = 0; r < 2; r++) {
                GPU(cudaMemcpy(own.data(), ranks[r].values[which], n * 4, cudaMemcpyDefault));
                for (uint64_t i = 0; i < n; i++) wrong += own[i] != out[i / half * 2 * half + r * half + i % half];
            }
        }
    return wrong;
}

int main(int argc, char **argv)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 256, 1024, 8192};
    const char *way = argc > 1 ? argv[1] : "peer";
    char why[256];
    uint64_t wrong = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    no_letters = strcmp(way, "staged") == 0;
    by_host = no_letters || strcmp(way, "host") == 0;
    by_nccl = strcmp(way, "nccl") == 0;

    GPU(cudaGetDeviceCount(&n_gpus));
    n_gpus = n_gpus > 1 ? 2 : 1;
    GPU(cudaHostAlloc((void **)&words, 64, cudaHostAllocPortable | cudaHostAllocMapped));
    memset(words, 0, 64);
    for (int r = 0; r < 2; r++) open_rank(r);
    if (by_nccl) {
        if (nccl_library_open(&nccl, why, sizeof(why)) != 0) return printf("%s\n", why), 1;
        nccl.get_unique_id(&id);
        std::thread other(connect_nccl, 1);
        connect_nccl(0);
        other.join();
    }
    printf("two ranks on %d GPU%s, rows of %d, %s\n", n_gpus, n_gpus > 1 ? "s" : "", WIDTH, way);
    for (uint32_t bytes = 4; bytes >= 2; bytes -= 2)
        for (uint32_t n : rows) {
            std::vector<double> us;

            for (int r = 0; r < 2; r++) {
                GPU(cudaSetDevice(ranks[r].device));
                for (int i = 0; i < 2; i++) GPU(cudaMemset(ranks[r].outs[i], 0xff, n * (uint64_t)WIDTH * 4));
                GPU(cudaDeviceSynchronize());
            }
            for (int r = 0; r < 2; r++) record(r, n, bytes, n_gpus > 1);
            for (int r = 0; r < 2; r++) GPU(cudaStreamSynchronize(ranks[r].stream));
            for (int i = 0; i < (by_host && n >= 1024 ? 2 : ROUNDS); i++) us.push_back(replay_us());
            std::sort(us.begin(), us.end());
            const uint64_t bad = count_wrong(n, bytes);
            printf("%5u rows of %s  %7.2f us  %6.1f GB/s sent%s\n", n, bytes == 4 ? "f32 " : "bf16", us[us.size() / 2],
                   n * (double)WIDTH / 2 * bytes / us[us.size() / 2] * 1e-3, bad ? "  WRONG" : "");
            wrong += bad;
            for (int r = 0; r < 2; r++) GPU(cudaGraphExecDestroy(ranks[r].graph));
        }
    if (words[0] || words[1]) printf("somebody was waited for in vain\n");
    return wrong || words[0];
}
