/* grad/grad_avx2.c - see grad_loops.h. */
#include "backend/cpu/v16_avx2.h"
#define GEMM_ROWS    6u
#define GEMM_VECTORS 1u
#include "grad/grad_loops.h"

const struct grad_kernels grad_kernels_avx2 = GRAD_KERNELS("avx2");
