/* engine/tiers/ram_link.c - names of pages, and pages that leave the device. */
#include "engine/tiers/ram_link.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/listener.h"
#include "engine/tiers/ram_link_state.h"
#include "engine/tiers/store_link.h"

#define ROOM_SHARE    8u  /* of all pages at most this part is kept free by leaving ahead */
#define ROOM_PER_STEP 64u /* pages that begin to leave ahead in one step: 3 ms of the bus for an 8B model */

/* ---- life ---- */

rd_status ram_link_create(uint64_t n_bytes, uint64_t page_bytes, uint32_t page_tokens, uint32_t max_pages, bool thread,
                          struct ram_link **out)
{
    struct ram_tier_options to = {.n_bytes = u64_max(n_bytes, page_bytes),
                                  .page_bytes = page_bytes,
                                  .page_tokens = page_tokens,
                                  .thread = thread};
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

/* r's pages that are full get names. */
static void name_pages(struct engine *e, struct request *r)
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

static void name_all(struct engine *e, uint64_t now)
{
    (void)now;
    for (uint32_t i = 0; e->o.ram && i < e->plan.batch.n_runs; i++)
        if (e->plan.run_request[i]) name_pages(e, e->plan.run_request[i]);
}

static void name_last(struct engine *e, struct request *r, bool is_kept)
{
    if (is_kept && r->state == REQUEST_LIVE) name_pages(e, r);
}

static void begin_anew(struct engine *e, struct request *r)
{
    (void)e;
    r->ram.n_named = 0; /* other pages than before it was preempted */
}

static void unname(struct engine *e, kv_page page)
{
    if (e->o.ram) e->o.ram->names[page].is_valid = false;
}

static void unname_copy(struct engine *e, kv_page to, kv_page from)
{
    (void)from;
    unname(e, to);
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
    rd_status st = b->has_failed ? RD_E_IO : l->executor->move_end(l->executor->self, true, b->ticket, wait);

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
    kv_loan_begin_leaving(l->cache, &b->loan, b->pages, b->n);
    b->has_failed = l->executor->move_begin(l->executor->self, true, b->n, b->pages, bytes, &b->ticket) != RD_OK;
    l->counts.n_leaving += b->n;
    if (++l->n_leaving == RAM_LEAVE_BATCHES) finish_oldest(l, true);
}

/* The copy in the tier has all that the page has. */
static bool is_as_good(const struct ram_link *l, uint32_t slot, kv_page page)
{
    return page_pool_window(l->pool, page) == KV_NO_PAGE ||
           executor_has_window(l->executor, ram_tier_bytes(l->tier, slot));
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
    if (slot != RAM_NO_SLOT && (ram_tier_is_held(l->tier, slot) || is_as_good(l, slot, page))) {
        ram_tier_touch(l->tier, slot); /* it came from there: no copy */
        return false;
    }
    if (slot != RAM_NO_SLOT) ram_tier_drop(l->tier, slot);
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

    if (!l) return;
    begin_leaving(l);
    while (l->n_leaving > 0) finish_oldest(l, true);
}

/* Pages for the next steps leave while this one runs. */
static void make_room(struct engine *e)
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

/* Pages that have left are free, loads that are done are attached; where nothing runs, waits for both. */
static void collect(struct engine *e, uint64_t now)
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

static rd_status begin(struct engine *e)
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

static void let_go(struct engine *e)
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

static uint64_t promised(const struct engine *e)
{
    return e->o.ram ? e->o.ram->n_promised : 0;
}

static uint32_t n_moving(const struct engine *e)
{
    return e->o.ram ? (uint32_t)(e->o.ram->counts.n_loading + e->o.ram->counts.n_leaving) : 0;
}

static bool is_moving(const struct engine *e)
{
    return n_moving(e) > 0;
}

static void condemn(struct engine *e, struct request *r)
{
    (void)r; /* what is there has no order of namespaces */
    ram_link_clear(e);
}

static void tell_usage(struct engine *e, struct request *r)
{
    r->usage.n_ram = u32_min(r->ram.to, r->usage.n_cached) - u32_min(r->ram.from, r->usage.n_cached);
    e->stats.prompt_ram += r->usage.n_ram;
}

static void gather(const struct engine *e, struct engine_stats *s)
{
    struct ram_tier_counts t;

    if (!e->o.ram) return;
    t = ram_tier_get_counts(e->o.ram->tier);
    s->ram = e->o.ram->counts;
    s->ram.n_pages = t.n_pages;
    s->ram.n_slots = t.n_slots;
    s->ram.n_dropped = t.n_dropped;
}

const struct engine_listener listens_ram = {
    .begin = begin,
    .let_go = let_go,
    .gather = gather,
    .collect = collect,
    .before_step = make_room,
    .wait = ram_load_wait,
    .admitted = begin_anew,
    .committed = name_all,
    .prompt_known = tell_usage,
    .preempting = name_pages,
    .ending = name_last,
    .left = ram_load_leave,
    .page_begun = unname,
    .page_copied = unname_copy,
    .evicted = ram_link_finish_leaving,
    .cleared = ram_link_clear,
    .condemned = condemn,
    .promised = promised,
    .n_out = n_moving,
    .must_turn = is_moving,
};
