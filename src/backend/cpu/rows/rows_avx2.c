/* backend/cpu/rows/rows_avx2.c - the row kernels for AVX2; written in rows_v16.h. */
#include "backend/cpu/v16_avx2.h"
#include "backend/cpu/rows/rows_v16.h"

const struct cpu_row_kernels cpu_rows_avx2 = ROW_KERNELS_V16;
