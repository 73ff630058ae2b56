/* bench/gpu/bench_gpu_limits.cu - what this card can do, for shares: GB/s of reads, and of copies of a few MB each way,
 * from and to pinned memory, as the host tier makes them. Prints one line: READ H2D D2H. The arithmetic limit is that of
 * bench_gpu_linear. */
#include "gpu_bench.cuh"

#define N_PIECES 64
#define PIECE    (2359296ull) /* a page of 16 tokens of Qwen3-8B in f16 */

static double copy_rate(char *to, const char *from, cudaMemcpyKind kind)
{
    cudaEvent_t begin, end;
    float best = 1e30f, ms;

    GPU(cudaEventCreate(&begin));
    GPU(cudaEventCreate(&end));
    for (int r = 0; r < 5; r++) {
        GPU(cudaEventRecord(begin));
        for (uint64_t i = 0; i < N_PIECES; i++) /* in an order that no two are neighbours */
            GPU(cudaMemcpyAsync(to + i * 37 % N_PIECES * PIECE, from + i * 11 % N_PIECES * PIECE, PIECE, kind));
        GPU(cudaEventRecord(end));
        GPU(cudaEventSynchronize(end));
        GPU(cudaEventElapsedTime(&ms, begin, end));
        best = std::min(best, ms);
    }
    return N_PIECES * PIECE / (best * 1e6);
}

int main(void)
{
    const uint64_t n = 4ull << 30;
    char *device = gpu_alloc<char>(n), *host;
    double read, in, out;

    GPU(cudaHostAlloc((void **)&host, N_PIECES * PIECE, cudaHostAllocDefault));
    read = read_bandwidth(device, n);
    in = copy_rate(device, host, cudaMemcpyHostToDevice);
    out = copy_rate(host, device, cudaMemcpyDeviceToHost);
    printf("%.0f %.1f %.1f\n", read, in, out);
    return 0;
}
