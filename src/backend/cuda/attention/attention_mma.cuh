/* backend/cuda/attention/attention_mma.cuh - the arithmetic of paged attention on tensor cores, shared by decode and prefill so
 * that a row's bits are the same in both.
 *
 * ORDER OF THE SUMS for one query row and head. Keys are cut into segments of 128 at absolute positions. In a segment:
 *   score  q . k: one chain of mma over head_dim in steps of 16, f32; then * scale * log2(e) (or the soft cap)
 *   m      the largest visible score (a maximum has no order);  p = 2^(score - m), rounded to the KV's type
 *   l, o   sum of p and of p * v: one chain of mma over the segment's keys in steps of 16 (l: against a column of ones)
 * Segments are merged left to right: M = max(m, m'), o = o * 2^(m - M) + o' * 2^(m' - M), l likewise. A segment without
 * a visible key changes nothing, so which of them a kernel visits is free; so are tiles, warps and splits.
 * Queries are rounded to the KV's type (f16 or bf16).  Source: online softmax, arXiv:2307.08691, arXiv:1805.02867.
 *
 * Query rows of one run and kv head are packed: packed row r is token r / group, query head kv_head * group + r %
 * group. Tiles in shared memory: rows of HD two-byte numbers, 16-byte chunk c of row r at place c ^ (r % 8).
 */
#pragma once
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"

enum { SEGMENT = 128 };

template <typename T> struct mma_type;
template <> struct mma_type<__half> {
    static constexpr uint32_t ones = 0x3C003C00u;
    static __device__ __forceinline__ uint32_t pack(float a, float b)
    {
        __half2 v = __floats2half2_rn(a, b);
        return *(uint32_t *)&v;
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
                     " {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
template <> struct mma_type<__nv_bfloat16> {
    static constexpr uint32_t ones = 0x3F803F80u;
    static __device__ __forceinline__ uint32_t pack(float a, float b)
    {
        __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
        return *(uint32_t *)&v;
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
                     " {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

static __device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void ldmatrix4_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* 16 bytes to shared memory; zeros if !there. */
static __device__ __forceinline__ void async_copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Address of 16-byte chunk c of row r in a tile with `bytes` a row. */
static __device__ __forceinline__ uint32_t tile_at(uint32_t tile, uint32_t bytes, uint32_t r, uint32_t c)
{
    return tile + r * bytes + ((c ^ (r & 7)) << 4);
}

/* Of a tile of SEGMENT rows of HD numbers: as above, or (BANDS) in bands of 64 numbers, each [row][128 bytes] with
 * chunk c of row r at place c ^ (r % 8), as the copy engine and wgmma have them. */
template <int HD, bool BANDS>
static __device__ __forceinline__ uint32_t kv_tile_at(uint32_t tile, uint32_t r, uint32_t c)
{
    return BANDS ? tile + (c / 8) * SEGMENT * 128 + r * 128 + (((c ^ r) & 7) << 4) : tile_at(tile, HD * 2, r, c);
}

struct score_scale {
    float c, cap, inner;
}; /* scores become c * s, or cap * tanh(inner * s); all in base 2 */
static __device__ __forceinline__ struct score_scale score_scale_of(float scale, float softcap)
{
    const float log2e = 1.44269504f;
    struct score_scale s = {scale * log2e, 0, 0};

    if (softcap > 0) s.cap = softcap * log2e, s.inner = scale / softcap;
    return s;
}

/* Scores of a warp's 16 rows with keys first_key .. first_key + 8 N - 1 of a K tile. q: tile of the 16 rows. */
template <typename T, int HD, int N>
static __device__ __forceinline__ void score_tile(float (&s)[N][4], uint32_t q, uint32_t k, uint32_t first_key)
{
    const uint32_t lane = threadIdx.x % 32, mi = lane / 8;

#pragma unroll
    for (int n = 0; n < N; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < HD / 16; step++) {
        uint32_t a[4];

        ldmatrix4(a, tile_at(q, HD * 2, (mi & 1) * 8 + lane % 8, step * 2 + (mi >> 1)));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];

            ldmatrix4(b, tile_at(k, HD * 2, first_key + n * 8 + (mi >> 1) * 8 + lane % 8, step * 2 + (mi & 1)));
            mma_type<T>::mma(s[n], a, b[0], b[1]);
            mma_type<T>::mma(s[n + 1], a, b[2], b[3]);
        }
    }
}

/* Which keys rows lane / 4 (i = 0) and lane / 4 + 8 (i = 1) see: first[i] .. last[i], absolute. */
struct row_window {
    uint32_t first[2], last[2];
};

/* Scores -> base 2 scores, -inf where not visible. MASK = false: all are visible. */
template <bool CAP, bool MASK, int N>
static __device__ __forceinline__ void scale_scores(float (&s)[N][4], const struct score_scale &scale,
                                                    const struct row_window &w, uint32_t base)
{
    const uint32_t col = base + threadIdx.x % 4 * 2;

#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t t = col + n * 8 + i % 2;
            const float v =
                CAP ? __fmul_rn(scale.cap, tanhf(__fmul_rn(s[n][i], scale.inner))) : __fmul_rn(s[n][i], scale.c);

            s[n][i] = !MASK || (t >= w.first[i / 2] && t <= w.last[i / 2]) ? v : -INFINITY;
        }
}

/* The same by what is needed, for keys base ..; max[i] over this thread's row i. */
template <int N>
static __device__ __forceinline__ void scale_and_mask(float (&s)[N][4], float (&max)[2],
                                                      const struct score_scale &scale, const struct row_window &w,
                                                      uint32_t base)
{
    const uint32_t end = base + N * 8 - 1;
    const bool visible = base >= w.first[0] && base >= w.first[1] && end <= w.last[0] && end <= w.last[1];

    if (scale.cap > 0)
        scale_scores<true, true>(s, scale, w, base);
    else if (__all_sync(0xffffffffu, visible))
        scale_scores<false, false>(s, scale, w, base);
    else
        scale_scores<false, true>(s, scale, w, base);
    max[0] = max[1] = -INFINITY;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) max[i / 2] = fmaxf(max[i / 2], s[n][i]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        max[i] = fmaxf(max[i], __shfl_xor_sync(0xffffffffu, max[i], 1));
        max[i] = fmaxf(max[i], __shfl_xor_sync(0xffffffffu, max[i], 2));
    }
}

