/* tests/kv/kv_world.c - see kv_world.h. */
#include "kv_world.h"
#include "base/mem.h"
#include "test.h"

static void copy_rows(void *arg, kv_page to, kv_page from, uint32_t n_rows)
{
    struct world *w = arg;
    memcpy(w->rows + (size_t)to * w->P, w->rows + (size_t)from * w->P, n_rows * sizeof(*w->rows));
    if (w->n_windows)
        memcpy(w->window_rows + (size_t)page_pool_window(w->pool, to) * w->P,
               w->window_rows + (size_t)page_pool_window(w->pool, from) * w->P, n_rows * sizeof(*w->rows));
}

bool world_init(struct world *w, uint32_t n_pages, uint32_t page_tokens, bool constant_hash)
{
    *w = (struct world){.P = page_tokens, .n_pages = n_pages, .now = 1};
    random_init(&w->rng, test_seed());
    w->rows = mem_zalloc((size_t)n_pages * page_tokens, sizeof(*w->rows));
    if (!w->rows || page_pool_create(n_pages, page_tokens, &w->pool) != RD_OK ||
        radix_create(w->pool, &w->cache.tree) != RD_OK)
        return false;
    if (constant_hash) radix_set_constant_hash(w->cache.tree);
    w->cache.pool = w->pool;
    w->cache.copy_rows = copy_rows;
    w->cache.copy_arg = w;
    return radix_namespace(w->cache.tree, "a", 1, &w->root[0]) == RD_OK &&
           radix_namespace(w->cache.tree, "b", 1, &w->root[1]) == RD_OK;
}

bool world_init_windows(struct world *w, uint32_t n_pages, uint32_t page_tokens, uint32_t n_windows, uint32_t window)
{
    if (!world_init(w, n_pages, page_tokens, false)) return false;
    w->n_windows = n_windows;
    w->window_rows = mem_zalloc((size_t)n_windows * page_tokens, sizeof(*w->rows));
    w->cache.window = window;
    return w->window_rows && page_pool_make_windows(w->pool, n_windows) == RD_OK;
}

bool world_deinit(struct world *w)
{
    bool ok;

    radix_destroy(w->cache.tree);
    ok = page_pool_n_free(w->pool) == w->n_pages && page_pool_check(w->pool, NULL) == RD_OK;
    if (ok) page_pool_destroy(w->pool);
    mem_free(w->rows);
    mem_free(w->window_rows);
    return ok;
}

static uint64_t next_row(uint64_t row, kv_key key)
{
    uint64_t z = (row ^ key) * 0x9E3779B97F4A7C15u + 0x1234567;
    return (z ^ (z >> 29)) | 1; /* never 0: rows of free pages are 0 */
}

static uint64_t first_row(const struct world *w, const struct radix_node *root)
{
    return root == w->root[1] ? 99 : 7;
}

/* NULL: the page has no window. */
static uint64_t *window_row(const struct world *w, const struct kv_seq *seq, uint32_t i)
{
    uint32_t window = page_pool_window(w->pool, seq->pages[i / w->P]);

    return window == KV_NO_PAGE ? NULL : &w->window_rows[(size_t)window * w->P + i % w->P];
}

static bool can_see(const struct world *w, const struct kv_seq *seq, uint32_t i, uint64_t row)
{
    const uint64_t *at;

    if (!w->n_windows || i + w->cache.window <= seq->n_computed) return true;
    at = window_row(w, seq, i);
    if (at && *at == row) return true;
    printf("row %u of %u (page %u of %u): %s\n", i, seq->n_computed, i / w->P, seq->n_pages,
           at ? "its window reads wrong" : "it has no window");
    return false;
}

bool world_can_read(const struct world *w, const struct kv_seq *seq)
{
    uint64_t row = first_row(w, seq->root);

    for (uint32_t i = 0; i < seq->n_computed; i++) {
        row = next_row(row, seq->keys[i]);
        if (!can_see(w, seq, i, row)) return false;
        if (w->rows[(size_t)seq->pages[i / w->P] * w->P + i % w->P] == row) continue;
        printf("row %u of %u (page %u of %u, own from %u) reads wrong\n", i, seq->n_computed, i / w->P, seq->n_pages,
               seq->first_own_page);
        return false;
    }
    return true;
}

void world_write(struct world *w, const struct kv_seq *seq)
{
    uint64_t row = first_row(w, seq->root);

    for (uint32_t i = 0; i < seq->n_reserved; i++) {
        row = next_row(row, seq->keys[i]);
        if (i < seq->n_computed) continue;
        w->rows[(size_t)seq->pages[i / w->P] * w->P + i % w->P] = row;
        if (w->n_windows) *window_row(w, seq, i) = row;
    }
}

