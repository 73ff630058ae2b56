/* backend/ranks.h - ranks that compute one model together ("tensor parallel"), and how they meet.
 *
 *     rank 0   its columns of a row  --+         +-- the whole row
 *     rank 1   its columns           --+- join --+-- the whole row       (backend.h, op.join)
 *     rank 2   its columns           --+         +-- the whole row
 *
 * A rank is a thread with a backend, its part of the weights and of the pages. Every product is cut by its outputs: an
 * output is one rank's, summed over the whole input in the order that one rank alone has. So nothing is ever added across
 * ranks, and the bits are those of one rank, whatever their number. (Cutting wo and down by their inputs, as
 * arXiv:1909.08053 does, sends as many bytes, and gives sums that change with the number of ranks.) The price is a second
 * meeting in each half of a layer.
 *
 * A meeting is over when all have come; what a rank did before is then seen by all. Whoever cannot go on leaves, which ends
 * the meeting for everybody. A rank that is not there in time is lost, and with it the group: the others say its number.
 *
 * Devices meet by themselves, inside of their steps (cuda/rows/join_ranks.cu), and look at the group's words meanwhile: whether
 * somebody left, so that no kernel waits for what does not come; a device that waited in vain says for whom there.
 *
 * Thread  meet, leave: a thread for each rank; create, destroy, reset: while none of them is in it.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

#define RANKS_MAX         8u
#define RANKS_PATIENCE_NS 60000000000u /* a chunk's attention over a long text, where one rank has no heads */

struct rank_group;

/* What devices see of a group, in memory of its own (a page that a device may map). */
struct rank_words {
    _Atomic uint32_t stop; /* 1: somebody left */
    _Atomic uint32_t lost; /* 1 + the rank that a host or a device waited for in vain first; 0: none */
};

/* n in 1 .. RANKS_MAX. n_spin: pauses before a waiting rank sleeps; 0 where there are more threads than cores. RD_E_NOMEM. */
rd_status rank_group_create(uint32_t n, uint32_t n_spin, uint64_t patience_ns, struct rank_group **out);
void rank_group_destroy(struct rank_group *g); /* NULL is fine */

/* Comes, shows `own` to the others, and waits for them; all[i] is what rank i shows, valid until this rank's meeting after
 * the next. Time in which the whole process was stopped does not count against anybody. Not RD_OK: what somebody left with,
 * or RD_E_DEVICE, where a rank was waited for too long. */
rd_status rank_group_meet(struct rank_group *g, uint32_t rank, const void *own, const void *all[RANKS_MAX]);
/* From now on every meeting ends with `why`, until reset; the first one's counts. */
void rank_group_leave(struct rank_group *g, rd_status why);
/* Meetings may begin again: all ranks are outside. Of a group that lost one it does nothing. */
void rank_group_reset(struct rank_group *g);
/* Whether a rank was waited for in vain; *rank: the first of them. */
bool rank_group_has_lost(const struct rank_group *g, uint32_t *rank);
struct rank_words *rank_group_words(struct rank_group *g);
uint64_t rank_group_patience(const struct rank_group *g); /* ns */
