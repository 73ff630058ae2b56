/* backend/backend.h - the table of fused operations that a model's forward pass is made of.
 *
 * A model (src/model/NAME.c) calls these on flat views (span.h); a backend runs them (CPU thread pool), launches them (CUDA) or
 * records them. All float activations are f32 row-major [n_rows, width] in backend memory; rows are tokens of any
 * number of sequences.
 *
 * EXACTNESS (docs/architecture.md): every op computes an output row from that row's inputs, in an order fixed by shapes
 * and dtypes alone. It must not depend on n_rows, on the row's place in the batch, on threads, or on how a prompt was
 * cut into chunks. On a CPU all instruction-set variants also give the reference's bits (integer dots are exact, float
 * sums are made of the same operations, fma where the reference says fmaf, in the same order).
 *
 * `once` in an op's arguments says that its output is read by one op, which follows: a backend may hold the op back and do
 * both at once, and the output itself need not be written. It gives the bits that the two ops give.
 *
 * Ops are asynchronous on devices; sync() waits and reports device errors. Arguments are checked by assert: shapes were
 * checked when the model was loaded. Loading a model that needs an entry which is NULL fails by name.
 * Thread  one backend belongs to one engine thread (life, weights: the loading thread, before).
 * Errors  RD_E_DEVICE from ops and sync; RD_E_NOMEM from alloc, pages.create, and what loads weights.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "backend/join_way.h"
#include "backend/kv_storage.h"
#include "backend/span.h"
#include "kv/page_pool.h"
#include "radish/status.h"
#include "tensor/dtype.h"
#include "tensor/weight_groups.h"

struct backend;
struct rank_group;

struct backend_options {
    uint32_t n_threads; /* CPU threads, the calling one included; 0 = all cores this process may use */
    const char *isa;    /* CPU; NULL = best; "ref", "avx2", "avx512", "amx": RD_E_UNSUPPORTED names what this CPU has */
    uint32_t device;    /* which GPU, as the CUDA runtime numbers them */
    uint32_t rank, n_ranks; /* of several that compute together (ranks.h); n_ranks 0, 1: alone */
    enum join_way join_way; /* how they put their columns together; CPUs have one memory */
    bool no_graphs;         /* every op is launched by itself (for comparison) */
};

/* A tensor as it lies in the file. data stays while the model lives for WEIGHT_EMBED, else during weights.load: a tied
 * head is loaded with its embedding's data. stays: until weights.done, at least; the weight may be used after that. */
struct host_tensor {
    const char *name; /* for errors */
    enum dtype dtype;
    uint32_t n_out, n_in; /* matrix [n_out rows, n_in contiguous]; a vector has n_out 1 */
    const void *data;
    bool stays;
    const struct weight_groups *groups; /* instead of data, which is NULL then: weights.takes_groups. NULL: none */
    uint32_t n_whole; /* rows of the matrix that these are some of: the order of sums may be of that; 0: n_out, all */
};

enum weight_role {
    WEIGHT_MATRIX, /* linear: repacked for the kernels where that pays */
    WEIGHT_EMBED,  /* rows gathered by token id: read from the mapping */
    WEIGHT_VECTOR, /* norms, biases, factors: converted to f32 */
    WEIGHT_DENSE, /* linear of an encoder: as WEIGHT_MATRIX, but products may be of two bf16 parts of each number, to 2^-16 of
                       it; CPUs that do so (weight.format) have other bits than those that do not */
    WEIGHT_LOW_RANK /* of low_rank: kept as F32, F16 or BF16, as it is; where that stays, a CPU may read it there */
};

/* A weight in the backend's own form. Filled by weights.load; copied freely, unloaded once. */
struct weight {
    enum dtype dtype; /* as in the file */
    enum weight_role role;
    uint32_t n_out, n_in;
    const void
        *data;       /* f32 [n_in] for vectors; rows as in the file: embeddings, low_rank; else the backend's packing */
    uint64_t bytes;  /* anonymous or device memory it took; 0 when it only refers to a mapping */
    uint32_t format; /* backend's own: which packing */
};

