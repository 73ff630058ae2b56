/* grad/cuda/attention_gradient.cu - the gradient of attention, with the keys and values that are in the pages.
 *
 *     s = cap(scale q k^T), p = softmax(s);  dv = p^T do;  dp = do v^T;  ds = p (dp - sum p dp) cap';  dq = ds k;  dk = ds^T q
 *
 * Probabilities are never stored: two kernels compute scores again.
 *     rows   a block has 64 queries of a head. Once over their keys for the log of the sum of exponentials and sum p dp (online softmax,
 *            arXiv:2307.08691), which stay in `stats`; once more for dq
 *     keys   a block has 64 keys of a KV head, and goes over the queries that see them, head after head
 * Each output is one block's: no atomics, sums in the order of keys, or of heads and queries.
 *
 * Tiles are for tensor cores (mma.sync): head_dim 64 or 128, keys, values and q of one type, F16 or BF16. Scores are of that type, as
 * attention's own; all other products bf16, sums f32. 9 products of 64 x 64 x head_dim a pair of tiles. Other shapes have plain
 * kernels, f32 throughout. Bound: arithmetic. */
#include "backend/cuda/launch_chained.cuh"
#include "grad/cuda/grad_cuda.h"
#include "grad/cuda/mma_steps.cuh"
#include "tensor/dtype.h"

#define TILE         64u
#define WARPS        4u
#define THREADS      (32u * WARPS)
#define MAX_HEAD_DIM 512u

/* ---- what both ways share ---- */

/* A score behind the cap, and what its gradient is multiplied by. */
struct score {
    float s, slope;
};
template <bool CAP = true>
static __device__ __forceinline__ struct score score_of(const struct grad_cuda_attention &a, float dot)
{
    const float s = dot * a.scale;

    if (!CAP || a.softcap <= 0) return {s, a.scale};
    const float y = tanhf(s / a.softcap);

    return {a.softcap * y, a.scale * fmaf(-y, y, 1.0f)};
}

static __device__ __forceinline__ bool sees(const struct grad_cuda_attention &a, uint32_t pos, uint32_t key)
{
    return key <= pos && (a.window == 0 || key + a.window > pos);
}

static __device__ __forceinline__ const uint8_t *key_at(const struct grad_cuda_attention &a,
                                                        const struct grad_cuda_sequence &s, uint32_t kv_head,
                                                        uint32_t key, bool value)
{
    const uint64_t page = a.tables[s.table + key / a.kv.page_tokens];
    const uint64_t row = (uint64_t)kv_head * a.kv.page_tokens + key % a.kv.page_tokens;

    return a.kv.base + page * a.kv.page_bytes +
           (value ? a.kv.v_offset + row * a.kv.v_row_bytes : a.kv.k_offset + row * a.kv.k_row_bytes);
}

static __device__ __forceinline__ float value_at(int dtype, const void *p, uint64_t i)
{
    if (dtype == DTYPE_F32) return ((const float *)p)[i];
    return dtype == DTYPE_F16 ? half_float(((const uint16_t *)p)[i]) : bf16_float(((const uint16_t *)p)[i]);
}

/* ---- plain: a block a row and head, or a key and KV head; a warp every fourth key, or query ---- */

/* Both dots of a warp: x . k and y . v. */
static __device__ __forceinline__ float2 dots(const struct grad_cuda_attention &a, const float *x, const uint8_t *k,
                                              const float *y, const uint8_t *v)
{
    float s = 0, dp = 0;

    for (uint32_t i = threadIdx.x % 32; i < a.head_dim; i += 32) {
        s = fmaf(x[i], value_at(a.kv.dtype_k, k, i), s);
        dp = fmaf(y[i], value_at(a.kv.dtype_v, v, i), dp);
    }
    return make_float2(warp_sum(s), warp_sum(dp));
}

