/* engine/executors/rank_executor.h - several ranks as one executor (backend/ranks.h, model/share.h).
 *
 *     engine thread --forward--> rank 0, here     model_executor: part of the weights, its KV heads' pages
 *                   \----------> rank 1, a thread  likewise           } join, several times in a layer
 *                    \---------> rank 2, a thread  likewise
 *
 * Every rank has all pages by the same ids, with its heads' rows in them: the tree, the pool and the tiers see whole pages, whose
 * bytes are those of one rank, so that what one number of ranks stored another reads. Images are encoded by rank 0. An
 * adapter has a part on every rank. In host memory beside the devices pages lie rank by rank (move_begin).
 *
 * Faults  A rank that fails ends the pass for all. One that is not at a meeting in time, or whose states differ from rank
 *         0's, ends the executor: is_dead, the log names it. Its thread may never come back: close then leaves it and its
 *         memory alone.
 * Thread  as executor.h.
 */
#pragma once
#include "engine/executor.h"

/* o->n_ranks in 2 .. RANKS_MAX; else as executor_open. */
rd_status rank_executor_open(const struct executor_options *o, struct executor **out, struct executor_traits *traits,
                             struct rd_error *err);
/* x, or where it is of ranks, that of rank 0: whose backend the engine thread may use. */
const struct executor *rank_executor_first(const struct executor *x);
