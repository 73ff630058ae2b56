/* server/routes/model_gate.h - several models behind one server, of which one is loaded at a time.
 *
 *     request --> names the loaded model, no request waits for another -->  its handler
 *            \-> names another, or others wait: it is parked, in order of arrival
 *
 *     keeper (the thread that loaded the first model):
 *         the first parked request wants model B: look whether B's file can be loaded; no: its requests fail, A stays
 *         close the gate: from here on every request is parked; those that run end, however long they take
 *         every io thread has come to its loop once: nothing of A is in use
 *         close A (its keys and values go to the disk cache), load B; no: its requests fail, A is loaded again
 *         open: requests for B go on; those for others begin the next round
 *
 * So no request is lost or cancelled by a swap, none sees a model change under it, and who asks for one model cannot keep
 * others from theirs. A parked request whose client leaves is forgotten, and one that has waited for wait_s gets 503.
 * With idle_unload_s a model that was not used for that long is closed; the next request loads it, or another.
 *
 * With one model, no idle_unload_s and no settings that may change there is no gate: nothing here runs.
 *
 * Thread  model_gate_pass: the thread on_request runs on. model_gate_run: the keeper. The others: any thread.
 */
#pragma once
#include "server/dialects/server_state.h"
#include "server/http/http_conn.h"

enum gate_state { GATE_UNLOADED, GATE_LOADED, GATE_LOADING, GATE_FAILED };

struct model_gate;

struct model_gate_options {
    const char *const *ids; /* [n_models] as clients name them; they outlive the gate */
    uint32_t n_models;
    uint32_t idle_unload_s; /* 0: never */
    uint32_t wait_s;        /* that a request waits for its model */
    rd_status (*check)(void *user, uint32_t model, struct rd_error *err);
    rd_status (*load)(void *user, uint32_t model, rd_engine **out, struct rd_error *err);
    void *user;
};

/* Before the threads run. RD_E_NOMEM. */
rd_status model_gate_create(struct server *s, const struct model_gate_options *o, struct model_gate **out);
/* After they have ended. NULL is fine. */
void model_gate_destroy(struct model_gate *g);

/* The first model is loaded, and the server's info known: requests may come. */
void model_gate_open(struct model_gate *g);
/* Then: swaps and unloads until model_gate_stop(). */
void model_gate_run(struct model_gate *g);
void model_gate_stop(struct model_gate *g);
/* Any thread: the loaded model is closed and loaded again, when the requests that run have ended; those that come wait. Where
 * none is loaded the next load is all that is needed. */
void model_gate_reload(struct model_gate *g);
/* It was asked for and is not done. */
bool model_gate_is_reloading(struct model_gate *g);
/* A model is being closed or loaded now: the keeper cannot stop. NULL: false. */
bool model_gate_is_swapping(struct model_gate *g);

/* A request is complete. serve(c) answers it: now, or on this io thread when its model is loaded. */
void model_gate_pass(struct model_gate *g, struct http_conn *c, void (*serve)(struct http_conn *c));

/* The loaded engine, which is not closed until it is released; NULL: none is, and nothing is to be released. g NULL: the
 * server's. For looks that take microseconds. */
rd_engine *model_gate_hold(struct model_gate *g, struct server *s);
void model_gate_release(struct model_gate *g);

/* How often a model was loaded: another number, another engine. NULL: 0. */
uint64_t model_gate_loads(struct model_gate *g);

/* io thread: a request that uses no engine and stays (a stream of events) begins, or ends: a swap does not wait for it. */
void model_gate_watch(struct model_gate *g, bool begins);

/* Which models there are: fn is given each with its state; info: what is known since it was loaded, or NULL. */
void model_gate_list(struct model_gate *g,
                     void (*fn)(void *arg, const char *id, enum gate_state state, const struct rd_info *info),
                     void *arg);
/* "unloaded", "loaded" .. */
const char *gate_state_name(enum gate_state state);
/* The value of the member "model" of a JSON object's text, unescaped; false: it has none that is a short string. */
bool model_in_body(const char *body, size_t n, char *name, size_t cap);