/* The sequence that a row of q is of. */
static __device__ const struct grad_cuda_sequence *sequence_of(const struct grad_cuda_attention &a, uint32_t row)
{
    for (uint32_t i = 0; i < a.n_sequences; i++)
        if (row - a.sequences[i].q_row0 < a.sequences[i].n_q) return &a.sequences[i];
    return NULL;
}

static __global__ void __launch_bounds__(THREADS) rows_plain(struct grad_cuda_attention a)
{
    __shared__ float q[MAX_HEAD_DIM], dout[MAX_HEAD_DIM], parts[WARPS][3], dq[WARPS][MAX_HEAD_DIM];
    const uint32_t row = blockIdx.x, head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct grad_cuda_sequence *s = sequence_of(a, row);
    const uint64_t at = (uint64_t)row * a.q_stride + (uint64_t)head * a.head_dim;
    float most = -INFINITY, sum = 0, weighted = 0;

    if (!s) return;
    const uint32_t pos = a.positions[row], first = a.window && pos + 1 > a.window ? pos + 1 - a.window : 0;

    for (uint32_t i = threadIdx.x; i < a.head_dim; i += THREADS) {
        q[i] = value_at(a.q_type, a.q, at + i);
        dout[i] = a.dout[(uint64_t)row * a.out_stride + (uint64_t)head * a.head_dim + i];
        for (uint32_t w = 0; w < WARPS; w++) dq[w][i] = 0;
    }
    __syncthreads();
    for (uint32_t t = first + warp; t <= pos; t += WARPS) {
        const float2 d = dots(a, q, key_at(a, *s, kv_head, t, false), dout, key_at(a, *s, kv_head, t, true));
        const float x = score_of<>(a, d.x).s, m = fmaxf(most, x), f = expf(most - m), p = expf(x - m);

        sum = fmaf(sum, f, p);
        weighted = fmaf(weighted, f, p * d.y);
        most = m;
    }
    if (lane == 0) parts[warp][0] = most, parts[warp][1] = sum, parts[warp][2] = weighted;
    __syncthreads();
    most = parts[0][0], sum = weighted = 0;
    for (uint32_t w = 1; w < WARPS; w++) most = fmaxf(most, parts[w][0]);
    for (uint32_t w = 0; w < WARPS; w++)
        if (parts[w][0] != -INFINITY) {
            const float f = expf(parts[w][0] - most);

            sum += parts[w][1] * f;
            weighted += parts[w][2] * f;
        }
    const float log_sum = most + logf(sum), mean = weighted / sum;

    for (uint32_t t = first + warp; t <= pos; t += WARPS) {
        const uint8_t *k = key_at(a, *s, kv_head, t, false);
        const float2 d = dots(a, q, k, dout, key_at(a, *s, kv_head, t, true));
        const struct score x = score_of<>(a, d.x);
        const float ds = expf(x.s - log_sum) * (d.y - mean) * x.slope;

        for (uint32_t i = lane; i < a.head_dim; i += 32)
            dq[warp][i] = fmaf(ds, value_at(a.kv.dtype_k, k, i), dq[warp][i]);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.head_dim; i += THREADS)
        a.dq[at + i] = (dq[0][i] + dq[1][i]) + (dq[2][i] + dq[3][i]);
    if (threadIdx.x == 0) {
        a.stats[2 * ((uint64_t)row * a.n_heads + head)] = log_sum;
        a.stats[2 * ((uint64_t)row * a.n_heads + head) + 1] = mean;
    }
}

