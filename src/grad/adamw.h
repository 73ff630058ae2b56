/* grad/adamw.h - AdamW (arXiv:1711.05101), learning rates, clipping; numbers one by one, so that threads change nothing.
 *
 * Thread  any: no state of its own.
 */
#pragma once
#include <stdint.h>

struct adamw {
    double lr, beta1, beta2, eps, decay; /* decay: decoupled, times lr */
    uint64_t step;                       /* of this update, from 1 */
};
/* m, v: the moments, [n]. g is multiplied by scale before. */
void adamw_update(const struct adamw *o, double scale, float *p, const float *g, float *m, float *v, uint64_t n);

enum lr_schedule { LR_CONSTANT, LR_LINEAR, LR_COSINE };
/* Of step 1 .. n_steps: rises over n_warm_up steps, then as the schedule says, to 0 behind n_steps. */
double lr_at(enum lr_schedule s, double lr, uint64_t step, uint64_t n_warm_up, uint64_t n_steps);
