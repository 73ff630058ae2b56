/* bench/kernels/bench_read.c - read bandwidth by page size and number of threads. The bound of decode.
 *
 * One pass over b->memory_bytes in tiles of 1 MiB, 64 bytes at a time in four sums, by 1, 2, 4 .. all threads.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "bench_kernels.h"

enum { TILE = 1 << 20, HUGE = 2 << 20 };
typedef uint64_t lane64 __attribute__((vector_size(64)));

struct reader {
    const uint8_t *data;
    struct cpu_pool *pool;
    uint32_t n_tiles;
    double best_gb_s;
    uint64_t sums[1024];
};

static void read_tile(void *arg, uint32_t tile, uint32_t thread)
{
    struct reader *r = arg;
    const lane64 *p = (const lane64 *)(r->data + (uint64_t)tile * TILE), *end = p + TILE / sizeof(*p);
    lane64 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};

    for (; p < end; p += 4) s0 ^= p[0], s1 ^= p[1], s2 ^= p[2], s3 ^= p[3];
    s0 ^= s1 ^ s2 ^ s3;
    r->sums[thread] += s0[0] ^ s0[1] ^ s0[2] ^ s0[3] ^ s0[4] ^ s0[5] ^ s0[6] ^ s0[7];
}

static void read_all(void *arg)
{
    struct reader *r = arg;

    cpu_pool_run(r->pool, read_tile, r, r->n_tiles);
}

static void measure(struct bench *b, struct reader *r, const char *pages, uint32_t n_threads)
{
    struct bench_row row = {.version = "-", .bytes = (uint64_t)r->n_tiles * TILE, .check = "-"};
    double gb_s;

    if (cpu_pool_create(n_threads, &r->pool) != RD_OK) return;
    row.seconds = bench_best(b, read_all, r);
    snprintf(row.kernel, sizeof(row.kernel), "read, %s pages, %u threads", pages, n_threads);
    bench_print(b, &row);
    gb_s = (double)row.bytes / row.seconds * 1e-9;
    if (gb_s > r->best_gb_s) r->best_gb_s = gb_s;
    cpu_pool_destroy(r->pool);
}

void bench_read(struct bench *b)
{
    static struct reader r;
    uint64_t n_bytes = b->memory_bytes / TILE * TILE;

    for (int huge = 0; huge <= 1; huge++) {
        uint8_t *map = mmap(NULL, n_bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint8_t *data = (uint8_t *)(((uintptr_t)map + HUGE - 1) / HUGE * HUGE);

        if (map == MAP_FAILED) return;
        madvise(map, n_bytes + HUGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        memset(data, 1, n_bytes);
        r.data = data;
        r.n_tiles = (uint32_t)(n_bytes / TILE);
        for (uint32_t n = 1; n < b->n_threads; n *= 2) measure(b, &r, huge ? "huge" : "small", n);
        measure(b, &r, huge ? "huge" : "small", b->n_threads);
        munmap(map, n_bytes + HUGE);
    }
    b->read_gb_s = r.best_gb_s;
}
