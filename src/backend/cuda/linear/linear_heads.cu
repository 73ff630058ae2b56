/* backend/cuda/linear/linear_heads.cu - queries, keys and values of encoders, from the product to where attend_hopper.cuh reads
 * them: bias, turning and rounding are those of linear_hopper and attend_pack, in their order, so the bits are theirs.
 *
 * A block's tile is 128 rows times the outputs of some heads (240 of heads of 80), otherwise as in linear_stream.cuh: two
 * blocks (a cluster) share the weights, blocks stay, a thread feeds. A warpgroup's 64 rows are one block of attention's, so
 * that what it has of a head is one piece there. It leaves while the next tile's first products run, a head at a time.
 * Rows of a group must begin at multiples of 64; else attend_pack does it.
 */
#include "backend/cuda/attend_places.cuh"
#include "backend/cuda/encode_kernels.h"
#include "backend/cuda/linear/linear_hopper.h"
#include "backend/cuda/linear/linear_stream.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma_heads.cuh"

enum { HEAD_LEAVES = 2 }; /* k blocks from one head to the next */

struct heads_maps {
    CUtensorMap x, w[3];
};

/* Heads 0 .. 3 n_heads - 1: queries, keys, values; per_matrix of them are of one weight matrix. */
struct heads_job {
    uint32_t n_rows, block0, n_heads, per_matrix, k_blocks, n_tiles, n_units, row_group, n_row_tiles, n_blocks;
    const float *bias[3], *cosines, *sines;
    uint8_t *packed;
};

/* HD: dims of a head; D: as they are packed. */
template <int HD, int D> struct heads_smem {
    static constexpr uint32_t heads = 256 / HD, n = heads * HD, a = 128 * K_BLOCK * 2, b = n * K_BLOCK * 2,
                              stage = a + b;
    static constexpr uint32_t leaving = part_bytes<D>(); /* of a warpgroup */
    static constexpr uint32_t room = (SMEM_BLOCK_MAX - 1024 - 128 - 2 * leaving) / stage;
    static constexpr uint32_t stages = room < 6 ? room : 6, ring = stages * stage;
    static constexpr uint32_t bytes = ring + 2 * leaving + 2 * 8 * stages + 1024;
};

struct heads_place {
    uint32_t row, head; /* the first of each */
};

template <int HEADS>
static __device__ __forceinline__ struct heads_place heads_place_of(const struct heads_job &job, uint32_t unit,
                                                                    uint32_t rank)
{
    const uint32_t per_group = job.row_group * job.n_tiles, group = unit / per_group, in = unit % per_group;
    const uint32_t width = min(job.row_group, job.n_row_tiles - group * job.row_group);

    return {((group * job.row_group + in % width) * 2 + rank) * 128, in / width * HEADS};
}

/* A block's share of the weights of a k block, for both; heads beyond the last: any. */
template <int HD, int D>
static __device__ __forceinline__ void heads_load(const struct heads_maps &maps, const struct heads_job &job,
                                                  const struct heads_place &p, uint32_t at, uint32_t bar, int k,
                                                  uint32_t rank, uint64_t policy)
{
    using S = heads_smem<HD, D>;

    for (uint32_t h = rank; h < S::heads; h += 2) {
        const uint32_t head = min(p.head + h, 3 * job.n_heads - 1);

        tma_load_2d_pair(at + S::a + h * (HD * K_BLOCK * 2), &maps.w[head / job.per_matrix], bar, k,
                         (int)(head % job.per_matrix * HD), policy);
    }
}

