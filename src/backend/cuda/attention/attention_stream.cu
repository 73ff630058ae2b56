/* backend/cuda/attention/attention_stream.cu - attention_decode on sm_90 for many segments; order of sums in attention_mma.cuh.
 *
 * As many blocks as fit at once share all segments evenly (attention_shares.cuh). In a block one warp asks the copy
 * engine for keys and values, tile after tile through a ring, whatever run and head they belong to; the other four
 * compute (attention_few.cuh): in a segment each scores 32 of the keys, the probabilities meet in shared memory, then
 * each sums a quarter of the dims over all keys, the first also the probabilities. No sum crosses warps. All packed
 * rows of a run and kv head (at most 8 NB = 8 or 16) are columns of the same products, so that each key and value is
 * read once.
 * Of a pair that shares divide, the block with its first segments leaves m, l, o of those together in scratch, the
 * others those of each segment, and who arrives last merges them in order: the same operations as in one block.
 * Runs that share their first segments with others begin with what attention_prefix made of those.
 * FUSED, runs of one row: as in attention_fresh.cuh; everything older is asked for before dependency_wait.
 * COPIES: outputs go to other devices' memory as well (a rank's, whose join this begins): kernels of their own.
 * CONVERT, quantised pages: the ring has rows as they lie in the pages; the computing warps make each tile of them.
 * What lies behind a run's last key in its pages is never used: scores are masked, values become zeros.
 * The code of a kernel is kept small (NB is a kernel's, not a piece's): 150 KB instead of 98 cost 1 to 6 us where
 * attention_prefix runs in turns with it.
 * Bytes: K and V once. Bound: memory. H200, 8B, 512 keys: 86 % of the read bandwidth for 256 runs, 71 % for 64; Q8_0,
 * whose bound is the converting, 50 % and 35 % (norm, RoPE and KV write included).
 */
#include "backend/cuda/attention/attention_convert.cuh"
#include "backend/cuda/attention/attention_few.cuh"
#include "backend/cuda/attention/attention_fresh.cuh"
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/attention/attention_shares.cuh"
#include "backend/cuda/tensor_map.h"
#include "tensor/dtype.h"

enum { STREAM_THREADS = DECODE_THREADS + 32 };

/* Blocks of HD dims on an SM, and tiles of keys or values in a block's ring. */
template <int HD> struct stream_fit {
    static constexpr uint32_t blocks = HD == 256 ? 1 : HD == 128 ? 2 : 3, stages = HD == 64 ? 4 : 3;
    static constexpr uint32_t part = HD + 4; /* floats of a row in scratch: o, m, l */
};

struct stream_args {
    float *scratch;                   /* [place in the list of segments, rows, stream_fit.part] */
    uint32_t rows;                    /* packed rows that a run can have, at most DECODE_ROWS */
    uint32_t max_places;              /* of scratch; in longer lists no pair is divided */
    uint32_t *counters;               /* [run, kv_head] */
    uint32_t page_rows, k_row, v_row; /* rows of HD numbers in a page; of a page, the first of K and V */
    uint32_t stage_bytes;             /* of the ring */
    struct prefix_parts prefix;
};

/* Where things lie in shared memory; tile: CONVERT's one tile. */
struct stream_places {
    uint32_t stages, tile, q_tile, p_tile;
};

/* Tiles, and who may use them: full: all bytes are there; empty: all computing warps are done. pieces[stage]: set with
 * the first keys of a piece; n_segments 0: there are no more. */
template <int HD> struct ring {
    uint64_t full[stream_fit<HD>::stages], empty[stream_fit<HD>::stages];
    struct piece pieces[stream_fit<HD>::stages];
};

/* m, l, o of a packed row over some segments, in scratch. */
template <int HD>
static __device__ __forceinline__ float *scratch_row(const struct stream_args &s, uint32_t place, uint32_t row)
{
    return s.scratch + ((uint64_t)place * s.rows + row) * stream_fit<HD>::part;
}

