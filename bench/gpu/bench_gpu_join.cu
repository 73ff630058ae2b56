/* bench/gpu/bench_gpu_join.cu - what a join of two ranks takes (src/backend/cuda/rows/join_ranks.cu), and whether it is right.
 *
 *     bench_gpu_join            ranks on GPUs 0 and 1, or both on GPU 0 where there is one
 *
 * Rows of 5,120 values, half of them from each rank, as f32 and as bf16: microseconds a join in a recorded step of 128 joins
 * to two outputs in turns, medians of 20 replays; NVLink's share: bytes that a rank sends, in GB/s. Every value is compared.
 */
#include <string.h>
#include "backend/cuda/rows/join_ranks.h"
#include "gpu_bench.cuh"

enum { WIDTH = 5120, JOINS = 128, ROUNDS = 20, MOST_ROWS = 8192 };

struct rank {
    int device;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    cuda_joint *own;
    uint32_t *values[2], *outs[2];
};

static rank ranks[2];
static uint32_t *words;
static int n_gpus;

static void open_rank(int r)
{
    rank *k = &ranks[r];

    k->device = r % n_gpus;
    GPU(cudaSetDevice(k->device));
    if (n_gpus > 1) GPU(cudaDeviceEnablePeerAccess(!k->device, 0));
    GPU(cudaStreamCreateWithFlags(&k->stream, cudaStreamNonBlocking));
    GPU(cudaMalloc((void **)&k->own, sizeof(cuda_joint)));
    GPU(cudaMemset(k->own, 0, sizeof(cuda_joint)));
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
    }
    a.most_blocks = n_gpus > 1 ? CUDA_JOIN_BLOCKS : CUDA_JOIN_BLOCKS / CUDA_JOIN_RANKS;
    a.words = words;
    a.patience_ns = 5000000000ull;
    return a;
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

        GPU((cudaError_t)cuda_join(&l, &a));
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

int main(void)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 256, 1024, 8192};
    uint64_t wrong = 0;

    GPU(cudaGetDeviceCount(&n_gpus));
    n_gpus = n_gpus > 1 ? 2 : 1;
    GPU(cudaHostAlloc((void **)&words, 64, cudaHostAllocPortable | cudaHostAllocMapped));
    memset(words, 0, 64);
    for (int r = 0; r < 2; r++) open_rank(r);
    printf("two ranks on %d GPU%s, rows of %d\n", n_gpus, n_gpus > 1 ? "s" : "", WIDTH);
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
            for (int i = 0; i < ROUNDS; i++) us.push_back(replay_us());
            std::sort(us.begin(), us.end());
            const uint64_t bad = count_wrong(n, bytes);
            printf("%5u rows of %s  %7.2f us  %6.1f GB/s sent%s\n", n, bytes == 4 ? "f32 " : "bf16", us[ROUNDS / 2],
                   n * (double)WIDTH / 2 * bytes / us[ROUNDS / 2] * 1e-3, bad ? "  WRONG" : "");
            wrong += bad;
            for (int r = 0; r < 2; r++) GPU(cudaGraphExecDestroy(ranks[r].graph));
        }
    if (words[0] || words[1]) printf("somebody was waited for in vain\n");
    return wrong || words[0];
}
