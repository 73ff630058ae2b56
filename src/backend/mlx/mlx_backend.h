/* backend/mlx/mlx_backend.h - what the files of this backend share.
 *
 * MLX's arrays are values that never change, and are computed when they are asked for. The ops of backend.h write into places of
 * buffers. Between the two stands struct buffer: it knows which array is at which place now (mlx_buffer.c). An op reads the
 * arrays of its inputs, makes new ones of them and puts those in their places; sync evaluates what was asked for (memory.read),
 * the pages and what is still in its place. Every few layers what there is by then begins to be computed (mlx_attention.c).
 *
 *     buffer  [ x: array ][ norm: array ][ nothing yet ][ q: array ] ...
 *     pages   for every layer, K and V each: [rows, n_kv_heads * head_dim], row = page * page_tokens + slot
 *
 * Where a step is not waited for at once, a thread beside evaluates it (mlx_ahead.c).
 * Sums are MLX's own: a row's bits depend on how many are computed with it, and the backend says that it is not exact.
 * Thread, errors  as backend.h. A failure of MLX is written to the log with its text.
 */
#pragma once
#include "backend/backend.h"
#include "backend/mlx/mlx_shim.h"
#include "base/thread.h"

/* Floats at a place. */
struct mlx_piece {
    uint64_t at, n_bytes;
    mlx_ref array; /* of n_bytes / 4 floats, in any shape */
    bool dirty;    /* made since the last sync */
};

struct buffer {
    struct buffer *next, **self; /* in the backend's list */
    uint64_t n_bytes;
    struct mlx_piece *pieces; /* by place, none overlaps another */
    size_t n, cap;
};

/* What memory.read was asked for: copied by sync. */
struct mlx_reading {
    mlx_ref array;
    void *to;
    uint64_t n_bytes;
};

/* Rows of attention that are computed together: n sequences of one row each (n_keys: of the longest), or n rows of one sequence
 * (from its key first on). */
struct mlx_rows {
    bool is_one;
    uint32_t row0, n, n_keys, pos0, first;
    mlx_ref keys; /* i32 rows of the pages: [n, n_keys], or [1, n_keys] */
    mlx_ref mask; /* or NULL */
};
/* What a step's layers share, made from arrays in host memory, which stay until sync. */
struct mlx_step {
    const void *runs;
    uint32_t n_runs, window;
    struct mlx_rows *rows;
    size_t n, cap;
};
struct mlx_indices {
    const void *of, *beside; /* host arrays */
    uint32_t n;
    mlx_ref array;
};
#define MLX_STEPS   3u /* runs of all rows, of the last ones, and within a window */
#define MLX_INDICES 4u

struct mlx_weight {
    mlx_ref w, scales, biases, periods; /* periods: one over them, made when they turn out to be frequencies */
    uint32_t bits, group;               /* 0: w alone */
    bool is_rows;                       /* w: rows of the file's bytes, which are opened as they are multiplied */
    struct host_tensor host;            /* WEIGHT_EMBED: rows are read from the file */
    float *values;                      /* WEIGHT_LOW_RANK, until w is made of them; mlx_low_rank.c */
    struct mlx_weight *next_gone;
};

/* The arrays behind pages, which grow as pages are first used. */
struct mlx_pages {
    uint32_t capacity; /* pages that there is memory for */
    uint32_t n_arrays; /* 2 * n_layers */
    bool dirty;
    mlx_ref arrays[]; /* [layer][K, V] */
};

struct backend {
    struct mlx_context *g;
    struct cpu_pool *pool; /* for loops of ours, where there is no GPU; else NULL */
    bool is_gpu, is_dead;
    uint64_t n_steps;
    struct buffer *buffers;
    struct mlx_reading *readings;
    size_t n_readings, cap_readings;
    struct mlx_pages **pages; /* all that there are */
    size_t n_pages, cap_pages;
    mlx_ref *wanted; /* what sync evaluates */
    size_t cap_wanted;
    struct mlx_step steps[MLX_STEPS];
    uint32_t next_step;
    struct mlx_indices indices[MLX_INDICES];
    uint32_t next_index;
    const uint32_t *from; /* of the graph_step that begins, and its choices */
    struct span choices;
    bool no_ahead;
    struct mlx_ahead *ahead; /* NULL until the first mark */
    struct mutex gone_lock;
    struct mlx_weight *gone; /* adapters' that were unloaded */
};

/* ---- mlx_backend.c ---- */

