/* bench/kernels/bench_rows.c - what lies between the matrix products: norms and gates of 512 rows of 1,536 and 8,960
 * values. Bytes: read and written once; these rows mostly lie in caches, so shares over 100 % are possible. Checked
 * against the plain C reference, bit by bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "bench_kernels.h"

enum { N_ROWS = 512, HIDDEN = 1536, FFN = 8960 };

struct run {
    struct backend *be;
    float *a, *b, *out, *want;
    struct weight norm;
};

static void norm_once(void *arg)
{
    struct run *r = arg;
    struct residual_norm_args a = {.n_rows = N_ROWS,
                                   .width = HIDDEN,
                                   .x = span_of_host(r->a),
                                   .norm = &r->norm,
                                   .eps = 1e-6f,
                                   .out = span_of_host(r->out)};

    if (backend_cpu_ops.op.residual_norm(r->be, &a) != RD_OK) abort();
}

static void silu_once(void *arg)
{
    struct run *r = arg;

    if (backend_cpu_ops.op.glu(r->be, ACT_SILU, N_ROWS, FFN, span_of_host(r->a), span_of_host(r->b),
                               span_of_host(r->out)) != RD_OK)
        abort();
}

static void gelu_once(void *arg)
{
    struct run *r = arg;

    if (backend_cpu_ops.op.glu(r->be, ACT_GELU_TANH, N_ROWS, FFN, span_of_host(r->a), span_of_host(r->b),
                               span_of_host(r->out)) != RD_OK)
        abort();
}

static const struct {
    const char *name;
    bench_fn *fn;
    uint64_t n, n_moved;
} ops[] = {{"RMSNorm", norm_once, (uint64_t)N_ROWS *HIDDEN, 2},
           {"SwiGLU", silu_once, (uint64_t)N_ROWS *FFN, 3},
           {"GeGLU tanh", gelu_once, (uint64_t)N_ROWS *FFN, 3}};

static void measure(struct bench *b, struct run *r, size_t op, enum cpu_isa isa)
{
    struct bench_row row = {.version = cpu_isa_name(isa), .bytes = ops[op].n * ops[op].n_moved * sizeof(float)};

    r->be = bench_backend(b, isa);
    if (!r->be) return;
    ops[op].fn(r);
    if (isa == CPU_ISA_REF) memcpy(r->want, r->out, ops[op].n * sizeof(float));
    row.check = memcmp(r->want, r->out, ops[op].n * sizeof(float)) == 0 ? "same bits as ref" : "DIFFERS FROM REF";
    if (isa != CPU_ISA_REF) {
        row.seconds = bench_time(b, ops[op].fn, r);
        snprintf(row.kernel, sizeof(row.kernel), "rows: %s, %d rows", ops[op].name, N_ROWS);
        bench_print(b, &row);
    }
    backend_cpu_ops.life.destroy(r->be);
}

void bench_rows(struct bench *b)
{
    struct run r = {0};
    struct random rng;
    uint64_t n = (uint64_t)N_ROWS * FFN;
    float *norm = mem_alloc_aligned(HIDDEN * sizeof(float));

    if (!bench_wants(b, "rows:")) {
        mem_free_aligned(norm);
        return;
    }
    r.a = mem_alloc_aligned(n * sizeof(float));
    r.b = mem_alloc_aligned(n * sizeof(float));
    r.out = mem_alloc_aligned(n * sizeof(float));
    r.want = mem_alloc_aligned(n * sizeof(float));
    if (!norm || !r.a || !r.b || !r.out || !r.want) abort();
    random_init(&rng, 5);
    for (uint64_t i = 0; i < n; i++) r.a[i] = (float)(random_unit(&rng) * 4 - 2), r.b[i] = (float)random_unit(&rng);
    for (int i = 0; i < HIDDEN; i++) norm[i] = (float)random_unit(&rng);
    r.norm = (struct weight){.dtype = DTYPE_F32, .role = WEIGHT_VECTOR, .n_out = 1, .n_in = HIDDEN, .data = norm};
    for (size_t op = 0; op < sizeof(ops) / sizeof(*ops); op++)
        for (int isa = CPU_ISA_REF; isa <= (int)cpu_isa_best(); isa++) measure(b, &r, op, (enum cpu_isa)isa);
    mem_free_aligned(r.a), mem_free_aligned(r.b), mem_free_aligned(r.out), mem_free_aligned(r.want),
        mem_free_aligned(norm);
}
