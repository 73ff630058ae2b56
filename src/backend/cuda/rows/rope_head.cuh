/* backend/cuda/rows/rope_head.cuh - a query or key head normed and rotated by one warp, in registers.
 *
 * Heads of P * 64 dims, all of them rotated, P = 1, 2 or 4: lane j has the pairs j, j + 32, .. Norm: a lane's values in
 * one chain, then the tree of warp_sum. RoPE: cos and sin of the f32 product position * inv_freq.
 */
#pragma once
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/rows/rope_shared.cuh"

/* What a lane needs that no product makes. */
template <int P> struct head_angles {
    float sine[P], cosine[P];
};
template <int P> struct head_norm {
    float u[P], v[P];
};

/* The dims of pair number i of a lane. */
static __device__ __forceinline__ uint32_t pair_first(const struct cuda_qkv_args &a, int i)
{
    const uint32_t pair = threadIdx.x % 32 + 32 * i;
    return a.half_split ? pair : 2 * pair;
}
static __device__ __forceinline__ uint32_t pair_second(const struct cuda_qkv_args &a, int i)
{
    return pair_first(a, i) + (a.half_split ? a.head_dim / 2 : 1);
}

template <int P>
static __device__ __forceinline__ struct head_angles<P> head_angles_of(const struct cuda_qkv_args &a, uint32_t row) {
    struct head_angles<P> t;

#pragma unroll
    for (int i = 0; i < P; i++) {
        sincosf(
            __fmul_rn((float)pair_position(a, row, threadIdx.x % 32 + 32 * i), a.inv_freq[threadIdx.x % 32 + 32 * i]),
            &t.sine[i], &t.cosine[i]);
        t.sine[i] *= a.mscale;
        t.cosine[i] *= a.mscale;
    }
    return t;
}
/* norm: [head_dim] or NULL. */
template <int P>
static __device__ __forceinline__ struct head_norm<P> head_norm_of(const struct cuda_qkv_args &a, const float *norm) {
    struct head_norm<P> n;

#pragma unroll
    for (int i = 0; i < P; i++) {
        n.u[i] = norm ? norm[pair_first(a, i)] : 1;
        n.v[i] = norm ? norm[pair_second(a, i)] : 1;
    }
    return n;
}

template <int P>
static __device__ __forceinline__ void head_load(const struct cuda_qkv_args &a, const float *in, float (&u)[P],
                                                 float (&v)[P])
{
#pragma unroll
    for (int i = 0; i < P; i++) u[i] = in[pair_first(a, i)], v[i] = in[pair_second(a, i)];
}

template <int P>
static __device__ __forceinline__ void head_turn(const struct cuda_qkv_args &a, const struct head_angles<P> &t,
                                                 const struct head_norm<P> &n, bool is_normed, float (&u)[P],
                                                 float (&v)[P])
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < P; i++) sum = fmaf(v[i], v[i], fmaf(u[i], u[i], sum));
    const float scale = is_normed ? 1.0f / sqrtf(warp_sum(sum) / (float)a.head_dim + a.norm_eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < P; i++) {
        const float x = is_normed ? __fmul_rn(__fmul_rn(u[i], scale), n.u[i]) : u[i];
        const float y = is_normed ? __fmul_rn(__fmul_rn(v[i], scale), n.v[i]) : v[i];

        u[i] = fmaf(x, t.cosine[i], -__fmul_rn(y, t.sine[i]));
        v[i] = fmaf(x, t.sine[i], __fmul_rn(y, t.cosine[i]));
    }
}
