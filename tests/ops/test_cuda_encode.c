/* tests/ops/test_cuda_encode.c - what images need of the CUDA backend: the encoder's ops against the CPU's, attention of the
 * text model both ways inside an image, RoPE by three positions; and that no row's bits depend on its neighbours.
 *
 * Skipped where the build has no CUDA or the machine no GPU. Bounds: what the tensor cores read is bf16 (relative 2^-9).
 */
#include "test.h"

#ifdef RADISH_CUDA
#include "base/checked.h"
#include "cuda_sides.h"

static struct weight vector_on(struct side *s, const float *x, uint32_t n)
{
    struct host_tensor t = {"vector", DTYPE_F32, 1, n, x, false, NULL, 0};
    struct weight w = {0};

    if (s->ops->weights.load(s->be, &t, WEIGHT_VECTOR, &w, NULL) != RD_OK)
        test_fail(__FILE__, __LINE__, "loading failed");
    return w;
}

static void free_on(struct side *s, struct span p)
{
    s->ops->memory.free(s->be, p.buffer);
}

TEST(cuda_layer_norm_gelu_turn_and_means_agree_with_the_cpu)
{
    static const uint32_t widths[] = {1152, 1280, 48, 17};
    enum { ROWS = 37, HEADS = 3 };
    struct side gpu, cpu, *sides[2];
    struct random rng;

    if (!open_sides(&gpu, &cpu)) return;
    sides[0] = &cpu, sides[1] = &gpu;
    random_init(&rng, test_seed());
    for (size_t c = 0; c < sizeof(widths) / sizeof(widths[0]); c++) {
        const uint32_t width = widths[c], n = ROWS * width;
        float *x = normal(&rng, n, 2), *w = normal(&rng, width, 1), *b = normal(&rng, width, 1);
        float *out[2] = {normal(&rng, n, 1), normal(&rng, n, 1)}, *one = normal(&rng, width, 1);
        uint32_t means[ROWS / 4 * 4];

        for (uint32_t i = 0; i < ROWS / 4 * 4; i++) means[i] = (i * 7 + 3) % ROWS;
        for (int i = 0; i < 2; i++) {
            struct span dx = to_side(sides[i], x, n), to = to_side(sides[i], x, n);
            struct weight ww = vector_on(sides[i], w, width), wb = vector_on(sides[i], b, width);

            CHECK_OK(sides[i]->ops->op.layer_norm(
                sides[i]->be, &(struct layer_norm_args){ROWS, width, dx, &ww, &wb, 1e-6f, to, false}));
            from_side(sides[i], to, n, out[i]);
            if (i) { /* the fourth row alone, in place */
                struct span alone = to_side(&gpu, x + 3 * width, width);

                CHECK_OK(gpu.ops->op.layer_norm(
                    gpu.be, &(struct layer_norm_args){1, width, alone, &ww, &wb, 1e-6f, alone, false}));
                from_side(&gpu, alone, width, one);
                CHECK_EQ(memcmp(one, out[1] + 3 * width, width * sizeof(float)), 0);
            }
            sides[i]->ops->weights.unload(sides[i]->be, &ww);
            sides[i]->ops->weights.unload(sides[i]->be, &wb);
            free_on(sides[i], dx);
        }
        CHECK(distance(out[1], out[0], n) < 1e-5);
        for (int kind = GELU_ERF; kind <= GELU_TANH; kind++) {
            for (int i = 0; i < 2; i++) {
                struct span dx = to_side(sides[i], x, n);

                CHECK_OK(sides[i]->ops->op.gelu(sides[i]->be, &(struct gelu_args){(enum gelu)kind, n, dx, false}));
                from_side(sides[i], dx, n, out[i]);
            }
            CHECK(distance(out[1], out[0], n) < 2e-6);
        }
        for (int i = 0; i < 2; i++) {
            struct span dx = to_side(sides[i], x, n), to = to_side(sides[i], x, n);

            CHECK_OK(sides[i]->ops->op.mean_rows(sides[i]->be, &(struct mean_args){ROWS / 4, 4, width, dx, means, to}));
            from_side(sides[i], to, n, out[i]);
            free_on(sides[i], dx);
        }
        CHECK_EQ(memcmp(out[0], out[1], (size_t)(ROWS / 4) * width * sizeof(float)), 0);
        if (width % (2 * HEADS) == 0) {
            const uint32_t dim = width / HEADS;
            float *angles = normal(&rng, 2 * ROWS * dim / 2, 1);

            for (int i = 0; i < 2; i++) {
                struct span q = to_side(sides[i], x, n), k = to_side(sides[i], x, n),
                            t = to_side(sides[i], angles, 2 * ROWS * dim / 2);
                const struct turn_args a = {ROWS, HEADS, dim, q, k, width, t, span_add(t, ROWS * dim / 2)};

                CHECK_OK(sides[i]->ops->op.turn(sides[i]->be, &a));
                free_on(sides[i], q);
                from_side(sides[i], k, n, out[i]);
                free_on(sides[i], t);
            }
            CHECK(distance(out[1], out[0], n) < 1e-6);
            mem_free(angles);
        }
        mem_free(x), mem_free(w), mem_free(b), mem_free(out[0]), mem_free(out[1]), mem_free(one);
    }
    close_sides(&gpu, &cpu);
}

