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

static __device__ __forceinline__ void pair_angle(const struct cuda_qkv_args &a, uint32_t row, uint32_t pair,
                                                  float *sine, float *cosine)
{
    sincosf(__fmul_rn((float)pair_position(a, row, pair), a.inv_freq[pair]), sine, cosine);
    *sine *= a.mscale;
    *cosine *= a.mscale;
}

template <int P>
static __device__ __forceinline__ struct head_angles<P> head_angles_of(const struct cuda_qkv_args &a, uint32_t row) {
    struct head_angles<P> t;

#pragma unroll
    for (int i = 0; i < P; i++) pair_angle(a, row, threadIdx.x % 32 + 32 * i, &t.sine[i], &t.cosine[i]);
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
static __device__ __forceinline__ void head_store(const struct cuda_qkv_args &a, float *out, const float (&u)[P],
                                                  const float (&v)[P])
{
#pragma unroll
    for (int i = 0; i < P; i++) out[pair_first(a, i)] = u[i], out[pair_second(a, i)] = v[i];
}

template <int P> static __device__ __forceinline__ float head_squares(const float (&u)[P], const float (&v)[P])
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < P; i++) sum = fmaf(v[i], v[i], fmaf(u[i], u[i], sum));
    return sum;
}

template <int P>
static __device__ __forceinline__ void head_scale(const struct head_norm<P> &n, float scale, float (&u)[P],
                                                  float (&v)[P])
{
#pragma unroll
    for (int i = 0; i < P; i++) {
        u[i] = __fmul_rn(__fmul_rn(u[i], scale), n.u[i]);
        v[i] = __fmul_rn(__fmul_rn(v[i], scale), n.v[i]);
    }
}

template <int P>
static __device__ __forceinline__ void head_rotate(const struct head_angles<P> &t, float (&u)[P], float (&v)[P])
{
#pragma unroll
    for (int i = 0; i < P; i++) {
        const float x = u[i], y = v[i];

        u[i] = fmaf(x, t.cosine[i], -__fmul_rn(y, t.sine[i]));
        v[i] = fmaf(x, t.sine[i], __fmul_rn(y, t.cosine[i]));
    }
}

template <int P>
static __device__ __forceinline__ void head_turn(const struct cuda_qkv_args &a, const struct head_angles<P> &t,
                                                 const struct head_norm<P> &n, bool is_normed, float (&u)[P],
                                                 float (&v)[P])
{
    if (is_normed)
        head_scale<P>(n, 1.0f / sqrtf(warp_sum(head_squares<P>(u, v)) / (float)a.head_dim + a.norm_eps), u, v);
    head_rotate<P>(t, u, v);
}

/* Four heads normed, each with the bits of head_turn: the tree of warp_sum for all of them at once, of which a lane has one
 * head's sums, that of head lane / 8 in the end. */
template <int P>
static __device__ __forceinline__ void norm_fours(const struct cuda_qkv_args &a, const struct head_norm<P> &n,
                                                  float (&u)[4][P], float (&v)[4][P])
{
    const bool upper = threadIdx.x & 16, odd = threadIdx.x & 8;
    float s[4];

#pragma unroll
    for (int h = 0; h < 4; h++) s[h] = head_squares<P>(u[h], v[h]);
    const float even = (upper ? s[2] : s[0]) + __shfl_xor_sync(0xffffffffu, upper ? s[0] : s[2], 16);
    const float other = (upper ? s[3] : s[1]) + __shfl_xor_sync(0xffffffffu, upper ? s[1] : s[3], 16);
    float sum = (odd ? other : even) + __shfl_xor_sync(0xffffffffu, odd ? even : other, 8);
    for (int d = 4; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float scale = 1.0f / sqrtf(sum / (float)a.head_dim + a.norm_eps);
#pragma unroll
    for (int h = 0; h < 4; h++) head_scale<P>(n, __shfl_sync(0xffffffffu, scale, 8 * h), u[h], v[h]);
}
