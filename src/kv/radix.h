/* kv/radix.h - the radix tree of token keys over KV pages: match, insert, split, lock, evict.
 *
 * A node is a run of keys below its parent, with the pages that cover its positions. Example, page_tokens 4:
 *
 *     root --[a b c d e f]--+--[g h]        node 1: positions 0..5, pages p0 (0..3), p1 (4..7, rows 0..1 filled)
 *            node 1         |  node 2       node 2: positions 6..7, pages p1 (appended in place: rows 2..3)
 *                           +--[x y z]      node 3: positions 6..8, pages p2 (rows 0..1 copied from p1, then x y), p3
 *                              node 3
 *
 * A node holds every page that covers one of its computed positions, also one that it shares with its parent; the
 * page of a node always contains the earlier rows of the whole path too (copy on write or append in place). So the
 * block table of a path takes page k from the deepest node that covers a position of page k.
 *
 * States: ready (n_computed == n_keys), pending (n_computed < n_keys; `owner` computes it), poisoned (unlinked and
 * freed at once, since all sequences on it let go of it in the same call: kv_seq_poison). Lock = one count on the
 * node and on every ancestor. Leaves that are ready and unlocked are on an LRU list, ordered by last use; eviction
 * takes their tail pages first and cascades upwards: a parent that becomes a leaf takes its place by its own last
 * use. There is a list per class of node (enum radix_class), because some are worth keeping longer. Dropping a lock
 * counts as a use. Pending nodes are locked by sequences only; all others take kv_hold, which locks ready nodes.
 *
 * Sequences (kv/kv_seq.h) are the only users of the pending half of this interface; the engine sees kv_seq mostly.
 *
 * Keys    uint32 token ids (image keys later). A hash is only an index: keys themselves are compared.
 * Thread  engine thread only.
 * Errors  RD_E_NOMEM from insert and split: the tree is unchanged.
 * Source  RadixAttention, arXiv:2312.07104; docs/engine.md.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/clock.h"
#include "base/histogram.h"
#include "kv/ghosts.h"
#include "kv/kv_key.h"
#include "kv/page_pool.h"
#include "radish/status.h"

struct radix;
struct radix_node;
struct kv_seq;

enum radix_match_kind {
    RADIX_MISS,          /* nothing matched */
    RADIX_EXACT,         /* the whole prompt is stored and ends where a stored node ends */
    RADIX_PREFIX,        /* a stored leaf's end lies on the prompt's path: the prompt continues it */
    RADIX_SUPERSEQUENCE, /* the prompt ends inside something longer */
    RADIX_LCP,           /* the prompt leaves a stored path midway */
    RADIX_N_KINDS
};

struct radix_match {
    struct radix_node *node; /* deepest node with a matched key (the root when n_match == 0) */
    uint32_t n_in_node;      /* matched keys of that node: 1 .. n_keys (0 for the root) */
    uint32_t n_match;        /* matched keys in all = the node's start + n_in_node */
    uint32_t n_ready;        /* of those, computed now: 0 .. n_match */
    enum radix_match_kind kind;
};

/* How long a node is worth more than others, and how much of the budget its class may keep that way. A node of a class
 * counts as used `period` later than it was, until the period after its last use has passed, and while no more than the
 * class's share of the pool is in it: a weight, never a pin. What is above the share, and what is past its period, is
 * ordered by its use alone, as everything else. The shares make 3/4 together.
 *     class    period   share   who
 *     PLAIN    -        -       everybody
 *     SHORT    5 min    1/8     radix_retain: cache_control, and prompt_cache_key's groups
 *     SHARED   5 min    1/8     prefixes that went on in RADIX_SHARED_FORKS ways or more
 *     HELD     5 min    1/4     radix_hold_next: until a sequence goes on from there
 *     LONG     1 h      1/8     radix_retain
 *     DAY      24 h     1/8     radix_retain: prompts of --warm and --shared-prefix, prompt_cache_retention */
enum radix_class { RADIX_PLAIN, RADIX_SHORT, RADIX_SHARED, RADIX_HELD, RADIX_LONG, RADIX_DAY, RADIX_N_CLASSES };
#define RADIX_SHARED_FORKS 3u
uint64_t radix_class_period_ns(enum radix_class class);

/* Nodes by where they end: up to 256 keys from the root, 1 Ki, 4 Ki, 16 Ki, 64 Ki, beyond. */
#define RADIX_N_DEPTHS 6u
uint32_t radix_depth_of(uint32_t end); /* 0 .. RADIX_N_DEPTHS - 1 */

