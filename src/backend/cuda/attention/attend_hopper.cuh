/* backend/cuda/attention/attend_hopper.cuh - attention of encoders on sm_90: heads of 64, 80 or 128 dims, both ways, in groups.
 *
 * A block of the grid goes through tiles of GROUPS * 64 rows of one group and head until none is left. A thread of its own
 * feeds queries, and keys and values into rings of STAGES segments of KEYS, by bulk copies. A warpgroup has 64 rows: while it
 * computes exponentials the others' products run, as long as power and clock let them. (Products of the segment before during
 * the exponentials, too: registers leave room for two warpgroups then, or for segments of 96, neither of them faster; a part of
 * the exponentials by polynomials is slower.) What is packed, and where: attend_places.cuh.
 *
 * ORDER OF THE SUMS of a row: scores by a chain of wgmma over the dims in steps of 16. M stays what it was, unless the
 * segment's largest score is more than 2^8 times as probable: then it is that, and o and l are multiplied by 2^(m - M).
 * p = 2^(score - M) rounded to bf16; o = o + p v, a chain of wgmma over the keys, and l likewise, as v has a column of ones.
 * Nothing of it depends on the tile, nor on another row. KEYS depends on the groups alone.
 *
 * Bound: arithmetic, exponentials nearly as much as products.
 * Source: online softmax, arXiv:2307.08691; the overlap, arXiv:2407.08608, section 3.
 */
#pragma once
#include "backend/cuda/attend_places.cuh"
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/wgmma_attend.cuh"

static __device__ __forceinline__ uint32_t group_begin(const struct cuda_attend_args &a, uint32_t group)
{
    return group ? a.group_ends[group - 1] : 0;
}

template <int D>
static __device__ __forceinline__ uint8_t *packed_block(const struct cuda_attend_args &a, uint32_t some, uint64_t block)
{
    return a.packed + (some * (uint64_t)a.n_blocks + block) * (3 * part_bytes<D>());
}

/* ---- the kernel's shared memory and barriers ---- */

template <int D, int GROUPS, int KEYS> struct attend_smem {
    static constexpr uint32_t sums = D + 8; /* of a row: values, l, and seven of zeros */
    static constexpr uint32_t queries = GROUPS * part_bytes<D>(), segment = KEYS * D * 2, value_bytes = KEYS * sums * 2;
    static constexpr uint32_t room = (SMEM_BLOCK_MAX - 1024 - 256 - queries) / (segment + value_bytes);
    static constexpr uint32_t stages = GROUPS == 1 ? 1 : room < 4 ? room : 4;
    static constexpr uint32_t keys = queries, values = keys + stages * segment, bars = values + stages * value_bytes;
    static constexpr uint32_t bytes = bars + 256 + 1024; /* room to align */
};

/* Addresses of the barriers: of queries, of keys, of values, each "is there" and "is free". */
template <int STAGES> struct attend_bars {
    uint32_t at;

    __device__ __forceinline__ uint32_t q_full(void) const { return at; }
    __device__ __forceinline__ uint32_t q_free(void) const { return at + 8; }
    __device__ __forceinline__ uint32_t k_full(uint32_t s) const { return at + 16 + 32 * s; }
    __device__ __forceinline__ uint32_t k_free(uint32_t s) const { return at + 24 + 32 * s; }
    __device__ __forceinline__ uint32_t v_full(uint32_t s) const { return at + 32 + 32 * s; }
    __device__ __forceinline__ uint32_t v_free(uint32_t s) const { return at + 40 + 32 * s; }
};

/* A place in a ring, and the parity of its turn. */
template <int STAGES> struct attend_ring {
    uint32_t stage, turn;

    __device__ __forceinline__ void next(void)
    {
        if (++stage == STAGES) stage = 0, turn ^= 1;
    }
};

/* A tile: a head, rows from block `first` of the group's on. */
struct attend_tile {
    uint32_t some, block, n_blocks, first, begin, n_keys;
};

template <int GROUPS>
static __device__ __forceinline__ struct attend_tile attend_tile_of(const struct cuda_attend_args &a, uint32_t i)
{
    const uint32_t per_head = a.group_tiles * (a.last_group - a.first_group + 1), in = i % per_head;
    const uint32_t group = a.first_group + in / a.group_tiles, begin = group_begin(a, group);
    const uint32_t n_keys = a.group_ends[group] - begin, skipped = begin < a.row0 ? (a.row0 - begin) / BLOCK_KEYS : 0;

    return {i / per_head,
            a.group_blocks[group],
            (n_keys + BLOCK_KEYS - 1) / BLOCK_KEYS,
            skipped + in % a.group_tiles * GROUPS,
            begin,
            n_keys};
}

