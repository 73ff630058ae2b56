/* backend/cuda/cuda_kernels.h - every kernel behind the CUDA backend, as launch functions with plain types.
 *
 * Rooms  host/: the backend is C and knows no CUDA types beyond handles; rows/, linear/ (and what chooses a token by its
 * products) and attention/ (and the rows of pages that it reads) are .cu files, which export the functions below. The
 * folder itself holds what kernels share (cuda_device.cuh, hopper_ptx.cuh, launch_chained.cuh, tensor_map.h).
 *
 * All pointers are device memory except for the argument structs themselves, which are read before the call returns. A
 * launch is asynchronous in l->stream and returns a cudaError_t as int: 0 is success.
 *
 * EXACTNESS  an output row's bits depend on that row's inputs and on shapes and dtypes alone: not on n_rows, the row's
 * place, the tile, the number of splits, or how a prompt was cut (backend.h). So: one order of sums per weight shape
 * for all row counts; attention in segments at absolute positions merged in order; no atomics on floats.
 *
 * Numbers  activations that a matrix product reads are bf16 ("16"), sums and everything else f32. Where a function takes
 * both out and out16, either may be NULL; both hold the same value, out16 rounded to nearest even. bf16 pointers are
 * uint16_t here. Strides are in elements.
 * Thread  engine thread only, while weights are loaded one loading thread at a time (cuda_convert_rows). No function allocates, synchronises or keeps state between calls, so that all of them can
 * be captured in a CUDA graph; what depends on the device is in struct cuda_launch. Attributes (shared memory sizes)
 * are set in cuda_kernels_init.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What every launch needs. One per backend, filled at create. */
struct cuda_launch {
    void *stream; /* cudaStream_t */
    uint32_t n_sms;
    uint32_t compute;        /* 90: capability 9.0 */
    uint32_t smem_block_max; /* bytes of dynamic shared memory that a block may have */
    bool pdl;                /* programmatic dependent launch may be used */
    void *scratch;           /* for partial sums within one launch (or one function's launches) */
    uint64_t scratch_bytes;  /* CUDA_SCRATCH_BYTES */
    uint32_t *counters;      /* CUDA_N_COUNTERS, all zero before and after each function */
};
#define CUDA_SCRATCH_BYTES (256u << 20)
#define CUDA_N_COUNTERS    65536u

/* Once per process and device, before the first launch: function attributes. */
int cuda_kernels_init(const struct cuda_launch *l);

/* ---- weights ---- */

enum cuda_format {
    CUDA_BF16 = 1, /* values: bf16 [n_out, row_stride] */
    CUDA_INT8,     /* values: int8 [n_out, row_stride]; places: see below */
    CUDA_INT4,     /* values: 4-bit unsigned [n_out, row_stride / 2 bytes]; see below */
    CUDA_E4M3,     /* values: e4m3 [n_out, row_stride]; places as INT8 */
};
/* A matrix [n_out rows, n_in contiguous]. Rows are padded to row_stride weights with zeros, values begin at 256-byte
 * boundaries. Quantised: w = bf16(scale * q + offset), the product exact in f32 and one f32 rounding for the sum, per
 * group of `group` consecutive weights (INT8: 16, 32, with offset 32, 64; INT4: 16, 32; E4M3: 128); bf16 rounded to nearest
 * even. INT4 without offset: scale * (q - 8). INT8 with offset: q is unsigned.
 *   scales   has_offset: half2 (scale, offset) [n_out, row_stride / group]; else half [n_out, row_stride / group], but
 *            for INT4 and E4M3 two bf16 (high, low) whose sum is the scale, for E4M3 times 2^120. An E4M3 weight is
 *            bf16(high * v + bf16(low * v)): bf16(scale * v) where the scale is a bf16; else a scale has 16 bits
 * Values lie as the tensor cores want them. In a block of 128 weights of a row, weight k belongs to step s = k / 16, and
 * within it, kk = k % 16, to thread c = kk % 8 / 2 of four, as element e = kk % 2 of its pair h = kk / 8 (0 or 1):
 *   INT4     uint32 number 4 c + s / 2 of the block, bits 4 n .. 4 n + 3 with n = 2 (s % 2) + h + 4 e, so that
 *            (v >> 4 p) & 0x000f000f is a pair
 *   INT8     byte 64 (s / 4) + 16 c + 4 (s % 4) + 2 h + e of the block
 * in_eights (devices other than sm_90, linear_mma.cu): the same, but in every 32 weights thread c has those that follow
 * each other: weight kk of them belongs to step 2 (k / 32) + kk % 8 / 4, c = kk / 8, h = kk % 4 / 2, e = kk % 2. */