/* ---- attention of encoders ---- */

/* Cut, not rounded. */
static float as_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits &= 0xFFFF0000u;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

enum { A_ROWS = 700, A_HEADS = 3, A_GROUPS = 60 };

struct groups {
    uint32_t n, ends[A_GROUPS], blocks[A_GROUPS + 1];
};

/* One group; frames; windows of odd sizes. */
static void cut_groups(struct groups *g, int kind, struct random *r)
{
    g->n = 0;
    g->blocks[0] = 0;
    for (uint32_t at = 0; at < A_ROWS;) {
        uint32_t size = kind == 0 ? A_ROWS : kind == 1 ? 350 : 1 + (uint32_t)random_below(r, 70);

        if (g->n + 1 == A_GROUPS || size > A_ROWS - at) size = A_ROWS - at;
        at += size;
        g->ends[g->n++] = at;
        g->blocks[g->n] = g->blocks[g->n - 1] + u32_ceil_div(size, ATTEND_BLOCK);
    }
}

/* Cut by r where it is not NULL. */
static void attend(struct side *s, const struct groups *g, uint32_t dim, const float *qkv, float *out, struct random *r)
{
    const uint32_t hidden = A_HEADS * dim;
    struct span x = to_side(s, qkv, (uint64_t)A_ROWS * 3 * hidden), to = to_side(s, qkv, (uint64_t)A_ROWS * hidden),
                packed = room_on(s, attend_packed_floats(dim, A_HEADS, g->blocks[g->n]) * sizeof(float));

    for (uint32_t head = 0, n_some; head < A_HEADS; head += n_some) {
        struct attend_args a = {.n_rows = A_ROWS,
                                .n_heads = A_HEADS,
                                .head_dim = dim,
                                .q = x,
                                .k = span_add(x, hidden),
                                .v = span_add(x, 2 * hidden),
                                .stride = 3 * hidden,
                                .head0 = head,
                                .scale = 0.37f,
                                .n_groups = g->n,
                                .group_ends = g->ends,
                                .group_blocks = g->blocks,
                                .packed = packed};

        n_some = a.n_some = r ? 1 + (uint32_t)random_below(r, A_HEADS - head) : A_HEADS;
        CHECK_OK(s->ops->op.attend_pack(s->be, &a));
        for (; a.row0 < A_ROWS; a.row0 += a.n_rows) {
            a.n_rows = r ? 1 + (uint32_t)random_below(r, A_ROWS - a.row0) : A_ROWS;
            a.out = span_add(to, (uint64_t)a.row0 * hidden);
            CHECK_OK(s->ops->op.attend(s->be, &a));
        }
    }
    CHECK_OK(s->ops->memory.sync(s->be));
    free_on(s, x);
    free_on(s, packed);
    from_side(s, to, (uint64_t)A_ROWS * hidden, out);
}

