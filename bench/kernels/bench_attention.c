/* bench/kernels/bench_attention.c - attention over pages: one row behind 4,096 tokens (decode) and 256 rows behind
 * 2,048 (prefill), in every variant and KV type.
 *
 * 14 heads share 2 KV heads of 64 values (Qwen2.5-0.5B); 24 layers take turns, so that keys and values come from where
 * they lie in a model. Bytes: the keys and values that must be seen, once. Operations: 4 head_dim per head and pair of
 * row and visible token, in f32. Checked against the plain C reference, bit by bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backend/cpu/rows/row_kernels.h"
#include "base/mem.h"
#include "base/random.h"
#include "bench_kernels.h"

enum {
    N_HEADS = 14,
    N_KV_HEADS = 2,
    HEAD_DIM = 64,
    N_LAYERS = 24,
    PAGE_TOKENS = 16,
    MAX_ROWS = 256,
    WIDTH = N_HEADS * HEAD_DIM
};
struct shape {
    const char *name;
    uint32_t n_rows, pos0;
};
static const struct shape shapes[] = {{"decode behind 4096", 1, 4095}, {"256 rows behind 2048", 256, 2048}};
static const enum dtype kv_types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_F32};

struct run {
    struct backend *be;
    struct kv_storage kv;
    struct seq_run seq;
    uint32_t layer;
    float *q, *out, *want;
};

static void once(void *arg)
{
    struct run *r = arg;
    struct attention_args a = {.n_rows = r->seq.n_rows,
                               .layer = r->layer,
                               .n_heads = N_HEADS,
                               .n_kv_heads = N_KV_HEADS,
                               .head_dim = HEAD_DIM,
                               .q = span_of_host(r->q),
                               .q_stride = WIDTH,
                               .out = span_of_host(r->out),
                               .out_stride = WIDTH,
                               .scale = 0.125f,
                               .n_runs = 1,
                               .runs = &r->seq,
                               .kv = &r->kv};

    if (backend_cpu_ops.op.attention(r->be, &a) != RD_OK) abort();
    r->layer = (r->layer + 1) % N_LAYERS;
}

/* Random keys and values in every page. */
static void fill(struct run *r, uint32_t n_pages)
{
    const struct kv_layout *l = &r->kv.layout;
    struct random rng;
    float row[HEAD_DIM];

    random_init(&rng, 3);
    for (uint64_t at = 0; at < n_pages * r->kv.page_bytes; at += r->kv.row_bytes[0]) {
        for (int i = 0; i < HEAD_DIM; i++) row[i] = (float)(random_u64(&rng) >> 40) / 8388608.0f - 1;
        cpu_rows_ref.store_kv(l->dtype_k, row, (uint8_t *)r->kv.base + at, HEAD_DIM);
    }
}

static void measure(struct bench *b, struct run *r, enum dtype type, const struct shape *s, enum cpu_isa isa)
{
    struct kv_layout layout = {N_LAYERS, N_KV_HEADS, HEAD_DIM, PAGE_TOKENS, type, type};
    uint32_t n_tokens = s->pos0 + s->n_rows, n_pages = (n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    kv_page *table = mem_alloc(n_pages, sizeof(*table));
    struct bench_row row = {.version = cpu_isa_name(isa), .unit = bench_unit(isa, false, s->n_rows)};

    r->be = bench_backend(b, isa);
    if (!table || !r->be) goto out;
    if (backend_cpu_ops.pages.create(r->be, &layout, n_pages, &r->kv) != RD_OK) goto out;
    for (uint32_t i = 0; i < n_pages; i++) table[i] = n_pages - 1 - i;
    fill(r, n_pages);
    r->seq = (struct seq_run){.n_rows = s->n_rows, .pos0 = s->pos0, .block_table = table};
    r->layer = 0;
    once(r);
    if (isa == CPU_ISA_REF) memcpy(r->want, r->out, (size_t)s->n_rows * WIDTH * sizeof(float));
    row.check = memcmp(r->want, r->out, (size_t)s->n_rows * WIDTH * sizeof(float)) == 0 ? "same bits as ref"
                                                                                        : "DIFFERS FROM REF";
    if (isa != CPU_ISA_REF) { /* its speed is of no interest */
        row.bytes = (uint64_t)n_tokens * N_KV_HEADS * 2 * r->kv.row_bytes[0];
        row.ops = 4.0 * HEAD_DIM * N_HEADS * s->n_rows * (s->pos0 + (s->n_rows + 1) / 2.0);
        row.seconds = bench_time(b, once, r);
        snprintf(row.kernel, sizeof(row.kernel), "attention %s, %s", dtype_name(type), s->name);
        bench_print(b, &row);
    }
    backend_cpu_ops.pages.destroy(r->be, &r->kv);
out:
    if (r->be) backend_cpu_ops.life.destroy(r->be);
    mem_free(table);
}

void bench_attention(struct bench *b)
{
    struct run r = {0};
    struct random rng;
    uint64_t n = (uint64_t)MAX_ROWS * WIDTH;

    if (!bench_wants(b, "attention")) return;
    r.q = mem_alloc_aligned(n * sizeof(float));
    r.out = mem_alloc_aligned(n * sizeof(float));
    r.want = mem_alloc_aligned(n * sizeof(float));
    if (!r.q || !r.out || !r.want) abort();
    random_init(&rng, 4);
    for (uint64_t i = 0; i < n; i++) r.q[i] = (float)(random_unit(&rng) * 4 - 2);
    for (size_t t = 0; t < sizeof(kv_types) / sizeof(*kv_types); t++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++)
            for (int isa = CPU_ISA_REF; isa <= (int)cpu_isa_best(); isa++)
                measure(b, &r, kv_types[t], &shapes[s], (enum cpu_isa)isa);
    mem_free_aligned(r.q);
    mem_free_aligned(r.out);
    mem_free_aligned(r.want);
}
