/* engine/tiers/ram_load.c - a request's prompt goes on in host memory: pages on loan, copied, attached to the tree. */
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "engine/listener.h"
#include "engine/tiers/ram_link_state.h"

/* What the prompt has in the tree and, behind that, in the tier: pages [first, first + n). */
struct ram_look {
    struct radix_match match;
    uint32_t first, n;
};

static uint32_t n_in_tier(const struct ram_link *l, const kv_key *keys, uint32_t first, uint32_t n_full)
{
    uint32_t i = first;

    while (i < n_full && ram_tier_find(l->tier, l->digests[i], keys + (size_t)i * l->page_tokens) != RAM_NO_SLOT) i++;
    return i - first;
}

static bool look_up(struct engine *e, struct request *r, struct radix_node *root, uint64_t now, struct ram_look *k)
{
    struct ram_link *l = e->o.ram;
    uint32_t n_full = u32_min(r->seq.n_keys / l->page_tokens, l->max_pages);

    k->match = radix_match(e->cache.tree, root, r->seq.keys, r->seq.n_keys, now);
    k->first = k->match.n_match / l->page_tokens;
    if (k->match.n_ready < k->match.n_match) return false; /* it joins what is in flight */
    if (k->first >= n_full) return false;
    ram_link_chain(l, ram_link_seed_of(e, r), r->seq.keys, n_full, l->digests);
    k->n = n_in_tier(l, r->seq.keys, k->first, n_full);
    return k->n > 0;
}

/* A load under way that begins at or before page first of the same chain and reaches beyond it. */
static struct ram_load *find_load(const struct ram_link *l, const struct ram_look *k)
{
    for (uint32_t i = 0; i < l->n_loads; i++) {
        struct ram_load *load = l->loads[i];

        if (load->first <= k->first && k->first < load->first + load->n &&
            hash128_equal(load->digests[k->first], l->digests[k->first]))
            return load;
    }
    return NULL;
}

/* ---- begin ---- */

static void free_load(struct ram_load *load)
{
    if (!load) return;
    mem_free(load->tokens);
    mem_free(load->digests);
    mem_free(load->pages);
    mem_free(load->slots);
    mem_free(load->bytes);
    mem_free(load);
}

static struct ram_load *make_load(const struct ram_link *l, const struct request *r, const struct ram_look *k)
{
    struct ram_load *load = mem_zalloc(1, sizeof(*load));
    size_t n_all = (size_t)k->first + k->n;

    if (!load) return NULL;
    load->first = k->first;
    load->n = k->n;
    load->tokens = (uint32_t *)(void *)mem_memdup(r->seq.keys, n_all * l->page_tokens * sizeof(*load->tokens));
    load->digests = (struct hash128 *)(void *)mem_memdup(l->digests, n_all * sizeof(*load->digests));
    load->pages = mem_zalloc(n_all, sizeof(*load->pages));
    load->slots = mem_zalloc(k->n, sizeof(*load->slots));
    load->bytes = mem_zalloc(k->n, sizeof(*load->bytes));
    if (load->tokens && load->digests && load->pages && load->slots && load->bytes) return load;
    free_load(load);
    return NULL;
}

static void hold_slots(struct ram_link *l, struct ram_load *load)
{
    for (uint32_t i = 0; i < load->n; i++) {
        uint32_t at = load->first + i;

        load->slots[i] = ram_tier_find(l->tier, load->digests[at], load->tokens + (size_t)at * l->page_tokens);
        load->bytes[i] = ram_tier_bytes(l->tier, load->slots[i]);
        ram_tier_hold(l->tier, load->slots[i]);
    }
}

static void release_slots(struct ram_link *l, const struct ram_load *load)
{
    for (uint32_t i = 0; i < load->n; i++) ram_tier_release(l->tier, load->slots[i]);
}

