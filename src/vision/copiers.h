/* vision/copiers.h - threads that wait to copy rows with the one that asks: between the host's memory and what a device reads.
 *
 * Thread  copiers_share: one at a time. They sleep until then.
 * Errors  create: RD_E_NOMEM; threads that the system does not give are done without.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

struct copiers;

/* n threads beside the one that calls copiers_share. */
rd_status copiers_create(uint32_t n, struct copiers **out);
void copiers_destroy(struct copiers *c); /* NULL is fine */

/* fn(arg, from, to) for all of 0 .. n - 1, in slices of `each` that go to whoever is free; back when all are done. */
void copiers_share(struct copiers *c, uint32_t n, uint32_t each, void (*fn)(void *arg, uint32_t from, uint32_t to),
                   void *arg);