/* The feeding thread: as stream_feed. */
template <int HD, int D>
[[maybe_unused]] static __device__ void heads_feed(const struct heads_maps &maps, const struct heads_job &job,
                                                   uint32_t ring, uint32_t full, uint32_t empty, uint32_t rank)
{
    using S = heads_smem<HD, D>;
    const uint64_t often = policy_evict_last();
    const uint32_t ahead = min(job.k_blocks, S::stages);
    struct ring_at r = {0, 1}; /* the first turn's places are free */
    struct heads_place p = heads_place_of<S::heads>(job, first_unit<true>(), rank);

    for (uint32_t kb = 0; kb < ahead; kb++) {
        mbar_expect(full + 8 * kb, S::stage);
        heads_load<HD, D>(maps, job, p, ring + kb * S::stage, full + 8 * kb, (int)kb * K_BLOCK, rank, often);
    }
    dependency_wait();
    for (uint32_t kb = 0; kb < ahead; kb++, ring_next<S::stages>(r))
        tma_load_2d(ring + kb * S::stage, &maps.x, full + 8 * kb, (int)kb * K_BLOCK, (int)p.row, often);
    for (uint32_t unit = first_unit<true>(), kb = ahead; unit < job.n_units; unit += unit_step<true>(), kb = 0) {
        p = heads_place_of<S::heads>(job, unit, rank);
        for (; kb < job.k_blocks; kb++, ring_next<S::stages>(r)) {
            const uint32_t at = ring + r.stage * S::stage, bar = full + 8 * r.stage;

            mbar_wait(empty + 8 * r.stage, r.turn);
            mbar_expect(bar, S::stage);
            tma_load_2d(at, &maps.x, bar, (int)kb * K_BLOCK, (int)p.row, often);
            heads_load<HD, D>(maps, job, p, at, bar, (int)kb * K_BLOCK, rank, often);
        }
    }
}

#if __CUDA_ARCH__ >= 900
/* What a thread turns its two rows by: those of dims 8 i + 2 (lane % 4) and the next. */
template <int HD> struct heads_angles {
    float2 c[2][HD / 16], s[2][HD / 16];
};

template <int HD>
static __device__ __forceinline__ void angles_load(const struct heads_job &job, uint32_t row0,
                                                   struct heads_angles<HD> &a)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint64_t at = (uint64_t)min(row0 + 8 * r, job.n_rows - 1) * (HD / 2) + threadIdx.x % 4 * 2;

#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            a.c[r][i] = *(const float2 *)(job.cosines + at + 8 * i);
            a.s[r][i] = *(const float2 *)(job.sines + at + 8 * i);
        }
    }
}

/* A thread's sums of eight dims of a head, in its row r: two of them, with the bias. */
static __device__ __forceinline__ float2 heads_sum(const float *d, const float *bias, int dims, int r)
{
    const float2 b = bias ? *(const float2 *)(bias + dims * 8) : make_float2(0, 0);
    const float2 v = make_float2(d[4 * dims + 2 * r], d[4 * dims + 2 * r + 1]);

    return bias ? make_float2(v.x + b.x, v.y + b.y) : v;
}

/* A head's numbers of a thread, in pairs: turned where it is of queries or keys; values of rows that there are not: zeros. */
template <int HD, int D, bool TURNS>
static __device__ __forceinline__ void heads_values(const struct heads_job &job, uint32_t head, uint32_t row0,
                                                    const struct heads_angles<HD> &a, const float *d,
                                                    uint32_t (&v)[D / 4])
{
    const uint32_t in = head % job.per_matrix * HD + threadIdx.x % 4 * 2;
    const float *const of = job.bias[head / job.per_matrix], *const bias = of ? of + in : NULL;
    const uint32_t kind = head / job.n_heads;

#pragma unroll
    for (int i = HD / 4; i < D / 4; i++) v[i] = 0;
    if (TURNS && kind < 2) {
#pragma unroll
        for (int i = 0; i < HD / 16; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float2 x = heads_sum(d, bias, i, r), y = heads_sum(d, bias, i + HD / 16, r);
                const float2 c = a.c[r][i], s = a.s[r][i];

                v[2 * i + r] = two_halves(fmaf(x.x, c.x, -__fmul_rn(y.x, s.x)), fmaf(x.y, c.y, -__fmul_rn(y.y, s.y)));
                v[2 * (i + HD / 16) + r] =
                    two_halves(fmaf(x.x, s.x, __fmul_rn(y.x, c.x)), fmaf(x.y, s.y, __fmul_rn(y.y, c.y)));
            }
        return;
    }
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 x = heads_sum(d, bias, i, r);

            v[2 * i + r] = kind == 2 && row0 + 8 * r >= job.n_rows ? 0 : two_halves(x.x, x.y);
        }
}

/* Two neighbouring groups of eight dims, 16 rows of a warp: each lane says where eight numbers in a row go. */
template <bool TURNED> static __device__ __forceinline__ void heads_store(uint32_t at, const uint32_t *v)
{
    if (TURNED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]),
                     "r"(v[1]), "r"(v[2]), "r"(v[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]),
                     "r"(v[2]), "r"(v[3])
                     : "memory");
}

