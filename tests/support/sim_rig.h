/* tests/support/sim_rig.h - an engine over the simulated model, its requests and steps, for tests that make their own.
 *
 * Thread  the test's own, which is the engine thread.
 */
#pragma once
#include "sim_executor.h"
#include "test.h"

/* Eight sequences of at most 2,048 tokens at once, chunks of 64, a namespace of its own; no tiers. */
struct engine_options sim_options(struct executor executor, struct clock *clock, uint32_t n_pages,
                                  uint32_t page_tokens);
/* A model of 256 pages of 4 tokens, an engine over it, a clock that the test sets. */
struct sim_rig {
    struct sim_executor x;
    struct engine *e;
    struct clock *clock;
};
bool sim_rig_open(struct sim_rig *g);
/* All rows that it read were right. */
void sim_rig_close(struct sim_rig *g);
/* The first n tokens of a text. */
void sim_prompt(int32_t *prompt, uint32_t n, uint64_t text);
/* Greedy, cached; salt 0: none. */
struct request_params sim_params(uint32_t max_tokens, uint64_t salt);
/* NULL: it was turned away. */
struct request *sim_submit(struct engine *e, const struct request_params *p, const int32_t *prompt, uint32_t n);
/* A step, after which everything must add up. True: there is more to do. */
bool sim_step(struct engine *e);
