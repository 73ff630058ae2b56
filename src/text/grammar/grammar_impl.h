/* text/grammar/grammar_impl.h - inside a compiled grammar and its vocabulary. Private to the module.
 *
 *     rules -> states -> edges (bytes) and calls (rules): the network, which does not change after the compile
 *     sets: what Earley's algorithm knows at a place of a text, interned; made as texts are followed
 *     matchers: stacks of sets
 *
 * Set OUTSIDE has no items: what began there is the text itself (or, for a mask of a state alone, whatever is outside of
 * its rule). An item that began in its own set says SELF.
 */
#pragma once
#include <stdatomic.h>
#include "base/hash.h"
#include "base/thread.h"
#include "text/grammar/grammar.h"

#define NONE      UINT32_MAX
#define NEVER     UINT64_MAX /* a distance: there is no way */
#define OUTSIDE   0u
#define SELF      UINT32_MAX
#define SETS_WORK (256ull << 10)

/* Of one set: a grammar that needs more is too ambiguous to be followed. */
#define SET_ITEMS   (1u << 16)
#define SET_WAITING (1u << 18)

/* ---- vocabulary -------------------------------------------------------------------------------------------------- */

/* The trie, in the order of a depth-first walk. ids: tokens in that order; those that end at node i are
 * ids[nodes[i].first_id] .. ids[nodes[i + 1].first_id - 1]. Node 0 is the root; nodes[n_nodes] closes the lists. */
struct trie_node {
    uint32_t skip, first_id;
    uint16_t depth;
    uint8_t byte;
    uint8_t plain; /* PLAIN_.., from before the node's byte to the ends of its subtree */
};
#define NETWORK_LOOK 24u   /* bytes: so deep is known what can follow in a state */
#define PLAIN_CHARS  0x3Fu /* the longest text of the subtree, in characters; PLAIN_CHARS: not all of it is plain text */
#define PLAIN_MOST   62u   /* stands for more, too */
#define PLAIN_BREAK  0x40u /* the byte is no plain text itself */
#define PLAIN_LONG   0x80u /* a token of the subtree has more than NETWORK_LOOK bytes */
#define PLAIN_ANY    255u  /* of states: any number of characters; else below PLAIN_MOST */
#define PLAIN_SLICES NETWORK_LOOK
static inline bool trie_is_plain(const struct trie_node *node)
{
    return (node->plain & PLAIN_CHARS) != PLAIN_CHARS;
}
struct local_mask;
struct grammar_vocab {
    atomic_uint refs; /* any thread; the last one destroys */
    uint32_t n_tokens, n_words, n_nodes, max_depth;
    struct trie_node *nodes;
    uint32_t *ids;
    uint8_t *bytes;       /* of tokens as texts see them (special ones: 0xFF and id) */
    uint64_t *offsets;    /* [n_tokens + 1] */
    bool has_byte[256];   /* as a token of its own */
    uint32_t weight[256]; /* nodes below the root's child of that byte */
    /* Plain text (grammar_plain.c), about 480 KB and 1.3 MB for 150,000 tokens: a mask per greatest number of characters
     * (tokens of at most NETWORK_LOOK bytes; the last: all), and from a node on the next one that is not plain or is long. */
    uint32_t *slices, *next_dirty; /* [PLAIN_SLICES + 1][n_words], [n_nodes + 1] */
    struct mutex lock;             /* of what follows: masks of states, for all grammars */
    struct local_mask **locals;    /* [n_locals_cap], open addressing */
    uint32_t n_locals, cap_locals;
    size_t local_bytes; /* of those in the table */
    uint64_t secret[4]; /* of keys: drawn for each vocabulary */
    uint64_t now;
};

#define LEAF_DEEP 0x80000000u
/* What can follow in a state, whatever is outside of its rule. leaves: nodes of the trie where the rule can be over; what
 * comes below them has to be asked of the outside. Never changed once made. */
struct local_mask {
    struct hash128 key;
    atomic_uint refs;  /* of the vocabulary and of sets' masks, any thread */
    uint64_t used;     /* when last, under the lock */
    uint64_t rise;     /* after none of these tokens is the rule's end more bytes farther than from the state; NEVER */
    uint32_t n_leaves; /* LEAF_DEEP: a place NETWORK_LOOK deep, below which nothing is known */
    uint32_t *leaves;
    uint32_t bits[]; /* [n_words] */
};

/* ---- network ----------------------------------------------------------------------------------------------------- */