static __global__ void __launch_bounds__(THREADS) keys_plain(struct grad_cuda_attention a)
{
    __shared__ float dk[WARPS][MAX_HEAD_DIM], dv[WARPS][MAX_HEAD_DIM], q[WARPS][MAX_HEAD_DIM],
        dout[WARPS][MAX_HEAD_DIM];
    const struct grad_cuda_sequence s = a.sequences[blockIdx.z];
    const uint32_t key = blockIdx.x, kv_head = blockIdx.y, group = a.n_heads / a.n_kv_heads;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (key >= s.n_keys) return;
    const uint8_t *k = key_at(a, s, kv_head, key, false), *v = key_at(a, s, kv_head, key, true);
    const uint64_t to = ((uint64_t)(s.key_row0 + key) * a.n_kv_heads + kv_head) * a.head_dim;

    for (uint32_t i = lane; i < a.head_dim; i += 32) dk[warp][i] = dv[warp][i] = 0;
    for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (uint32_t i = warp; i < s.n_q; i += WARPS) {
            const uint64_t row = s.q_row0 + i, stats = 2 * (row * a.n_heads + h);

            if (!sees(a, a.positions[row], key)) continue;
            __syncwarp();
            for (uint32_t c = lane; c < a.head_dim; c += 32) {
                q[warp][c] = value_at(a.q_type, a.q, row * a.q_stride + (uint64_t)h * a.head_dim + c);
                dout[warp][c] = a.dout[row * a.out_stride + (uint64_t)h * a.head_dim + c];
            }
            __syncwarp();
            const float2 d = dots(a, q[warp], k, dout[warp], v);
            const struct score x = score_of<>(a, d.x);
            const float p = expf(x.s - a.stats[stats]), ds = p * (d.y - a.stats[stats + 1]) * x.slope;

            for (uint32_t c = lane; c < a.head_dim; c += 32) {
                dk[warp][c] = fmaf(ds, q[warp][c], dk[warp][c]);
                dv[warp][c] = fmaf(p, dout[warp][c], dv[warp][c]);
            }
        }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.head_dim; i += THREADS) {
        a.dk[to + i] = (dk[0][i] + dk[1][i]) + (dk[2][i] + dk[3][i]);
        a.dv[to + i] = (dv[0][i] + dv[1][i]) + (dv[2][i] + dv[3][i]);
    }
}

/* ---- tiles ---- */

template <int HD> struct tiles {
    static constexpr uint32_t pitch = HD + 8, numbers = TILE * pitch;
    /* five tiles, and stats and positions of 64 queries */
    static constexpr uint32_t bytes = 5 * numbers * 2 + TILE * 3 * 4;
};

static __device__ __forceinline__ uint32_t two_bf16s(float a, float b)
{
    return float_bf16(a) | (uint32_t)float_bf16(b) << 16;
}
static __device__ __forceinline__ uint32_t halves_to_bf16(uint32_t v)
{
    const float2 f = __half22float2(*(const __half2 *)&v);

    return two_bf16s(f.x, f.y);
}
static __device__ __forceinline__ uint4 halves_to_bf16(uint4 v)
{
    return make_uint4(halves_to_bf16(v.x), halves_to_bf16(v.y), halves_to_bf16(v.z), halves_to_bf16(v.w));
}

/* Of a tile in shared memory a thread has 8 numbers of every so many: number j of its pieces. All are asked for before one is waited
 * for: with a wait for each, both kernels took 1.7 times as long (8 sequences of 512, 32 heads of 128, one H100). */
template <int HD> struct piece {
    static constexpr int n = TILE * HD / 8 / THREADS;
    uint32_t r, c;
    __device__ __forceinline__ explicit piece(int j)
        : r((threadIdx.x + j * THREADS) / (HD / 8)), c((threadIdx.x + j * THREADS) % (HD / 8) * 8)
    {
    }
    __device__ __forceinline__ uint32_t at() const { return r * tiles<HD>::pitch + c; }
};

