/* grad/array.h - inside of radish/grad.h: an array is a node of what was done. */
#pragma once
#include "grad/compute.h"
#include "radish/grad.h"

enum array_op {
    ARRAY_LEAF,
    ARRAY_ADD,
    ARRAY_SUB,
    ARRAY_MUL,
    ARRAY_SCALE,
    ARRAY_SILU,
    ARRAY_GELU,
    ARRAY_TANH,
    ARRAY_EXP,
    ARRAY_MATMUL,
    ARRAY_LINEAR,
    ARRAY_RESHAPE,
    ARRAY_TRANSPOSE,
    ARRAY_RMS_NORM,
    ARRAY_LAYER_NORM,
    ARRAY_SOFTMAX,
    ARRAY_ROPE,
    ARRAY_ATTEND,
    ARRAY_EMBED,
    ARRAY_CROSS_ENTROPY,
    ARRAY_MSE,
    ARRAY_SUM,
    ARRAY_CHECKPOINT
};

struct rd_array {
    enum array_op op;
    bool is_f64, needs; /* needs: something that is asked for depends on it */
    uint32_t rows, cols;
    void *v, *adjoint, *tangent; /* [rows, cols]; NULL: zeros, or not asked for */
    rd_array *in[3];
    /* what the op was given */
    double s;
    struct rd_attention attention;
    int32_t *ids; /* ids, targets or positions, [rows] */
    float *weights;
    void *kept;     /* attention: probabilities [n_heads, n, n] and the cap's slopes */
    rd_grad_fn *fn; /* checkpoint: of ins [n_ins] */
    void *arg;
    rd_array **ins;
    uint32_t n_ins;
};

struct rd_grad {
    struct grad_compute *compute;
    rd_array **nodes; /* in the order of making */
    size_t n, cap;
    struct rd_error error;
    bool is_reverse, is_forward;
};

/* For f32 and f64, from array_ops.h. false: no memory. */
struct array_kernels {
    bool (*forward)(rd_grad *g, rd_array *y);
    bool (*back)(rd_grad *g, rd_array *y);    /* y's adjoint to those of its inputs that need it */
    bool (*tangent)(rd_grad *g, rd_array *y); /* the inputs' tangents to y's */
};
extern const struct array_kernels array_kernels_f32, array_kernels_f64;