/* out[r, o] = sum_i x[r, i] * w[o, i] (+ bias[o]), for up to 3 matrices that share x (q, k, v; gate, up). */
struct linear_out {
    const struct weight *w;
    const struct weight *bias;
    struct span out;
    uint32_t out_stride;
};
struct linear_args {
    uint32_t n_rows;
    struct span x; /* [n_rows, x_stride], first n_in used */
    uint32_t x_stride;
    uint32_t n_outs;
    struct linear_out outs[3];
    /* Where the backend gives_best and n_outs is 1: [n_rows, ceil(n_out / BEST_BLOCK)] the largest of each BEST_BLOCK
     * outputs, +inf where one of them is NaN or +inf; or nowhere. */
    struct span best;
    /* outs[0], the only one, is read as delta by the residual_norm that follows, or is x of the gelu that does; or the outs are
     * q, k and v of the attend_fill that does (many). They are read by nothing else. */
    bool once;
    /* In every product with these weights rows are many: a device may sum in an order that few rows would be slower in. */
    bool many;
    /* Adapters that low_rank adds to this next, with the x of this and the same args, or NULL: a backend may ask memory for them
     * meanwhile, or begin them with this and have their t when that comes. */
    const struct low_rank_args *soon;
    /* The same of low_rank_rows, which follows; or NULL. A backend may begin it with this. */
    const struct low_rank_rows_args *by_row;
    /* The join that follows, of outs[0], the only one, which nothing else reads; or NULL: a backend may begin it with this, and
     * leave outs[0] as it was. So it is with the other two that have one. */
    const struct join_args *then;
};
#define BEST_BLOCK 128u

/* Of every row, the columns that the ranks of a group have, one rank's behind the other's: rank r's are [r == 0 ? 0 : ends[r - 1],
 * ends[r]), which it has in own, [n_rows, own_stride]. out: [n_rows, ends[last]]. All ranks come with the same shapes, and out
 * at the same place of what each allocated. own is written again, and out read by what is given before, only until another join,
 * which is of other memory. On a CPU own is contiguous; on a device it may lie in out, at its columns. */
struct join_args {
    struct rank_group *group;
    uint32_t rank, n_ranks, n_rows;
    const uint32_t *ends; /* [n_ranks] */
    struct span own, out;
    uint32_t own_stride;
    bool for_linear;   /* out is read by linear, as x, and by nothing else */
    bool for_low_rank; /* with for_linear: by low_rank, low_rank_rows, too */
    bool once;         /* it is read as delta by the residual_norm that follows, and by nothing else */
};

/* Low-rank adapters (LoRA, arXiv:2106.09685) on rows of what linear gave, for every term in their order:
 *     out[r, o] += sum_j (scale * t[r, j]) * b[j, o],   t[r, j] = sum_i a[j, i] * x[r, i]
 * with fmaf, over i in 16 interleaved partial sums, then pairwise; over j one after the other. Rows of no term keep their
 * bits, a term's do not depend on other terms' rows. Two terms of one output have the same rows, or none in common. (A GPU
 * has an order of its own over i, which n_in decides.) */
struct low_rank_term {
    const struct weight *a, *b; /* WEIGHT_LOW_RANK: a [rank, n_in], b [rank, n_out] (its transposed) */
    float scale;
    uint32_t n_rows;
    const uint32_t *rows; /* [n_rows] of x and out */
    struct span out;      /* terms of one output stand together */
    uint32_t out_stride;
};
struct low_rank_args {
    struct span x;
    uint32_t x_stride, n_terms;
    const struct low_rank_term *terms;
    struct span t; /* scratch: the sum of n_rows * rank floats */
};

/* The same, where a step is recorded and who has which adapter is read on the device: of every row, tables of pairs that
 * weights.load_pairs made. Pair first + i of a table is for outs[i]; rows and pairs without any leave it as it is. The bits are
 * low_rank's. */
#define LOW_RANK_USES 8u
struct low_rank_pair {
    const struct weight *a, *b; /* as in low_rank_term; NULL: the matrix is as it is */
    float scale;
};
struct low_rank_row {
    uint32_t n_uses;
    struct low_rank_use {
        const struct weight *table;
        float scale; /* times the pair's */
    } uses[LOW_RANK_USES];
};
struct low_rank_rows_args {
    uint32_t n_rows;
    const struct low_rank_row *rows; /* [n_rows]: of a graph_step, its adapted */
    uint32_t most_ranks;             /* a row's adapters have together, at most */
    uint32_t first, n_outs;
    struct span x; /* [n_rows, n_in] */
    uint32_t n_in;
    struct span outs[3]; /* [n_rows, n_out[i]] */
    uint32_t n_out[3];
    struct span t; /* scratch: n_rows * n_outs * most_ranks floats */
};

