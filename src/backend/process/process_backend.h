/* backend/process/process_backend.h - an engine that is another program: docs/process-backend.md, this side of it.
 *
 * It makes text, not logits: so it stands beside the engine, not below it. A job is a request that it was given; what it says
 * of it comes out of process_next. One thread starts the program, writes and reads its pipes, keeps the deadlines, and starts
 * it again when it ends, hangs or talks nonsense:
 *
 *     DOWN --back-off--> LOADING --loaded--> UP --fault--> DOWN           jobs that it had: RD_E_DEVICE; those that wait, wait
 *
 * After 3 starts in a row that came to nothing jobs are refused until one succeeds.
 *
 * Thread  any thread. wake and gone are called from its own, without a lock; gone is the last call.
 * Errors  RD_E_DEVICE: the program died, hung, or broke the protocol (message: how). RD_E_FULL: too many jobs. RD_E_UNSUPPORTED:
 *         it cannot do that. RD_E_CLOSED. RD_E_NOMEM.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#define PROCESS_PROTOCOL     1
#define PROCESS_PREFIX       "process:"
#define PROCESS_LINE_BYTES   (4u << 20) /* longest line of the program's */
#define PROCESS_ROOM_BYTES   (8u << 20) /* text of a job that nobody reads */
#define PROCESS_SECOND_BYTES (32u << 20)
#define PROCESS_SECOND_LINES 50000u
#define PROCESS_ACCEPT_NS    10000000000ull /* to answer a line; at most the silence */
#define PROCESS_QUIT_NS      3000000000ull

struct process_backend;
struct process_job;

struct process_options {
    const char *command;                  /* words: base/child_process.h */
    const char *model;                    /* as the user names it */
    uint32_t n_ctx, n_threads, max_queue; /* n_ctx, n_threads 0: as the program likes */
    uint64_t load_ns, silence_ns;         /* until it has loaded; between two signs of a running job */
};

/* What it said when it had loaded. Strings live as long as the backend. */
struct process_about {
    const char *name, *version, *model, *arch, *chat_template; /* "": it did not say */
    uint32_t n_ctx, n_vocab, parallel;
};

enum process_kind { PROCESS_STARTED, PROCESS_TEXT, PROCESS_DONE, PROCESS_ERROR };
enum process_finish { PROCESS_STOP, PROCESS_LENGTH, PROCESS_CANCELLED };
struct process_event {
    enum process_kind kind;
    const char *text; /* until the next call */
    size_t n_text;
    uint32_t n_tokens;          /* of this text */
    enum process_finish finish; /* DONE */
    rd_status status;           /* ERROR */
    const char *message;
    uint32_t n_prompt, n_generated, n_cached;
};

struct process_state {
    bool is_up;
    char why[160]; /* not up: since when what happened */
    uint64_t n_starts, n_turns, n_events, n_queued, n_running, n_submitted, n_stop, n_length, n_cancelled, n_failed,
        n_rejected;
    uint64_t n_prompt_tokens, n_cached_tokens, n_generated_tokens, memory_bytes;
};

/* Starts it and waits until it has loaded, or says why not. cancelled: may be NULL; asked meanwhile. */
rd_status process_open(const struct process_options *o, bool (*cancelled)(void *user), void *user,
                       struct process_backend **out, struct rd_error *err);
/* Jobs end; the program is told to quit, then killed. NULL is fine. */
void process_close(struct process_backend *p);
const struct process_about *process_about(const struct process_backend *p);
/* "chat", "tokenize" .. of its ops; "top_k" .. of its parameters. */
bool process_can(const struct process_backend *p, const char *op);
bool process_takes(const struct process_backend *p, const char *parameter);
/* A text of what it said when it had loaded; "": it did not. */
const char *process_text(const struct process_backend *p, const char *key);
void process_get_state(struct process_backend *p, struct process_state *out);

/* request: an object with "op"; it gets its "id" here and is only read otherwise. wake: there may be an event. */
rd_status process_submit(struct process_backend *p, json_t *request, void (*wake)(void *arg), void (*gone)(void *arg),
                         void *arg, struct process_job **out, struct rd_error *err);
/* false: nothing now, or after DONE or ERROR. One thread at a time. */
bool process_next(struct process_job *j, struct process_event *ev);
/* It has ended with the next event at the latest. Idempotent. */
void process_cancel(struct process_job *j);
/* Cancels it if it runs. gone comes, or came. NULL is fine. */
void process_release(struct process_job *j);
/* Waits for an answer that is one object: *reply is the caller's. */
rd_status process_call(struct process_backend *p, json_t *request, json_t **reply, struct rd_error *err);
