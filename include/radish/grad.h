/* radish/grad.h - gradients of functions of arrays: reverse (vjp), forward (jvp), and recomputing (checkpoint).
 *
 * An array is a matrix of rows x cols numbers, row-major; a vector is 1 x n, a number 1 x 1. Functions are C function pointers
 * that make arrays of arrays by the ops below; they are run, and what they do is written down as it happens.
 *
 *     static const rd_array *loss(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n)
 *     {
 *         return rd_mse(g, rd_linear(g, arg, in[0]), in[1]);
 *     }
 *     ...
 *     const rd_array *in[2] = {w, wanted}, *value, *grads[2];
 *     rd_grad_value(g, loss, x, in, 2, &value, grads);
 *
 * A failed op gives NULL, and ops take NULL for an argument and give NULL: a function is checked at its end, by rd_grad_error.
 * The same bits for any number of threads and any instruction set (f32); f64 is for checking: it is slow.
 *
 * Owns    a session has its arrays; they go with it, or with rd_grad_release. What a function made on its way is gone when
 *         rd_grad_value, rd_vjp or rd_jvp return; what these give stays.
 * Thread  a session: one at a time.
 * Errors  RD_E_NOMEM; RD_E_INVALID: shapes that do not go together, arrays of different types, a call inside a function that is
 *         differentiated (except checkpoint).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rd_grad rd_grad;
typedef struct rd_array rd_array;

/* RD_BF16: rounded to it when made (nearest even), then computed with and differentiated as f32. */
enum rd_array_type { RD_F32, RD_BF16, RD_F64 };

/* n_threads 0: all cores. */
RD_API rd_status rd_grad_open(uint32_t n_threads, rd_grad **out, struct rd_error *err);
RD_API void rd_grad_close(rd_grad *g); /* NULL is fine */
/* The first failure since it was last asked; RD_OK: none. */
RD_API rd_status rd_grad_error(rd_grad *g, struct rd_error *err);
/* Frees all arrays made since a mark. */
RD_API size_t rd_grad_mark(const rd_grad *g);
RD_API void rd_grad_release(rd_grad *g, size_t mark);

/* values: float (also for RD_BF16) or double; NULL: zeros. */
RD_API const rd_array *rd_array_new(rd_grad *g, enum rd_array_type type, uint32_t rows, uint32_t cols,
                                    const void *values);
RD_API const void *rd_array_values(const rd_array *a); /* float, or double where RD_F64 */
RD_API uint32_t rd_array_rows(const rd_array *a);
RD_API uint32_t rd_array_cols(const rd_array *a);

/* ---- functions ---- */

typedef const rd_array *rd_grad_fn(rd_grad *g, void *arg, const rd_array *const *in, uint32_t n_in);

/* Of a function to one number: its value and grads[n_in], of the inputs' shapes. */
RD_API rd_status rd_grad_value(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in,
                               const rd_array **value, const rd_array **grads);
/* grads = cotangent (of the value's shape) times the derivative. */
RD_API rd_status rd_vjp(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in,
                        const rd_array *cotangent, const rd_array **value, const rd_array **grads);
/* *tangent = the derivative times tangents[n_in]; a NULL among these is zeros. */
RD_API rd_status rd_jvp(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in,
                        const rd_array *const *tangents, const rd_array **value, const rd_array **tangent);
/* fn(in), for use inside a function: what fn makes is freed and made again when it is gone back through. The same bits. fn must
 * give the same when called again, with the same arg, which must live until then. */
RD_API const rd_array *rd_checkpoint(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in);

/* ---- ops ---- */

/* b of a's shape, or one row for all rows. */
RD_API const rd_array *rd_add(rd_grad *g, const rd_array *a, const rd_array *b);
RD_API const rd_array *rd_sub(rd_grad *g, const rd_array *a, const rd_array *b);
RD_API const rd_array *rd_mul(rd_grad *g, const rd_array *a, const rd_array *b);
RD_API const rd_array *rd_scale(rd_grad *g, const rd_array *a, double s);
RD_API const rd_array *rd_silu(rd_grad *g, const rd_array *a);
RD_API const rd_array *rd_gelu(rd_grad *g, const rd_array *a); /* tanh's form */
RD_API const rd_array *rd_tanh(rd_grad *g, const rd_array *a);
RD_API const rd_array *rd_exp(rd_grad *g, const rd_array *a);
RD_API const rd_array *rd_matmul(rd_grad *g, const rd_array *a, const rd_array *b); /* [m, k] [k, n] */
RD_API const rd_array *rd_linear(rd_grad *g, const rd_array *x, const rd_array *w); /* x w^T: [m, k] [n, k] */
RD_API const rd_array *rd_reshape(rd_grad *g, const rd_array *a, uint32_t rows, uint32_t cols);
RD_API const rd_array *rd_transpose(rd_grad *g, const rd_array *a);
/* Row by row: x / sqrt(mean(x^2) + eps) * w; (x - mean) / sqrt(var + eps) * w + b. w, b: 1 x cols */
RD_API const rd_array *rd_rms_norm(rd_grad *g, const rd_array *x, const rd_array *w, double eps);
RD_API const rd_array *rd_layer_norm(rd_grad *g, const rd_array *x, const rd_array *w, const rd_array *b, double eps);
RD_API const rd_array *rd_softmax(rd_grad *g, const rd_array *a); /* of each row */
/* Heads of x [n, n_heads * dim] turned by position * theta^(-2i/dim): pairs (i, i + dim/2), or (2i, 2i+1) interleaved. */
RD_API const rd_array *rd_rope(rd_grad *g, const rd_array *x, uint32_t n_heads, const uint32_t *positions, double theta,
                               bool interleaved);
/* softmax(cap(scale q k^T)) v: q [n, n_heads * dim], k, v [n, n_kv_heads * dim], row i sees rows max(0, i-window+1) .. i. */
struct rd_attention {
    uint32_t n_heads, n_kv_heads;
    double scale, softcap; /* softcap 0: none */
    uint32_t window;       /* 0: all earlier rows */
};
RD_API const rd_array *rd_attend(rd_grad *g, const rd_array *q, const rd_array *k, const rd_array *v,
                                 const struct rd_attention *a);
RD_API const rd_array *rd_embed_rows(rd_grad *g, const rd_array *table, const int32_t *ids, uint32_t n);
/* The mean of -log softmax(row)[target]; weights [rows]: a weighted mean, 0 leaves a row out; NULL: all 1. */
RD_API const rd_array *rd_cross_entropy(rd_grad *g, const rd_array *logits, const int32_t *targets,
                                        const float *weights);
RD_API const rd_array *rd_mse(rd_grad *g, const rd_array *a, const rd_array *b); /* mean of squares of a - b */
RD_API const rd_array *rd_sum(rd_grad *g, const rd_array *a);

#ifdef __cplusplus
}
#endif
