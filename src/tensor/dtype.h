/* tensor/dtype.h - element and block types, and the plain conversions that everything else is judged by.
 *
 * Quantised types are blocks of n_per_block weights in bytes_per_block bytes, laid out as in GGUF files (type numbers
 * and layouts: ggml's published file format, docs/gguf.md of the ggml project; names Q4_0 .. Q6_K as there). Those of
 * DTYPE_HUB_LIST are in no file: weights of a directory, as a backend may ask for them (model_tensor_open_as()), and
 * keys and values.
 * Thread  any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

/* clang-format off */
/*         enum          gguf  name    weights bytes  per block */
#define DTYPE_LIST(X)                            \
    X(DTYPE_F32,         0,    "F32",  1,      4)   \
    X(DTYPE_F16,         1,    "F16",  1,      2)   \
    X(DTYPE_Q4_0,        2,    "Q4_0", 32,     18)  \
    X(DTYPE_Q4_1,        3,    "Q4_1", 32,     20)  \
    X(DTYPE_Q5_0,        6,    "Q5_0", 32,     22)  \
    X(DTYPE_Q5_1,        7,    "Q5_1", 32,     24)  \
    X(DTYPE_Q8_0,        8,    "Q8_0", 32,     34)  \
    X(DTYPE_Q2_K,        10,   "Q2_K", 256,    84)  \
    X(DTYPE_Q3_K,        11,   "Q3_K", 256,    110) \
    X(DTYPE_Q4_K,        12,   "Q4_K", 256,    144) \
    X(DTYPE_Q5_K,        13,   "Q5_K", 256,    176) \
    X(DTYPE_Q6_K,        14,   "Q6_K", 256,    210) \
    X(DTYPE_BF16,        30,   "BF16", 1,      2)
/* clang-format on */

/*  DTYPE_E4M3_128   f32 scale, 128 e4m3 bytes: w = scale * v
 *  DTYPE_U8_..      f16 d, f16 m, unsigned bytes: w = d * q + m
 *  DTYPE_F8_E4M3    e4m3 bytes: keys and values */
#define DTYPE_HUB_FIRST 64
/* clang-format off */
#define DTYPE_HUB_LIST(X)                           \
    X(DTYPE_E4M3_128,    64,   "E4M3_128", 128, 132) \
    X(DTYPE_U8_32,       65,   "U8_32", 32,     36)  \
    X(DTYPE_U8_64,       66,   "U8_64", 64,     68)  \
    X(DTYPE_F8_E4M3,     67,   "F8_E4M3", 32,   32)
/* clang-format on */

#define DTYPE_ENUM(name, gguf, text, n, bytes) name = gguf,
enum dtype { DTYPE_LIST(DTYPE_ENUM) DTYPE_HUB_LIST(DTYPE_ENUM) DTYPE_NONE = -1 };
#undef DTYPE_ENUM

/* By the GGUF type number; DTYPE_NONE when unknown. */
enum dtype dtype_from_gguf(uint32_t gguf_type);
/* GGUF type number's public name even for types we do not read ("IQ2_XXS", "MXFP4"), for error texts; NULL if unheard
 * of. */
const char *dtype_gguf_name(uint32_t gguf_type);
const char *dtype_name(enum dtype t);
uint32_t dtype_block_weights(enum dtype t);
uint32_t dtype_block_bytes(enum dtype t);
/* Bytes of a row of n weights; n must be a multiple of the block. false on overflow or a ragged row. */
bool dtype_row_bytes(enum dtype t, uint64_t n, uint64_t *bytes);

/* n weights (a multiple of the block) from src (unaligned is fine) to float; bit-equal to the `gguf` Python package. */
void dtype_to_float(enum dtype t, const void *src, float *dst, uint64_t n);

float half_to_float(uint16_t h);
uint16_t float_to_half(float f); /* round to nearest even, as the F16C instructions */
static inline float bf16_to_float(uint16_t b)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)b << 16};
    return v.f;
}
uint16_t float_to_bf16(float f); /* round to nearest even; NaN stays NaN */
float e4m3_to_float(uint8_t v);  /* OCP 8-bit floating point, E4M3: no infinity; 0x7f and 0xff are NaN */
uint8_t float_to_e4m3(float f);  /* to nearest even; beyond 448: 448; infinity and NaN: NaN */
