/* grad/adamw.c - see the header. */
#include "grad/adamw.h"
#include <math.h>

void adamw_update(const struct adamw *o, double scale, float *p, const float *g, float *m, float *v, uint64_t n)
{
    const float b1 = (float)o->beta1, b2 = (float)o->beta2, c1 = (float)(1 - o->beta1), c2 = (float)(1 - o->beta2);
    const float rate = (float)(o->lr / (1 - pow(o->beta1, (double)o->step))), keep = (float)(1 - o->lr * o->decay);
    const float root = (float)(1 / sqrt(1 - pow(o->beta2, (double)o->step))), eps = (float)o->eps, s = (float)scale;

    for (uint64_t i = 0; i < n; i++) {
        const float x = g[i] * s;

        m[i] = b1 * m[i] + c1 * x;
        v[i] = b2 * v[i] + c2 * x * x;
        p[i] = p[i] * keep - rate * m[i] / (sqrtf(v[i]) * root + eps);
    }
}

double lr_at(enum lr_schedule s, double lr, uint64_t step, uint64_t n_warm_up, uint64_t n_steps)
{
    double done;

    if (step <= n_warm_up) return lr * (double)step / (double)n_warm_up;
    if (s == LR_CONSTANT || n_steps <= n_warm_up) return lr;
    done = fmin(1, (double)(step - 1 - n_warm_up) / (double)(n_steps - n_warm_up));
    return s == LR_LINEAR ? lr * (1 - done) : lr * 0.5 * (1 + cos(acos(-1.0) * done));
}