struct cuda_matrix {
    uint32_t format, n_out, n_in;
    uint32_t
        n_whole; /* rows of the matrix that these are some of, or 0, n_out: decides in how many segments k is summed */
    uint32_t row_stride; /* n_in rounded up to a multiple of cuda_row_align() */
    uint32_t group;      /* quantised: weights of a scale */
    bool has_offset, in_eights;
    const void *values, *scales;
};
/* 16-bit numbers in a group's scale. */
static inline uint32_t cuda_scale_numbers(const struct cuda_matrix *m)
{
    return m->has_offset || m->format == CUDA_INT4 || m->format == CUDA_E4M3 ? 2 : 1;
}
static inline uint32_t cuda_n_whole(const struct cuda_matrix *m)
{
    return m->n_whole ? m->n_whole : m->n_out;
}
/* Quantised: rows of scales are then multiples of 16 bytes. */
static inline uint32_t cuda_row_align(const struct cuda_matrix *m)
{
    return m->format == CUDA_BF16 ? 64 : m->format == CUDA_E4M3 ? 512 : 256;
}

/* format, group, has_offset for a dtype: the smallest of the forms above that holds it. */
void cuda_matrix_form(int dtype, struct cuda_matrix *m);
/* Rows of a tensor (dtype: enum dtype, tensor/dtype.h) as they lie in a GGUF file, or of DTYPE_HUB_LIST, to the rows first_row ..
 * first_row + n_rows - 1 of a matrix of the form that cuda_matrix_form gave. *overflow becomes 1 if a scale or offset is
 * beyond the halves (the caller then takes CUDA_BF16, which every dtype converts to). */
int cuda_convert_rows(const struct cuda_launch *l, int dtype, const void *src, uint32_t first_row, uint32_t n_rows,
                      const struct cuda_matrix *m, uint32_t *overflow);
/* out[i] = f32 of n values of a dtype with blocks of 1 (norms, biases). */
int cuda_convert_vector(const struct cuda_launch *l, int dtype, const void *src, uint32_t n, float *out);

/* ---- matrix products ---- */

/* Whether a tuned kernel reads this form on this device. The backend converts other weights to CUDA_BF16 when they are
 * loaded, as long as memory lasts. */
bool cuda_linear_takes(const struct cuda_launch *l, const struct cuda_matrix *m);
/* outs[i].out[r, o] = sum_k x16[r, k] * w[o, k] (+ bias[o]). x_stride and out_stride are at least n_in and n_out, with no
 * promise of alignment beyond: x16 begins at a 32-byte, out at a 64-byte boundary; strides may be odd (tiny models): take the
 * plain kernel then. n_rows >= 1, n_outs 1 .. 3, one n_in for all. */
struct cuda_linear_out {
    const struct cuda_matrix *w;
    const float *bias;
    float *out;
    uint32_t out_stride;
};
/* x given: x16 [n_rows, n_in] is to become rmsnorm(x) * weight first, with the bits of cuda_residual_norm. Where the product
 * computes that by itself x16 is not written. */
