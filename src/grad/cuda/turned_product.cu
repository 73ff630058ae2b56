/* grad/cuda/turned_product.cu - dx [n_rows, n_in] (+)= the sum of up to GRAD_CUDA_FACTORS products dy W, on Hopper's wgmma.
 *
 * The way back through all matrices that read one x, and through their adapters: dq Wq + dtq Aq + dk Wk + .. in one launch, so that
 * dx is written once. The kernel is linear_stream's (blocks that stay, a thread that feeds a ring, pairs that share the tokens), but
 *     a   128 columns of W by 64 of its rows, k, as they lie: wgmma reads it turned, nothing is turned in memory
 *     b   N tokens by 64 of dy's columns
 * Order of the sums: factor after factor, k rising, in one f32 sum. Bound: arithmetic, as that kernel's. */
#include <string.h>
#include "backend/cuda/linear/linear_stream.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma_turned.cuh"
#include "grad/cuda/grad_cuda.h"

struct turned_maps {
    struct stream_maps stream; /* of which out[0] alone is set */
    CUtensorMap w[GRAD_CUDA_FACTORS], dy[GRAD_CUDA_FACTORS];
    uint32_t n, k_blocks[GRAD_CUDA_FACTORS];
};

/* The feeding thread. */
template <int N, bool PAIR>
static __device__ void turned_feed(const struct turned_maps &maps, const struct linear_job &job, uint32_t ring,
                                   uint32_t full, uint32_t empty, uint32_t n_units, uint32_t rank)
{
    using S = stream_smem<N, false>;
    const uint64_t often = policy_evict_last();
    struct ring_at r = {0, 1};

    for (uint32_t unit = first_unit<PAIR>(); unit < n_units; unit += unit_step<PAIR>()) {
        const struct stream_place p = stream_place_of<N, false, PAIR>(job, unit, rank);

        for (uint32_t f = 0; f < maps.n; f++)
            for (uint32_t kb = 0; kb < maps.k_blocks[f]; kb++) {
                const uint32_t at = ring + r.stage * S::stage, bar = full + 8 * r.stage;
                const int k = (int)kb * K_BLOCK;

                mbar_wait(empty + 8 * r.stage, r.turn);
                mbar_expect(bar, S::stage);
                tma_load_2d(at, &maps.w[f], bar, (int)p.a, k, often);
                tma_load_2d(at + S::a / 2, &maps.w[f], bar, (int)p.a + 64, k, often);
                if (PAIR) {
                    tma_load_2d_pair(at + S::a + rank * (S::b / 2), &maps.dy[f], bar, k, (int)(p.b + rank * (N / 2)),
                                     often);
                } else {
                    tma_load_2d(at + S::a, &maps.dy[f], bar, k, (int)p.b, often);
                    tma_load_2d(at + S::a + S::b / 2, &maps.dy[f], bar, k, (int)(p.b + N / 2), often);
                }
                ring_next<S::stages>(r);
            }
    }
}

/* One k block's products. */
template <int N>
static __device__ __forceinline__ void turned_products(const struct stream_worker &w, float (&acc)[N / 2], bool add)
{
    using S = stream_smem<N, false>;
    const uint32_t at = w.ring + w.r.stage * S::stage;
    const uint64_t a = wgmma_desc_t(at + w.group * (S::a / 2)), b = wgmma_desc(at + S::a);

    mbar_wait(w.full + 8 * w.r.stage, w.r.turn);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K_BLOCK / 16; k++) wgmma_ss_at<N>(acc, a + 16 * 128 / 16 * k, b + 2 * k, add || k > 0);
    wgmma_commit();
}

template <int N, bool PAIR>
static __device__ __forceinline__ void turned_work(const struct turned_maps &maps, const struct linear_job &job,
                                                   struct stream_worker &w, uint32_t n_units, uint32_t rank)
{
    float acc[N / 2];

    for (uint32_t unit = first_unit<PAIR>(); unit < n_units; unit += unit_step<PAIR>()) {
        uint32_t last = 0;

        for (uint32_t kb = 0; kb < job.k_blocks; kb++) {
            turned_products<N>(w, acc, kb > 0);
            wgmma_wait<1>();
            if (kb > 0) stream_release<PAIR>(w, last);
            last = w.r.stage;
            ring_next<stream_smem<N, false>::stages>(w.r);
        }
        wgmma_wait<0>();
        stream_release<PAIR>(w, last);
        stream_write<N>(maps.stream, job, stream_place_of<N, false, PAIR>(job, unit, rank), acc, w.buffer, w.group);
    }
}

