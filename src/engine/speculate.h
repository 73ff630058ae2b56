/* engine/speculate.h - how many drafted tokens each decoding sequence takes into the next step.
 *
 * Drafts come from what has been written before (draft_index.h): by this request, its prompt included, and by earlier
 * requests of its namespace; with a draft model (draft_model.h) also from that, where the text holds nothing. A step
 * computes the logits of all drafted rows at once; step.c samples row after row exactly as it would have without
 * drafts and stops at the first token that differs. A row's bits depend on its own prefix alone and random numbers on
 * the position, so output is the same, token for token, with or without drafts.
 *
 * Whether it pays is estimated from what was seen: the time of a step by its rows, and how often drafts with so much
 * agreement were right, in this request and in all. A draft is taken only for an expected gain of 5 %.
 * Thread  engine thread only.
 */
#pragma once
#include "engine/draft_index.h"
#include "engine/request.h"

struct engine;
struct speculation;

/* Source   Leviathan et al., arXiv:2211.17192 (verification in one batch). */
rd_status speculation_create(struct engine *e, struct speculation **out);
void speculation_destroy(struct speculation *s); /* NULL is fine */
/* Sets n_draft and draft of every live request that decodes, before the step is planned. n_free_rows: rows (and rows of
 * logits) that the step has beside one for each of them. */
void speculation_plan(struct engine *e, uint32_t n_decoding, uint32_t n_free_rows);
/* A step without prefill took so long. */
void speculation_measure(struct engine *e, uint32_t n_rows, uint64_t ns);
/* How many tokens of r's draft in this step were right. */
void speculation_verified(struct engine *e, struct request *r, uint32_t n_right);
/* What r has written is remembered for others of its namespace. */
void speculation_remember(struct engine *e, struct request *r);
void speculation_forget(struct engine *e);
