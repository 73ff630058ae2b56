/* backend/cuda/attention/attend_groups.cu - attention of encoders: all keys of a row's group, no pages, a KV head for each head.
 *
 *     packed: per head, per block of 64 keys of a group: keys, then values, each [bands of 64 dims][64 rows][128 bytes] bf16 with
 *             a 128-byte swizzle, so that tiles are copied as they lie. Dims beyond head_dim, rows beyond the group: zeros.
 *
 * A block of the grid takes 64 (windows) or 192 rows of one group and head, 64 a warpgroup, through the group's keys in segments
 * of 128 from the group's first. ORDER OF THE SUMS of a row: scores by wgmma over head_dim in steps of 16; M = max(m, the
 * segment's largest); o = o * 2^(m - M), then p v with p = 2^(score - M) rounded to bf16 by a chain of wgmma over the segment's
 * keys; l the same in f32, per thread of four, who are added at the end. Nothing of it depends on the tile. While a segment's
 * exponentials are computed the values of the one before are multiplied; keys and values of the next come by cp.async.
 * Bound: arithmetic, exponentials as much as products. Heads of up to 128 on sm_90, else one warp per row and head, in f32.
 * Source: online softmax, arXiv:2307.08691; the overlap, arXiv:2407.08608, section 3.2.
 */
#include "backend/cuda/attention/attention_products.cuh"

enum { BLOCK_KEYS = 64, PACK_THREADS = 128, MOST_PLAIN_DIMS = 32 };