struct cuda_input_norm {
    const float *x, *weight;
    float eps;
};
/* Where a kernel writes its outputs as well, at the same strides: memory of other devices that this one reaches. */
#define CUDA_COPIES 7u
struct cuda_copies {
    uint32_t n;
    void *to[CUDA_COPIES];
};
struct cuda_tile_choices;
struct cuda_linear_args {
    uint32_t n_rows;
    const uint16_t *x16;
    uint32_t x_stride;
    uint32_t n_outs;
    struct cuda_linear_out outs[3];
    struct cuda_input_norm norm;
    float *add_to; /* [n_rows, n_out]: outs[0], the only one, is added to it; its out may be used as scratch. Or NULL */
    struct cuda_tile_choices *tiles;  /* linear_hopper.h; cuda_linear_choose's own, else NULL */
    const struct cuda_copies *copies; /* of outs[0], the only one, where cuda_linear_copies says so; or NULL */
};
int cuda_linear(const struct cuda_launch *l, const struct cuda_linear_args *a);
/* Whether the product can write copies: of copies it reads none. */
bool cuda_linear_copies(const struct cuda_launch *l, const struct cuda_linear_args *a);
struct cuda_draw;
struct cuda_choice;
/* cuda_choose of what cuda_linear gives, whose only out is not written: the same choices. draws: of temperature 0, or
 * local (base/draw.h); NULL: all of temperature 0. cudaErrorNotSupported: no kernel does that here, nothing
 * was launched. */
int cuda_linear_choose(const struct cuda_launch *l, const struct cuda_linear_args *a, const struct cuda_draw *draws,
                       struct cuda_choice *choices);

/* out16[r, o] = act(gate[r, o]) * up[r, o] with gate = wg x, up = wu x, the bits of cuda_linear then cuda_glu.
 * out, up: [n_rows, n_out] f32 that the unfused way may use as scratch (gate goes to out). */
enum cuda_activation { CUDA_SILU, CUDA_GELU_TANH };
struct cuda_linear_glu_args {
    uint32_t n_rows;
    const uint16_t *x16;
    uint32_t x_stride;
    const struct cuda_matrix *gate, *up;
    int act;
    uint16_t *out16; /* [n_rows, n_out] */
    float *scratch_gate, *scratch_up;
    struct cuda_input_norm norm;
    const struct cuda_copies *copies; /* of out16, as cuda_linear's; or NULL */
    uint32_t out_stride;              /* 0: n_out, as it is without copies */
};
int cuda_linear_glu(const struct cuda_launch *l, const struct cuda_linear_glu_args *a);
bool cuda_linear_glu_copies(const struct cuda_launch *l, const struct cuda_linear_glu_args *a);

/* ---- attention ---- */

/* One layer's part of the pages (kv_storage.h): head h, row t of page p begins at
 *     base + p * page_bytes + k_offset + (h * page_tokens + t) * k_row_bytes            (values likewise) */
struct cuda_kv {
    uint8_t *base;
    uint64_t page_bytes, k_offset, v_offset;
    uint32_t k_row_bytes, v_row_bytes;
    uint32_t page_tokens; /* power of two */
    int dtype_k, dtype_v; /* enum dtype: F16, BF16, F32, Q8_0, Q4_0 (blocks as in GGUF files) or F8_E4M3 */
};
/* Rows row0 .. row0+n_rows-1 are positions pos0 .. of one sequence; its pages: tables[table + pos / page_tokens], of all that
 * a row sees. */
struct cuda_run {
    uint32_t row0, n_rows, pos0, table;
    uint32_t both_from, both_to; /* as struct seq_run's where a row of it is in there; else both 0 */
};

/* Rows whose sequences begin with the same pages, and read the keys and values there once for all (attention_prefix.cu).
 * Made by cuda_sharing.h. A row that takes part is a member; a group's are members first_member .. of all. */
