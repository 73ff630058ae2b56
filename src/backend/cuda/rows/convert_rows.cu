/* backend/cuda/rows/convert_rows.cu - weights as they lie in a GGUF file, or of DTYPE_HUB_LIST, to the forms of struct cuda_matrix.
 *
 * A thread makes 32 consecutive weights of a row, and the scales of the groups that begin there. Layouts of the
 * blocks: tensor/dtype.c, tensor/dtype_k_quants.c. Bound: memory; at load only.
 */
#include "backend/cuda/cuda_device.cuh"
#include "tensor/dtype.h"

/* One weight: value = scale * q + offset; E4M3_128: q the byte, value scale * e4m3. */
struct piece {
    float scale, offset;
    int q;
};

static __device__ __forceinline__ float half_at(const uint8_t *p)
{
    return half_float((uint16_t)(p[0] | p[1] << 8));
}

static __device__ void scale_min_k4(const uint8_t *packed, int group, int *scale, int *min)
{
    if (group < 4) {
        *scale = packed[group] & 63;
        *min = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
        *min = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4);
    }
}

/* Weight j of a block of 32; b: its first byte. */
static __device__ struct piece small_piece(int dtype, const uint8_t *b, uint32_t j)
{
    const float d = half_at(b);
    const uint32_t head = dtype == DTYPE_Q4_0 ? 2 : dtype == DTYPE_Q4_1 ? 4 : dtype == DTYPE_Q5_0 ? 6 : 8;
    const bool has_min = dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1;
    int q;

    if (dtype == DTYPE_Q8_0) return {d, 0, (int8_t)b[2 + j]};
    q = b[head + j % 16] >> (j / 16 * 4) & 15;
    if (dtype == DTYPE_Q4_0) return {d, -8 * d, q};
    if (dtype == DTYPE_Q4_1) return {d, half_at(b + 2), q};
    q |= (b[head - 4 + j / 8] >> (j % 8) & 1) << 4;
    if (has_min) return {d, half_at(b + 2), q};
    return {d, 0, q - 16};
}

