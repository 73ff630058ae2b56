/* backend/cpu/rows/rows_avx512.c - the row kernels for AVX-512; written in rows_v16.h. */
#include "backend/cpu/v16_avx512.h"
#include "backend/cpu/rows/rows_v16.h"

const struct cpu_row_kernels cpu_rows_avx512 = ROW_KERNELS_V16;