/* x += delta', out = rmsnorm(x) * norm. delta' = delta, or rmsnorm(delta) * delta_norm when delta_norm is given
 * (Gemma's post norms). delta nowhere: x unchanged. norm NULL: no out. x, delta, out: [n_rows, width], contiguous; out may
 * not overlap x or delta. rmsnorm(v) = v / sqrt(mean(v^2) + eps), arXiv:1910.07467; the sum of squares in 16
 * interleaved partial sums, then pairwise. */
struct residual_norm_args {
    uint32_t n_rows, width;
    struct span x, delta;
    const struct weight *delta_norm, *norm;
    float eps;
    struct span out;
    bool once;       /* out is read by the op that follows, and by nothing else */
    bool for_linear; /* with once: it is linear or linear_glu, which reads it as x */
};

enum rope_layout { ROPE_INTERLEAVED, ROPE_HALF_SPLIT }; /* pairs (2i, 2i+1), or (i, i + n_rot/2) */

/* Per row: q and k heads are rms-normed (if given), rotated by angle pos * inv_freq[i] (arXiv:2104.09864), k and v are
 * converted to the KV type (round to nearest even) and written to their page rows. q stays f32, in place. */
struct qkv_args {
    uint32_t n_rows, layer;
    uint32_t n_heads, n_kv_heads, head_dim;
    struct span q;
    uint32_t q_stride; /* [n_rows, n_heads * head_dim] */
    struct span k;
    uint32_t k_stride; /* [n_rows, n_kv_heads * head_dim]; used as scratch */
    struct span v;
    uint32_t v_stride;
    const struct weight *q_norm, *k_norm; /* [head_dim] or NULL */
    const struct weight *k_bias; /* [n_kv_heads * head_dim] that k has in it, or NULL: quantised keys are balanced
                                    by it, and attention must be told the same */
    float norm_eps;
    const uint32_t *positions; /* [n_rows] */
    /* M-RoPE: [3][n_rows] what pair i turns by, in place of positions, is axes[axis_of[i]][row]; NULL: positions */
    const uint32_t *axes;
    const uint8_t *axis_of;        /* [n_rot / 2], each < 3 */
    const struct weight *inv_freq; /* vector [n_rot / 2], scaling already applied; cos and sin of the f32 product
                                            pos * inv_freq */
    uint32_t n_rot;                /* even, <= head_dim */
    float rope_mscale;             /* multiplies cos and sin; 1 normally (YaRN) */
    enum rope_layout layout;
    const kv_page *row_page;  /* [n_rows] where this row's k, v go */
    const uint32_t *row_slot; /* [n_rows] row in that page */
    struct kv_storage *kv;
    bool once; /* q is read by attention of the same rows, which follows, and by nothing else */
};

/* One sequence's rows in a batch: rows row0 .. row0+n_rows-1 are its positions pos0 .. pos0+n_rows-1. */
struct seq_run {
    uint32_t row0, n_rows, pos0;
    const kv_page *block_table; /* covers positions 0 .. pos0+n_rows-1, and both_to-1 */
    uint32_t both_from,
        both_to; /* a row at a position in from .. to-1 sees all before `to` that its window has: an image */
};

/* out[r, h] = sum_t softmax_t(cap(scale * q[r,h] . k[t, h / (n_heads/n_kv_heads)])) v[t], t = max(0, pos-window+1) ..
 * pos. cap(s) = softcap * tanh(s / softcap) when softcap > 0. Keys and values come only from the pages (the current
 * chunk's are there already), in f32 arithmetic, online softmax (arXiv:2307.08691) over key blocks cut at fixed
 * absolute positions (multiples of 64, whatever page_tokens is); for rows of a run's span t goes on to both_to - 1: a row's result depends on its position and the cache
 * alone. out: [n_rows, n_heads * head_dim], must not overlap q. */
struct attention_args {
    uint32_t n_rows, layer;
    uint32_t n_heads, n_kv_heads, head_dim;
    struct span q;
    uint32_t q_stride;
    struct span out;
    uint32_t out_stride;
    const struct weight *k_bias; /* k_bias, layout and n_rot as qkv_rope_write had them */
    enum rope_layout layout;
    uint32_t n_rot;
    float scale, softcap; /* softcap 0 = none */
    uint32_t window;      /* 0 = all earlier tokens; w = the w latest, the row's own included */
    uint32_t n_runs;
    const struct seq_run *runs;
    const struct kv_storage *kv;
    bool for_linear;              /* out is read by linear, as x, and by nothing else */
    const struct join_args *then; /* linear_args' */
};

