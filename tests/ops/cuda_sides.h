/* tests/ops/cuda_sides.h - the CUDA backend beside the CPU's: opened together, floats to each and back, and how far apart they are. */
#pragma once
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "backend/backend.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

extern const struct backend_ops backend_cuda_ops;

struct side {
    const struct backend_ops *ops;
    struct backend *be;
};

/* False: no GPU, and the test is skipped. */
static inline bool open_sides(struct side *gpu, struct side *cpu)
{
    struct backend_options o = {.n_threads = 2};
    struct rd_error err = {RD_OK, ""};

    *gpu = (struct side){&backend_cuda_ops, NULL};
    *cpu = (struct side){&backend_cpu_ops, NULL};
    if (gpu->ops->life.create(&o, &gpu->be, &err) != RD_OK) {
        test_skip("%s", err.text);
        return false;
    }
    return cpu->ops->life.create(&o, &cpu->be, &err) == RD_OK;
}

static inline void close_sides(struct side *gpu, struct side *cpu)
{
    gpu->ops->life.destroy(gpu->be);
    cpu->ops->life.destroy(cpu->be);
}

static inline struct span room_on(struct side *s, uint64_t n_bytes)
{
    struct buffer *b = NULL;

    if (s->ops->memory.alloc(s->be, n_bytes, &b) != RD_OK)
        test_fail(__FILE__, __LINE__, "no memory for %llu bytes", (unsigned long long)n_bytes);
    return span_of(b, 0);
}

static inline struct span to_side(struct side *s, const float *x, uint64_t n)
{
    struct span p = room_on(s, n * sizeof(*x));

    if (s->ops->memory.write(s->be, p, x, n * sizeof(*x)) != RD_OK || s->ops->memory.sync(s->be) != RD_OK)
        test_fail(__FILE__, __LINE__, "writing failed");
    return p;
}

/* Reads and frees. */
static inline void from_side(struct side *s, struct span x, uint64_t n, float *out)
{
    if (s->ops->memory.read(s->be, out, x, n * sizeof(*out)) != RD_OK || s->ops->memory.sync(s->be) != RD_OK)
        test_fail(__FILE__, __LINE__, "reading failed");
    s->ops->memory.free(s->be, x.buffer);
}

static inline float *normal(struct random *r, uint64_t n, float scale)
{
    float *x = mem_alloc(n, sizeof(*x));

    for (uint64_t i = 0; x && i < n; i++) {
        double sum = -6;

        for (int j = 0; j < 12; j++) sum += random_unit(r);
        x[i] = (float)sum * scale;
    }
    return x;
}

/* Largest difference over the largest value; infinity where one is no number. */
static inline double distance(const float *a, const float *b, uint64_t n)
{
    double worst = 0, most = 1e-30;

    for (uint64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);

        if (!(d <= 1e30)) return INFINITY;
        worst = fmax(worst, d);
        most = fmax(most, fabs((double)b[i]));
    }
    return worst / most;
}

/* The share of values that are apart by more than `by` times the largest value. */
static inline double share_apart(const float *a, const float *b, uint64_t n, double by)
{
    double most = 1e-30;
    uint64_t n_apart = 0;

    for (uint64_t i = 0; i < n; i++) most = fmax(most, fabs((double)b[i]));
    for (uint64_t i = 0; i < n; i++) n_apart += !(fabs((double)a[i] - (double)b[i]) <= by * most);
    return (double)n_apart / (double)n;
}
