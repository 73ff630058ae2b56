/* tensor/dtype.c - tables of types, half and bfloat16 conversions, and the blocks of 32 weights (Q4_0 .. Q8_0).
 * The blocks of 256 weights are in dtype_k_quants.c.
 */
#include "tensor/dtype.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "tensor/block_floats.h"
#include "tensor/dtype_blocks.h"

struct dtype_info {
    const char *name;
    uint32_t weights, bytes;
};

/* Indexed by the GGUF type number; holes have no name. */
static const struct dtype_info dtype_table[] = {
#define DTYPE_ROW(name, gguf, text, n, bytes) [gguf] = {text, n, bytes},
    DTYPE_LIST(DTYPE_ROW) DTYPE_HUB_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

#define N_DTYPES (sizeof(dtype_table) / sizeof(dtype_table[0]))

/* Names of all type numbers ever published, readable here or not. */
static const char *const gguf_names[] = {
    [0] = "F32",         [1] = "F16",         [2] = "Q4_0",        [3] = "Q4_1",      [4] = "Q4_2",     [5] = "Q4_3",
    [6] = "Q5_0",        [7] = "Q5_1",        [8] = "Q8_0",        [9] = "Q8_1",      [10] = "Q2_K",    [11] = "Q3_K",
    [12] = "Q4_K",       [13] = "Q5_K",       [14] = "Q6_K",       [15] = "Q8_K",     [16] = "IQ2_XXS", [17] = "IQ2_XS",
    [18] = "IQ3_XXS",    [19] = "IQ1_S",      [20] = "IQ4_NL",     [21] = "IQ3_S",    [22] = "IQ2_S",   [23] = "IQ4_XS",
    [24] = "I8",         [25] = "I16",        [26] = "I32",        [27] = "I64",      [28] = "F64",     [29] = "IQ1_M",
    [30] = "BF16",       [31] = "Q4_0_4_4",   [32] = "Q4_0_4_8",   [33] = "Q4_0_8_8", [34] = "TQ1_0",   [35] = "TQ2_0",
    [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8", [39] = "MXFP4",    [40] = "NVFP4",   [41] = "Q1_0",
};

static const struct dtype_info *dtype_find(int64_t t)
{
    return t >= 0 && (uint64_t)t < N_DTYPES && dtype_table[t].name ? &dtype_table[t] : NULL;
}

enum dtype dtype_from_gguf(uint32_t gguf_type)
{
    return gguf_type < DTYPE_HUB_FIRST && dtype_find(gguf_type) ? (enum dtype)gguf_type : DTYPE_NONE;
}

const char *dtype_gguf_name(uint32_t gguf_type)
{
    return gguf_type < sizeof(gguf_names) / sizeof(gguf_names[0]) ? gguf_names[gguf_type] : NULL;
}

const char *dtype_name(enum dtype t)
{
    const struct dtype_info *info = dtype_find(t);

    return info ? info->name : "none";
}

uint32_t dtype_block_weights(enum dtype t)
{
    const struct dtype_info *info = dtype_find(t);

    return info ? info->weights : 0;
}

uint32_t dtype_block_bytes(enum dtype t)
{
    const struct dtype_info *info = dtype_find(t);

    return info ? info->bytes : 0;
}

bool dtype_row_bytes(enum dtype t, uint64_t n, uint64_t *bytes)
{
    const struct dtype_info *info = dtype_find(t);

    if (!info || n % info->weights) return false;
    return checked_mul(n / info->weights, info->bytes, bytes);
}

static float float_of_bits(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {bits};

    return v.f;
}

static uint32_t bits_of_float(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};

    return v.u;
}

/* Half: sign 1, exponent 5 (bias 15), mantissa 10. float: 1, 8 (bias 127), 23. The biases differ by 112. */
float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;

    if (exponent == 0) return float_of_bits(bits_of_float((float)mantissa * 0x1p-24f) | sign);
    if (exponent == 31) {
        if (mantissa) mantissa |= 0x200; /* the instruction quiets a signalling NaN */
        return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    }
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_half(float f)
{
    uint32_t bits = bits_of_float(f), sign = bits >> 16 & 0x8000, mag = bits & 0x7fffffff, shift, half, rest, result;

    if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and up round to infinity */
    if (mag >= 0x38800000) {                                 /* 2^-14 and up: a normal half */
        mag -= (uint32_t)112 << 23;
        return (uint16_t)(sign | (mag + 0xfff + (mag >> 13 & 1)) >> 13);
    }
    if (mag <= 0x33000000) return (uint16_t)sign; /* 2^-25 is a tie with 0, and 0 is even */
    shift = 126 - (mag >> 23);                    /* 14 .. 24: the result counts units of 2^-24 */
    mag = (mag & 0x7fffff) | 0x800000;
    half = (uint32_t)1 << (shift - 1);
    rest = mag & (((uint32_t)1 << shift) - 1);
    result = mag >> shift;
    if (rest > half || (rest == half && (result & 1))) result++;
    return (uint16_t)(sign | result);
}

uint16_t float_to_bf16(float f)
{
    uint32_t bits = bits_of_float(f);

    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* e4m3: 1, 4 (bias 7), 3. The biases differ by 120. */
float e4m3_to_float(uint8_t v)
{
    uint32_t sign = (uint32_t)(v >> 7) << 31, mag = v & 0x7f;

    if (mag == 0x7f) return float_of_bits(sign | 0x7ff00000u);
    if (mag < 8) return float_of_bits(bits_of_float((float)mag * 0x1p-9f) | sign);
    return float_of_bits(sign | ((mag << 20) + (120u << 23)));
}

uint8_t float_to_e4m3(float f)
{
    uint32_t bits = bits_of_float(f), sign = bits >> 24 & 0x80, mag = bits & 0x7fffffff, v;

    if (mag >= 0x7f800000) return (uint8_t)(sign | 0x7f);
    if (mag < 0x3c800000) /* below 2^-6: units of 2^-9 */
        return (uint8_t)(sign | (bits_of_float(float_of_bits(mag) + 0x1p14f) & 15));
    mag -= (uint32_t)120 << 23;
    v = (mag + 0x7ffff + (mag >> 20 & 1)) >> 20;
    return (uint8_t)(sign | (v < 0x7e ? v : 0x7e));
}

static void f16_to_float(const uint8_t *src, float *dst, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) dst[i] = dtype_half_at(src + 2 * i);
}

static void bf16s_to_float(const uint8_t *src, float *dst, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t b;

        memcpy(&b, src + 2 * i, sizeof(b));
        dst[i] = bf16_to_float(b);
    }
}

