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

#define CACHE_HEADER "X-Radish-Cache" /* the field of a head, or behind a stream, that says what the cache did */

struct generation;
struct chunk_form;

/* A choice: one request of the engine and what came of it. */
struct choice {
    rd_request *request;          /* NULL: not submitted yet; or ended, with others of many prompts still to come */
    uint32_t index, prompt_index; /* as the client sees it; which prompt */
    bool started, ended, opened;  /* opened: its first chunk was sent */
    bool computed;                /* its prompt: an event after STARTED came */
    bool has_new_line;            /* llama-server's: its text has one */
    uint64_t first_ns;            /* when its first token was read */
    struct buf text, reasoning;   /* not streaming: all of it */
    struct buf calls;             /* not streaming: the tool calls as JSON elements, comma separated */
    uint32_t n_calls;
    struct buf logprobs;                      /* JSON elements, comma separated; streaming: since the last chunk */
    struct buf lp_tokens, lp_top, lp_offsets; /* completions: the other three lists */
    struct buf prompt_logprobs;               /* the list, of the first choice of a prompt, when it was asked for */
    struct buf token_ids;                     /* comma separated; streaming: since the last chunk */
    struct buf prompt_ids;                    /* of many prompts, not streaming: comma separated */
    bool sent_prompt_ids;
    uint32_t offset; /* completions: code points of text so far */
    double sum_logprob;
    size_t n_kept; /* bytes of its buffers when they were last looked at */
    enum rd_finish finish;
    const char *stop_string; /* a view into the request, or its generation's parameters */
    int32_t stop_token;      /* one of stop_token_ids that ended it, or -1 */
    struct rd_usage usage;
};

/* The shape of a response: how what a generation tells becomes JSON, as a stream or whole. In the order in which they are
 * called; those that may be NULL say what is done without them. What a choice's pieces become is appended to out, whose
 * sticky `failed` ends the request. */
struct response_shape {
    const char *id_prefix;           /* "msg_": the id is this and 24 digits */
    const char *media;               /* of a stream */
    const char *ping;                /* a silent stream says, once a choice was begun; NULL: nothing at any time */
    const struct chunk_form *chunks; /* for the functions of chunks.h; NULL: it is none of theirs */
    bool background; /* once accepted it outlives its connection, and is a stream: to keep(), and to a client that wants
                        one. Other clients get whole() when it is accepted */
    bool begins_at_once; /* streams: begin() as soon as the prompt is accepted; else before the first token */
    /* The last word on what is asked of the engine for c; NULL: as the parameters say. */
    void (*options)(struct generation *g, struct choice *c, struct rd_request_options *o);
    /* The prompt was accepted and a stream is about to begin; nonzero: *e says why not. May be NULL. */
    int (*accept)(struct generation *g, struct api_error *e);
    /* return_progress, in a stream: how much of the prompt is computed; begins: nothing is yet. NULL: it is not told. */
    void (*progress)(struct generation *g, struct choice *c, bool begins, struct buf *out);
    /* Before c's first piece; its prompt's usage is known. May be NULL. */
    void (*begin)(struct generation *g, struct choice *c, struct buf *out);
    /* With logprobs: adds a token, or the prompt (ev NULL), to c's lists. NULL: there are none. */
    void (*collect)(struct generation *g, struct choice *c, const struct rd_event *ev);
    /* Text, reasoning, a call's beginning, arguments and end. Not streaming it is kept until whole(). May be NULL. */
    void (*delta)(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out);
    /* The deltas of an event are all told, what was collected with them may not be. May be NULL. */
    void (*flush)(struct generation *g, struct choice *c, struct buf *out);
    /* c's finish and usage are known. */
    void (*finish)(struct generation *g, struct choice *c, struct buf *out);
    /* All choices are finished: the end of a stream, or the response. end may be NULL. */
    void (*end)(struct generation *g, struct buf *out);
    void (*whole)(struct generation *g, struct buf *out);
    /* Instead of what is left of a stream. NULL: it has none. */
    void (*error)(struct generation *g, const struct api_error *e, struct buf *out);
    /* Is given all that a stream writes, before it is sent, and called without (out empty) at every tick; false: the
     * rest is not wanted. Then out ends with the stream's last words, and the request is cancelled. May be NULL. */
    bool (*keep)(struct generation *g, struct buf *out);
    void (*rename)(struct api_error *e); /* fields as the client knows them; may be NULL */
    void (*destroy)(void *state);        /* of g->state, which may be NULL; NULL: there is none */
};

struct generation {
    struct http_task task; /* first: something to read */
    struct http_background background;
    const char *tenant;     /* the connection's, which lives as long as the server */
    struct http_conn *conn; /* NULL: in the background */
    struct http_io *io;
    struct server *server;
    const struct served_model *served; /* the connection's; it stays loaded as long as one is */
    const struct response_shape *shape;
    struct gen_params p;
    void *state; /* the shape's */
    char id[48];
    struct buf frame; /* streaming: what each chunk begins with, up to its choice's index */
    int64_t created_s;
    uint32_t n_choices, n_submitted, n_ended; /* choices[0..n_submitted) were given to the engine */
    bool streaming, paused;                   /* streaming: the head was sent */
    bool leaves;                              /* background: the client wants no stream */
    uint64_t begun_ns, sent_ns;               /* sent_ns: the last byte of the stream, for pings */
    uint64_t ping_ns;                         /* 0: none */
    uint32_t n_progress;                      /* return_progress: prompt tokens that were told as done */
    struct choice *choices;                   /* [n_choices], prompts x best_of */
    struct client_charge memory;              /* its prompts, and its answers while they are kept */
    uint64_t n_prompt_bytes;                  /* for all choices */
    uint32_t n_computed;                      /* choices whose prompt was computed */
    uint64_t n_kept, n_charged;               /* bytes of answers, and those of them that were charged */
};

/* What the answer calls its model: the adapter's name where the request named one. */
static inline const char *generation_model(const struct generation *g)
{
    return g->p.model ? g->p.model : g->served->info.model_id;
}
/* What of a chat's options comes from its parameters: all that its prompt is made of, and how its answer is read. */
void generation_chat_options(const struct gen_params *p, struct rd_request_options *o);
/* Starts with the parameters of a body. Takes p's contents, and state (shape->destroy), in any case;
 * answers on failure. */
void generation_start(struct http_conn *c, const struct response_shape *shape, struct gen_params *p, void *state);

/* Sums over the choices that have ended: the prompt once per prompt, the generated tokens of all. */
void generation_usage(const struct generation *g, struct rd_usage *u);
/* Alternatives per token that the request was made with: the stride of its prompt's. */
uint32_t generation_n_top(const struct generation *g);