struct radix_counts {
    uint64_t n_nodes, n_keys;           /* alive now, roots not counted */
    uint64_t node_bytes;                /* heap for nodes and keys, charged to the budget */
    uint64_t n_pages_evicted, n_splits; /* since creation */
    uint64_t n_insert_failed;           /* no memory, or the place was below a part that is still being computed */
    uint64_t n_namespaces;
    uint64_t class_nodes[RADIX_N_CLASSES], class_keys[RADIX_N_CLASSES]; /* of n_nodes, n_keys */
    uint64_t depth_nodes[RADIX_N_DEPTHS], depth_keys[RADIX_N_DEPTHS];   /* likewise */
    uint64_t pages_gone[GHOST_N_CAUSES], keys_gone[GHOST_N_CAUSES];     /* since creation, by why */
};

/* pool is borrowed and outlives the tree. */
rd_status radix_create(struct page_pool *pool, struct radix **out);
/* Another thread becomes the owner, of the pool too, with its first call. */
void radix_hand_over(struct radix *tree);
/* All sequences must be gone. Frees nodes and releases their pages. NULL is fine. */
void radix_destroy(struct radix *tree);
/* For tests, on an empty tree: every key and name hashes alike, so that all of them collide (F75). */
void radix_set_constant_hash(struct radix *tree);

/* The root of a namespace, made on first use. name: digest of (model, adapter, KV type, salt), compared in full. */
rd_status radix_namespace(struct radix *tree, const void *name, size_t n_bytes, struct radix_node **root);

/* A number that no other namespace of this tree has or had; not 0. */
uint64_t radix_root_id(const struct radix_node *root);
/* Forgets namespaces that hold nothing and are not in use, except keep. Their roots are gone. */
void radix_drop_empty(struct radix *tree, const struct radix_node *keep);

/* Longest stored prefix of keys[0..n), pending nodes included. Touches last_use along the path only. now: any
 * non-decreasing number (the engine passes the clock in ns). */
struct radix_match radix_match(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n,
                               uint64_t now);

/* One count on node and every ancestor. Call before evicting anything for the request that matched it. */
void radix_lock(struct radix *tree, struct radix_node *node);
void radix_unlock(struct radix *tree, struct radix_node *node);

/* Inserts keys[0..n) (a full sequence from the root) whose first n_computed positions are all computed, as ready
 * nodes: what is stored already is kept, what is new becomes ONE node. pages: the block table of the sequence, page
 * k covers positions k*P..; the tree retains what it needs. On success *node is the deepest node of the path (not
 * locked). Used for finished tails and tests. Where the path leads through a part that another sequence has yet to
 * compute nothing is stored (RD_OK, counted): a ready node never stands below a pending one. */
rd_status radix_insert_ready(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n,
                             const kv_page *pages, uint64_t now, struct radix_node **node);

/* Keeps a copy of the last hidden state with a ready node, whose last key it belongs to; it goes when the node or that
 * key goes. Nothing is kept without memory for it. */
void radix_set_state(struct radix *tree, struct radix_node *node, const void *state, uint32_t n_bytes);
/* NULL: none. */
const void *radix_node_state(const struct radix_node *node);

/* The path of keys[0..n), as far as it is computed, is of this class from now on, or of the higher that it has: SHORT,
 * LONG or DAY. A node that goes on behind key n is split, so that no more is kept; without memory for that, less is. */
void radix_retain(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n, enum radix_class class);
/* A client is expected to go on from keys[0..n): their path is HELD until one does. */
void radix_hold_next(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n);

/* Whose keys[0..n) are, as far as they are computed: who's alone (a number from 1 on), or everybody's (RADIX_COMMON).
 * The path is split at n and at n_common, up to which it is common whoever has it. What two use, or one with a claim and
 * one without, is common from then on, and so is all above it; what is not claimed yet belongs to the first who does.
 * shared (may be NULL): told that the first n keys were another's alone, and are no more.
 *
 *     A with the keys a b c d:   root --[a b c d]            A's
 *     B with the keys a b x:     root --[a b]--+--[c d]      common; A's
 *                                              +--[x]        B's */
#define RADIX_COMMON UINT64_MAX
struct radix_claim {
    uint64_t who;
    uint32_t n_common;
    void (*shared)(void *arg, uint64_t was, const kv_key *keys, uint32_t n);
    void *arg;
};
void radix_claim(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n,
                 const struct radix_claim *c);
/* Drops what is unlocked and who's alone of the path of keys[0..n), and of what goes on from there. Returns the pages that
 * became free. */
uint32_t radix_drop_claim(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n, uint64_t who);
/* How many of keys[0..n) are common, as the tree knows: up to where who's own begins. *n_stored: how many are stored. */
uint32_t radix_n_common(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n, uint64_t who,
                        uint32_t *n_stored);