/* Whether the tile has rows to compute. */
static __device__ __forceinline__ bool attend_has_rows(const struct cuda_attend_args &a, const struct attend_tile &t)
{
    return t.first < t.n_blocks && t.begin + t.first * BLOCK_KEYS < a.row0 + a.n_rows;
}

/* ---- the feeding thread ---- */

/* Block `from` of keys to its place of a segment: bands, then what is more. */
template <int D, int KEYS>
static __device__ __forceinline__ void load_keys(uint32_t segment, uint32_t i, const uint8_t *from, uint32_t bar,
                                                 uint64_t policy)
{
#pragma unroll
    for (int band = 0; band < D / 64; band++)
        bulk_load(segment + band * KEYS * 128 + i * BAND_BYTES, from + band * BAND_BYTES, BAND_BYTES, bar, policy);
    if (D % 64)
        bulk_load(segment + D / 64 * KEYS * 128 + i * BLOCK_KEYS * 32, from + D / 64 * BAND_BYTES, BLOCK_KEYS * 32, bar,
                  policy);
}

template <int D, int GROUPS, int KEYS>
static __device__ void attend_feed(const struct cuda_attend_args &a, uint32_t base, uint32_t n_tiles)
{
    using S = attend_smem<D, GROUPS, KEYS>;
    constexpr uint32_t part = part_bytes<D>(), per_segment = KEYS / BLOCK_KEYS;
    const attend_bars<S::stages> bars = {base + S::bars};
    const uint64_t often = policy_evict_last();
    attend_ring<S::stages> r = {0, 1}; /* the first turn's places are free */
    uint32_t q_turn = 1;

    for (uint32_t i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        const struct attend_tile t = attend_tile_of<GROUPS>(a, i);
        const uint8_t *const blocks = packed_block<D>(a, t.some, t.block);

        if (!attend_has_rows(a, t)) continue;
        mbar_wait(bars.q_free(), q_turn);
        q_turn ^= 1;
        mbar_expect(bars.q_full(), S::queries);
        for (uint32_t g = 0; g < GROUPS; g++) /* beyond the last: any rows */
            bulk_load(base + g * part, blocks + (uint64_t)min(t.first + g, t.n_blocks - 1) * (3 * part), part,
                      bars.q_full(), often);
        for (uint32_t block = 0; block < t.n_blocks; block += per_segment) {
            const uint32_t keys = base + S::keys + r.stage * S::segment;
            const uint32_t values = base + S::values + r.stage * S::value_bytes;

            mbar_wait(bars.k_free(r.stage), r.turn);
            mbar_expect(bars.k_full(r.stage), S::segment);
            for (uint32_t j = 0; j < per_segment; j++) { /* beyond the last: masked, but numbers */
                const uint8_t *const from = blocks + (uint64_t)min(block + j, t.n_blocks - 1) * (3 * part);

                load_keys<D, KEYS>(keys, j, from + part, bars.k_full(r.stage), often);
            }
            mbar_wait(bars.v_free(r.stage), r.turn);
            mbar_expect(bars.v_full(r.stage), S::segment);
            for (uint32_t j = 0; j < per_segment; j++)
                bulk_load(values + j * (S::sums * 128),
                          blocks + (uint64_t)min(block + j, t.n_blocks - 1) * (3 * part) + 2 * part, part,
                          bars.v_full(r.stage), often);
            r.next();
        }
    }
}

/* ---- a warpgroup's 64 rows ---- */

/* Sums of products that run are read and written behind this, not before. */
template <int N> static __device__ __forceinline__ void settled(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

/* A tile of rows of 16 two-byte numbers (32 bytes), 32-byte swizzle, K-major. */
static __device__ __forceinline__ uint64_t wgmma_desc_16(uint32_t at)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(256 >> 4) << 32 | (uint64_t)3 << 62;
}

/* A warp's 16 rows of queries, as products have them in registers: from shared memory each segment would read them anew. */
template <int D> static __device__ __forceinline__ void load_queries(uint32_t (&x)[D / 16][4], uint32_t q)
{
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;

#pragma unroll
    for (int step = 0; step < D / 16; step++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[step][0]), "=r"(x[step][1]), "=r"(x[step][2]), "=r"(x[step][3])
                     : "r"(q + row_place<D>(row, step * 16 + lane / 16 * 8))
                     : "memory");
}

/* Whether they fit there beside all else. */
template <int D, int GROUPS> static __device__ __host__ constexpr bool queries_stay(void)
{
    return GROUPS > 1 && D <= 80;
}

