/* engine/draft/draft_model.h - a smaller model that guesses what the served one will say (--draft MODEL).
 *
 * It has pages and a tree of its own, so that its prompts are shared and kept like the served model's. A sequence that
 * decodes gets a shadow: the same tokens under the small model. The shadow first catches up with the prompt, some rows
 * in every step, so that none waits for it; from then on it writes a few tokens ahead, greedily, before each step, and
 * takes back those that the served model did not say. Its sequences run as one batch.
 *
 * Errors  none reach a request: without memory, pages or device there are no drafts.
 * Thread  engine thread only (create: before the engine starts).
 * Source  Leviathan et al., arXiv:2211.17192.
 */
#pragma once
#include "base/clock.h"
#include "engine/executor.h"
#include "engine/request.h"

struct draft_model;

struct draft_model_options {
    struct executor executor; /* borrowed; the same tokens as the served model's, as far as it has them */
    const struct clock *clock;
    uint32_t n_pages, page_tokens, n_vocab; /* n_vocab: the served model's */
    uint32_t max_running;
};

rd_status draft_model_create(const struct draft_model_options *o, struct draft_model **out);
void draft_model_destroy(struct draft_model *m); /* NULL is fine; no request has a shadow any more */
/* Brings r's shadow up to r's keys as far as *n_rows_left lets it. True: it can draft now. */
bool draft_model_catch_up(struct draft_model *m, struct request *r, uint32_t *n_rows_left);
/* Extends the draft of each request r by r->draft.n_wanted tokens at most; they have caught up. */
void draft_model_write(struct draft_model *m, struct request **who, uint32_t n);
/* r ends or is preempted. */
void draft_model_leave(struct request *r);
/* ns for one more token of every sequence that drafts; 0: not measured yet. */
uint64_t draft_model_step_ns(const struct draft_model *m);
/* Drops what was not used since then. */
void draft_model_expire(struct draft_model *m, uint64_t before_ns, uint64_t now);
void draft_model_clear(struct draft_model *m);
/* The thread that calls next owns it. */
void draft_model_hand_over(struct draft_model *m);
/* Tests: the sequence of a run of the batch that the executor is given. */
const struct kv_seq *draft_model_run(const struct draft_model *m, uint32_t run);
/* Invariants and accounting of its pages. */
rd_status draft_model_check(const struct draft_model *m, struct rd_error *err);
