/* grad/compute.c - products cut into tiles of columns (and rows), k in pieces that stay in the L2 cache. */
#include "grad/compute.h"
#include <assert.h>
#include <string.h>
#include "backend/cpu/cpu_backend.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"
#include "grad/matrix_unit.h"

#define STRIP         4096u /* floats of a panel that a kernel reads at a time, [k, columns]: half of an L1 cache */
#define TILE_N        64u   /* where nothing is opened for it */
#define TILE_M        64u
#define SOME_M        192u /* rows of a that stay in the L2 cache for all strips; a multiple of all GEMM_ROWS */
#define LEAST_M       96u  /* rows of a tile: each weight is opened for them */
#define ROWS_STEP     12u  /* a multiple of all GEMM_ROWS */
#define OPEN_COST     24u  /* multiplications that take as long as opening a weight */
#define READ_COST     12u  /* as reading a number of a from afar */
#define TILES_MOST    4u   /* of a thread */
#define PANEL_MAX     GEMM_PANEL_MAX
#define TILE_K        256u  /* at most: of the narrowest strips */
#define FAR_BYTES     2048u /* rows of a that lie a multiple of this apart share few sets of a cache: they are copied */
#define ROW_FLOATS    (TILE_K + 16u) /* of a copied row, which do not */
#define THREAD_FLOATS (TILE_K * PANEL_MAX + SOME_M * ROW_FLOATS)

struct grad_compute {
    struct cpu_pool *pool, *own_pool; /* own: or NULL, another's */
    const struct grad_kernels *kernels;
    struct matrix_unit *unit; /* or NULL */
    float *panels;            /* [n_threads][THREAD_FLOATS]: of b, of a */
    uint32_t n_threads;
};

static const struct grad_kernels *kernels_for(enum cpu_isa isa)
{
#if defined(__x86_64__)
    return isa >= CPU_ISA_AVX512 ? &grad_kernels_avx512 : isa == CPU_ISA_AVX2 ? &grad_kernels_avx2 : &grad_kernels_ref;
#elif defined(__aarch64__)
    return isa >= CPU_ISA_NEON ? &grad_kernels_neon : &grad_kernels_ref;
#else
    return &grad_kernels_ref;
#endif
}

rd_status grad_compute_create_in(struct cpu_pool *pool, const char *isa, struct grad_compute **out,
                                 struct rd_error *err)
{
    struct grad_compute *c = mem_zalloc(1, sizeof(*c));
    enum cpu_isa set = cpu_isa_best();
    rd_status st;

    if (!c) return error_set(err, RD_E_NOMEM, "out of memory");
    c->pool = pool;
    c->n_threads = cpu_pool_n_threads(pool);
    if (isa && (st = cpu_isa_parse(isa, &set, err)) != RD_OK) goto fail;
    c->kernels = kernels_for(set);
    c->panels = mem_map((size_t)c->n_threads * THREAD_FLOATS * sizeof(float));
    st = c->panels ? RD_OK : RD_E_NOMEM;
    if (st == RD_OK && cpu_kernels[set].dense) st = grad_use_matrix_unit(c, cpu_kernels[set].dense);
    if (st == RD_OK) {
        *out = c;
        return RD_OK;
    }
    error_set(err, st, "%u threads: %s", c->n_threads, rd_status_text(st));
fail:
    grad_compute_destroy(c);
    return st;
}

rd_status grad_compute_create(uint32_t n_threads, const char *isa, struct grad_compute **out, struct rd_error *err)
{
    const uint32_t n = n_threads ? n_threads : u32_min(thread_n_physical_cores(), LIMIT_CPU_THREADS);
    struct cpu_pool *pool = NULL;
    rd_status st;

    if (n > LIMIT_CPU_THREADS) return error_set(err, RD_E_INVALID, "%u CPU threads, at most %u", n, LIMIT_CPU_THREADS);
    st = cpu_pool_create(n, &pool);
    if (st != RD_OK) return error_set(err, st, "%u threads: %s", n, rd_status_text(st));
    st = grad_compute_create_in(pool, isa, out, err);
    if (st == RD_OK)
        (*out)->own_pool = pool;
    else
        cpu_pool_destroy(pool);
    return st;
}