/* 64 keys, or values, from `first` on, as they are: there after copies_wait. */
template <int HD>
static __device__ __forceinline__ void load_keys(const struct grad_cuda_attention &a,
                                                 const struct grad_cuda_sequence &s, uint32_t kv_head, uint32_t first,
                                                 bool value, uint16_t *to)
{
    const uint8_t *from[piece<HD>::n];

#pragma unroll
    for (int j = 0; j < piece<HD>::n; j++) {
        const piece<HD> p(j);

        from[j] = first + p.r < s.n_keys ? key_at(a, s, kv_head, first + p.r, value) + p.c * 2 : NULL;
    }
#pragma unroll
    for (int j = 0; j < piece<HD>::n; j++)
        copy16_async(to + piece<HD>(j).at(), from[j] ? from[j] : a.kv.base, from[j] != NULL);
}

/* The same of n queries from row on. */
template <int HD>
static __device__ __forceinline__ void load_queries(const struct grad_cuda_attention &a, uint64_t row, uint32_t n,
                                                    uint32_t head, uint16_t *to)
{
#pragma unroll
    for (int j = 0; j < piece<HD>::n; j++) {
        const piece<HD> p(j);
        const uint16_t *from = (const uint16_t *)a.q + (row + min(p.r, n - 1)) * a.q_stride + head * HD + p.c;

        copy16_async(to + p.at(), from, p.r < n);
    }
}

/* The numbers that this thread has copied, from halves to bf16. */
template <int HD> static __device__ __forceinline__ void own_to_bf16(const uint16_t *from, uint16_t *to)
{
#pragma unroll
    for (int j = 0; j < piece<HD>::n; j++)
        *(uint4 *)(to + piece<HD>(j).at()) = halves_to_bf16(*(const uint4 *)(from + piece<HD>(j).at()));
}

template <int HD>
static __device__ __forceinline__ void load_dout(const struct grad_cuda_attention &a, uint64_t row, uint32_t n,
                                                 uint32_t head, uint16_t *to)
{
    float4 v[piece<HD>::n];

#pragma unroll
    for (uint32_t half = 0; half < 8; half += 4) {
#pragma unroll
        for (int j = 0; j < piece<HD>::n; j++) {
            const piece<HD> p(j);

            v[j] = *(const float4 *)(a.dout + (row + min(p.r, n - 1)) * a.out_stride + head * HD + p.c + half);
        }
#pragma unroll
        for (int j = 0; j < piece<HD>::n; j++) {
            const piece<HD> p(j);
            const bool there = p.r < n;

            *(uint2 *)(to + p.at() + half) =
                make_uint2(there ? two_bf16s(v[j].x, v[j].y) : 0, there ? two_bf16s(v[j].z, v[j].w) : 0);
        }
    }
}

template <bool HALF>
static __device__ __forceinline__ void mma_scores(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (HALF)
        mma_f16(d, a, b0, b1);
    else
        mma_bf16(d, a, b0, b1);
}

/* s = x y^T (scores), dp = u w^T: a warp's 16 rows of x and u from m0 on, 16 * PAIRS rows of y and w from n0 on. */
template <int HD, bool HALF, int PAIRS>
static __device__ __forceinline__ void both_products(float (&s)[2 * PAIRS][4], float (&dp)[2 * PAIRS][4],
                                                     const uint16_t *x, const uint16_t *u, uint32_t m0,
                                                     const uint16_t *y, const uint16_t *w, uint32_t n0)
{
    constexpr uint32_t P = tiles<HD>::pitch;

#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = dp[j][i] = 0;
#pragma unroll
    for (uint32_t k = 0; k < HD; k += 16) {
        uint32_t ax[4], au[4];

        load_a(ax, x, P, m0, k);
        load_a(au, u, P, m0, k);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            uint32_t b[4];

            load_b(b, y, P, n0 + 16 * j, k);
            mma_scores<HALF>(s[2 * j], ax, b[0], b[1]);
            mma_scores<HALF>(s[2 * j + 1], ax, b[2], b[3]);
            load_b(b, w, P, n0 + 16 * j, k);
            mma_bf16(dp[2 * j], au, b[0], b[1]);
            mma_bf16(dp[2 * j + 1], au, b[2], b[3]);
        }
    }
}

