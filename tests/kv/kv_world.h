/* tests/kv/kv_world.h - a cache with a fake page memory: one number per row, the hash of the whole token prefix up
 * to it.
 *
 * Whoever computes a row first reads all earlier rows through its block table and compares them with the prefix
 * hashes of its own keys: a page that was read before it was written, freed too early, shared wrongly or copied
 * wrongly is seen at once.
 */
#pragma once
#include "base/random.h"
#include "kv/kv_seq.h"
#include "kv/radix_node.h"

struct world {
    struct page_pool *pool;
    struct kv_cache cache;
    struct radix_node *root[2]; /* two namespaces, whose rows differ */
    uint32_t P, n_pages;
    uint64_t *rows; /* [n_pages, P] */
    uint32_t n_windows;
    uint64_t *window_rows; /* [n_windows, P]: the same, of the layers with a window; NULL: none */
    uint64_t now;
    struct random rng;
    uint32_t n_zeroed; /* for kv_cache.zero_page of a test's own */
};

bool world_init(struct world *w, uint32_t n_pages, uint32_t page_tokens, bool constant_hash);
/* As world_init, with so many windows; the row at n sees positions from n - window + 1 on. */
bool world_init_windows(struct world *w, uint32_t n_pages, uint32_t page_tokens, uint32_t n_windows, uint32_t window);
/* False when pages are still held after the tree is gone. */
bool world_deinit(struct world *w);

/* All rows below n_computed read back right, and of the windows' those that the next row sees. */
bool world_can_read(const struct world *w, const struct kv_seq *seq);
/* Writes the reserved rows. */
void world_write(struct world *w, const struct kv_seq *seq);
/* reserve, read, write, commit. */
rd_status world_compute(struct world *w, struct kv_seq *seq, uint32_t n_rows);
/* Makes the rows of free pages unreadable, checks everything; prints what is wrong. */
bool world_ok(struct world *w);
/* Every computed position of every node (and the earlier rows of its first page) holds the right row. */
bool world_tree_reads(const struct world *w);
/* The naive match: the longest common prefix with any path of the tree. */
uint32_t world_naive_match(const struct world *w, const struct radix_node *root, const kv_key *keys, uint32_t n);
/* Where a sequence may run from that takes n positions of a path: the last one, from n down, that sees windows alone. */
uint32_t world_naive_reach(const struct world *w, const struct radix_node *node, uint32_t n);
/* Keys from the root to the end of node; returns their number. */
uint32_t world_path(const struct radix_node *node, kv_key *out, uint32_t cap);

static inline uint32_t world_below(struct world *w, uint32_t n)
{
    return (uint32_t)random_below(&w->rng, n);
}