/* p of a pair of key tiles as the A operand of one step of 16 keys. m: the segment's maximum, 0 where there is none. */
template <typename T>
static __device__ __forceinline__ void probabilities(uint32_t (&p)[4], const float (&s0)[4], const float (&s1)[4],
                                                     const float (&m)[2])
{
    p[0] = mma_type<T>::pack(exp2_fast(s0[0] - m[0]), exp2_fast(s0[1] - m[0]));
    p[1] = mma_type<T>::pack(exp2_fast(s0[2] - m[1]), exp2_fast(s0[3] - m[1]));
    p[2] = mma_type<T>::pack(exp2_fast(s1[0] - m[0]), exp2_fast(s1[1] - m[0]));
    p[3] = mma_type<T>::pack(exp2_fast(s1[2] - m[1]), exp2_fast(s1[3] - m[1]));
}

/* The running state of rows lane / 4 and lane / 4 + 8, and how a segment enters it. */
struct row_state {
    float m[2], l[2];
};
struct merge_factors {
    float old[2], add[2];
};
static __device__ __forceinline__ struct merge_factors merge_begin(struct row_state *r, const float (&m)[2])
{
    struct merge_factors f;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float top = fmaxf(r->m[i], m[i]), ref = top == -INFINITY ? 0.0f : top;

        f.old[i] = exp2_fast(r->m[i] - ref);
        f.add[i] = exp2_fast(m[i] - ref);
        r->m[i] = top;
    }
    return f;
}
static __device__ __forceinline__ float merge_value(float old, float add, float f_old, float f_add)
{
    return fmaf(add, f_add, __fmul_rn(old, f_old));
}

/* o (dims first_chunk * 8 .. + 8 N - 1) merged with p v; v: tile of SEGMENT rows. */
template <typename T, int HD, int N>
static __device__ __forceinline__ void value_tile(float (&o)[N][4], const uint32_t (&p)[SEGMENT / 16][4], uint32_t v,
                                                  uint32_t first_chunk, const struct merge_factors &f)
{
    const uint32_t lane = threadIdx.x % 32, mi = lane / 8;
    float acc[N][4];

#pragma unroll
    for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < SEGMENT / 16; step++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];

            ldmatrix4_trans(b, tile_at(v, HD * 2, step * 16 + (mi & 1) * 8 + lane % 8, first_chunk + n + (mi >> 1)));
            mma_type<T>::mma(acc[n], p[step], b[0], b[1]);
            mma_type<T>::mma(acc[n + 1], p[step], b[2], b[3]);
        }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[n][i] = merge_value(o[n][i], acc[n][i], f.old[i / 2], f.add[i / 2]);
}

