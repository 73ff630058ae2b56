/* grad/grad_neon.c - see grad_loops.h. */
#include "backend/cpu/v16_neon.h"
#define GEMM_ROWS    2u
#define GEMM_VECTORS 2u
#include "grad/grad_loops.h"

const struct grad_kernels grad_kernels_neon = GRAD_KERNELS("neon");
