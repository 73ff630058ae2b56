/* backend/mlx/mlx_shim.h - the part of MLX that radish uses, as a flat C interface: mlx_shim.cpp is the only file that sees C++.
 *
 * What computes only writes down what is to be computed (MLX is lazy); mlx_eval and mlx_get do it. An mlx_ref that a function
 * gives lives until mlx_end, unless mlx_keep made another of it, which lives until mlx_drop.
 *
 * Errors  no exception leaves. A function that fails gives NULL (or false), and so does every one that is given a NULL: an
 *         expression is written as one, and asked about once. The first reason is kept: mlx_failure.
 * Thread  a context belongs to one thread at a time; MLX has threads of its own below.
 * Source  MLX's C++ headers, mlx/ops.h, mlx/fast.h, mlx/memory.h: the names are theirs.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mlx_context;
typedef struct mlx_value *mlx_ref;

enum mlx_type { MLX_F32, MLX_F16, MLX_BF16, MLX_I32, MLX_U32, MLX_U8 };

#define MLX_MAX_DIMS 4u
struct mlx_shape {
    uint32_t n;
    int32_t dims[MLX_MAX_DIMS];
};

/* ---- life ---- */

/* gpu: Metal, where there is one (mlx_has_gpu). A reason in text where it fails, NULL then. */
struct mlx_context *mlx_open(bool gpu, char *text, uint64_t n_text);
/* NULL is fine. Everything kept must have been dropped. */
void mlx_close(struct mlx_context *g);
bool mlx_has_gpu(void);
/* Another context, for another thread, whose work is in the same order as g's (one stream). NULL: out of memory. */
struct mlx_context *mlx_open_beside(const struct mlx_context *g);
/* For loops of ours on a CPU, until the context is closed: n threads, a number below n for each; run calls fn for every tile and
 * returns when all are done. It is called by one thread at a time, MLX's for the stream. */
struct mlx_threads {
    uint32_t n;
    void *pool;
    void (*run)(void *pool, void (*fn)(void *arg, uint32_t tile, uint32_t thread), void *arg, uint32_t n_tiles);
};
void mlx_use_threads(struct mlx_context *g, const struct mlx_threads *t);
/* "0.32.4" */
const char *mlx_version(void);
/* The first failure since it was last asked, and its reason; RD_OK: none. RD_E_NOMEM, else RD_E_DEVICE. */
rd_status mlx_failure(struct mlx_context *g, char *text, uint64_t n_text);
/* Lets go of what was not kept. */
void mlx_end(struct mlx_context *g);
mlx_ref mlx_keep(struct mlx_context *g, mlx_ref a);
void mlx_drop(mlx_ref a); /* NULL is fine */

struct mlx_memory {
    uint64_t limit, active, peak, cache; /* bytes, of this process's MLX */
};
/* Any thread, with or without a context. */
void mlx_memory_read(struct mlx_memory *out);
/* Freed arrays are kept for the next ones, up to this many bytes; and no more than what the limit leaves. */
bool mlx_memory_cache_limit(struct mlx_context *g, uint64_t n_bytes);
/* Gives them back. */
bool mlx_memory_clear(struct mlx_context *g);

/* ---- values ---- */

mlx_ref mlx_from(struct mlx_context *g, enum mlx_type t, struct mlx_shape s, const void *data); /* copies */
mlx_ref mlx_zeros(struct mlx_context *g, enum mlx_type t, struct mlx_shape s);
struct mlx_shape mlx_shape_of(mlx_ref a);
uint64_t mlx_bytes_of(mlx_ref a);
/* Where its bytes are, of one that was computed; for tests: whether an update was made in place. */
const void *mlx_address_of(mlx_ref a);
bool mlx_eval(struct mlx_context *g, uint32_t n, const mlx_ref *a);
/* Begins to compute them, and does not wait. */
bool mlx_eval_async(struct mlx_context *g, uint32_t n, const mlx_ref *a);
/* Of an array in one piece that is computed, or being so: waits, and copies its first n_bytes. Makes nothing, so that another
 * thread may be at the graph. */
bool mlx_copy_out(struct mlx_context *g, mlx_ref a, void *to, uint64_t n_bytes);
/* Computes a, and copies its first n_bytes. */
bool mlx_get(struct mlx_context *g, mlx_ref a, void *to, uint64_t n_bytes);

/* What fn makes of the n_in arrays, when it is computed: by a thread of MLX's, in host memory, each in one piece. f32 of shape s.
 * arg goes to let_go in the end, on any thread; also after a failure. */