static void check_attend(void)
{
    static const uint32_t dims[] = {64, 72, 80, 16, 36, 96, 128, 160};
    struct side gpu, cpu;
    struct random rng;

    if (!open_sides(&gpu, &cpu)) return;
    random_init(&rng, test_seed());
    for (int kind = 0; kind < 3; kind++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++) {
            const uint64_t n = (uint64_t)A_ROWS * A_HEADS * dims[d];
            float *qkv = normal(&rng, 3 * n, 0.7f), *want = normal(&rng, n, 1), *got = normal(&rng, n, 1),
                  *cut = normal(&rng, n, 1);
            struct groups g;

            for (uint64_t i = 0; i < 3 * n; i++) qkv[i] = as_bf16(qkv[i]); /* what the tensor cores read */
            cut_groups(&g, kind, &rng);
            attend(&cpu, &g, dims[d], qkv, want, NULL);
            attend(&gpu, &g, dims[d], qkv, got, NULL);
            attend(&gpu, &g, dims[d], qkv, cut, &rng);
            test_note("heads of %u, %u groups: %.1e", dims[d], g.n, distance(got, want, n));
            CHECK(distance(got, want, n) < 6e-3); /* probabilities are bf16, too */
            CHECK_EQ(memcmp(got, cut, n * sizeof(float)), 0);
            mem_free(qkv), mem_free(want), mem_free(got), mem_free(cut);
        }
    close_sides(&gpu, &cpu);
}

TEST(cuda_attention_of_encoders_is_the_cpus_and_has_its_rows_bits)
{
    check_attend();
}

TEST(cuda_attention_of_encoders_on_an_older_gpu_is_too)
{
    CHECK_EQ(setenv("RADISH_CUDA_COMPUTE", "80", 1), 0);
    check_attend();
    CHECK_EQ(unsetenv("RADISH_CUDA_COMPUTE"), 0);
}

/* q and k turned, by attend_fill where the backend takes the heads; rows cut by r where it is not NULL. */
static void turn_and_attend(struct side *s, const struct groups *g, uint32_t dim, const float *qkv, const float *angles,
                            float *out, struct random *r)
{
    const uint32_t hidden = A_HEADS * dim, half = dim / 2;
    struct span x = to_side(s, qkv, (uint64_t)A_ROWS * 3 * hidden), to = to_side(s, qkv, (uint64_t)A_ROWS * hidden),
                packed = room_on(s, attend_packed_floats(dim, A_HEADS, g->blocks[g->n]) * sizeof(float)),
                turns = to_side(s, angles, 2 * (uint64_t)A_ROWS * half);
    struct attend_args a = {.n_heads = A_HEADS,
                            .head_dim = dim,
                            .stride = 3 * hidden,
                            .n_some = A_HEADS,
                            .scale =
                                2 / sqrtf((float)dim), /* scores of about 1: rounded after turning they are 2^-8 off */
                            .n_groups = g->n,
                            .group_ends = g->ends,
                            .group_blocks = g->blocks,
                            .packed = packed};
    rd_status st = RD_E_UNSUPPORTED;

    for (; a.row0 < A_ROWS; a.row0 += a.n_rows) {
        const struct span row = span_add(x, (uint64_t)a.row0 * 3 * hidden);
        const uint64_t at = (uint64_t)a.row0 * half;

        a.n_rows = r ? 1 + (uint32_t)random_below(r, A_ROWS - a.row0) : A_ROWS;
        a.q = row, a.k = span_add(row, hidden), a.v = span_add(row, 2 * hidden);
        const struct turn_args turn = {a.n_rows,
                                       A_HEADS,
                                       dim,
                                       a.q,
                                       a.k,
                                       3 * hidden,
                                       span_add(turns, at),
                                       span_add(turns, (uint64_t)A_ROWS * half + at)};

        if (s->ops->op.attend_fill) st = s->ops->op.attend_fill(s->be, &a, &turn);
        if (st == RD_E_UNSUPPORTED)
            CHECK_OK(s->ops->op.turn(s->be, &turn));
        else
            CHECK_OK(st);
    }
    a.row0 = 0, a.n_rows = A_ROWS, a.out = to;
    a.q = x, a.k = span_add(x, hidden), a.v = span_add(x, 2 * hidden);
    if (st == RD_E_UNSUPPORTED) CHECK_OK(s->ops->op.attend_pack(s->be, &a));
    CHECK_OK(s->ops->op.attend(s->be, &a));
    CHECK_OK(s->ops->memory.sync(s->be));
    free_on(s, x), free_on(s, packed), free_on(s, turns);
    from_side(s, to, (uint64_t)A_ROWS * hidden, out);
}

