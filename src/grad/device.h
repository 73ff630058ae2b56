/* grad/device.h - what going back is made of, for each backend that trains: memory, and the gradient of every op on arrays in it.
 *
 *     grad_device_cpu    host memory, f32 throughout, in threads (compute.h)
 *     grad_device_cuda   the GPU's memory (cuda/), products in bf16 with f32 sums; in the stream of the backend's ops
 *
 * Arrays are addresses in the device's memory, row-major and contiguous. Three kinds of numbers:
 *     float            the residual stream and its gradients, sums, trained numbers
 *     kept   (void *)  values that the forward pass had, where rounding to kept_type is little to a gradient
 *     out    (void *)  gradients of what linear gave, read by products alone: out_bytes each
 * The CPU has f32 for all three.
 *
 * Whatever a result is summed of, the order follows from shapes alone: not from threads, free memory or what was computed again.
 * Functions are asynchronous where the backend's ops are; read and write below wait.
 * Thread  one.  Errors  RD_E_NOMEM; RD_E_DEVICE.
 */
#pragma once
#include "backend/backend.h"
#include "grad/adamw.h"

struct grad_device;

/* Which numbers of x [n_rows, n_in] A reads: those whose word of philox(i / 4, row, id, pass; seed) is at least dropout * 2^32, times
 * 1 / (1 - dropout). dropout 0: all, as they are. */
struct grad_mask {
    float dropout;
    uint32_t id, pass;
    uint64_t seed;
};

/* residual_norm: dx += gradient of out, and what delta gets of it. */
struct grad_norm {
    const struct residual_norm_args *a;
    const float *x;    /* x + delta */
    const void *delta; /* kept; NULL: no delta_norm */
    const float *dy;   /* of out; NULL: it gets nothing */
    float *dx;
    void *ddelta; /* out; written; NULL: no delta */
};
/* y of up to three loaded matrices of one x:  dx [n_rows, n_in] (+)= the sum of dy [n_rows, n_out] (out) W. */
struct grad_linear {
    uint32_t n_rows, n;
    struct {
        const struct weight *w;
        const void *dy;
    } of[3];
    float *dx;
    bool add;
};
#define GRAD_TERMS 4u
/* y += scale (x A^T) B:  da += , db += (NULL: this pair is not trained), dx += (NULL: nothing before is trained). */
struct grad_low_rank {
    const struct low_rank_term *term;
    const struct grad_mask *mask;
    const void *x;  /* kept */
    const float *t; /* scale x A^T as the forward pass had it, [n_rows, rank]; NULL: the device does not read it */
    const void *dy; /* out */
    float *dx, *da, *db;
    bool dx_is_new; /* uninitialised: dx = */
};
/* qkv_rope_write: q, k as they were before their norms (kept; NULL: none). dq, dk, dv of what attention read become those of what
 * linear gave, in out; where out_bytes are 4 that is the same memory. NULL: it gets nothing. */
struct grad_qkv {
    const struct qkv_args *a;
    const void *q, *k;
    float *dq, *dk, *dv;
    void *out_q, *out_k, *out_v;
};
/* attention: dq, of its rows, and dk, dv [n_rows, n_kv_heads * head_dim], of all rows of the pass: written.
 * row_of [n_pages * page_tokens], host memory: the row that wrote there. */
struct grad_attention {
    const struct attention_args *a;
    const void *q; /* as it was read; where kept_type is not F32, of the keys' type */
    const float *dout;
    float *dq, *dk, *dv;
    const uint32_t *row_of;
    uint32_t n_rows;
};
struct grad_glu {
    enum activation act;
    uint64_t n;
    const void *gate, *up; /* kept */
    const float *dy;
    void *dgate, *dup; /* out */
};
/* Losses first .. first + n_rows - 1 of n_all, that losses_of reads: -log softmax(cap(logits[r]))[targets[r]]. gradient (out): weight
 * times that of the logits before their cap (the logits are behind it); on a CPU it is their memory. */