/* The sum of a segment's p for the thread's two rows. */
template <typename T>
static __device__ __forceinline__ void sum_probabilities(float (&l)[2], const uint32_t (&p)[SEGMENT / 16][4])
{
    float acc[4] = {0, 0, 0, 0};

#pragma unroll
    for (int step = 0; step < SEGMENT / 16; step++)
        mma_type<T>::mma(acc, p[step], mma_type<T>::ones, mma_type<T>::ones);
    l[0] = acc[0], l[1] = acc[2];
}

/* Where the keys (or values) of one layer and head lie. */
struct kv_source {
    const uint8_t *base; /* + page * page_bytes + (t % page_tokens) * row_bytes */
    const uint32_t *table;
    uint64_t page_bytes;
    uint32_t row_bytes, page_shift, n_keys;
};
static __device__ __forceinline__ struct kv_source kv_source_of(const struct cuda_kv &kv, const uint32_t *table,
                                                                uint32_t kv_head, uint32_t n_keys, bool values)
{
    const uint32_t row = values ? kv.v_row_bytes : kv.k_row_bytes;
    struct kv_source s = {kv.base + (values ? kv.v_offset : kv.k_offset) + (uint64_t)kv_head * kv.page_tokens * row,
                          table,
                          kv.page_bytes,
                          row,
                          31u - (uint32_t)__clz((int)kv.page_tokens),
                          n_keys};
    return s;
}

/* Rows first .. first + SEGMENT - 1 to a tile, by all threads; rows past n_keys become zeros, row skip is left. */
template <int HD, int THREADS>
static __device__ __forceinline__ void load_segment(uint32_t tile, const struct kv_source &s, uint32_t first,
                                                    uint32_t skip = ~0u)
{
    constexpr uint32_t chunks = HD / 8, rows = THREADS / chunks;
    const uint32_t c = threadIdx.x % chunks;

    static_assert(THREADS % chunks == 0, "whole rows");
#pragma unroll
    for (uint32_t i = 0; i < (SEGMENT + rows - 1) / rows; i++) {
        const uint32_t r = threadIdx.x / chunks + i * rows, t = first + r;
        if (SEGMENT % rows && r >= SEGMENT) break;
        if (t == skip) continue;
        const bool there = t < s.n_keys;
        const uint32_t page = there ? s.table[t >> s.page_shift] : 0, slot = t & ((1u << s.page_shift) - 1);
        const uint8_t *from = there ? s.base + page * s.page_bytes + (uint64_t)slot * s.row_bytes + c * 16 : s.base;

        async_copy16(tile_at(tile, HD * 2, r, c), from, there);
    }
}

/* ROWS packed query rows from packed row first_row on -> tile, in type T; rows past n_packed become zeros. */
template <typename T, int HD, int THREADS, int ROWS>
static __device__ __forceinline__ void load_queries(uint32_t tile, const struct cuda_attention_args &a,
                                                    const struct cuda_run &run, uint32_t kv_head, uint32_t first_row)
{
    const uint32_t group = a.n_heads / a.n_kv_heads, n_packed = run.n_rows * group;

    for (uint32_t i = threadIdx.x; i < ROWS * HD / 2; i += THREADS) {
        const uint32_t r = i / (HD / 2), d = i % (HD / 2) * 2, packed = first_row + r;
        uint32_t v = 0;

        if (packed < n_packed) {
            const uint32_t head = kv_head * group + packed % group;
            const float *q = a.q + (uint64_t)(run.row0 + packed / group) * a.q_stride + (uint64_t)head * HD + d;

            v = mma_type<T>::pack(q[0], q[1]);
        }
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile_at(tile, HD * 2, r, d / 8) + d % 8 * 2), "r"(v) : "memory");
    }
}

/* Which run and tile the block has; false: none. Tiles are counted over the runs of more than 16 packed rows,
 * and those that see both ways. */