static void check_turned(void)
{
    static const uint32_t dims[] = {64, 72, 80, 16, 128, 160};
    struct side gpu, cpu;
    struct random rng;

    if (!open_sides(&gpu, &cpu)) return;
    random_init(&rng, test_seed());
    for (int kind = 0; kind < 3; kind++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++) {
            const uint64_t n = (uint64_t)A_ROWS * A_HEADS * dims[d], n_angles = (uint64_t)A_ROWS * dims[d] / 2;
            float *qkv = normal(&rng, 3 * n, 0.7f), *angles = normal(&rng, 2 * n_angles, 1);
            float *want = normal(&rng, n, 1), *got = normal(&rng, n, 1), *cut = normal(&rng, n, 1);
            struct groups g;

            for (uint64_t i = 0; i < n_angles; i++) {
                const float angle = angles[i];

                angles[i] = cosf(angle);
                angles[n_angles + i] = sinf(angle);
            }
            cut_groups(&g, kind, &rng);
            turn_and_attend(&cpu, &g, dims[d], qkv, angles, want, NULL);
            turn_and_attend(&gpu, &g, dims[d], qkv, angles, got, NULL);
            turn_and_attend(&gpu, &g, dims[d], qkv, angles, cut, &rng);
            test_note("heads of %u, %u groups: %.1e", dims[d], g.n, distance(got, want, n));
            CHECK(distance(got, want, n) < 1e-2);
            CHECK_EQ(memcmp(got, cut, n * sizeof(float)), 0);
            mem_free(qkv), mem_free(angles), mem_free(want), mem_free(got), mem_free(cut);
        }
    close_sides(&gpu, &cpu);
}

TEST(cuda_attention_of_rows_that_are_filled_in_pieces_is_that_of_turned_ones)
{
    check_turned();
}

TEST(cuda_attention_of_turned_rows_on_an_older_gpu_is_too)
{
    CHECK_EQ(setenv("RADISH_CUDA_COMPUTE", "80", 1), 0);
    check_turned();
    CHECK_EQ(unsetenv("RADISH_CUDA_COMPUTE"), 0);
}

/* ---- an MLP ---- */

struct mlp {
    uint32_t n_rows, width, ffn;
    enum gelu gelu;
};

static struct weight matrix_on(struct side *s, const uint16_t *x, uint32_t n_out, uint32_t n_in)
{
    struct host_tensor t = {"matrix", DTYPE_BF16, n_out, n_in, x, false, NULL, 0};
    struct weight w = {0};

    if (s->ops->weights.load(s->be, &t, WEIGHT_MATRIX, &w, NULL) != RD_OK)
        test_fail(__FILE__, __LINE__, "loading failed");
    return w;
}

/* x[row0 ..] += w2 gelu(w1 x + b1) + b2; whole: what follows alone reads it, and the backend may know. */
static void mlp_on(struct side *s, const struct mlp *m, const uint16_t *const w[2], const float *const b[2],
                   const float *x, bool whole, float *out)
{
    const uint64_t n = (uint64_t)m->n_rows * m->width;
    struct weight w1 = matrix_on(s, w[0], m->ffn, m->width), w2 = matrix_on(s, w[1], m->width, m->ffn),
                  b1 = vector_on(s, b[0], m->ffn), b2 = vector_on(s, b[1], m->width);
    struct span dx = to_side(s, x, n), in = to_side(s, x, n), delta = room_on(s, n * sizeof(float)),
                up = room_on(s, (uint64_t)m->n_rows * m->ffn * sizeof(float));
    const struct linear_args first = {.n_rows = m->n_rows,
                                      .x = in,
                                      .x_stride = m->width,
                                      .n_outs = 1,
                                      .outs = {{&w1, &b1, up, m->ffn}},
                                      .once = whole,
                                      .many = true};
    const struct linear_args second = {.n_rows = m->n_rows,
                                       .x = up,
                                       .x_stride = m->ffn,
                                       .n_outs = 1,
                                       .outs = {{&w2, &b2, delta, m->width}},
                                       .once = whole,
                                       .many = true};

    CHECK_OK(s->ops->op.linear(s->be, &first));
    CHECK_OK(s->ops->op.gelu(s->be, &(struct gelu_args){m->gelu, (uint64_t)m->n_rows * m->ffn, up, whole}));
    CHECK_OK(s->ops->op.linear(s->be, &second));
    CHECK_OK(s->ops->op.residual_norm(
        s->be, &(struct residual_norm_args){.n_rows = m->n_rows, .width = m->width, .x = dx, .delta = delta}));
    CHECK_OK(s->ops->memory.sync(s->be));
    free_on(s, in), free_on(s, delta), free_on(s, up);
    from_side(s, dx, n, out);
    s->ops->weights.unload(s->be, &w1), s->ops->weights.unload(s->be, &w2);
    s->ops->weights.unload(s->be, &b1), s->ops->weights.unload(s->be, &b2);
}

