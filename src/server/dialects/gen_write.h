/* server/dialects/gen_write.h - a generation as JSON: the frame around its choices, chunks of a stream, usage and timings.
 * Thread  io thread that owns the connection. Errors  the buffer's sticky `failed`.
 */
#pragma once
#include "server/dialects/generation.h"

/* Sums over the choices that have ended: the prompt once per prompt, the generated tokens of all. */
void generation_usage(const struct generation *g, struct rd_usage *u);
/* What each chunk begins with, once for the stream; sticky failure in g->frame. */
void generation_make_frame(struct generation *g);
/* A chunk with prompt_progress, llama-server's; begins: nothing is done yet. Formats without events only. */
void generation_put_progress(struct generation *g, struct choice *c, bool begins, struct buf *out);
/* Each appends "data: {...}\n\n". */
void generation_put_open(struct generation *g, struct choice *c,
                         struct buf *out); /* marks it opened; not streaming: into c->text */
void generation_put_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out);
/* Not streaming: adds to the choice's text, thinking or calls. */
void generation_keep_delta(struct choice *c, const struct rd_delta *d);
void generation_put_finish(struct generation *g, struct choice *c, struct buf *out);
/* At the end: the prompt's log probabilities, where this choice computed them. */
void generation_keep_prompt_logprobs(const struct generation *g, struct choice *c);
/* What follows the last choice of a stream: usage, [DONE]. */
void generation_put_end(struct generation *g, struct buf *out);
/* A stream that breaks off. */
void generation_put_error(struct generation *g, const struct api_error *e, struct buf *out);
/* The response that is no stream; with format->events that API's own. */
void generation_put_whole(struct generation *g, struct buf *out);
