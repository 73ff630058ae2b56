/* engine/names/cache_names.c - see the header. */
#include "engine/names/cache_names.h"
#include <stdlib.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/engine_state.h"
#include "engine/listener.h"
#include "engine/tiers/ram_link.h"
#include "engine/tiers/store_link.h"

#define TENANT_PART  4u   /* of names and their tokens, for one tenant */
#define SAVED_SHARE  4u   /* of the disk's budget, for all that is saved */
#define TENANT_SLOTS 256u /* tenants are told apart by this many remainders */
#define TOUCH_NS     1000000000ull
#define SAME_BLOCK   128u
#define LIST_TOKENS  262144u /* of texts that are looked at between two steps */

struct name_end {
    kv_key *keys;
    uint32_t n, n_common;
    uint64_t last_use;
};

struct cache_named {
    uint64_t id, hash, tenant, last_use;
    struct kv_space space;
    struct name_end *ends; /* [n_ends of cap_ends] */
    size_t cap_ends;
    uint32_t n_ends, n_running; /* n_running: requests that point here */
    bool is_saved, is_dropped;  /* is_dropped: among those that leave */
    char name[];
};

struct cache_names {
    struct cache_named **list, **leaving; /* [n of cap], [n_leaving of cap_leaving] */
    size_t cap, cap_leaving;
    uint32_t n, n_leaving;
    uint64_t n_made, n_bytes; /* n_bytes: of the tokens of all ends, those that leave included */
    uint64_t touched_ns;
    uint32_t at_name, at_end; /* touched next */
    uint64_t n_counted_pages; /* of saved ends, since this round began */
    struct cache_name_teller teller;
};

/* ---- names and their ends ---- */

static uint64_t bytes_of(uint32_t n_keys)
{
    return (uint64_t)n_keys * sizeof(kv_key);
}

static uint64_t hash_of(const struct kv_space *space, const char *name)
{
    return hash64_of(name, strlen(name)) ^ space->salt.low ^ (space->adapter.low * 0x9E3779B97F4A7C15u);
}

static uint32_t find(const struct cache_names *x, const struct kv_space *space, const char *name)
{
    uint64_t hash = hash_of(space, name);
    uint32_t i = 0;

    while (i < x->n && !(x->list[i]->hash == hash && kv_space_equal(&x->list[i]->space, space) &&
                         strcmp(x->list[i]->name, name) == 0))
        i++;
    return i;
}

static struct cache_named *by_id(const struct cache_names *x, uint64_t id)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (x->list[i]->id == id) return x->list[i];
    return NULL;
}

/* Blocks by memcmp, then one by one in the block that differs. */
static uint32_t n_same(const kv_key *a, const kv_key *b, uint32_t n)
{
    uint32_t i = 0;

    while (n - i >= SAME_BLOCK && memcmp(a + i, b + i, SAME_BLOCK * sizeof(*a)) == 0) i += SAME_BLOCK;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static void forget_end(struct cache_names *x, struct cache_named *c, uint32_t i)
{
    x->n_bytes -= bytes_of(c->ends[i].n);
    mem_free(c->ends[i].keys);
    c->n_ends--;
    memmove(c->ends + i, c->ends + i + 1, (c->n_ends - i) * sizeof(*c->ends));
}

static void free_named(struct cache_names *x, struct cache_named *c)
{
    while (c->n_ends > 0) forget_end(x, c, c->n_ends - 1);
    mem_free(c->ends);
    mem_free(c);
}

static void forget(struct cache_names *x, uint32_t i)
{
    free_named(x, x->list[i]);
    x->list[i] = x->list[--x->n];
}

/* What a tenant has of names and of tokens' bytes. */
static void tenant_has(const struct cache_names *x, uint64_t tenant, uint32_t *n_names, uint64_t *n_bytes,
                       uint32_t *n_saved)
{
    *n_names = *n_saved = 0;
    *n_bytes = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        if (x->list[i]->tenant != tenant) continue;
        ++*n_names;
        *n_saved += x->list[i]->is_saved;
        for (uint32_t k = 0; k < x->list[i]->n_ends; k++) *n_bytes += bytes_of(x->list[i]->ends[k].n);
    }
}

