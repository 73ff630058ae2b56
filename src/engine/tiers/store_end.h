/* engine/tiers/store_end.h - where a prompt or an answer ended: its last, partial page and the hidden state behind it, so that
 * the same text computes nothing after a restart either.
 *
 * An end after n tokens, t = n % page_tokens, is an entry of the page store as pages are, in a namespace of its own (the
 * pages' with END_SUFFIX), chained to the digest of the n / page_tokens full pages before it:
 *
 *     tokens  the t last ones, then KV_NO_KEY up to page_tokens       so t is part of the digest
 *     bytes   [page_bytes]: the page (its first t rows count; zeros where t is 0), [state_bytes]
 *
 * Ends are few and would interrupt the writing of pages (each namespace has segments of its own): they are written when
 * no page waits, or when half of their own staging room is taken.
 *
 * Inside of the link: store_link_state.h.  Thread  as said.
 */
#pragma once
#include "engine/tiers/store_link_state.h"

#define END_SUFFIX "|end"

/* Engine thread, at creation of the engine. Without memory no ends are kept. */
void store_end_init(struct store_link *l, uint32_t state_bytes);
void store_end_deinit(struct store_link *l);
/* Engine thread. The last computed row of r has this hidden state, and a prompt or an answer ends there. */
void store_end_save(struct engine *e, struct request *r, const void *state);
/* Engine thread. The longest stored end that goes on behind the n full pages of keys[0 .. n_keys) whose digests are
 * l->digests, reaching beyond n_least tokens. */
bool store_end_find(struct engine *e, struct request *r, uint32_t n, uint32_t n_least, struct store_end *out);
/* Loader: an end's bytes; false: it did not come. */
bool store_end_read(struct store_link *l, const struct store_end *end, void *bytes);
/* Saver: writes the ends that wait; all: also when there are few. */
void store_end_write(struct store_link *l, bool all);
/* Drops those that wait; under the link's lock. */
void store_end_forget(struct store_link *l);
