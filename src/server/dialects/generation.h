/* server/dialects/generation.h - one HTTP request that generates: its prompts and choices as requests of the engine, their
 * events as a response or a stream.
 *
 * The body is parsed into gen_params; the generation is then the connection's owner until the end. It reads events on
 * the io thread; the engine's wake callback only puts it on the io thread's list. While more than 256 KiB wait for a
 * slow reader it does not read: the engine's ring fills and that request pauses.
 *
 * Thread  io thread that owns the connection, except the wake.
 */
#pragma once
#include "server/dialects/server_state.h"
#include "server/http/http_conn.h"
#include "server/params/params.h"

struct generation;
struct api_error;

/* A choice: one request of the engine and what came of it. */
struct choice {
    rd_request *request;                 /* NULL: not submitted yet */
    uint32_t index, prompt_index;        /* as the client sees it; which prompt */
    bool started, ended, opened;         /* opened: its first chunk was sent */
    bool computed;                       /* its prompt: an event after STARTED came */
    struct buf text, reasoning;          /* not streaming: all of it */
    struct buf calls;                    /* not streaming: the tool calls as JSON elements, comma separated */
    uint32_t n_calls;
    struct buf logprobs;                 /* JSON elements, comma separated; streaming: since the last chunk */
    struct buf lp_tokens, lp_top, lp_offsets;        /* completions: the other three lists */
    struct buf prompt_logprobs;          /* the list, of the first choice of a prompt, when it was asked for */
    struct buf token_ids;                /* comma separated; streaming: since the last chunk */
    bool sent_prompt_ids;
    uint32_t offset;                     /* completions: code points of text so far */
    double sum_logprob;
    size_t n_kept;                       /* bytes of its buffers when they were last looked at */
    enum rd_finish finish;
    const char *stop_string;             /* a view into the request */
    int32_t stop_token;                  /* one of stop_token_ids that ended it, or -1 */
    struct rd_usage usage;
};

/* An API whose stream is not made of chunks (of one choice then): named events, a response of its own. Where
 * g->streaming is false nothing is written to out before whole(), which gets the first choice. */
struct gen_events {
    /* The last word on what is asked of the engine for c; NULL: as the parameters say. */
    void (*options)(struct generation *g, struct choice *c, struct rd_request_options *o);
    void (*open)(struct generation *g, struct choice *c, struct buf *out);   /* streaming; c's prompt usage is known */
    void (*delta)(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out);
    void (*finish)(struct generation *g, struct choice *c, struct buf *out); /* c's finish and usage are known */
    void (*whole)(struct generation *g, struct choice *c, struct buf *out);  /* not streaming: the response */
    void (*error)(struct generation *g, const struct api_error *e, struct buf *out);   /* the end of a stream */
    const char *ping;                    /* once open; before that a comment is sent */
    bool is_lines;                       /* the stream is lines of JSON, application/x-ndjson: no pings */
    void (*destroy)(void *state);        /* of g->state; NULL is fine */
    void (*rename)(struct api_error *e); /* fields as the client knows them; may be NULL */
    /* The next two may be NULL. accept: the prompt was accepted and a stream is about to begin; nonzero: *e says why
     * not. keep: is given all that a stream writes, before it is sent, and called without (out empty) at every tick;
     * false: the rest is not wanted. Then out ends with the stream's last words, and the request is cancelled. */
    int (*accept)(struct generation *g, struct api_error *e);
    bool (*keep)(struct generation *g, struct buf *out);
};

/* How a choice's pieces are written. Each function appends members of the choice object, no braces around, no comma
 * before. */
struct gen_format {
    const char *id_prefix, *object, *chunk_object;
    const struct gen_events *events;     /* not NULL: only id_prefix, opens_at_start and collect are used beside it */
    bool background; /* once accepted it outlives its connection, and is a stream: to keep(), and to a client that wants
                        one. Other clients get whole() when it is accepted */
    bool opens_at_start; /* the first chunk leaves as soon as the prompt is accepted (role); else before the first token
                          */
    /* Adds a token, or the prompt (ev NULL), to the choice's lists of log probabilities. Beside events it may be NULL:
     * then there are none; else its events write and clear them. */
    void (*collect)(struct generation *g, struct choice *c, const struct rd_event *ev);
    /* The first chunk; false: there is none. */
    bool (*put_open)(struct generation *g, struct choice *c, struct buf *out);
    void (*put_delta)(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out);
    void (*put_finish)(struct generation *g, struct choice *c, struct buf *out);
    /* The whole choice of a response that is no stream. */
    void (*put_whole)(struct generation *g, struct choice *c, struct buf *out);
};

struct generation {
    struct http_task task;               /* first: something to read */
    struct http_background background;
    const char *tenant;                  /* the connection's, which lives as long as the server */
    struct http_conn *conn;              /* NULL: in the background */
    struct http_io *io;
    struct server *server;
    const struct gen_format *format;
    struct gen_params p;
    void *state;                         /* of format->events */
    char id[48];
    struct buf frame;                    /* streaming: what each chunk begins with, up to its choice's index */
    int64_t created_s;
    uint32_t n_choices, n_submitted, n_ended;        /* choices[0..n_submitted) were given to the engine */
    bool streaming, paused;              /* streaming: the head was sent */
    bool leaves;                         /* background: the client wants no stream */
    uint64_t begun_ns, sent_ns;          /* sent_ns: the last byte of the stream, for pings */
    uint64_t ping_ns;                    /* 0: none */
    uint32_t n_progress;                 /* return_progress: prompt tokens that were told as done */
    struct choice *choices;              /* [n_choices], prompts x best_of */
    struct client_charge memory;         /* its prompts, and its answers while they are kept */
    uint64_t n_prompt_bytes;             /* for all choices */
    uint32_t n_computed;                 /* choices whose prompt was computed */
    uint64_t n_kept, n_charged;          /* bytes of answers, and those of them that were charged */
};

/* What of a chat's options comes from its parameters: all that its prompt is made of, and how its answer is read. */
void generation_chat_options(const struct gen_params *p, struct rd_request_options *o);
/* Starts with the parameters of a body. Takes p's contents, and state (format->events->destroy), in any case;
 * answers on failure. */
void generation_start(struct http_conn *c, const struct gen_format *format, struct gen_params *p, void *state);

/* For the formats. "stop", "length" or "tool_calls". */
const char *generation_finish_text(const struct choice *c);
/* "stop_reason":"the stop string", the stop token, or null */
void generation_put_stop_reason(const struct choice *c, struct buf *out);
/* gen_format.collect as chat completions have it: {"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]} each; the
 * second with "id" first. */
void generation_collect_tokens(struct generation *g, struct choice *c, const struct rd_event *ev);
void generation_collect_ids(struct generation *g, struct choice *c, const struct rd_event *ev);
/* ,"name":[..] of what was collected since it was last written; nothing when it was not asked for. */
void generation_put_collected(const struct generation *g, struct choice *c, const char *name, struct buf *out);
/* vLLM's list for the prompt of a choice, with a comma before; nothing when it was not asked for. */
void generation_put_prompt_logprobs(const struct generation *g, const struct choice *c, struct buf *out);
/* Alternatives per token that the request was made with: the stride of its prompt's. */
uint32_t generation_n_top(const struct generation *g);
/* The prompt as text, for echo; appended to out. */
void generation_put_prompt(struct generation *g, const struct choice *c, struct buf *out);
