/* backend/cpu_pool.h - threads of a backend that computes on the CPU: a parallel loop over tiles, stealing, spinning briefly, then
 * asleep.
 *
 * The calling thread takes part. Each thread begins with its share of the tiles, in order; those of a late thread
 * are taken over by the others; which thread runs a tile must not change its result. Between calls workers spin for a
 * short while (about 50 us) and then sleep: an idle server uses no CPU. The steady state allocates nothing and makes
 * no system call but the wake-up.
 * Thread  cpu_pool_run: one caller at a time. fn runs on any worker.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

struct cpu_pool;
/* n_threads >= 1, the caller included. */
rd_status cpu_pool_create(uint32_t n_threads, struct cpu_pool **out);
void cpu_pool_destroy(struct cpu_pool *pool);
uint32_t cpu_pool_n_threads(const struct cpu_pool *pool);
/* Calls fn(arg, tile, thread) for every tile in 0 .. n_tiles-1, returns when all are done (a full memory barrier).
 * thread: 0 .. n_threads-1, for scratch. n_tiles 0 returns at once; small n_tiles run on the caller alone. */
void cpu_pool_run(struct cpu_pool *pool, void (*fn)(void *arg, uint32_t tile, uint32_t thread), void *arg,
                  uint32_t n_tiles);