TEST(cuda_products_take_gelu_and_the_sum_within_and_have_the_bits_of_ops_apart)
{
    static const struct mlp shapes[] = {
        {700, 320, 1280, GELU_QUICK}, {300, 256, 520, GELU_TANH},
        {64, 1280, 256, GELU_ERF},    {5, 192, 264, GELU_QUICK},
        {700, 128, 72, GELU_TANH},    {3000, 768, 2048, GELU_QUICK}, /* more tiles than blocks: of 12, 10 and 2 */
        {2500, 640, 2048, GELU_TANH},                                /* k blocks of 64 */
        {2500, 128, 2048, GELU_ERF}};
    struct side gpu, cpu;
    struct random rng;

    if (!open_sides(&gpu, &cpu)) return;
    random_init(&rng, test_seed());
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct mlp *m = &shapes[i], one = {1, m->width, m->ffn, m->gelu};
        const uint64_t n = (uint64_t)m->n_rows * m->width, n_w = (uint64_t)m->width * m->ffn;
        float *x = normal(&rng, n, 1), *b1 = normal(&rng, m->ffn, 0.3f), *b2 = normal(&rng, m->width, 0.3f);
        float *want = normal(&rng, n, 1), *apart = normal(&rng, n, 1), *whole = normal(&rng, n, 1);
        uint16_t *w = mem_alloc(2 * n_w, sizeof(*w));
        const uint16_t *const ws[2] = {w, w + n_w};
        const float *const bs[2] = {b1, b2};

        for (uint64_t k = 0; k < 2 * n_w; k++) /* +- 1/32 .. 1/8 */
            w[k] = (uint16_t)(random_below(&rng, 2) << 15 | (0x3D00 + random_below(&rng, 256)));
        mlp_on(&cpu, m, ws, bs, x, true, want);
        mlp_on(&gpu, m, ws, bs, x, false, apart);
        mlp_on(&gpu, m, ws, bs, x, true, whole);
        test_note("%u rows of %u, %u: %.1e", m->n_rows, m->width, m->ffn, distance(whole, want, n));
        CHECK(distance(whole, want, n) < 1e-2);
        CHECK_EQ(memcmp(apart, whole, n * sizeof(float)), 0);
        mlp_on(&gpu, &one, ws, bs, x + 3 * m->width, true, apart); /* the fourth row alone */
        CHECK_EQ(memcmp(apart, whole + 3 * m->width, m->width * sizeof(float)), 0);
        mem_free(x), mem_free(b1), mem_free(b2), mem_free(want), mem_free(apart), mem_free(whole), mem_free(w);
    }
    close_sides(&gpu, &cpu);
}

/* ---- queries, keys and values ---- */

/* head_dim, and whether they are turned; rows, and of how many each group is; one matrix, or three. */
struct heads_case {
    uint32_t n_heads, head_dim, n_rows, in_group, n_matrices;
    bool turns;
};