/* Of the pages on loan: those that a sequence sees which goes on behind them get the windows that the tier has. */
static rd_status open_windows(struct engine *e, struct ram_load *load)
{
    struct kv_cache *cache = &e->cache;
    const uint32_t n = load->first + load->n, P = e->o.page_tokens;
    uint32_t first =
        cache->window ? kv_window_first(cache, n * P - 1) : n; /* of a prompt that ends there, its last row */

    first = u32_max(first, load->first) - load->first;
    for (uint32_t i = load->n; i > first; i--) /* windows with one missing between are of no use */
        if (!executor_has_window(&e->o.executor, load->bytes[i - 1])) first = i;
    return kv_loan_open_windows(cache, &load->loan, first);
}

static bool take_pages(struct engine *e, const struct request *r, struct ram_load *load)
{
    if (!admission_make_loan_room(e, r, load->first, 0, load->n)) return false;
    if (page_pool_take(e->pool, load->n, load->pages + load->first) != RD_OK) return false;
    kv_loan_begin(&e->cache, &load->loan, load->pages + load->first, load->n);
    if (open_windows(e, load) != RD_OK) { /* so the row behind computes more */
        kv_loan_end(&e->cache, &load->loan);
        return false;
    }
    kv_isolate(&e->cache, load->root, load->pages + load->first, load->n);
    return true;
}

static void begin_copies(struct engine *e, struct ram_load *load)
{
    struct ram_link *l = e->o.ram;
    const struct executor *x = &e->o.executor;

    load->begun_ns = clock_now_ns(e->o.clock);
    load->begun = x->move_begin(x->self, false, load->n, load->pages + load->first, load->bytes, &load->ticket);
    l->loads[l->n_loads++] = load;
    l->counts.n_loads++;
    l->counts.n_loading += load->n;
}

/* NULL: no memory or no room. */
static struct ram_load *begin_load(struct engine *e, const struct request *r, struct radix_node *root,
                                   const struct ram_look *k, uint64_t now)
{
    struct ram_link *l = e->o.ram;
    struct ram_load *load = l->n_loads < RAM_MAX_LOADS ? make_load(l, r, k) : NULL;

    if (!load) return NULL;
    ram_link_finish_leaving(e);                                        /* what is loaded may be on its way out */
    if (n_in_tier(l, r->seq.keys, k->first, k->first + k->n) < k->n) { /* its copy failed */
        free_load(load);
        return NULL;
    }
    load->root = root;
    load->hold = kv_hold(&e->cache, root, r->seq.keys, k->match.n_match, now, &load->n_held);
    hold_slots(l, load);
    if (load->n_held == k->match.n_match && take_pages(e, r, load)) {
        begin_copies(e, load);
        return load;
    }
    release_slots(l, load);
    kv_unhold(&e->cache, load->hold);
    free_load(load);
    return NULL;
}

/* What r takes when it is admitted, beside the pages on loan. */
static uint32_t pages_beside(const struct engine *e, const struct request *r)
{
    return admission_pages_behind(e, r, r->ram.load->first + r->ram.load->n);
}

static void join(struct engine *e, struct request *r, struct ram_load *load)
{
    r->ram.load = load;
    r->ram.n_tries++;
    load->n_requests++;
    e->o.ram->n_promised += pages_beside(e, r);
    e->n_loading++;
}

static void part(struct engine *e, struct request *r)
{
    e->o.ram->n_promised -= pages_beside(e, r);
    r->ram.load->n_requests--;
    r->ram.load = NULL;
    e->n_loading--;
}

bool ram_load_wait(struct engine *e, struct request *r, struct radix_node *root, uint64_t now)
{
    struct ram_load *load;
    struct ram_look k;

    if (!e->o.ram || !root || r->ram.n_tries >= RAM_MAX_TRIES || !look_up(e, r, root, now, &k)) return false;
    load = find_load(e->o.ram, &k);
    if (!load) load = begin_load(e, r, root, &k, now);
    if (!load) return false;
    join(e, r, load);
    return true;
}

void ram_load_leave(struct engine *e, struct request *r)
{
    if (r->ram.load) part(e, r);
}

