/* bench/gpu/bench_gpu_low_rank.cu - adapters in recorded steps (cuda_low_rank_rows): what a launch takes.
 *
 *     bench_gpu_low_rank [RANK]      the four launches of a layer, of Qwen3 8B's shape and SmolLM2's; default rank 16
 *
 * 16 rows, F16 adapters: of none, of one adapter, of 8. A graph has one kind of launch for 36 layers, each with weights of its
 * own: microseconds of a launch, and what it reads over that. Each waits for the one before, as in a step.
 */
#include "backend/cuda/cuda_kernels.h"
#include "gpu_bench.cuh"
#include <string.h>

static const uint32_t N_ROWS = 16, N_LAYERS = 36, MOST = 8;

struct shape {
    const char *model, *name;
    uint32_t n_in, n_outs, n_out[3];
};
static const struct shape SHAPES[] = {
    {"8B", "q k v", 4096, 3, {4096, 1024, 1024}},  {"8B", "o", 4096, 1, {4096}},
    {"8B", "gate up", 4096, 2, {12288, 12288}},    {"8B", "down", 12288, 1, {4096}},
    {"SmolLM2", "q k v", 576, 3, {576, 192, 192}}, {"SmolLM2", "o", 576, 1, {576}},
    {"SmolLM2", "gate up", 576, 2, {1536, 1536}},  {"SmolLM2", "down", 1536, 1, {576}}};

/* Tiles of n_adapters adapters, rows in turn; tables [n_adapters] of N_LAYERS * n_outs pairs. */
static struct cuda_low_rank_tile *make_tiles(struct cuda_low_rank_pair *const *tables, uint32_t n_adapters)
{
    std::vector<struct cuda_low_rank_tile> tiles(N_ROWS);
    struct cuda_low_rank_tile *there = gpu_alloc<struct cuda_low_rank_tile>(N_ROWS);
    uint32_t n = 0;

    memset(tiles.data(), 0, N_ROWS * sizeof(tiles[0]));
    for (uint32_t a = 0; a < n_adapters; a++)
        for (uint32_t row = a; row < N_ROWS; row += n_adapters) {
            if (row == a || tiles[n - 1].n_rows == CUDA_LOW_RANK_TILE) {
                tiles[n].n_uses = 1;
                tiles[n++].uses[0] = {tables[a], 1.0f, 0};
            }
            tiles[n - 1].rows[tiles[n - 1].n_rows++] = row;
        }
    GPU(cudaMemcpy(there, tiles.data(), N_ROWS * sizeof(tiles[0]), cudaMemcpyHostToDevice));
    return there;
}

static void time_shape(const struct cuda_launch &l, const struct shape &s, uint32_t rank)
{
    struct cuda_low_rank_pair *tables[MOST];
    std::vector<struct cuda_low_rank_pair> pairs(N_LAYERS * s.n_outs);
    float *x = gpu_alloc<float>((uint64_t)N_ROWS * s.n_in), *outs[3] = {};
    std::vector<void *> held;
    uint64_t bytes = 0;

    fill_f32<<<1024, 256>>>(x, (uint64_t)N_ROWS * s.n_in, 1, 1.0f);
    for (uint32_t o = 0; o < s.n_outs; o++) {
        outs[o] = gpu_alloc<float>((uint64_t)N_ROWS * s.n_out[o]);
        GPU(cudaMemset(outs[o], 0, (uint64_t)N_ROWS * s.n_out[o] * 4));
        bytes += 2ull * rank * (s.n_in + s.n_out[o]);
    }
    for (uint32_t a = 0; a < MOST; a++) {
        for (uint32_t i = 0; i < pairs.size(); i++) {
            const uint64_t n_a = (uint64_t)rank * s.n_in, n_b = (uint64_t)rank * s.n_out[i % s.n_outs];
            uint16_t *both = gpu_alloc<uint16_t>(n_a + n_b);

            held.push_back(both);
            GPU(cudaMemset(both, 0x11, 2 * (n_a + n_b)));
            pairs[i] = {both, both + n_a, CUDA_STORED_F16, CUDA_STORED_F16, 1.0f, rank};
        }
        tables[a] = gpu_alloc<struct cuda_low_rank_pair>(pairs.size());
        GPU(cudaMemcpy(tables[a], pairs.data(), pairs.size() * sizeof(pairs[0]), cudaMemcpyHostToDevice));
        held.push_back(tables[a]);
    }
    printf("%-8s %-8s rank %u:", s.model, s.name, rank);
    for (uint32_t n : {0u, 1u, 8u}) {
        struct cuda_low_rank_tile *tiles = make_tiles(tables, n);
        struct cuda_low_rank_rows_args args = {N_ROWS, 0,     s.n_outs, s.n_in, CUDA_LOW_RANK_HALVES,
                                               false,  tiles, x,        {},     {}};

        for (uint32_t o = 0; o < s.n_outs; o++) args.outs[o] = outs[o], args.n_out[o] = s.n_out[o];
        const double us = time_us(N_LAYERS, 21, [&](int i, cudaStream_t stream) {
            struct cuda_launch here = l;

            here.stream = stream;
            args.first = (uint32_t)i * s.n_outs;
            GPU((cudaError_t)cuda_low_rank_rows(&here, &args));
        });
        printf("  %u adapters %.2f us", n, us);
        if (n) printf(" (%.0f GB/s)", (double)bytes * n / us / 1e3);
        cudaFree(tiles);
    }
    printf("\n");
    for (void *p : held) cudaFree(p);
    for (float *p : outs) cudaFree(p);
    cudaFree(x);
}

int main(int argc, char **argv)
{
    const uint32_t rank = argc > 1 ? (uint32_t)atoi(argv[1]) : 16;
    struct cuda_launch l = {};

    l.n_sms = 132, l.compute = 90, l.pdl = true;
    for (const struct shape &s : SHAPES) time_shape(l, s, rank);
    return 0;
}
