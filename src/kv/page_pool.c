/* kv/page_pool.c - a stack of free ids beside one record per page; the counts by state move with every change. */
#include "kv/page_pool.h"
#include <assert.h>
#include "base/error.h"
#include "base/mem.h"
#include "kv/page_pool_state.h"

/* The counter that a page in this condition is counted in: the order of the tests is the precedence of the states. */
static uint32_t *counter_of(struct page_counts *counts, const struct page_record *rec)
{
    if (rec->n_holders == 0) return &counts->n_free;
    if (rec->quarantined) return &counts->n_quarantined;
    if (rec->n_writers > 0) return &counts->n_pending;
    if (rec->n_pins > 0) return &counts->n_locked;
    return &counts->n_ready;
}

/* Every change of a record stands between these two. */
static struct page_record *begin_change(struct page_pool *pool, kv_page id)
{
    thread_owner_check(&pool->owner);
    assert(id < pool->n_pages);
    (*counter_of(&pool->counts, &pool->records[id]))--;
    return &pool->records[id];
}

static void end_change(struct page_pool *pool, const struct page_record *rec)
{
    (*counter_of(&pool->counts, rec))++;
}

rd_status page_pool_create(uint32_t n_pages, uint32_t page_tokens, struct page_pool **out)
{
    struct page_pool *pool = mem_zalloc(1, sizeof(*pool));

    assert(out && n_pages > 0 && n_pages < KV_NO_PAGE && page_tokens > 0 && (page_tokens & (page_tokens - 1)) == 0);
    if (!pool) goto fail;
    pool->free_ids = mem_zalloc(n_pages, sizeof(*pool->free_ids));
    pool->records = mem_zalloc(n_pages, sizeof(*pool->records));
    if (!pool->free_ids || !pool->records) goto fail;

    pool->n_pages = pool->n_free = n_pages;
    pool->page_tokens = page_tokens;
    pool->counts = (struct page_counts){.n_total = n_pages, .n_free = n_pages};
    for (uint32_t i = 0; i < n_pages; i++) pool->free_ids[i] = n_pages - 1 - i; /* page 0 leaves first */
    *out = pool;
    return RD_OK;

fail:
    page_pool_destroy(pool);
    return RD_E_NOMEM;
}

void page_pool_hand_over(struct page_pool *pool)
{
    thread_owner_release(&pool->owner);
}

void page_pool_destroy(struct page_pool *pool)
{
    if (!pool) return;
    assert(pool->n_free == pool->n_pages);
    mem_free(pool->free_ids);
    mem_free(pool->records);
    page_windows_destroy(pool);
    mem_free(pool);
}

rd_status page_pool_take(struct page_pool *pool, uint32_t n, kv_page *ids)
{
    thread_owner_check(&pool->owner);
    if (n > pool->n_free) return RD_E_NO_PAGES;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = pool->free_ids[--pool->n_free];
        struct page_record *rec = begin_change(pool, ids[i]);
        *rec = (struct page_record){.n_holders = 1};
        end_change(pool, rec);
    }
    return RD_OK;
}

void page_pool_on_free(struct page_pool *pool, void (*fn)(void *arg, kv_page id), void *arg)
{
    pool->on_free = fn;
    pool->on_free_arg = arg;
}

void page_pool_note_cut(struct page_pool *pool, kv_page id)
{
    if (pool->on_free) pool->on_free(pool->on_free_arg, id);
}

void page_pool_retain(struct page_pool *pool, kv_page id)
{
    struct page_record *rec = begin_change(pool, id);
    assert(rec->n_holders > 0);
    rec->n_holders++;
    end_change(pool, rec);
}

void page_pool_release(struct page_pool *pool, kv_page id)
{
    struct page_record *rec = begin_change(pool, id);
    assert(rec->n_holders > 0); /* a double release is our mistake */
    if (--rec->n_holders == 0) {
        assert(rec->n_writers == 0 && rec->n_pins == 0);
        rec->quarantined = false;
        rec->fill = 0;
        page_windows_release(pool, id);
        pool->free_ids[pool->n_free++] = id;
        if (pool->on_free) pool->on_free(pool->on_free_arg, id);
    }
    end_change(pool, rec);
}

