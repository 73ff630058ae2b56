/* tests/ops/test_attend.c - attention of encoders: the softmax of all keys of a row's group, on every instruction set the same
 * bits, for any number of threads and any cut into rows and heads. */
#include <stdlib.h>
#include "op_fixture.h"
#include "sanitized.h"

#define N_ROWS  230u
#define N_HEADS 5u
#define MOST_G  40u

struct layout {
    uint32_t n, ends[MOST_G], blocks[MOST_G + 1];
};

/* One group; frames; windows of odd sizes. */
static void cut_groups(struct layout *l, int kind, struct random *r)
{
    uint32_t at = 0;

    l->n = 0;
    l->blocks[0] = 0;
    while (at < N_ROWS) {
        uint32_t size = kind == 0 ? N_ROWS : kind == 1 ? 115 : 1 + (uint32_t)random_below(r, 70);

        if (l->n + 1 == MOST_G || size > N_ROWS - at) size = N_ROWS - at;
        at += size;
        l->ends[l->n++] = at;
        l->blocks[l->n] = l->blocks[l->n - 1] + (size + ATTEND_BLOCK - 1) / ATTEND_BLOCK;
    }
}

/* Cut by r where it is not NULL. */
static void attend(struct backend *be, const struct layout *l, uint32_t head_dim, const float *qkv, float *out,
                   struct random *r)
{
    const uint32_t hidden = N_HEADS * head_dim;
    const uint64_t n_floats = attend_packed_floats(head_dim, N_HEADS, l->blocks[l->n]);
    float *packed = mem_alloc_aligned(n_floats * sizeof(*packed));

    for (uint64_t i = 0; i < n_floats; i++) packed[i] = NAN; /* what is not packed is not read */
    for (uint32_t head = 0, n_some; head < N_HEADS; head += n_some) {
        struct attend_args a = {.n_heads = N_HEADS,
                                .head_dim = head_dim,
                                .q = span_of_host(qkv),
                                .k = span_of_host(qkv + hidden),
                                .v = span_of_host(qkv + 2 * (size_t)hidden),
                                .stride = 3 * hidden,
                                .head0 = head,
                                .scale = 0.37f,
                                .n_groups = l->n,
                                .group_ends = l->ends,
                                .group_blocks = l->blocks,
                                .packed = span_of_host(packed)};

        n_some = a.n_some = r ? 1 + (uint32_t)random_below(r, N_HEADS - head) : N_HEADS;
        CHECK_OK(backend_cpu_ops.op.attend_pack(be, &a));
        for (; a.row0 < N_ROWS; a.row0 += a.n_rows) {
            a.n_rows = r ? 1 + (uint32_t)random_below(r, N_ROWS - a.row0) : N_ROWS;
            a.out = span_of_host(out + (size_t)a.row0 * hidden);
            CHECK_OK(backend_cpu_ops.op.attend(be, &a));
        }
    }
    mem_free_aligned(packed);
}

/* In doubles, as the formula says. */
static double worst_error(const struct layout *l, uint32_t head_dim, const float *qkv, const float *out)
{
    const uint32_t hidden = N_HEADS * head_dim, stride = 3 * hidden;
    double worst = 0;

    for (uint32_t row = 0; row < N_ROWS; row++)
        for (uint32_t h = 0; h < N_HEADS; h++) {
            const float *q = qkv + (size_t)row * stride + h * head_dim;
            double p[N_ROWS], sum = 0, most = -INFINITY;
            uint32_t g = 0, begin;

            while (l->ends[g] <= row) g++;
            begin = g ? l->ends[g - 1] : 0;
            for (uint32_t t = begin; t < l->ends[g]; t++) {
                p[t] = 0;
                for (uint32_t i = 0; i < head_dim; i++)
                    p[t] += 0.37 * (double)q[i] * (double)qkv[(size_t)t * stride + hidden + h * head_dim + i];
                most = fmax(most, p[t]);
            }
            for (uint32_t t = begin; t < l->ends[g]; t++) sum += p[t] = exp(p[t] - most);
            for (uint32_t i = 0; i < head_dim; i++) {
                double v = 0;

                for (uint32_t t = begin; t < l->ends[g]; t++)
                    v += p[t] / sum * (double)qkv[(size_t)t * stride + 2 * hidden + h * head_dim + i];
                worst = fmax(worst, fabs(v - (double)out[(size_t)row * hidden + h * head_dim + i]));
            }
        }
    return worst;
}

TEST(rows_are_the_softmax_of_their_group_whatever_the_cut)
{
    static const uint32_t dims[] = {64, 72, 80, 36};
    struct random r;

    random_init(&r, test_seed());
    for (int kind = 0; kind < 3; kind++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++) {
            if ((IS_EMULATED || (IS_SANITIZED && !test_is_long())) && d % 3 != (size_t)kind)
                continue; /* each kind and each width once: a minute less */
            const uint64_t n_out = (uint64_t)N_ROWS * N_HEADS * dims[d];
            float *qkv = op_floats(&r, 3 * n_out, 0.5f), *first = op_floats(&r, n_out, 1),
                  *out = op_floats(&r, n_out, 1);
            struct layout l;
            int n_compared = 0;

            cut_groups(&l, kind, &r);
            for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
                for (uint32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
                    struct backend *be = op_backend((enum cpu_isa)isa, n_threads);

                    CHECK(be);
                    attend(be, &l, dims[d], qkv, n_compared ? out : first, n_threads > 1 ? &r : NULL);
                    if (n_compared++) CHECK(op_same(first, out, n_out));
                    backend_cpu_ops.life.destroy(be);
                }
            }
            CHECK(n_compared >= 2);
            CHECK(worst_error(&l, dims[d], qkv, first) < 2e-6);
            mem_free_aligned(qkv);
            mem_free_aligned(first);
            mem_free_aligned(out);
        }
}
