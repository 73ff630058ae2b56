/* store/page_store_prune.c - one text is taken out: what goes on behind it, and what of it nothing else goes on from.
 *
 *     p0 - p1 - p2 - [p3] - p4 - p5      dropped with a text that ends in p3: p3, all behind it, and p2
 *            \
 *             q2 - q3                    stays, and p0 and p1 with it
 *
 * Texts that are let go of (page_store_release) lose as much, but nothing that others stored behind them.
 *
 * The index knows pages by digest alone, so the records of the namespaces are read once (150 bytes a page). An entry is
 * gone when its record is zeros; its bytes are given back to the file system where that can be done.
 */
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "kv/kv_key.h"
#include "store/page_store_state.h"

#define RECORDS_PER_READ 256u

struct entry {
    struct hash128 digest, before;
    uint32_t place, slot;
    bool begins, dropped; /* begins: as the text's last, partial page does */
};

struct pruning {
    struct page_store *s;
    struct store_space *const *spaces;
    uint32_t n_spaces;
    const uint32_t *tail; /* the tokens behind the text's whole pages */
    uint32_t n_tail;
    struct entry *entries;
    size_t cap;
    uint64_t n;
    struct digest_table dropped;
    struct digest_table own, stays; /* page_store_release: of its texts; of those, what others need */
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
    bool begins;

    if (!mem_grow(&entries, &p->cap, p->n + 1, sizeof(*p->entries))) return RD_E_NOMEM;
    p->entries = entries;
    begins = p->n_tail == 0 || memcmp(r->tokens, p->tail, p->n_tail * sizeof(*p->tail)) == 0;
    p->entries[p->n++] =
        (struct entry){.digest = r->digest, .before = r->before, .place = place, .slot = slot, .begins = begins};
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
        if (open != e->place) { /* entries of a segment lie together */
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

/* ---- texts that are let go of ---- */

static rd_status note(struct digest_table *t, struct hash128 digest)
{
    return digest_table_find(t, digest) ? RD_OK : digest_table_insert(t, (struct digest_place){digest, 0, 0});
}

/* The ends behind `n_before` whole pages of a text that the store has, and that lie behind its first n_least tokens. */
static rd_status note_ends(struct pruning *p, const struct store_text *x, const struct hash128 *digests,
                           uint32_t n_before, uint32_t n_least, struct digest_table *to)
{
    uint32_t P = p->spaces[0]->page_tokens, tokens[2 * LIMIT_STORE_PAGE_TOKENS], i = n_before ? 1 : 0;
    const uint32_t *from = x->tokens + (size_t)n_before * P;
    rd_status st = RD_OK;

    if (p->n_spaces < 2 || !p->spaces[1]) return RD_OK;
    for (uint32_t k = 0; k < P; k++) tokens[i * P + k] = KV_NO_KEY;
    for (uint32_t t = 0; t < P && n_before * P + t <= x->n && st == RD_OK; t++) {
        struct hash128 pair[2] = {n_before ? digests[n_before - 1] : (struct hash128){0, 0}, {0, 0}};

        if (t > 0) tokens[i * P + t - 1] = from[t - 1];
        if (n_before * P + t <= n_least) continue;
        page_store_chain(p->s, p->spaces[1], tokens, i, i + 1, pair);
        if (page_store_has(p->s, pair[i])) st = note(to, pair[i]);
    }
    return st;
}

/* digests: of x's whole pages. What of it may go. */
static rd_status note_text(struct pruning *p, const struct store_text *x, const struct hash128 *digests,
                           uint32_t n_full)
{
    uint32_t first = x->n_keep / p->spaces[0]->page_tokens;
    rd_status st = RD_OK;

    for (uint32_t i = first; i < n_full && st == RD_OK; i++) st = note(&p->own, digests[i]);
    for (uint32_t i = first; i <= n_full && st == RD_OK; i++) st = note_ends(p, x, digests, i, x->n_keep, &p->own);
    return st;
}

/* Of x, what others go on from: up to the last page that is followed by something that is nobody's of the texts. */
static rd_status note_stays(struct pruning *p, const struct digest_table *followed, const struct store_text *x,
                            const struct hash128 *digests, uint32_t n_full)
{
    uint32_t first = x->n_keep / p->spaces[0]->page_tokens, n = n_full;
    rd_status st = RD_OK;

    while (n > first && !digest_table_find(followed, digests[n - 1])) n--;
    for (uint32_t i = first; i < n && st == RD_OK; i++) {
        st = note(&p->stays, digests[i]);
        if (st == RD_OK) st = note_ends(p, x, digests, i, x->n_keep, &p->stays);
    }
    return st;
}

static rd_status each_text(struct pruning *p, const struct store_text *texts, uint32_t n_texts,
                           const struct digest_table *followed)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < n_texts && st == RD_OK; i++) {
        uint32_t n_full = texts[i].n / p->spaces[0]->page_tokens;
        struct hash128 *digests = mem_alloc((size_t)n_full + 1, sizeof(*digests));

        st = digests ? RD_OK : RD_E_NOMEM;
        if (st == RD_OK) page_store_chain(p->s, p->spaces[0], texts[i].tokens, 0, n_full, digests);
        if (st == RD_OK)
            st = followed ? note_stays(p, followed, &texts[i], digests, n_full)
                          : note_text(p, &texts[i], digests, n_full);
        mem_free(digests);
    }
    return st;
}

rd_status page_store_release(struct page_store *s, struct store_space *const *spaces, uint32_t n_spaces,
                             const struct store_text *texts, uint32_t n_texts, uint64_t *n_dropped)
{
    struct pruning p = {.s = s, .spaces = spaces, .n_spaces = n_spaces};
    struct digest_table followed = {0};
    rd_status st = s->lock_file.fd < 0 ? RD_E_AGAIN : page_store_flush(s);

    *n_dropped = 0;
    if (st == RD_OK) st = each_text(&p, texts, n_texts, NULL);
    if (st == RD_OK && p.own.n > 0) st = collect(&p);
    for (uint64_t i = 0; i < p.n && st == RD_OK; i++)
        if (digest_table_find(&p.own, p.entries[i].before) && !digest_table_find(&p.own, p.entries[i].digest))
            st = note(&followed, p.entries[i].before);
    if (st == RD_OK && followed.n > 0) st = each_text(&p, texts, n_texts, &followed);
    for (uint64_t i = 0; i < p.n; i++)
        p.entries[i].dropped =
            digest_table_find(&p.own, p.entries[i].digest) && !digest_table_find(&p.stays, p.entries[i].digest);
    if (st == RD_OK) st = erase_all(&p, n_dropped);
    digest_table_deinit(&followed);
    digest_table_deinit(&p.own);
    digest_table_deinit(&p.stays);
    mem_free(p.entries);
    return st;
}