/* Frees at least n_pages by dropping leaves, tail first: the least recently used by the clock of its class, and of the
 * few oldest plain ones that whose age is largest for what its last tokens cost to compute (attention makes deep ones
 * dearer). Returns the pages that became free (fewer when nothing is evictable). O(1) per page. */
uint32_t radix_evict(struct radix *tree, uint32_t n_pages);
/* Told of every page that radix_evict is about to free. True: it has retained the page, and will release it soon;
 * radix_evict counts it as freed. NULL: not reported. */
void radix_on_evict(struct radix *tree, bool (*keep)(void *arg, kv_page id), void *arg);
/* age is told of every page that radix_evict frees: the ns by clock since its node was used. Both are borrowed. */
void radix_measure_evictions(struct radix *tree, struct histogram *age, const struct clock *clock);
/* Drops unlocked ready leaves not used since `before`, nor within the period of their class before now, at most
 * max_nodes of them; returns the pages that became free. */
uint32_t radix_expire(struct radix *tree, uint64_t before, uint64_t now, uint32_t max_nodes);
/* Drops everything unlocked below root (NULL: in every namespace). Returns the pages that became free. */
uint32_t radix_clear(struct radix *tree, struct radix_node *root);

/* The block table of the first n computed positions on node's path: pages[k] covers k * page_tokens ... */
void radix_path_pages(const struct radix *tree, const struct radix_node *node, uint32_t n, kv_page *pages);
/* What is stored of node's path from position n on, and everything below, is never matched again: it is dropped; what
 * is held stays until then under a key that no text has. n lies on the path, before its end. No sequence is live. */
void radix_condemn(struct radix *tree, struct radix_node *node, uint32_t n);
/* The same for every path of any namespace that holds this page, from its first position on: public prompts share pages.
 * The caller holds the page. Returns how many paths were cut. */
uint32_t radix_condemn_page(struct radix *tree, kv_page page);

/* Drops what is unlocked of the end of keys[0..n) and of all that goes on behind it, where all of keys is stored. */
uint32_t radix_clear_path(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n);

/* Facts about a node, for kv_seq, dumps and tests. */
uint32_t radix_node_start(const struct radix_node *node); /* position of its first key */
uint32_t radix_node_n_keys(const struct radix_node *node);
uint32_t radix_node_n_computed(const struct radix_node *node);
uint32_t radix_node_locks(const struct radix_node *node);
const kv_key *radix_node_keys(const struct radix_node *node);
struct radix_node *radix_node_parent(const struct radix_node *node);
/* Calls fn for every node, parents first, until it returns false. depth: 0 for roots. Iterative (F74). */
void radix_walk(const struct radix *tree, bool (*fn)(void *arg, const struct radix_node *node, uint32_t depth),
                void *arg);

/* The same of one namespace; false: fn said so. */
bool radix_walk_below(const struct radix_node *root,
                      bool (*fn)(void *arg, const struct radix_node *node, uint32_t depth), void *arg);

uint64_t radix_node_last_use(const struct radix_node *node);
/* When its keys came into the tree; both parts of a node that is split were there since then. */
uint64_t radix_node_created(const struct radix_node *node);
/* How often a prompt was found to begin with it, as radix_count_hit was told; both parts of a node that is split were. */
uint32_t radix_node_hits(const struct radix_node *node);
/* Pages that it holds and its parent does not: over all nodes, every page of a namespace once. */
uint32_t radix_node_own_pages(const struct radix_node *node);
/* A prompt begins with the path to node, whose first n keys from the root it found: that part of it is hit. n == 0: no
 * part is. */
void radix_count_hit(struct radix *tree, struct radix_node *node, uint32_t n);
/* 0: not claimed yet; RADIX_COMMON; else of radix_claim. */
uint64_t radix_node_claim(const struct radix_node *node);
enum radix_class radix_node_class(const struct radix_node *node);
/* Keys that are stored behind the end of a match: the rest of its node, or of the child used last. Their number. */
uint32_t radix_following(const struct radix_match *m, kv_key *keys, uint32_t n_max);

/* Why keys[n_match], which a match did not find, is not there: what it was that dropped it, or GHOST_NONE. */
enum ghost_cause radix_cause(const struct radix *tree, const struct radix_node *root, const kv_key *keys,
                             uint32_t n_match);

struct radix_counts radix_counts(const struct radix *tree);
/* Every invariant of docs/engine.md that the tree alone can check; false status and a reason in err when
 * one is broken. */
rd_status radix_check(const struct radix *tree, struct rd_error *err);