/* A warpgroup's 64 rows of a head leave. */
template <int HD, int D>
static __device__ __forceinline__ void heads_write(const struct heads_job &job, const struct heads_place &p, uint32_t h,
                                                   const uint32_t (&v)[D / 4], uint32_t buffer, uint32_t group)
{
    const uint32_t head = p.head + h, row = p.row + group * BLOCK_KEYS, kind = head / job.n_heads;
    const uint32_t lane = threadIdx.x % 32, half = lane / 8 % 2, warp = threadIdx.x / 32 % 4;

    if (head >= 3 * job.n_heads || row >= job.n_rows) return;
    leaving_begin<0>(group);
#pragma unroll
    for (int i = 0; i < D / 8; i += 2) {
        const uint32_t dims = (i + lane / 16) * 8, dim = dims + lane % 8;

        if (kind == 2)
            heads_store<true>(buffer + value_place(dim, warp * 2 + half), v + 2 * i);
        else
            heads_store<false>(buffer + row_place<D>(warp * 16 + half * 8 + lane % 8, dims), v + 2 * i);
    }
    if (leaving_ready(group)) {
        const uint64_t block = (uint64_t)(head % job.n_heads) * job.n_blocks + job.block0 + row / BLOCK_KEYS;

        bulk_store(job.packed + (block * 3 + kind) * part_bytes<D>(), buffer, part_bytes<D>());
        bulk_commit();
    }
}

template <int HD, int D, bool TURNS>
static __device__ __forceinline__ void heads_work(const struct heads_job &job, struct stream_worker &w, uint32_t rank)
{
    using S = heads_smem<HD, D>;
    constexpr int heads = S::heads;
    const uint32_t in_tile = w.group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    struct heads_place before = {0, ~0u};
    uint32_t v[heads][D / 4];
    float acc[S::n / 2];

    for (uint32_t unit = first_unit<true>(); unit < job.n_units; unit += unit_step<true>()) {
        const struct heads_place p = heads_place_of<heads>(job, unit, rank);
        struct heads_angles<HD> angles;
        uint32_t last = 0;

        for (uint32_t kb = 0; kb < job.k_blocks; kb++) {
            const uint32_t at = w.ring + w.r.stage * S::stage;
            const uint64_t a = wgmma_desc(at + w.group * (S::a / 2)), b = wgmma_desc(at + S::a);

            mbar_wait(w.full + 8 * w.r.stage, w.r.turn);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < K_BLOCK / 16; k++) wgmma_ss<S::n>(acc, a + 2 * k, b + 2 * k, kb > 0 || k > 0);
            wgmma_commit();
            if (before.head != ~0u) {
#pragma unroll
                for (int h = 0; h < heads; h++)
                    if (kb == h * HEAD_LEAVES) heads_write<HD, D>(job, before, h, v[h], w.buffer, w.group);
            }
            wgmma_wait<1>();
            if (kb > 0) stream_release<true>(w, last);
            last = w.r.stage;
            ring_next<S::stages>(w.r);
        }
        if (TURNS) angles_load<HD>(job, p.row + in_tile, angles);
        wgmma_wait<0>();
        stream_release<true>(w, last);
#pragma unroll
        for (int h = 0; h < heads; h++)
            heads_values<HD, D, TURNS>(job, min(p.head + h, 3 * job.n_heads - 1), p.row + in_tile, angles,
                                       acc + h * (HD / 2), v[h]);
        before = p;
    }
    if (before.head == ~0u) return;
#pragma unroll
    for (int h = 0; h < heads; h++) heads_write<HD, D>(job, before, h, v[h], w.buffer, w.group);
}

#endif

template <int HD, int D, bool TURNS>
__global__ void __launch_bounds__(STREAM_THREADS, 1)
    linear_heads(const __grid_constant__ struct heads_maps maps, const __grid_constant__ struct heads_job job)
{
#if __CUDA_ARCH__ >= 900
    stream_pair_block<heads_smem<HD, D>>(
        [&](uint32_t ring, uint32_t full, uint32_t empty, uint32_t rank) {
            heads_feed<HD, D>(maps, job, ring, full, empty, rank);
        },
        [&](struct stream_worker &w, uint32_t rank) { heads_work<HD, D, TURNS>(job, w, rank); });
#endif
}

