/* vision/resize.c - see the header. */
#include "vision/resize.h"
#include <math.h>
#include <string.h>
#include "base/mem.h"

#define FIXED_BITS 22 /* 32 - 8 for a byte - 2 for weights beyond 1 */

/* What each output takes: of inputs first[i] .. + count[i] - 1, weights[i * most + k]. */
struct taps {
    uint32_t most;
    uint32_t *first, *count;
    int32_t *weights;
};

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double cubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void taps_deinit(struct taps *t)
{
    mem_free(t->first);
    mem_free(t->count);
    mem_free(t->weights);
}

static rd_status taps_init(struct taps *t, uint32_t n_in, uint32_t n_out, enum resize_filter filter)
{
    double scale = (double)n_in / n_out, wide = scale < 1 ? 1 : scale;
    double support = (filter == RESIZE_BICUBIC ? 2.0 : 1.0) * wide;
    double *w;

    t->most = (uint32_t)ceil(support) * 2 + 1;
    t->first = mem_alloc(n_out, sizeof(*t->first));
    t->count = mem_alloc(n_out, sizeof(*t->count));
    t->weights = mem_alloc(n_out, t->most * sizeof(*t->weights));
    w = mem_alloc(t->most, sizeof(*w));
    if (!t->first || !t->count || !t->weights || !w) {
        mem_free(w);
        taps_deinit(t);
        return RD_E_NOMEM;
    }
    for (uint32_t i = 0; i < n_out; i++) {
        double center = (i + 0.5) * scale, sum = 0;
        int64_t from = (int64_t)(center - support + 0.5), to = (int64_t)(center + support + 0.5);

        if (from < 0) from = 0;
        if (to > (int64_t)n_in) to = n_in;
        t->first[i] = (uint32_t)from;
        t->count[i] = (uint32_t)(to - from);
        for (uint32_t k = 0; k < t->count[i]; k++) {
            double x = ((double)(k + from) - center + 0.5) / wide;

            w[k] = filter == RESIZE_BICUBIC ? cubic(x) : triangle(x);
            sum += w[k];
        }
        for (uint32_t k = 0; k < t->count[i]; k++) {
            double v = w[k] / (sum != 0 ? sum : 1) * (1 << FIXED_BITS);

            t->weights[(size_t)i * t->most + k] = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
        }
    }
    mem_free(w);
    return RD_OK;
}

static uint8_t to_byte(int32_t sum)
{
    int32_t v = sum >> FIXED_BITS;

    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* A line of n_out pixels whose inputs lie step bytes apart, outputs out_step. */
static void run_line(const struct taps *t, const uint8_t *in, size_t step, uint8_t *out, size_t out_step,
                     uint32_t n_out)
{
    for (uint32_t i = 0; i < n_out; i++) {
        const int32_t *w = t->weights + (size_t)i * t->most;
        const uint8_t *p = in + t->first[i] * step;
        int32_t sum[3] = {1 << (FIXED_BITS - 1), 1 << (FIXED_BITS - 1), 1 << (FIXED_BITS - 1)};

        for (uint32_t k = 0; k < t->count[i]; k++, p += step)
            for (int c = 0; c < 3; c++) sum[c] += p[c] * w[k];
        for (int c = 0; c < 3; c++) out[i * out_step + (size_t)c] = to_byte(sum[c]);
    }
}

/* Of all columns at once, so that memory is read in order. */
static void run_columns(const struct taps *t, const uint8_t *in, uint8_t *out, size_t row_bytes, uint32_t n_out,
                        int32_t *sums)
{
    for (uint32_t i = 0; i < n_out; i++) {
        const int32_t *w = t->weights + (size_t)i * t->most;

        for (size_t x = 0; x < row_bytes; x++) sums[x] = 1 << (FIXED_BITS - 1);
        for (uint32_t k = 0; k < t->count[i]; k++) {
            const uint8_t *row = in + (t->first[i] + k) * row_bytes;

            for (size_t x = 0; x < row_bytes; x++) sums[x] += row[x] * w[k];
        }
        for (size_t x = 0; x < row_bytes; x++) out[i * row_bytes + x] = to_byte(sums[x]);
    }
}

rd_status resize_rgb(const uint8_t *in, uint32_t w, uint32_t h, uint8_t *out, uint32_t to_w, uint32_t to_h,
                     enum resize_filter filter)
{
    size_t row_bytes = (size_t)to_w * 3;
    struct taps t;
    uint8_t *across = NULL;
    int32_t *sums = NULL;
    rd_status st = RD_OK;

    if (to_w != w) {
        across = to_h == h ? out : mem_alloc(h, row_bytes);
        if (!across || taps_init(&t, w, to_w, filter) != RD_OK) {
            if (across != out) mem_free(across);
            return RD_E_NOMEM;
        }
        for (uint32_t y = 0; y < h; y++) run_line(&t, in + (size_t)y * w * 3, 3, across + y * row_bytes, 3, to_w);
        taps_deinit(&t);
        in = across;
    } else if (to_h == h) {
        memcpy(out, in, row_bytes * h);
    }
    if (to_h != h) {
        sums = mem_alloc(row_bytes, sizeof(*sums));
        st = sums ? taps_init(&t, h, to_h, filter) : RD_E_NOMEM;
        if (st == RD_OK) {
            run_columns(&t, in, out, row_bytes, to_h, sums);
            taps_deinit(&t);
        }
    }
    if (across != out) mem_free(across);
    mem_free(sums);
    return st;
}