struct net_edge {
    uint32_t to;
    uint8_t low, high;
};
struct net_call {
    uint32_t rule, to;
};
struct network {
    uint32_t n_rules, n_states, n_edges, n_calls, cap_edges;
    uint32_t *edge_first, *call_first; /* [n_states + 1] */
    struct net_edge *edges;            /* of a state: ascending */
    struct net_call *calls;
    uint8_t *accepts;
    uint32_t *rule_of;
    uint32_t *starts;       /* [n_rules + 1]: its states, the first is its start; rule 0 is the text */
    uint64_t *dist;         /* bytes to the end of the rule, spelt with bytes that are tokens; NEVER */
    struct hash128 *hashes; /* [n_rules]: the same for rules that mean the same in any grammar */
    /* keys: [n_states], the same for states that mean the same; of rules that count for those that mean the same for
     * NETWORK_LOOK bytes, from which the end comes nearer and goes farther by the same bytes, too. */
    struct hash128 *keys;
    bool *counts;          /* [n_rules] has many states that mean nearly the same */
    uint8_t *plain;        /* [n_states] characters of plain text, whichever, that can follow within the rule */
    uint8_t *plain_most;   /* [n_states] and no more of them can follow, whichever; PLAIN_MOST, PLAIN_ANY: not known */
    uint64_t *plain_far;   /* [n_states] from no place that plain text leads to from there is the rule's end farther */
    uint8_t class_of[256]; /* bytes that no edge tells apart */
    uint32_t n_classes;
    uint64_t secret[4]; /* the vocabulary's */
};
struct grammar_builder;
/* grammar_network.c: from the builder's rules. vocab may be NULL. Fails in the builder. */
bool network_make(struct network *n, struct grammar_builder *b, grammar_node root, const struct grammar_vocab *vocab);
void network_deinit(struct network *n);
size_t network_bytes(const struct network *n);
/* grammar_keys.c: keys, counts, of hashes and distances. false: out of memory. */
bool network_name(struct network *n);
/* grammar_plain.c: n->plain, n->plain_most, n->plain_far, of distances. false: out of memory. */
bool network_find_plain(struct network *n);
/* grammar_distance.c: n->dist. has_byte: NULL: all. false: out of memory. */
bool network_measure(struct network *n, const bool *has_byte);

/* Names of rules and states: sums and products with numbers of the vocabulary's that no outsider knows, so a grammar cannot
 * be made whose states get the names of another's. */
__extension__ typedef unsigned __int128 uint128;
static inline uint64_t name_folded(uint64_t a, uint64_t b)
{
    uint128 p = (uint128)a * b;

    return (uint64_t)p ^ (uint64_t)(p >> 64);
}
/* Both halves take all of x and label. */
static inline struct hash128 name_mixed(const struct network *n, struct hash128 h, struct hash128 x, uint64_t label)
{
    const uint64_t *s = n->secret;

    return (struct hash128){.low = name_folded(h.low + x.low + s[0], (label ^ x.high ^ s[1]) + h.high),
                            .high = name_folded(h.high + x.high + s[2], (label ^ x.low ^ s[3]) + h.low)};
}

static inline uint64_t dist_sum(uint64_t a, uint64_t b)
{
    return a == NEVER || b == NEVER || a + b < a ? NEVER : a + b;
}

/* ---- sets -------------------------------------------------------------------------------------------------------- */

struct item {
    uint32_t state, origin;
};
struct waiting {
    uint32_t rule, to, origin;
}; /* an item that called: where it goes on when the rule is over */
struct way {
    uint32_t rule;
    uint64_t up;
}; /* from the end of a rule called here: bytes to the end of the text */
struct set_mask;
struct set {
    uint64_t hash;
    uint32_t chain;                      /* the next set of the same place in the table */
    uint32_t n_kernel, n_outer, n_items; /* items: the kernel, what it completes, then predictions (SELF) */
    uint32_t n_waiting, n_ways;
    uint64_t dist;     /* bytes to the end of the text, NEVER */
    uint32_t need;     /* 1 + tokens to the end, where it is near; 0: not known yet */
    uint64_t first[4]; /* bytes that can follow */
    bool ends, marked; /* ends: what began OUTSIDE can be over here */
    uint8_t plain;     /* characters of plain text, whichever, that can follow, and then the text can be ended */
    bool plain_ends;   /* no more of them can follow */
    uint32_t *next;    /* [n_classes]: 0: not known yet; may be NULL */
    struct set_mask *mask;
    struct item *items;
    struct waiting *waiting; /* by rule */
    struct way *ways;        /* by rule */
};

/* A local mask that masks of sets of one grammar use: counted once, and one reference to it. */
struct held_local {
    struct local_mask *m;
    uint32_t n_uses;
};

/* The tokens that can follow a set: those of local masks, and others as ids or as bits. */
struct set_mask {
    size_t n_bytes;
    uint64_t used;
    uint64_t far; /* no token leads farther from the end, in bytes */
    uint32_t n_locals, n_ids;
    struct local_mask **locals;
    uint32_t *ids, *bits;         /* bits NULL: the others are ids */
    uint32_t *near_bits;          /* of tokens after which the end is at most near_need tokens away; NULL: not asked */
    uint64_t near_low, near_high; /* the same for limits from low to high */
};

struct grammar_matcher {
    struct grammar *g;
    struct grammar_matcher *prev, *next; /* under g->lock */
    bool is_over;                        /* it alone holds more than its share of what there is (grammar_memory.c) */
    uint32_t at, n_back;                 /* of steps: where the text stands; how many lie behind it, at most cap - 1 */
    uint32_t cap;
    uint32_t steps[]; /* a ring of sets */
};

