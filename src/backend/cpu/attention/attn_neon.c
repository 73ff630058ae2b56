/* backend/cpu/attention/attn_neon.c - the attention kernels for AArch64; written in attn_v16.h. */
#include "backend/cpu/v16_neon.h"
#include "backend/cpu/attention/attn_v16.h"

const struct cpu_attn_kernels cpu_attn_neon = ATTN_KERNELS_V16;
