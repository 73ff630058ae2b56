/* engine/verify.h - the cache proves itself: a share of its hits is computed again while nothing else is to do, and the
 * bytes are compared.
 *
 * A hit (prompt tokens that were not computed, from memory or from disk) is drawn by a counter-based random. While no
 * request is queued or live, its tokens are computed block by block, as a prefill would, into pages of its own, and each
 * page is compared with the tree's; then the hidden state kept at its end. A block reads the tree's pages before it: they
 * were compared already, so that each block needs a few pages only, and a request that comes waits for one block at most;
 * the rest is done when the engine is idle again. What was evicted meanwhile is skipped.
 *
 * A MISMATCH (there must be none) is counted and logged: namespace, position, tokens around it, the first byte that
 * differs. From that page on the path and everything below it is dropped, handles that hold it do not match it any more,
 * and everything of the namespace goes from the disk, as it is unknown which of its pages were computed from the
 * wrong one. Other namespaces that share the page (public prompts) lose it likewise, and then all of the disk cache goes.
 * No request is live then, so none is ended.
 *
 * Thread  engine thread only.
 * Errors  create: RD_E_NOMEM. Nothing here fails a request.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

struct engine;
struct request;
struct verifier;

struct verify_counts {
    uint64_t n_hits, n_waiting;          /* hits seen; drawn ones that wait now */
    uint64_t n_verified, n_tokens;       /* hits that were compared whole; tokens compared */
    uint64_t n_skipped;                  /* drawn, but evicted meanwhile, or too many waited, or no room */
    uint64_t n_mismatches;
};

/* *out NULL: verify_share is 0, or the executor cannot tell whether pages differ. */
rd_status verifier_create(const struct engine *e, struct verifier **out);
void verifier_destroy(struct verifier *v);
struct verify_counts verifier_counts(const struct verifier *v);
/* The first r->usage.n_cached tokens of r's prompt were a hit. */
void verifier_note_hit(struct engine *e, const struct request *r);
/* Nothing is queued or live: computes and compares one block. False: nothing to do. */
bool verifier_step(struct engine *e);
