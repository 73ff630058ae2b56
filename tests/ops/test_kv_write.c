/* tests/ops/test_kv_write.c - qkv_rope_write: norms and RoPE against double precision, the right page rows, the same
 * bits in every variant, batch and thread count; pages are copied row by row.
 */
#include "backend/cpu/rows/kv_quant.h"
#include "backend/cpu/rows/row_kernels.h"
#include "backend/kv_storage.h"
#include "op_fixture.h"

struct write_case {
    uint32_t n_heads, n_kv_heads, head_dim, n_rot, page_tokens;
    enum dtype dtype_k, dtype_v;
    enum rope_layout layout;
    bool norms;
    float mscale;
};

static const struct write_case cases[] = {
    {9, 3, 64, 64, 32, DTYPE_F16, DTYPE_F16, ROPE_HALF_SPLIT, false, 1},
    {9, 3, 64, 64, 32, DTYPE_F16, DTYPE_F16, ROPE_INTERLEAVED, false, 1},
    {4, 1, 256, 256, 64, DTYPE_BF16, DTYPE_BF16, ROPE_HALF_SPLIT, true, 1},
    {14, 2, 64, 32, 1, DTYPE_F32, DTYPE_F32, ROPE_HALF_SPLIT, true, 1.3f},
    {4, 4, 80, 20, 4, DTYPE_F16, DTYPE_F16, ROPE_INTERLEAVED, true, 0.9f},
    {6, 3, 18, 10, 128, DTYPE_BF16, DTYPE_BF16, ROPE_HALF_SPLIT, true, 1},
    {3, 3, 16, 0, 16, DTYPE_F32, DTYPE_F32, ROPE_HALF_SPLIT, false, 1},
    {8, 1, 128, 128, 16, DTYPE_F32, DTYPE_F32, ROPE_INTERLEAVED, true, 1},
    {9, 3, 64, 64, 32, DTYPE_Q8_0, DTYPE_Q8_0, ROPE_HALF_SPLIT, false, 1},
    {4, 1, 256, 256, 16, DTYPE_Q8_0, DTYPE_Q4_0, ROPE_HALF_SPLIT, true, 1},
    {4, 2, 96, 96, 1, DTYPE_Q4_0, DTYPE_Q8_0, ROPE_INTERLEAVED, true, 1},
    {6, 3, 32, 16, 8, DTYPE_Q4_0, DTYPE_BF16, ROPE_HALF_SPLIT, false, 1},
    {9, 3, 64, 64, 16, DTYPE_F8_E4M3, DTYPE_F8_E4M3, ROPE_HALF_SPLIT, true, 1},
    {4, 2, 96, 32, 4, DTYPE_F8_E4M3, DTYPE_Q8_0, ROPE_INTERLEAVED, false, 1},
};
#define N_CASES (sizeof(cases) / sizeof(cases[0]))
enum { N_ROWS = 41, N_LAYERS = 2, LAYER = 1, N_PAGES = 64 };

/* Inputs with strides wider than the rows, and positions and places in pages that are all different. */
struct inputs {
    uint32_t q_stride, k_stride, v_stride;
    float *q, *k, *v, *q_norm, *k_norm, *inv_freq;
    uint32_t positions[N_ROWS], slots[N_ROWS];
    kv_page pages[N_ROWS];
    struct weight w_q, w_k;
};

static bool inputs_init(struct inputs *in, const struct write_case *c, struct random *r)
{
    in->q_stride = c->n_heads * c->head_dim + 7;
    in->k_stride = c->n_kv_heads * c->head_dim + 3;
    in->v_stride = c->n_kv_heads * c->head_dim + 5;
    in->q = op_floats(r, (uint64_t)N_ROWS * in->q_stride, 2), in->k = op_floats(r, (uint64_t)N_ROWS * in->k_stride, 2);
    in->v = op_floats(r, (uint64_t)N_ROWS * in->v_stride, 2);
    in->q_norm = op_floats(r, c->head_dim, 1), in->k_norm = op_floats(r, c->head_dim, 1);
    in->inv_freq = op_floats(r, c->n_rot / 2, 1);
    if (!in->q || !in->k || !in->v || !in->q_norm || !in->k_norm || !in->inv_freq) return false;
    for (uint32_t i = 0; i < c->n_rot / 2; i++) in->inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)c->n_rot);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        uint32_t place = i * 37 % (N_PAGES * c->page_tokens);

        in->positions[i] = i < 30 ? 1000 + i : (uint32_t)random_below(r, 200000);
        in->pages[i] = (place / c->page_tokens * 5 + 3) % N_PAGES;
        in->slots[i] = place % c->page_tokens;
    }
    in->w_q = op_vector(in->q_norm, c->head_dim), in->w_k = op_vector(in->k_norm, c->head_dim);
    return true;
}

