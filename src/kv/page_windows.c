/* kv/page_windows.c - the windows of pages: a stack of free ones, and two lists of those kept, the least recently used first. */
#include <assert.h>
#include "base/error.h"
#include "base/mem.h"
#include "kv/page_pool_state.h"

rd_status page_pool_make_windows(struct page_pool *pool, uint32_t n_windows)
{
    struct windows w = {.kept = {{KV_NO_PAGE, KV_NO_PAGE}, {KV_NO_PAGE, KV_NO_PAGE}},
                        .counts = {.n_total = n_windows, .n_free = n_windows}};

    assert(!pool->windows.of && pool->n_free == pool->n_pages && n_windows > 0 && n_windows <= pool->n_pages);
    w.of = mem_alloc(pool->n_pages, sizeof(*w.of));
    w.free_ids = mem_alloc(n_windows, sizeof(*w.free_ids));
    w.records = mem_zalloc(pool->n_pages, sizeof(*w.records));
    if (!w.of || !w.free_ids || !w.records) {
        mem_free(w.of);
        mem_free(w.free_ids);
        mem_free(w.records);
        return RD_E_NOMEM;
    }
    for (uint32_t i = 0; i < pool->n_pages; i++) w.of[i] = KV_NO_PAGE;
    for (uint32_t i = 0; i < n_windows; i++) w.free_ids[i] = n_windows - 1 - i;
    pool->windows = w;
    return RD_OK;
}

static void keep(struct windows *w, kv_page id)
{
    struct window_record *rec = &w->records[id];
    struct kept_list *list = &w->kept[rec->is_likely];

    rec->prev = list->tail;
    rec->next = KV_NO_PAGE;
    *(rec->prev != KV_NO_PAGE ? &w->records[rec->prev].next : &list->head) = id;
    list->tail = id;
    w->counts.n_kept++;
}

static void unkeep(struct windows *w, kv_page id)
{
    const struct window_record *rec = &w->records[id];
    struct kept_list *list = &w->kept[rec->is_likely];

    *(rec->prev != KV_NO_PAGE ? &w->records[rec->prev].next : &list->head) = rec->next;
    *(rec->next != KV_NO_PAGE ? &w->records[rec->next].prev : &list->tail) = rec->prev;
    w->counts.n_kept--;
}

/* Of a page whose window nobody uses. */
static void free_window(struct windows *w, kv_page id)
{
    unkeep(w, id);
    w->free_ids[w->counts.n_free++] = w->of[id];
    w->of[id] = KV_NO_PAGE;
}

static void drop_kept(struct windows *w)
{
    free_window(w, w->kept[w->kept[0].head == KV_NO_PAGE].head);
    w->counts.n_dropped++;
}

rd_status page_pool_open_windows(struct page_pool *pool, uint32_t n, const kv_page *ids)
{
    struct windows *w = &pool->windows;

    thread_owner_check(&pool->owner);
    if (n > w->counts.n_free + w->counts.n_kept) return RD_E_NO_PAGES;
    while (n > w->counts.n_free) drop_kept(w);
    for (uint32_t i = 0; i < n; i++) {
        assert(pool->records[ids[i]].n_holders > 0 && w->of[ids[i]] == KV_NO_PAGE);
        w->of[ids[i]] = w->free_ids[--w->counts.n_free];
        w->records[ids[i]] = (struct window_record){.n_users = 1};
        w->counts.n_used++;
    }
    return RD_OK;
}

void page_pool_use_window(struct page_pool *pool, kv_page id)
{
    struct windows *w = &pool->windows;

    thread_owner_check(&pool->owner);
    assert(w->of[id] != KV_NO_PAGE);
    if (w->records[id].n_users++ > 0) return;
    unkeep(w, id);
    w->counts.n_used++;
}

void page_pool_leave_window(struct page_pool *pool, kv_page id)
{
    struct windows *w = &pool->windows;

    thread_owner_check(&pool->owner);
    assert(w->of[id] != KV_NO_PAGE && w->records[id].n_users > 0);
    if (--w->records[id].n_users > 0) return;
    w->counts.n_used--;
    keep(w, id);
}

