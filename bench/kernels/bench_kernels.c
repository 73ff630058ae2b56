/* bench/kernels/bench_kernels.c - what this machine can do, and each CPU kernel as a share of it.
 *
 *     bench_kernels [--threads N] [--seconds S] [--memory MIB] [--only TEXT] [--json]
 *
 * Bounds first (read bandwidth by page size and threads, multiply peaks by instruction set), then each kernel in each
 * variant that this machine runs, checked against the plain C reference. See bench_kernels.h for what the columns mean.
 */
#include "bench_kernels.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/thread.h"

enum { MAX_CALLS = 4096 };

static double now_s(void)
{
    return (double)clock_now_ns(clock_system()) * 1e-9;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Seconds per call, sorted, in seconds[0 .. *n_calls - 1]. */
static void time_calls(double min_s, bench_fn *fn, void *arg, double *seconds, int *n_calls)
{
    double start, end;
    int n = 0;

    fn(arg);
    start = now_s();
    for (end = start; n < MAX_CALLS && (n < 5 || end - start < min_s); n++) {
        double before = end;

        fn(arg);
        end = now_s();
        seconds[n] = end - before;
    }
    qsort(seconds, (size_t)n, sizeof(*seconds), compare_doubles);
    *n_calls = n;
}

static double call_seconds[MAX_CALLS];

double bench_time(const struct bench *b, bench_fn *fn, void *arg)
{
    int n;

    time_calls(b->seconds, fn, arg, call_seconds, &n);
    return call_seconds[n / 2];
}

double bench_best(const struct bench *b, bench_fn *fn, void *arg)
{
    int n;

    time_calls(b->seconds * 4, fn, arg, call_seconds, &n);
    return call_seconds[0];
}

bool bench_wants(const struct bench *b, const char *name)
{
    return !b->only || strstr(name, b->only);
}

void bench_print(struct bench *b, const struct bench_row *row)
{
    double gb_s = (double)row->bytes / row->seconds * 1e-9, gop_s = row->ops / row->seconds * 1e-9;
    double memory_s = b->read_gb_s > 0 ? (double)row->bytes / b->read_gb_s * 1e-9 : 0;
    double peak = b->peak_gop_s[row->unit], multiply_s = peak > 0 ? row->ops / peak * 1e-9 : 0;
    double bound_s = memory_s > multiply_s ? memory_s : multiply_s;
    const char *bound = bound_s <= 0 ? "-" : memory_s > multiply_s ? "memory" : "multiply";

    if (b->json) {
        printf("%s\n {\"kernel\": \"%s\", \"version\": \"%s\", \"us\": %.3f, \"gb_s\": %.3f, \"gop_s\": %.2f, "
               "\"bound\": \"%s\", "
               "\"share\": %.4f, \"check\": \"%s\"}",
               b->is_first ? "[" : ",", row->kernel, row->version, row->seconds * 1e6, gb_s, gop_s, bound,
               bound_s / row->seconds, row->check);
    } else {
        if (b->is_first)
            printf("%-38s %-8s %11s %8s %9s  %-8s %6s  %s\n", "kernel", "version", "us", "GB/s", "Gop/s", "bound",
                   "share", "check");
        printf("%-38s %-8s %11.1f %8.2f %9.1f  %-8s ", row->kernel, row->version, row->seconds * 1e6, gb_s, gop_s,
               bound);
        if (bound_s > 0)
            printf("%5.0f%%  %s\n", 100 * bound_s / row->seconds, row->check);
        else
            printf("%6s  %s\n", "-", row->check);
    }
    fflush(stdout);
    b->is_first = false;
}

struct backend *bench_backend(const struct bench *b, enum cpu_isa isa)
{
    struct backend_options o = {.n_threads = b->n_threads, .isa = cpu_isa_name(isa)};
    struct backend *be = NULL;
    struct rd_error err = {0};

    return backend_cpu_ops.life.create(&o, &be, &err) == RD_OK ? be : NULL;
}

enum unit bench_unit(enum cpu_isa isa, bool is_int8, uint32_t n_rows)
{
    const char *name = cpu_isa_name(isa);

    if (strcmp(name, "avx2") == 0) return is_int8 ? UNIT_AVX2_INT8 : UNIT_AVX2_FMA;
    if (strcmp(name, "avx512") == 0) return is_int8 ? UNIT_AVX512_INT8 : UNIT_AVX512_FMA;
    if (strcmp(name, "amx") == 0) return !is_int8 ? UNIT_AVX512_FMA : n_rows >= 16 ? UNIT_AMX_INT8 : UNIT_AVX512_INT8;
    return UNIT_NONE;
}

/* ---- multiply peaks ---- */

enum { PEAK_ROUNDS = 5000 };
struct peak_run {
    const struct peak *peak;
    struct cpu_pool *pool;
    uint32_t n_tiles;
    double ops;
};

static void peak_tile(void *arg, uint32_t tile, uint32_t thread)
{
    struct peak_run *r = arg;
    double ops = r->peak->run(PEAK_ROUNDS);

    (void)thread;
    if (tile == 0) r->ops = ops * r->n_tiles;
}

static void peak_all(void *arg)
{
    struct peak_run *r = arg;

    cpu_pool_run(r->pool, peak_tile, r, r->n_tiles);
}

void bench_peak(struct bench *b, const struct peak *p)
{
    struct peak_run r = {p, NULL, b->n_threads * 32, 0};
    struct bench_row row = {.version = cpu_isa_name(p->needs), .check = "-"};

    if (p->needs > cpu_isa_best() || cpu_pool_create(b->n_threads, &r.pool) != RD_OK) return;
    row.seconds = bench_best(b, peak_all, &r);
    row.ops = r.ops;
    b->peak_gop_s[p->unit] = row.ops / row.seconds * 1e-9;
    snprintf(row.kernel, sizeof(row.kernel), "peak %s", p->name);
    bench_print(b, &row);
    cpu_pool_destroy(r.pool);
}

/* ---- the program ---- */

static bool parse(struct bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
            continue;
        }
        if (!value) return false;
        if (strcmp(argv[i], "--threads") == 0)
            b->n_threads = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            b->seconds = strtod(value, NULL);
        else if (strcmp(argv[i], "--memory") == 0)
            b->memory_bytes = strtoull(value, NULL, 10) << 20;
        else if (strcmp(argv[i], "--only") == 0)
            b->only = value;
        else
            return false;
        i++;
    }
    return b->n_threads >= 1 && b->n_threads <= 1024 && b->seconds >= 0 && b->memory_bytes >= (1 << 20);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_threads = thread_n_cores(), .seconds = 0.2, .memory_bytes = 256ull << 20, .is_first = true};

    if (!parse(&b, argc, argv)) {
        fprintf(stderr, "bench_kernels [--threads N] [--seconds S] [--memory MIB] [--only TEXT] [--json]\n"
                        "  --threads N   default: all cores of this process   --seconds S  per figure; default 0.2\n"
                        "  --memory MIB  working set of what is read from memory; default 256\n"
                        "  --only TEXT   rows whose name holds this, such as Q4_K or attention (bounds always)\n");
        return 2;
    }
    bench_read(&b);
    bench_peaks(&b);
    bench_linear(&b);
    bench_attention(&b);
    bench_rows(&b);
    if (b.json) printf("\n]\n");
    return 0;
}