template <int N, bool PAIR>
static __global__ void __launch_bounds__(STREAM_THREADS, 1)
    turned_product(const __grid_constant__ struct turned_maps maps, const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using S = stream_smem<N, false>;
    extern __shared__ uint8_t raw[];
    const uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, full = ring + S::ring + 2 * S::leaving;
    const uint32_t empty = full + 8 * S::stages, n_units = job.n_tiles * job.n_row_tiles;
    const uint32_t rank = PAIR ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < S::stages; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8 * (1 + PAIR));
        }
        mbar_init_fence();
    }
    if (PAIR)
        cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0) turned_feed<N, PAIR>(maps, job, ring, full, empty, n_units, rank);
        __syncwarp();
    } else {
        const uint32_t group = threadIdx.x / 128 - 1;
        struct stream_worker w = {ring,
                                  full,
                                  PAIR ? cluster_address(empty, threadIdx.x % 2) : empty,
                                  group,
                                  ring + S::ring + group * S::leaving,
                                  {0, 0}};

        registers_more<232>();
        turned_work<N, PAIR>(maps, job, w, n_units, rank);
        if (threadIdx.x % 32 == 0) bulk_wait_all();
        __syncwarp();
    }
    if (PAIR) cluster_sync(); /* the other may still write here, or tell of places */
#endif
}

static bool map_all(struct turned_maps *maps, const struct grad_cuda_sum *a, uint32_t n)
{
    const CUtensorMapDataType bf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, f32 = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    const CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;

    for (uint32_t i = 0; i < a->n; i++) {
        const struct grad_cuda_factor *f = &a->factors[i];

        if (!tensor_map(&maps->w[i], f->w, bf16, f->k, a->n_in, f->w_stride * 2ull, K_BLOCK, 64, swizzle) ||
            !tensor_map(&maps->dy[i], f->dy, bf16, a->n_rows, f->k, f->dy_stride * 2ull, n / 2, K_BLOCK, swizzle))
            return false;
    }
    return tensor_map(&maps->stream.out[0], a->dx, f32, a->n_rows, a->n_in, a->n_in * 4ull, 32, 32, swizzle);
}

template <int N, bool PAIR>
static cudaError_t start(const struct cuda_launch *l, const struct grad_cuda_sum *a, struct turned_maps *maps)
{
    const uint32_t blocks = 1 + PAIR, smem = stream_smem<N, false>::bytes;
    const cudaError_t e = allow_once<turned_product<N, PAIR>>(smem);
    struct linear_job job;
    uint32_t n_units;

    if (e) return e;
    memset(&job, 0, sizeof(job));
    job.n_rows = a->n_rows;
    job.n_out[0] = a->n_in;
    job.first_tile[1] = job.first_tile[2] = ~0u;
    job.epilogue = a->add ? EPI_ADD : EPI_STORE;
    job.n_tiles = ceil_div(ceil_div(a->n_in, 128), blocks);
    job.n_row_tiles = ceil_div(a->n_rows, N);
    job.row_group = 2304 / N;
    for (uint32_t i = 0; i < a->n; i++) job.k_blocks += maps->k_blocks[i] = ceil_div(a->factors[i].k, K_BLOCK);
    maps->n = a->n;
    if (!map_all(maps, a, N)) return cudaErrorInvalidValue;
    n_units = job.n_tiles * job.n_row_tiles;
    return launch_cluster(l, turned_product<N, PAIR>,
                          dim3((n_units < N_SMS / blocks ? n_units : N_SMS / blocks) * blocks), STREAM_THREADS, smem,
                          dim3(blocks), *maps, job);
}

bool grad_cuda_sum_fits(const struct cuda_launch *l, const struct grad_cuda_sum *a)
{
    bool fits = l->compute == 90 && tensor_map_ready() && a->n_in % 8 == 0 && (uintptr_t)a->dx % 16 == 0;

    for (uint32_t i = 0; i < a->n; i++) {
        const struct grad_cuda_factor *f = &a->factors[i];

        fits &=
            f->dy_stride % 8 == 0 && f->w_stride % 8 == 0 && (uintptr_t)f->dy % 16 == 0 && (uintptr_t)f->w % 16 == 0;
    }
    return fits;
}

int grad_cuda_sum(const struct cuda_launch *l, const struct grad_cuda_sum *a)
{
    const uint32_t tiles = ceil_div(a->n_in, 128), pairs = ceil_div(tiles, 2);
    const uint32_t narrow = ceil_div(tiles * ceil_div(a->n_rows, 128), N_SMS) * 128;
    const uint32_t wide = ceil_div(pairs * ceil_div(a->n_rows, 192), N_SMS / 2) * 192;
    struct turned_maps maps;

    memset(&maps, 0, sizeof(maps));
    return (int)(wide * 100 <= narrow * 108 ? start<192, true>(l, a, &maps) : start<128, false>(l, a, &maps));
}