/* s = the rows times the segment's keys, begun: queries in x, or at q. */
template <int D, int KEYS, bool IN_X>
static __device__ __forceinline__ void begin_scores(float (&s)[KEYS / 2], const uint32_t (&x)[D / 16][4], uint32_t q,
                                                    uint32_t k)
{
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        const bool in_band = step / 4 < D / 64;
        const uint64_t keys =
            in_band ? wgmma_desc(k + step / 4 * KEYS * 128) + step % 4 * 2 : wgmma_desc_16(k + D / 64 * KEYS * 128);

        if (IN_X)
            wgmma_rs<KEYS>(s, x[step], keys, step > 0);
        else
            wgmma_ss<KEYS>(s,
                           in_band ? wgmma_desc(q + step / 4 * BAND_BYTES) + step % 4 * 2
                                   : wgmma_desc_16(q + D / 64 * BAND_BYTES),
                           keys, step > 0);
    }
    wgmma_commit();
}

/* o += p v, begun. */
template <int D, int KEYS>
static __device__ __forceinline__ void begin_values(float (&o)[D / 2 + 4], const uint32_t (&p)[KEYS / 16][4],
                                                    uint32_t v)
{
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
        wgmma_rs<D + 8>(o, p[step], wgmma_desc(v + step / 4 * ((D + 8) * 128)) + step % 4 * 2, 1);
    wgmma_commit();
}

static __device__ __forceinline__ float exp2_unit(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Of scores, to powers of 2; and by how much one may be larger than M. Arguments of the kernel: in no register. */
struct attend_scale {
    float c, slack;
};

struct attend_state {
    float m[2], factor[2]; /* of a thread's two rows */
};

/* Scores to 2^(c s - M) in place; keys from n_keys on are none. state.factor: what sums so far are multiplied by. */
template <int KEYS>
static __device__ __forceinline__ void exponentials(float (&s)[KEYS / 2], struct attend_state &state, float c,
                                                    float slack, int n_keys)
{
    float most[2] = {-INFINITY, -INFINITY}, shift[2];

    if (n_keys < KEYS) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            if (i / 4 * 8 + i % 2 + (int)(threadIdx.x % 4) * 2 >= n_keys) s[i] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
        const bool moves = most[r] > state.m[r] + slack;

        state.factor[r] = moves ? exp2_unit(__fmul_rn(__fsub_rn(state.m[r], most[r]), c)) : 1.0f;
        if (moves) state.m[r] = most[r];
        shift[r] = __fmul_rn(state.m[r], c);
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) s[i] = exp2_unit(fmaf(s[i], c, -shift[i / 2 % 2]));
}

