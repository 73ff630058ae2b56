/* backend/cuda/linear/linear_encode.cu - products of encoders: many rows in every call, so that k is one chain; GELU as epilogue.
 *
 * Without GELU: linear_hopper, with one segment. With it a block's tile is 128 rows times 256 outputs, otherwise as in
 * linear_stream.cuh: two blocks (a cluster) share the weights, blocks stay, a thread feeds. The order of the sums is that of
 * one segment there. Sums and bias wait as f16 (gelu_forms.cuh) while the next tile's products run: under eight k blocks GELU is
 * taken, and rounded to bf16; then it leaves, in two halves.
 */
#include "backend/cuda/encode_kernels.h"
#include "backend/cuda/linear/linear_hopper.h"
#include "backend/cuda/linear/linear_stream.cuh"
#include "backend/cuda/rows/gelu_forms.cuh"
#include "backend/cuda/tensor_map.h"

enum { GELU_OUTS = 256, GELU_PARTS = 8 };                             /* of a tile; of a thread's numbers */
enum { FIRST_LEAVES = GELU_PARTS, SECOND_LEAVES = FIRST_LEAVES + 2 }; /* at which k block, where there are as many */

struct gelu_job {
    uint32_t n_out, k_blocks, n_tiles, n_units, row_group, n_row_tiles;
    const float *bias; /* or NULL */
};

using gelu_smem = stream_smem<GELU_OUTS, true>;

/* Pairs of token tiles go together in groups, so that those at work share operands in the L2. */
static __device__ __forceinline__ struct stream_place gelu_place(const struct gelu_job &job, uint32_t unit,
                                                                 uint32_t rank)
{
    const uint32_t per_group = job.row_group * job.n_tiles, group = unit / per_group, in = unit % per_group;
    const uint32_t width = min(job.row_group, job.n_row_tiles - group * job.row_group);

    return {0, ((group * job.row_group + in % width) * 2 + rank) * 128, in / width * GELU_OUTS};
}

[[maybe_unused]] static __device__ void gelu_feed(const struct stream_maps &maps, const struct gelu_job &job,
                                                  uint32_t ring, uint32_t full, uint32_t empty, uint32_t rank)
{
    using S = gelu_smem;
    const uint64_t often = policy_evict_last();
    struct ring_at r = {0, 1}; /* the first turn's places are free */

    dependency_wait();
    for (uint32_t unit = first_unit<true>(); unit < job.n_units; unit += unit_step<true>()) {
        const struct stream_place p = gelu_place(job, unit, rank);

        for (uint32_t kb = 0; kb < job.k_blocks; kb++) {
            const uint32_t at = ring + r.stage * S::stage, bar = full + 8 * r.stage;

            mbar_wait(empty + 8 * r.stage, r.turn);
            mbar_expect(bar, S::stage);
            tma_load_2d(at, &maps.a[0], bar, (int)kb * K_BLOCK, (int)p.a, often);
            tma_load_2d_pair(at + S::a + rank * (S::b / 2), &maps.b[0], bar, (int)kb * K_BLOCK,
                             (int)(p.b + rank * (GELU_OUTS / 2)), often);
            ring_next<S::stages>(r);
        }
    }
}

#if __CUDA_ARCH__ >= 900
/* A thread's numbers in pairs of neighbours: of each half of the tile's outputs. */
typedef uint32_t gelu_pairs[2][GELU_OUTS / 8];

static __device__ __forceinline__ void gelu_keep(const struct gelu_job &job, const struct stream_place &p,
                                                 const float (&d)[GELU_OUTS / 2], gelu_pairs &v)
{
    const uint32_t out = p.b + threadIdx.x % 4 * 2;

#pragma unroll
    for (int j = 0; j < GELU_OUTS / 8; j++) {
        const float2 b = job.bias && out + 8 * j < job.n_out ? *(const float2 *)(job.bias + out + 8 * j) : float2{0, 0};

#pragma unroll
        for (int r = 0; r < 2; r++)
            v[j / (GELU_OUTS / 16)][j % (GELU_OUTS / 16) * 2 + r] =
                gelu_kept(d[4 * j + 2 * r] + b.x, d[4 * j + 2 * r + 1] + b.y);
    }
}

/* What is done under k block `kb` of the next tile, of k_blocks; the last one does all that is left. */
template <int FORM>
static __device__ __forceinline__ void gelu_meanwhile(const struct stream_maps &maps, struct stream_place p,
                                                      const struct stream_worker &w, uint32_t kb, bool is_last,
                                                      gelu_pairs &v)
{
    constexpr int each = GELU_OUTS / 4 / GELU_PARTS, half = GELU_PARTS / 2;

#pragma unroll
    for (int part = 0; part < GELU_PARTS; part++) {
        if (kb != part && !(is_last && kb < part)) continue;
#pragma unroll
        for (int i = 0; i < each; i++) {
            uint32_t &two = v[part / half][part % half * each + i];

            two = gelu_of_kept<FORM>(two);
        }
    }
    if (kb == FIRST_LEAVES || (is_last && kb < FIRST_LEAVES))
        stream_write_glu<GELU_OUTS>(maps, p, v[0], w.buffer, w.group);
    p.b += GELU_OUTS / 2;
    if (kb == SECOND_LEAVES || (is_last && kb < SECOND_LEAVES))
        stream_write_glu<GELU_OUTS>(maps, p, v[1], w.buffer, w.group);
}

template <int FORM>
static __device__ __forceinline__ void gelu_work(const struct stream_maps &maps, const struct gelu_job &job,
                                                 struct stream_worker &w, uint32_t rank)
{
    struct stream_place before = {0, 0, ~0u};
    float acc[GELU_OUTS / 2];
    gelu_pairs v;

