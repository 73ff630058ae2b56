/* backend/cuda/linear/draw_token.cuh - the better of two tokens; what makes a score is base/draw.h's, the host's and ours.
 *
 * Whether a draw is local is the draw's own affair, so that a token is the same whether its logit is written
 * (choose_token.cu) or not (linear_choose.cuh).
 */
#pragma once
#include <math_constants.h>
#include "backend/cuda/cuda_kernels.h"
#include "base/draw.h"

struct best {
    float value;
    int32_t id;
};

static __device__ __forceinline__ struct best better(struct best a, struct best b)
{
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}