static void inputs_deinit(struct inputs *in)
{
    mem_free_aligned(in->q), mem_free_aligned(in->k), mem_free_aligned(in->v);
    mem_free_aligned(in->q_norm), mem_free_aligned(in->k_norm), mem_free_aligned(in->inv_freq);
}

/* Rows first .. first+n-1. q and k are the caller's copies. */
static rd_status write_rows(struct backend *be, const struct write_case *c, const struct inputs *in, float *q, float *k,
                            struct kv_storage *kv, uint32_t first, uint32_t n)
{
    const struct weight freqs = {.role = WEIGHT_VECTOR, .n_out = 1, .n_in = c->n_rot / 2, .data = in->inv_freq};
    struct qkv_args a = {
        .n_rows = n,
        .layer = LAYER,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .q = span_of_host(q + (size_t)first * in->q_stride),
        .q_stride = in->q_stride,
        .k = span_of_host(k + (size_t)first * in->k_stride),
        .k_stride = in->k_stride,
        .v = span_of_host(in->v + (size_t)first * in->v_stride),
        .v_stride = in->v_stride,
        .q_norm = c->norms ? &in->w_q : NULL,
        .k_norm = c->norms ? &in->w_k : NULL,
        .norm_eps = 1e-6f,
        .positions = in->positions + first,
        .inv_freq = &freqs,
        .n_rot = c->n_rot,
        .rope_mscale = c->mscale,
        .layout = c->layout,
        .row_page = in->pages + first,
        .row_slot = in->slots + first,
        .kv = kv,
    };

    return backend_cpu_ops.op.qkv_rope_write(be, &a);
}

static void naive_head(const struct write_case *c, const float *x, const float *norm, const float *inv_freq,
                       uint32_t pos, double *out)
{
    double ss = 0;

    for (uint32_t i = 0; i < c->head_dim; i++) ss += (double)x[i] * x[i];
    for (uint32_t i = 0; i < c->head_dim; i++) out[i] = norm ? x[i] / sqrt(ss / c->head_dim + 1e-6) * norm[i] : x[i];
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        float angle = (float)pos * inv_freq[i];
        uint32_t a = c->layout == ROPE_INTERLEAVED ? 2 * i : i,
                 b = c->layout == ROPE_INTERLEAVED ? a + 1 : i + c->n_rot / 2;
        double x0 = out[a], x1 = out[b];

        out[a] = (x0 * cos(angle) - x1 * sin(angle)) * c->mscale;
        out[b] = (x0 * sin(angle) + x1 * cos(angle)) * c->mscale;
    }
}

static const uint8_t *kv_row(const struct kv_storage *kv, const struct inputs *in, uint32_t row, uint32_t which,
                             uint32_t head)
{
    return (const uint8_t *)kv->base + in->pages[row] * kv->page_bytes + kv_head_offset(kv, LAYER, which, head) +
           in->slots[row] * kv->row_bytes[which];
}

/* Half a step of the type near x: relative to x, or to the largest of its block (a half more of Q4_0 at the end that
 * 15 cannot reach). */
static double step_of(enum dtype t, const double *x, uint32_t i)
{
    double most = 0;

    for (uint32_t j = i / 32 * 32; j < i / 32 * 32 + 32 && t >= DTYPE_Q4_0 && t <= DTYPE_Q8_0; j++)
        most = fmax(most, fabs(x[j]));
    switch (t) {
    case DTYPE_F16:
        return fabs(x[i]) * 0x1p-11;
    case DTYPE_BF16:
        return fabs(x[i]) * 0x1p-8;
    case DTYPE_Q8_0:
        return most / 127 * 0.57;
    case DTYPE_Q4_0:
        return most / 8 * 1.01;
    case DTYPE_F8_E4M3:
        return fmax(fabs(x[i]) * 0x1p-4, 0x1p-10);
    default:
        return 0;
    }
}