template <int HD, int D, bool TURNS>
static int start_heads(const struct cuda_launch *l, const struct cuda_linear_args *a,
                       const struct cuda_attend_fill_args *f)
{
    using S = heads_smem<HD, D>;
    const uint32_t n_heads = f->attend.n_heads, n_in = a->outs[0].w->n_in;
    const cudaError_t e = allow_once<linear_heads<HD, D, TURNS>>(S::bytes);
    struct heads_maps maps;
    struct heads_job job = {.n_rows = a->n_rows,
                            .block0 = f->first_block,
                            .n_heads = n_heads,
                            .per_matrix = a->outs[0].w->n_out / HD,
                            .k_blocks = ceil_div(n_in, K_BLOCK),
                            .n_tiles = ceil_div(3 * n_heads, S::heads),
                            .n_units = 0,
                            .row_group = 8,
                            .n_row_tiles = ceil_div(a->n_rows, 256),
                            .n_blocks = f->attend.n_blocks,
                            .bias = {},
                            .cosines = f->cosines,
                            .sines = f->sines,
                            .packed = f->attend.packed};

    if (e != cudaSuccess) return (int)e;
    job.n_units = job.n_tiles * job.n_row_tiles;
    if (job.k_blocks <= (S::heads - 1) * HEAD_LEAVES) return (int)cudaErrorNotSupported;
    if (!tensor_map(&maps.x, a->x16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a->n_rows, n_in, a->x_stride * 2ull, 128,
                    K_BLOCK, CU_TENSOR_MAP_SWIZZLE_128B))
        return (int)cudaErrorInvalidValue;
    for (uint32_t i = 0; i < 3; i++) {
        const struct cuda_linear_out *const o = &a->outs[i < a->n_outs ? i : 0];

        job.bias[i] = o->bias;
        if (!tensor_map(&maps.w[i], o->w->values, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, o->w->n_out, n_in,
                        o->w->row_stride * 2ull, HD, K_BLOCK, CU_TENSOR_MAP_SWIZZLE_128B))
            return (int)cudaErrorInvalidValue;
    }
    return (int)launch_cluster(l, linear_heads<HD, D, TURNS>,
                               dim3((job.n_units < N_SMS / 2 ? job.n_units : N_SMS / 2) * 2), STREAM_THREADS, S::bytes,
                               dim3(2), maps, job);
}

/* Whether linear_many would take the product, and what it makes are whole heads of queries, keys and values. */
static bool heads_fit(const struct cuda_launch *l, const struct cuda_linear_args *a,
                      const struct cuda_attend_fill_args *f)
{
    const struct cuda_attend_args *t = &f->attend;

    if (l->compute != 90 || a->norm.x || a->tiles || a->add_to || !f->whole_blocks ||
        (a->n_outs != 1 && a->n_outs != 3))
        return false;
    if (t->head0 || t->n_some != t->n_heads || (uintptr_t)a->x16 % 16 || a->x_stride % 8) return false;
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct cuda_linear_out *const o = &a->outs[i];

        if (o->w->format != CUDA_BF16 || o->w->n_out != 3 / a->n_outs * t->n_heads * t->head_dim ||
            (uintptr_t)o->w->values % 16 || o->w->row_stride % 8 || (uintptr_t)o->bias % 8)
            return false;
    }
    return !f->cosines || ((uintptr_t)f->cosines | (uintptr_t)f->sines) % 8 == 0;
}

int cuda_linear_heads(const struct cuda_launch *l, const struct cuda_linear_args *a,
                      const struct cuda_attend_fill_args *f)
{
    const bool turns = f->cosines != NULL;

    if (!heads_fit(l, a, f)) return (int)cudaErrorNotSupported;
    if (f->attend.head_dim == 64)
        return turns ? start_heads<64, 64, true>(l, a, f) : start_heads<64, 64, false>(l, a, f);
    if (f->attend.head_dim == 72 && !turns) return start_heads<72, 80, false>(l, a, f);
    if (f->attend.head_dim == 80)
        return turns ? start_heads<80, 80, true>(l, a, f) : start_heads<80, 80, false>(l, a, f);
    return (int)cudaErrorNotSupported;
}