rd_status world_compute(struct world *w, struct kv_seq *seq, uint32_t n_rows)
{
    rd_status st = kv_seq_reserve(seq, n_rows);

    if (st != RD_OK) return st;
    if (!world_can_read(w, seq)) return RD_E_INTERNAL;
    world_write(w, seq);
    kv_seq_commit(seq);
    return world_can_read(w, seq) ? RD_OK : RD_E_INTERNAL;
}

bool world_ok(struct world *w)
{
    struct rd_error err = {0};
    struct page_counts n = page_pool_counts(w->pool);

    for (kv_page id = 0; id < w->n_pages; id++)
        if (page_pool_holders(w->pool, id) == 0) memset(w->rows + (size_t)id * w->P, 0, w->P * sizeof(*w->rows));
    if (w->n_windows) { /* what nobody uses may go at any time, but its bytes stay as long as it is kept */
        bool *is_a_pages = mem_zalloc(w->n_windows, sizeof(*is_a_pages));

        for (kv_page id = 0; id < w->n_pages; id++)
            if (page_pool_window(w->pool, id) != KV_NO_PAGE) is_a_pages[page_pool_window(w->pool, id)] = true;
        for (uint32_t i = 0; i < w->n_windows; i++)
            if (!is_a_pages[i]) memset(w->window_rows + (size_t)i * w->P, 0, w->P * sizeof(*w->rows));
        mem_free(is_a_pages);
    }
    if (n.n_total != n.n_free + n.n_ready + n.n_locked + n.n_pending + n.n_quarantined) return false;
    if (kv_check(&w->cache, &err) == RD_OK) return true;
    printf("kv_check: %s\n", err.text);
    return false;
}

uint32_t world_path(const struct radix_node *node, kv_key *out, uint32_t cap)
{
    uint32_t n = radix_node_end(node);

    for (; node->parent; node = node->parent)
        for (uint32_t i = 0; i < node->n_keys; i++)
            if (node->start + i < cap) out[node->start + i] = node->keys[i];
    return n;
}

static const struct radix_node *root_of(const struct radix_node *node)
{
    while (node->parent) node = node->parent;
    return node;
}

struct read_all {
    const struct world *w;
    bool ok;
};

static bool read_node(void *arg, const struct radix_node *node, uint32_t depth)
{
    struct read_all *r = arg;
    const struct world *w = r->w;
    kv_key keys[4096];
    uint32_t first = node->start / w->P * w->P; /* the rows before it in its first page are the path's too */
    uint64_t row = first_row(w, root_of(node));

    if (depth == 0 || radix_node_end(node) > 4096) return true;
    world_path(node, keys, 4096);
    for (uint32_t i = 0; i < radix_node_computed_end(node); i++) {
        row = next_row(row, keys[i]);
        if (node->n_computed == 0 || i < first) continue;
        kv_page page = node->pages[i / w->P - first / w->P];
        uint32_t window = page_pool_window(w->pool, page);

        if (w->rows[(size_t)page * w->P + i % w->P] == row &&
            (window == KV_NO_PAGE || w->window_rows[(size_t)window * w->P + i % w->P] == row))
            continue;
        printf("node at %u (%u keys): row %u reads wrong\n", node->start, node->n_keys, i);
        r->ok = false;
        return false;
    }
    return true;
}

bool world_tree_reads(const struct world *w)
{
    struct read_all r = {w, true};
    radix_walk(w->cache.tree, read_node, &r);
    return r.ok;
}

struct naive {
    const struct radix_node *root;
    const kv_key *keys;
    uint32_t n, best;
};

static bool naive_node(void *arg, const struct radix_node *node, uint32_t depth)
{
    struct naive *m = arg;
    kv_key path[4096];
    uint32_t n_path, n = 0;

    if (depth == 0 || root_of(node) != m->root) return true;
    n_path = world_path(node, path, 4096);
    while (n < n_path && n < m->n && path[n] == m->keys[n]) n++;
    if (n > m->best) m->best = n;
    return true;
}

uint32_t world_naive_match(const struct world *w, const struct radix_node *root, const kv_key *keys, uint32_t n)
{
    struct naive m = {root, keys, n, 0};
    radix_walk(w->cache.tree, naive_node, &m);
    return m.best;
}

uint32_t world_naive_reach(const struct world *w, const struct radix_node *node, uint32_t n)
{
    kv_page pages[4096];

    if (!w->n_windows || n == 0) return n;
    while (node->parent && node->start >= n) node = node->parent;
    radix_path_pages(w->cache.tree, node, n, pages);
    for (uint32_t at = n; at > 0; at--) {
        bool sees_all =
            at % w->P == 0 || page_pool_window(w->pool, pages[at / w->P]) != KV_NO_PAGE; /* it is written to */

        for (uint32_t i = at; i-- > 0 && i + w->cache.window > at;)
            sees_all = sees_all && page_pool_window(w->pool, pages[i / w->P]) != KV_NO_PAGE;
        if (sees_all) return at;
    }
    return 0;
}