static bool may_go(const struct cache_named *c, const struct cache_named *keep)
{
    return c != keep && !c->is_saved && c->n_running == 0;
}

/* The one used least recently that may go: of this tenant's, or (any) of who has the most of those. */
static uint32_t least_used(const struct cache_names *x, const struct cache_named *keep, bool any, uint64_t tenant)
{
    uint32_t n_of[TENANT_SLOTS] = {0}, most = (uint32_t)(tenant % TENANT_SLOTS), best = UINT32_MAX;

    for (uint32_t i = 0; any && i < x->n; i++)
        if (may_go(x->list[i], keep)) n_of[x->list[i]->tenant % TENANT_SLOTS]++;
    for (uint32_t i = 0; any && i < TENANT_SLOTS; i++)
        if (n_of[i] > n_of[most]) most = i;
    for (uint32_t i = 0; i < x->n; i++) {
        const struct cache_named *c = x->list[i];

        if (!may_go(c, keep) || (any ? c->tenant % TENANT_SLOTS != most : c->tenant != tenant)) continue;
        if (best == UINT32_MAX || c->last_use < x->list[best]->last_use) best = i;
    }
    return best;
}

/* Room for one more name, or for that many bytes of tokens; false: nothing can go for it. */
static bool make_room(struct cache_names *x, const struct cache_named *keep, uint64_t tenant, uint32_t n_names,
                      uint64_t n_bytes)
{
    for (;;) {
        uint32_t n_own, n_saved, i;
        uint64_t n_own_bytes;
        bool own, any;

        tenant_has(x, tenant, &n_own, &n_own_bytes, &n_saved);
        own = n_own + n_names > LIMIT_CACHE_NAMES / TENANT_PART ||
              n_own_bytes + n_bytes > LIMIT_CACHE_NAME_BYTES / TENANT_PART;
        any = x->n + n_names > LIMIT_CACHE_NAMES || x->n_bytes + n_bytes > LIMIT_CACHE_NAME_BYTES;
        if (!own && !any) return true;
        i = least_used(x, keep, !own, tenant);
        if (i == UINT32_MAX) return false;
        forget(x, i);
    }
}

/* NULL: no room, or no memory. */
static struct cache_named *make(struct cache_names *x, const struct kv_space *space, const char *name, uint64_t tenant)
{
    size_t n = strlen(name) + 1;
    void *list = x->list;
    struct cache_named *c;

    if (!make_room(x, NULL, tenant, 1, 0)) return NULL;
    if (!mem_grow(&list, &x->cap, (size_t)x->n + 1, sizeof(struct cache_named *))) return NULL;
    x->list = list;
    c = mem_zalloc(1, sizeof(*c) + n);
    if (!c) return NULL;
    memcpy(c->name, name, n);
    c->id = ++x->n_made;
    c->hash = hash_of(space, name);
    c->space = *space;
    c->tenant = tenant;
    x->list[x->n++] = c;
    return c;
}

static bool is_before(const kv_key *a, uint32_t n_a, const kv_key *b, uint32_t n_b)
{
    uint32_t n = u32_min(n_a, n_b), same = n_same(a, b, n);

    return same < n ? a[same] < b[same] : n_a < n_b;
}