/* Weight j of a block of 256. */
static __device__ struct piece k_piece(int dtype, const uint8_t *b, uint32_t j)
{
    const uint32_t g16 = j / 16, g32 = j / 32;
    int scale, min, q;

    switch (dtype) {
    case DTYPE_Q2_K:
        q = b[16 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
        return {half_at(b + 80) * (float)(b[g16] & 15), -(half_at(b + 82) * (float)(b[g16] >> 4)), q};
    case DTYPE_Q3_K:
        scale = (b[96 + g16 % 8] >> (g16 / 8 * 4) & 15) | (b[104 + g16 % 4] >> (g16 / 4 * 2) & 3) << 4;
        q = (b[32 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3) | (b[j % 32] >> g32 & 1) << 2;
        return {half_at(b + 108) * (float)(scale - 32), -4 * (half_at(b + 108) * (float)(scale - 32)), q};
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        scale_min_k4(b + 4, (int)g32, &scale, &min);
        q = b[(dtype == DTYPE_Q4_K ? 16 : 48) + j / 64 * 32 + j % 32] >> (j % 64 / 32 * 4) & 15;
        if (dtype == DTYPE_Q5_K) q |= (b[16 + j % 32] >> g32 & 1) << 4;
        return {half_at(b) * (float)scale, -(half_at(b + 2) * (float)min), q};
    default: /* Q6_K */
        q = (b[j / 128 * 64 + j % 64] >> (j % 128 / 64 * 4) & 15) |
            (b[128 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3) << 4;
        return {half_at(b + 208) * (float)(int8_t)b[192 + g16], 0, q - 32};
    }
}

static __device__ float plain_value(int dtype, const uint8_t *src, uint64_t i)
{
    const uint8_t *p = src + i * (dtype == DTYPE_F32 ? 4 : 2);

    if (dtype == DTYPE_F32) return __uint_as_float(p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
    return dtype == DTYPE_F16 ? half_at(p) : bf16_float((uint16_t)(p[0] | p[1] << 8));
}

struct convert_job {
    int dtype;
    uint32_t block_weights, block_bytes;
    const uint8_t *src;
    uint64_t row_bytes;
    uint32_t first_row, n_rows;
    struct cuda_matrix m;
    uint32_t *overflow;
};

static __device__ struct piece weight_piece(const struct convert_job &c, const uint8_t *row, uint32_t k)
{
    const uint8_t *block = row + (uint64_t)(k / c.block_weights) * c.block_bytes;

    if (k >= c.m.n_in) return {0, 0, 0};
    if (c.dtype == DTYPE_E4M3_128)
        return {__uint_as_float(block[0] | block[1] << 8 | block[2] << 16 | (uint32_t)block[3] << 24), 0,
                block[4 + k % 128]};
    if (c.dtype == DTYPE_U8_32 || c.dtype == DTYPE_U8_64)
        return {half_at(block), half_at(block + 2), block[4 + k % c.block_weights]};
    if (c.block_weights == 32) return small_piece(c.dtype, block, k % 32);
    return k_piece(c.dtype, block, k % 256);
}

static __device__ float piece_value(int dtype, struct piece p)
{
    if (dtype == DTYPE_E4M3_128) return __fmul_rn(p.scale, __fmul_rn(e4m3_small((uint8_t)p.q), 0x1p120f));
    return __fadd_rn(__fmul_rn(p.scale, (float)p.q), p.offset);
}

/* scale as two bf16: exact for a half, 16 bits of an f32. */
static __device__ __nv_bfloat162 in_two(float scale)
{
    const __nv_bfloat16 high = __float2bfloat16_rn(scale);

    return __halves2bfloat162(high, __float2bfloat16_rn(scale - __bfloat162float(high)));
}

static __device__ void put_scale(const struct convert_job &c, uint64_t group, struct piece p)
{
    const __half scale = __float2half_rn(p.scale), offset = __float2half_rn(p.offset);

    if (c.m.format == CUDA_E4M3) {
        const __nv_bfloat162 two = in_two(p.scale * 0x1p120f);

        if (__hisinf(two.x)) *c.overflow = 1;
        ((__nv_bfloat162 *)c.m.scales)[group] = two;
        return;
    }
    if (__hisinf(scale) || __hisinf(offset) || __hisnan(scale) || __hisnan(offset)) *c.overflow = 1;
    if (c.m.format == CUDA_INT4 && !c.m.has_offset) {
        ((__nv_bfloat162 *)c.m.scales)[group] = in_two(p.scale);
        return;
    }
    if (c.m.has_offset)
        ((__half2 *)c.m.scales)[group] = __halves2half2(scale, offset);
    else
        ((__half *)c.m.scales)[group] = scale;
}

static __global__ void convert_rows(struct convert_job c)
{
    const uint32_t row = blockIdx.y, k0 = (blockIdx.x * blockDim.x + threadIdx.x) * 32;
    const uint8_t *src = c.src + row * c.row_bytes;
    const uint64_t at = (uint64_t)(c.first_row + row) * c.m.row_stride;
    uint32_t words[4] = {0, 0, 0, 0}; /* of the four threads c, see struct cuda_matrix */

    if (k0 >= c.m.row_stride) return;
#pragma unroll
    for (uint32_t j = 0; j < 32; j++) {
        const uint32_t k = k0 + j;
        float value = 0;
        struct piece p = {0, 0, 0};

        if (c.block_weights == 1) {
            if (k < c.m.n_in) value = plain_value(c.dtype, src, k);
        } else {
            p = weight_piece(c, src, k);
            value = piece_value(c.dtype, p);
        }
        if (c.m.format == CUDA_BF16) {
            ((uint16_t *)c.m.values)[at + k] = float_bf16(value);
            continue;
        }
        const uint32_t place = weight_in_order(k, c.m.in_eights);
        if (c.m.format != CUDA_INT4)
            ((uint8_t *)c.m.values)[at + int8_place(place)] = (uint8_t)p.q;
        else
            words[place % 8 / 2] |= (uint32_t)p.q << (4 * (int4_place(place) % 8));
        if (k % c.m.group == 0) put_scale(c, (at + k) / c.m.group, p);
    }
    if (c.m.format == CUDA_INT4)
        for (uint32_t i = 0; i < 4; i++) ((uint32_t *)c.m.values)[(at + int4_place(k0 + 2 * i)) / 8] = words[i];
}

extern "C" void cuda_matrix_form(int dtype, struct cuda_matrix *m)
{
    m->format = CUDA_INT8;
    m->group = 32;
    m->has_offset = true;
    switch (dtype) {
    case DTYPE_Q8_0:
    case DTYPE_Q5_0:
        m->has_offset = false;
        break;
    case DTYPE_Q6_K:
        m->has_offset = false;
        m->group = 16;
        break;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
        m->format = CUDA_INT4;
        m->group = 16;
        break;
    case DTYPE_Q4_0:
        m->format = CUDA_INT4;
        m->has_offset = false;
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        m->format = CUDA_INT4;
        break;
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
    case DTYPE_U8_32:
        break;
    case DTYPE_U8_64:
        m->group = 64;
        break;
    case DTYPE_E4M3_128:
        m->format = CUDA_E4M3;
        m->has_offset = false;
        m->group = 128;
        break;
    default:
        m->format = CUDA_BF16;
        m->group = 0;
        m->has_offset = false;
    }
}

static bool block_size(int dtype, uint32_t *weights, uint32_t *bytes)
{
#define CASE(name, gguf, text, n, n_bytes)                                                                             \
    case name:                                                                                                         \
        *weights = n;                                                                                                  \
        *bytes = n_bytes;                                                                                              \
        return true;
    switch (dtype) {
        DTYPE_LIST(CASE)
        DTYPE_HUB_LIST(CASE)
    default:
        return false;
    }
#undef CASE
}

extern "C" int cuda_convert_rows(const struct cuda_launch *l, int dtype, const void *src, uint32_t first_row,
                                 uint32_t n_rows, const struct cuda_matrix *m, uint32_t *overflow)
{
    struct convert_job c = {dtype, 0, 0, (const uint8_t *)src, 0, first_row, n_rows, *m, overflow};

    if (!block_size(dtype, &c.block_weights, &c.block_bytes)) return (int)cudaErrorInvalidValue;
    c.row_bytes = (uint64_t)m->n_in / c.block_weights * c.block_bytes;
    for (uint32_t done = 0; done < n_rows; done += 65535) { /* the grid's y ends there */
        c.src = (const uint8_t *)src + done * c.row_bytes;
        c.first_row = first_row + done;
        convert_rows<<<dim3(ceil_div(m->row_stride, 32 * 64), min(n_rows - done, 65535u)), 64, 0, stream_of(l)>>>(c);
    }
    return (int)cudaGetLastError();
}

static __global__ void convert_vector(int dtype, const uint8_t *src, uint32_t n, float *out)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n) out[i] = plain_value(dtype, src, i);
}

extern "C" int cuda_convert_vector(const struct cuda_launch *l, int dtype, const void *src, uint32_t n, float *out)
{
    convert_vector<<<ceil_div(n, 256), 256, 0, stream_of(l)>>>(dtype, (const uint8_t *)src, n, out);
    return (int)cudaGetLastError();
}