/* x = H x, with the factor of keys: row i, column j is -1 to the number of ones in i & j. */
static void turn(double *x, uint32_t head_dim)
{
    uint32_t n = head_dim & (0 - head_dim);
    double out[256];

    for (uint32_t i = 0; i < head_dim; i++) {
        out[i] = 0;
        for (uint32_t j = 0; j < n; j++)
            out[i] += __builtin_popcount(i % n & j) % 2 ? -x[i / n * n + j] : x[i / n * n + j];
        out[i] *= kv_key_factor(head_dim);
    }
    memcpy(x, out, head_dim * sizeof(*x));
}

/* f32 parts within 2e-6 of the head's size; stored keys within half a step of the KV type more; values exactly those
 * of the definition. */
static void check_against_double(const struct write_case *c, const struct inputs *in, const float *q,
                                 const struct kv_storage *kv)
{
    double want[256];
    float stored[256], rounded[256];
    uint8_t bytes[1024];

    for (uint32_t row = 0; row < N_ROWS; row++) {
        for (uint32_t h = 0; h < c->n_heads; h++) {
            size_t at = (size_t)row * in->q_stride + (size_t)h * c->head_dim;

            naive_head(c, in->q + at, c->norms ? in->q_norm : NULL, in->inv_freq, in->positions[row], want);
            for (uint32_t i = 0; i < c->head_dim; i++) CHECK(fabs(q[at + i] - want[i]) < 2e-6 * 8);
        }
        for (uint32_t h = 0; h < c->n_kv_heads; h++) {
            naive_head(c, in->k + (size_t)row * in->k_stride + (size_t)h * c->head_dim, c->norms ? in->k_norm : NULL,
                       in->inv_freq, in->positions[row], want);
            dtype_to_float(c->dtype_k, kv_row(kv, in, row, 0, h), stored, c->head_dim);
            if (kv_type_turns(c->dtype_k)) turn(want, c->head_dim);
            for (uint32_t i = 0; i < c->head_dim; i++)
                CHECK(fabs(stored[i] - want[i]) < 2e-6 * 8 + step_of(c->dtype_k, want, i) * 1.001);
            cpu_rows_ref.store_kv(c->dtype_v, in->v + (size_t)row * in->v_stride + (size_t)h * c->head_dim, bytes,
                                  c->head_dim);
            dtype_to_float(c->dtype_v, bytes, rounded, c->head_dim);
            dtype_to_float(c->dtype_v, kv_row(kv, in, row, 1, h), stored, c->head_dim);
            CHECK(op_same(stored, rounded, c->head_dim));
        }
    }
}

static void check_case(const struct write_case *c, struct random *r)
{
    struct kv_layout layout = {N_LAYERS, c->n_kv_heads, c->head_dim, c->page_tokens, c->dtype_k, c->dtype_v};
    struct backend *ref = op_backend(CPU_ISA_REF, 1);
    struct kv_storage want_kv, kv;
    struct inputs in = {0};
    size_t nq, nk, kv_bytes;
    float *want_q, *q, *k;
    static const uint32_t threads[] = {1, 2, 5};

    CHECK(ref && inputs_init(&in, c, r));
    nq = (size_t)N_ROWS * in.q_stride, nk = (size_t)N_ROWS * in.k_stride;
    want_q = op_copy(in.q, nq), q = op_copy(in.q, nq), k = op_copy(in.k, nk);
    CHECK(want_q && q && k);
    CHECK_OK(backend_cpu_ops.pages.create(ref, &layout, N_PAGES, &want_kv));
    CHECK_OK(backend_cpu_ops.pages.create(ref, &layout, N_PAGES, &kv));
    kv_bytes = (size_t)(kv.page_bytes * N_PAGES);
    for (uint32_t i = 0; i < N_ROWS; i++) CHECK_OK(write_rows(ref, c, &in, want_q, k, &want_kv, i, 1));
    check_against_double(c, &in, want_q, &want_kv);
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        if (!op_has_own_kernels(isa)) continue;
        for (int t = 0; t < 3; t++) {
            struct backend *be = op_backend((enum cpu_isa)isa, threads[t]);
            uint32_t cut = (uint32_t)random_below(r, N_ROWS + 1);

            CHECK(be);
            memcpy(q, in.q, nq * sizeof(*q)), memcpy(k, in.k, nk * sizeof(*k));
            memset(kv.base, 0, kv_bytes);
            CHECK_OK(write_rows(be, c, &in, q, k, &kv, 0, cut));
            CHECK_OK(write_rows(be, c, &in, q, k, &kv, cut, N_ROWS - cut));
            CHECK(op_same(q, want_q, nq)); /* the gaps between rows are untouched, too */
            CHECK(memcmp(kv.base, want_kv.base, kv_bytes) == 0);
            backend_cpu_ops.life.destroy(be);
        }
    }
    backend_cpu_ops.pages.destroy(ref, &kv);
    backend_cpu_ops.pages.destroy(ref, &want_kv);
    backend_cpu_ops.life.destroy(ref);
    inputs_deinit(&in);
    mem_free_aligned(want_q), mem_free_aligned(q), mem_free_aligned(k);
}

