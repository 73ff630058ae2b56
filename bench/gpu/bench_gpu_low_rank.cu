/* bench/gpu/bench_gpu_low_rank.cu - adapters in recorded steps (low_rank_rows.cu): what they add to a product.
 *
 *     bench_gpu_low_rank [RANK]      the four products of a layer, of Qwen3 8B's shape and SmolLM2's; default rank 16
 *
 * 16 rows, bf16 weights, F16 adapters: of none, of one adapter, of 8. A graph has a norm and a product, without and with adapters,
 * for 36 layers, each with weights of its own: microseconds of a layer's, and the difference. Each waits for the one before,
 * as in a step. Gate and up are followed by the activation, which with adapters is one kernel with theirs.
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

/* What the layers of a shape have. */
struct layers {
    struct cuda_matrix w[N_LAYERS][3];
    float *hidden, *x, *norm, *outs[3], *t;
    uint16_t *x16;
};

static void make_layers(struct layers *m, const struct shape &s, uint32_t rank)
{
    memset(m, 0, sizeof(*m));
    m->hidden = gpu_alloc<float>((uint64_t)N_ROWS * s.n_in);
    m->x = gpu_alloc<float>((uint64_t)N_ROWS * s.n_in);
    m->norm = gpu_alloc<float>(s.n_in);
    m->t = gpu_alloc<float>((uint64_t)N_ROWS * s.n_outs * rank);
    m->x16 = gpu_alloc<uint16_t>((uint64_t)N_ROWS * s.n_in);
    fill_f32<<<1024, 256>>>(m->hidden, (uint64_t)N_ROWS * s.n_in, 1, 1.0f);
    fill_f32<<<16, 256>>>(m->norm, s.n_in, 2, 1.0f);
    for (uint32_t o = 0; o < s.n_outs; o++) m->outs[o] = gpu_alloc<float>((uint64_t)N_ROWS * s.n_out[o]);
    for (uint32_t i = 0; i < N_LAYERS; i++)
        for (uint32_t o = 0; o < s.n_outs; o++) {
            const uint64_t n = (uint64_t)s.n_in * s.n_out[o];
            __nv_bfloat16 *w = gpu_alloc<__nv_bfloat16>(n);

            fill_bf16<<<1024, 256>>>(w, n, i * 3 + o, 0.01f);
            m->w[i][o].format = CUDA_BF16, m->w[i][o].n_out = s.n_out[o];
            m->w[i][o].n_in = m->w[i][o].row_stride = s.n_in, m->w[i][o].values = w;
        }
    GPU(cudaDeviceSynchronize());
}

static void free_layers(struct layers *m, const struct shape &s)
{
    for (uint32_t i = 0; i < N_LAYERS; i++)
        for (uint32_t o = 0; o < s.n_outs; o++) cudaFree((void *)m->w[i][o].values);
    for (float *p : m->outs) cudaFree(p);
    cudaFree(m->hidden), cudaFree(m->x), cudaFree(m->norm), cudaFree(m->x16), cudaFree(m->t);
}

/* A table of random pairs of all layers; what it needs is kept in *held. */
static struct cuda_low_rank_pair *make_table(const struct shape &s, uint32_t rank, std::vector<void *> *held)
{
    std::vector<struct cuda_low_rank_pair> pairs(N_LAYERS * s.n_outs);
    struct cuda_low_rank_pair *table = gpu_alloc<struct cuda_low_rank_pair>(pairs.size());

    for (uint32_t i = 0; i < pairs.size(); i++) {
        const uint64_t n_a = (uint64_t)rank * s.n_in, n_b = (uint64_t)rank * s.n_out[i % s.n_outs];
        uint16_t *both = gpu_alloc<uint16_t>(n_a + n_b);

        held->push_back(both);
        GPU(cudaMemset(both, 0x11, 2 * (n_a + n_b)));
        pairs[i] = {both, both + n_a, CUDA_STORED_F16, CUDA_STORED_F16, 1.0f, rank};
    }
    GPU(cudaMemcpy(table, pairs.data(), pairs.size() * sizeof(pairs[0]), cudaMemcpyHostToDevice));
    held->push_back(table);
    return table;
}