struct cuda_shared_head {
    uint32_t n_groups, n_members, longest, unused;
}; /* longest >= every n_segments */
struct cuda_shared_run {
    uint32_t n_segments, member;
}; /* of 128 keys each, 0: takes no part; of the run's first row */
struct cuda_group {
    uint32_t table, first_member, n_members, n_segments;
};
struct cuda_shared {
    const struct cuda_shared_head *head; /* NULL: none is shared */
    const struct cuda_shared_run *runs;  /* [n_runs] */
    const struct cuda_group *groups;     /* [n_groups] */
    const uint32_t *rows;                /* [n_members] */
};

/* As struct attention_args in backend.h. Runs are sorted by row0 and cover all rows without gaps. The host knows bounds of
 * what is in runs, for grids: longest_run >= every n_rows, end >= every pos0 + n_rows and both_to; sees_both_ways: of one
 * or more, nothing is shared then. In a captured graph n_runs, n_rows,
 * those bounds and whether there is something shared stay as they were captured while runs and tables change. A run
 * with pos0 = 0 and table 0 may be padding: page 0 is readable then. */
struct cuda_attention_args {
    uint32_t n_rows, n_heads, n_kv_heads, head_dim;
    const float *q;
    uint32_t q_stride;
    float *out;
    uint16_t *out16;
    uint32_t out_stride;
    float scale, softcap; /* softcap 0 = none */
    uint32_t window;      /* 0 = all earlier tokens; w = the w latest, the row's own included */
    uint32_t n_runs, longest_run, end;
    bool sees_both_ways;
    const struct cuda_run *runs;
    const uint32_t *tables;
    struct cuda_shared shared;
    struct cuda_kv kv;
    struct cuda_copies copies; /* of out16, where cuda_attention_copies says so: then out is not written */
};

/* As struct qkv_args in backend.h: q and k heads normed and rotated in place, k and v written to row_page, row_slot.
 * Where keys are quantised q is turned as they are: only cuda_attention knows what it means then. */
struct cuda_qkv_args {
    uint32_t n_rows, n_heads, n_kv_heads, head_dim;
    float *q;
    uint32_t q_stride;
    float *k;
    uint32_t k_stride;
    const float *v;
    uint32_t v_stride;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    const float *k_bias;          /* [n_kv_heads * head_dim] or NULL: quantised keys are balanced by it */
    float norm_eps;
    const uint32_t *positions;
    const uint32_t
        *axes; /* [3][n_rows], or NULL: axes[axis_of[i]][row] is what pair i turns by, in place of positions */
    const uint8_t *axis_of; /* [n_rot / 2] */
    const float *inv_freq;  /* [n_rot / 2] */
    uint32_t n_rot;
    float mscale;
    bool half_split; /* else interleaved pairs */
    const uint32_t *row_page, *row_slot;
    struct cuda_kv kv;
};
int cuda_qkv_rope_write(const struct cuda_launch *l, const struct cuda_qkv_args *a);
/* first: cuda_qkv_rope_write of these rows first, or within, q then staying as it was; NULL: done before. */
int cuda_attention(const struct cuda_launch *l, const struct cuda_attention_args *a, const struct cuda_qkv_args *first);
/* As cuda_linear_copies. */
bool cuda_attention_copies(const struct cuda_launch *l, const struct cuda_attention_args *a,
                           const struct cuda_qkv_args *first);

/* ---- adapters ---- */

enum cuda_stored_type { CUDA_STORED_F32, CUDA_STORED_F16, CUDA_STORED_BF16 };

/* a [rank, n_in], b [rank, n_out], 16-byte aligned. A table of these is an adapter's; a NULL: no pair. */
struct cuda_low_rank_pair {
    const void *a, *b;
    int a_type, b_type; /* enum cuda_stored_type */
    float scale;
    uint32_t rank;
};
#define CUDA_LOW_RANK_TILE 4u /* rows that are computed together */
/* What pairs are of, a and b: F16 and BF16; F32; any. They are or-ed together. */
#define CUDA_LOW_RANK_HALVES 1u
#define CUDA_LOW_RANK_FLOATS 2u
#define CUDA_LOW_RANK_ANY    3u
static inline uint32_t cuda_low_rank_kinds(const struct cuda_low_rank_pair *p)
{
    return (p->a_type == CUDA_STORED_F32 ? CUDA_LOW_RANK_FLOATS : CUDA_LOW_RANK_HALVES) |
           (p->b_type == CUDA_STORED_F32 ? CUDA_LOW_RANK_FLOATS : CUDA_LOW_RANK_HALVES);
}