/* keys[0..n) become an end, in place of those that they go on from. NULL: they are not, for want of room. */
static struct name_end *add_end(struct cache_names *x, struct cache_named *c, const kv_key *keys, uint32_t n,
                                uint64_t now)
{
    uint32_t n_common = 0, oldest = 0, at = 0;
    void *ends = c->ends;
    kv_key *copy;

    for (uint32_t i = 0; i < c->n_ends; i++) {
        struct name_end *end = &c->ends[i];

        if (end->n < n || n_same(end->keys, keys, n) < n) continue;
        end->last_use = now; /* it is there, or ends inside */
        return end;
    }
    for (uint32_t i = c->n_ends; i-- > 0;) {
        if (c->ends[i].n >= n || n_same(c->ends[i].keys, keys, c->ends[i].n) < c->ends[i].n) continue;
        n_common = u32_max(n_common, c->ends[i].n_common);
        forget_end(x, c, i);
    }
    if (!c->is_dropped && !make_room(x, c, c->tenant, 0, bytes_of(n))) return NULL;
    if (c->n_ends == LIMIT_CACHE_ENDS) {
        for (uint32_t i = 1; i < c->n_ends; i++)
            if (c->ends[i].last_use < c->ends[oldest].last_use) oldest = i;
        forget_end(x, c, oldest);
    }
    if (!mem_grow(&ends, &c->cap_ends, (size_t)c->n_ends + 1, sizeof(*c->ends))) return NULL;
    c->ends = ends;
    copy = (kv_key *)(void *)mem_memdup(keys, n * sizeof(*keys));
    if (!copy) return NULL;
    while (at < c->n_ends && is_before(c->ends[at].keys, c->ends[at].n, copy, n)) at++;
    memmove(c->ends + at + 1, c->ends + at, (c->n_ends - at) * sizeof(*c->ends));
    x->n_bytes += bytes_of(n);
    c->ends[at] = (struct name_end){copy, n, n_common, now};
    c->n_ends++;
    return &c->ends[at];
}

/* ---- what requests tell ---- */

static void let_go(struct engine *e)
{
    struct cache_names *x = e->names;

    if (!x) return;
    while (x->n > 0) forget(x, x->n - 1);
    for (uint32_t i = 0; i < x->n_leaving; i++) free_named(x, x->leaving[i]);
    mem_free(x->list);
    mem_free(x->leaving);
    mem_free(x);
    e->names = NULL;
}

static rd_status begin(struct engine *e)
{
    e->names = mem_zalloc(1, sizeof(*e->names));
    return e->names ? RD_OK : RD_E_NOMEM;
}

static void admitted(struct engine *e, struct request *r)
{
    struct cache_names *x = e->names;
    uint32_t i;

    if (!r->name || r->named || !r->p.cached || !r->seq.cached) return;
    i = find(x, &r->p.space, r->name);
    r->named = i < x->n ? x->list[i] : make(x, &r->p.space, r->name, r->p.fair_key);
    if (!r->named) return;
    r->named->n_running++;
    r->named->last_use = clock_now_ns(e->o.clock);
}

static void ending(struct engine *e, struct request *r, bool is_kept)
{
    (void)e, (void)is_kept;
    r->n_at_end = r->seq.n_computed;
    if (r->named) r->named->n_running--; /* it stays until collect() at least */
}

/* keys[0..n) were one name's alone. */
static void shared(void *arg, uint64_t was, const kv_key *keys, uint32_t n)
{
    struct engine *e = arg;
    struct cache_named *c = by_id(e->names, was);

    for (uint32_t i = 0; c && i < c->n_ends; i++) {
        struct name_end *end = &c->ends[i];
        uint32_t same = n_same(end->keys, keys, u32_min(end->n, n));

        if (same == n || same == end->n) end->n_common = u32_max(end->n_common, same);
    }
}

static void note_common(struct engine *e, struct radix_node *root, const struct cache_named *c, struct name_end *end)
{
    uint32_t n_stored;

    end->n_common = u32_max(end->n_common, radix_n_common(e->cache.tree, root, end->keys, end->n, c->id, &n_stored));
}

static struct cache_name_end view_of(const struct cache_named *c, const struct name_end *end)
{
    return (struct cache_name_end){c->name, &c->space, c->tenant, end->keys, end->n, end->n_common};
}

static void tell_end(const struct cache_names *x, const struct cache_named *c, const struct name_end *end)
{
    struct cache_name_end view = view_of(c, end);

    if (c->is_saved && x->teller.end) x->teller.end(x->teller.arg, &view);
}

