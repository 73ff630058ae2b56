/* engine/public_prefix.c - see the header. */
#include "engine/public_prefix.h"
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

#define END_TOKENS 4u /* at the end of a text, that depend on how it goes on */

struct prefix {
    kv_key *keys;
    uint32_t n;
};
struct public_prefixes {
    uint32_t n, n_longest;
    struct prefix list[LIMIT_PUBLIC_PREFIXES];
    kv_page *pages; /* [pages of the longest] */
};

static void let_go(struct engine *e)
{
    struct public_prefixes *p = e->public;

    for (uint32_t i = 0; p && i < p->n; i++) mem_free(p->list[i].keys);
    if (p) mem_free(p->pages);
    mem_free(p);
    e->public = NULL;
}

/* The most tokens that keys have in common with the beginning of a public prompt. whole: of one that it is all of, but
 * for the last few. */
static uint32_t longest(const struct public_prefixes *p, const kv_key *keys, uint32_t n, bool whole)
{
    uint32_t best = 0;

    for (uint32_t i = 0; p && i < p->n; i++) {
        const struct prefix *x = &p->list[i];
        uint32_t n_same = 0;

        while (n_same < n && n_same < x->n && keys[n_same] == x->keys[n_same]) n_same++;
        if (n_same > best && (!whole || n_same + END_TOKENS >= x->n)) best = n_same;
    }
    return best;
}

rd_status public_prefix_add(struct engine *e, const kv_key *keys, uint32_t n)
{
    struct public_prefixes *p = e->public;
    struct prefix x = {NULL, n};
    kv_page *pages;

    if (longest(p, keys, n, false) == n) return RD_OK;
    if (!p) p = e->public = mem_zalloc(1, sizeof(*p));
    if (!p) return RD_E_NOMEM;
    if (p->n == LIMIT_PUBLIC_PREFIXES) return RD_E_LIMIT;
    if (n > p->n_longest) {
        pages = mem_realloc(p->pages, u32_ceil_div(n, e->o.page_tokens), sizeof(*pages));
        if (!pages) return RD_E_NOMEM;
        p->pages = pages;
        p->n_longest = n;
    }
    x.keys = (kv_key *)(void *)mem_memdup(keys, n * sizeof(*keys));
    if (!x.keys) return RD_E_NOMEM;
    p->list[p->n++] = x;
    return RD_OK;
}

/* The root of the open space of the same adapter; NULL: no memory for it. */
static struct radix_node *common_root(struct engine *e, const struct kv_space *space)
{
    struct kv_space open = kv_space_opened(space);

    return engine_root_of(e, &open);
}

void public_prefix_link(struct engine *e, const struct kv_space *space, struct radix_node *root, const kv_key *keys,
                        uint32_t n, uint64_t now)
{
    struct radix *tree = e->cache.tree;
    uint32_t n_public = longest(e->public, keys, n, false);
    struct radix_match own, common;
    struct radix_node *node, *from;

    if (n_public == 0 || kv_space_is_open(space) || !(from = common_root(e, space))) return;
    own = radix_match(tree, root, keys, n_public, now);
    if (own.n_match == n_public) return; /* it is there, or on its way */
    common = radix_match(tree, from, keys, n_public, now);
    if (common.n_ready <= own.n_match) return;
    radix_path_pages(tree, common.node, common.n_ready, e->public->pages);
    (void)radix_insert_ready(tree, root, keys, common.n_ready, e->public->pages, now,
                             &node); /* without memory: computed */
}

/* The public part that r has computed is stored for everybody. */
static void publish(struct engine *e, struct request *r, uint64_t now)
{
    uint32_t n_public;
    struct radix_match m;
    struct radix_node *node, *to;

    if (!e->public || r->published || kv_space_is_open(&r->p.space) || !r->seq.cached ||
        r->seq.n_computed < r->n_prompt)
        return;
    r->published = true;
    n_public = longest(e->public, r->seq.keys, r->n_prompt, true);
    if (n_public == 0 || !(to = common_root(e, &r->p.space))) return;
    m = radix_match(e->cache.tree, to, r->seq.keys, n_public, now);
    if (m.n_match == n_public) return;
    if (radix_insert_ready(e->cache.tree, to, r->seq.keys, n_public, r->seq.pages, now, &node) == RD_OK)
        radix_retain(e->cache.tree, to, r->seq.keys, n_public, RADIX_DAY);
    radix_claim(e->cache.tree, to, r->seq.keys, n_public, &(struct radix_claim){.who = RADIX_COMMON});
}

static void publish_all(struct engine *e, uint64_t now)
{
    const struct step_plan *p = &e->plan;

    for (uint32_t i = 0; i < p->batch.n_runs; i++)
        if (p->run_request[i]) publish(e, p->run_request[i], now);
}

static void link(struct engine *e, const struct request *r, struct radix_node *root, uint64_t now)
{
    public_prefix_link(e, &r->p.space, root, r->seq.keys, r->n_prompt, now);
}

const struct engine_listener listens_public_prefix = {.let_go = let_go, .matching = link, .committed = publish_all};