/* attention of what w makes of x; whole: attend_fill alone reads the product, and the backend may know. Rows cut at `cut`. */
static void heads_on(struct side *s, const struct heads_case *c, const uint16_t *w, const float *b, const float *x,
                     const float *angles, bool whole, uint32_t cut, float *out)
{
    const uint32_t hidden = c->n_heads * c->head_dim, half = c->head_dim / 2, each = 3 * hidden / c->n_matrices;
    struct weight ws[3], bs[3];
    struct groups g = {.n = 0, .blocks = {0}};
    struct span turns = to_side(s, angles, 2 * (uint64_t)c->n_rows * half),
                to = room_on(s, (uint64_t)c->n_rows * hidden * 4),
                qkv = room_on(s, (uint64_t)c->n_rows * 3 * hidden * 4),
                in = to_side(s, x, (uint64_t)c->n_rows * hidden);
    struct span packed;

    for (uint32_t at = 0; at < c->n_rows; g.n++) {
        const uint32_t size = u32_min(c->in_group, c->n_rows - at);

        g.ends[g.n] = at += size;
        g.blocks[g.n + 1] = g.blocks[g.n] + u32_ceil_div(size, ATTEND_BLOCK);
    }
    packed = room_on(s, attend_packed_floats(c->head_dim, c->n_heads, g.blocks[g.n]) * sizeof(float));
    for (uint32_t i = 0; i < c->n_matrices; i++) {
        ws[i] = matrix_on(s, w + (uint64_t)i * each * hidden, each, hidden);
        bs[i] = vector_on(s, b + (uint64_t)i * each, each);
    }
    struct attend_args a = {.n_heads = c->n_heads,
                            .head_dim = c->head_dim,
                            .stride = 3 * hidden,
                            .n_some = c->n_heads,
                            .scale = 1 / sqrtf((float)c->head_dim),
                            .n_groups = g.n,
                            .group_ends = g.ends,
                            .group_blocks = g.blocks,
                            .packed = packed};

    for (; a.row0 < c->n_rows; a.row0 += a.n_rows) {
        const struct span rows = span_add(qkv, (uint64_t)a.row0 * 3 * hidden);
        struct linear_args l = {.x = span_add(in, (uint64_t)a.row0 * hidden),
                                .x_stride = hidden,
                                .n_outs = c->n_matrices,
                                .once = whole,
                                .many = true};

        l.n_rows = a.n_rows = u32_min(cut, c->n_rows - a.row0);
        a.q = rows, a.k = span_add(rows, hidden), a.v = span_add(rows, 2 * hidden);
        for (uint32_t i = 0; i < c->n_matrices; i++)
            l.outs[i] = (struct linear_out){&ws[i], &bs[i], span_add(rows, (uint64_t)i * each), 3 * hidden};
        const struct turn_args turn = {a.n_rows,
                                       c->n_heads,
                                       c->head_dim,
                                       a.q,
                                       a.k,
                                       3 * hidden,
                                       span_add(turns, (uint64_t)a.row0 * half),
                                       span_add(turns, ((uint64_t)c->n_rows + a.row0) * half)};

        CHECK_OK(s->ops->op.linear(s->be, &l));
        CHECK_OK(s->ops->op.attend_fill(s->be, &a, c->turns ? &turn : NULL));
    }
    a.row0 = 0, a.n_rows = c->n_rows, a.out = to;
    CHECK_OK(s->ops->op.attend(s->be, &a));
    CHECK_OK(s->ops->memory.sync(s->be));
    free_on(s, turns), free_on(s, qkv), free_on(s, in), free_on(s, packed);
    from_side(s, to, (uint64_t)c->n_rows * hidden, out);
    for (uint32_t i = 0; i < c->n_matrices; i++)
        s->ops->weights.unload(s->be, &ws[i]), s->ops->weights.unload(s->be, &bs[i]);
}

TEST(cuda_products_fill_attention_within_and_have_the_bits_of_ops_apart)
{
    static const struct heads_case cases[] = {{16, 80, 2000, 2000, 3, true}, {16, 80, 1024, 512, 1, true},
                                              {4, 80, 700, 350, 3, true},    {16, 72, 1500, 1500, 3, false},
                                              {5, 64, 1000, 1000, 1, true},  {6, 64, 300, 64, 3, false},
                                              {4, 72, 300, 300, 1, true}};
    struct side gpu, cpu;
    struct random rng;

    if (!open_sides(&gpu, &cpu)) return;
    random_init(&rng, test_seed());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct heads_case *c = &cases[i];
        const uint64_t hidden = (uint64_t)c->n_heads * c->head_dim, n = c->n_rows * hidden;
        const uint64_t n_angles = (uint64_t)c->n_rows * c->head_dim / 2;
        float *x = normal(&rng, n, 1), *b = normal(&rng, 3 * hidden, 0.3f), *angles = normal(&rng, 2 * n_angles, 1);
        float *apart = normal(&rng, n, 1), *whole = normal(&rng, n, 1), *cut = normal(&rng, n, 1);
        uint16_t *w = mem_alloc(3 * hidden * hidden, sizeof(*w));

        for (uint64_t k = 0; k < 3 * hidden * hidden; k++) /* +- 1/64 .. 1/32 */
            w[k] = (uint16_t)(random_below(&rng, 2) << 15 | (0x3C80 + random_below(&rng, 128)));
        heads_on(&gpu, c, w, b, x, angles, false, c->n_rows, apart);
        heads_on(&gpu, c, w, b, x, angles, true, c->n_rows, whole);
        heads_on(&gpu, c, w, b, x, angles, true, 192, cut);
        CHECK_EQ(memcmp(apart, whole, n * sizeof(float)), 0);
        CHECK_EQ(memcmp(apart, cut, n * sizeof(float)), 0);
        mem_free(x), mem_free(b), mem_free(angles), mem_free(apart), mem_free(whole), mem_free(cut), mem_free(w);
    }
    close_sides(&gpu, &cpu);
}

