/* server/monitor/pressure.h - whether a budget of memory is nearly used up.
 *
 *     kv          KV pages that hold anything, of all: soon the least recently used give way
 *     kv_in_use   of those, what running requests hold and nothing can take: soon requests wait
 *     ram, disk   what the tiers behind hold, of what they may
 *     memory      what the process took from the system, of --memory-limit
 *
 * A budget is above from the moment more than 80 % of it are used until less than 70 % are: what goes to and fro around
 * one bound is told once. A budget without a limit never is.
 *
 * Thread  pressure_look: one at a time. pressure_is_above: any (one word, relaxed: each bit stands for itself).
 */
#pragma once
#include <stdatomic.h>
#include "radish/radish.h"

#define BUDGETS(X)                                                                                                     \
    X(BUDGET_KV, "kv", "KV pages that hold anything")                                                                  \
    X(BUDGET_KV_IN_USE, "kv_in_use", "KV pages that running requests hold")                                            \
    X(BUDGET_RAM, "ram", "pages in host memory behind a GPU")                                                          \
    X(BUDGET_DISK, "disk", "bytes of the disk cache")                                                                  \
    X(BUDGET_MEMORY, "memory", "bytes taken from the system")
#define BUDGET_ENUM(id, name, what) id,
enum budget { BUDGETS(BUDGET_ENUM) N_BUDGETS };
#undef BUDGET_ENUM

struct budget_use {
    uint64_t used, limit; /* limit 0: there is none */
};

struct pressure {
    atomic_uint above; /* bit i: enum budget i */
};

const char *budget_name(enum budget b);
void budget_uses(const struct rd_stats *s, struct budget_use uses[N_BUDGETS]);
/* Logs a warning for each that is above from now on. s NULL: no model is loaded, nothing is above. */
void pressure_look(struct pressure *p, const struct rd_stats *s);
bool pressure_is_above(const struct pressure *p, enum budget b);
