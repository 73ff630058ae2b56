/* store/page_store_prune.c - one text is taken out: what goes on behind it, and what of it nothing else goes on from.
 *
 *     p0 - p1 - p2 - [p3] - p4 - p5      dropped with a text that ends in p3: p3, all behind it, and p2
 *            \
 *             q2 - q3                    stays, and p0 and p1 with it
 *
 * The index knows pages by digest alone, so the records of the namespaces are read once (150 bytes a page). An entry is
 * gone when its record is zeros; its bytes are given back to the file system where that can be done.
 */
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "store/page_store_state.h"

#define RECORDS_PER_READ 256u

struct entry {
    struct hash128 digest, before;
    uint32_t place, slot;
    bool begins, dropped;                /* begins: as the text's last, partial page does */
};

struct pruning {
    struct page_store *s;
    struct store_space *const *spaces;
    uint32_t n_spaces;
    const uint32_t *tail;                /* the tokens behind the text's whole pages */
    uint32_t n_tail;
    struct entry *entries;
    size_t cap;
    uint64_t n;
    struct digest_table dropped;
};

/* ---- what there is ---- */

static bool is_of(const struct pruning *p, struct hash128 space)
{
    for (uint32_t i = 0; i < p->n_spaces; i++)
        if (p->spaces[i] && hash128_equal(p->spaces[i]->seed, space)) return true;
    return false;
}

static rd_status add_record(struct pruning *p, uint32_t place, uint32_t slot, const struct segment_record *r)
{
    void *entries = p->entries;

    if (!mem_grow(&entries, &p->cap, p->n + 1, sizeof(*p->entries))) return RD_E_NOMEM;
    p->entries = entries;
    p->entries[p->n++] = (struct entry){.digest = r->digest,
                                        .before = r->before,
                                        .place = place,
                                        .slot = slot,
                                        .begins = memcmp(r->tokens, p->tail, p->n_tail * sizeof(*p->tail)) == 0};
    return RD_OK;
}

static rd_status read_records(struct pruning *p, uint32_t place, const struct data_file *f, uint8_t *bytes)
{
    const struct store_segment *seg = p->s->segments[place];
    const struct segment_head *h = &seg->head;
    rd_status st = RD_OK;

    for (uint32_t first = 0; first < seg->n_taken && st == RD_OK; first += RECORDS_PER_READ) {
        uint32_t n = u32_min(RECORDS_PER_READ, seg->n_taken - first);

        st = data_file_read(f, segment_record_offset(h, first), bytes, (size_t)n * h->record_bytes);
        for (uint32_t i = 0; i < n && st == RD_OK; i++) {
            const struct segment_record *r = (const void *)(bytes + (size_t)i * h->record_bytes);

            if (segment_record_is_good(h, first + i, r)) st = add_record(p, place, first + i, r);
        }
    }
    return st;
}

static rd_status collect(struct pruning *p)
{
    rd_status st = RD_OK;

    for (uint32_t place = 0; place < p->s->n_segments && st == RD_OK; place++) {
        const struct store_segment *seg = p->s->segments[place];
        struct data_file f = DATA_FILE_CLOSED;
        char name[SEGMENT_NAME_BYTES];
        uint8_t *bytes;

        if (!seg || !is_of(p, seg->head.space)) continue;
        segment_name(seg->head.id, name);
        bytes = mem_alloc(RECORDS_PER_READ, seg->head.record_bytes);
        st = bytes ? data_file_open(p->s->dir, name, DATA_FILE_READ, &f) : RD_E_NOMEM;
        if (st == RD_OK) st = read_records(p, place, &f, bytes);
        data_file_close(&f);
        mem_free(bytes);
    }
    return st;
}

/* ---- what goes ---- */

static rd_status drop(struct pruning *p, struct entry *e)
{
    e->dropped = true;
    return digest_table_find(&p->dropped, e->digest)
               ? RD_OK
               : digest_table_insert(&p->dropped, (struct digest_place){e->digest, 0, 0});
}

/* Entries that follow the whole pages and begin as the rest of the text does; last: NULL: there is no whole page. */
static rd_status drop_next(struct pruning *p, const struct hash128 *last)
{
    rd_status st = RD_OK;

    for (uint64_t i = 0; i < p->n && st == RD_OK; i++) {
        struct entry *e = &p->entries[i];
        bool follows = last ? hash128_equal(e->before, *last) : is_of(p, e->before);

        if (follows && e->begins) st = drop(p, e);
    }
    return st;
}

