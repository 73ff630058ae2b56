/* backend/cpu/linear/linear_neon.c - linear with what every AArch64 has; written in linear_a64.h. */
#define LINEAR_DOT 0
#include "backend/cpu/linear/linear_a64.h"

const struct cpu_linear_kernels linear_kernels_neon = {LINEAR_BLOCK, sizeof(struct linear_act), quantise_a64, tile_a64,
                                                       &k_kernels_a64};
