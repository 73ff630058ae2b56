/* backend/mlx/mlx_weights.c - weights as arrays, and what is multiplied with them.
 *
 *     matrix in the file          on a GPU                   on the CPU
 *     F32                         F32                        F32
 *     F16                         F16                        F32 (MLX has no fast f16 there)
 *     BF16                        BF16                       BF16
 *     groups of MLX's own files   as they are                as they are, scales and biases F32
 *     Q4_0 Q4_1 Q5_0 Q5_1 Q8_0    groups of 32 with the same values, scales and biases F32
 *     other types of GGUF files   F16                        as they are; a row is opened when it is multiplied
 *
 * Rows of the embedding are opened from the file as they are asked for.
 */
#include <assert.h>
#include <string.h>
#include "backend/mlx/mlx_backend.h"
#include "base/error.h"
#include "base/mem.h"

#define GROUP 32u

const struct mlx_weight *mlx_weight_of(const struct weight *w)
{
    return w ? w->data : NULL;
}

void mlx_weight_unload(struct backend *be, struct weight *w)
{
    struct mlx_weight *own = (struct mlx_weight *)(uintptr_t)w->data;

    if (!own) return;
    w->data = NULL;
    if (w->role == WEIGHT_LOW_RANK) {
        mlx_low_rank_unload(be, own);
        return;
    }
    mlx_ahead_join(be);
    mlx_drop(own->w);
    mlx_drop(own->scales);
    mlx_drop(own->biases);
    mlx_drop(own->periods);
    mem_free(own);
}

/* Of the file's type, in values of another. */
static mlx_ref opened(struct backend *be, const struct host_tensor *t, struct mlx_shape s, enum mlx_type as)
{
    const uint64_t n = (uint64_t)t->n_out * t->n_in;
    float *f = mem_alloc(n, sizeof(*f));
    mlx_ref a;

    if (!f) return NULL;
    dtype_to_float(t->dtype, t->data, f, n);
    a = mlx_as(be->g, mlx_from(be->g, MLX_F32, s, f), as);
    mem_free(f);
    return a;
}

/* ---- blocks of 32 as groups of 32 ---- */

/* Of a weight; 0: not of this kind. */
static uint32_t bits_of(enum dtype t)
{
    if (t == DTYPE_Q4_0 || t == DTYPE_Q4_1) return 4;
    if (t == DTYPE_Q5_0 || t == DTYPE_Q5_1) return 5;
    return t == DTYPE_Q8_0 ? 8 : 0;
}

/* A block of 32 weights: w = scale * q + bias. The layouts: tensor/dtype.c. */
static void take_block(enum dtype t, const uint8_t *block, float *scale, float *bias, uint8_t q[GROUP])
{
    const bool has_min = t == DTYPE_Q4_1 || t == DTYPE_Q5_1;
    uint16_t halves[2];
    uint32_t fifth = 0;

    memcpy(halves, block, sizeof(halves));
    *scale = half_to_float(halves[0]);
    if (t == DTYPE_Q8_0) {
        *bias = -128 * *scale;
        for (uint32_t i = 0; i < GROUP; i++) q[i] = (uint8_t)(block[2 + i] + 128);
        return;
    }
    *bias = has_min ? half_to_float(halves[1]) : (bits_of(t) == 5 ? -16.0f : -8.0f) * *scale;
    block += has_min ? 4 : 2;
    if (bits_of(t) == 5) {
        memcpy(&fifth, block, sizeof(fifth));
        block += sizeof(fifth);
    }
    for (uint32_t i = 0; i < 16; i++) { /* byte i: weights i and i + 16 */
        q[i] = (uint8_t)((block[i] & 15) | (fifth >> i & 1) << 4);
        q[16 + i] = (uint8_t)(block[i] >> 4 | (fifth >> (16 + i) & 1) << 4);
    }
}

/* As MLX packs them: from the low bits up, 8 weights in `bits` bytes. */
static void pack_block(const uint8_t q[GROUP], uint32_t bits, uint8_t *to)
{
    for (uint32_t i = 0; i < GROUP; i += 8, to += bits) {
        uint64_t eight = 0;

        for (uint32_t k = 0; k < 8; k++) eight |= (uint64_t)q[i + k] << (k * bits);
        memcpy(to, &eight, bits);
    }
}

static bool load_blocks(struct backend *be, const struct host_tensor *t, struct mlx_weight *w)
{
    const uint32_t bits = bits_of(t->dtype), n_groups = t->n_in / GROUP;
    const uint64_t n = (uint64_t)t->n_out * n_groups, block = dtype_block_bytes(t->dtype);
    float *scales = mem_alloc(n, sizeof(*scales)), *biases = mem_alloc(n, sizeof(*biases));
    uint8_t *q = mem_alloc(n, GROUP * bits / 8);

    if (scales && biases && q) {
        for (uint64_t i = 0; i < n; i++) {
            uint8_t weights[GROUP];

            take_block(t->dtype, (const uint8_t *)t->data + i * block, &scales[i], &biases[i], weights);
            pack_block(weights, bits, q + i * bits * GROUP / 8);
        }
        w->bits = bits;
        w->group = GROUP;
        w->w = mlx_keep(be->g, mlx_from(be->g, MLX_U32, mlx_dims2(t->n_out, n_groups * bits), q));
        w->scales = mlx_keep(be->g, mlx_from(be->g, MLX_F32, mlx_dims2(t->n_out, n_groups), scales));
        w->biases = mlx_keep(be->g, mlx_from(be->g, MLX_F32, mlx_dims2(t->n_out, n_groups), biases));
    }
    mem_free(q);
    mem_free(scales);
    mem_free(biases);
    return w->w && w->scales && w->biases;
}