static void kept(struct engine *e, struct request *r)
{
    struct radix_node *root = root_of(e, r);
    uint32_t n = r->n_at_end;
    struct cache_named *c = r->named;
    struct name_end *end = c && n > 0 ? add_end(e->names, c, r->seq.keys, n, clock_now_ns(e->o.clock)) : NULL;
    const struct radix_claim claim = {
        .who = c ? c->id : RADIX_COMMON, .n_common = end ? end->n_common : 0, .shared = shared, .arg = e};

    if (!root || n == 0) return;
    if (c) c->last_use = clock_now_ns(e->o.clock);
    radix_claim(e->cache.tree, root, r->seq.keys, n, &claim);
    if (!end) return;
    note_common(e, root, c, end);
    if (!c->is_saved) return;
    radix_retain(e->cache.tree, root, r->seq.keys, n, RADIX_DAY);
    tell_end(e->names, c, end);
}

/* ---- dropping ---- */

/* What is its own goes, from every tier; what runs keeps what it uses. Returns the pages that became free. */
static uint64_t release(struct engine *e, struct cache_named *c)
{
    struct radix_node *root = engine_root_of(e, &c->space);
    struct store_text texts[LIMIT_CACHE_ENDS];
    uint64_t n_pages = 0;

    for (uint32_t i = 0; root && i < c->n_ends; i++) note_common(e, root, c, &c->ends[i]);
    for (uint32_t i = 0; i < c->n_ends; i++) {
        struct name_end *end = &c->ends[i];

        if (root) n_pages += radix_drop_claim(e->cache.tree, root, end->keys, end->n, c->id);
        ram_link_drop(e, &c->space, end->keys, end->n, end->n_common);
        texts[i] = (struct store_text){end->keys, end->n, end->n_common};
    }
    store_link_release(e, &c->space, texts, c->n_ends);
    if (n_pages > 0) e->blocked = false;
    return n_pages;
}

/* Names that were dropped while requests of them ran, once these have ended. */
static void collect(struct engine *e, uint64_t now)
{
    struct cache_names *x = e->names;

    (void)now;
    for (uint32_t i = x->n_leaving; i-- > 0;) {
        if (x->leaving[i]->n_running > 0) continue;
        (void)release(e, x->leaving[i]);
        free_named(x, x->leaving[i]);
        x->leaving[i] = x->leaving[--x->n_leaving];
    }
}

/* Out of the list; with requests that run, among those that leave, and else gone. */
static void take_out(struct cache_names *x, uint32_t i)
{
    struct cache_named *c = x->list[i];

    x->list[i] = x->list[--x->n];
    if (c->n_running == 0) {
        free_named(x, c);
        return;
    }
    c->is_dropped = true;
    c->is_saved = false;
    x->leaving[x->n_leaving++] = c;
}

/* Room among those that leave, so that taking one out cannot fail. */
static bool may_leave(struct cache_names *x, uint32_t n)
{
    void *leaving = x->leaving;
    bool ok = mem_grow(&leaving, &x->cap_leaving, (size_t)x->n_leaving + n, sizeof(struct cache_named *));

    x->leaving = leaving;
    return ok;
}

static void describe(struct engine *e, struct cache_named *c, struct cache_name_info *out)
{
    struct radix_node *root = engine_root_of(e, &c->space);

    *out = (struct cache_name_info){.name = c->name,
                                    .n_ends = c->n_ends,
                                    .n_running = c->n_running,
                                    .last_use_ns = c->last_use,
                                    .is_saved = c->is_saved};
    for (uint32_t i = 0; i < c->n_ends; i++) {
        const struct name_end *end = &c->ends[i];
        uint32_t n_before = 0, n_stored = 0, n_disk, n_own;

        if (i > 0) n_before = n_same(end->keys, end[-1].keys, u32_min(end->n, end[-1].n)); /* was told with that one */
        n_own = root ? radix_n_common(e->cache.tree, root, end->keys, end->n, c->id, &n_stored) : 0;
        n_own = u32_max(u32_max(n_own, end->n_common), n_before);
        n_disk = store_link_n_stored(e, NULL, 0, &c->space, end->keys, end->n, 0);
        out->n_tokens += n_stored - u32_min(n_stored, n_before);
        out->n_own += n_stored - u32_min(n_stored, n_own);
        out->n_disk += n_disk - u32_min(n_disk, n_before);
    }
}