/* The group that x lies in, by what lies before each: the last whose first is at most x. */
static __device__ __forceinline__ uint32_t group_of_block(const struct cuda_attend_args &a, uint32_t block)
{
    uint32_t low = 0, high = a.n_groups - 1;

    while (low < high) {
        const uint32_t mid = high - (high - low) / 2;

        if (a.group_blocks[mid] <= block)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static __device__ __forceinline__ uint32_t group_begin(const struct cuda_attend_args &a, uint32_t group)
{
    return group ? a.group_ends[group - 1] : 0;
}

template <int D>
static __device__ __forceinline__ uint8_t *packed_block(const struct cuda_attend_args &a, uint64_t block)
{
    return a.packed + block * (2 * BLOCK_KEYS * D * 2);
}

static __device__ __forceinline__ uint32_t two_halves(float x, float y)
{
    return mma_type<__nv_bfloat16>::pack(x, y);
}

template <int D> static __global__ void attend_pack(struct cuda_attend_args a)
{
    const uint32_t block = blockIdx.x, group = group_of_block(a, block), head = a.head0 + blockIdx.y;
    const uint32_t first = group_begin(a, group) + (block - a.group_blocks[group]) * BLOCK_KEYS;
    const uint32_t n = min((uint32_t)BLOCK_KEYS, a.group_ends[group] - first);
    uint8_t *to = packed_block<D>(a, (uint64_t)blockIdx.y * a.n_blocks + block);

    for (uint32_t i = threadIdx.x; i < 2 * BLOCK_KEYS * D / 8; i += PACK_THREADS) {
        const uint32_t which = i / (BLOCK_KEYS * D / 8), r = i / (D / 8) % BLOCK_KEYS, c = i % (D / 8), d = c * 8;
        const float *x = (which ? a.v : a.k) + (uint64_t)(first + r) * a.stride + (uint64_t)head * a.head_dim + d;
        const float4 zero = make_float4(0, 0, 0, 0);
        const float4 u = r < n && d < a.head_dim ? *(const float4 *)x : zero;
        const float4 v = r < n && d + 4 < a.head_dim ? *(const float4 *)(x + 4) : zero;

        *(uint4 *)(to + which * BLOCK_KEYS * D * 2 + c / 8 * BLOCK_KEYS * 128 + r * 128 + (((c ^ r) & 7) << 4)) =
            make_uint4(two_halves(u.x, u.y), two_halves(u.z, u.w), two_halves(v.x, v.y), two_halves(v.z, v.w));
    }
}

/* Keys or values (which) of the segment that begins at `block` to a tile; blocks from `end` on become zeros. */
template <int D, int THREADS>
static __device__ __forceinline__ void load_packed(uint32_t tile, const uint8_t *blocks, uint32_t which, uint32_t block,
                                                   uint32_t end)
{
    constexpr uint32_t per_block = BLOCK_KEYS * D / 8;

#pragma unroll
    for (uint32_t i = threadIdx.x; i < 2 * per_block; i += THREADS) {
        const uint32_t half = i / per_block, in = i % per_block, band = in / (BLOCK_KEYS * 8),
                       at = in % (BLOCK_KEYS * 8);
        const bool there = block + half < end;
        const uint8_t *from =
            blocks + ((uint64_t)(there ? block + half : block) * 2 + which) * per_block * 16 + in * 16;

        async_copy16(tile + band * SEGMENT * 128 + half * BLOCK_KEYS * 128 + at * 16, from, there);
    }
}

/* ROWS query rows from first on to tiles of 64 rows; rows from end on and dims beyond head_dim become zeros. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void load_rows(uint32_t tile, const struct cuda_attend_args &a, uint32_t head,
                                                 uint32_t first, uint32_t end)
{
    for (uint32_t i = threadIdx.x; i < ROWS * D / 2; i += THREADS) {
        const uint32_t r = i / (D / 2), d = i % (D / 2) * 2;
        const float *q = a.q + (uint64_t)(first + r) * a.stride + (uint64_t)head * a.head_dim + d;
        const uint32_t v = first + r < end && d < a.head_dim ? two_halves(q[0], q[1]) : 0;

        asm volatile(
            "st.shared.b32 [%0], %1;" ::"r"(half_tile_at<64>(tile + r / 64 * 64 * D * 2, r % 64, d / 8) + d % 8 * 2),
            "r"(v)
            : "memory");
    }
}

/* Sums of products that run are read and written behind this, not before. */
template <int N> static __device__ __forceinline__ void settled(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

/* s = the warpgroup's 64 rows times the segment's keys, begun. */
template <int STEPS> static __device__ __forceinline__ void begin_scores(float (&s)[64], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        wgmma_ss<128>(s, wgmma_desc(q + step / 4 * 64 * 128) + step % 4 * 2,
                      wgmma_desc(k + step / 4 * SEGMENT * 128) + step % 4 * 2, step > 0);
    wgmma_commit();
}

/* o += p v, begun; the second 64 dims have TAIL that are not zeros. */
template <int D, int TAIL, int N>
static __device__ __forceinline__ void begin_values(float (&o)[N], const uint32_t (&p)[SEGMENT / 16][4], uint32_t v)
{
#pragma unroll
    for (int step = 0; step < SEGMENT / 16; step++) {
        wgmma_rs_t<64>(*(float(*)[32]) & o[0], p[step], wgmma_desc_t(v + step * 16 * 128), 1);
        if constexpr (D > 64)
            wgmma_rs_t<TAIL>(*(float(*)[TAIL / 2]) & o[32], p[step], wgmma_desc_t(v + SEGMENT * 128 + step * 16 * 128),
                             1);
    }
    wgmma_commit();
}

/* Scores to 2^(c s - M) in place; keys from n_keys on are none. factor: what sums so far are multiplied by. */
template <int N>
static __device__ __forceinline__ void exponentials(float (&s)[N], float (&m)[2], float (&l)[2], float (&factor)[2],
                                                    float c, uint32_t n_keys)
{
    float most[2] = {m[0], m[1]};

    if (n_keys < SEGMENT) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((uint32_t)(i / 4 * 8 + i % 2) + threadIdx.x % 4 * 2 >= n_keys) s[i] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < N; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
        factor[r] = exp2_fast(__fmul_rn(__fsub_rn(m[r], most[r]), c));
        m[r] = most[r];
        l[r] = __fmul_rn(l[r], factor[r]);
    }
    const float shift[2] = {__fmul_rn(m[0], c), __fmul_rn(m[1], c)};

#pragma unroll
    for (int i = 0; i < N; i++) s[i] = exp2_fast(fmaf(s[i], c, -shift[i / 2 % 2]));
#pragma unroll
    for (int i = 0; i < N; i++) l[i / 2 % 2] = __fadd_rn(l[i / 2 % 2], s[i]);
}

template <int D, int STEPS, int TAIL, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 128, 1) attend_wgmma(const __grid_constant__ struct cuda_attend_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t smem[];
    constexpr uint32_t THREADS = GROUPS * 128, ROWS = GROUPS * 64, tile_bytes = SEGMENT * D * 2;
    constexpr int N = D > 64 ? 32 + TAIL / 2 : 32;
    const uint32_t k_tiles = (smem_u32(smem) + 1023) & ~1023u, v_tiles = k_tiles + 2 * tile_bytes;
    const uint32_t q_tiles = v_tiles + 2 * tile_bytes, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t group = a.first_group + blockIdx.x / a.group_tiles, head = a.head0 + blockIdx.y;
    const uint32_t begin = group_begin(a, group), n_keys = a.group_ends[group] - begin;
    const uint32_t first = max(begin, a.row0) + blockIdx.x % a.group_tiles * ROWS;
    const uint32_t end = min(begin + n_keys, a.row0 + a.n_rows), n_blocks = (n_keys + BLOCK_KEYS - 1) / BLOCK_KEYS;
    const uint32_t n_segments = (n_keys + SEGMENT - 1) / SEGMENT, my_q = q_tiles + warp / 4 * 64 * D * 2;
    const uint8_t *blocks = packed_block<D>(a, (uint64_t)blockIdx.y * a.n_blocks + a.group_blocks[group]);
    const float c = a.scale * 1.44269504f;
    float s[64], o[N] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, factor[2];

    if (first >= end) return;
    load_packed<D, THREADS>(k_tiles, blocks, 0, 0, n_blocks);
    load_packed<D, THREADS>(v_tiles, blocks, 1, 0, n_blocks);
    load_packed<D, THREADS>(k_tiles + tile_bytes, blocks, 0, 2, n_blocks);
    async_commit();
    load_rows<D, ROWS, THREADS>(q_tiles, a, head, first, end);
    async_wait<0>();
    shared_written_fence();
    __syncthreads();
    wgmma_fence();
    begin_scores<STEPS>(s, my_q, k_tiles);
    wgmma_wait<0>();
    settled(s);
    for (uint32_t i = 0; i < n_segments; i++) {
        const uint32_t here = i % 2 * tile_bytes, other = tile_bytes - here;
        uint32_t p[SEGMENT / 16][4];

        exponentials(s, m, l, factor, c, n_keys - i * SEGMENT);
        wgmma_wait<0>(); /* o has the values before */
        settled(o);
#pragma unroll
        for (int k = 0; k < SEGMENT / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) p[k][j] = two_halves(s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
#pragma unroll
        for (int k = 0; k < N; k++) o[k] = __fmul_rn(o[k], factor[k / 2 % 2]);
        async_wait<0>();
        shared_written_fence();
        __syncthreads(); /* keys i + 1 and values i are here; all are done with keys i and values i - 1 */
        if (i + 2 < n_segments) load_packed<D, THREADS>(k_tiles + here, blocks, 0, 2 * i + 4, n_blocks);
        if (i + 1 < n_segments) load_packed<D, THREADS>(v_tiles + other, blocks, 1, 2 * i + 2, n_blocks);
        async_commit();
        settled(s);
        settled(o);
        wgmma_fence();
        if (i + 1 < n_segments) begin_scores<STEPS>(s, my_q, k_tiles + other);
        begin_values<D, TAIL>(o, p, v_tiles + here);
        wgmma_wait<1>();
        settled(s);
    }
    wgmma_wait<0>();
    settled(o);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t row = first + warp * 16 + lane / 4 + 8 * r;

        l[r] = __fadd_rn(l[r], __shfl_xor_sync(0xffffffffu, l[r], 1));
        l[r] = __fadd_rn(l[r], __shfl_xor_sync(0xffffffffu, l[r], 2));
        if (row >= end) continue;
        const uint64_t at = (uint64_t)(row - a.row0) * a.n_heads * a.head_dim + (uint64_t)head * a.head_dim;
#pragma unroll
        for (int k = 0; k < N / 4; k++) {
            const uint32_t d = 8 * k + lane % 4 * 2;
            const float x = __fdiv_rn(o[4 * k + 2 * r], l[r]), y = __fdiv_rn(o[4 * k + 2 * r + 1], l[r]);

            if (d >= a.head_dim) continue;
            *(float2 *)(a.out + at + d) = make_float2(x, y);
            *(uint32_t *)(a.out16 + at + d) = two_halves(x, y);
        }
    }
#endif
}

/* One warp per row and head, from q, k and v themselves. */
static __global__ void attend_plain(struct cuda_attend_args a)
{
    const uint32_t row = a.row0 + blockIdx.x, head = a.head0 + blockIdx.y, lane = threadIdx.x;
    const uint32_t n_dims = (a.head_dim + 31 - lane) / 32;
    uint32_t low = 0, high = a.n_groups - 1;
    float query[MOST_PLAIN_DIMS], acc[MOST_PLAIN_DIMS] = {}, m = -INFINITY, l = 0;

    while (low < high) { /* the first group that ends behind row */
        const uint32_t mid = (low + high) / 2;

        if (a.group_ends[mid] > row)
            high = mid;
        else
            low = mid + 1;
    }
    for (uint32_t i = 0; i < n_dims; i++)
        query[i] = a.q[(uint64_t)row * a.stride + (uint64_t)head * a.head_dim + lane + 32 * i] * a.scale * 1.44269504f;
    for (uint32_t t = group_begin(a, low); t < a.group_ends[low]; t++) {
        const uint64_t at = (uint64_t)t * a.stride + (uint64_t)head * a.head_dim + lane;
        float score = 0;

        for (uint32_t i = 0; i < n_dims; i++) score = fmaf(query[i], a.k[at + 32 * i], score);
        score = warp_sum(score);
        const float most = fmaxf(m, score), old = m == -INFINITY ? 0.0f : exp2f(m - most), p = exp2f(score - most);

        m = most;
        l = fmaf(l, old, p);
        for (uint32_t i = 0; i < n_dims; i++) acc[i] = fmaf(p, a.v[at + 32 * i], acc[i] * old);
    }
    const uint64_t to = (uint64_t)blockIdx.x * a.n_heads * a.head_dim + (uint64_t)head * a.head_dim + lane;

    for (uint32_t i = 0; i < n_dims; i++) {
        a.out[to + 32 * i] = acc[i] / l;
        a.out16[to + 32 * i] = float_bf16(acc[i] / l);
    }
}

static bool by_tensor_cores(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    return l->compute == 90 && a->head_dim <= 128 && a->head_dim % 4 == 0 && a->stride % 4 == 0 &&
           ((uintptr_t)a->k | (uintptr_t)a->v) % 16 == 0;
}

int cuda_attend_pack(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    const dim3 grid(a->n_blocks, a->n_some);

    if (!by_tensor_cores(l, a)) return 0; /* k and v are read where they lie */
    if (a->head_dim <= 64)
        attend_pack<64><<<grid, PACK_THREADS, 0, stream_of(l)>>>(*a);
    else
        attend_pack<128><<<grid, PACK_THREADS, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}

template <int D, int STEPS, int TAIL, int GROUPS>
static int start(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    const uint32_t smem = 4 * SEGMENT * D * 2 + GROUPS * 64 * D * 2 + 1024;
    struct cuda_attend_args b = *a;
    cudaError_t e = allow_once<attend_wgmma<D, STEPS, TAIL, GROUPS>>(smem);

    b.group_tiles = ceil_div(min(a->most_rows, a->n_rows), GROUPS * 64);
    if (e != cudaSuccess) return (int)e;
    attend_wgmma<D, STEPS, TAIL, GROUPS>
        <<<dim3(b.group_tiles * (a->last_group - a->first_group + 1), a->n_some), GROUPS * 128, smem, stream_of(l)>>>(
            b);
    return (int)cudaGetLastError();
}

template <int D, int STEPS, int TAIL>
static int start_for(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    return a->most_rows <= 128 ? start<D, STEPS, TAIL, 1>(l, a) : start<D, STEPS, TAIL, 3>(l, a);
}

int cuda_attend(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    if (!by_tensor_cores(l, a)) {
        attend_plain<<<dim3(a->n_rows, a->n_some), 32, 0, stream_of(l)>>>(*a);
        return (int)cudaGetLastError();
    }
    if (a->head_dim <= 64) return start_for<64, 4, 64>(l, a);
    if (a->head_dim <= 80) return start_for<128, 5, 16>(l, a);
    return start_for<128, 8, 64>(l, a);
}