/* Two tiles of sums side by side as the a of 16 k. */
static __device__ __forceinline__ void as_a(uint32_t (&a)[4], const float (&l)[4], const float (&r)[4])
{
    a[0] = two_bf16s(l[0], l[1]);
    a[1] = two_bf16s(l[2], l[3]);
    a[2] = two_bf16s(r[0], r[1]);
    a[3] = two_bf16s(r[2], r[3]);
}

/* Over the four lanes that have a row. */
static __device__ __forceinline__ float row_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
static __device__ __forceinline__ float row_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

template <int HD, bool HALF, bool CAP>
static __global__ void __launch_bounds__(THREADS) rows_tiles(struct grad_cuda_attention a)
{
    extern __shared__ __align__(16) uint16_t room[];
    constexpr uint32_t P = tiles<HD>::pitch, N = tiles<HD>::numbers;
    uint16_t *const q = room, *const dout = q + N, *const k = dout + N, *const v = k + N, *const k16 = HALF ? v + N : k;
    const struct grad_cuda_tile tile = a.q_tiles[blockIdx.x];
    const struct grad_cuda_sequence s = a.sequences[tile.sequence];
    const uint32_t head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads), n = min(TILE, s.n_q - tile.first);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const uint64_t row0 = (uint64_t)s.q_row0 + tile.first;
    const uint32_t low = a.positions[row0], end = min(a.positions[row0 + n - 1] + 1, s.n_keys);
    const uint32_t begin = a.window && low + 1 > a.window ? (low + 1 - a.window) / TILE * TILE : 0;
    uint32_t pos[2];
    bool there[2];
    float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, weighted[2] = {0, 0}, dq[HD / 8][4] = {};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t r = 16 * warp + g + 8 * h;

        there[h] = r < n;
        pos[h] = there[h] ? a.positions[row0 + r] : 0;
    }
    load_queries<HD>(a, row0, n, head, q);
    load_dout<HD>(a, row0, n, head, dout);
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t key = begin; key < end; key += TILE) {
            float x[8][4], dp[8][4];

            __syncthreads(); /* all are done with the last tile */
            load_keys<HD>(a, s, kv_head, key, false, k);
            load_keys<HD>(a, s, kv_head, key, true, v);
            copies_wait();
            if (HALF) own_to_bf16<HD>(v, v);
            if (HALF && turn) own_to_bf16<HD>(k, k16);
            __syncthreads();
            both_products<HD, HALF, 4>(x, dp, q, dout, 16 * warp, k, v, 0);
            if (turn == 0) {
                float m[2] = {-INFINITY, -INFINITY};

#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint32_t t = key + 8 * j + 2 * c + i % 2;

                        x[j][i] = there[i / 2] && sees(a, pos[i / 2], t) ? score_of<CAP>(a, x[j][i]).s : -INFINITY;
                        m[i / 2] = fmaxf(m[i / 2], x[j][i]);
                    }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float old = most[h];

                    most[h] = fmaxf(old, row_max(m[h]));
                    m[h] = most[h] == -INFINITY ? 0 : most[h]; /* none is seen yet */
                    const float f = __expf(old - m[h]);

                    sum[h] *= f;
                    weighted[h] *= f;
                }
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float p = __expf(x[j][i] - m[i / 2]);

                        sum[i / 2] += p;
                        weighted[i / 2] = fmaf(p, dp[j][i], weighted[i / 2]);
                    }
                continue;
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t t = key + 8 * j + 2 * c + i % 2;
                    const struct score z = score_of<CAP>(a, x[j][i]);
                    const float p = there[i / 2] && sees(a, pos[i / 2], t) ? __expf(z.s - most[i / 2]) : 0.0f;

                    x[j][i] = p * (dp[j][i] - weighted[i / 2]) * z.slope;
                }
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                uint32_t ds[4];

                as_a(ds, x[2 * kk], x[2 * kk + 1]);
