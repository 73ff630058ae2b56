/* bench/kernels/bench_kernels.h - what the parts of bench_kernels share: timing, the machine's bounds, rows of the
 * table.
 *
 * A kernel's bound is the larger of two times: its bytes by the read bandwidth, and its multiplications by the peak of
 * the unit that it uses, both measured by this very program before. Its share is bound / measured time.
 * Units   operations: a multiply-add counts as two. Bandwidth: 10^9 bytes per second.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "backend/cpu/cpu_backend.h"

enum unit {
    UNIT_NONE,
    UNIT_AVX2_FMA,
    UNIT_AVX2_INT8,
    UNIT_AVX512_FMA,
    UNIT_AVX512_INT8,
    UNIT_AMX_INT8,
    UNIT_AMX_BF16,
    N_UNITS
};

struct bench {
    uint32_t n_threads;
    double seconds;        /* at least so long per figure */
    uint64_t memory_bytes; /* working set of what must come from memory */
    const char *only;      /* part of the rows' names, or NULL */
    bool json, is_first;
    double read_gb_s;           /* all threads, huge pages */
    double peak_gop_s[N_UNITS]; /* all threads; 0: this machine has no such unit */
};

typedef void bench_fn(void *arg);
/* Median seconds of one call, over at least b->seconds and 5 calls, after one that is thrown away. */
double bench_time(const struct bench *b, bench_fn *fn, void *arg);
/* The same, but the fastest call: for bounds, which are what the machine can do and not what it mostly does. */
double bench_best(const struct bench *b, bench_fn *fn, void *arg);

/* Is this row asked for? */
bool bench_wants(const struct bench *b, const char *name);

struct bench_row {
    char kernel[64];
    const char *version; /* "avx2" */
    uint64_t bytes;      /* read and written per call; 0: does not matter */
    double ops;
    enum unit unit;
    double seconds;
    const char *check; /* "same bits as ref" and the like */
};
void bench_print(struct bench *b, const struct bench_row *row);

/* The CPU backend of a variant, NULL when this machine cannot run it. */
struct backend *bench_backend(const struct bench *b, enum cpu_isa isa);
/* The unit that multiplies floats, or int8 of n_rows rows, in a variant. */
enum unit bench_unit(enum cpu_isa isa, bool is_int8, uint32_t n_rows);

/* The parts; each prints its rows. */
void bench_read(struct bench *b);  /* fills read_gb_s */
void bench_peaks(struct bench *b); /* fills peak_gop_s */
void bench_linear(struct bench *b);
void bench_attention(struct bench *b);
void bench_rows(struct bench *b);

/* A unit's loop: runs n rounds, returns the operations done. */
typedef double peak_fn(uint64_t n);
struct peak {
    const char *name;
    enum unit unit;
    enum cpu_isa needs;
    peak_fn *run;
};
extern const struct peak peaks_avx2[2], peaks_avx512[2], peaks_amx[2];
/* Runs one on all threads and prints its row. */
void bench_peak(struct bench *b, const struct peak *p);