/* Ends an op: RD_OK, or what MLX said. */
rd_status mlx_settle(struct backend *be, const char *what);
rd_status mlx_settle_error(struct backend *be, const char *what, struct rd_error *err);
/* i32 of n host numbers [beside NULL], or of of[i] * times + beside[i]; the same array until sync. */
mlx_ref mlx_indices_of(struct backend *be, const uint32_t *of, uint32_t times, const uint32_t *beside, uint32_t n);
/* What was made from arrays in host memory: a pass begins, or one has failed. */
void mlx_forget_arguments(struct backend *be);
rd_status mlx_want(struct backend *be, mlx_ref array, void *to, uint64_t n_bytes);
/* What is to be computed now, in be->wanted: what was asked for, pages, and what was put somewhere since. */
bool mlx_list_wanted(struct backend *be, uint32_t *n);
/* All of that was computed, or will be. */
void mlx_is_clean(struct backend *be);
/* What the step has asked for, and what was made from its arrays in host memory, goes. */
void mlx_forget_step(struct backend *be);
/* After a failure: nothing of the step is kept, and the pages must still be there. */
void mlx_recover(struct backend *be);

/* ---- mlx_ahead.c ---- */

/* The thread beside is done with MLX's graph; before this one touches it. Steps that it has begun may still be computed. */
void mlx_ahead_join(struct backend *be);
/* A mark is set: the step before is still computed. */
bool mlx_ahead_is_set(const struct backend *be);
void mlx_ahead_destroy(struct backend *be);
extern const struct backend_async mlx_async;

/* ---- mlx_rows.c ---- */

rd_status mlx_embed(struct backend *be, const struct weight *w, uint32_t n_rows, const int32_t *tokens, float scale,
                    struct span out);
rd_status mlx_choose(struct backend *be, uint32_t n_rows, uint32_t n_vocab, struct span logits,
                     const struct row_draw *draws, struct span choices);

static inline struct mlx_shape mlx_dims1(uint64_t a)
{
    return (struct mlx_shape){1, {(int32_t)a}};
}
static inline struct mlx_shape mlx_dims2(uint64_t a, uint64_t b)
{
    return (struct mlx_shape){2, {(int32_t)a, (int32_t)b}};
}
static inline struct mlx_shape mlx_dims4(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return (struct mlx_shape){4, {(int32_t)a, (int32_t)b, (int32_t)c, (int32_t)d}};
}

/* ---- mlx_buffer.c ---- */

rd_status mlx_alloc(struct backend *be, uint64_t n_bytes, struct buffer **out);
void mlx_free(struct backend *be, struct buffer *b);
/* [n_rows, width] of rows that are stride floats apart. What was never written is 0. */
mlx_ref mlx_load(struct backend *be, struct span s, uint32_t n_rows, uint32_t width, uint32_t stride);
/* The reverse: a is f32 of n_rows * width values in any shape. */
void mlx_store(struct backend *be, struct span s, mlx_ref a, uint32_t n_rows, uint32_t width, uint32_t stride);
rd_status mlx_buffer_read(struct backend *be, void *to, struct span from, uint64_t n_bytes);
rd_status mlx_buffer_write(struct backend *be, struct span to, const void *from, uint64_t n_bytes);

/* ---- mlx_weights.c ---- */

const struct mlx_weight *mlx_weight_of(const struct weight *w);
rd_status mlx_weight_load(struct backend *be, const struct host_tensor *t, enum weight_role role, struct weight *out,
                          struct rd_error *err);
void mlx_weight_unload(struct backend *be, struct weight *w);
bool mlx_takes_groups(const struct backend *be, const struct weight_groups *g);
/* x [n, n_in] f32 times w transposed, f32. */
mlx_ref mlx_times(struct backend *be, mlx_ref x, const struct weight *w);

/* ---- mlx_pages.c ---- */

rd_status mlx_pages_create(struct backend *be, const struct kv_layout *layout, uint32_t n_pages,
                           struct kv_storage *out);
void mlx_pages_destroy(struct backend *be, struct kv_storage *kv);
rd_status mlx_pages_copy_rows(struct backend *be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n_rows);
rd_status mlx_pages_read(struct backend *be, const struct kv_storage *kv, void *to, kv_page from);
rd_status mlx_pages_write(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from);
/* Room for the page. */
bool mlx_pages_reach(struct backend *be, const struct kv_storage *kv, kv_page id);
mlx_ref *mlx_pages_array(const struct kv_storage *kv, uint32_t layer, uint32_t which);
void mlx_pages_touch(const struct kv_storage *kv);

/* ---- mlx_attention.c ---- */

rd_status mlx_qkv_rope_write(struct backend *be, const struct qkv_args *a);
rd_status mlx_attention_op(struct backend *be, const struct attention_args *a);
void mlx_step_forget(struct mlx_step *s);

/* ---- mlx_low_rank.c ---- */

/* Any thread, both; the engine thread looks after what is gone. */
rd_status mlx_low_rank_load(const struct host_tensor *t, struct weight *out, struct rd_error *err);
void mlx_low_rank_unload(struct backend *be, struct mlx_weight *w);
void mlx_low_rank_let_go(struct backend *be);
rd_status mlx_low_rank(struct backend *be, const struct low_rank_args *a);
