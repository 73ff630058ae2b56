/* backend/cuda/linear/linear_mma.cu - matrix products on any GPU with mma.sync.m16n8k16 (sm_80 and newer), all weight forms.
 *
 * out[r, o] = sum over k of x16[r, k] * bf16(w[o, k]) (+ bias[o]), f32. Weights are the A operand (16 outputs), tokens the
 * B operand (8 tokens).
 * Order of the sums: segments of whole blocks of 128 k, at most 8 of them (mma_segment); one chain of steps of 16 k in
 * each, from zero; segments added left to right; then the bias. In 32 k, lane 4 g + c holds k = 8 c .. 8 c + 7 of row g,
 * one 16-byte read of weights and of tokens alike: step s has k = 8 c + 4 s .. + 3 (struct cuda_matrix, in_eights).
 * Two kernels with that one order:
 *   few    a warp per segment of 16 outputs and up to 32 tokens; a block's warps add up in shared memory. Bound: memory
 *   many   a warp for 32 outputs and 64 tokens, all segments; eight warps of a block share the tokens' tile, which
 *          cp.async brings three blocks of k ahead. Weights go from memory to registers, read once. Bound: arithmetic
 */
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/linear/linear_paths.h"
#include "backend/cuda/linear/linear_quant.cuh"

enum {
    MMA_BLOCK = 128, /* k that are read at once */
    MMA_SEGMENTS = 8,
    MMA_FEW_MOST = 4, /* tiles of 8 tokens in a block of few */
    MMA_OUTS = 32,    /* of a warp of many */
    MMA_WARPS = 8,
    MMA_TOKENS = 64,
    MMA_STAGES = 3
};

struct mma_job {
    uint32_t n_rows, x_stride, n_in, n_out, out_stride, segment;
    const uint16_t *x16;
    struct cuda_matrix w;
    const float *bias;
    float *out;
};

/* k of a segment. */
static uint32_t mma_segment(uint32_t n_in)
{
    return ceil_div(n_in, MMA_SEGMENTS * MMA_BLOCK) * MMA_BLOCK;
}