rd_status cache_names_drop(struct engine *e, const struct kv_space *space, const char *name,
                           struct cache_name_info *info, uint64_t *n_pages)
{
    struct cache_names *x = e->names;
    uint32_t i = find(x, space, name);

    *n_pages = 0;
    if (i == x->n) return RD_E_NOT_FOUND;
    if (!may_leave(x, 1)) return RD_E_NOMEM;
    if (info) describe(e, x->list[i], info), info->name = NULL;
    if (x->list[i]->is_saved && x->teller.dropped) x->teller.dropped(x->teller.arg, space, name);
    *n_pages = release(e, x->list[i]);
    take_out(x, i);
    return RD_OK;
}

void cache_names_forget(struct engine *e, const struct kv_space *space, const char *name)
{
    uint32_t i = find(e->names, space, name);

    if (i < e->names->n && may_leave(e->names, 1)) take_out(e->names, i);
}

void cache_names_clear(struct engine *e)
{
    struct cache_names *x = e->names;

    if (!may_leave(x, x->n)) return;
    while (x->n > 0) take_out(x, x->n - 1);
}

/* ---- listing and saving ---- */

static int used_last(const void *a, const void *b)
{
    const struct cache_named *const *x = a, *const *y = b;

    return (*x)->last_use < (*y)->last_use ? 1 : (*x)->last_use > (*y)->last_use ? -1 : strcmp((*x)->name, (*y)->name);
}

rd_status cache_names_begin(struct engine *e, const struct kv_space *space, struct cache_names_cursor *cursor)
{
    struct cache_names *x = e->names;
    struct cache_named **own = mem_alloc((size_t)x->n + 1, sizeof(*own));

    *cursor = (struct cache_names_cursor){.ids = mem_alloc((size_t)x->n + 1, sizeof(*cursor->ids))};
    if (!own || !cursor->ids) {
        mem_free(own);
        cache_names_end(cursor);
        return RD_E_NOMEM;
    }
    for (uint32_t i = 0; i < x->n; i++)
        if (kv_space_equal(&x->list[i]->space, space)) own[cursor->n++] = x->list[i];
    qsort(own, cursor->n, sizeof(*own), used_last);
    for (uint32_t i = 0; i < cursor->n; i++) cursor->ids[i] = own[i]->id;
    mem_free(own);
    return RD_OK;
}

bool cache_names_next(struct engine *e, struct cache_names_cursor *cursor,
                      void (*fn)(void *arg, const struct cache_name_info *info), void *arg)
{
    uint64_t n_tokens = 0;

    while (cursor->at < cursor->n && n_tokens < LIST_TOKENS) {
        struct cache_named *c = by_id(e->names, cursor->ids[cursor->at++]);
        struct cache_name_info info;

        if (!c) continue; /* it went meanwhile */
        describe(e, c, &info);
        for (uint32_t i = 0; i < c->n_ends; i++) n_tokens += c->ends[i].n;
        fn(arg, &info);
    }
    return cursor->at < cursor->n;
}

void cache_names_end(struct cache_names_cursor *cursor)
{
    mem_free(cursor->ids);
    *cursor = (struct cache_names_cursor){.ids = NULL};
}

rd_status cache_names_list(struct engine *e, const struct kv_space *space,
                           void (*fn)(void *arg, const struct cache_name_info *info), void *arg)
{
    struct cache_names_cursor cursor;
    rd_status st = cache_names_begin(e, space, &cursor);

    while (st == RD_OK && cache_names_next(e, &cursor, fn, arg)) {}
    cache_names_end(&cursor);
    return st;
}

static uint64_t n_whole_pages(const struct engine *e, const struct cache_named *c)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->n_ends; i++) n += c->ends[i].n / e->o.page_tokens;
    return n;
}