void grad_compute_destroy(struct grad_compute *c)
{
    if (!c) return;
    cpu_pool_destroy(c->own_pool);
    matrix_unit_destroy(c->unit);
    if (c->panels) mem_unmap(c->panels, (size_t)c->n_threads * THREAD_FLOATS * sizeof(float));
    mem_free(c);
}

const struct grad_kernels *grad_kernels_of(const struct grad_compute *c)
{
    return c->kernels;
}

uint32_t grad_n_threads(const struct grad_compute *c)
{
    return c->n_threads;
}

void grad_run(struct grad_compute *c, void (*fn)(void *arg, uint32_t tile, uint32_t thread), void *arg,
              uint32_t n_tiles)
{
    cpu_pool_run(c->pool, fn, arg, n_tiles);
}

/* How a product is cut: tile 0 is the run's tile `first`. */
struct product_cut {
    uint32_t tile_n, tile_m, n_tiles_n, first, n_tiles;
};

struct gemm_job {
    struct grad_compute *c;
    const struct grad_product *p;
    struct product_cut cuts[GRAD_PRODUCTS];
    uint32_t n;
    uint32_t strip; /* columns that lie together in a panel, as many as a kernel computes at a time */
};

/* Rows k .. k + n_k of the matrix, columns n .. n + n_n, as floats: [strips of columns][panel_k, strip]. */
static const float *open_panel(const struct gemm_job *j, const struct grad_matrix *b, uint32_t thread, uint32_t k,
                               uint32_t n_k, uint32_t panel_k, uint32_t n, uint32_t n_n)
{
    const uint64_t block = dtype_block_weights(b->dtype), bytes = dtype_block_bytes(b->dtype);
    struct gemm_open o = {.dtype = b->dtype,
                          .row_bytes = b->n_cols / block * bytes,
                          .k = n_k,
                          .n = n_n,
                          .panel_k = panel_k,
                          .panel = j->c->panels + (uint64_t)thread * THREAD_FLOATS};

    o.from = (const uint8_t *)b->data + k * o.row_bytes + n / block * bytes;
    j->c->kernels->open(&o);
    return o.panel;
}

/* The rows of a, near each other. */
static void near_rows(struct gemm *g, float *to)
{
    for (uint32_t m = 0; m < g->m; m++) memcpy(to + m * ROW_FLOATS, g->a + m * g->a_m, g->k * sizeof(*to));
    g->a = to;
    g->a_m = ROW_FLOATS;
}

static void gemm_panel(const struct gemm_job *j, const struct gemm *g, uint32_t thread, uint32_t panel_k,
                       const float *panel)
{
    const bool is_far = g->a_k == 1 && g->n > j->strip && g->a_m * sizeof(float) % FAR_BYTES == 0;

    for (uint32_t m = 0; m < g->m; m += SOME_M) {
        struct gemm part = *g;

        part.m = u32_min(SOME_M, g->m - m);
        part.a = g->a + m * g->a_m;
        if (is_far) near_rows(&part, j->c->panels + (uint64_t)thread * THREAD_FLOATS + TILE_K * PANEL_MAX);
        for (uint32_t n = 0; n < g->n; n += j->strip) {
            part.n = u32_min(j->strip, g->n - n);
            part.b = panel + n * panel_k;
            part.b_k = j->strip;
            part.c = g->c + m * g->c_m + n;
            j->c->kernels->gemm(&part);
        }
    }
}

