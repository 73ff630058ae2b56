/* backend/cuda/attention/attention_plain.cu - paged attention, one warp per row and query head: right for every shape.
 *
 * Keys in segments of 256 at absolute positions, each with its own online softmax over single keys in order; segments
 * are merged in order. A lane holds dims lane, lane + 32, ..; a score is the lanes' fma chains and warp_sum's tree.
 * Source: online softmax, arXiv:2307.08691.
 */
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/cuda_device.cuh"
#include "tensor/dtype.h"

#define PLAIN_SEGMENT 256u
#define MAX_DIMS      32 /* head_dim <= 1024 */

static __device__ __forceinline__ float kv_value(int dtype, const uint8_t *row, uint32_t i)
{
    const uint8_t *block;

    switch (dtype) {
    case DTYPE_F16:
        return half_float(((const uint16_t *)row)[i]);
    case DTYPE_BF16:
        return bf16_float(((const uint16_t *)row)[i]);
    case DTYPE_F32:
        return ((const float *)row)[i];
    case DTYPE_Q8_0:
        block = row + i / 32 * 34;
        return half_float(*(const uint16_t *)block) * (float)(int8_t)block[2 + i % 32];
    case DTYPE_Q4_0:
        block = row + i / 32 * 18;
        return half_float(*(const uint16_t *)block) * (float)((block[2 + i % 16] >> (i % 32 < 16 ? 0 : 4) & 15) - 8);
    case DTYPE_F8_E4M3:
        return e4m3_float(row[i]);
    default:
        return 0;
    }
}

static __device__ const struct cuda_run *run_of(const struct cuda_attention_args &a, uint32_t row)
{
    uint32_t low = 0, high = a.n_runs - 1;

    while (low < high) { /* the last run that begins at or before row */
        const uint32_t mid = (low + high + 1) / 2;

        if (a.runs[mid].row0 <= row)
            low = mid;
        else
            high = mid - 1;
    }
    return &a.runs[low];
}

struct sums {
    float m, l, acc[MAX_DIMS];
};

static __device__ __forceinline__ void merge(struct sums *total, const struct sums *s, uint32_t n_dims)
{
    const float m = fmaxf(total->m, s->m);
    const float a = total->m == -INFINITY ? 0.0f : exp2f(total->m - m), b = exp2f(s->m - m);

    total->m = m;
    total->l = fmaf(s->l, b, total->l * a);
    for (uint32_t i = 0; i < n_dims; i++) total->acc[i] = fmaf(s->acc[i], b, total->acc[i] * a);
}

static __global__ void attention_plain(struct cuda_attention_args a)
{
    const uint32_t row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x, kv_head = head / (a.n_heads / a.n_kv_heads);
    const struct cuda_run *run = run_of(a, row);
    const uint32_t pos = run->pos0 + (row - run->row0), n_dims = (a.head_dim + 31 - lane) / 32;
    const uint32_t first = a.window && pos + 1 > a.window ? pos + 1 - a.window : 0;
    const uint32_t last = pos >= run->both_from && pos < run->both_to ? run->both_to - 1 : pos;
    const float *q = a.q + (uint64_t)row * a.q_stride + (uint64_t)head * a.head_dim;
    const uint64_t out = (uint64_t)row * a.out_stride + (uint64_t)head * a.head_dim;
    float query[MAX_DIMS];
    struct sums total = {-INFINITY, 0, {0}};

    for (uint32_t i = 0; i < n_dims; i++) query[i] = q[lane + 32 * i] * (a.softcap > 0 ? a.scale / a.softcap : a.scale);
    for (uint32_t base = first - first % PLAIN_SEGMENT; base <= last; base += PLAIN_SEGMENT) {
        struct sums s = {-INFINITY, 0, {0}};

        for (uint32_t t = max(base, first); t <= min(last, base + PLAIN_SEGMENT - 1); t++) {
            const uint8_t *page = a.kv.base + a.tables[run->table + t / a.kv.page_tokens] * a.kv.page_bytes;
            const uint64_t at = (uint64_t)kv_head * a.kv.page_tokens + t % a.kv.page_tokens;
            const uint8_t *k = page + a.kv.k_offset + at * a.kv.k_row_bytes;
            const uint8_t *v = page + a.kv.v_offset + at * a.kv.v_row_bytes;
            float score = 0, m, corr, p;

            for (uint32_t i = 0; i < n_dims; i++)
                score = fmaf(query[i], kv_value(a.kv.dtype_k, k, lane + 32 * i), score);
            score = warp_sum(score);
            if (a.softcap > 0) score = a.softcap * tanhf(score);
            score *= 1.44269504f;
            m = fmaxf(s.m, score);
            corr = s.m == -INFINITY ? 0.0f : exp2f(s.m - m);
            p = exp2f(score - m);
            s.m = m;
            s.l = fmaf(s.l, corr, p);
            for (uint32_t i = 0; i < n_dims; i++)
                s.acc[i] = fmaf(p, kv_value(a.kv.dtype_v, v, lane + 32 * i), s.acc[i] * corr);
        }
        merge(&total, &s, n_dims);
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        const float value = total.acc[i] / total.l;

        if (a.out) a.out[out + lane + 32 * i] = value;
        if (a.out16) a.out16[out + lane + 32 * i] = float_bf16(value);
    }
}

int attention_plain_launch(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    attention_plain<<<dim3(a->n_rows, a->n_heads), 32, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}
