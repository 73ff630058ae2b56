/* grad/grad_avx512.c - see grad_loops.h. */
#include "backend/cpu/v16_avx512.h"
#define GEMM_ROWS    12u
#define GEMM_VECTORS 2u
#include "grad/grad_loops.h"

const struct grad_kernels grad_kernels_avx512 = GRAD_KERNELS("avx512");