/* A divided pair's outputs from its parts in order: the one of its first segments, then those of segments second .. */
template <int HD, bool COPIES>
static __device__ __forceinline__ void merge_parts(const struct cuda_attention_args &a, const struct stream_args &s,
                                                   const struct piece &p, uint32_t second)
{
    const uint32_t n_packed = p.run.n_rows * (a.n_heads / a.n_kv_heads);

    for (uint32_t i = threadIdx.x; i < n_packed * (HD / 4); i += DECODE_THREADS) {
        const uint32_t row = i / (HD / 4), d = i % (HD / 4) * 4;
        const float *part = scratch_row<HD>(s, p.start, row);
        const float2 of = __ldcg((const float2 *)(part + HD));
        float4 o = __ldcg((const float4 *)(part + d));
        struct row_state state = {{of.x, of.x}, {of.y, 0}};

#pragma unroll 16
        for (uint32_t k = second; k < p.n_segments; k++) {
            part = scratch_row<HD>(s, p.start + k, row);
            const float4 v = __ldcg((const float4 *)(part + d));
            const float2 ml = __ldcg((const float2 *)(part + HD));
            const float m[2] = {ml.x, ml.x};
            const struct merge_factors f = merge_begin(&state, m);

            state.l[0] = merge_value(state.l[0], ml.y, f.old[0], f.add[0]);
            o.x = merge_value(o.x, v.x, f.old[0], f.add[0]), o.y = merge_value(o.y, v.y, f.old[0], f.add[0]);
            o.z = merge_value(o.z, v.z, f.old[0], f.add[0]), o.w = merge_value(o.w, v.w, f.old[0], f.add[0]);
        }
        write_pair<COPIES>(a, p.run, p.kv_head, row, d, __fdiv_rn(o.x, state.l[0]), __fdiv_rn(o.y, state.l[0]));
        write_pair<COPIES>(a, p.run, p.kv_head, row, d + 2, __fdiv_rn(o.z, state.l[0]), __fdiv_rn(o.w, state.l[0]));
    }
}

/* A thread's o, and of its rows m and l (those of warp 0), to scratch rows at `to`. */
template <int HD, int NB>
static __device__ __forceinline__ void put_part(float *to, uint32_t n_packed, const float (&o)[HD / 64][4 * NB],
                                                const float (&m)[NB][2], const float (&l)[NB][2])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int g = 0; g < NB; g++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *row = to + few_row(g, i) * stream_fit<HD>::part;

            if (few_row(g, i) >= n_packed) continue;
#pragma unroll
            for (int k = 0; k < HD / 32; k++)
                row[k / 2 * 64 + warp * 16 + lane / 4 + k % 2 * 8] = o[k / 2][4 * g + k % 2 * 2 + i];
            if (warp == 0 && lane < 4) *(float2 *)(row + HD) = make_float2(m[g][i], l[g][i]);
        }
}

/* The copying warp: all tiles of the block's share. */
template <int HD, bool CONVERT>
static __device__ __forceinline__ void copy_share(const struct cuda_attention_args &a, const struct stream_args &s,
                                                  const CUtensorMap *map, const struct segment_list &list,
                                                  struct share *share, uint32_t stages, struct ring<HD> *ring)
{
    constexpr uint32_t STAGES = stream_fit<HD>::stages, bands = CONVERT ? 1 : HD / 64;
    const uint32_t lane = threadIdx.x % 32, tokens = a.kv.page_tokens, shift = 31u - (uint32_t)__clz((int)tokens);
    const uint64_t policy = policy_evict_first();
    const bool pieces = !CONVERT || pages_are_pieces(a.kv);
    struct piece p = {};
    uint32_t tile = 0;

