/* server/dialects/responses_store.h - answers of the Responses API that clients may ask for, follow, cancel or go on from.
 *
 *     entry  id -> response's JSON, log of events, turn     running, then ended; looked up by id
 *     turn   input items, output items -> the turn that it went on from
 *
 * An answer that is being made is named by its id on both sides: who makes it hands over what was written and hears
 * whether it is still wanted; others look it up, reads its log or cancels it. A turn lives as long as an entry,
 * a later turn or a request refers to it, so that deleting or evicting an answer does not break the conversations that
 * went on from it.
 *
 * Bounded by LIMIT_STORED_RESPONSES entries and a number of bytes: the least recently used is evicted, but not what
 * runs; and where one tenant holds more than half, its own go first. In memory only.
 * Thread  any thread (a lock inside).
 * Errors  RD_E_NOT_FOUND, RD_E_NOMEM; RD_E_LIMIT: no room beside what runs. On failure nothing has changed.
 */
#pragma once
#include <jansson.h>
#include "base/buf.h"
#include "radish/status.h"
#include "server/http/client_memory.h"

struct responses_store;
struct responses_turn;

/* What `id` means below: the key of an answer. A tenant (http_conn.h; NULL: none) finds its own answers alone. */
#define RESPONSES_KEY_BYTES 64u
void responses_key(const char *tenant, const char *id, char key[RESPONSES_KEY_BYTES]);

rd_status responses_store_create(size_t n_bytes_most, struct responses_store **out);
/* Before anything is kept: what is kept is charged to memory, and given up where others need it. */
void responses_store_charge_to(struct responses_store *store, struct client_memory *memory);
void responses_store_destroy(struct responses_store *store);

/* The turn of id, retained. finished: RD_E_AGAIN while it runs. */
rd_status responses_store_turn(struct responses_store *store, const char *id, bool finished,
                               struct responses_turn **out);
void responses_turn_release(struct responses_store *store, struct responses_turn *turn);
/* Bytes that the answer and all turns up to it take, 0: not found; of id NULL those of the whole store. */
size_t responses_store_size(struct responses_store *store, const char *id);
/* Every item from the first turn to this one, oldest first, as a new list. with_output false: without this turn's own
 * output. turn is retained by the caller; NULL: an empty list. RD_E_LIMIT: more values than one body may have. */
rd_status responses_turn_items(const struct responses_turn *turn, bool with_output, json_t **items);
/* Bytes that reading them takes, and making messages of them. */
uint64_t responses_turn_cost(const struct responses_turn *turn);
/* An item that some finished answer put out, by its id ("msg_" and the like, then that of the answer, then more); a new
 * reference. RD_E_NOT_FOUND: not ours, or gone. */
rd_status responses_store_item(struct responses_store *store, const char *tenant, const char *item_id, json_t **item);

/* ---- who makes an answer ---- */

/* A running answer. response: its JSON so far, may be empty; input: a JSON list; both are copied. parent: as from
 * responses_store_turn() (its reference is not taken), or NULL. logged: its events are kept for readers. */
rd_status responses_store_begin(struct responses_store *store, const char *id, struct responses_turn *parent,
                                const struct buf *response, const char *input, bool logged);
/* Events written since, and the response's new JSON (NULL: as it was). RD_E_CANCELLED, RD_E_NOT_FOUND (deleted): not
 * wanted any more. */
rd_status responses_store_append(struct responses_store *store, const char *id, const struct buf *response,
                                 const struct buf *events);
/* The same for the last time: it runs no more. output: a JSON list. An answer that was cancelled stays as it is, but
 * for its log. On failure it is to be removed. */
rd_status responses_store_finish(struct responses_store *store, const char *id, const struct buf *response,
                                 const char *output, const struct buf *events);

/* ---- others ---- */

/* Appends its JSON to out. */
rd_status responses_store_get(struct responses_store *store, const char *id, struct buf *out);
rd_status responses_store_remove(struct responses_store *store, const char *id);
/* RD_E_INVALID: it does not run (any more). response: its JSON from now on. */
rd_status responses_store_cancel(struct responses_store *store, const char *id, const struct buf *response);
/* Appends at most n_most bytes of the log from *at on, and moves *at. *ended: nothing more will come.
 * RD_E_UNSUPPORTED: it has no log. */
rd_status responses_store_log(struct responses_store *store, const char *id, size_t *at, size_t n_most, struct buf *out,
                              bool *ended);