static __device__ bool find_tile(const struct cuda_attention_args &a, uint32_t rows, uint32_t tile, uint32_t *run,
                                 uint32_t *first_row)
{
    const uint32_t group = a.n_heads / a.n_kv_heads, lane = threadIdx.x % 32;
    uint32_t before = 0;

    for (uint32_t base = 0; base < a.n_runs; base += 32) {
        const uint32_t i = base + lane, packed = i < a.n_runs ? a.runs[i].n_rows * group : 0;
        const uint32_t mine =
            packed > DECODE_ROWS || (i < a.n_runs && a.runs[i].both_to) ? (packed + rows - 1) / rows : 0;
        uint32_t sum = mine;

        for (uint32_t d = 1; d < 32; d *= 2) {
            const uint32_t v = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += v;
        }
        const uint32_t found = __ballot_sync(0xffffffffu, before + sum > tile);
        if (found) {
            const uint32_t at = (uint32_t)__ffs((int)found) - 1;
            const uint32_t n = __shfl_sync(0xffffffffu, mine, at), end = __shfl_sync(0xffffffffu, sum, at) + before;

            *run = base + at;
            *first_row = (n - 1 - (tile - (end - n))) * rows; /* the last tile first */
            return true;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}

/* The keys that rows of the tokens first .. last of a run see end here at the latest; all of a run: n_keys_of. */
static __device__ __forceinline__ uint32_t end_of_keys(const struct cuda_run &run, uint32_t first, uint32_t last)
{
    const uint32_t end = run.pos0 + last + 1;

    return run.pos0 + first < run.both_to && end > run.both_from ? max(end, run.both_to) : end;
}
static __device__ __forceinline__ uint32_t n_keys_of(const struct cuda_run &run)
{
    return max(run.pos0 + run.n_rows, run.both_to);
}

/* What packed rows see: i = 0, 1 are rows first_row + lane / 4 and + 8. */
static __device__ __forceinline__ struct row_window row_window_of(const struct cuda_attention_args &a,
                                                                  const struct cuda_run &run, uint32_t first_row)
{
    const uint32_t group = a.n_heads / a.n_kv_heads;
    struct row_window w;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t token = min((first_row + threadIdx.x % 32 / 4 + 8 * i) / group, run.n_rows - 1);

        w.last[i] = run.pos0 + token;
        w.first[i] = a.window && w.last[i] + 1 > a.window ? w.last[i] + 1 - a.window : 0;
        if (w.last[i] >= run.both_from && w.last[i] < run.both_to) w.last[i] = run.both_to - 1;
    }
    return w;
}

/* One output: dim d of a packed row. COPIES: to out16 and its copies alone. */
template <bool COPIES = false>
static __device__ __forceinline__ void write_one(const struct cuda_attention_args &a, const struct cuda_run &run,
                                                 uint32_t kv_head, uint32_t packed, uint32_t d, float x)
{
    const uint32_t group = a.n_heads / a.n_kv_heads;
    const uint64_t at = (uint64_t)(run.row0 + packed / group) * a.out_stride +
                        (uint64_t)(kv_head * group + packed % group) * a.head_dim + d;

    if (COPIES) {
        a.out16[at] = float_bf16(x);
        for (uint32_t p = 0; p < a.copies.n; p++) ((uint16_t *)a.copies.to[p])[at] = float_bf16(x);
        return;
    }
    if (a.out) a.out[at] = x;
    if (a.out16) a.out16[at] = float_bf16(x);
}

/* One output pair: dims d, d + 1 of a packed row. COPIES: four bytes at once, where out16 is aligned. */
template <bool COPIES = false>
static __device__ __forceinline__ void write_pair(const struct cuda_attention_args &a, const struct cuda_run &run,
                                                  uint32_t kv_head, uint32_t packed, uint32_t d, float x, float y)
{
    const uint32_t group = a.n_heads / a.n_kv_heads;
    const uint64_t at = (uint64_t)(run.row0 + packed / group) * a.out_stride +
                        (uint64_t)(kv_head * group + packed % group) * a.head_dim + d;

    if (packed >= run.n_rows * group) return;
    if (COPIES) {
        const uint32_t v = float_bf16(x) | (uint32_t)float_bf16(y) << 16;

        *(uint32_t *)(a.out16 + at) = v;
        for (uint32_t p = 0; p < a.copies.n; p++) *(uint32_t *)((uint16_t *)a.copies.to[p] + at) = v;
        return;
    }
    if (a.out) a.out[at] = x, a.out[at + 1] = y;
    if (a.out16) a.out16[at] = float_bf16(x), a.out16[at + 1] = float_bf16(y);
}
