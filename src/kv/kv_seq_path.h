/* kv/kv_seq_path.h - what the parts of kv_seq share: walking a sequence's path, waking, the pending nodes it owns.
 * For src/kv/ alone. */
#pragma once
#include "kv/kv_seq.h"
#include "kv/radix_node.h"

/* How many of the first n_path positions are computed without a gap. */
uint32_t kv_path_ready(const struct kv_seq *seq);
/* The page with index k of the path cut at position end: from the deepest node that covers a position of it below
 * end. */
kv_page kv_path_page(const struct kv_seq *seq, uint32_t k, uint32_t end);
bool kv_path_contains(const struct kv_seq *seq, const struct radix_node *node);

/* RUNNABLE at position n, all of them computed on its path: fills the block table. */
void kv_seq_run_from(struct kv_seq *seq, uint32_t n);
/* Every waiter whose position is computed now becomes RUNNABLE. */
void kv_cache_wake(struct kv_cache *cache);

/* The uppermost pending node that seq owns; NULL: none. They are one chain that ends at seq->node. */
struct radix_node *kv_chain_top(const struct kv_seq *seq);
/* Publishes seq's computed positions in its chain. True when something became matchable as ready. */
bool kv_chain_publish(struct kv_seq *seq);
/* seq stops computing: its chain is cut at what is computed; who still needs the rest becomes the owner. */
void kv_chain_hand_over(struct kv_seq *seq);
/* Removes node's keys from number keep on, and all below; every live sequence there ends its path before them and
 * will compute that part for itself. */
void kv_chain_cut(struct kv_cache *cache, struct radix_node *node, uint32_t keep);

/* kv_window.c. Nothing where the cache has no windows. */
/* The last position up to n whose row finds all the windows that it sees; pages: the block table of n positions. */
uint32_t kv_window_reach(const struct kv_cache *cache, const kv_page *pages, uint32_t n);
/* pages[k] is another one, or new: seq uses its window. */
static inline void kv_window_note(struct kv_seq *seq, uint32_t k)
{
    if (seq->windows) seq->windows[k] = page_pool_window(seq->cache->pool, seq->pages[k]);
}
/* seq runs from n_computed on, where its windows are there. */
void kv_window_enter(struct kv_seq *seq);
/* It does not any more. Before its pages go, and before its state changes. */
void kv_window_leave(struct kv_seq *seq);
/* n_computed rose from n_before. After those who waited for it run. */
void kv_window_move_on(struct kv_seq *seq, uint32_t n_before);