struct grad_loss {
    struct span logits;
    uint32_t n_rows, n_vocab, first, n_all;
    const int32_t *targets; /* host memory, until losses_of */
    float cap;              /* 0: none */
    double weight;          /* 0: no gradient */
    void *gradient;
};
/* AdamW of all halves of pairs: number i of a half is grads[at + i]. */
struct grad_half {
    float *values; /* what ops read */
    uint64_t at, n;
};
struct grad_update {
    struct adamw o;
    double scale; /* of the gradients */
    uint32_t n_halves;
    const struct grad_half *halves;
    float *masters; /* values are these, rounded to bf16; NULL: values are the numbers */
    const float *grads;
    float *moments, *squares;
};

struct grad_device_ops {
    const char *name; /* of the backend */
    enum dtype kept_type;
    uint32_t out_bytes;
    bool reads_t; /* of low_rank */

    /* inner: of the backend whose ops the forward pass is; outlives the device. */
    rd_status (*create)(const struct backend_options *o, struct backend *inner, struct grad_device **out,
                        struct rd_error *err);
    void (*destroy)(struct grad_device *d); /* NULL is fine */

    /* Whether frozen products go back on a matrix unit, which gives others than the bits that a processor without one has (matrix_unit.h).
     * NULL: no. */
    bool (*has_matrix_unit)(const struct grad_device *d);

    /* Weights that backend_ops loaded, or unloads: what the way back needs of them. NULL: nothing. */
    rd_status (*loaded)(struct grad_device *d, const struct host_tensor *t, const struct weight *w);
    void (*unloaded)(struct grad_device *d, const struct weight *w);

    /* Uninitialised; NULL: no memory, after all that lies idle was given back. */
    void *(*take)(struct grad_device *d, uint64_t n_bytes);
    void (*give)(struct grad_device *d, void *p); /* NULL is fine */
    void (*trim)(struct grad_device *d);          /* between passes: what is idle for long */
    rd_status (*zero)(struct grad_device *d, void *p, uint64_t n_bytes);
    /* To and from host memory; both wait. */
    rd_status (*read)(struct grad_device *d, void *to, const void *from, uint64_t n_bytes);
    rd_status (*write)(struct grad_device *d, void *to, const void *from, uint64_t n_bytes);
    /* n floats of an activation to what is kept of it: F32, kept_type, or where that is not F32 any plain type; and back, of F32. */
    rd_status (*keep)(struct grad_device *d, void *to, enum dtype type, struct span from, uint64_t n);
    rd_status (*restore)(struct grad_device *d, struct span to, const void *from, uint64_t n);
    /* x [n_rows, n_in] with dropout, in *out until the next call: for low_rank. */
    rd_status (*drop)(struct grad_device *d, const struct grad_mask *m, struct span x, uint32_t n_rows, uint32_t n_in,
                      struct span *out);

    rd_status (*linear_back)(struct grad_device *d, const struct grad_linear *a);
    rd_status (*norm_back)(struct grad_device *d, const struct grad_norm *a);
    /* n terms of one x, n <= GRAD_TERMS. dx may be there only after the linear_back of the matrices' x, which follows: the same dx. */
    rd_status (*low_rank_back)(struct grad_device *d, const struct grad_low_rank *terms, uint32_t n);
    rd_status (*qkv_back)(struct grad_device *d, const struct grad_qkv *a);
    rd_status (*attention_back)(struct grad_device *d, const struct grad_attention *a);
    rd_status (*glu_back)(struct grad_device *d, const struct grad_glu *a);
    /* dx[rows[i]] += dy[i], [n, width]; rows: host memory of the pass, all different. */
    rd_status (*gather_back)(struct grad_device *d, uint32_t n, uint32_t width, const uint32_t *rows, const float *dy,
                             float *dx);
    rd_status (*loss)(struct grad_device *d, const struct grad_loss *a);
    /* The first n. Waits. */
    rd_status (*losses_of)(struct grad_device *d, uint32_t n, double *out);

    rd_status (*sum_squares)(struct grad_device *d, const float *x, uint64_t n, double *out); /* waits */
    rd_status (*update)(struct grad_device *d, const struct grad_update *u);
    /* values = masters rounded to bf16. */
    rd_status (*round)(struct grad_device *d, const float *masters, float *values, uint64_t n);
};

extern const struct grad_device_ops grad_device_cpu, grad_device_cuda;
/* Of a backend's name; NULL: it does not train, or is not in this build. */
const struct grad_device_ops *grad_device_of(const char *name);
