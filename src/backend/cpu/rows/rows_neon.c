/* backend/cpu/rows/rows_neon.c - the row kernels for AArch64; written in rows_v16.h. */
#include "backend/cpu/v16_neon.h"
#include "backend/cpu/rows/rows_v16.h"

const struct cpu_row_kernels cpu_rows_neon = ROW_KERNELS_V16;