TEST(rows_are_normed_rotated_and_written_alike_everywhere)
{
    struct random r;

    random_init(&r, test_seed());
    for (size_t i = 0; i < N_CASES; i++) check_case(&cases[i], &r);
}

TEST(a_page_copy_takes_the_first_rows_of_every_layer_and_head)
{
    struct kv_layout layout = {3, 2, 32, 8, DTYPE_F16, DTYPE_Q8_0};
    struct backend *be = op_backend(cpu_isa_best(), 1);
    struct kv_storage kv;
    uint8_t *from, *to;

    CHECK(be);
    CHECK_OK(backend_cpu_ops.pages.create(be, &layout, 4, &kv));
    from = (uint8_t *)kv.base + kv.page_bytes, to = (uint8_t *)kv.base + 3 * kv.page_bytes;
    for (uint64_t i = 0; i < kv.page_bytes; i++) from[i] = (uint8_t)(i * 7 + i / 256), to[i] = 0xee;
    CHECK_OK(backend_cpu_ops.pages.copy_rows(be, &kv, 3, 1, 5));
    for (uint32_t layer = 0; layer < 3; layer++)
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t head = 0; head < 2; head++) {
                uint64_t at = kv_head_offset(&kv, layer, which, head), n = kv.row_bytes[which];

                CHECK(memcmp(to + at, from + at, 5 * n) == 0);
                for (uint64_t i = 5 * n; i < 8 * n; i++) CHECK_EQ(to[at + i], 0xee);
            }
    backend_cpu_ops.pages.destroy(be, &kv);
    backend_cpu_ops.pages.destroy(be, &kv);
    backend_cpu_ops.life.destroy(be);
}

TEST(quantised_types_hold_more_tokens_in_the_same_bytes)
{
    static const uint32_t dims[] = {32, 64, 96, 128, 256};
    struct kv_layout layout = {24, 2, 0, 16, DTYPE_F16, DTYPE_F16};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        double halves, eights, fours;

        layout.head_dim = dims[i];
        layout.dtype_k = layout.dtype_v = DTYPE_F16, halves = (double)kv_page_bytes(&layout);
        layout.dtype_k = layout.dtype_v = DTYPE_Q8_0, eights = (double)kv_page_bytes(&layout);
        layout.dtype_k = layout.dtype_v = DTYPE_Q4_0, fours = (double)kv_page_bytes(&layout);
        CHECK(halves / eights >= 1.85);
        CHECK(halves / fours >= 3.5);
    }
}

TEST(storage_too_large_to_count_is_out_of_memory)
{
    struct kv_layout layout = {1024, 1024, 1024, 1u << 20, DTYPE_F32, DTYPE_F32};
    struct backend *be = op_backend(cpu_isa_best(), 1);
    struct kv_storage kv;

    CHECK(be);
    CHECK_EQ(backend_cpu_ops.pages.create(be, &layout, UINT32_MAX, &kv), RD_E_NOMEM);
    backend_cpu_ops.life.destroy(be);
}
