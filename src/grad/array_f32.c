/* grad/array_f32.c - see array_ops.h. */
#define REAL   float
#define SUFFIX f32
#define FN(x)  x##f
#include "grad/array_ops.h"