void page_pool_close_window(struct page_pool *pool, kv_page id)
{
    assert(page_pool_window_users(pool, id) == 1);
    page_pool_leave_window(pool, id);
    free_window(&pool->windows, id);
}

void page_pool_favour_window(struct page_pool *pool, kv_page id)
{
    assert(pool->windows.of[id] != KV_NO_PAGE && pool->windows.records[id].n_users > 0);
    pool->windows.records[id].is_likely = true;
}

void page_pool_pass_window(struct page_pool *pool, kv_page from, kv_page to)
{
    struct windows *w = &pool->windows;

    thread_owner_check(&pool->owner);
    assert(w->of[from] != KV_NO_PAGE && w->records[from].n_users == 1);
    assert(pool->records[to].n_holders > 0 && w->of[to] == KV_NO_PAGE);
    w->of[to] = w->of[from];
    w->records[to] = w->records[from];
    w->of[from] = KV_NO_PAGE;
}

uint32_t page_pool_window(const struct page_pool *pool, kv_page id)
{
    assert(id < pool->n_pages);
    return pool->windows.of ? pool->windows.of[id] : KV_NO_PAGE;
}

uint32_t page_pool_window_users(const struct page_pool *pool, kv_page id)
{
    return page_pool_window(pool, id) == KV_NO_PAGE ? 0 : pool->windows.records[id].n_users;
}

const uint32_t *page_pool_windows(const struct page_pool *pool)
{
    return pool->windows.of;
}

struct window_counts page_pool_window_counts(const struct page_pool *pool)
{
    return pool->windows.counts;
}

void page_windows_release(struct page_pool *pool, kv_page id)
{
    if (page_pool_window(pool, id) == KV_NO_PAGE) return;
    assert(pool->windows.records[id].n_users == 0);
    free_window(&pool->windows, id);
}

void page_windows_destroy(struct page_pool *pool)
{
    mem_free(pool->windows.of);
    mem_free(pool->windows.free_ids);
    mem_free(pool->windows.records);
}

rd_status page_windows_check(const struct page_pool *pool, struct rd_error *err)
{
    const struct windows *w = &pool->windows;
    const struct window_counts *c = &w->counts;
    uint32_t n_kept = 0, n_used = 0, n_listed = 0;
    bool *seen, ok = true;

    if (!w->of) return RD_OK;
    seen = mem_zalloc(c->n_total, sizeof(*seen));
    if (!seen) return error_set(err, RD_E_NOMEM, "no memory to check");
    for (uint32_t i = 0; ok && i < c->n_free; i++) {
        ok = w->free_ids[i] < c->n_total && !seen[w->free_ids[i]];
        if (ok) seen[w->free_ids[i]] = true;
    }
    for (uint32_t id = 0; ok && id < pool->n_pages; id++) {
        if (w->of[id] == KV_NO_PAGE) continue;
        ok = w->of[id] < c->n_total && !seen[w->of[id]] && pool->records[id].n_holders > 0;
        if (ok) seen[w->of[id]] = true;
        if (w->records[id].n_users > 0)
            n_used++;
        else
            n_kept++;
    }
    for (uint32_t i = 0; ok && i < 2; i++) {
        kv_page prev = KV_NO_PAGE, id = w->kept[i].head;

        for (; ok && id != KV_NO_PAGE; prev = id, id = w->records[id].next, n_listed++)
            ok = w->of[id] != KV_NO_PAGE && w->records[id].n_users == 0 && w->records[id].prev == prev &&
                 w->records[id].is_likely == (i == 1);
        ok = ok && prev == w->kept[i].tail;
    }
    mem_free(seen);
    if (ok && n_used == c->n_used && n_kept == c->n_kept && n_listed == n_kept &&
        c->n_free + n_kept + n_used == c->n_total)
        return RD_OK;
    return error_set(err, RD_E_INTERNAL, "windows free %u kept %u used %u of %u; recounted kept %u, listed %u, used %u",
                     c->n_free, c->n_kept, c->n_used, c->n_total, n_kept, n_listed, n_used);
}