/* As struct low_rank_term in backend.h; rows are those of cuda_low_rank_args from first_row on. */
struct cuda_low_rank_term {
    struct cuda_low_rank_pair pair;
    float *out;
    uint32_t n_in, n_out, first_row, n_rows, out_stride;
};

/* terms, chains and rows in device memory. A chain: terms of one output and the same rows, in their order; rows of two chains
 * of one output differ. Chain i: the terms chains[i] .. chains[i + 1]. */
struct cuda_low_rank_args {
    const float *x;
    uint32_t x_stride, n_terms, n_chains;
    uint32_t most_rows, kinds; /* of a term */
    const struct cuda_low_rank_term *terms;
    const uint32_t *chains, *rows;
};
/* host: a->terms in the host's memory. */
int cuda_low_rank(const struct cuda_launch *l, const struct cuda_low_rank_args *a,
                  const struct cuda_low_rank_term *host);

/* Rows of a step that have the same adapters at the same scales, in its metadata. */
#define CUDA_LOW_RANK_USES 8u
struct cuda_low_rank_use {
    const struct cuda_low_rank_pair *table;
    float scale; /* times the pair's */
    uint32_t unused;
};
struct cuda_low_rank_tile {
    uint32_t n_rows, n_uses; /* n_rows 0: this tile and those after it are of no rows */
    uint32_t rows[CUDA_LOW_RANK_TILE];
    struct cuda_low_rank_use uses[CUDA_LOW_RANK_USES];
};
/* As struct low_rank_rows_args in backend.h, tiles in device memory: all rows are in one, those without adapters too. */
struct cuda_low_rank_rows_args {
    uint32_t n_rows, first, n_outs, n_in;
    uint32_t kinds;                         /* of all pairs of all tables */
    const struct cuda_low_rank_tile *tiles; /* [n_rows]: as many, if no two rows have the same */
    const float *x;
    float *outs[3];
    uint32_t n_out[3];
    uint32_t most_ranks;
    float *t; /* [n_rows, n_outs, most_ranks]: scratch */
};
/* t = scale * (x a), then outs += t b, when the products that make outs have ended; or, of two outs, gate and up, in one with
 * cuda_glu, of all rows: out, out16 [n_rows, n_out]; cudaErrorNotSupported: nothing was launched, as for pairs of any kind. */
int cuda_low_rank_t(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a);
int cuda_low_rank_rows(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a);
int cuda_low_rank_glu(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a, int act, float *out,
                      uint16_t *out16);

/* ---- rows ---- */

/* As struct residual_norm_args in backend.h. */
struct cuda_norm_args {
    uint32_t n_rows, width;
    float *x;
    const float *delta, *delta_norm, *norm;
    float eps;
    float *out;
    uint16_t *out16;
};
int cuda_residual_norm(const struct cuda_launch *l, const struct cuda_norm_args *a);
/* out[r] = scale * row tokens[r] of w, f32: quantised weights without the rounding to bf16. */
int cuda_embed(const struct cuda_launch *l, const struct cuda_matrix *w, uint32_t n_rows, const int32_t *tokens,
               float scale, float *out);
int cuda_glu(const struct cuda_launch *l, int act, uint64_t n, const float *gate, const float *up, float *out,
             uint16_t *out16);
/* out[i] = x[rows[i]], [n, width] */
int cuda_gather(const struct cuda_launch *l, uint32_t n, uint32_t width, const float *x, const uint32_t *rows,
                float *out);
