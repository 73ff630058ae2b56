/* grad/cuda/weight_open.cu - a frozen weight, turned, in bf16: what dx = dy W reads as an ordinary product's weight.
 *
 * A block turns 64 x 64 through shared memory. Bound: memory, two bytes read (fewer of quantised weights) and two written a weight;
 * beside 2 * n_rows operations on each that is a tenth of the product at 4,096 rows. */
#include "backend/cuda/cuda_device.cuh"
#include "grad/cuda/grad_cuda.h"

#define THREADS 256u
#define TILE    64u
#define PITCH   66u

static __global__ void __launch_bounds__(THREADS)
    open_turned(struct cuda_matrix w, uint32_t first, uint32_t n, uint32_t stride, uint16_t *out)
{
    __shared__ uint16_t tile[TILE][PITCH];
    const uint32_t r0 = blockIdx.x * TILE, c0 = blockIdx.y * TILE;

    if (w.format == CUDA_BF16) { /* rows begin at 128 bytes, and are padded with zeros to 64 */
        for (uint32_t i = threadIdx.x; i < TILE * TILE / 8; i += THREADS) {
            const uint32_t r = i / 8, c = i % 8 * 8;
            uint4 v = make_uint4(0, 0, 0, 0);

            if (r0 + r < n)
                v = *(const uint4 *)((const uint16_t *)w.values + (uint64_t)(first + r0 + r) * w.row_stride + c0 + c);
            uint32_t *to = (uint32_t *)&tile[r][c];

            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        }
    } else {
        for (uint32_t i = threadIdx.x; i < TILE * TILE; i += THREADS) {
            const uint32_t r = i / TILE, c = i % TILE;

            tile[r][c] = r0 + r < n && c0 + c < w.n_in ? float_bf16(matrix_weight(w, first + r0 + r, c0 + c)) : 0;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < TILE * TILE / 8; i += THREADS) {
        const uint32_t c = i / 8, r = i % 8 * 8;
        uint32_t v[4];

        if (c0 + c >= w.n_in) continue;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) v[k] = tile[r + 2 * k][c] | (uint32_t)tile[r + 2 * k + 1][c] << 16;
        *(uint4 *)(out + (uint64_t)(c0 + c) * stride + r0 + r) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

int grad_cuda_open(const struct cuda_launch *l, const struct cuda_matrix *w, uint32_t first, uint32_t n,
                   uint32_t stride, uint16_t *out)
{
    open_turned<<<dim3(stride / TILE, ceil_div(w->n_in, TILE)), THREADS, 0, stream_of(l)>>>(*w, first, n, stride, out);
    return (int)cudaGetLastError();
}