template <int N> static __device__ __forceinline__ void rescale(float (&o)[N], const struct attend_state &state)
{
    if (!__any_sync(0xffffffffu, state.factor[0] != 1.0f || state.factor[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < N; n++) o[n] = __fmul_rn(o[n], state.factor[n / 2 % 2]);
}

template <int KEYS>
static __device__ __forceinline__ void round_all(uint32_t (&p)[KEYS / 16][4], const float (&s)[KEYS / 2])
{
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
        for (int h = 0; h < 4; h++) p[n][h] = two_halves(s[8 * n + 2 * h], s[8 * n + 2 * h + 1]);
}

/* One of a warpgroup's warps says that a place is done with. */
static __device__ __forceinline__ void attend_release(uint32_t bar)
{
    if (threadIdx.x % 32 == 0) mbar_arrive(bar);
}

template <int D>
static __device__ __forceinline__ void attend_write(const struct cuda_attend_args &a, const struct attend_tile &t,
                                                    uint32_t group, const float (&o)[D / 2 + 4])
{
    const uint32_t lane = threadIdx.x % 32, head = a.head0 + t.some;
    const uint32_t row0 = t.begin + (t.first + group) * BLOCK_KEYS + threadIdx.x / 32 % 4 * 16 + lane / 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t row = row0 + 8 * r;
        const float l = __shfl_sync(0xffffffffu, o[D / 2 + 2 * r], lane & ~3u);

        if (row < a.row0 || row >= min(t.begin + t.n_keys, a.row0 + a.n_rows)) continue;
        const uint64_t at = ((uint64_t)(row - a.row0) * a.n_heads + head) * a.head_dim;
        const float one = __fdiv_rn(1.0f, l);
#pragma unroll
        for (int k = 0; k < D / 8; k++) {
            const uint32_t d = 8 * k + lane % 4 * 2;
            const float x = __fmul_rn(o[4 * k + 2 * r], one), y = __fmul_rn(o[4 * k + 2 * r + 1], one);

            if (d >= a.head_dim) continue;
            if (a.out) *(float2 *)(a.out + at + d) = make_float2(x, y);
            *(uint32_t *)(a.out16 + at + d) = two_halves(x, y);
        }
    }
}

template <int D, int GROUPS, int KEYS>
static __device__ __forceinline__ void attend_work(const struct cuda_attend_args &a, const struct attend_scale &scale,
                                                   uint32_t base, uint32_t n_tiles)
{
    using S = attend_smem<D, GROUPS, KEYS>;
    const attend_bars<S::stages> bars = {base + S::bars};
    constexpr bool in_x = queries_stay<D, GROUPS>();
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1; /* as one number of the warp's */
    const uint32_t q = base + group * part_bytes<D>();
    attend_ring<S::stages> at = {0, 0};
    uint32_t q_turn = 0;

    for (uint32_t i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        struct attend_state state = {{-INFINITY, -INFINITY}, {1, 1}};
        float s[KEYS / 2], o[S::sums / 2] = {};
        uint32_t p[KEYS / 16][4], x[D / 16][4];
        int n_keys; /* from the segment on */

        {
            const struct attend_tile t = attend_tile_of<GROUPS>(a, i);

            if (!attend_has_rows(a, t)) continue;
            n_keys = (int)t.n_keys;
        }
        mbar_wait(bars.q_full(), q_turn);
        q_turn ^= 1;
        if (in_x) {
            load_queries<D>(x, q);
            __syncwarp();
            attend_release(bars.q_free());
        }
        for (; n_keys > 0; n_keys -= KEYS) {
            mbar_wait(bars.k_full(at.stage), at.turn);
            wgmma_fence();
            begin_scores<D, KEYS, in_x>(s, x, q, base + S::keys + at.stage * S::segment);
            wgmma_wait<0>();
            settled(s);
            attend_release(bars.k_free(at.stage));
            if (!in_x && n_keys <= KEYS) attend_release(bars.q_free());
            exponentials<KEYS>(s, state, scale.c, scale.slack, n_keys);
            rescale(o, state);
            round_all<KEYS>(p, s);
            mbar_wait(bars.v_full(at.stage), at.turn);
            wgmma_fence();
            begin_values<D, KEYS>(o, p, base + S::values + at.stage * S::value_bytes);
            wgmma_wait<0>();
            settled(o);
            attend_release(bars.v_free(at.stage));
            at.next();
        }
        attend_write<D>(a, attend_tile_of<GROUPS>(a, i), group, o);
    }
}

static __device__ __forceinline__ float4 ones_then_zeros(bool ones)
{
    const float two = ones ? __uint_as_float(0x3F803F80u) : 0.0f;

    return make_float4(two, two, two, two);
}

template <int D, int GROUPS, int KEYS>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    attend_hopper(const __grid_constant__ struct cuda_attend_args a, const __grid_constant__ struct attend_scale scale)
{
#if __CUDA_ARCH__ >= 900
    using S = attend_smem<D, GROUPS, KEYS>;
    extern __shared__ uint8_t raw[];
    const uint32_t base = (smem_u32(raw) + 1023) & ~1023u;
    const uint32_t n_tiles = a.n_some * a.group_tiles * (a.last_group - a.first_group + 1);
    const attend_bars<S::stages> bars = {base + S::bars};

    if (threadIdx.x == 0) {
        mbar_init(bars.q_full(), 1);
        mbar_init(bars.q_free(), GROUPS * 4);
        for (uint32_t s = 0; s < S::stages; s++) {
            mbar_init(bars.k_full(s), 1);
            mbar_init(bars.k_free(s), GROUPS * 4);
            mbar_init(bars.v_full(s), 1);
            mbar_init(bars.v_free(s), GROUPS * 4);
        }
        mbar_init_fence();
    }
    for (uint32_t i = threadIdx.x; i < S::stages * (KEYS / 64) * 64;
         i += (GROUPS + 1) * 128) /* l's columns of values */
        shared_store4(base + S::values + i / 64 * (S::sums * 128) + D * 128 + i % 64 * 16, ones_then_zeros(i % 64 < 8));
    shared_written_fence();
    __syncthreads();
    dependency_wait();
    dependents_launch();
    if (threadIdx.x < 128) {
        if (GROUPS == 3) registers_less<32>();
        if (GROUPS == 2) registers_less<24>();
        if (threadIdx.x == 0) attend_feed<D, GROUPS, KEYS>(a, base, n_tiles);
        __syncwarp();
    } else {
        if (GROUPS == 3) registers_more<160>();
        if (GROUPS == 2) registers_more<240>();
        attend_work<D, GROUPS, KEYS>(a, scale, base, n_tiles);
    }
#endif
}