enum activation { ACT_SILU, ACT_GELU_TANH };

/* ---- of encoders (vision/encoder.h) ---- */

/* out = (x - mean) / sqrt(variance + eps) * w + b, arXiv:1607.06450; mean, then the variance about it, both in 16 interleaved
 * partial sums, then pairwise. [n_rows, width], contiguous; out may be x. */
struct layer_norm_args {
    uint32_t n_rows, width;
    struct span x;
    const struct weight *w, *b;
    float eps;
    struct span out;
    bool for_linear; /* out is read by linear, as x, and by nothing else */
};

/* x = f(x), n numbers: GELU by erf (at most 4e-7 off), or x / (1 + e^(-1.702 x)), or tanh form. */
enum gelu { GELU_ERF, GELU_QUICK, GELU_TANH };
struct gelu_args {
    enum gelu kind;
    uint64_t n;
    struct span x;
    bool for_linear; /* it is read then by linear, as x, and by nothing else */
};

/* Heads of q and k are turned, half-split, by angles of the row's own: pair i of row r by the angle with cosine
 * cosines[r, i] and sine sines[r, i], i < head_dim / 2. x: [n_rows, stride]. */
struct turn_args {
    uint32_t n_rows, n_heads, head_dim;
    struct span q, k;
    uint32_t stride;
    struct span cosines, sines; /* [n_rows, head_dim / 2] */
};

/* out[r] = the mean of the n_each rows of x that rows[r * n_each ..] names, their sum in that order times 1 / n_each. */
struct mean_args {
    uint32_t n_out, n_each, width;
    struct span x;        /* [, width] */
    const uint32_t *rows; /* [n_out, n_each] */
    struct span out;      /* [n_out, width] */
};

/* out[r, h] = sum_t softmax_t(scale * q[r, h] . k[t, h]) v[t, h], t = first .. end-1 of the group that row r is in, both ways,
 * for rows row0 .. row0+n_rows-1 of q; as attention: online softmax over blocks of 64 keys from the group's first.
 *
 * Two calls: attend_pack puts keys and values of heads head0 .. head0+n_some-1 of all groups to packed, in an order of the
 * backend's own; then attend, any number of times, computes some rows of these heads from there. k, v are read by the first, q
 * by both. Where a backend has attend_fill and takes the heads, it is in place of turn and attend_pack: each call puts rows
 * row0 .. row0+n_rows-1 of q, k and v there, which begin with row row0; then attend reads what all of them put. */
struct attend_args {
    uint32_t row0, n_rows;
    uint32_t n_heads, head_dim;
    struct span q, k, v; /* [, stride], row 0 is the first of all */
    uint32_t stride;
    uint32_t head0, n_some; /* heads head0 .. head0+n_some-1 alone */
    struct span out;        /* [n_rows, n_heads * head_dim] */
    float scale;
    uint32_t n_groups;
    const uint32_t *group_ends; /* [n_groups] rows, rising: group g begins where g - 1 ends */
    const uint32_t
        *group_blocks;  /* [n_groups + 1] blocks of 64 keys, the last one of a group cut, before group g; all */
    struct span packed; /* [attend_packed_floats] */
    bool for_linear;    /* out is read by linear, as x, and by nothing else */
};
#define ATTEND_BLOCK 64u /* keys */
/* Of n_some heads and group_blocks[n_groups] blocks. */
static inline uint64_t attend_packed_floats(uint32_t head_dim, uint32_t n_some, uint64_t n_blocks)
{
    return n_blocks * n_some * 2 * ATTEND_BLOCK * (head_dim <= 48 ? 48 : (head_dim + 15) / 16 * 16);
}

/* out[r, i] = act(gate[r, i]) * up[r, i], gate and up as linear makes them of x [n_rows, x_stride]. out may be gate_out;
 * gate_out and up_out [n_rows, width] hold nothing of use afterwards, out what linear reads. */
struct linear_glu_args {
    uint32_t n_rows;
    struct span x;
    uint32_t x_stride;
    const struct weight *gate, *up;
    enum activation act;
    struct span gate_out, up_out, out;
    const struct join_args *then; /* linear_args' */
};

