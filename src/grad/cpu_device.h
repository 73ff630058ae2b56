/* grad/cpu_device.h - inside of grad_device_cpu. */
#pragma once
#include "grad/compute.h"
#include "grad/device.h"
#include "grad/float_pool.h"

struct frozen {
    const void *key; /* weight.data */
    struct grad_matrix m;
    void *own; /* or NULL: the file's */
};

/* What low_rank has for a dx, until linear_back computes that: a product of dt and A each. */
struct waiting {
    float *dts[GRAD_TERMS];
    uint32_t n;
    struct grad_product p; /* dx, so far */
};

struct grad_device {
    struct backend *inner;
    struct grad_compute *compute;
    struct float_pool floats;
    struct frozen *frozen;
    size_t n_frozen, cap_frozen;
    float *scratch; /* x with dropout */
    size_t cap_scratch;
    struct waiting waiting;
    double *losses; /* of the last loss */
    size_t cap_losses;
};

/* attention_back.c */
rd_status cpu_attention_back(struct grad_device *d, const struct grad_attention *g);