uint32_t ram_link_n_more(struct engine *e, const struct kv_space *space, const kv_key *keys, uint32_t n,
                         uint32_t n_there)
{
    struct ram_link *l = e->o.ram;
    uint32_t n_full = l ? u32_min(n / l->page_tokens, l->max_pages) : 0, first, n_found;

    if (!l || n_there / l->page_tokens >= n_full) return 0;
    first = n_there / l->page_tokens;
    ram_link_chain(l, ram_link_seed(e, space), keys, n_full, l->digests);
    n_found = n_in_tier(l, keys, first, n_full);
    return n_found ? (first + n_found) * l->page_tokens - n_there : 0;
}

void ram_link_drop(struct engine *e, const struct kv_space *space, const kv_key *keys, uint32_t n, uint32_t n_keep)
{
    struct ram_link *l = e->o.ram;
    uint32_t n_full = l ? u32_min(n / l->page_tokens, l->max_pages) : 0;

    if (n_full == 0) return;
    ram_link_chain(l, ram_link_seed(e, space), keys, n_full, l->digests);
    for (uint32_t i = n_keep / l->page_tokens; i < n_full; i++) {
        uint32_t slot = ram_tier_find(l->tier, l->digests[i], keys + (size_t)i * l->page_tokens);

        if (slot != RAM_NO_SLOT && !ram_tier_is_held(l->tier, slot)) ram_tier_drop(l->tier, slot);
    }
}

/* ---- attaching ---- */

static void attach(struct engine *e, struct ram_load *load, bool came, uint64_t now)
{
    struct ram_link *l = e->o.ram;
    uint32_t P = l->page_tokens;
    struct radix_node *node;

    for (uint32_t i = load->first; came && i < load->first + load->n; i++) {
        page_pool_set_fill(e->pool, load->pages[i], P);
        ENGINE_TELL(page_begun, (e, load->pages[i])); /* what is lossy never goes to the tier */
        ram_link_set_name(l, load->pages[i], load->digests[i], load->tokens + (size_t)i * P);
    }
    release_slots(l, load);
    for (uint32_t i = 0; came && i < load->n; i++) /* so that the end of the chain goes first */
        ram_tier_retire(l->tier, load->slots[i]);
    /* the tree may have got some of it meanwhile; without memory the request computes */
    if (came && radix_insert_ready(e->cache.tree, load->root, load->tokens, (load->first + load->n) * P, load->pages,
                                   now, &node) == RD_OK)
        l->counts.n_pages_loaded += load->n;
    if (came)
        l->counts.load_ns += clock_now_ns(e->o.clock) - load->begun_ns;
    else
        l->counts.n_failed += load->n;
    kv_loan_end(&e->cache, &load->loan);
    kv_unhold(&e->cache, load->hold);
    l->counts.n_loading -= load->n;
}

static void finish_load(struct engine *e, struct ram_load *load, bool came, uint64_t now)
{
    struct ram_link *l = e->o.ram;
    uint32_t i = 0;

    attach(e, load, came, now);
    for (struct request *r = e->queue_head; r && load->n_requests > 0; r = r->next) {
        if (r->ram.load != load) continue;
        if (came && (r->ram.to == 0 || load->n_held < r->ram.from)) r->ram.from = load->n_held;
        if (came) r->ram.to = u32_max(r->ram.to, (load->first + load->n) * l->page_tokens);
        part(e, r);
    }
    assert(load->n_requests == 0);
    while (l->loads[i] != load) i++;
    for (l->n_loads--; i < l->n_loads; i++) l->loads[i] = l->loads[i + 1];
    free_load(load);
    e->blocked = false;
}

void ram_load_collect(struct engine *e, uint64_t now, bool wait)
{
    struct ram_link *l = e->o.ram;
    const struct executor *x = &e->o.executor;

    while (l->n_loads > 0) {
        struct ram_load *load = l->loads[0];
        rd_status st = load->begun == RD_OK ? x->move_end(x->self, false, load->ticket, wait) : load->begun;

        if (st == RD_E_AGAIN) return;
        finish_load(e, load, st == RD_OK, now);
    }
}