/* scale f32, 128 e4m3 bytes.  w = scale * v */
static void e4m3_128_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 132, dst += 128) {
        float scale;

        memcpy(&scale, src, sizeof(scale));
        for (int i = 0; i < 128; i++) dst[i] = scale * e4m3_to_float(src[4 + i]);
    }
}

/* d half, m half, qs[n] bytes.  w = d * q + m */
static void u8_to_float(const uint8_t *src, uint32_t n, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 4 + n, dst += n) {
        float d = dtype_half_at(src), m = dtype_half_at(src + 2);

        for (uint32_t i = 0; i < n; i++) dst[i] = d * (float)src[4 + i] + m;
    }
}

void dtype_to_float(enum dtype t, const void *src, float *dst, uint64_t n)
{
    uint32_t weights = dtype_block_weights(t);

    assert(weights > 0 && n % weights == 0);
    if (n == 0) return;
    switch (t) {
    case DTYPE_F32:
        memcpy(dst, src, n * sizeof(*dst));
        break;
    case DTYPE_F16:
        f16_to_float(src, dst, n);
        break;
    case DTYPE_BF16:
        bf16s_to_float(src, dst, n);
        break;
    case DTYPE_Q4_0:
        q4_0_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q4_1:
        q4_1_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q5_0:
        q5_0_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q5_1:
        q5_1_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q8_0:
        q8_0_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q2_K:
        q2_k_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q3_K:
        q3_k_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q4_K:
        q4_k_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q5_K:
        q5_k_to_float(src, dst, n / weights);
        break;
    case DTYPE_Q6_K:
        q6_k_to_float(src, dst, n / weights);
        break;
    case DTYPE_E4M3_128:
        e4m3_128_to_float(src, dst, n / weights);
        break;
    case DTYPE_U8_32:
        u8_to_float(src, 32, dst, n / weights);
        break;
    case DTYPE_U8_64:
        u8_to_float(src, 64, dst, n / weights);
        break;
    case DTYPE_F8_E4M3:
        for (uint64_t i = 0; i < n; i++) dst[i] = e4m3_to_float(((const uint8_t *)src)[i]);
        break;
    case DTYPE_NONE:
        break;
    }
}
