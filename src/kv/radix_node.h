/* kv/radix_node.h - inside the tree: the node, its links, and the steps that change the shape. For src/kv/ alone.
 *
 * A node is a struct, which never moves, and one buffer of exactly the size needed:
 *
 *     struct radix_node --run--> pages[one per page that its positions span] | keys[n_keys]
 *
 * A split makes a new node for the UPPER part; the lower part keeps the struct, so every pointer to it stays valid,
 * and its buffer shrinks, so that many splits of a long run leave no large buffers behind (F74).
 * pages[i] is the page with index start / P + i; there are exactly as many as the computed positions touch.
 * Below a pending node there are only pending nodes with nothing computed: positions are computed in order.
 * A node that a device error spoils is unlinked and freed in one go, because the sequences on it let go first
 * (kv_seq_pending.c): so no poisoned node is ever seen.
 */
#pragma once
#include "base/thread.h"
#include "kv/ghosts.h"
#include "kv/radix.h"

struct radix_node {
    struct radix_node *parent; /* NULL: a root */
    struct radix_node *first_child, *prev_sibling, *next_sibling;
    struct radix_node **table;      /* children by first key once there are more than a few */
    uint32_t table_cap, n_children; /* table_cap: power of two, 0 = siblings are walked instead */
    struct radix_node *lru_prev, *lru_next;
    bool on_lru, shared, held;    /* shared, held: with every ancestor; radix_retain.c */
    uint8_t class, mark, n_forks; /* enum radix_class, what was asked for; children ever, at most 255 */
    uint32_t n_hits;              /* at most UINT32_MAX; not less than its children's together */
    struct kv_seq *owner;         /* pending: who computes it; else NULL */
    uint64_t last_use, created;   /* created: not later, and not before the parent's */
    uint64_t claim;               /* who computed or used it alone: radix_claim.c */
    uint64_t ghost_sum;           /* of root and all keys before this node: ghosts.h */
    uint32_t start, n_keys, n_computed, n_pages, locks;
    size_t n_bytes; /* of struct and buffer */
    uint32_t *run;  /* the buffer */
    kv_key *keys;   /* into run */
    kv_page *pages; /* into run */
    void *state;    /* of the last key, or NULL; a block of its own */
    uint32_t state_bytes;
};

#define RADIX_N_BUCKETS 1024u

struct radix_root {
    struct radix_node node;
    struct radix_root *next; /* same bucket */
    uint64_t hash, id;       /* id: from 1 on, never given again */
    size_t n_name;           /* the name follows the struct */
};

struct radix {
    struct thread_owner owner;
    struct page_pool *pool;
    uint32_t page_tokens;
    bool constant_hash;
    struct radix_root *roots[RADIX_N_BUCKETS];
    struct radix_lru {
        struct radix_node *head, *tail;
    } lru[RADIX_N_CLASSES]; /* head: least recently used */
    uint64_t n_roots_made;
    uint32_t n_hidden;                   /* condemned nodes that are still held: radix_condemn */
    uint64_t now;                        /* the latest time that any caller named */
    struct ghosts ghosts;                /* of what was dropped */
    bool (*keep)(void *arg, kv_page id); /* radix_on_evict */
    void *keep_arg;
    bool is_evicting;
    struct histogram *evicted_age; /* radix_measure_evictions; NULL: not measured */
    const struct clock *clock;
    struct radix_counts counts;
};

static inline bool radix_node_is_ready(const struct radix_node *node)
{
    return node->n_computed == node->n_keys;
}
static inline bool radix_node_is_evictable(const struct radix_node *node)
{
    return node->parent && node->locks == 0 && node->n_children == 0 && radix_node_is_ready(node);
}
static inline uint32_t radix_node_end(const struct radix_node *node)
{
    return node->start + node->n_keys;
}
static inline uint32_t radix_node_computed_end(const struct radix_node *node)
{
    return node->start + node->n_computed;
}