/* ---- groups of MLX's own ---- */

bool mlx_takes_groups(const struct backend *be, const struct weight_groups *g)
{
    (void)be;
    return g->bits != 0;
}

static mlx_ref numbers(struct backend *be, const struct weight_groups *g, const void *of)
{
    const enum mlx_type t = g->scale_type == DTYPE_F32 ? MLX_F32 : g->scale_type == DTYPE_F16 ? MLX_F16 : MLX_BF16;
    const mlx_ref a = mlx_from(be->g, t, mlx_dims2(g->n_out, g->n_in / g->group), of);

    return mlx_keep(be->g, be->is_gpu ? a : mlx_as(be->g, a, MLX_F32));
}

static bool load_groups(struct backend *be, const struct weight_groups *g, struct mlx_weight *w)
{
    w->bits = g->bits;
    w->group = g->group;
    w->w = mlx_keep(be->g, mlx_from(be->g, MLX_U32, mlx_dims2(g->n_out, g->n_in * g->bits / 32), g->weight));
    w->scales = numbers(be, g, g->scales);
    w->biases = numbers(be, g, g->biases);
    return w->w && w->scales && w->biases;
}

/* ---- loading ---- */

static bool load_matrix(struct backend *be, const struct host_tensor *t, struct mlx_weight *w)
{
    const struct mlx_shape s = mlx_dims2(t->n_out, t->n_in);
    uint64_t row_bytes;
    mlx_ref a;

    if (t->groups) return load_groups(be, t->groups, w);
    if (bits_of(t->dtype)) return load_blocks(be, t, w);
    if (t->dtype == DTYPE_F32 || t->dtype == DTYPE_BF16 || (t->dtype == DTYPE_F16 && be->is_gpu)) {
        a = mlx_from(be->g, t->dtype == DTYPE_F32 ? MLX_F32 : t->dtype == DTYPE_F16 ? MLX_F16 : MLX_BF16, s, t->data);
    } else if (be->is_gpu || t->dtype == DTYPE_F16) {
        a = opened(be, t, s, be->is_gpu ? MLX_F16 : MLX_F32);
    } else {
        if (!dtype_row_bytes(t->dtype, t->n_in, &row_bytes)) return false;
        w->is_rows = true;
        a = mlx_from(be->g, MLX_U8, mlx_dims2(t->n_out, row_bytes), t->data);
    }
    w->w = mlx_keep(be->g, a);
    return w->w != NULL;
}

rd_status mlx_weight_load(struct backend *be, const struct host_tensor *t, enum weight_role role, struct weight *out,
                          struct rd_error *err)
{
    struct mlx_weight *w;
    uint64_t n_bytes = 0;
    bool done = true;
    rd_status st;

    if (role == WEIGHT_LOW_RANK) return mlx_low_rank_load(t, out, err);
    mlx_ahead_join(be);
    w = mem_zalloc(1, sizeof(*w));
    if (!w) return error_set(err, RD_E_NOMEM, "%s: out of memory", t->name);
    *out = (struct weight){.dtype = t->dtype, .role = role, .n_out = t->n_out, .n_in = t->n_in, .data = w};
    w->host = *t;
    if (role == WEIGHT_VECTOR) {
        w->w = mlx_keep(be->g, opened(be, t, mlx_dims1((uint64_t)t->n_out * t->n_in), MLX_F32));
        done = w->w != NULL;
    } else if (role == WEIGHT_MATRIX) {
        done = load_matrix(be, t, w);
    }
    if (done) {
        const mlx_ref all[3] = {w->w, w->scales, w->biases};

        done = mlx_eval(be->g, (w->w != NULL) + (w->scales != NULL) + (w->biases != NULL), all);
        for (int i = 0; i < 3; i++) n_bytes += all[i] ? mlx_bytes_of(all[i]) : 0;
    }
    out->bytes = n_bytes;
    st = mlx_settle_error(be, t->name, err);
    if (st == RD_OK && !done) st = error_set(err, RD_E_NOMEM, "%s: out of memory", t->name);
    if (st != RD_OK) mlx_weight_unload(be, out);
    return st;
}

/* ---- what they are for ---- */

static void open_row(uint32_t type, const void *row, float *to, uint64_t n)
{
    dtype_to_float((enum dtype)type, row, to, n);
}

mlx_ref mlx_times(struct backend *be, mlx_ref x, const struct weight *weight)
{
    const struct mlx_weight *w = mlx_weight_of(weight);
    const struct mlx_groups groups = {
        w->w, w->scales, w->biases, w->bits, w->group, w->is_rows ? open_row : NULL, (uint32_t)weight->dtype};

    if (!x) return NULL;
    if (!be->is_gpu) return mlx_own_matmul(be->g, x, &groups);
    if (w->group) return mlx_as(be->g, mlx_quantized_matmul(be->g, x, &groups), MLX_F32);
    return mlx_as(be->g, mlx_matmul(be->g, mlx_as_of(be->g, x, w->w), w->w), MLX_F32);
}