/* What saved names may have on disk. */
static uint64_t saved_pages_top(const struct engine *e)
{
    struct store_counts c;

    page_store_get_counts(store_link_store(e->o.store), &c);
    return c.cap_bytes / SAVED_SHARE / e->o.executor.page_bytes;
}

/* Stages what the disk does not have of an end; the pages that had no room. */
static uint32_t save_end(struct engine *e, struct radix_node *root, const struct cache_named *c,
                         const struct name_end *end, uint64_t *n_missing)
{
    struct radix_match m = radix_match(e->cache.tree, root, end->keys, end->n, clock_now_ns(e->o.clock));
    kv_page *pages = mem_alloc(end->n / e->o.page_tokens + 1, sizeof(*pages));
    const struct radix_node *node = m.node;
    uint32_t n_left = m.n_ready / e->o.page_tokens;

    while (radix_node_start(node) >= m.n_ready && radix_node_parent(node)) node = radix_node_parent(node);
    if (pages) {
        radix_path_pages(e->cache.tree, node, m.n_ready, pages);
        n_left = store_link_save_path(e, &c->space, end->keys, pages, m.n_ready, n_missing);
        radix_retain(e->cache.tree, root, end->keys, m.n_ready, RADIX_DAY);
    }
    mem_free(pages);
    return n_left;
}

rd_status cache_names_save(struct engine *e, const struct kv_space *space, const char *name,
                           struct cache_name_info *info, uint32_t *n_left)
{
    struct cache_names *x = e->names;
    uint32_t i = find(x, space, name), n_names, n_saved;
    uint64_t n_bytes, n_pages = 0, n_missing = 0;
    struct store_counts disk;
    struct cache_named *c = i < x->n ? x->list[i] : NULL;
    struct radix_node *root;

    *n_left = 0;
    if (!c) return RD_E_NOT_FOUND;
    if (!e->o.store) return RD_E_UNSUPPORTED;
    if (!c->is_saved) {
        tenant_has(x, c->tenant, &n_names, &n_bytes, &n_saved);
        if (n_saved >= LIMIT_SAVED_NAMES) return RD_E_LIMIT;
        for (uint32_t k = 0; k < x->n; k++)
            if (x->list[k]->is_saved || k == i) n_pages += n_whole_pages(e, x->list[k]);
        if (n_pages > saved_pages_top(e)) return RD_E_LIMIT;
    }
    root = engine_root_of(e, space);
    if (!root) return RD_E_NOMEM;
    page_store_get_counts(store_link_store(e->o.store), &disk);
    for (uint32_t k = 0; k < c->n_ends && *n_left == 0; k++) *n_left += save_end(e, root, c, &c->ends[k], &n_missing);
    if (!c->is_saved) {
        c->is_saved = true;
        for (uint32_t k = 0; k < c->n_ends; k++) tell_end(x, c, &c->ends[k]);
    }
    if (!info) return RD_OK;
    describe(e, c, info);
    info->name = NULL;
    info->n_missing = n_missing;
    info->n_dropped = disk.n_dropped;
    return RD_OK;
}

/* One end of a saved name counts as used on disk, the next one a second later; a round's first ones if not all fit. */
static void touch_next(struct engine *e, uint64_t now)
{
    struct cache_names *x = e->names;

    if (!e->o.store || x->n == 0 || now - x->touched_ns < TOUCH_NS) return;
    x->touched_ns = now;
    for (uint32_t tried = 0; tried <= x->n; tried++) {
        const struct cache_named *c;
        const struct name_end *end;

        if (x->at_name >= x->n) {
            x->at_name = 0;
            x->n_counted_pages = 0;
        }
        c = x->list[x->at_name];
        if (!c->is_saved || x->at_end >= c->n_ends) {
            x->at_name++;
            x->at_end = 0;
            continue;
        }
        end = &c->ends[x->at_end++];
        x->n_counted_pages += end->n / e->o.page_tokens;
        if (x->n_counted_pages <= saved_pages_top(e)) (void)store_link_touch(e, &c->space, end->keys, end->n);
        return;
    }
}