/* A node outside the tree with the first n_keys keys filled in, nothing computed; room for all its pages. */
struct radix_node *radix_node_alloc(struct radix *tree, uint32_t start, const kv_key *keys, uint32_t n_keys);
/* Frees struct, buffer and child table; releases nothing. */
void radix_node_free(struct radix *tree, struct radix_node *node);

struct radix_node *radix_child_find(const struct radix *tree, const struct radix_node *parent, kv_key first);
/* Makes sure that one more child fits; the only part of linking that can fail. */
rd_status radix_child_reserve(struct radix *tree, struct radix_node *parent);
/* After radix_child_reserve. The parent is no leaf any more. */
void radix_child_link(struct radix *tree, struct radix_node *parent, struct radix_node *child);
/* The parent goes to the LRU list if it became an unlocked ready leaf. */
void radix_child_unlink(struct radix *tree, struct radix_node *child);

/* radix_retain.c. On the list of its class exactly when the node is an unlocked ready leaf; at the most recent end. */
void radix_lru_append(struct radix *tree, struct radix_node *node);
void radix_lru_remove(struct radix *tree, struct radix_node *node);
/* A parent that became a leaf: at its place by last use, as far as that is found in a few steps. */
void radix_lru_insert_by_use(struct radix *tree, struct radix_node *node);
/* The node with its keys comes (1) or goes (-1), in its class and depth, too; this many keys more or fewer, while its end
 * stays where it is. */
void radix_count_node(struct radix *tree, const struct radix_node *node, int sign);
void radix_count_keys(struct radix *tree, const struct radix_node *node, int64_t n);
/* By mark, shared and held. */
enum radix_class radix_class_of(const struct radix_node *node);
/* A child was linked: a hold on the parent's path is over, and a fork is counted. */
void radix_retain_continued(struct radix *tree, struct radix_node *parent);
/* upper, which is new, is kept as node, whose upper part it becomes. */
void radix_retain_split(struct radix *tree, struct radix_node *upper, const struct radix_node *node);

/* The node that ends at key n, or where the computed part of the path ends before that; split there if need be, and
 * without memory for that the one before. NULL: none. */
struct radix_node *radix_node_at(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n);

/* Raises n_computed to n and holds the pages that cover it: table is a whole block table, page k of it covers k * P
 * ... The page at the old end is replaced when the table has another one there; that one is returned (KV_NO_PAGE:
 * none). */
kv_page radix_node_publish(struct radix *tree, struct radix_node *node, uint32_t n, const kv_page *table);

/* Cuts node before its key number offset, 1 .. n_keys-1. node becomes the lower part; *upper is new. */
rd_status radix_split(struct radix *tree, struct radix_node *node, uint32_t offset, struct radix_node **upper);

/* Adds keys[m->n_match .. n) as one node with nothing computed at the place where the match ended (splitting there
 * if needed). Not locked. n > m->n_match; the matched part of the last node must be such that a pending node may
 * stand below. */
rd_status radix_attach(struct radix *tree, const struct radix_match *m, const kv_key *keys, uint32_t n,
                       struct radix_node **out);

/* Drops counts from node up to, not including, stop (an ancestor or NULL). */
void radix_unlock_until(struct radix *tree, struct radix_node *node, struct radix_node *stop);

/* Removes everything below node, and node's keys from number keep on; keep 0 removes node itself. What goes is
 * unlocked
 * (descendants; node itself when keep is 0) and, except for node, has nothing computed. */
void radix_prune(struct radix *tree, struct radix_node *node, uint32_t keep);

/* Unlinks one unlocked ready leaf and frees it; returns the pages that became free. */
uint32_t radix_leaf_remove(struct radix *tree, struct radix_node *leaf, enum ghost_cause cause);
/* Removes what can go below node, of one claim alone or (0) whatever it is, children first; the pages that became free. */
uint32_t radix_clear_below(struct radix *tree, struct radix_node *node, uint64_t claim);
/* Takes the last page of such a leaf, and the keys that it covers; returns 1 when the page became free, else 0. */
uint32_t radix_leaf_take_page(struct radix *tree, struct radix_node *leaf);