static __device__ __forceinline__ void mma_step(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* ---- a lane's part of a row of weights, 128 k at a time; pairs(u): of its 8 k in 32 k number u, as four words ---- */

template <int BITS, int GROUP, int KIND> struct row_part {
    static constexpr bool two = KIND || BITS == 4; /* numbers of a scale */
    uint4 values[BITS / 4];
    uint32_t scales[4];

    __device__ __forceinline__ void read(const struct cuda_matrix &m, uint32_t row, uint32_t k0)
    {
        const uint64_t at = (uint64_t)row * m.row_stride + k0;
        const uint32_t c = threadIdx.x % 4;
        const uint8_t *v = (const uint8_t *)m.values + at * BITS / 8 + 16 * c;

#pragma unroll
        for (int i = 0; i < BITS / 4; i++) values[i] = __ldg((const uint4 *)(v + 64 * i));
        if constexpr (two && GROUP == 32) {
            const uint4 s = __ldg((const uint4 *)((const uint32_t *)m.scales + at / GROUP));

            scales[0] = s.x, scales[1] = s.y, scales[2] = s.z, scales[3] = s.w;
        } else if constexpr (GROUP == 64) {
            const uint2 s = __ldg((const uint2 *)((const uint32_t *)m.scales + at / GROUP));

            scales[0] = scales[1] = s.x, scales[2] = scales[3] = s.y;
        } else if constexpr (GROUP == 128) {
            scales[0] = scales[1] = scales[2] = scales[3] = __ldg((const uint32_t *)m.scales + at / GROUP);
        } else if constexpr (two) {
#pragma unroll
            for (int u = 0; u < 4; u++) scales[u] = __ldg((const uint32_t *)m.scales + at / GROUP + 2 * u + c / 2);
        } else if constexpr (GROUP == 32) {
            const uint2 s = __ldg((const uint2 *)((const uint16_t *)m.scales + at / GROUP));

            scales[0] = scales[1] = s.x, scales[2] = scales[3] = s.y;
        } else {
            const uint4 s = __ldg((const uint4 *)((const uint16_t *)m.scales + at / GROUP));

            scales[0] = s.x, scales[1] = s.y, scales[2] = s.z, scales[3] = s.w;
        }
    }
    __device__ __forceinline__ void pairs(int u, uint32_t (&out)[4]) const
    {
        const bool second = !two && (GROUP == 32 ? u % 2 : threadIdx.x % 4 / 2);
        const group_scale<BITS, KIND> scale(scales[u], second);

        if constexpr (BITS == 4) {
            const uint32_t v = word_of(values[0], u);
            uint32_t magic;

            asm("mov.b32 %0, 0x43004300;" : "=r"(magic)); /* the compiler does not know: stays in a register */
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = scale.pair(v >> (4 * i), magic);
        } else {
            const uint32_t v = word_of(values[u / 2], u % 2 * 2), w = word_of(values[u / 2], u % 2 * 2 + 1);

#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = scale.bytes(unsigned_bytes<KIND>(i < 2 ? v : w), i % 2);
        }
    }
};

template <> struct row_part<16, 0, SCALED> {
    uint4 values[4];

    __device__ __forceinline__ void read(const struct cuda_matrix &m, uint32_t row, uint32_t k0)
    {
        const uint4 *v =
            (const uint4 *)((const uint16_t *)m.values + (uint64_t)row * m.row_stride + k0) + threadIdx.x % 4;

#pragma unroll
        for (int u = 0; u < 4; u++) values[u] = k0 + 32 * u < m.row_stride ? __ldg(v + 4 * u) : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void pairs(int u, uint32_t (&out)[4]) const
    {
        out[0] = values[u].x, out[1] = values[u].y, out[2] = values[u].z, out[3] = values[u].w;
    }
};

/* The A operands of two steps: rows g and g + 8. */
template <class PART>
static __device__ __forceinline__ void two_steps(uint32_t (&a)[2][4], const PART &low, const PART &high, int u)
{
    uint32_t l[4], h[4];

    low.pairs(u, l);
    high.pairs(u, h);
#pragma unroll
    for (int s = 0; s < 2; s++) a[s][0] = l[2 * s], a[s][1] = h[2 * s], a[s][2] = l[2 * s + 1], a[s][3] = h[2 * s + 1];
}

/* ---- few rows ---- */

template <class PART, int TILES>
static __global__ void __launch_bounds__(32 * MMA_SEGMENTS) linear_mma_few(const __grid_constant__ struct mma_job j)
{
    __shared__ float sums[MMA_SEGMENTS][8 * TILES][17];
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, warp = threadIdx.x / 32, n_segs = blockDim.x / 32;
    const uint32_t o0 = blockIdx.x * 16, t0 = blockIdx.y * 8 * TILES;
    const uint32_t last = min((warp + 1) * j.segment, j.n_in);
    const uint32_t low = min(o0 + g, j.n_out - 1), high = min(o0 + g + 8, j.n_out - 1);
    const uint16_t *x[TILES];
    float acc[TILES][4] = {};
    PART parts[2][2];

#pragma unroll
    for (int t = 0; t < TILES; t++)
        x[t] = j.x16 + (uint64_t)min(t0 + 8 * t + g, j.n_rows - 1) * j.x_stride + 8 * (lane % 4);
    parts[0][0].read(j.w, low, warp * j.segment);
    parts[0][1].read(j.w, high, warp * j.segment);
    for (uint32_t k0 = warp * j.segment; k0 < last; k0 += MMA_BLOCK) {
        if (k0 + MMA_BLOCK < last) {
            parts[1][0].read(j.w, low, k0 + MMA_BLOCK);
            parts[1][1].read(j.w, high, k0 + MMA_BLOCK);
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            uint32_t a[2][4];

            if (k0 + 32 * u >= last) break;
            two_steps(a, parts[0][0], parts[0][1], u);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const uint4 b = *(const uint4 *)(x[t] + k0 + 32 * u);

                mma_step(acc[t], a[0], b.x, b.y);
                mma_step(acc[t], a[1], b.z, b.w);
            }
        }
        parts[0][0] = parts[1][0];
        parts[0][1] = parts[1][1];
    }
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[warp][8 * t + lane % 4 * 2 + i % 2][g + i / 2 * 8] = acc[t][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 8 * TILES * 16; i += blockDim.x) {
        const uint32_t t = i / 16, o = i % 16;
        float sum = sums[0][t][o];

        for (uint32_t s = 1; s < n_segs; s++) sum += sums[s][t][o];
        if (t0 + t < j.n_rows && o0 + o < j.n_out)
            j.out[(uint64_t)(t0 + t) * j.out_stride + o0 + o] = j.bias ? sum + j.bias[o0 + o] : sum;
    }
}

/* ---- many rows ---- */

static __device__ __forceinline__ void copy16(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_u32(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

/* 128 k of the block's tokens: [32 k][token][four chunks of 8 k]. Beyond n_in: zeros. */
static __device__ __forceinline__ void bring_tokens(const struct mma_job &j, uint4 *stage, uint32_t t0, uint32_t k0)
{
    for (uint32_t i = threadIdx.x; i < MMA_TOKENS * MMA_BLOCK / 8; i += 32 * MMA_WARPS) {
        const uint32_t t = i / 16, u = i % 16 / 4, c = i % 4, k = k0 + 8 * (i % 16);

        copy16(stage + (u * MMA_TOKENS + t) * 4 + c,
               j.x16 + (uint64_t)min(t0 + t, j.n_rows - 1) * j.x_stride + (k < j.n_in ? k : 0), k < j.n_in);
    }
}

template <class PART>
static __global__ void __launch_bounds__(32 * MMA_WARPS, 1) linear_mma_many(const __grid_constant__ struct mma_job j)
{
    __shared__ uint4 tokens[MMA_STAGES][MMA_TOKENS * MMA_BLOCK / 8];
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, warp = threadIdx.x / 32;
    const uint32_t o0 = (blockIdx.y * MMA_WARPS + warp) * MMA_OUTS, t0 = blockIdx.x * MMA_TOKENS;
    const uint32_t n_blocks = (j.n_in + MMA_BLOCK - 1) / MMA_BLOCK, per_segment = j.segment / MMA_BLOCK;
    float acc[2][8][4], total[2][8][4] = {};
    PART parts[2][2];
    uint32_t rows[2][2];

#pragma unroll
    for (int i = 0; i < 4; i++) rows[i / 2][i % 2] = min(o0 + g + 8 * i, j.n_out - 1);
    for (uint32_t b = 0; b < MMA_STAGES - 1; b++) {
        if (b < n_blocks) bring_tokens(j, tokens[b], t0, b * MMA_BLOCK);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint32_t k0 = b * MMA_BLOCK;
        const uint4 *tile = tokens[b % MMA_STAGES];

#pragma unroll
        for (int i = 0; i < 4; i++) parts[i / 2][i % 2].read(j.w, rows[i / 2][i % 2], k0);
        asm volatile("cp.async.wait_group %0;" ::"n"(MMA_STAGES - 2) : "memory");
        __syncthreads();
        if (b + MMA_STAGES - 1 < n_blocks)
            bring_tokens(j, tokens[(b + MMA_STAGES - 1) % MMA_STAGES], t0, (b + MMA_STAGES - 1) * MMA_BLOCK);
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (b % per_segment == 0)
#pragma unroll
            for (int i = 0; i < 64; i++) acc[i / 32][i / 4 % 8][i % 4] = 0;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            uint32_t a[2][2][4];

            if (k0 + 32 * u >= j.n_in) break;
#pragma unroll
            for (int m = 0; m < 2; m++) two_steps(a[m], parts[m][0], parts[m][1], u);
#pragma unroll
            for (int t = 0; t < 8; t++) {
                const uint4 x = tile[(u * MMA_TOKENS + 8 * t + g) * 4 + lane % 4];

#pragma unroll
                for (int m = 0; m < 2; m++) {
                    mma_step(acc[m][t], a[m][0], x.x, x.y);
                    mma_step(acc[m][t], a[m][1], x.z, x.w);
                }
            }
        }
        if ((b + 1) % per_segment == 0 || b + 1 == n_blocks)
#pragma unroll
            for (int i = 0; i < 64; i++) {
                float &sum = total[i / 32][i / 4 % 8][i % 4];

                sum = b < per_segment ? acc[i / 32][i / 4 % 8][i % 4] : sum + acc[i / 32][i / 4 % 8][i % 4];
            }
    }
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const uint32_t o = o0 + i / 32 * 16 + i % 4 / 2 * 8 + g, t = t0 + i / 4 % 8 * 8 + lane % 4 * 2 + i % 2;

        if (o < j.n_out && t < j.n_rows)
            j.out[(uint64_t)t * j.out_stride + o] =
                j.bias ? total[i / 32][i / 4 % 8][i % 4] + j.bias[o] : total[i / 32][i / 4 % 8][i % 4];
    }
}

/* ---- launching ---- */

template <class PART, int TILES> static void start_few(const struct cuda_launch *l, const struct mma_job &j)
{
    const dim3 grid(ceil_div(j.n_out, 16), ceil_div(j.n_rows, 8 * TILES));

    linear_mma_few<PART, TILES><<<grid, 32 * ceil_div(j.n_in, j.segment), 0, stream_of(l)>>>(j);
}

/* Many pays when its blocks fill the device. */
template <class PART> static cudaError_t start(const struct cuda_launch *l, const struct mma_job &j)
{
    const dim3 many(ceil_div(j.n_rows, MMA_TOKENS), ceil_div(j.n_out, MMA_OUTS * MMA_WARPS));

    if (j.n_rows > 8 * MMA_FEW_MOST && 4 * many.x * many.y >= 3 * l->n_sms)
        linear_mma_many<PART><<<many, 32 * MMA_WARPS, 0, stream_of(l)>>>(j);
    else if (j.n_rows <= 8)
        start_few<PART, 1>(l, j);
    else if (j.n_rows <= 16)
        start_few<PART, 2>(l, j);
    else
        start_few<PART, MMA_FEW_MOST>(l, j);
    return cudaGetLastError();
}

bool linear_mma_takes(const struct cuda_launch *l, const struct cuda_matrix *m)
{
    if (l->compute < 80 || m->n_in % 32) return false;
    if (m->format != CUDA_BF16 && (!m->in_eights || m->row_stride % cuda_row_align(m))) return false;
    return linear_knows_form(m);
}

static cudaError_t start_form(const struct cuda_launch *l, const struct mma_job &j)
{
    const struct cuda_matrix *m = &j.w;

    if (m->format == CUDA_BF16) return start<row_part<16, 0, SCALED>>(l, j);
    if (m->format == CUDA_INT4 && m->group == 16) return start<row_part<4, 16, WITH_OFFSET>>(l, j);
    if (m->format == CUDA_INT4)
        return m->has_offset ? start<row_part<4, 32, WITH_OFFSET>>(l, j) : start<row_part<4, 32, SCALED>>(l, j);
    if (m->format == CUDA_E4M3) return start<row_part<8, 128, E4M3>>(l, j);
    if (m->group == 64) return start<row_part<8, 64, WITH_OFFSET>>(l, j);
    if (m->group == 16) return start<row_part<8, 16, SCALED>>(l, j);
    return m->has_offset ? start<row_part<8, 32, WITH_OFFSET>>(l, j) : start<row_part<8, 32, SCALED>>(l, j);
}

int linear_mma_launch(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    for (uint32_t i = 0; i < a->n_outs; i++)
        if (!linear_mma_takes(l, a->outs[i].w)) return (int)cudaErrorNotSupported;
    if (a->x_stride % 8 || (uintptr_t)a->x16 % 16) return (int)cudaErrorNotSupported;
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct cuda_linear_out *out = &a->outs[i];
        const struct mma_job j = {
            a->n_rows, a->x_stride, out->w->n_in, out->w->n_out, out->out_stride, mma_segment(out->w->n_in),
            a->x16,    *out->w,     out->bias,    out->out};
        const cudaError_t e = start_form(l, j);

        if (e) return (int)e;
    }
    return 0;
}