/* part: of all rows and columns of the tile, which begin at m and n. */
static void factor_tile(const struct gemm_job *j, const struct grad_factor *f, struct gemm part, uint32_t m, uint32_t n,
                        uint32_t thread)
{
    const uint32_t n_pieces = u32_max(1, u32_ceil_div(f->k, STRIP / j->strip));
    const uint32_t tile_k = u32_ceil_div(u32_max(f->k, 1), n_pieces);

    part.a_m = f->a_m;
    part.a_k = f->a_k;
    for (uint32_t k = 0; k < f->k || (k == 0 && !part.add); k += tile_k) {
        part.k = u32_min(tile_k, f->k - k);
        part.a = f->a + m * f->a_m + k * f->a_k;
        if (f->b) {
            part.b = f->b + k * f->b_k + n;
            part.b_k = f->b_k;
            j->c->kernels->gemm(&part);
        } else {
            gemm_panel(j, &part, thread, tile_k, open_panel(j, &f->matrix, thread, k, part.k, tile_k, n, part.n));
        }
        part.add = true;
    }
}

static void gemm_job_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct gemm_job *j = arg;
    const struct product_cut *cut = j->cuts;
    const struct grad_product *p = j->p;

    while (tile >= cut->first + cut->n_tiles) cut++, p++;
    tile -= cut->first;
    const uint32_t n = tile % cut->n_tiles_n * cut->tile_n, m = tile / cut->n_tiles_n * cut->tile_m;
    struct gemm part = {.m = u32_min(cut->tile_m, p->m - m),
                        .n = u32_min(cut->tile_n, p->n - n),
                        .c = p->c + m * p->c_m + n,
                        .c_m = p->c_m,
                        .add = p->add};

    for (uint32_t i = 0; i < p->n_of; i++) {
        factor_tile(j, &p->of[i], part, m, n, thread);
        part.add = true;
    }
    for (uint32_t r = 0; p->scale != 0 && r < part.m; r++)
        for (uint32_t i = 0; i < part.n; i++) part.c[r * part.c_m + i] *= p->scale;
}

/* Threads that wait for the last tile, weights opened again for other rows and rows read again for other columns: all cost. The cut
 * that costs least, in multiplications. */
static struct product_cut cut_matrix(const struct grad_compute *c, const struct grad_product *p, uint32_t block)
{
    static const uint32_t widths[] = {768, 576, 384, 192, 96, 64, 32};
    uint64_t least = UINT64_MAX;
    struct product_cut cut = {0};

    for (uint32_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (uint32_t parts = 1; parts <= u32_ceil_div(p->m, LEAST_M); parts++) {
            const uint64_t tile_n = u32_ceil_div(widths[i], block) * block,
                           tile_m = u32_ceil_div(u32_ceil_div(p->m, parts), ROWS_STEP) * ROWS_STEP;
            const uint32_t n_tiles_n = u32_ceil_div(p->n, (uint32_t)tile_n),
                           n_tiles = n_tiles_n * u32_ceil_div(p->m, (uint32_t)tile_m);
            const uint64_t cost =
                u32_ceil_div(n_tiles, c->n_threads) * (tile_m * tile_n + OPEN_COST * tile_n + READ_COST * tile_m);

            if (cost >= least) continue;
            least = cost;
            cut = (struct product_cut){(uint32_t)tile_n, (uint32_t)tile_m, n_tiles_n, 0, n_tiles};
        }
    assert(cut.tile_n <= PANEL_MAX);
    return cut;
}

static struct product_cut cut_plain(const struct grad_compute *c, const struct grad_product *p)
{
    const uint32_t share = u32_ceil_div(p->m, TILES_MOST * c->n_threads),
                   tile_m = u32_max(ROWS_STEP, u32_min(TILE_M, u32_ceil_div(share, ROWS_STEP) * ROWS_STEP)),
                   n_tiles_n = u32_ceil_div(p->n, TILE_N);

    return (struct product_cut){TILE_N, tile_m, n_tiles_n, 0, n_tiles_n * u32_ceil_div(p->m, tile_m)};
}

static struct product_cut cut_of(const struct grad_compute *c, const struct grad_product *p)
{
    uint32_t block = 0;

