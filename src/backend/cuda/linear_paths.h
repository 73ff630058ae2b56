/* backend/cuda/linear_paths.h - the ways to compute cuda_linear; linear_dispatch.cu chooses by shapes and device only, so
 * that a row's bits do not depend on its batch. */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Right for every shape, format and device; slow. */
int linear_plain_launch(const struct cuda_launch *l, const struct cuda_linear_args *a);

#ifdef __cplusplus
}
#endif
