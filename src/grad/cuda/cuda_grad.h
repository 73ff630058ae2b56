/* grad/cuda/cuda_grad.h - inside of grad_device_cuda. */
#pragma once
#include "backend/cuda/host/cuda_backend.h"
#include "grad/cuda/grad_cuda.h"
#include "grad/device.h"

struct grad_device {
    struct backend *be;
    struct cuda_launch l; /* the backend's, without programmatic dependent launch */
    cudaMemPool_t pool;
    struct buffer dropped; /* x with dropout */
    double *losses, *parts;
    uint32_t cap_losses;
    /* What attention's gradient knows of runs, as it was sent last: layers but the last have the same. */
    char *runs_host;
    void *runs_device;
    uint64_t n_runs_bytes;
    /* dt A of pairs, which goes to dx with the products of the matrices that read the same x; what it reads. */
    struct grad_cuda_sum pairs;
    void *pairs_own[GRAD_CUDA_FACTORS];
};

void *cuda_grad_take(struct grad_device *d, uint64_t n_bytes);
void cuda_grad_give(struct grad_device *d, void *p);

/* cuda_attention_back.c */
rd_status cuda_attention_back(struct grad_device *d, const struct grad_attention *g);