    while (next_piece(a, list, share, &p)) {
        const uint32_t n_keys = p.run.pos0 + p.run.n_rows;

        for (uint32_t i = p.from; i < p.to; i++) {
            const uint32_t base = (p.first_segment + i) * SEGMENT, n = min(n_keys - base, (uint32_t)SEGMENT);
            const uint32_t n_pages = (n + tokens - 1) >> shift, *table = a.tables + p.run.table + (base >> shift);
            const uint32_t page = lane < n_pages * bands ? table[lane / bands] : 0;

            for (uint32_t values = 0; values < 2; values++, tile++) {
                const uint32_t stage = tile % STAGES, bar = smem_u32(&ring->full[stage]);
                const uint32_t page_bytes = tokens * (values ? a.kv.v_row_bytes : a.kv.k_row_bytes);

                if (tile >= STAGES) mbar_wait(smem_u32(&ring->empty[stage]), (tile / STAGES - 1) & 1);
                if (lane == 0) {
                    if (!values && i == p.from) ring->pieces[stage] = p;
                    if (pieces) mbar_expect(bar, n_pages * page_bytes);
                }
                __syncwarp();
                for (uint32_t box = lane; pieces && box < n_pages * bands; box += 32) {
                    const uint32_t at = box == lane ? page : table[box / bands];

                    if constexpr (CONVERT)
                        bulk_load(stages + stage * s.stage_bytes + box * page_bytes,
                                  a.kv.base + at * a.kv.page_bytes + (values ? a.kv.v_offset : a.kv.k_offset) +
                                      (uint64_t)p.kv_head * page_bytes,
                                  page_bytes, bar, policy);
                    else
                        tma_load_2d(
                            stages + stage * s.stage_bytes + box % bands * SEGMENT * 128 + box / bands * tokens * 128,
                            map, bar, (int)(box % bands * 64),
                            (int)(at * s.page_rows + (values ? s.v_row : s.k_row) + p.kv_head * tokens), policy);
                }
                if (CONVERT && !pieces) {
                    warp_copy_raw(stages + stage * s.stage_bytes,
                                  kv_source_of(a.kv, a.tables + p.run.table, p.kv_head, n_keys, values), base);
                    if (lane == 0) mbar_arrive(bar);
                }
            }
        }
    }
    if (tile >= STAGES) mbar_wait(smem_u32(&ring->empty[tile % STAGES]), (tile / STAGES - 1) & 1);
    if (lane == 0) {
        ring->pieces[tile % STAGES].n_segments = 0;
        mbar_arrive(smem_u32(&ring->full[tile % STAGES]));
    }
}

/* Zeros to rows n .. of a tile of values. */
template <int HD> static __device__ __forceinline__ void clear_rows(uint32_t tile, uint32_t n)
{
    for (uint32_t i = n * (HD / 8) + threadIdx.x; i < SEGMENT * (HD / 8); i += DECODE_THREADS)
        asm volatile(
            "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(kv_tile_at<HD, true>(tile, i / (HD / 8), i % (HD / 8))),
            "r"(0)
            : "memory");
}

/* Raw rows of a stage to a tile, which frees the stage. */
template <int HD>
static __device__ __forceinline__ void convert_stage(const struct cuda_attention_args &a, uint32_t tile, uint32_t raw,
                                                     bool values, uint32_t n, uint64_t *empty)
{
    extern __shared__ __align__(1024) uint8_t smem[];

    convert_rows<HD, DECODE_THREADS, true>(tile, smem + (raw - smem_u32(smem)),
                                           values ? a.kv.v_row_bytes : a.kv.k_row_bytes,
                                           values ? a.kv.dtype_v : a.kv.dtype_k, n);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbar_arrive(smem_u32(empty));
}

/* The computing warps' sums of one piece; l is that of warp 0. */
template <int HD, int NB> struct piece_sums {
    float m[NB][2], l[NB][2], o[HD / 64][4 * NB];
};

/* The sums of what a run shares, for a piece that begins with its first segment. */
template <int HD, int NB>
static __device__ __forceinline__ void begin_shared(const struct cuda_attention_args &a, const struct stream_args &sa,
                                                    const struct piece &piece, struct piece_sums<HD, NB> *sums)
{
    const uint32_t group = a.n_heads / a.n_kv_heads, first_dim = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;

#pragma unroll
    for (int g = 0; g < NB; g++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = few_row(g, i), member = piece.shared.member + row / group;

            if (row >= piece.run.n_rows * group) continue;
            const float *part = prefix_part<HD>(a, sa.prefix, member, piece.kv_head * group + row % group);

            sums->m[g][i] = __ldcg(part + HD), sums->l[g][i] = __ldcg(part + HD + 1);
#pragma unroll
            for (int k = 0; k < HD / 32; k++)
                sums->o[k / 2][4 * g + k % 2 * 2 + i] = __ldcg(part + first_dim + k / 2 * 64 + k % 2 * 8);
        }
}