    for (uint32_t unit = first_unit<true>(); unit < job.n_units; unit += unit_step<true>()) {
        uint32_t last = 0;

        for (uint32_t kb = 0; kb < job.k_blocks; kb++) {
            stream_products<GELU_OUTS, true>(w, acc, kb > 0);
            if (before.b != ~0u) gelu_meanwhile<FORM>(maps, before, w, kb, kb + 1 == job.k_blocks, v);
            wgmma_wait<1>();
            if (kb > 0) stream_release<true>(w, last);
            last = w.r.stage;
            ring_next<gelu_smem::stages>(w.r);
        }
        wgmma_wait<0>();
        stream_release<true>(w, last);
        before = gelu_place(job, unit, rank);
        gelu_keep(job, before, acc, v);
    }
    if (before.b != ~0u) {
#pragma unroll
        for (int i = 0; i < GELU_OUTS / 4; i++)
            v[i / (GELU_OUTS / 8)][i % (GELU_OUTS / 8)] =
                gelu_of_kept<FORM>(v[i / (GELU_OUTS / 8)][i % (GELU_OUTS / 8)]);
        stream_write_glu<GELU_OUTS>(maps, before, v[0], w.buffer, w.group);
        before.b += GELU_OUTS / 2;
        stream_write_glu<GELU_OUTS>(maps, before, v[1], w.buffer, w.group);
    }
}

#endif

template <int FORM>
__global__ void __launch_bounds__(STREAM_THREADS, 1)
    linear_gelu(const __grid_constant__ struct stream_maps maps, const __grid_constant__ struct gelu_job job)
{
#if __CUDA_ARCH__ >= 900
    stream_pair_block<gelu_smem>([&](uint32_t ring, uint32_t full, uint32_t empty,
                                     uint32_t rank) { gelu_feed(maps, job, ring, full, empty, rank); },
                                 [&](struct stream_worker &w, uint32_t rank) { gelu_work<FORM>(maps, job, w, rank); });
#endif
}

template <int FORM> static int start_gelu(const struct cuda_launch *l, const struct linear_hopper *a, uint16_t *out)
{
    const uint32_t n_out = a->outs[0].n_out, smem = gelu_smem::bytes;
    struct gelu_job job = {
        n_out, ceil_div(a->n_in, K_BLOCK), ceil_div(n_out, GELU_OUTS), 0, 8, ceil_div(a->n_rows, 256), a->outs[0].bias};
    struct stream_maps maps;
    const cudaError_t e = allow_once<linear_gelu<FORM>>(smem);

    maps.n_copies = 0;
    if (e) return (int)e;
    job.n_units = job.n_tiles * job.n_row_tiles;
    if (!tensor_map(&maps.a[0], a->x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a->n_rows, a->n_in, a->x_stride * 2ull, 128,
                    K_BLOCK, CU_TENSOR_MAP_SWIZZLE_128B) ||
        !tensor_map(&maps.b[0], a->outs[0].w, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, n_out, a->n_in,
                    a->outs[0].w_stride * 2ull, GELU_OUTS / 2, K_BLOCK, CU_TENSOR_MAP_SWIZZLE_128B) ||
        !tensor_map(&maps.out[0], out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a->n_rows, n_out, n_out * 2ull, 16, 64,
                    CU_TENSOR_MAP_SWIZZLE_128B))
        return (int)cudaErrorInvalidValue;
    maps.a[1] = maps.a[2] = maps.a[0];
    maps.b[1] = maps.b[0];
    maps.out[1] = maps.out[2] = maps.out[0];
    return (int)launch_cluster(l, linear_gelu<FORM>, dim3((job.n_units < N_SMS / 2 ? job.n_units : N_SMS / 2) * 2),
                               STREAM_THREADS, smem, dim3(2), maps, job);
}

/* As linear_hopper has it; false: a form or a place that it does not take. */
static bool hopper_args(const struct cuda_launch *l, const struct cuda_linear_args *a, struct linear_hopper *h)
{
    *h = {};
    h->x = a->x16;
    h->n_rows = a->n_rows;
    h->n_in = a->outs[0].w->n_in;
    h->x_stride = a->x_stride;
    h->n_outs = a->n_outs;
    h->n_segs = 1;
    h->chained = l->pdl;
    h->epilogue = a->add_to ? EPI_ADD : EPI_STORE;
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct cuda_linear_out *o = &a->outs[i];

        if (o->w->format != CUDA_BF16) return false;
        h->outs[i].w = o->w->values;
        h->outs[i].bias = o->bias;
        h->outs[i].out = a->add_to ? a->add_to : o->out;
        h->outs[i].n_out = o->w->n_out;
        h->outs[i].w_stride = o->w->row_stride;
        h->outs[i].stride = o->out_stride;
    }
    return l->compute == 90 && !a->norm.x && !a->tiles && linear_hopper_fits(h);
}

int cuda_linear_many(const struct cuda_launch *l, const struct cuda_linear_args *a, int gelu_form, uint16_t *gelu16)
{
    struct linear_hopper h;

    if (!hopper_args(l, a, &h)) return (int)cudaErrorNotSupported;
    if (gelu_form < 0) return (int)linear_hopper_launch(&h, stream_of(l));
    if (a->n_outs > 1 || a->add_to || h.outs[0].n_out % 8 || (uintptr_t)gelu16 % 16 || (uintptr_t)h.outs[0].bias % 8)
        return (int)cudaErrorNotSupported;
    if (gelu_form == CUDA_GELU_ERF) return start_gelu<CUDA_GELU_ERF>(l, &h, gelu16);
    if (gelu_form == CUDA_GELU_QUICK) return start_gelu<CUDA_GELU_QUICK>(l, &h, gelu16);
    return start_gelu<CUDA_GELU_TANH_FORM>(l, &h, gelu16);
}
