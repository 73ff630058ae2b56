/* engine/ram_link.c - names of pages, and pages that leave the device. */
#include "engine/ram_link.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/ram_link_state.h"

#define ROOM_SHARE     8u                /* of all pages at most this part is kept free by leaving ahead */
#define ROOM_PER_STEP  64u /* pages that begin to leave ahead in one step: 3 ms of the bus for an 8B model */

/* ---- life ---- */

rd_status ram_link_create(uint64_t n_bytes, uint64_t page_bytes, uint32_t page_tokens, uint32_t max_pages, bool thread,
                          struct ram_link **out)
{
    struct ram_tier_options to = {
        .n_bytes = u64_max(n_bytes, page_bytes), .page_bytes = page_bytes, .page_tokens = page_tokens, .thread = thread};
    struct ram_link *l = mem_zalloc(1, sizeof(*l));
    rd_status st = RD_E_NOMEM;

    if (!l) return st;
    l->page_tokens = page_tokens;
    l->max_pages = max_pages;
    random_os(&l->key, sizeof(l->key));
    l->digests = mem_zalloc((size_t)max_pages + 1, sizeof(*l->digests));
    if (l->digests) st = ram_tier_create(&to, &l->tier);
    if (st != RD_OK) {
        ram_link_destroy(l);
        return st;
    }
    *out = l;
    return RD_OK;
}

void ram_link_destroy(struct ram_link *l)
{
    if (!l) return;
    ram_tier_destroy(l->tier);
    mem_free(l->names);
    mem_free(l->tokens);
    mem_free(l->digests);
    mem_free(l);
}

/* ---- names ---- */

static struct hash128 next_digest(const struct ram_link *l, struct hash128 before, const kv_key *tokens)
{
    uint8_t link[sizeof(struct hash128) + LIMIT_STORE_PAGE_TOKENS * sizeof(*tokens)];
    size_t n_bytes = l->page_tokens * sizeof(*tokens);

    memcpy(link, &before, sizeof(before));
    memcpy(link + sizeof(before), tokens, n_bytes);
    return sip_hash128(l->key, link, sizeof(before) + n_bytes);
}

void ram_link_chain(const struct ram_link *l, struct hash128 seed, const kv_key *keys, uint32_t n,
                    struct hash128 *digests)
{
    for (uint32_t i = 0; i < n; i++)
        digests[i] = next_digest(l, i ? digests[i - 1] : seed, keys + (size_t)i * l->page_tokens);
}

struct hash128 ram_link_seed(struct engine *e, const struct kv_space *space)
{
    return sip_hash128(e->o.ram->key, space, sizeof(*space));
}

struct hash128 ram_link_seed_of(struct engine *e, struct request *r)
{
    if (!r->ram.has_seed) r->ram.seed = ram_link_seed(e, &r->p.space);
    r->ram.has_seed = true;
    return r->ram.seed;
}

void ram_link_set_name(struct ram_link *l, kv_page page, struct hash128 digest, const uint32_t *tokens)
{
    l->names[page] = (struct page_name){digest, true};
    memcpy(l->tokens + (size_t)page * l->page_tokens, tokens, l->page_tokens * sizeof(*tokens));
}

void ram_link_name(struct engine *e, struct request *r)
{
    struct ram_link *l = e->o.ram;
    uint32_t n_full = e->o.ram ? r->seq.n_computed / l->page_tokens : 0;

    if (!l || !r->seq.cached || r->seq.state != KV_SEQ_RUNNABLE) return;
    for (uint32_t *i = &r->ram.n_named; *i < n_full; (*i)++) {
        const kv_key *keys = r->seq.keys + (size_t)*i * l->page_tokens;
        kv_page page = r->seq.pages[*i];

        r->ram.last = next_digest(l, *i ? r->ram.last : ram_link_seed_of(e, r), keys);
        if (!l->names[page].is_valid) ram_link_set_name(l, page, r->ram.last, keys);
    }
}

void ram_link_unname(struct ram_link *l, kv_page page)
{
    if (l) l->names[page].is_valid = false;
}

/* ---- leaving ---- */

static struct ram_leaving *filling(struct ram_link *l)
{
    return &l->leaving[(l->first_leaving + l->n_leaving) % RAM_LEAVE_BATCHES];
}

/* The oldest batch; false: it is still on its way. */
static bool finish_oldest(struct ram_link *l, bool wait)
{
    struct ram_leaving *b = &l->leaving[l->first_leaving];
    rd_status st =
        b->has_failed ? RD_E_IO : l->executor->move_end(l->executor->self, true, b->ticket, wait);

    if (st == RD_E_AGAIN) return false;
    for (uint32_t i = 0; i < b->n; i++) {
        ram_tier_release(l->tier, b->slots[i]);
        if (st != RD_OK) ram_tier_drop(l->tier, b->slots[i]);
    }
    *(st == RD_OK ? &l->counts.n_saved : &l->counts.n_failed) += b->n;
    l->counts.n_leaving -= b->n;
    kv_loan_end(l->cache, &b->loan);
    b->n = 0;
    l->first_leaving = (l->first_leaving + 1) % RAM_LEAVE_BATCHES;
    l->n_leaving--;
    return true;
}

