/* bench/kernels/bench_linear.c - matrix products: every weight type, in every variant, of 1, 4, 16 and 512 rows.
 *
 * The matrix is [4096 outputs, 1536 inputs]; as many copies as fill b->memory_bytes take turns, so that weights come
 * from memory as in a model. Bytes: of the packed weights. Operations: 2 n_out n_in n_rows. Checked: three rows against
 * the plain C reference, bit by bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "bench_kernels.h"

enum { N_OUT = 4096, N_IN = 1536, MAX_ROWS = 512, MAX_COPIES = 512, CHECK_ROWS = 3 };

static const enum dtype types[] = {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q2_K, DTYPE_Q3_K,
                                   DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_F16,  DTYPE_BF16, DTYPE_F32};
static const uint32_t row_counts[] = {1, 4, 16, 512};

struct run {
    struct backend *be;
    struct weight w[MAX_COPIES];
    uint32_t n_copies, at, n_rows;
    float *x, *out;
};

static void put_half(uint8_t *p, float v)
{
    uint16_t h = float_to_half(v);

    memcpy(p, &h, sizeof(h));
}

/* Random blocks with sane scales. */
static void fill(enum dtype type, uint8_t *data, uint64_t n_blocks, struct random *rng)
{
    uint32_t bytes = dtype_block_bytes(type);
    int d = type == DTYPE_Q2_K ? 80 : type == DTYPE_Q3_K ? 108 : type == DTYPE_Q6_K ? 208 : 0;
    int m = type == DTYPE_Q2_K                                                                     ? 82
            : type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K || type == DTYPE_Q5_K ? 2
                                                                                                   : -1;

    for (uint64_t b = 0; b < n_blocks; b++, data += bytes) {
        float v = (float)(random_unit(rng) * 2 - 1);
        uint16_t half = type == DTYPE_F16 ? float_to_half(v) : float_to_bf16(v);

        if (bytes == 4)
            memcpy(data, &v, 4);
        else if (bytes == 2)
            memcpy(data, &half, 2);
        else {
            for (uint32_t i = 0; i < bytes; i++) data[i] = (uint8_t)random_u64(rng);
            put_half(data + d, v * 0.01f);
            if (m >= 0) put_half(data + m, v * 0.02f);
        }
    }
}

static void multiply(struct backend *be, const struct weight *w, const float *x, uint32_t n_rows, float *out)
{
    struct linear_args a = {.n_rows = n_rows,
                            .x = span_of_host(x),
                            .x_stride = N_IN,
                            .n_outs = 1,
                            .outs = {{w, NULL, span_of_host(out), N_OUT}}};

    if (backend_cpu_ops.op.linear(be, &a) != RD_OK) abort();
}

static void once(void *arg)
{
    struct run *r = arg;

    multiply(r->be, &r->w[r->at], r->x, r->n_rows, r->out);
    r->at = (r->at + 1) % r->n_copies;
}

static bool load(struct run *r, const struct host_tensor *t, uint32_t n)
{
    struct rd_error err = {0};

    r->at = 0;
    for (r->n_copies = 0; r->n_copies < n; r->n_copies++)
        if (backend_cpu_ops.weights.load(r->be, t, WEIGHT_MATRIX, &r->w[r->n_copies], &err) != RD_OK) return false;
    return true;
}

static void unload(struct run *r)
{
    for (uint32_t i = 0; i < r->n_copies; i++) backend_cpu_ops.weights.unload(r->be, &r->w[i]);
    backend_cpu_ops.life.destroy(r->be);
}

static void measure(struct bench *b, struct run *r, const struct host_tensor *t, enum cpu_isa isa, const float *want)
{
    uint64_t bytes = 0;
    uint32_t wanted;

    r->be = bench_backend(b, isa);
    if (!r->be) return;
    if (!dtype_row_bytes(t->dtype, N_IN, &bytes)) abort();
    bytes *= N_OUT;
    wanted = isa == CPU_ISA_REF ? 1 : (uint32_t)(b->memory_bytes / bytes) + 1;
    if (!load(r, t, wanted < MAX_COPIES ? wanted : MAX_COPIES)) abort();
    for (size_t i = 0; i < sizeof(row_counts) / sizeof(*row_counts); i++) {
        struct bench_row row = {.version = cpu_isa_name(isa), .bytes = r->w[0].bytes ? r->w[0].bytes : bytes};

        r->n_rows = row_counts[i];
        if (isa == CPU_ISA_REF && r->n_rows > 1) break; /* slow, and its speed is of no interest */
        snprintf(row.kernel, sizeof(row.kernel), "linear %s, %u rows", dtype_name(t->dtype), r->n_rows);
        row.seconds = bench_time(b, once, r);
        row.ops = 2.0 * N_OUT * N_IN * r->n_rows;
        row.unit = bench_unit(isa, dtype_block_weights(t->dtype) > 1, r->n_rows);
        multiply(r->be, &r->w[0], r->x, r->n_rows, r->out);
        row.check =
            memcmp(r->out, want, (size_t)(r->n_rows < CHECK_ROWS ? r->n_rows : CHECK_ROWS) * N_OUT * sizeof(float)) == 0
                ? "same bits as ref"
                : "DIFFERS FROM REF";
        bench_print(b, &row);
    }
    unload(r);
}

static void one_type(struct bench *b, struct run *r, enum dtype type, float *want)
{
    struct random rng;
    uint64_t row_bytes = 0, n_blocks = (uint64_t)N_OUT * (N_IN / dtype_block_weights(type));
    struct host_tensor t = {"bench", type, N_OUT, N_IN, NULL, false, NULL, 0};
    uint8_t *data;

    if (!dtype_row_bytes(type, N_IN, &row_bytes)) abort();
    data = mem_alloc(N_OUT, (size_t)row_bytes);
    if (!data) abort();
    random_init(&rng, 1);
    fill(type, data, n_blocks, &rng);
    t.data = data;
    r->be = bench_backend(b, CPU_ISA_REF);
    if (!r->be || !load(r, &t, 1)) abort();
    multiply(r->be, &r->w[0], r->x, CHECK_ROWS, want);
    unload(r);
    for (int isa = CPU_ISA_REF; isa <= (int)cpu_isa_best(); isa++) measure(b, r, &t, (enum cpu_isa)isa, want);
    mem_free(data);
}

void bench_linear(struct bench *b)
{
    static struct run r;
    struct random rng;
    char name[64];
    float *want = mem_alloc_aligned((size_t)CHECK_ROWS * N_OUT * sizeof(float));

    r.x = mem_alloc_aligned((size_t)MAX_ROWS * N_IN * sizeof(float));
    r.out = mem_alloc_aligned((size_t)MAX_ROWS * N_OUT * sizeof(float));
    if (!want || !r.x || !r.out) abort();
    random_init(&rng, 2);
    for (size_t i = 0; i < (size_t)MAX_ROWS * N_IN; i++) r.x[i] = (float)(random_unit(&rng) * 2 - 1);
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        snprintf(name, sizeof(name), "linear %s", dtype_name(types[i]));
        if (bench_wants(b, name) || (b->only && strstr(b->only, name))) one_type(b, &r, types[i], want);
    }
    mem_free_aligned(r.x);
    mem_free_aligned(r.out);
    mem_free_aligned(want);
}
