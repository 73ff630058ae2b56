/* backend/cpu/linear/linear_forms.h - every type of weights that linear takes, once: each instruction set makes its tiles and
 * its choice among them from these lists.
 *
 *     LINEAR_FLOATS(X)          X(tag, TYPE)
 *     LINEAR_BLOCK_FORMS(X)     X(tag, TYPE, bits, offset_shift, scales)       scales per 32 k
 *     LINEAR_K_FORMS(X)         the same, scales per unit of 256 k
 *
 * TYPE is DTYPE_TYPE of tensor/dtype.h; bits, offset_shift and scales are members of struct linear_form
 * (linear_kernels.h). A new quantised type is a row here, open_TAG() in cpu_pack.c, which reads a block of the file,
 * and its row and plain conversion in tensor/.
 */
#pragma once

#define LINEAR_FLOATS(X) X(f32, F32) X(f16, F16) X(bf16, BF16)

#define LINEAR_BLOCK_FORMS(X)                                                                                          \
    X(q4_0, Q4_0, 4, 3, SCALES_D)                                                                                      \
    X(q4_1, Q4_1, 4, 0, SCALES_DM)                                                                                     \
    X(q5_0, Q5_0, 5, 4, SCALES_D)                                                                                      \
    X(q5_1, Q5_1, 5, 0, SCALES_DM)                                                                                     \
    X(q8_0, Q8_0, 8, 7, SCALES_D)

#define LINEAR_K_FORMS(X)                                                                                              \
    X(q2_k, Q2_K, 2, 0, SCALES_K2)                                                                                     \
    X(q3_k, Q3_K, 3, 2, SCALES_K)                                                                                      \
    X(q4_k, Q4_K, 4, 0, SCALES_KM)                                                                                     \
    X(q5_k, Q5_K, 5, 0, SCALES_KM)                                                                                     \
    X(q6_k, Q6_K, 6, 5, SCALES_K)

#define LINEAR_FORMS(X) LINEAR_BLOCK_FORMS(X) LINEAR_K_FORMS(X)

/* Bytes of the scales of 16 outputs and one block or unit: a constant where `scales` is. */
#define LINEAR_SCALE_BYTES(scales)                                                                                     \
    ((scales) == SCALES_D ? 32u : (scales) == SCALES_DM ? 64u : (scales) == SCALES_K ? 288u : 320u)

/* In a switch over enum dtype. */
#define LINEAR_TILE_CASE(tag, type, ...)                                                                               \
    case DTYPE_##type:                                                                                                 \
        return tile_##tag;
#define LINEAR_PANEL_CASE(tag, type, ...)                                                                              \
    case DTYPE_##type:                                                                                                 \
        return panel_##tag;
