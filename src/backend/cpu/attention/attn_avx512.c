/* backend/cpu/attention/attn_avx512.c - the attention kernels for AVX-512; written in attn_v16.h. */
#include "backend/cpu/v16_avx512.h"
#include "backend/cpu/attention/attn_v16.h"

const struct cpu_attn_kernels cpu_attn_avx512 = ATTN_KERNELS_V16;
