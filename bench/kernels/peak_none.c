/* bench/kernels/peak_none.c - on machines whose multiply units this program has no loops for: kernels are judged by the
 * memory bound alone.
 */
#include "bench_kernels.h"

void bench_peaks(struct bench *b)
{
    (void)b;
}
