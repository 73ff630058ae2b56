/* backend/cuda/attention/attend_groups.cu - attention of encoders: all keys of a row's group, no pages, a KV head for each head.
 *
 * Heads of up to 128 on sm_90: attend_hopper.cuh, from what attend_pack.cuh put there. Else one warp per row and head, in f32.
 */
#include "backend/cuda/attention/attend_hopper.cuh"
#include "backend/cuda/attention/attend_pack.cuh"
#include "backend/cuda/encode_kernels.h"

enum { MOST_PLAIN_DIMS = 32 };

/* One warp per row and head, from q, k and v themselves. */
static __global__ void attend_plain(struct cuda_attend_args a)
{
    const uint32_t row = a.row0 + blockIdx.x, head = a.head0 + blockIdx.y, lane = threadIdx.x;
    const uint32_t n_dims = (a.head_dim + 31 - lane) / 32;
    uint32_t low = 0, high = a.n_groups - 1;
    float query[MOST_PLAIN_DIMS], acc[MOST_PLAIN_DIMS] = {}, m = -INFINITY, l = 0;

    while (low < high) { /* the first group that ends behind row */
        const uint32_t mid = (low + high) / 2;

        if (a.group_ends[mid] > row)
            high = mid;
        else
            low = mid + 1;
    }
    for (uint32_t i = 0; i < n_dims; i++)
        query[i] = a.q[(uint64_t)row * a.stride + (uint64_t)head * a.head_dim + lane + 32 * i] * a.scale * 1.44269504f;
    for (uint32_t t = group_begin(a, low); t < a.group_ends[low]; t++) {
        const uint64_t at = (uint64_t)t * a.stride + (uint64_t)head * a.head_dim + lane;
        float score = 0;

        for (uint32_t i = 0; i < n_dims; i++) score = fmaf(query[i], a.k[at + 32 * i], score);
        score = warp_sum(score);
        const float most = fmaxf(m, score), old = m == -INFINITY ? 0.0f : exp2f(m - most), p = exp2f(score - most);

        m = most;
        l = fmaf(l, old, p);
        for (uint32_t i = 0; i < n_dims; i++) acc[i] = fmaf(p, a.v[at + 32 * i], acc[i] * old);
    }
    const uint64_t to = (uint64_t)blockIdx.x * a.n_heads * a.head_dim + (uint64_t)head * a.head_dim + lane;

    for (uint32_t i = 0; i < n_dims; i++) {
        if (a.out) a.out[to + 32 * i] = acc[i] / l;
        a.out16[to + 32 * i] = float_bf16(acc[i] / l);
    }
}

static bool by_tensor_cores(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    return l->compute == 90 && a->head_dim <= 128 && a->head_dim % 4 == 0;
}

/* Whether what is packed lies in fours. */
static bool in_fours(const struct cuda_attend_args *a)
{
    return a->stride % 4 == 0 && ((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v) % 16 == 0;
}

template <int D> static int fill(const struct cuda_launch *l, const struct cuda_attend_fill_args *a)
{
    return (int)launch_chained(l, attend_pack<D>, dim3(a->n_some_blocks, a->attend.n_some), PACK_THREADS, 0, *a);
}

int cuda_attend_fill(const struct cuda_launch *l, const struct cuda_attend_fill_args *a)
{
    if (!by_tensor_cores(l, &a->attend) || (a->cosines && a->attend.head_dim % 8)) return (int)cudaErrorNotSupported;
    if (!in_fours(&a->attend)) return (int)cudaErrorInvalidValue;
    if (a->attend.head_dim <= 64) return fill<64>(l, a);
    return a->attend.head_dim <= 80 ? fill<80>(l, a) : fill<128>(l, a);
}

int cuda_attend_pack(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    struct cuda_attend_fill_args all = {*a, NULL, NULL, 0, a->n_blocks};

    if (!by_tensor_cores(l, a)) return 0; /* q, k and v are read where they lie */
    all.attend.row0 = 0;
    all.attend.n_rows = ~0u;
    return cuda_attend_fill(l, &all);
}

/* Tiles of a group: of its largest, and of those that rows row0 .. cut. */
template <int D, int GROUPS, int KEYS>
static int start(const struct cuda_launch *l, const struct cuda_attend_args *a, uint32_t per_sm)
{
    const uint32_t smem = attend_smem<D, GROUPS, KEYS>::bytes, rows = GROUPS * BLOCK_KEYS;
    struct cuda_attend_args b = *a;
    const cudaError_t e = allow_once<attend_hopper<D, GROUPS, KEYS>>(smem);
    const float c = a->scale * 1.44269504f;
    const struct attend_scale scale = {c, 8.0f / c};
    uint32_t n_tiles;

    b.group_tiles = ceil_div(min((uint64_t)a->most_rows, (uint64_t)a->n_rows + BLOCK_KEYS - 1), rows);
    n_tiles = b.group_tiles * (a->last_group - a->first_group + 1) * a->n_some;
    if (e != cudaSuccess) return (int)e;
    return (int)launch_chained(l, attend_hopper<D, GROUPS, KEYS>, min(n_tiles, N_SMS * per_sm), (GROUPS + 1) * 128,
                               smem, b, scale);
}

template <int D> static int start_for(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    return a->most_rows <= BLOCK_KEYS ? start<D, 1, 64>(l, a, 4) : start<D, 3, 128>(l, a, 1);
}

int cuda_attend(const struct cuda_launch *l, const struct cuda_attend_args *a)
{
    if (!by_tensor_cores(l, a)) {
        attend_plain<<<dim3(a->n_rows, a->n_some), 32, 0, stream_of(l)>>>(*a);
        return (int)cudaGetLastError();
    }
    if (a->head_dim <= 64) return start_for<64>(l, a);
    return a->head_dim <= 80 ? start_for<80>(l, a) : start_for<128>(l, a);
}