/* A segment's m, l, o enter the sums. */
template <int HD, int NB>
static __device__ __forceinline__ void merge_segment(struct piece_sums<HD, NB> *sums, const float (&m)[NB][2],
                                                     const float (&l)[NB][2], const float (&o)[HD / 64][4 * NB])
{
#pragma unroll
    for (int g = 0; g < NB; g++) {
        struct row_state state = {{sums->m[g][0], sums->m[g][1]}, {}};
        const struct merge_factors f = merge_begin(&state, m[g]);

#pragma unroll
        for (int i = 0; i < 2; i++) {
            sums->m[g][i] = state.m[i];
            sums->l[g][i] = merge_value(sums->l[g][i], l[g][i], f.old[i], f.add[i]);
        }
#pragma unroll
        for (int t = 0; t < HD / 64; t++)
#pragma unroll
            for (int e = 4 * g; e < 4 * g + 4; e++)
                sums->o[t][e] = merge_value(sums->o[t][e], o[t][e], f.old[e % 2], f.add[e % 2]);
    }
}

/* All segments of a piece; *tile counts the ring's. */
template <typename T, int HD, bool FUSED, bool CONVERT, int NB>
static __device__ __forceinline__ void
sum_piece(const struct cuda_attention_args &a, const struct stream_args &sa, const struct piece &piece,
          const struct stream_places &at, struct ring<HD> *ring, uint32_t *tile, const uint32_t (&q)[NB][HD / 8],
          const uint16_t (*fresh)[FUSED ? HD : 1], struct piece_sums<HD, NB> *sums)
{
    __shared__ float4 warp_max[DECODE_ROWS];
    constexpr uint32_t STAGES = stream_fit<HD>::stages;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_keys = piece.run.pos0 + piece.run.n_rows;
    const struct few_window<NB> window = few_window_of<NB>(a, piece.run);
    const struct score_scale scale = score_scale_of(a.scale, a.softcap);

    for (uint32_t i = piece.from; i < piece.to; i++, *tile += 2) {
        const uint32_t base = (piece.first_segment + i) * SEGMENT, k_stage = *tile % STAGES;
        const uint32_t v_stage = (*tile + 1) % STAGES, k_raw = at.stages + k_stage * sa.stage_bytes;
        const uint32_t v_raw = at.stages + v_stage * sa.stage_bytes;
        const uint32_t k_tile = CONVERT ? at.tile : k_raw, v_tile = CONVERT ? at.tile : v_raw;
        const bool last = i + 1 == piece.n_segments;
        float s[FEW_TILES][4 * NB], o[HD / 64][4 * NB], m[NB][2], l[NB][2] = {};

        mbar_wait(smem_u32(&ring->full[k_stage]), *tile / STAGES & 1);
        if constexpr (FUSED)
            if (last) {
                place_fresh<HD, true>(fresh[0], k_tile, piece.run.pos0 - base);
                shared_written_fence();
            }
        if (CONVERT || (FUSED && last)) named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
        if constexpr (CONVERT) { /* all warps are done with the values before */
            convert_stage<HD>(a, k_tile, k_raw, false, n_keys - base, &ring->empty[k_stage]);
            named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
        }
        few_scores<T, HD, NB>(s, q, k_tile);
        __syncwarp();
        if (!CONVERT && lane == 0) mbar_arrive(smem_u32(&ring->empty[k_stage]));
        few_scale<NB>(s, m, scale, window, base);
#pragma unroll
        for (int j = 0; j < 2 * NB; j++)
            if (lane < 4) ((float *)&warp_max[few_row(j / 2, j % 2)])[warp] = m[j / 2][j % 2];
        named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
#pragma unroll
        for (int j = 0; j < 2 * NB; j++) {
            const float4 max = warp_max[few_row(j / 2, j % 2)];

            m[j / 2][j % 2] = fmaxf(fmaxf(max.x, max.y), fmaxf(max.z, max.w));
        }
        few_put_probabilities<T, NB>(at.p_tile, s, m);
        mbar_wait(smem_u32(&ring->full[v_stage]), (*tile + 1) / STAGES & 1);
        if constexpr (CONVERT) {
            convert_stage<HD>(a, v_tile, v_raw, true, n_keys - base, &ring->empty[v_stage]);
        } else if (last) {
            if constexpr (FUSED) place_fresh<HD, true>(fresh[1], v_tile, piece.run.pos0 - base);
            clear_rows<HD>(v_tile, n_keys - base);
            shared_written_fence();
        }
        named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
        few_values<T, HD, NB>(o, at.p_tile, v_tile);
        if (warp == 0) few_sums<T, NB>(l, at.p_tile);
        __syncwarp();
        if (!CONVERT && lane == 0) mbar_arrive(smem_u32(&ring->empty[v_stage]));
        if (piece.from == 0)
            merge_segment<HD, NB>(sums, m, l, o);
        else
            put_part<HD, NB>(scratch_row<HD>(sa, piece.start + i, 0), piece.run.n_rows * (a.n_heads / a.n_kv_heads), o,
                             m, l);
    }
}

