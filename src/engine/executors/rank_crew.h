/* engine/executors/rank_crew.h - threads of ranks 1 .., which do with the caller, who is rank 0, one job after the other.
 *
 * No locks, as in backend/ranks.h: a rank that is stopped, wherever that is, keeps the caller waiting for its patience and no longer.
 *
 * Owns    the threads. What jobs use is their owner's.
 * Thread  one caller at a time. A job's function: of all ranks, at once.
 */
#pragma once
#include <stdint.h>
#include "backend/ranks.h"
#include "radish/status.h"

typedef void (*rank_job)(void *arg, uint32_t rank);

struct rank_crew;

/* n ranks; n_spin: pauses before a waiting thread sleeps. RD_E_NOMEM. */
rd_status rank_crew_create(uint32_t n, uint32_t n_spin, struct rank_crew **out);
/* The threads of ranks 1 .. n-1; *failed: for whom there was none. Those that began end with the crew. */
rd_status rank_crew_start(struct rank_crew *c, uint32_t *failed);
/* job(arg, rank) by every rank that has a thread, and here as rank 0. RANKS_MAX: all came back; else the first that did not, in
 * twice its patience after rank 0 did (time in which the whole process is stopped does not count): then there is no other job
 * until rank_crew_wait says that all are back. */
uint32_t rank_crew_do(struct rank_crew *c, rank_job job, void *arg, uint64_t patience_ns);
/* Waits once more for the last job. As rank_crew_do. */
uint32_t rank_crew_wait(struct rank_crew *c, uint64_t patience_ns);
/* Ends the threads; all are back. NULL is fine. */
void rank_crew_destroy(struct rank_crew *c);