/* A step in which n_rows sequences have one row each: what a graph of launches may be recorded of. The arrays' contents
 * change from step to step, what they point to in the device does not. n_rows may include padding: rows at position 0 of
 * page kv->n_pages, which a device keeps for this beyond the pool's, with runs of no rows: what attention makes of them
 * is anything (each would cost it as much as some hundred keys). */
struct row_choice;
struct graph_step {
    const void *owner; /* steps of different owners (models) are different graphs */
    uint32_t n_rows;
    const int32_t *tokens; /* [n_rows] */
    const uint32_t *positions;
    const kv_page *row_page;
    const uint32_t *row_slot;
    const struct seq_run *runs;   /* [n_rows], row i is run i */
    const struct row_draw *draws; /* [n_rows] for choose, or NULL */
    const struct kv_storage *kv;
    /* Where some layers have their keys and values apart (keeps_windows): as kv, row_page and runs, of these. windows NULL:
     * all are in kv. Of one owner's steps all have windows, or none has. */
    const struct kv_storage *windows;
    const kv_page *window_page;
    const struct seq_run *window_runs;
    /* Not NULL: row i's token is choices[from[i]] (as choose left it) unless from[i] is GRAPH_OWN_TOKEN. */
    const uint32_t *from; /* [n_rows] */
    struct span choices;
    /* NULL: no row has an adapter. Steps of other most_ranks are other graphs; which adapters they are is of no matter. */
    const struct low_rank_row *adapted; /* [n_rows] */
    uint32_t most_ranks;
};
#define GRAPH_OWN_TOKEN UINT32_MAX
#define GRAPH_LEAST_END 512u /* steps differ by the power of two, from this one on, that all positions are below */
enum graph_action { GRAPH_PLAIN, GRAPH_RECORD, GRAPH_REPLAYED };

/* A token of a row of logits and its logit, NaN if the row holds NaN or +inf. temperature 0: the lowest id among the
 * largest. Else drawn from softmax(logits / temperature) over the logits >= max + temperature * ln(min_p): the
 * token that base/draw.h says, as the host's sampler draws. */
struct row_draw {
    float temperature, min_p;
    uint64_t seed;
    uint32_t position, unused;
};
struct row_choice {
    int32_t token;
    float value;
};

/* What a library below a backend keeps for arrays in this process, for all that use it. */
struct library_memory {
    uint64_t limit_bytes, active_bytes, peak_bytes, cache_bytes; /* cache: freed, and kept for the next ones */
};

/* What a device is like: asked where its name would be. */
struct device_traits {
    bool shares_memory;   /* activations and pages are host memory: any thread may read them, between steps */
    bool interruptible;   /* ops have ended when they return: a pass may be given up between two layers */
    bool slow_prompts;    /* a long prompt keeps others waiting: chunks are cut by a target time */
    bool same_everywhere; /* every such device gives the same bits: stored pages need not name it */
    bool gives_best;      /* linear knows what to do with best */
    bool keeps_windows;   /* a pass may use two kv_storages: layers with a window have their own, smaller */
    bool sees_both_ways;  /* attention knows a run's both_from, both_to */
    bool turns_axes;      /* qkv_rope_write knows axes */
    bool is_inexact;      /* a row's bits may depend on others: cached is not always what is computed */
    uint64_t build;       /* tells it from other builds of its name: stored pages carry it; 0: radish's own */
    uint64_t weight_types, kv_types; /* bits of enum dtype, what it computes with as it is; 0: all that radish knows */
};

/* Beside the ops: steps that are waited for later, recorded steps, pages that move meanwhile. */
struct backend_async {
    bool
        any_rows; /* nothing is recorded: a step of any number of rows is as good, and none is filled up with padding */
    /* Right after sync or mark. *out says what follows: the step's ops (PLAIN); the same, then graph_end, which runs
     * what was recorded (RECORD: no copy from or to the host in between); or nothing, they run already (REPLAYED). */
    rd_status (*graph_begin)(struct backend *be, const struct graph_step *s, enum graph_action *out);
    rd_status (*graph_end)(struct backend *be); /* NULL: graph_begin never says RECORD */
    /* The end of a step that is waited for later; at most two marks are set. wait_mark: for the one set first. While
     * one is set, arrays in host memory that a graph step is given may change, except for results. can_mark: whether this
     * backend, as it was opened, can. */
    bool (*can_mark)(const struct backend *be);
    rd_status (*mark)(struct backend *be);
    rd_status (*wait_mark)(struct backend *be);
    /* n pages to host memory (out) or from it, beside the ops: in order among those of one direction, and not waited for
     * by sync. What goes out was written by ops that were waited for; what comes in is written after the ops given so
     * far. *ticket names them; both sides stay until move_end says RD_OK, for them and all before. RD_E_AGAIN: not yet
     * (never with wait). Anything else, of either: their bytes are lost, and nothing of them is under way; RD_E_DEVICE:
     * the device is. */
    rd_status (*move_begin)(struct backend *be, const struct kv_storage *kv, bool out, uint32_t n, const kv_page *ids,
                            void *const *host, uint64_t *ticket);
    rd_status (*move_end)(struct backend *be, bool out, uint64_t ticket, bool wait);
};

