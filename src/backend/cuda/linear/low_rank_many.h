/* backend/cuda/linear/low_rank_many.h - cuda_low_rank of many rows that have one adapter (low_rank_many.cu). */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#define LOW_RANK_MANY 64u /* rows of a term, from which on */

#ifdef __cplusplus
extern "C" {
#endif

/* cuda_low_rank's bits. cudaErrorNotSupported, and nothing was launched: few rows, several pairs of one output, shapes that are not
 * whole vectors, or types that differ. */
int low_rank_many_launch(const struct cuda_launch *l, const struct cuda_low_rank_args *a,
                         const struct cuda_low_rank_term *host);

#ifdef __cplusplus
}
#endif
