/* grad/array_f64.c - see array_ops.h. */
#define REAL   double
#define SUFFIX f64
#define FN(x)  x
#define IS_F64 1
#include "grad/array_ops.h"
