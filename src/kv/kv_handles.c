/* kv/kv_handles.c - a table of lines; a handle is a serial number of the process and the line's place in the table. */
#include "kv/kv_handles.h"
#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define PLACE_BITS 16u
#define NO_PLACE   UINT32_MAX

struct entry {
    kv_handle handle; /* 0: free */
    uint32_t n_tokens, n_pages;
    kv_page grown_in;     /* the page of the line before that it goes on in; KV_NO_PAGE: none */
    uint32_t fill_before; /* its */
    uint32_t next_free;
    kv_page *pages;
};

struct kv_handles {
    struct page_pool *pool;
    struct entry *entries; /* [n_entries of cap]: as many as were ever there at once */
    size_t cap;
    uint32_t n_entries, n_most, n, first_free;
};

/* 48 bits: nobody sees the end of them. */
static atomic_uint_least64_t last_serial;

rd_status kv_handles_create(struct page_pool *pool, uint32_t n_most, struct kv_handles **out)
{
    struct kv_handles *h = mem_zalloc(1, sizeof(*h));

    assert(n_most > 0 && n_most <= KV_MOST_HANDLES);
    if (!h) return RD_E_NOMEM;
    *h = (struct kv_handles){.pool = pool, .n_most = n_most, .first_free = NO_PLACE};
    *out = h;
    return RD_OK;
}

void kv_handles_destroy(struct kv_handles *h)
{
    if (!h) return;
    for (uint32_t i = 0; i < h->n_entries; i++) kv_handles_free(h, h->entries[i].handle);
    mem_free(h->entries);
    mem_free(h);
}

uint32_t kv_handles_n(const struct kv_handles *h)
{
    return h->n;
}

static struct entry *find(const struct kv_handles *h, kv_handle handle)
{
    const uint32_t place = handle & ((1u << PLACE_BITS) - 1);

    if (handle == KV_EMPTY || place >= h->n_entries || h->entries[place].handle != handle) return NULL;
    return &h->entries[place];
}

rd_status kv_handles_find(const struct kv_handles *h, kv_handle handle, struct kv_line *out)
{
    const struct entry *e = find(h, handle);

    *out = e ? (struct kv_line){e->n_tokens, e->pages} : (struct kv_line){0, NULL};
    return e || handle == KV_EMPTY ? RD_OK : RD_E_NOT_FOUND;
}

/* A line of n tokens with room for its pages, and no handle yet. What was found before may lie elsewhere now. */
static rd_status add(struct kv_handles *h, uint32_t n_tokens, struct entry **out)
{
    const uint32_t n_pages = u32_ceil_div(n_tokens, page_pool_page_tokens(h->pool));
    kv_page *pages;
    struct entry *e;

    if (h->n == h->n_most) return RD_E_LIMIT;
    if (h->first_free == NO_PLACE &&
        !mem_grow((void **)&h->entries, &h->cap, (size_t)h->n_entries + 1, sizeof(*h->entries)))
        return RD_E_NOMEM;
    pages = mem_alloc(n_pages, sizeof(*pages));
    if (!pages) return RD_E_NOMEM;
    if (h->first_free == NO_PLACE) {
        h->first_free = h->n_entries++;
        h->entries[h->first_free] = (struct entry){.next_free = NO_PLACE};
    }
    e = &h->entries[h->first_free];
    e->pages = pages;
    e->n_pages = n_pages;
    e->n_tokens = n_tokens;
    e->grown_in = KV_NO_PAGE;
    *out = e;
    return RD_OK;
}

static kv_handle give(struct kv_handles *h, struct entry *e)
{
    h->first_free = e->next_free;
    e->handle = (atomic_fetch_add(&last_serial, 1) + 1) << PLACE_BITS | (kv_handle)(e - h->entries);
    h->n++;
    return e->handle;
}

/* Whether rows behind this one of the page are nobody's: none were written, or the one line that holds it ends here. */
static bool is_end(const struct page_pool *pool, kv_page page, uint32_t row)
{
    return page_pool_fill(pool, page) == row || page_pool_holders(pool, page) == 1;
}

rd_status kv_handles_grow(struct kv_handles *h, kv_handle base, uint32_t n, kv_copy_rows_fn copy, void *copy_arg,
                          kv_handle *out)
{
    const uint32_t P = page_pool_page_tokens(h->pool);
    struct kv_line from;
    struct entry *e;
    uint32_t row, n_shared;
    bool in_place;
    rd_status st = kv_handles_find(h, base, &from);

    if (st != RD_OK) return st;
    assert(n > 0 && n <= UINT32_MAX - from.n_tokens);
    st = add(h, from.n_tokens + n, &e);
    if (st != RD_OK) return st;
    row = from.n_tokens % P;
    n_shared = from.n_tokens / P;
    in_place = row > 0 && is_end(h->pool, from.pages[n_shared], row);
    n_shared += in_place;
    st = page_pool_take(h->pool, e->n_pages - n_shared, e->pages + n_shared);
    if (st != RD_OK) {
        mem_free(e->pages);
        return st;
    }
    if (n_shared) memcpy(e->pages, from.pages, n_shared * sizeof(*e->pages));
    for (uint32_t k = 0; k < n_shared; k++) page_pool_retain(h->pool, e->pages[k]);
    if (row && !in_place) copy(copy_arg, e->pages[n_shared], from.pages[n_shared], row);
    e->grown_in = in_place ? e->pages[n_shared - 1] : KV_NO_PAGE;
    e->fill_before = in_place ? page_pool_fill(h->pool, e->grown_in) : 0;
    for (uint32_t k = from.n_tokens / P; k < e->n_pages; k++)
        page_pool_set_fill(h->pool, e->pages[k], u32_min(P, e->n_tokens - k * P));
    *out = give(h, e);
    return RD_OK;
}

void kv_handles_take_back(struct kv_handles *h, kv_handle grown)
{
    struct entry *e = find(h, grown);

    if (!e) return;
    if (e->grown_in != KV_NO_PAGE) page_pool_set_fill(h->pool, e->grown_in, e->fill_before);
    kv_handles_free(h, grown);
}

rd_status kv_handles_slice(struct kv_handles *h, kv_handle base, uint32_t keep, kv_handle *out)
{
    struct kv_line from;
    struct entry *e;
    rd_status st = kv_handles_find(h, base, &from);

    *out = KV_EMPTY;
    if (st != RD_OK) return st;
    if (keep > from.n_tokens) return RD_E_INVALID;
    if (keep == 0) return RD_OK;
    st = add(h, keep, &e);
    if (st != RD_OK) return st;
    memcpy(e->pages, from.pages, e->n_pages * sizeof(*e->pages));
    for (uint32_t k = 0; k < e->n_pages; k++) page_pool_retain(h->pool, e->pages[k]);
    *out = give(h, e);
    return RD_OK;
}

void kv_handles_free(struct kv_handles *h, kv_handle handle)
{
    struct entry *e = find(h, handle);

    if (!e) return;
    for (uint32_t k = 0; k < e->n_pages; k++) page_pool_release(h->pool, e->pages[k]);
    mem_free(e->pages);
    *e = (struct entry){.next_free = h->first_free};
    h->first_free = (uint32_t)(e - h->entries);
    h->n--;
}
