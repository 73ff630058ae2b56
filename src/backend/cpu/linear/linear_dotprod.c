/* backend/cpu/linear/linear_dotprod.c - linear with the dot product instructions of ARMv8.2; written in linear_a64.h. */
#define LINEAR_DOT 1
#include "backend/cpu/linear/linear_a64.h"

const struct cpu_linear_kernels linear_kernels_dotprod = {LINEAR_BLOCK, sizeof(struct linear_act), quantise_a64,
                                                          tile_a64, &k_kernels_a64};