/* The table: five groups, and asynchrony apart. What is marked (optional) may be NULL; compose.h says what is done then. */
struct backend_ops {
    const char *name; /* "cpu", "cuda" */
    struct device_traits traits;

    struct backend_life {
        rd_status (*create)(const struct backend_options *o, struct backend **out, struct rd_error *err);
        void (*destroy)(struct backend *be); /* NULL is fine */
        /* (optional) The device failed, and every op from now on gives RD_E_DEVICE. */
        bool (*is_dead)(const struct backend *be);
        /* "avx512, 2 threads" into buf, for logs and /stats */
        void (*describe)(const struct backend *be, char *buf, size_t n);
        /* (optional) Before the first join, by all ranks at once, each in its thread: they find each other's memory. The group
         * outlives the backend. RD_E_UNSUPPORTED says what two devices cannot do; RD_E_DEVICE, or as rank_group_meet. */
        rd_status (*connect)(struct backend *be, struct rank_group *group, uint32_t rank, uint32_t n_ranks,
                             struct rd_error *err);
    } life;

    struct backend_memory {
        /* (optional) What alloc and pages.create can still give; NULL: it is the host's memory. */
        uint64_t (*free_bytes)(struct backend *be);
        rd_status (*alloc)(struct backend *be, uint64_t n_bytes,
                           struct buffer **out);            /* activations; 64-byte aligned */
        void (*free)(struct backend *be, struct buffer *b); /* NULL is fine */
        /* To and from host memory, which is valid until the next sync, in order with the ops around it. Arrays in host
         * memory that ops are given (tokens, positions, runs ..) stay and keep their contents until then, too. */
        rd_status (*read)(struct backend *be, void *to, struct span from, uint64_t n_bytes);
        rd_status (*write)(struct backend *be, struct span to, const void *from, uint64_t n_bytes);
        rd_status (*sync)(struct backend *be);
        /* (optional) Host memory that copies shall read or write fast, until it is unpinned (on = false). Any thread. */
        void (*pin)(struct backend *be, void *p, uint64_t n_bytes, bool on);
        /* (optional) Memory that base/mem.h does not count. Any thread. */
        void (*library)(struct library_memory *out);
    } memory;

    struct backend_weights {
        /* (optional) load takes matrices of this type of DTYPE_HUB_LIST, and multiplies with them faster than with what
         * they would be opened to. */
        bool (*takes)(const struct backend *be, enum dtype t);
        /* (optional) load takes matrices and embeddings that are these, in place of what they would be opened to. */
        bool (*takes_groups)(const struct backend *be, const struct weight_groups *g);
        /* Loads and repacks (in parallel). How long the host tensor's bytes stay: struct host_tensor. */
        rd_status (*load)(struct backend *be, const struct host_tensor *t, enum weight_role role, struct weight *out,
                          struct rd_error *err);
        /* (optional) Waits until what load was given (host_tensor.stays) has been read and may be used. After an error of
         * load, too: the bytes are read until then. NULL: load waits. */
        rd_status (*done)(struct backend *be, struct rd_error *err);
        void (*unload)(struct backend *be, struct weight *w);
        /* (optional, with op.low_rank_rows) A table of n pairs, which stay until it is unloaded. */
        rd_status (*load_pairs)(struct backend *be, const struct low_rank_pair *pairs, uint32_t n, struct weight *out,
                                struct rd_error *err);
        /* (optional) A WEIGHT_MATRIX from its packing: the n_bytes at data that load made of the same tensor before,
         * maybe in another process; `format` is that weight's. They are read-only, 64-byte aligned, and stay until
         * unload, which leaves them alone: out->bytes is 0. RD_E_FORMAT: that is not this tensor's packing. t->data is
         * not read. NULL: packings of this backend cannot be kept. */
        rd_status (*adopt)(struct backend *be, const struct host_tensor *t, uint32_t format, const void *data,
                           uint64_t n_bytes, struct weight *out);
    } weights;

