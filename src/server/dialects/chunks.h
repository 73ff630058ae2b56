/* server/dialects/chunks.h - OpenAI's shape of chat and legacy completions: a response of choices, a stream of chunks that
 * have the same frame. What differs is a struct chunk_form.
 * Thread  io thread that owns the connection. Errors  the buffer's sticky `failed`.
 */
#pragma once
#include "server/dialects/generation.h"

/* How a choice's pieces are written. Each function appends members of the choice object, no braces around, no comma
 * before. */
struct chunk_form {
    const char *object, *chunk_object;
    /* The first chunk; false: there is none. */
    bool (*put_open)(struct generation *g, struct choice *c, struct buf *out);
    void (*put_delta)(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out);
    void (*put_finish)(struct generation *g, struct choice *c, struct buf *out);
    /* The whole choice of a response that is no stream. */
    void (*put_whole)(struct generation *g, struct choice *c, struct buf *out);
};

/* Functions of a response_shape. */
int chunks_accept(struct generation *g, struct api_error *e);
void chunks_progress(struct generation *g, struct choice *c, bool begins, struct buf *out);
void chunks_begin(struct generation *g, struct choice *c, struct buf *out);
void chunks_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out);
void chunks_flush(struct generation *g, struct choice *c, struct buf *out);
void chunks_finish(struct generation *g, struct choice *c, struct buf *out);
void chunks_end(struct generation *g, struct buf *out);
void chunks_whole(struct generation *g, struct buf *out);
void chunks_error(struct generation *g, const struct api_error *e, struct buf *out);

/* All of them, in an initialiser. */
#define CHUNKS(form)                                                                                                   \
    .media = "text/event-stream", .ping = ": ping\n\n", .chunks = form, .accept = chunks_accept,                       \
    .progress = chunks_progress, .begin = chunks_begin, .delta = chunks_delta, .flush = chunks_flush,                  \
    .finish = chunks_finish, .end = chunks_end, .whole = chunks_whole, .error = chunks_error