/* What was collected begins to leave. One batch of the ring stays empty, to be filled. */
static void begin_leaving(struct ram_link *l)
{
    struct ram_leaving *b = filling(l);
    void *bytes[RAM_LEAVE_PAGES];

    if (b->n == 0) return;
    for (uint32_t i = 0; i < b->n; i++) bytes[i] = ram_tier_bytes(l->tier, b->slots[i]);
    kv_loan_begin(l->cache, &b->loan, b->pages, b->n);
    b->has_failed =
        l->executor->move_begin(l->executor->self, true, b->n, b->pages, bytes, &b->ticket) != RD_OK;
    l->counts.n_leaving += b->n;
    if (++l->n_leaving == RAM_LEAVE_BATCHES) finish_oldest(l, true);
}

/* radix_evict tells. */
static bool keep_page(void *arg, kv_page page)
{
    struct ram_link *l = arg;
    const struct page_name *name = &l->names[page];
    const uint32_t *tokens = l->tokens + (size_t)page * l->page_tokens;
    struct ram_leaving *b;
    uint32_t slot;

    if (!name->is_valid || page_pool_fill(l->pool, page) < l->page_tokens ||
        store_link_n_lossy(l->store, &page, l->page_tokens) > 0)
        return false;
    slot = ram_tier_find(l->tier, name->digest, tokens);
    if (slot != RAM_NO_SLOT) {                              /* it came from there: no copy */
        ram_tier_touch(l->tier, slot);
        return false;
    }
    slot = ram_tier_take(l->tier, name->digest, tokens);
    if (slot == RAM_NO_SLOT) return false;
    if (filling(l)->n == RAM_LEAVE_PAGES) begin_leaving(l);
    b = filling(l);
    page_pool_retain(l->pool, page);
    b->pages[b->n] = page;
    b->slots[b->n++] = slot;
    return true;
}

void ram_link_finish_leaving(struct engine *e)
{
    struct ram_link *l = e->o.ram;

    begin_leaving(l);
    while (l->n_leaving > 0) finish_oldest(l, true);
}

uint32_t engine_evict(struct engine *e, uint32_t n_pages)
{
    uint32_t n = radix_evict(e->cache.tree, n_pages);

    if (e->o.ram) ram_link_finish_leaving(e);
    return n;
}

void ram_link_make_room(struct engine *e)
{
    struct ram_link *l = e->o.ram;
    uint32_t want, have;

    if (!l) return;
    want = (e->o.max_running + e->o.max_chunk) / l->page_tokens + RAM_LEAVE_PAGES;
    want = u32_min(want, e->o.n_pages / ROOM_SHARE);
    have = page_pool_n_free(e->pool) + (uint32_t)l->counts.n_leaving;
    if (have >= want) return;
    (void)radix_evict(e->cache.tree, u32_min(want - have, ROOM_PER_STEP));
    begin_leaving(l);
}

void ram_link_collect(struct engine *e, uint64_t now)
{
    struct ram_link *l = e->o.ram;
    bool wait = e->n_live == 0;

    if (!l) return;
    while (l->n_leaving > 0 && finish_oldest(l, wait)) e->blocked = false;
    ram_load_collect(e, now, wait);
}

void ram_link_clear(struct engine *e)
{
    if (!e->o.ram) return;
    ram_link_finish_leaving(e);
    ram_load_collect(e, clock_now_ns(e->o.clock), true);
    ram_tier_clear(e->o.ram->tier);
}

/* ---- the engine ---- */

rd_status ram_link_begin(struct engine *e)
{
    struct ram_link *l = e->o.ram;

    if (!l) return RD_OK;
    assert(e->o.executor.move_begin && l->page_tokens == e->o.page_tokens);
    l->executor = &e->o.executor;
    l->pool = e->pool;
    l->cache = &e->cache;
    l->store = e->o.store;
    l->names = mem_zalloc(e->o.n_pages, sizeof(*l->names));
    l->tokens = mem_alloc((size_t)e->o.n_pages * l->page_tokens, sizeof(*l->tokens));
    if (!l->names || !l->tokens) return RD_E_NOMEM;
    radix_on_evict(e->cache.tree, keep_page, l);
    if (e->o.executor.pin) ram_tier_pin(l->tier, e->o.executor.pin, e->o.executor.self);
    return RD_OK;
}

void ram_link_let_go(struct engine *e)
{
    struct ram_link *l = e->o.ram;

    if (!l || !l->tokens) return;
    ram_link_clear(e);
    radix_on_evict(e->cache.tree, NULL, NULL);
    if (e->o.executor.pin) ram_tier_unpin(l->tier);
    mem_free(l->names);
    mem_free(l->tokens);
    l->names = NULL;
    l->tokens = NULL;
}

uint64_t ram_link_promised(const struct ram_link *l) { return l ? l->n_promised : 0; }

uint32_t ram_link_n_moving(const struct ram_link *l)
{
    return l ? (uint32_t)(l->counts.n_loading + l->counts.n_leaving) : 0;
}

struct ram_link_counts ram_link_get_counts(const struct ram_link *l)
{
    struct ram_tier_counts t = ram_tier_get_counts(l->tier);
    struct ram_link_counts c = l->counts;

    c.n_pages = t.n_pages;
    c.n_slots = t.n_slots;
    c.n_dropped = t.n_dropped;
    return c;
}