void page_pool_add_writer(struct page_pool *pool, kv_page id)
{
    struct page_record *rec = begin_change(pool, id);
    assert(rec->n_writers < rec->n_holders);
    rec->n_writers++;
    end_change(pool, rec);
}

void page_pool_drop_writer(struct page_pool *pool, kv_page id)
{
    struct page_record *rec = begin_change(pool, id);
    assert(rec->n_writers > 0);
    rec->n_writers--;
    end_change(pool, rec);
}

void page_pool_pin(struct page_pool *pool, kv_page id)
{
    struct page_record *rec = begin_change(pool, id);
    assert(rec->n_pins < rec->n_holders);
    rec->n_pins++;
    end_change(pool, rec);
}

void page_pool_unpin(struct page_pool *pool, kv_page id)
{
    struct page_record *rec = begin_change(pool, id);
    assert(rec->n_pins > 0);
    rec->n_pins--;
    end_change(pool, rec);
}

void page_pool_quarantine(struct page_pool *pool, kv_page id)
{
    struct page_record *rec = begin_change(pool, id);
    assert(rec->n_holders > 0);
    rec->quarantined = true;
    end_change(pool, rec);
}

uint32_t page_pool_fill(const struct page_pool *pool, kv_page id)
{
    assert(id < pool->n_pages);
    return pool->records[id].fill;
}

void page_pool_set_fill(struct page_pool *pool, kv_page id, uint32_t n_rows)
{
    thread_owner_check(&pool->owner);
    assert(id < pool->n_pages && pool->records[id].n_holders > 0 && n_rows <= pool->page_tokens);
    pool->records[id].fill = n_rows;
}

uint32_t page_pool_holders(const struct page_pool *pool, kv_page id)
{
    assert(id < pool->n_pages);
    return pool->records[id].n_holders;
}

uint32_t page_pool_writers(const struct page_pool *pool, kv_page id)
{
    assert(id < pool->n_pages);
    return pool->records[id].n_writers;
}

uint32_t page_pool_pins(const struct page_pool *pool, kv_page id)
{
    assert(id < pool->n_pages);
    return pool->records[id].n_pins;
}

uint32_t page_pool_page_tokens(const struct page_pool *pool)
{
    return pool->page_tokens;
}

uint32_t page_pool_n_free(const struct page_pool *pool)
{
    return pool->n_free;
}

struct page_counts page_pool_counts(const struct page_pool *pool)
{
    return pool->counts;
}

rd_status page_pool_check(const struct page_pool *pool, struct rd_error *err)
{
    const struct page_counts *have = &pool->counts;
    struct page_counts seen = {.n_total = pool->n_pages};

    for (uint32_t id = 0; id < pool->n_pages; id++) {
        const struct page_record *rec = &pool->records[id];
        (*counter_of(&seen, rec))++;
        if (rec->n_writers > rec->n_holders || rec->n_pins > rec->n_holders)
            return error_set(err, RD_E_INTERNAL, "page %u: %u holders, %u writers, %u pins", id, rec->n_holders,
                             rec->n_writers, rec->n_pins);
        if (rec->fill > pool->page_tokens)
            return error_set(err, RD_E_INTERNAL, "page %u: fill %u of %u", id, rec->fill, pool->page_tokens);
        if (rec->n_holders == 0 && (rec->fill > 0 || rec->quarantined))
            return error_set(err, RD_E_INTERNAL, "page %u: free, but has fill %u", id, rec->fill);
    }
    if (seen.n_free != have->n_free || seen.n_free != pool->n_free || seen.n_ready != have->n_ready ||
        seen.n_locked != have->n_locked || seen.n_pending != have->n_pending ||
        seen.n_quarantined != have->n_quarantined)
        return error_set(err, RD_E_INTERNAL,
                         "pages free %u ready %u locked %u pending %u quarantined %u, recounted %u %u %u %u %u",
                         have->n_free, have->n_ready, have->n_locked, have->n_pending, have->n_quarantined, seen.n_free,
                         seen.n_ready, seen.n_locked, seen.n_pending, seen.n_quarantined);
    for (uint32_t i = 0; i < pool->n_free; i++)
        if (pool->free_ids[i] >= pool->n_pages || pool->records[pool->free_ids[i]].n_holders > 0)
            return error_set(err, RD_E_INTERNAL, "free list entry %u: page %u is held", i, pool->free_ids[i]);
    return page_windows_check(pool, err);
}