    struct backend_pages {
        rd_status (*create)(struct backend *be, const struct kv_layout *layout, uint32_t n_pages,
                            struct kv_storage *out);
        void (*destroy)(struct backend *be, struct kv_storage *kv);
        /* Rows 0 .. n_rows-1 of every layer, K and V, from page `from` to page `to`. */
        rd_status (*copy_rows)(struct backend *be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n_rows);
        /* A page to host memory and from it, as memory.read and write. */
        rd_status (*read)(struct backend *be, const struct kv_storage *kv, void *to, kv_page from);
        rd_status (*write)(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from);
    } pages;

    struct backend_op {
        /* out[r] = scale * row tokens[r] of w, f32 [n_rows, w->n_in]; tokens checked by the caller. */
        rd_status (*embed)(struct backend *be, const struct weight *w, uint32_t n_rows, const int32_t *tokens,
                           float scale, struct span out);
        rd_status (*residual_norm)(struct backend *be, const struct residual_norm_args *a);
        rd_status (*linear)(struct backend *be, const struct linear_args *a);
        rd_status (*qkv_rope_write)(struct backend *be, const struct qkv_args *a);
        rd_status (*attention)(struct backend *be, const struct attention_args *a);
        /* out[r, i] = act(gate[r, i]) * up[r, i]; contiguous [n_rows, width]; out may be gate. gelu tanh form,
         * arXiv:1606.08415. */
        rd_status (*glu)(struct backend *be, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                         struct span up, struct span out);
        /* (optional) linear and glu in one. */
        rd_status (*linear_glu)(struct backend *be, const struct linear_glu_args *a);
        /* (optional: without it a model has one rank) ranks.h; not RD_OK: as rank_group_meet, and a device is dead */
        rd_status (*join)(struct backend *be, const struct join_args *a);
        /* (optional: without it no adapter can be loaded) */
        rd_status (*low_rank)(struct backend *be, const struct low_rank_args *a);
        /* (optional: without it steps with adapters are not recorded) */
        rd_status (*low_rank_rows)(struct backend *be, const struct low_rank_rows_args *a);
        /* out[i] = x[rows[i]], [n, width] */
        rd_status (*gather)(struct backend *be, uint32_t n, uint32_t width, struct span x, const uint32_t *rows,
                            struct span out);
        /* (optional: only models with soft caps need it) x = cap * tanh(x / cap), in place, n values */
        rd_status (*softcap)(struct backend *be, struct span x, uint64_t n, float cap);
        /* (optional) choices[r] (struct row_choice) of n_rows rows of n_vocab logits; draws [n_rows] host memory.
         * NULL: the host reads logits and chooses. */
        rd_status (*choose)(struct backend *be, uint32_t n_rows, uint32_t n_vocab, struct span logits,
                            const struct row_draw *draws, struct span choices);
        /* (optional, all six: without them no encoder runs here) */
        rd_status (*layer_norm)(struct backend *be, const struct layer_norm_args *a);
        rd_status (*gelu)(struct backend *be, const struct gelu_args *a);
        rd_status (*turn)(struct backend *be, const struct turn_args *a);
        rd_status (*mean_rows)(struct backend *be, const struct mean_args *a);
        rd_status (*attend_pack)(struct backend *be, const struct attend_args *a);
        rd_status (*attend)(struct backend *be, const struct attend_args *a);
        /* (optional) turn: q and k are turned by its angles, row 0 is row0's; or NULL. RD_E_UNSUPPORTED, the same for all rows:
         * not these heads here, call turn and attend_pack. */
        rd_status (*attend_fill)(struct backend *be, const struct attend_args *a, const struct turn_args *turn);
        /* (optional) linear of one matrix, without its output, and choose of that: the same choices. draws: of
         * temperature 0, or draw_is_local (base/draw.h). RD_E_UNSUPPORTED: not here, call those two. */
        rd_status (*linear_choose)(struct backend *be, const struct linear_args *a, const struct row_draw *draws,
                                   struct span choices);
    } op;

    const struct backend_async *async; /* (optional) */
};

/* The one that every build has (tests, tools); others: backend_registry.h. */
extern const struct backend_ops backend_cpu_ops;
