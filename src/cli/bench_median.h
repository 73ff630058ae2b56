/* cli/bench_median.h - of `radish bench`. Thread  any. */
#pragma once
#include <stdint.h>

/* Sorts v [n], n > 0; of an even number the mean of the two in the middle. */
double bench_median(double *v, uint32_t n);
