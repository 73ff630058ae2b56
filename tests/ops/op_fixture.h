/* tests/ops/op_fixture.h - backends per instruction set, random floats, vectors as weights. */
#pragma once
#include <math.h>
#include "backend/cpu/cpu_backend.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

/* A CPU backend; reports the failure by returning NULL. */
static inline struct backend *op_backend(enum cpu_isa isa, uint32_t n_threads)
{
    struct backend_options o = {.n_threads = n_threads, .isa = cpu_isa_name(isa)};
    struct backend *be = NULL;
    struct rd_error err;
    rd_status st = backend_cpu_ops.life.create(&o, &be, &err);

    if (st != RD_OK) test_note("backend %s: %s", cpu_isa_name(isa), err.text);
    return st == RD_OK ? be : NULL;
}

/* Whether an instruction set has row and attention kernels other than the one before it: the same need no second test. */
static inline bool op_has_own_kernels(int isa)
{
    const struct cpu_kernels *k = &cpu_kernels[isa];

    return isa == 0 || k->rows != k[-1].rows || k->attn != k[-1].attn;
}

/* Roughly normal, standard deviation 1. */
static inline float op_normal(struct random *r)
{
    double sum = -6;

    for (int i = 0; i < 12; i++) sum += random_unit(r);
    return (float)sum;
}

static inline float *op_floats(struct random *r, uint64_t n, float scale)
{
    float *x = mem_alloc_aligned(n ? n * sizeof(*x) : 1);

    for (uint64_t i = 0; x && i < n; i++) x[i] = op_normal(r) * scale;
    return x;
}

static inline float *op_copy(const float *x, uint64_t n)
{
    float *y = mem_alloc_aligned(n * sizeof(*y));

    if (y) memcpy(y, x, n * sizeof(*y));
    return y;
}

static inline struct weight op_vector(const float *x, uint32_t n)
{
    return (struct weight){.dtype = DTYPE_F32, .role = WEIGHT_VECTOR, .n_out = 1, .n_in = n, .data = x};
}

static inline bool op_same(const float *a, const float *b, uint64_t n)
{
    return memcmp(a, b, n * sizeof(*a)) == 0;
}