/* Whatever follows something dropped. Most entries lie behind what they follow, so few passes do. */
static rd_status drop_followers(struct pruning *p)
{
    rd_status st = RD_OK;

    for (bool any = true; any && st == RD_OK;) {
        any = false;
        for (uint64_t i = 0; i < p->n && st == RD_OK; i++) {
            struct entry *e = &p->entries[i];

            if (e->dropped || !digest_table_find(&p->dropped, e->before)) continue;
            st = drop(p, e);
            any = true;
        }
    }
    return st;
}

/* The text's own pages, from the last one up to where something else goes on. */
static rd_status drop_end(struct pruning *p, const struct hash128 *digests, uint32_t n_full)
{
    rd_status st = RD_OK;

    while (n_full-- > 0 && st == RD_OK) {
        struct entry *own = NULL;

        for (uint64_t i = 0; i < p->n; i++) {
            struct entry *e = &p->entries[i];

            if (!e->dropped && hash128_equal(e->before, digests[n_full])) return RD_OK;
            if (hash128_equal(e->digest, digests[n_full])) own = e;
        }
        if (own) st = drop(p, own);
    }
    return st;
}

/* ---- off the disk ---- */

static rd_status erase(const struct segment_head *h, const struct data_file *f, uint32_t slot)
{
    rd_status st = segment_erase_record(h, f, slot);

    if (st == RD_OK) (void)data_file_give_back(f, segment_slot_offset(h, slot), h->slot_bytes);
    return st;
}

static rd_status erase_all(struct pruning *p, uint64_t *n_dropped)
{
    struct page_store *s = p->s;
    struct data_file f = DATA_FILE_CLOSED;
    uint32_t open = UINT32_MAX;
    char name[SEGMENT_NAME_BYTES];
    rd_status st = RD_OK, worst = RD_OK;

    for (uint64_t i = 0; i < p->n; i++) {
        const struct entry *e = &p->entries[i];
        const struct segment_head *h = &s->segments[e->place]->head;

        if (!e->dropped) continue;
        mutex_lock(&s->lock);
        digest_table_remove(&s->table, e->digest);
        s->counts.n_pages = s->table.n;
        mutex_unlock(&s->lock);
        if (open != e->place) {                             /* entries of a segment lie together */
            if (open != UINT32_MAX && data_file_sync(&f) != RD_OK) worst = RD_E_IO;
            data_file_close(&f);
            segment_name(h->id, name);
            st = data_file_open(s->dir, name, DATA_FILE_WRITE, &f);
            open = e->place;
        }
        if (st == RD_OK && erase(h, &f, e->slot) != RD_OK) worst = RD_E_IO;
        if (st != RD_OK) worst = RD_E_IO;
        ++*n_dropped;
    }
    if (open != UINT32_MAX && f.fd >= 0 && data_file_sync(&f) != RD_OK) worst = RD_E_IO;
    data_file_close(&f);
    return worst;
}

rd_status page_store_prune(struct page_store *s, struct store_space *const *spaces, uint32_t n_spaces,
                           const uint32_t *tokens, uint32_t n, uint64_t *n_dropped)
{
    uint32_t n_full = n / spaces[0]->page_tokens;
    struct pruning p = {.s = s,
                        .spaces = spaces,
                        .n_spaces = n_spaces,
                        .tail = tokens + (size_t)n_full * spaces[0]->page_tokens,
                        .n_tail = n % spaces[0]->page_tokens};
    struct hash128 *digests = mem_alloc((size_t)n_full + 1, sizeof(*digests));
    rd_status st = digests ? RD_OK : RD_E_NOMEM;

    *n_dropped = 0;
    if (s->lock_file.fd < 0) st = RD_E_AGAIN;
    if (st == RD_OK) st = page_store_flush(s);
    if (st == RD_OK) {
        page_store_chain(s, spaces[0], tokens, 0, n_full, digests);
        if (n_full == 0 || page_store_has(s, digests[n_full - 1])) {
            st = collect(&p);
            if (st == RD_OK) st = drop_next(&p, n_full ? &digests[n_full - 1] : NULL);
            if (st == RD_OK) st = drop_followers(&p);
            if (st == RD_OK) st = drop_end(&p, digests, n_full);
            if (st == RD_OK) st = erase_all(&p, n_dropped);
        }
    }
    digest_table_deinit(&p.dropped);
    mem_free(p.entries);
    mem_free(digests);
    return st;
}