/* ---- the text model ---- */

struct text_case {
    uint32_t n_heads, n_kv_heads, head_dim, window;
    enum dtype dtype;
    bool axes;
};
enum { T_TOKENS = 420, PAGE = 16, FROM = 70, TO = 330 }; /* an image of 260 rows */

/* Positions in runs that end at `ends`, each a batch; before, between and behind them other rows' runs where `strangers`. */
static void text_pass(struct side *s, const struct text_case *c, const float *q, const float *k, const float *v,
                      const uint32_t *ends, bool both, bool once, float *out)
{
    const uint32_t qw = c->n_heads * c->head_dim, kw = c->n_kv_heads * c->head_dim;
    const uint32_t n_pages = u32_ceil_div(T_TOKENS, PAGE), half = c->head_dim / 2;
    const struct kv_layout layout = {1, c->n_kv_heads, c->head_dim, PAGE, c->dtype, c->dtype};
    static uint32_t axes[3 * T_TOKENS], positions[T_TOKENS], slots[T_TOKENS];
    static kv_page pages[T_TOKENS], table[T_TOKENS];
    float inv_freq[128];
    uint8_t axis_of[128];
    struct kv_storage kv = {0};
    struct weight freq;
    struct span dq = to_side(s, q, (uint64_t)T_TOKENS * qw), dk = to_side(s, k, (uint64_t)T_TOKENS * kw),
                dv = to_side(s, v, (uint64_t)T_TOKENS * kw), to = to_side(s, q, (uint64_t)T_TOKENS * qw);

    for (uint32_t i = 0; i < half; i++) {
        inv_freq[i] = powf(10000.0f, -(float)i / (float)half);
        axis_of[i] = (uint8_t)(i % 3);
    }
    for (uint32_t i = 0; i < n_pages; i++) table[i] = n_pages - 1 - i;
    freq = vector_on(s, inv_freq, half);
    CHECK_OK(s->ops->pages.create(s->be, &layout, n_pages, &kv));
    for (uint32_t pos = 0, n; pos < T_TOKENS; pos += n) {
        n = *ends++ - pos;
        for (uint32_t i = 0; i < n; i++) {
            positions[i] = pos + i;
            pages[i] = table[(pos + i) / PAGE];
            slots[i] = (pos + i) % PAGE;
            for (uint32_t axis = 0; axis < 3; axis++) axes[axis * n + i] = pos + i / (axis + 1);
        }
        const struct seq_run run = {0, n, pos, table, both ? FROM : 0, both ? TO : 0};
        const struct qkv_args write = {.n_rows = n,
                                       .n_heads = c->n_heads,
                                       .n_kv_heads = c->n_kv_heads,
                                       .head_dim = c->head_dim,
                                       .q = span_add(dq, (uint64_t)pos * qw),
                                       .q_stride = qw,
                                       .k = span_add(dk, (uint64_t)pos * kw),
                                       .k_stride = kw,
                                       .v = span_add(dv, (uint64_t)pos * kw),
                                       .v_stride = kw,
                                       .norm_eps = 1e-6f,
                                       .positions = positions,
                                       .axes = c->axes ? axes : NULL,
                                       .axis_of = c->axes ? axis_of : NULL,
                                       .inv_freq = &freq,
                                       .n_rot = c->head_dim,
                                       .rope_mscale = 1,
                                       .layout = ROPE_HALF_SPLIT,
                                       .row_page = pages,
                                       .row_slot = slots,
                                       .kv = &kv,
                                       .once = once};
        const struct attention_args a = {.n_rows = n,
                                         .n_heads = c->n_heads,
                                         .n_kv_heads = c->n_kv_heads,
                                         .head_dim = c->head_dim,
                                         .q = write.q,
                                         .q_stride = qw,
                                         .out = span_add(to, (uint64_t)pos * qw),
                                         .out_stride = qw,
                                         .layout = ROPE_HALF_SPLIT,
                                         .n_rot = c->head_dim,
                                         .scale = 1.0f / sqrtf((float)c->head_dim),
                                         .window = c->window,
                                         .n_runs = 1,
                                         .runs = &run,
                                         .kv = &kv};

        CHECK_OK(s->ops->op.qkv_rope_write(s->be, &write));
        CHECK_OK(s->ops->op.attention(s->be, &a));
        CHECK_OK(s->ops->memory.sync(s->be));
    }
    from_side(s, to, (uint64_t)T_TOKENS * qw, out);
    free_on(s, dq), free_on(s, dk), free_on(s, dv);
    s->ops->pages.destroy(s->be, &kv);
    s->ops->weights.unload(s->be, &freq);
}

