/* grad/float_pool.h - arrays of floats that are taken and given back over and over, of a few sizes.
 *
 * A pass takes about a gigabyte in pieces of megabytes, and the next one the same pieces: from the system they would come as
 * fresh pages each time, which costs a tenth of a step. What is given back stays, for an array of about that size.
 *
 * Thread  one.  Errors  NULL: no memory, also after all that lies idle was freed.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct float_pool {
    struct idle_floats *idle; /* the last one was given back last */
    size_t n_idle, cap_idle;
};

float *float_pool_take(struct float_pool *pool, uint64_t n); /* at a cache line; uninitialised */
void float_pool_give(struct float_pool *pool, float *x);     /* NULL is fine */
/* Between passes: frees what no one of the last eight used. */
void float_pool_trim(struct float_pool *pool);
void float_pool_deinit(struct float_pool *pool); /* all has been given back */