    for (uint32_t i = 0; i < p->n_of; i++) {
        const struct grad_factor *f = &p->of[i];

        assert(f->b || (f->k == f->matrix.n_rows && p->n == f->matrix.n_cols));
        if (!f->b) block = u32_max(block, (uint32_t)dtype_block_weights(f->matrix.dtype));
    }
    if (p->m == 0 || p->n == 0) return (struct product_cut){0};
    return block > 0 ? cut_matrix(c, p, block) : cut_plain(c, p);
}

void grad_products(struct grad_compute *c, const struct grad_product *p, uint32_t n)
{
    struct gemm_job j = {.c = c, .p = p, .n = n, .strip = c->kernels->columns};
    uint32_t n_tiles = 0;

    assert(n <= GRAD_PRODUCTS && STRIP / j.strip <= TILE_K);
    for (uint32_t i = 0; i < n; i++) {
        j.cuts[i] = cut_of(c, &p[i]);
        j.cuts[i].first = n_tiles;
        n_tiles += j.cuts[i].n_tiles;
    }
    cpu_pool_run(c->pool, gemm_job_tile, &j, n_tiles);
}

void grad_product_frozen(struct grad_compute *c, const struct grad_product *p)
{
    struct grad_product plain = *p;

    if (!c->unit) {
        grad_products(c, p, 1);
        return;
    }
    for (plain.n_of = 0; plain.n_of < p->n_of && p->of[plain.n_of].b;) plain.n_of++;
    if (plain.n_of > 0) grad_products(c, &plain, 1);
    for (uint32_t i = plain.n_of; i < p->n_of; i++) {
        const struct grad_factor *f = &p->of[i];

        assert(!f->b && p->scale == 0);
        matrix_unit_multiply(c->unit, c,
                             &(struct gemm){.m = p->m,
                                            .n = p->n,
                                            .k = f->k,
                                            .a = f->a,
                                            .a_m = f->a_m,
                                            .a_k = f->a_k,
                                            .c = p->c,
                                            .c_m = p->c_m,
                                            .add = p->add || i > 0},
                             &f->matrix);
    }
}

static struct grad_product product_of(const struct gemm *g)
{
    return (struct grad_product){.m = g->m,
                                 .n = g->n,
                                 .n_of = 1,
                                 .of[0] = {g->k, g->a, g->a_m, g->a_k, g->b, g->b_k, {0}},
                                 .c = g->c,
                                 .c_m = g->c_m,
                                 .add = g->add};
}

void grad_gemm(struct grad_compute *c, const struct gemm *g)
{
    const struct grad_product p = product_of(g);

    grad_products(c, &p, 1);
}

void grad_gemm_matrix(struct grad_compute *c, const struct gemm *g, const struct grad_matrix *b)
{
    struct grad_product p = product_of(g);

    p.of[0].matrix = *b;
    p.of[0].b = NULL;
    grad_products(c, &p, 1);
}

void grad_gemm_frozen(struct grad_compute *c, const struct gemm *g, const struct grad_matrix *b)
{
    struct grad_product p = product_of(g);

    p.of[0].matrix = *b;
    p.of[0].b = NULL;
    grad_product_frozen(c, &p);
}

bool grad_has_matrix_unit(const struct grad_compute *c)
{
    return c->unit != NULL;
}

rd_status grad_use_matrix_unit(struct grad_compute *c, const struct cpu_dense_kernels *kernels)
{
    assert(!c->unit);
    return matrix_unit_create(kernels, c->n_threads, &c->unit);
}

void grad_transpose(const float *from, uint32_t n_rows, uint32_t n_cols, float *to)
{
    for (uint32_t r0 = 0; r0 < n_rows; r0 += 16)
        for (uint32_t c = 0; c < n_cols; c++)
            for (uint32_t r = r0; r < u32_min(r0 + 16, n_rows); r++)
                to[(uint64_t)c * n_rows + r] = from[(uint64_t)r * n_cols + c];
}
