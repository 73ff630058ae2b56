/* store/page_store_get.c - reading pages back: the record first, then the page, nothing used before it is checked. */
#include <string.h>
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/page_store_state.h"

/* What a read needs to know of a segment; a copy, since it may be dropped meanwhile. */
struct reading {
    struct data_file file;
    struct segment_head head; /* id 0: none */
    struct segment_record *record;
    size_t cap_record;
};

static rd_status open_for(struct page_store *s, struct reading *r, const struct segment_head *h)
{
    char name[SEGMENT_NAME_BYTES];
    void *record = r->record;

    if (r->head.id == h->id) return RD_OK;
    data_file_close(&r->file);
    r->head.id = 0;
    if (!mem_grow(&record, &r->cap_record, h->record_bytes, 1)) return RD_E_NOMEM;
    r->record = record;
    segment_name(h->id, name);
    rd_status st = data_file_open(s->dir, name, DATA_FILE_READ, &r->file);
    if (st == RD_OK) r->head = *h;
    return st;
}

/* RD_E_FORMAT: not what the index said, or damaged. RD_E_AGAIN: taken out by the process that writes. tokens NULL:
 * whatever they are. */
static rd_status read_slot(struct reading *r, uint32_t slot, struct hash128 digest, const struct hash128 *before,
                           const uint32_t *tokens, void *page)
{
    const struct segment_head *h = &r->head;
    rd_status st = data_file_read(&r->file, segment_record_offset(h, slot), r->record, h->record_bytes);

    if (st != RD_OK) return st;
    if (segment_record_is_empty(h, r->record)) return RD_E_AGAIN;
    if (!segment_record_is_good(h, slot, r->record) || !hash128_equal(r->record->digest, digest)) return RD_E_FORMAT;
    if (before && !hash128_equal(r->record->before, *before)) return RD_E_FORMAT;
    if (tokens && memcmp(r->record->tokens, tokens, h->page_tokens * sizeof(*tokens))) return RD_E_FORMAT;
    st = data_file_read(&r->file, segment_slot_offset(h, slot), page, h->page_bytes);
    if (st != RD_OK) return st;
    return hash128_equal(hash128_of(page, h->page_bytes), r->record->page) ? RD_OK : RD_E_FORMAT;
}

/* Off the index, and if it is damaged off the disk where we write it, so that the next start does not list it again. */
static void drop_damaged(struct page_store *s, const struct segment_head *h, uint32_t place, uint32_t slot,
                         struct hash128 digest, rd_status st)
{
    const struct digest_place *p;
    struct data_file f;
    char name[SEGMENT_NAME_BYTES];
    bool is_writer;

    mutex_lock(&s->lock);
    p = digest_table_find(&s->table, digest);
    if (p && p->segment == place && p->slot == slot && s->segments[place]->head.id == h->id) {
        digest_table_remove(&s->table, digest);
        s->counts.n_pages = s->table.n;
        if (st == RD_E_FORMAT)
            s->counts.n_damaged++;
        else if (st != RD_E_AGAIN)
            s->counts.n_read_errors++;
    }
    is_writer = s->counts.is_writer;
    mutex_unlock(&s->lock);
    if (st == RD_E_AGAIN) return;
    segment_name(h->id, name);
    log_warn("disk cache: %s, page %u %s: dropped", name, slot, st == RD_E_FORMAT ? "is damaged" : "cannot be read");
    if (st != RD_E_FORMAT || !is_writer || data_file_open(s->dir, name, DATA_FILE_WRITE, &f) != RD_OK) return;
    (void)segment_erase_record(h, &f, slot);
    data_file_close(&f);
}

/* One page. before, tokens, space: what it must be below, hold and belong to; NULL where that is not asked. */
static bool read_one(struct page_store *s, struct reading *r, struct hash128 digest, const struct hash128 *before,
                     const uint32_t *tokens, const struct store_space *space, void *page)
{
    const struct digest_place *p;
    struct segment_head h = {.id = 0};
    uint32_t place = 0, slot = 0;
    rd_status st;

    mutex_lock(&s->lock);
    p = digest_table_find(&s->table, digest);
    if (p) {
        place = p->segment;
        slot = p->slot;
        h = s->segments[place]->head;
        store_touch(s, place);
    }
    mutex_unlock(&s->lock);
    if (!p || (space && (h.page_bytes != space->page_bytes || h.page_tokens != space->page_tokens))) return false;
    st = open_for(s, r, &h);
    if (st == RD_E_NOMEM) return false;
    if (st == RD_OK) st = read_slot(r, slot, digest, before, tokens, page);
    if (st != RD_OK) {
        drop_damaged(s, &h, place, slot, digest, st);
        return false;
    }
    mutex_lock(&s->lock);
    s->counts.n_read++;
    s->counts.n_bytes_read += h.page_bytes;
    mutex_unlock(&s->lock);
    return true;
}

uint32_t page_store_read(struct page_store *s, struct store_space *space, const struct hash128 *digests,
                         const uint32_t *tokens, uint32_t first, uint32_t n, void *const *pages,
                         const atomic_bool *stop)
{
    struct reading r = {.file = DATA_FILE_CLOSED};
    struct hash128 seed;
    uint32_t i = first;

    mutex_lock(&s->lock);
    seed = space->seed;
    mutex_unlock(&s->lock);
    for (; i < n && !(stop && atomic_load_explicit(stop, memory_order_relaxed)); i++)
        if (!read_one(s, &r, digests[i], i ? &digests[i - 1] : &seed, tokens + (size_t)i * space->page_tokens, space,
                      pages[i - first]))
            break;
    data_file_close(&r.file);
    mem_free(r.record);
    return i - first;
}

/* The digests of a segment's pages, from the index. */
static uint32_t pages_of_segment(struct page_store *s, uint32_t place, struct hash128 *digests, uint32_t cap,
                                 struct segment_head *h)
{
    uint32_t n = 0;

    mutex_lock(&s->lock);
    if (store_segment_at(s, place)) {
        *h = s->segments[place]->head;
        for (uint64_t i = 0; i < s->table.n_places && n < cap; i++)
            if (s->table.places[i].segment == place) digests[n++] = s->table.places[i].digest;
    }
    mutex_unlock(&s->lock);
    return n;
}

void page_store_verify(struct page_store *s, uint64_t *n_good, uint64_t *n_bad)
{
    struct reading r = {.file = DATA_FILE_CLOSED};
    struct hash128 *digests = mem_alloc(SEGMENT_MAX_SLOTS, sizeof(*digests));

    *n_good = *n_bad = 0;
    for (uint32_t place = 0; digests && place < s->n_segments; place++) {
        struct segment_head h = {0};
        uint32_t n = pages_of_segment(s, place, digests, SEGMENT_MAX_SLOTS, &h);
        void *page = n ? mem_alloc(h.page_bytes, 1) : NULL;

        for (uint32_t i = 0; page && i < n; i++) {
            if (read_one(s, &r, digests[i], NULL, NULL, NULL, page))
                ++*n_good;
            else
                ++*n_bad;
        }
        mem_free(page);
    }
    data_file_close(&r.file);
    mem_free(r.record);
    mem_free(digests);
}