static void turn(struct engine *e, uint64_t now)
{
    collect(e, now);
    touch_next(e, now);
}

/* ---- over a restart ---- */

void cache_names_tell(struct engine *e, const struct cache_name_teller *teller)
{
    e->names->teller = *teller;
}

void cache_names_each_saved(struct engine *e, void (*fn)(void *arg, const struct cache_name_end *end), void *arg)
{
    const struct cache_names *x = e->names;

    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t k = 0; x->list[i]->is_saved && k < x->list[i]->n_ends; k++) {
            struct cache_name_end view = view_of(x->list[i], &x->list[i]->ends[k]);

            fn(arg, &view);
        }
}

rd_status cache_names_restore(struct engine *e, const struct cache_name_end *end)
{
    struct cache_names *x = e->names;
    uint32_t i = find(x, end->space, end->name);
    struct cache_named *c = i < x->n ? x->list[i] : make(x, end->space, end->name, end->tenant);
    struct name_end *own = c ? add_end(x, c, end->keys, end->n, 0) : NULL;

    if (!own) return RD_E_NOMEM;
    own->n_common = u32_max(own->n_common, u32_min(end->n_common, own->n));
    c->last_use = clock_now_ns(e->o.clock); /* when it was used last is not known: its age begins now */
    c->is_saved = true;
    return RD_OK;
}

/* ---- invariants ---- */

static rd_status check_named(const struct engine *e, const struct cache_named *c, uint64_t *n_bytes,
                             struct rd_error *err)
{
    uint32_t n_running = 0;

    for (uint32_t i = 0; i < e->n_live; i++) n_running += e->live[i]->named == c;
    for (const struct request *r = e->queue_head; r; r = r->next) n_running += r->named == c;
    if (n_running != c->n_running)
        return error_set(err, RD_E_INTERNAL, "a name has %u requests, %u said", n_running, c->n_running);
    if (c->n_ends > LIMIT_CACHE_ENDS) return error_set(err, RD_E_INTERNAL, "a name has %u ends", c->n_ends);
    for (uint32_t i = 0; i < c->n_ends; i++) {
        if (c->ends[i].n_common > c->ends[i].n || c->ends[i].n == 0)
            return error_set(err, RD_E_INTERNAL, "an end of %u tokens has %u in common with others", c->ends[i].n,
                             c->ends[i].n_common);
        if (i > 0 && !is_before(c->ends[i - 1].keys, c->ends[i - 1].n, c->ends[i].keys, c->ends[i].n))
            return error_set(err, RD_E_INTERNAL, "the ends of a name are not in order");
        *n_bytes += bytes_of(c->ends[i].n);
    }
    return RD_OK;
}

static rd_status check(const struct engine *e, struct rd_error *err)
{
    const struct cache_names *x = e->names;
    uint64_t n_bytes = 0;
    rd_status st = RD_OK;

    for (uint32_t i = 0; st == RD_OK && i < x->n; i++)
        st = x->list[i]->is_dropped ? error_set(err, RD_E_INTERNAL, "a name that was dropped is listed")
                                    : check_named(e, x->list[i], &n_bytes, err);
    for (uint32_t i = 0; st == RD_OK && i < x->n_leaving; i++) st = check_named(e, x->leaving[i], &n_bytes, err);
    if (st == RD_OK && n_bytes != x->n_bytes)
        st = error_set(err, RD_E_INTERNAL, "names have %llu bytes of tokens, %llu counted", (unsigned long long)n_bytes,
                       (unsigned long long)x->n_bytes);
    if (st == RD_OK && x->n > LIMIT_CACHE_NAMES) st = error_set(err, RD_E_INTERNAL, "%u names", x->n);
    return st;
}

const struct engine_listener listens_names = {.begin = begin,
                                              .let_go = let_go,
                                              .check = check,
                                              .collect = turn,
                                              .admitted = admitted,
                                              .ending = ending,
                                              .kept = kept};