/* A piece's outputs; of a divided pair its part, and the outputs if it is the last. */
template <int HD, int NB, bool COPIES>
static __device__ __forceinline__ void finish_piece(const struct cuda_attention_args &a, const struct stream_args &sa,
                                                    const struct piece &piece, const struct cut &cut,
                                                    const struct piece_sums<HD, NB> &sums)
{
    __shared__ float row_sums[DECODE_ROWS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, end = piece.start + piece.n_segments;
    const uint32_t group = a.n_heads / a.n_kv_heads, n_packed = piece.run.n_rows * group;

    if (piece.from == 0 && piece.to == piece.n_segments) {
        if (threadIdx.x < 4)
#pragma unroll
            for (int j = 0; j < 2 * NB; j++) row_sums[few_row(j / 2, j % 2)] = sums.l[j / 2][j % 2];
        named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
#pragma unroll
        for (int j = 0; j < 2 * NB; j++) {
            const uint32_t row = few_row(j / 2, j % 2);
            const float sum = row_sums[row];

            if (row >= n_packed) continue;
#pragma unroll
            for (int k = 0; k < HD / 32; k++)
                write_one<COPIES>(a, piece.run, piece.kv_head, row, k / 2 * 64 + warp * 16 + lane / 4 + k % 2 * 8,
                                  __fdiv_rn(sums.o[k / 2][j / 2 * 4 + k % 2 * 2 + j % 2], sum));
        }
        return;
    }
    if (piece.from == 0) put_part<HD, NB>(scratch_row<HD>(sa, piece.start, 0), n_packed, sums.o, sums.m, sums.l);
    const uint32_t first = share_owner(cut, piece.start), last = share_owner(cut, end - 1);

    if (is_last_part(&sa.counters[piece.run_id * a.n_kv_heads + piece.kv_head], last - first + 1))
        merge_parts<HD, COPIES>(a, sa, piece, share_begin(cut, first + 1) - piece.start);
}

template <typename T, int HD, bool FUSED, bool CONVERT, int NB, bool COPIES>
__global__ void __launch_bounds__(STREAM_THREADS, stream_fit<HD>::blocks)
    attention_stream(const __grid_constant__ struct cuda_attention_args a,
                     const __grid_constant__ struct stream_args sa, const __grid_constant__ CUtensorMap map,
                     const __grid_constant__ struct cuda_qkv_args f)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ struct ring<HD> ring;
    __shared__ __align__(16) uint16_t fresh[2][FUSED ? HD : 1];
    __shared__ struct cut cut;
    constexpr uint32_t STAGES = stream_fit<HD>::stages;
    const uint32_t begin = (smem_u32(smem) + 1023) & ~1023u;
    const uint32_t stages = begin + (CONVERT ? SEGMENT * HD * 2 : 0), q_tile = stages + STAGES * sa.stage_bytes;
    const struct stream_places at = {stages, begin, q_tile, q_tile + DECODE_ROWS * HD * 2};
    uint32_t tile = 0;

    if (!CONVERT && threadIdx.x == DECODE_THREADS) tma_prefetch_map(&map);
    if (threadIdx.x < STAGES) {
        mbar_init(smem_u32(&ring.full[threadIdx.x]), 1);
        mbar_init(smem_u32(&ring.empty[threadIdx.x]), DECODE_THREADS / 32);
        mbar_init_fence();
    }
    __syncthreads();
    if (!FUSED && threadIdx.x < DECODE_THREADS) dependency_wait();
    dependents_launch();
    if (threadIdx.x >= DECODE_THREADS) {
        const struct segment_list list = segment_list_of(a);
        const uint32_t n_blocks = min(gridDim.x, list.total);
        /* measured: where memory is the bound, not arithmetic, blocks that are not in step with others are faster */
        const struct cut mine = {list.total, n_blocks, !CONVERT && HD >= 128 && list.total >= 3 * n_blocks};
        struct share share = share_of(a, list, mine, list.total > sa.max_places);

        cut = mine;
        if (!FUSED) dependency_wait(); /* what lists are made of is there before a step */
        copy_share<HD, CONVERT>(a, sa, &map, list, &share, at.stages, &ring);
        return;
    }
    for (;;) {
        struct piece_sums<HD, NB> sums = {
        };
        uint32_t q[NB][HD / 8];

#pragma unroll
        for (int j = 0; j < 2 * NB; j++) sums.m[j / 2][j % 2] = -INFINITY;
        mbar_wait(smem_u32(&ring.full[tile % STAGES]), tile / STAGES & 1);
        const struct piece piece = ring.pieces[tile % STAGES];
        if (piece.n_segments == 0) return;
        if constexpr (FUSED)
            fresh_row<T, HD>(f, piece.run.row0, piece.kv_head, piece.to == piece.n_segments, at.q_tile, fresh);
        else
            load_queries<T, HD, DECODE_THREADS, DECODE_ROWS>(at.q_tile, a, piece.run, piece.kv_head, 0);
        named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
        few_queries<HD, NB>(q, at.q_tile);
        if constexpr (!FUSED && !CONVERT)
            if (piece.shared.n_segments && piece.from == 0) begin_shared<HD, NB>(a, sa, piece, &sums);
        sum_piece<T, HD, FUSED, CONVERT, NB>(a, sa, piece, at, &ring, &tile, q, fresh, &sums);
        finish_piece<HD, NB, COPIES>(a, sa, piece, cut, sums);
    }
#endif
}

