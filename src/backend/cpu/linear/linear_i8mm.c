/* backend/cpu/linear/linear_i8mm.c - linear with the 8-bit matrix instructions of ARMv8.6; written in linear_a64.h. */
#define LINEAR_DOT 2
#include "backend/cpu/linear/linear_a64.h"

const struct cpu_linear_kernels linear_kernels_i8mm = {LINEAR_BLOCK, sizeof(struct linear_act), quantise_a64, tile_a64,
                                                       &k_kernels_a64};