static void check_text(void)
{
    static const struct text_case cases[] = {
        {4, 2, 64, 0, DTYPE_F16, false},   {4, 2, 128, 100, DTYPE_F16, false}, {4, 2, 256, 0, DTYPE_BF16, false},
        {8, 4, 256, 64, DTYPE_F16, false}, {4, 1, 16, 90, DTYPE_F32, false},   {4, 2, 128, 90, DTYPE_Q8_0, false},
        {12, 2, 128, 0, DTYPE_F16, true},  {4, 2, 64, 0, DTYPE_F32, true},     {4, 2, 128, 0, DTYPE_Q8_0, true},
        {4, 2, 16, 0, DTYPE_F16, true},
    };
    /* an image in one piece: alone, with text before and behind it; without it anywhere, a row alone at the end */
    static const uint32_t whole[] = {T_TOKENS}, cut[] = {FROM, TO, TO + 1, TO + 9, T_TOKENS},
                          late[] = {FROM - 3, TO + 5, T_TOKENS - 1, T_TOKENS};
    struct side gpu, cpu;
    struct random rng;

    if (!open_sides(&gpu, &cpu)) return;
    random_init(&rng, test_seed());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct text_case *c = &cases[i];
        const uint64_t nq = (uint64_t)T_TOKENS * c->n_heads * c->head_dim,
                       nk = (uint64_t)T_TOKENS * c->n_kv_heads * c->head_dim;
        const uint32_t *ways[] = {whole, cut, late, cut};
        float *q = normal(&rng, nq, 1), *k = normal(&rng, nk, 1), *v = normal(&rng, nk, 1);
        float *want = normal(&rng, nq, 1), *got[4], *causal = normal(&rng, nq, 1);

        text_pass(&cpu, c, q, k, v, whole, !c->axes, false, want);
        for (int way = 0; way < 4; way++) {
            got[way] = normal(&rng, nq, 1);
            text_pass(&gpu, c, q, k, v, ways[way], !c->axes, way == 3, got[way]);
        }
        test_note("heads %u/%u x %u, %s, window %u%s: %.1e", c->n_heads, c->n_kv_heads, c->head_dim,
                  dtype_name(c->dtype), c->window, c->axes ? ", three axes" : "", distance(got[0], want, nq));
        CHECK(distance(got[0], want, nq) < 1e-2);
        for (int way = 1; way < 4; way++) /* positions of axes are those of a batch: equal cuts alone compare */
            if (!c->axes || way == 3) CHECK_EQ(memcmp(got[way], got[c->axes ? 1 : 0], nq * sizeof(float)), 0);
        if (!c->axes) {
            text_pass(&gpu, c, q, k, v, whole, false, false, causal);
            CHECK(distance(causal, want, nq) > 0.05); /* the span matters */
        }
        for (int way = 0; way < 4; way++) mem_free(got[way]);
        mem_free(q), mem_free(k), mem_free(v), mem_free(want), mem_free(causal);
    }
    close_sides(&gpu, &cpu);
}

TEST(cuda_rows_of_an_image_see_each_other_and_turn_by_three_positions)
{
    check_text();
}

TEST(cuda_rows_of_an_image_on_an_older_gpu_do_too)
{
    CHECK_EQ(setenv("RADISH_CUDA_COMPUTE", "80", 1), 0);
    check_text();
    CHECK_EQ(unsetenv("RADISH_CUDA_COMPUTE"), 0);
}

#else

TEST(cuda_is_tested_in_the_build_with_cuda)
{
    test_skip("built without CUDA");
}

#endif