struct path_step {
    uint32_t set;
    uint8_t byte;
}; /* of a shortest way */
struct grammar {
    atomic_uint refs;
    struct grammar_vocab *vocab;
    struct network net;
    /* Sets and masks take n_bytes; `granted` were given for them, at most `space`; they are swept at sweep_at. */
    size_t space, n_bytes, granted, sweep_at;
    struct grammar_budget *budget; /* NULL: none, all of space is granted */
    size_t least, fixed;           /* taken of it: what is granted at any time; of the network */
    struct grammar_matcher *asker; /* whose text is followed now; NULL: no matcher's, it is warmed */
    struct held_local *held;
    size_t n_held, cap_held;
    struct set **sets;
    uint32_t n_sets, cap_sets, n_alive;
    uint32_t *free_ids, n_free, cap_free;
    uint32_t *table, cap_table;
    uint32_t start;
    uint64_t now; /* a count of masks, as time */
    uint64_t n_hits, n_misses;
    uint32_t n_masks;
    uint32_t *bits, *walk; /* [n_words] of the answer; [max_depth + 1] sets on the way */
    uint16_t *n_chars;     /* [max_depth + 1] characters up to there */
    uint32_t n_walk;       /* of walk: held */
    /* for making a set */
    struct item *kernel;
    size_t n_kernel, cap_kernel;
    struct item *items;
    size_t n_items, cap_items;
    uint64_t work_left; /* items that may still be looked at: RD_E_LIMIT then, see grammar.h */
    struct waiting *waiting;
    size_t n_waiting, cap_waiting;
    struct way *ways;
    size_t n_ways, cap_ways;
    uint32_t *seen;
    size_t cap_seen; /* open addressing over items, NONE: free */
    uint32_t *marks;
    size_t n_marks, cap_marks; /* sets to look at, in a sweep */
    uint32_t *leaves;
    size_t n_leaves, cap_leaves;
    struct path_step *path;
    size_t cap_path;
    struct mutex lock; /* of the list of matchers */
    struct grammar_matcher *matchers;
};

/* grammar_sets.c. A set that is not held (by a matcher, by `walk`, as an origin) goes with the next sweep. */
rd_status sets_start(struct grammar *g);
void sets_deinit(struct grammar *g);
/* NONE in *to: the byte cannot follow. */
rd_status set_step(struct grammar *g, uint32_t from, uint8_t byte, uint32_t *to);
/* The set of these items (g->kernel, in any order). */
rd_status set_of_kernel(struct grammar *g, uint32_t *out);
/* Into g->kernel: where the items of `origin` go on when the rule is over. */
rd_status set_complete(struct grammar *g, uint32_t origin, uint32_t rule);
static inline bool set_has_byte(const struct set *s, uint8_t byte)
{
    return s->first[byte >> 6] >> (byte & 63) & 1;
}
/* From no place that plain text leads to is the end of the text farther, in bytes. The set's `plain` is not 0. */
uint64_t set_plain_far(const struct grammar *g, const struct set *s);
/* The next byte of a shortest way; -1: the text is at its end. The set has a way. */
int set_short_byte(const struct grammar *g, const struct set *s);

/* grammar_memory.c */
size_t set_bytes(const struct grammar *g, const struct set *s);
void set_free(struct grammar *g, uint32_t id);
/* Before more is made: asks the budget, or sweeps. RD_E_LIMIT: the text that is followed holds more than it may. */
rd_status sets_room(struct grammar *g);
void scratch_free(struct grammar *g);
/* Frees what an operation left that is large. */
void scratch_trim(struct grammar *g);
/* The caller's reference is the grammar's now; RD_E_NOMEM: it is gone. */
rd_status local_hold(struct grammar *g, struct local_mask *m);
void local_release(struct grammar *g, const struct local_mask *m);

/* grammar_mask.c */
rd_status set_mask_of(struct grammar *g, uint32_t id, uint64_t n_left); /* into g->bits */
void set_mask_free(struct grammar *g, struct set *s);
rd_status masks_warm(struct grammar *g); /* of states that many tokens can follow */
/* Tokens to the end of the text along a shortest way, at most; of long ways, bytes. */
rd_status set_need(struct grammar *g, uint32_t id, uint64_t *need);

/* grammar_plain.c: what the trie's nodes know of plain text, slices, next_dirty. false: out of memory. */
bool vocab_find_plain(struct grammar_vocab *v);

/* grammar_vocab.c */
bool vocab_is_special(const struct grammar_vocab *v, uint32_t token);
struct local_mask *vocab_find(struct grammar_vocab *v, struct hash128 key); /* referenced; NULL: not there */
void vocab_keep(struct grammar_vocab *v, struct local_mask *m);             /* when there is room for it */
void local_mask_unref(struct local_mask *m);
size_t local_mask_bytes(const struct grammar_vocab *v, const struct local_mask *m);
