/* server/routes/model_gate.h - several models behind one server, of which some are loaded at a time.
 *
 *     request --> names a loaded model        -->  its handler, with that model (served_of), which stays until it is answered
 *            \-> names another                -->  it is parked, in order of arrival
 *
 *     keeper (the thread that loaded the first model), for the first parked request of the tenant whose turn it is:
 *         look whether the model's file can be loaded; no: its requests fail, nothing is closed
 *         is there room for one more (max_models, memory_bytes)?  load it beside the others
 *         else choose one that may be closed (below): what comes for it from here on is parked, those that run end, however
 *         long they take; every io thread has come to its loop once: nothing of it is in use; close it (its keys and values
 *         go to the disk cache), load the other; no: its requests fail, the one that was closed is loaded again
 *
 * A model may be closed for another's sake
 *     - once it has been there for its stay: 4 times what loading it took, and no more than half of wait_s shared among all
 *       models that are waited for and it;
 *     - before that, where no request has used it for an eighth of its stay.
 * So of clients that use two models by turns each has its model for four times what the swap costs: at most a fifth of the
 * time goes into loading, and who waits does so for a stay, what runs, and a load. Of several tenants the one whose model
 * was loaded last is not the next while another waits.
 *
 * No request is lost or cancelled by a swap, and none sees a model change under it. A parked request whose client leaves is
 * forgotten; a load that nobody waits for any more is given up. One that has waited for wait_s gets 503. A stream's client
 * is told by comments, each second, how far the load is. With idle_unload_s a model that nobody used for so long is closed;
 * the next request loads it again. A model whose file failed under it is closed alone: its requests end with an error.
 *
 * There may be more models with time (server_models): each look at a name or the list takes in the new ones. None goes: one
 * whose file is gone fails when it is asked for, and works again when the file is back.
 *
 * With one model that stays the only one, no idle_unload_s and no settings that may change
 * there is no gate: nothing here runs.
 *
 * Thread  model_gate_pass: the thread on_request runs on. model_gate_run: the keeper. The others: any thread.
 */
#pragma once
#include "server/dialects/server_seams.h"
#include "server/dialects/server_state.h"
#include "server/http/http_conn.h"

enum gate_state { GATE_UNLOADED, GATE_LOADED, GATE_LOADING, GATE_FAILED };

struct model_gate;

struct model_gate_options {
    struct server_models models; /* one at least */
    uint32_t max_loaded;         /* at once; at least 1 */
    uint64_t memory_bytes;  /* of all that are loaded: weights, keys and values, workspace; 0: whatever they take. One
                             * is loaded in any case */
    uint32_t idle_unload_s; /* 0: never */
    bool has_adapters;      /* load gives models with adapters */
    uint32_t wait_s;        /* that a request waits for its model */
    uint32_t tell_s;        /* a stream that waits tells so that often; 0: never */
    rd_status (*check)(void *user, uint32_t model, struct rd_error *err);
    uint64_t (*size)(void *user, uint32_t model); /* bytes that it would take, but for its keys and values; NULL: 0 */
    server_load_fn load;
    void *user;
};

/* Before the threads run. RD_E_NOMEM. */
rd_status model_gate_create(struct server *s, const struct model_gate_options *o, struct model_gate **out);
/* After they have ended: closes what is loaded. NULL is fine. */
void model_gate_destroy(struct model_gate *g);

/* The first model is loaded, in server.only, and becomes the gate's: requests may come. */
void model_gate_open(struct model_gate *g);
/* Then: swaps and unloads until model_gate_stop(). */
void model_gate_run(struct model_gate *g);
void model_gate_stop(struct model_gate *g);
/* Any thread: the loaded model is closed and loaded again, when the requests that run have ended; those that come wait. Where
 * none is loaded the next load is all that is needed. */
void model_gate_reload(struct model_gate *g);
/* It was asked for and is not done. */
bool model_gate_is_reloading(struct model_gate *g);
/* How many there are; NULL: 1. */
uint32_t model_gate_n_models(const struct model_gate *g);
/* A model is being closed or loaded now: the keeper cannot stop. NULL: false. */
bool model_gate_is_swapping(struct model_gate *g);

/* A request is complete. serve(c) answers it: now, or on this io thread when its model is loaded. */
void model_gate_pass(struct model_gate *g, struct http_conn *c, void (*serve)(struct http_conn *c));

/* The engine used last, which is not closed until it is released; NULL: none is loaded, and nothing is to be released.
 * g NULL: the server's. For looks that take microseconds. */
rd_engine *model_gate_hold(struct model_gate *g, struct server *s);
void model_gate_release(struct model_gate *g);

/* A number that is another when model_gate_hold gives another engine. NULL: 0. */
uint64_t model_gate_loads(struct model_gate *g);

/* Which models there are: fn is given each with its state; m: what is known since it was loaded, or NULL; its engine is NULL
 * unless it is loaded now, and stays until fn returns. */
void model_gate_list(struct model_gate *g,
                     void (*fn)(void *arg, const char *id, enum gate_state state, const struct served_model *m),
                     void *arg);
/* "unloaded", "loaded" .. */
const char *gate_state_name(enum gate_state state);

/* ---- which model a request asks for: model_in_body.c ---- */

/* The value of the member "model" of a JSON object's text, unescaped; false: it has none that is a short string. */
bool model_in_body(const char *body, size_t n, char *name, size_t cap);
/* The object's member "stream" is true. */
bool stream_in_body(const char *body, size_t n);
/* "model=NAME" in a query, unescaped; false: there is none, or it is too long. */
bool model_in_query(const char *query, char *name, size_t cap);
