/* backend/cpu/attention/attn_avx2.c - the attention kernels for AVX2; written in attn_v16.h. */
#include "backend/cpu/v16_avx2.h"
#include "backend/cpu/attention/attn_v16.h"

const struct cpu_attn_kernels cpu_attn_avx2 = ATTN_KERNELS_V16;
