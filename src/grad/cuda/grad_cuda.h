/* grad/cuda/grad_cuda.h - the kernels behind grad_device_cuda, as launch functions with plain types.
 *
 * All pointers are device memory except for the argument structs. A launch is asynchronous in l->stream and returns a
 * cudaError_t as int: 0 is success. "16" are bf16 numbers in uint16_t. Sums are f32; no atomics: every sum has an order that
 * follows from shapes. Thread  one.
 */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Types of what is kept: enum dtype, F32, F16 or BF16. */
int grad_cuda_keep(const struct cuda_launch *l, int dtype, uint64_t n, const float *from, void *to);

/* Rows first .. first + n - 1 of w, turned: out [w->n_in, stride] bf16, columns n .. stride - 1 zeros; stride a multiple of 64. */
int grad_cuda_open(const struct cuda_launch *l, const struct cuda_matrix *w, uint32_t first, uint32_t n,
                   uint32_t stride, uint16_t *out);

/* dx [n_rows, n_in] f32 (+)= the sum of dy [n_rows, k] w [k, n_in], bf16. */
struct grad_cuda_factor {
    const uint16_t *dy, *w;
    uint32_t k, dy_stride, w_stride;
};
#define GRAD_CUDA_FACTORS 6u
struct grad_cuda_sum {
    uint32_t n_rows, n_in, n;
    struct grad_cuda_factor factors[GRAD_CUDA_FACTORS];
    float *dx;
    bool add;
};
/* Whether shapes, addresses and the device suit it. */
bool grad_cuda_sum_fits(const struct cuda_launch *l, const struct grad_cuda_sum *a);
int grad_cuda_sum(const struct cuda_launch *l, const struct grad_cuda_sum *a);

struct grad_cuda_norm {
    uint32_t n_rows, width;
    const float *x, *dy, *norm, *delta_norm; /* dy NULL: nothing of out; delta_norm NULL: none */
    const uint16_t *delta;
    float eps;
    float *dx;
    uint16_t *ddelta; /* or NULL */
};
int grad_cuda_norm(const struct cuda_launch *l, const struct grad_cuda_norm *a);

int grad_cuda_glu(const struct cuda_launch *l, int act, uint64_t n, const uint16_t *gate, const uint16_t *up,
                  const float *dy, uint16_t *dgate, uint16_t *dup);
int grad_cuda_scatter(const struct cuda_launch *l, uint32_t n, uint32_t width, const uint32_t *rows, const float *dy,
                      float *dx);

/* device.h's struct grad_mask. */
struct grad_cuda_mask {
    uint32_t least, id, pass;
    float scale;
    uint64_t seed;
};
int grad_cuda_drop(const struct cuda_launch *l, const struct grad_cuda_mask *m, uint32_t n_rows, uint32_t n_in,
                   const float *x, float *out);
int grad_cuda_drop16(const struct cuda_launch *l, const struct grad_cuda_mask *m, uint32_t n_rows, uint32_t n_in,
                     const uint16_t *x, uint16_t *out);
/* dx = or += mask(g) */
int grad_cuda_drop_add(const struct cuda_launch *l, const struct grad_cuda_mask *m, uint32_t n_rows, uint32_t n_in,
                       const float *g, bool is_new, float *dx);

struct grad_cuda_qkv {
    uint32_t n_rows, n_heads, n_kv_heads, head_dim, n_rot;
    const uint32_t *positions;
    const float *inv_freq, *q_norm, *k_norm; /* norms or NULL */
    float mscale, eps;
    bool half_split;
    const uint16_t *q, *k;     /* before their norms */
    const float *dq, *dk, *dv; /* NULL: nothing */
    uint16_t *out_q, *out_k, *out_v;
};
int grad_cuda_qkv(const struct cuda_launch *l, const struct grad_cuda_qkv *a);

/* ---- low rank ---- */

/* A [rank, n_in] as bf16, and turned: [n_in, stride], columns rank .. stride - 1 zeros, or NULL; the same of B, which is not turned. */
int grad_cuda_pair(const struct cuda_launch *l, uint32_t rank, uint32_t n_in, uint32_t n_out, uint32_t stride,
                   const float *a, const float *b, uint16_t *a16, uint16_t *a_turned, uint16_t *b16);
/* out [n_rows, stride] bf16 = scale * x [n_rows, k] p [rank, k]^T; columns rank .. stride - 1 zeros, stride a multiple of 64. */
int grad_cuda_down(const struct cuda_launch *l, uint32_t n_rows, uint32_t k, uint32_t rank, const uint16_t *x,
                   const uint16_t *p, float scale, uint32_t stride, uint16_t *out);
/* dp [rank, n] += t [n_rows, stride]^T x [n_rows, n]; scratch: grad_cuda_outer_floats. */
uint64_t grad_cuda_outer_floats(uint32_t n_rows, uint32_t rank, uint32_t n);
int grad_cuda_outer(const struct cuda_launch *l, uint32_t n_rows, uint32_t rank, uint32_t n, const uint16_t *t,
                    uint32_t stride, const uint16_t *x, float *scratch, float *dp);

/* ---- attention ---- */

/* One sequence: rows q_row0 .. of q, at rising positions; its keys' rows are key_row0 .., position 0 first; its pages
 * tables[table ..]. */
struct grad_cuda_sequence {
    uint32_t q_row0, n_q, key_row0, n_keys, table;
};
/* A block's work: 64 query rows, or keys, of a sequence. */
struct grad_cuda_tile {
    uint32_t sequence, first;
};
struct grad_cuda_attention {
    uint32_t n_rows, n_heads, n_kv_heads, head_dim;
    uint32_t q_stride, out_stride;
    const void *q; /* kept, of type q_type */
    int q_type;
    const float *dout;
    float scale, softcap;
    uint32_t window;
    struct cuda_kv kv;
    bool plain; /* not by tiles, to compare */
    uint32_t n_sequences, n_q_tiles, n_key_tiles, max_keys;
    const struct grad_cuda_sequence *sequences;
    const struct grad_cuda_tile *q_tiles, *key_tiles;
    const uint32_t *positions; /* [n_rows] of q */
    const uint32_t *tables;
    float *stats; /* [n_rows, n_heads, 2] scratch: log of the sum of exponentials, and sum p dp */
    float *dq, *dk, *dv;
};
int grad_cuda_attention(const struct cuda_launch *l, const struct grad_cuda_attention *a);

/* ---- loss, numbers ---- */

/* losses[r] of n_rows rows; gradient16 [n_rows, n_vocab], or NULL. */
int grad_cuda_loss(const struct cuda_launch *l, uint32_t n_rows, uint32_t n_vocab, const float *logits,
                   const int32_t *targets, float cap, float weight, uint16_t *gradient16, double *losses);
#define GRAD_CUDA_PARTS 256u
/* parts [GRAD_CUDA_PARTS] */
int grad_cuda_squares(const struct cuda_launch *l, uint64_t n, const float *x, double *parts);
struct grad_cuda_adamw {
    float b1, b2, c1, c2, rate, keep, root, eps, scale;
};
/* values may be p: then p is not rounded. */
int grad_cuda_update(const struct cuda_launch *l, const struct grad_cuda_adamw *o, uint64_t n, const float *g, float *m,
                     float *v, float *p, float *values);
int grad_cuda_round(const struct cuda_launch *l, uint64_t n, const float *from, float *to);

#ifdef __cplusplus
}
#endif