/* A layer's norm and product, with the adapters of tiles, or NULL. */
static double time_layer(const struct cuda_launch &l, const struct shape &s, const struct layers &m, uint32_t rank,
                         const struct cuda_low_rank_tile *tiles)
{
    const struct cuda_norm_args norm = {N_ROWS, s.n_in, m.hidden, NULL, NULL, m.norm, 1e-6f, m.x, m.x16};
    cudaStream_t branch;
    cudaEvent_t fork, join;
    double us;

    GPU(cudaStreamCreateWithFlags(&branch, cudaStreamNonBlocking));
    GPU(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GPU(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    us = time_us(N_LAYERS, 21, [&](int i, cudaStream_t stream) {
        struct cuda_launch here = l, beside = l;
        struct cuda_linear_args product = {};
        struct cuda_low_rank_rows_args low = {};

        here.stream = stream, beside.stream = branch, beside.pdl = false;
        product.n_rows = N_ROWS, product.x16 = m.x16, product.x_stride = s.n_in, product.n_outs = s.n_outs;
        low.n_rows = N_ROWS, low.first = (uint32_t)i * s.n_outs, low.n_outs = s.n_outs, low.n_in = s.n_in;
        low.kinds = CUDA_LOW_RANK_HALVES, low.tiles = tiles, low.x = m.x, low.t = m.t, low.most_ranks = rank;
        for (uint32_t o = 0; o < s.n_outs; o++) {
            product.outs[o] = {&m.w[i][o], NULL, m.outs[o], s.n_out[o]};
            low.outs[o] = m.outs[o], low.n_out[o] = s.n_out[o];
        }
        GPU((cudaError_t)cuda_residual_norm(&here, &norm));
        if (tiles) {
            GPU(cudaEventRecord(fork, stream));
            GPU(cudaStreamWaitEvent(branch, fork, 0));
            GPU((cudaError_t)cuda_low_rank_t(&beside, &low));
            GPU(cudaEventRecord(join, branch));
        }
        GPU((cudaError_t)cuda_linear(&here, &product));
        if (s.n_outs == 2 && !tiles)
            GPU((cudaError_t)cuda_glu(&here, CUDA_SILU, (uint64_t)N_ROWS * s.n_out[0], m.outs[0], m.outs[1], m.outs[0],
                                      NULL));
        if (!tiles) return;
        GPU(cudaStreamWaitEvent(stream, join, 0));
        GPU((cudaError_t)(s.n_outs == 2 ? cuda_low_rank_glu(&here, &low, CUDA_SILU, m.outs[0], NULL)
                                        : cuda_low_rank_rows(&here, &low)));
    });
    cudaEventDestroy(fork), cudaEventDestroy(join), cudaStreamDestroy(branch);
    return us;
}

static void time_shape(const struct cuda_launch &l, const struct shape &s, uint32_t rank)
{
    struct cuda_low_rank_pair *tables[MOST];
    static struct layers m;
    std::vector<void *> held;
    uint64_t bytes = 0;
    double alone;

    make_layers(&m, s, rank);
    for (uint32_t o = 0; o < s.n_outs; o++) bytes += 2ull * rank * (s.n_in + s.n_out[o]);
    for (uint32_t a = 0; a < MOST; a++) tables[a] = make_table(s, rank, &held);
    alone = time_layer(l, s, m, rank, NULL);
    printf("%-8s %-8s rank %u: alone %.2f us", s.model, s.name, rank, alone);
    for (uint32_t n : {0u, 1u, 8u}) {
        struct cuda_low_rank_tile *tiles = make_tiles(tables, n);

        printf("  %u adapters +%.2f", n, time_layer(l, s, m, rank, tiles) - alone);
        cudaFree(tiles);
    }
    printf("  (8: %.2f MB)\n", (double)bytes * MOST / 1e6);
    for (void *p : held) cudaFree(p);
    free_layers(&m, s);
}

int main(int argc, char **argv)
{
    const uint32_t rank = argc > 1 ? (uint32_t)atoi(argv[1]) : 16;
    struct cuda_launch l = {};

    l.n_sms = 132, l.compute = 90, l.pdl = true;
    for (const struct shape &s : SHAPES) time_shape(l, s, rank);
    return 0;
}