int cuda_softcap(const struct cuda_launch *l, float *x, uint64_t n, float cap);
int cuda_to_bf16(const struct cuda_launch *l, uint64_t n, const float *x, uint16_t *out16);
/* ---- encoders of images ---- */

/* As the structs of backend.h. */
struct cuda_layer_norm_args {
    uint32_t n_rows, width;
    const float *x, *w, *b;
    float eps;
    float *out;
    uint16_t *out16;
};
int cuda_layer_norm(const struct cuda_launch *l, const struct cuda_layer_norm_args *a);
enum cuda_gelu_form { CUDA_GELU_ERF, CUDA_GELU_QUICK, CUDA_GELU_TANH_FORM };
int cuda_gelu(const struct cuda_launch *l, int form, uint64_t n, float *x, uint16_t *x16);
struct cuda_turn_args {
    uint32_t n_rows, n_heads, head_dim;
    float *q, *k;
    uint32_t stride;
    const float *cosines, *sines; /* [n_rows, head_dim / 2] */
};
int cuda_turn(const struct cuda_launch *l, const struct cuda_turn_args *a);
struct cuda_mean_args {
    uint32_t n_out, n_each, width;
    const float *x;
    const uint32_t *rows;
    float *out;
    uint16_t *out16;
};
int cuda_mean(const struct cuda_launch *l, const struct cuda_mean_args *a);
/* packed: attend_packed_floats of floats. Rows row0 .. are in the groups first_group .. last_group; most_rows: of the largest
 * group of all, which decides the tiles. group_tiles: the launch's own. */
struct cuda_attend_args {
    uint32_t row0, n_rows, n_heads, head_dim;
    const float *q, *k, *v;
    uint32_t stride, head0, n_some;
    float *out;
    uint16_t *out16;
    float scale;
    uint32_t n_groups, first_group, last_group, most_rows, n_blocks, group_tiles;
    const uint32_t *group_ends, *group_blocks;
    uint8_t *packed;
};
int cuda_attend_pack(const struct cuda_launch *l, const struct cuda_attend_args *a);
int cuda_attend(const struct cuda_launch *l, const struct cuda_attend_args *a);

/* Rows 0 .. n_rows-1 of every layer and head, K and V, from page `from` to page `to` of kv.base. */
struct cuda_copy_rows_args {
    uint8_t *base;
    uint64_t page_bytes;
    uint32_t n_layers, n_kv_heads, page_tokens, k_row_bytes, v_row_bytes;
    uint32_t to, from, n_rows;
};
int cuda_copy_rows(const struct cuda_launch *l, const struct cuda_copy_rows_args *a);

/* choices[r] of row r: temperature 0, or no draws: the lowest id among the largest logits, and that logit; else a token
 * drawn from softmax(logits / temperature) over logits >= max + temperature * ln(min_p) as
 * base/draw.h says, and its logit. The value is NaN if the row holds NaN or +inf. */
struct cuda_draw {
    float temperature, min_p;
    uint64_t seed;
    uint32_t position, unused;
};
struct cuda_choice {
    int32_t token;
    float value;
};
int cuda_choose(const struct cuda_launch *l, uint32_t n_rows, uint32_t n_vocab, const float *logits, uint64_t stride,
                const struct cuda_draw *draws, struct cuda_choice *choices);
/* A step's metadata from pinned host memory (16-byte aligned, with room for 16 more), tokens [n_rows] first. from: NULL,
 * or row i's token is what row from[i] of the step before chose (choices, on the device); UINT32_MAX: it stays. It lies
 * in the host's memory, 16-byte aligned, with room for 16 bytes more, too. */
int cuda_begin_step(const struct cuda_launch *l, uint64_t n_bytes, const void *host, void *device, uint32_t n_rows,
                    const uint32_t *from, const struct cuda_choice *choices);
/* A copy; fast if it is small and `to` pinned host memory. */
int cuda_copy_out(const struct cuda_launch *l, void *to, const void *from, uint64_t n_bytes);

#ifdef __cplusplus
}
#endif
