/* grad/grad_ref.c - see grad_loops.h; sixteen floats, one after the other. */
#include <math.h>
#include <stdint.h>

typedef struct {
    float x[16];
} v16;

static inline v16 v16_set(float x)
{
    v16 v;

    for (int i = 0; i < 16; i++) v.x[i] = x;
    return v;
}
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    v16 v = v16_set(0);

    for (uint32_t i = 0; i < n; i++) v.x[i] = p[i];
    return v;
}
static inline v16 v16_load(const float *p)
{
    return v16_load_n(p, 16);
}
static inline void v16_store_n(float *p, v16 v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) p[i] = v.x[i];
}
static inline void v16_store(float *p, v16 v)
{
    v16_store_n(p, v, 16);
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    for (int i = 0; i < 16; i++) c.x[i] = fmaf(a.x[i], b.x[i], c.x[i]);
    return c;
}

#define GEMM_ROWS    2u
#define GEMM_VECTORS 2u
#include "grad/grad_loops.h"

const struct grad_kernels grad_kernels_ref = GRAD_KERNELS("ref");
