/* backend/cuda/attention/attention_prompt.h - what attention_wgmma_launch does of pages that the copy engine takes as they are: of
 * halves, of 8 to 128 tokens. The same bits. As there: sm_90, head_dim 64 or 128. */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

bool attention_prompt_takes(const struct cuda_attention_args *a);
int attention_prompt_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);

#ifdef __cplusplus
}
#endif