/* NB: no run has more than 8 NB packed rows, of those that are computed here. */
template <typename T, int HD, bool FUSED, bool CONVERT, int NB, bool COPIES = false>
static cudaError_t start_few(const struct cuda_launch *l, const struct cuda_attention_args *a,
                             const struct cuda_qkv_args *fused)
{
    const struct cuda_qkv_args none = {};
    const struct cuda_kv *kv = &a->kv;
    const uint32_t pairs = a->n_runs * a->n_kv_heads, fill = stream_fit<HD>::blocks * l->n_sms;
    const uint32_t packed = a->longest_run * (a->n_heads / a->n_kv_heads), row_bytes = HD * 2;
    const uint32_t rows = packed < DECODE_ROWS ? packed : (uint32_t)DECODE_ROWS;
    const uint32_t longest = kv->k_row_bytes > kv->v_row_bytes ? kv->k_row_bytes : kv->v_row_bytes;
    const struct prefix_parts prefix = prefix_parts_of(l, a);
    const uint64_t bytes = a->shared.head ? (uint64_t)((uint8_t *)prefix.at - (uint8_t *)l->scratch) : l->scratch_bytes;
    const uint64_t places = bytes / (rows * stream_fit<HD>::part * sizeof(float));
    const struct stream_args s = {(float *)l->scratch,
                                  rows,
                                  pairs > CUDA_N_COUNTERS ? 0
                                  : places < 1u << 30     ? (uint32_t)places
                                                          : 1u << 30,
                                  l->counters,
                                  (uint32_t)(kv->page_bytes / row_bytes),
                                  (uint32_t)(kv->k_offset / row_bytes),
                                  (uint32_t)(kv->v_offset / row_bytes),
                                  SEGMENT * (CONVERT ? longest : row_bytes),
                                  prefix};
    const uint32_t smem = stream_fit<HD>::stages * s.stage_bytes + (CONVERT ? SEGMENT * row_bytes : 0) +
                          DECODE_ROWS * (HD + SEGMENT) * 2 + 1024;
    CUtensorMap map = {};
    const cudaError_t e = allow_once<attention_stream<T, HD, FUSED, CONVERT, NB, COPIES>>(smem);

    if (e) return e;
    /* measured: misses that bring 256 bytes, half of which another box asks for, take 4 % longer and 2 % more energy */
    if (!CONVERT && !tensor_map_as(&map, kv->base, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, INT32_MAX, HD, row_bytes,
                                   kv->page_tokens, 64, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
        return cudaErrorInvalidValue;
    return launch_chained(l, attention_stream<T, HD, FUSED, CONVERT, NB, COPIES>, dim3(fill), STREAM_THREADS, smem, *a,
                          s, map, fused ? *fused : none);
}

template <typename T, int HD, bool FUSED, bool CONVERT>
static cudaError_t start_as(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused)
{
    return a->longest_run * (a->n_heads / a->n_kv_heads) <= 8 ? start_few<T, HD, FUSED, CONVERT, 1>(l, a, fused)
                                                              : start_few<T, HD, FUSED, CONVERT, 2>(l, a, fused);
}

/* Of heads of 64 only what shares comes here. */
static int start_64(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    return (int)(a->kv.dtype_k == DTYPE_F16 ? start_as<__half, 64, false, false>(l, a, NULL)
                                            : start_as<__nv_bfloat16, 64, false, false>(l, a, NULL));
}

/* With copies: of what attention_stream_copies takes. */
template <typename T>
static int start_copies(const struct cuda_launch *l, const struct cuda_attention_args *a,
                        const struct cuda_qkv_args *fused)
{
    return (int)(a->n_heads / a->n_kv_heads <= 8 ? start_few<T, 128, true, false, 1, true>(l, a, fused)
                                                 : start_few<T, 128, true, false, 2, true>(l, a, fused));
}

template <int HD>
static int start(const struct cuda_launch *l, const struct cuda_attention_args *a, const struct cuda_qkv_args *fused)
{
    if (a->kv.dtype_k == DTYPE_F16)
        return (int)(fused ? start_as<__half, HD, true, false>(l, a, fused)
                           : start_as<__half, HD, false, false>(l, a, NULL));
    return (int)(fused ? start_as<__nv_bfloat16, HD, true, false>(l, a, fused)
                       : start_as<__nv_bfloat16, HD, false, false>(l, a, NULL));
}

static int start_converting(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    return (int)(a->head_dim == 64    ? start_as<__half, 64, false, true>(l, a, NULL)
                 : a->head_dim == 128 ? start_as<__half, 128, false, true>(l, a, NULL)
                                      : start_as<__half, 256, false, true>(l, a, NULL));
}

/* Heads of 64: attention_decode is faster (H200, 64 runs of 512 keys: 21 us, this one 25), but begins with nothing. */
bool attention_stream_takes(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const struct cuda_kv *kv = &a->kv;
    const uint32_t segments = ceil_div(a->end, SEGMENT), row = a->head_dim * 2;

    if (cuda_kv_is_quantised(kv) || a->shared.head) return true; /* nothing else knows of them */
    return l->compute == 90 && a->head_dim > 64 && kv->page_tokens >= 8 && kv->page_tokens <= SEGMENT &&
           kv->page_bytes % row == 0 && (kv->k_offset | kv->v_offset) % row == 0 && tensor_map_ready() &&
           (segments > 8 || (uint64_t)a->n_runs * a->n_kv_heads * segments > 3 * l->n_sms);
}

bool attention_stream_copies(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    return a->head_dim == 128 && a->out16 && a->out_stride % 2 == 0 && (uintptr_t)a->out16 % 4 == 0 &&
           attention_stream_takes(l, a);
}

int attention_stream_launch(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused)
{
    if (a->copies.n > 0)
        return a->kv.dtype_k == DTYPE_F16 ? start_copies<__half>(l, a, fused)
                                          : start_copies<__nv_bfloat16>(l, a, fused);
    if (cuda_kv_is_quantised(&a->kv)) return start_converting(l, a);
    if (a->head_dim == 64) return start_64(l, a);
    return a->head_dim == 128 ? start<128>(l, a, fused) : start<256>(l, a, fused);
}
