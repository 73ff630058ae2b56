/* backend/cuda/attend_places.cuh - where attention of encoders on sm_90 has queries, keys and values: attend_pack.cuh and
 * linear_heads.cu write them, attend_hopper.cuh reads them.
 *
 *     packed: per head, per block of 64 rows of a group, bf16, as tiles lie in shared memory:
 *             queries, then keys  [bands of 64 dims][64 rows][128 bytes], 128-byte swizzle; 16 dims more: [64 rows][32
 *                                 bytes], 32-byte swizzle. Dims beyond head_dim: zeros
 *             values              [dims][64 keys: 128 bytes], 128-byte swizzle. Keys beyond the group: zeros
 */
#pragma once
#include "backend/cuda/cuda_device.cuh"

enum { BLOCK_KEYS = 64, BAND_BYTES = BLOCK_KEYS * 128 };

/* Bytes of a block's queries, keys or values, of heads that are packed as D dims. */
template <int D> static __host__ __device__ constexpr uint32_t part_bytes(void)
{
    return BLOCK_KEYS * D * 2;
}

/* Where dims d .. d + 3 of row r are in a block's queries or keys. */
template <int D> static __device__ __forceinline__ uint32_t row_place(uint32_t r, uint32_t d)
{
    const uint32_t band = d / 64, c = d % 64 / 8;

    if (band < D / 64) return band * BAND_BYTES + r * 128 + (((c ^ r) & 7) << 4) + d % 8 * 2;
    return D / 64 * BAND_BYTES + r * 32 + ((c ^ (r >> 2 & 1)) << 4) + d % 8 * 2;
}

/* Where keys 8 c .. 8 c + 7 of dim d are in a block's values. */
static __device__ __forceinline__ uint32_t value_place(uint32_t d, uint32_t c)
{
    return d * 128 + (((c ^ d) & 7) << 4);
}

static __device__ __forceinline__ uint32_t two_halves(float x, float y)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);

    return *(const uint32_t *)&v;
}