#pragma unroll
                for (int d = 0; d < HD / 16; d++) {
                    uint32_t b[4];

                    load_b_turned(b, k16, P, 16 * d, 16 * kk);
                    mma_bf16(dq[2 * d], ds, b[0], b[1]);
                    mma_bf16(dq[2 * d + 1], ds, b[2], b[3]);
                }
            }
        }
        if (turn == 0)
#pragma unroll
            for (int h = 0; h < 2; h++) { /* from here on most is the log of the sum, weighted the mean */
                sum[h] = row_sum(sum[h]);
                weighted[h] = row_sum(weighted[h]);
                weighted[h] = there[h] ? weighted[h] / sum[h] : 0;
                most[h] = there[h] ? most[h] + __logf(sum[h]) : INFINITY;
                if (there[h] && c == 0)
                    *(float2 *)&a.stats[2 * ((row0 + 16 * warp + g + 8 * h) * a.n_heads + head)] =
                        make_float2(most[h], weighted[h]);
            }
    }
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (there[h])
                *(float2 *)&a.dq[(row0 + 16 * warp + g + 8 * h) * a.q_stride + head * HD + 8 * d + 2 * c] =
                    make_float2(dq[d][2 * h], dq[d][2 * h + 1]);
}

template <int HD, bool HALF, bool CAP>
static __global__ void __launch_bounds__(THREADS) keys_tiles(struct grad_cuda_attention a)
{
    extern __shared__ __align__(16) uint16_t room[];
    constexpr uint32_t P = tiles<HD>::pitch, N = tiles<HD>::numbers;
    uint16_t *const k = room, *const v = k + N, *const q = v + N, *const dout = q + N, *const q16 = HALF ? dout + N : q;
    float *const log_sums = (float *)(room + 5 * N), *const means = log_sums + TILE;
    uint32_t *const positions = (uint32_t *)(means + TILE);
    const struct grad_cuda_tile tile = a.key_tiles[blockIdx.x];
    const struct grad_cuda_sequence s = a.sequences[tile.sequence];
    const uint32_t kv_head = blockIdx.y, group = a.n_heads / a.n_kv_heads;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    float dk[HD / 8][4] = {}, dv[HD / 8][4] = {};

    load_keys<HD>(a, s, kv_head, tile.first, false, k);
    load_keys<HD>(a, s, kv_head, tile.first, true, v);
    copies_wait();
    if (HALF) own_to_bf16<HD>(v, v);
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint32_t first = 0; first < s.n_q; first += TILE) {
            const uint64_t row0 = (uint64_t)s.q_row0 + first;
            const uint32_t n = min(TILE, s.n_q - first);

            if (a.positions[row0 + n - 1] < tile.first) continue;
            if (a.window && a.positions[row0] >= tile.first + TILE - 1 + a.window) break;
            __syncthreads();
            load_queries<HD>(a, row0, n, head, q);
            load_dout<HD>(a, row0, n, head, dout);
            if (threadIdx.x < TILE) {
                const bool there = threadIdx.x < n;
                const uint64_t at = 2 * ((row0 + threadIdx.x) * a.n_heads + head);

                log_sums[threadIdx.x] = there ? a.stats[at] : INFINITY;
                means[threadIdx.x] = there ? a.stats[at + 1] : 0;
                positions[threadIdx.x] = there ? a.positions[row0 + threadIdx.x] : 0;
            }
            copies_wait();
            if (HALF) own_to_bf16<HD>(q, q16);
            __syncthreads();
#pragma unroll
            for (uint32_t half = 0; half < TILE; half += 32) {
                float x[4][4], dp[4][4];

                both_products<HD, HALF, 2>(x, dp, k, v, 16 * warp, q, dout, half);
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint32_t t = tile.first + 16 * warp + g + i / 2 * 8, r = half + 8 * j + 2 * c + i % 2;
                        const struct score z = score_of<CAP>(a, x[j][i]);
                        const float p = sees(a, positions[r], t) ? __expf(z.s - log_sums[r]) : 0.0f;

                        x[j][i] = p;
                        dp[j][i] = p * (dp[j][i] - means[r]) * z.slope;
                    }
#pragma unroll
                for (int kk = 0; kk < 2; kk++) {
                    uint32_t p[4], ds[4];

                    as_a(p, x[2 * kk], x[2 * kk + 1]);
                    as_a(ds, dp[2 * kk], dp[2 * kk + 1]);
#pragma unroll
                    for (int d = 0; d < HD / 16; d++) {
                        uint32_t b[4];

                        load_b_turned(b, dout, P, 16 * d, half + 16 * kk);
                        mma_bf16(dv[2 * d], p, b[0], b[1]);
                        mma_bf16(dv[2 * d + 1], p, b[2], b[3]);
                        load_b_turned(b, q16, P, 16 * d, half + 16 * kk);
                        mma_bf16(dk[2 * d], ds, b[0], b[1]);
                        mma_bf16(dk[2 * d + 1], ds, b[2], b[3]);
                    }
                }
            }
        }
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t t = tile.first + 16 * warp + g + 8 * h;
            const uint64_t at = ((uint64_t)(s.key_row0 + t) * a.n_kv_heads + kv_head) * HD + 8 * d + 2 * c;

            if (t >= s.n_keys) continue;
            *(float2 *)&a.dk[at] = make_float2(dk[d][2 * h], dk[d][2 * h + 1]);
            *(float2 *)&a.dv[at] = make_float2(dv[d][2 * h], dv[d][2 * h + 1]);
        }
}

