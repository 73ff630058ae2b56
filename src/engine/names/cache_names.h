/* engine/names/cache_names.h - named caches: what the requests of a name computed, listed, saved and dropped as one thing.
 *
 *     a request with a name runs   -> the name is there, with its space (kv/kv_space.h) and its tenant
 *     it ends, kept                -> its keys are one of the name's ends; what only this name used is claimed for it
 *                                     (kv/radix.h); what anybody else uses, or had used, is common
 *     list                         -> tokens and bytes now in memory and on disk, of those its own; last use
 *     save                         -> all of it is on disk, and counts as used there and in the tree, up to a share
 *     drop                         -> what is its own goes, from the tree, host memory and disk; the name is forgotten
 *
 * A name holds no page and locks no node: it is a list of texts, and the claims in the tree are only used to tell what
 * is safe to drop. So nothing here can keep a request from its pages. An end that goes on from another takes its place.
 *
 * DROP. Requests of the name that run go on; when the last of them has ended, what they left is dropped as well. What a
 * request of another name, or of none, uses at that time stays with it. A request that comes later makes the name anew.
 *
 * SAVE. In the tree the paths are RADIX_DAY; on disk the least recently used goes first, so each saved end is touched in
 * turn, one a second, as long as all of them take no more than 1/SAVED_SHARE of the disk's budget; beyond that a save is
 * RD_E_LIMIT. Saved names are told to whoever keeps them over a restart (cache_names_tell).
 *
 * BOUNDS. LIMIT_CACHE_NAMES names and LIMIT_CACHE_NAME_BYTES of tokens in all, a quarter of either for a tenant, LIMIT_CACHE_ENDS
 * ends a name, LIMIT_SAVED_NAMES saved ones a tenant. Where there is no room the name used least recently, of the tenant
 * who has most, is forgotten (not what it computed): never a saved one, or one of which a request runs. Where none can go,
 * and without memory, a request runs without its name.
 *
 * Thread  engine thread: call inside engine_call().
 * Errors  nothing here fails a request.  RD_E_NOT_FOUND: no such name in that space.
 */
#pragma once
#include "kv/kv_space.h"
#include "kv/radix.h"
#include "radish/status.h"

struct cache_named;
struct engine;

struct cache_name_info {
    const char *name;
    uint32_t n_ends, n_running; /* texts; requests that run */
    uint64_t n_tokens, n_own;   /* in the tree; of those, this name's alone */
    uint64_t n_disk;            /* on disk, whole pages */
    uint64_t last_use_ns;       /* of a name that was restored, that at first */
    uint64_t n_missing;         /* cache_names_save: whole pages in the tree that the disk did not have yet */
    uint64_t n_dropped;         /* cache_names_save: pages that the disk had not taken when it began, whoever's */
    bool is_saved;
};

/* Names of a space, the one used last first, in pieces: a tenant's texts may be millions of tokens, and each piece is
 * looked at between two steps.  begin -> next until false -> end */
struct cache_names_cursor {
    uint64_t *ids;
    uint32_t n, at;
};
rd_status cache_names_begin(struct engine *e, const struct kv_space *space, struct cache_names_cursor *cursor);
/* True: there are more. */
bool cache_names_next(struct engine *e, struct cache_names_cursor *cursor,
                      void (*fn)(void *arg, const struct cache_name_info *info), void *arg);
void cache_names_end(struct cache_names_cursor *cursor); /* any thread, any number of times */
/* All of them at once. RD_E_NOMEM. */
rd_status cache_names_list(struct engine *e, const struct kv_space *space,
                           void (*fn)(void *arg, const struct cache_name_info *info), void *arg);
/* info (may be NULL) says what it was before. */
rd_status cache_names_drop(struct engine *e, const struct kv_space *space, const char *name,
                           struct cache_name_info *info, uint64_t *n_pages);
/* Begins to save, or goes on: *n_left whole pages had no room among those that wait to be written: store_link_sync(), then
 * again. RD_E_LIMIT: too many, or too large. RD_E_UNSUPPORTED: there is no disk cache. */
rd_status cache_names_save(struct engine *e, const struct kv_space *space, const char *name,
                           struct cache_name_info *info, uint32_t *n_left);
/* The name goes, or every name; what they computed stays. */
void cache_names_forget(struct engine *e, const struct kv_space *space, const char *name);
void cache_names_clear(struct engine *e);

/* For those who keep saved names over a restart. end: a text of a saved name, new or grown. */
struct cache_name_end {
    const char *name;
    const struct kv_space *space;
    uint64_t tenant;
    const kv_key *keys;
    uint32_t n, n_common; /* n_common: the first of them that others use, too */
};
struct cache_name_teller {
    void *arg;
    void (*end)(void *arg, const struct cache_name_end *end);
    void (*dropped)(void *arg, const struct kv_space *space, const char *name);
};
void cache_names_tell(struct engine *e, const struct cache_name_teller *teller);
/* Every end of every saved name. */
void cache_names_each_saved(struct engine *e, void (*fn)(void *arg, const struct cache_name_end *end), void *arg);
/* What was told before a restart: the name is there, and saved. */
rd_status cache_names_restore(struct engine *e, const struct cache_name_end *end);
