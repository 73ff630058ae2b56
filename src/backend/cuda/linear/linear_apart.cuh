/* backend/cuda/linear/linear_apart.cuh - the product of linear_wgmma.cuh for many rows whose tiles fill no more than half the device.
 *
 * Order of the sums as there, of 2 to 4 segments. A cluster is two blocks with the same tile of 128 weights x 128 tokens: the
 * first computes the first half of the segments and sends their sum to the other, which adds the rest to it, one after the other,
 * and writes. What is sent leaves through the sender's shared memory by the bulk engine, a warp's part at a time, to the warp of
 * the same number. The weights of the first stages are asked for before dependency_wait.
 * Bound: shared memory, which the products read and what arrives is written to (linear_stream.cuh): 640 cycles for 64 k of a tile,
 * in half of the blocks with all segments of a tile in one.
 */
#pragma once
#include "backend/cuda/linear/linear_stream.cuh"

struct apart {
    static constexpr uint32_t workers = 256, threads = workers + 32, fours = 16; /* of a thread's 64 sums */
    static constexpr uint32_t side = 128 * K_BLOCK * 2, stage = 2 * side, stages = 4;
    static constexpr uint32_t met = stages * stage, leaving = met + fours * 16 * workers;
    static constexpr uint32_t full = leaving + 4 * STREAM_PIECE, empty = full + 8 * stages, here = empty + 8 * stages;
    static constexpr uint32_t bytes = here + 8 * workers / 32 + 1024; /* room to align */
};
static_assert(apart::bytes <= SMEM_BLOCK_MAX, "a block's shared memory");

[[maybe_unused]] static __device__ void apart_feed(const struct stream_maps &maps, const struct stream_place &p,
                                                   uint32_t ring, uint32_t first, uint32_t count)
{
    const uint64_t often = policy_evict_last();
    const uint32_t ahead = min(count, apart::stages);

    tma_prefetch_map(&maps.b[0]);
    for (uint32_t i = 0; i < count + ahead; i++) {
        /* The weights of the first stages, then dependency_wait, then their tokens; after that both together. */
        const uint32_t kb = i < ahead ? i : i - ahead, s = kb % apart::stages, at = ring + s * apart::stage;
        const uint32_t bar = ring + apart::full + 8 * s;
        const int k = (int)(first + kb) * K_BLOCK;

        if (i >= ahead && kb >= ahead) mbar_wait(ring + apart::empty + 8 * s, (kb / apart::stages - 1) & 1);
        if (i < ahead || kb >= ahead) {
            mbar_expect(bar, apart::stage);
            tma_load_2d(at, &maps.a[p.which], bar, k, (int)p.a, often);
        }
        if (i == ahead) dependency_wait();
        if (i >= ahead) {
            tma_load_2d(at + apart::side, &maps.b[0], bar, k, (int)p.b, often);
            tma_load_2d(at + apart::side + apart::side / 2, &maps.b[0], bar, k, (int)p.b + 64, often);
        }
    }
}

static __global__ void __launch_bounds__(apart::threads, 1)
    linear_apart(const __grid_constant__ struct stream_maps maps, const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ uint8_t raw[];
    const uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t rank = cluster_rank(), half = (job.n_segs + 1) / 2 * job.seg_blocks, first = rank * half;
    const uint32_t count = rank ? job.k_blocks - half : half, group = warp / 4;
    const uint32_t met = ring + apart::met + warp * apart::fours * 512 + lane * 16, bar = ring + apart::here + 8 * warp;
    const struct piece_place tile = whole_tile_at(job, 128, blockIdx.x % job.n_tiles);
    const struct stream_place p = {tile.which, tile.row, blockIdx.x / job.n_tiles * 128};
    float acc[64], kept[64] = {};
    bool add = false;

    if (threadIdx.x < apart::stages) {
        mbar_init(ring + apart::full + 8 * threadIdx.x, 1);
        mbar_init(ring + apart::empty + 8 * threadIdx.x, apart::workers / 32);
    }
    if (warp < apart::workers / 32 && lane == 0) mbar_init(bar, 1);
    mbar_init_fence();
    if (warp < apart::workers / 32 && lane == 0 && rank == 1) mbar_expect(bar, apart::fours * 512);
    __syncthreads();
    cluster_arrive_relaxed();
    dependents_launch();
    if (warp >= apart::workers / 32) {
        if (lane == 0) apart_feed(maps, p, ring, first, count);
        __syncwarp();
        cluster_wait();
        cluster_sync();
        return;
    }
    dependency_wait();
    for (uint32_t kb = 0; kb < count; kb++) {
        const uint32_t s = kb % apart::stages, at = ring + s * apart::stage;
        const uint64_t a = wgmma_desc(at + group * (apart::side / 2)), b = wgmma_desc(at + apart::side);

        mbar_wait(ring + apart::full + 8 * s, (kb / apart::stages) & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < K_BLOCK / 16; k++) wgmma_ss<128>(acc, a + 2 * k, b + 2 * k, add || k > 0);
        wgmma_commit();
        add = true;
        wgmma_wait<1>();
        if (kb > 0 && lane == 0) mbar_arrive(ring + apart::empty + 8 * ((kb - 1) % apart::stages));
        if (kb + 1 == job.seg_blocks && kb + 1 < count) {
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < 64; i++) kept[i] = acc[i];
            add = false;
        }
    }
    wgmma_wait<0>();
    cluster_wait(); /* the other block has begun */
    if (rank == 0) {
#pragma unroll
        for (uint32_t i = 0; i < apart::fours; i++) {
            float4 v = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);

            if (count > job.seg_blocks)
                v = make_float4(kept[4 * i] + v.x, kept[4 * i + 1] + v.y, kept[4 * i + 2] + v.z, kept[4 * i + 3] + v.w);
            shared_store4(met + i * 512, v);
        }
        shared_written_fence();
        __syncwarp();
        if (lane == 0) bulk_to_block(cluster_address(met, 1), met, apart::fours * 512, cluster_address(bar, 1));
    } else {
        mbar_wait(bar, 0);
#pragma unroll
        for (uint32_t i = 0; i < apart::fours; i++) {
            const float4 before = shared_load4(met + i * 512);
            const float v[4] = {before.x, before.y, before.z, before.w};

#pragma unroll
            for (int j = 0; j < 4; j++)
                acc[4 * i + j] =
                    count > job.seg_blocks ? v[j] + kept[4 * i + j] + acc[4 * i + j] : v[j] + acc[4 * i + j];
        }
        stream_write<128>(maps, job, p, acc, ring + apart::leaving + group * 2 * STREAM_PIECE, group);
        if (lane == 0) bulk_wait_all();
        __syncwarp();
    }
    cluster_sync(); /* what left has been read */
#endif
}