typedef void (*mlx_function)(void *arg, const void *const *in, float *out);
mlx_ref mlx_call(struct mlx_context *g, struct mlx_shape s, uint32_t n_in, const mlx_ref *in, mlx_function fn,
                 void *arg, void (*let_go)(void *arg));

/* ---- shapes ---- */

mlx_ref mlx_as(struct mlx_context *g, mlx_ref a, enum mlx_type t);
mlx_ref mlx_as_of(struct mlx_context *g, mlx_ref a, mlx_ref b); /* as b's type */
mlx_ref mlx_reshape(struct mlx_context *g, mlx_ref a, struct mlx_shape s);
mlx_ref mlx_slice(struct mlx_context *g, mlx_ref a, uint32_t axis, int32_t from, int32_t to);
mlx_ref mlx_swap(struct mlx_context *g, mlx_ref a, uint32_t axis, uint32_t other);
/* As its shape says, row after row. */
mlx_ref mlx_in_one_piece(struct mlx_context *g, mlx_ref a);
mlx_ref mlx_concat(struct mlx_context *g, uint32_t n, const mlx_ref *a, uint32_t axis);
/* a with b in it, from index `from` of an axis on. */
mlx_ref mlx_replace(struct mlx_context *g, mlx_ref a, mlx_ref b, uint32_t axis, int32_t from);
/* Along axis 0; rows: i32. */
mlx_ref mlx_take(struct mlx_context *g, mlx_ref a, mlx_ref rows);
/* a [n, width] with its rows replaced: by new_rows [n_rows, width]. */
mlx_ref mlx_put(struct mlx_context *g, mlx_ref a, mlx_ref rows, mlx_ref new_rows);

/* ---- arithmetic ---- */

mlx_ref mlx_add(struct mlx_context *g, mlx_ref a, mlx_ref b);
mlx_ref mlx_multiply(struct mlx_context *g, mlx_ref a, mlx_ref b);
mlx_ref mlx_scale(struct mlx_context *g, mlx_ref a, float by);
mlx_ref mlx_reciprocal(struct mlx_context *g, mlx_ref a);
mlx_ref mlx_tanh(struct mlx_context *g, mlx_ref a);
mlx_ref mlx_silu(struct mlx_context *g, mlx_ref a);
mlx_ref mlx_gelu_tanh(struct mlx_context *g, mlx_ref a);
/* x [n, n_in] times w [n_out, n_in], transposed. */
mlx_ref mlx_matmul(struct mlx_context *g, mlx_ref x, mlx_ref w);
/* Groups of `group` weights of a row: scale * q + bias, q of `bits` bits. Or bits 0: w alone. */
struct mlx_groups {
    mlx_ref w, scales, biases;
    uint32_t bits, group;
    /* Or NULL. w: bytes u8 [n_out, those of a row] of a type that MLX does not know; a row of n values becomes floats so. */
    void (*open)(uint32_t type, const void *row, float *to, uint64_t n);
    uint32_t type;
};
mlx_ref mlx_quantized_matmul(struct mlx_context *g, mlx_ref x, const struct mlx_groups *w);
/* On a CPU alone: the same by loops of ours, x and the result f32, for all rows in about the time that MLX takes for one
 * (mlx_products.cpp), in as many threads as mlx_use_threads said, with the same bits. w: scales and
 * biases of f32; or bits 0: w alone, f32 or bf16, or rows with what opens them. */
mlx_ref mlx_own_matmul(struct mlx_context *g, mlx_ref x, const struct mlx_groups *w);
mlx_ref mlx_rms_norm(struct mlx_context *g, mlx_ref x, mlx_ref weight, float eps);
/* x [n, heads, 1, dim], a position for each of n, periods [n_rot / 2]: one over the frequencies. */
mlx_ref mlx_rope(struct mlx_context *g, mlx_ref x, uint32_t n_rot, bool interleaved, mlx_ref positions,
                 mlx_ref periods);

/* q [n, heads, n_q, dim], k and v [n, kv heads, n_k, dim]; mask [n, 1, n_q, n_k], added to the scores, or NULL with `causal`:
 * the last query sees all keys, the one before all but the last; or neither. softcap 0: none. */
struct mlx_attention {
    mlx_ref q, k, v, mask;
    bool causal;
    float scale, softcap;
};
mlx_ref mlx_attend(struct mlx_context *g, const struct mlx_attention *a);

#ifdef __cplusplus
}
#endif