/* ---- launching ---- */

template <int HD, bool HALF, bool CAP>
static int launch_tiles(const struct cuda_launch *l, const struct grad_cuda_attention *a)
{
    cudaError_t e = allow_once<rows_tiles<HD, HALF, CAP>>(tiles<HD>::bytes);

    if (e == cudaSuccess) e = allow_once<keys_tiles<HD, HALF, CAP>>(tiles<HD>::bytes);
    if (e != cudaSuccess) return (int)e;
    rows_tiles<HD, HALF, CAP><<<dim3(a->n_q_tiles, a->n_heads), THREADS, tiles<HD>::bytes, stream_of(l)>>>(*a);
    keys_tiles<HD, HALF, CAP><<<dim3(a->n_key_tiles, a->n_kv_heads), THREADS, tiles<HD>::bytes, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}

template <int HD, bool HALF> static int launch_capped(const struct cuda_launch *l, const struct grad_cuda_attention *a)
{
    return a->softcap > 0 ? launch_tiles<HD, HALF, true>(l, a) : launch_tiles<HD, HALF, false>(l, a);
}

static bool has_tiles(const struct grad_cuda_attention *a)
{
    return !a->plain && (a->head_dim == 64 || a->head_dim == 128) && a->kv.dtype_k == a->kv.dtype_v &&
           a->q_type == a->kv.dtype_k && a->q_type != DTYPE_F32 && a->q_stride % 8 == 0 && a->out_stride % 4 == 0;
}

int grad_cuda_attention(const struct cuda_launch *l, const struct grad_cuda_attention *a)
{
    if (has_tiles(a)) {
        const bool half = a->q_type == DTYPE_F16;

        if (a->head_dim == 64) return half ? launch_capped<64, true>(l, a) : launch_capped<64, false>(l, a);
        return half ? launch_capped<128, true>(l, a) : launch_capped<128, false>(l, a);
    }
    if (a->head_dim > MAX_HEAD_DIM) return (int)cudaErrorNotSupported;
    rows_plain<<<dim3(a->n_rows, a->n_heads), THREADS, 0, stream_of(l)>>>(*a);
    keys_plain<<<dim3(a->max_keys, a->n_kv_heads, a->n_sequences), THREADS, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}
