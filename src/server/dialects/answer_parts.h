/* server/dialects/answer_parts.h - pieces of answers that several shapes write.
 * Thread  io thread that owns the connection. Errors  the buffer's sticky `failed`.
 */
#pragma once
#include "server/dialects/generation.h"

/* "stop", "length" or "tool_calls". */
const char *answer_finish_text(const struct choice *c);
/* "stop_reason":"the stop string", the stop token, or null */
void answer_put_stop_reason(const struct choice *c, struct buf *out);
/* response_shape.collect as chat completions have it: {"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]} each;
 * the second with "id" first. */
void answer_collect_tokens(struct generation *g, struct choice *c, const struct rd_event *ev);
void answer_collect_ids(struct generation *g, struct choice *c, const struct rd_event *ev);
/* ,"name":[..] of what was collected since it was last written; nothing when it was not asked for. */
void answer_put_collected(const struct generation *g, struct choice *c, const char *name, struct buf *out);
/* vLLM's list for the prompt of a choice: made when it has ended; with a comma before, nothing when it was not asked
 * for. */
void answer_keep_prompt_logprobs(const struct generation *g, struct choice *c);
void answer_put_prompt_logprobs(const struct generation *g, const struct choice *c, struct buf *out);
/* ,"pointers":[{"points":[{"x":..,"y":..,"score":..,"image":0}, ..]}, ..] of an answer that points; else nothing. */
void answer_put_points(const struct choice *c, struct buf *out);
/* The prompt as text, for echo; appended to out. */
void answer_put_prompt(struct generation *g, const struct choice *c, struct buf *out);
/* llama-server's object of timings, of cache_n those that were read from disk or computed by another request meanwhile,
 * and left_out. */
void answer_put_timings(const struct rd_usage *u, struct buf *out);
/* ,"prompt_progress":{..} of return_progress, and so much was told; begins: nothing is computed yet. */
void answer_put_progress(struct generation *g, struct choice *c, bool begins, struct buf *out);
