/* store/page_store_put.c - the writer: room, the current segment, pages first, then their records.
 *
 * One segment is open for writing at a time. What a put writes is pending until a flush has synced it and written its
 * record; slots of pages that never get there are written over after the next start.
 */
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/page_store_state.h"

static const struct segment_head *head_of(const struct page_store *s)
{
    return &s->segments[s->current]->head;
}

void store_writer_reset(struct page_store *s)
{
    data_file_close(&s->file);
    mem_free(s->records);
    s->records = NULL;
    s->current = UINT32_MAX;
    s->first_pending = s->n_pending = 0;
}

rd_status store_write_failed(struct page_store *s)
{
    char reason[128];
    bool first;

    data_file_reason(reason, sizeof(reason));
    s->retry_ns = clock_now_ns(s->o.clock) + s->pause_s * 1000000000ull;
    s->pause_s = u64_min(s->pause_s * 2, STORE_LONGEST_PAUSE_S);
    mutex_lock(&s->lock);
    first = !s->counts.is_failing;
    s->counts.is_failing = 1;
    s->counts.n_write_errors++;
    mutex_unlock(&s->lock);
    if (first)
        log_warn("the disk cache cannot be written (%s); going on without, tried again from time to time", reason);
    return RD_E_IO;
}

static void write_succeeded(struct page_store *s)
{
    bool was_failing;

    s->pause_s = STORE_FIRST_PAUSE_S;
    mutex_lock(&s->lock);
    was_failing = s->counts.is_failing;
    s->counts.is_failing = 0;
    mutex_unlock(&s->lock);
    if (was_failing) log_info("the disk cache can be written again");
}

/* ---- room ---- */

/* A time that has not come is one of a clock that was ahead, and was not corrected by any use since. */
static int64_t last_use(const struct store_segment *seg, int64_t now)
{
    return seg->used_s > now ? INT64_MIN : seg->used_s;
}

/* Least recently used, the newer one of equals (a chain's tail goes before its beginning); the current one last. */
static uint32_t find_oldest(struct page_store *s)
{
    const int64_t now = clock_wall_s(s->o.clock);
    uint32_t best = UINT32_MAX;
    int64_t best_s = 0;

    mutex_lock(&s->lock); /* a find on another thread may touch them */
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const struct store_segment *seg = s->segments[i], *other = store_segment_at(s, best);
        int64_t used_s = seg ? last_use(seg, now) : 0;

        if (!seg || i == s->current) continue;
        if (other && (used_s > best_s || (used_s == best_s && seg->head.id < other->head.id))) continue;
        best = i;
        best_s = used_s;
    }
    mutex_unlock(&s->lock);
    return best != UINT32_MAX ? best : s->current;
}

/* What others need of the disk is not ours: is_full from when less is free than shall be. */
static void look_at_disk(struct page_store *s)
{
    uint64_t now = clock_now_ns(s->o.clock), n_free, n_total, keep = s->o.keep_free_bytes;

    if (keep == 0 || (s->room_was_seen && now - s->room_seen_ns < STORE_ROOM_NS)) return;
    s->room_was_seen = true;
    s->room_seen_ns = now;
    if (data_file_room(s->dir, &n_free, &n_total) != RD_OK) return;
    if (s->o.keep_free_part) keep = u64_min(keep, n_total / s->o.keep_free_part);
    if (n_free < keep && !s->is_full) {
        s->full_bytes = s->counts.n_bytes;
        log_warn("the disk of the cache has %llu MiB free, less than the %llu that are kept: the cache grows no more",
                 (unsigned long long)(n_free >> 20), (unsigned long long)(keep >> 20));
    }
    s->is_full = n_free < keep;
}

rd_status store_make_room(struct page_store *s, uint64_t n_bytes)
{
    uint64_t cap;

    look_at_disk(s);
    cap = s->is_full ? u64_min(s->o.cap_bytes, s->full_bytes) : s->o.cap_bytes;
    if (n_bytes > cap) return RD_E_LIMIT;
    while (s->counts.n_bytes > cap - n_bytes) { /* the saver alone changes it */
        uint32_t oldest = find_oldest(s);
        rd_status st;

        if (oldest == UINT32_MAX) return RD_E_LIMIT;
        /* on a full disk a large part of all that is kept does not go for a page */
        if (s->counts.n_bytes <= s->o.cap_bytes - n_bytes && s->segments[oldest]->file_bytes > s->counts.n_bytes / 4)
            return RD_E_LIMIT;
        st = store_drop_segment(s, oldest);
        if (st != RD_OK) return st;
    }
    return RD_OK;
}

/* ---- the current segment ---- */

static rd_status take_records(struct page_store *s, const struct segment_head *h)
{
    s->records = mem_zalloc(h->n_slots, h->record_bytes);
    return s->records ? RD_OK : RD_E_NOMEM;
}

/* The namespace's newest segment, when it has a free slot. */
static uint32_t find_open(const struct page_store *s, const struct store_space *space)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < s->n_segments; i++) {
        const struct store_segment *seg = s->segments[i];

        if (!seg || !hash128_equal(seg->head.space, space->seed) || seg->n_taken >= seg->head.n_slots) continue;
        if (seg->head.page_tokens != space->page_tokens || seg->head.page_bytes != space->page_bytes) continue;
        if (best == UINT32_MAX || seg->head.id > s->segments[best]->head.id) best = i;
    }
    return best;
}

static rd_status resume_segment(struct page_store *s, uint32_t place)
{
    char name[SEGMENT_NAME_BYTES];
    const struct segment_head *h = &s->segments[place]->head;
    rd_status st;

    segment_name(h->id, name);
    st = take_records(s, h);
    if (st == RD_OK) st = data_file_open(s->dir, name, DATA_FILE_WRITE, &s->file);
    if (st != RD_OK) {
        store_writer_reset(s);
        return st;
    }
    s->current = place;
    s->first_pending = s->segments[place]->n_taken;
    return RD_OK;
}

/* A file of a foreign name may have brought the numbers to their end: they begin anew, 0 is none. */
static void take_next_id(struct page_store *s)
{
    if (++s->next_id == 0) s->next_id = 1;
}

/* The process's text, and in a line of its own what the pages are. */
static rd_status write_about(struct page_store *s, const struct store_space *space)
{
    char about[SEGMENT_ABOUT_BYTES];
    const char *what;
    int n;

    mutex_lock(&s->lock);
    what = space->what;
    mutex_unlock(&s->lock);
    n = snprintf(about, sizeof(about), "%s%s%s", s->about, what ? "\n" : "", what ? what : "");
    return data_file_write(&s->file, SEGMENT_ABOUT, about, u64_min((uint64_t)n + 1, sizeof(about)));
}

static rd_status make_segment(struct page_store *s, const struct store_space *space)
{
    struct store_segment seg = {.used_s = clock_wall_s(s->o.clock), .used_moved = true};
    char name[SEGMENT_NAME_BYTES];
    uint32_t place = 0;
    rd_status st;

    seg.head =
        segment_make_head(s->next_id, s->key, space->seed, space->page_tokens, space->page_bytes, s->o.segment_bytes);
    seg.file_bytes = seg.head.data_offset;
    st = store_make_room(s, seg.file_bytes + seg.head.slot_bytes);
    if (st == RD_OK) st = take_records(s, &seg.head);
    if (st != RD_OK) return st;
    segment_name(seg.head.id, name);
    st = data_file_open(s->dir, name, DATA_FILE_NEW, &s->file);
    if (st == RD_OK) {
        take_next_id(s);
        st = data_file_write(&s->file, 0, &seg.head, sizeof(seg.head));
        if (st == RD_OK && s->about) st = write_about(s, space);
        if (st == RD_OK) st = data_file_truncate(&s->file, seg.file_bytes);
        if (st == RD_OK) {
            mutex_lock(&s->lock);
            st = store_add_segment(s, &seg, &place);
            mutex_unlock(&s->lock);
        }
        if (st != RD_OK) {
            if (st == RD_E_IO) (void)store_write_failed(s);
            store_remove_file(s, seg.head.id);
        }
    } else {
        (void)store_write_failed(s);
        take_next_id(s); /* the name may be taken */
    }
    if (st != RD_OK) {
        store_writer_reset(s);
        return st;
    }
    s->current = place;
    s->first_pending = 0;
    return RD_OK;
}

static bool is_current(const struct page_store *s, const struct store_space *space)
{
    const struct store_segment *seg = s->current == UINT32_MAX ? NULL : s->segments[s->current];

    return seg && hash128_equal(seg->head.space, space->seed) && seg->n_taken < seg->head.n_slots;
}

/* A segment of this namespace with a free slot becomes the current one. */
static rd_status open_segment(struct page_store *s, const struct store_space *space)
{
    uint32_t place;
    rd_status st;

    if (is_current(s, space)) return RD_OK;
    st = page_store_flush(s);
    store_writer_reset(s);
    if (st != RD_OK) return st;
    if ((st = store_sweep(s)) != RD_OK) return store_write_failed(s);
    place = find_open(s, space);
    if (place != UINT32_MAX && resume_segment(s, place) == RD_OK) return RD_OK;
    return make_segment(s, space);
}

/* ---- writing ---- */

static bool is_pending(const struct page_store *s, struct hash128 digest)
{
    for (uint32_t i = 0; i < s->n_pending; i++) {
        const struct segment_record *r =
            (const void *)(s->records + (size_t)(s->first_pending + i) * head_of(s)->record_bytes);

        if (hash128_equal(r->digest, digest)) return true;
    }
    return false;
}

static rd_status write_page(struct page_store *s, struct hash128 digest, struct hash128 before, const uint32_t *tokens,
                            const void *page)
{
    struct store_segment *seg = s->segments[s->current];
    const struct segment_head *h = &seg->head;
    uint32_t slot = seg->n_taken;
    uint64_t end = segment_slot_offset(h, slot) + h->slot_bytes;
    uint64_t grows = end > seg->file_bytes ? end - seg->file_bytes : 0;
    rd_status st = store_make_room(s, grows);

    if (st != RD_OK) return st;
    if (s->current == UINT32_MAX) return RD_E_AGAIN; /* room was made of the very segment */
    st = data_file_write(&s->file, segment_slot_offset(h, slot), page, h->page_bytes);
    if (st == RD_OK && grows > 0) st = data_file_truncate(&s->file, end);
    if (st != RD_OK) {
        st = store_write_failed(s);
        if (data_file_truncate(&s->file, seg->file_bytes) == RD_OK) return st;
        mutex_lock(&s->lock); /* it may have become as long as that */
        seg->file_bytes += grows;
        s->counts.n_bytes += grows;
        mutex_unlock(&s->lock);
        return st;
    }
    segment_make_record(h, slot, digest, before, tokens, page, (void *)(s->records + (size_t)slot * h->record_bytes));
    mutex_lock(&s->lock);
    seg->file_bytes += grows;
    s->counts.n_bytes += grows;
    seg->n_taken++;
    store_touch(s, s->current);
    mutex_unlock(&s->lock);
    s->n_pending++;
    return RD_OK;
}

static void count(struct page_store *s, uint64_t *counter)
{
    mutex_lock(&s->lock);
    ++*counter;
    mutex_unlock(&s->lock);
}

rd_status page_store_put(struct page_store *s, struct store_space *space, const struct hash128 *digests, uint32_t i,
                         const uint32_t *tokens, const void *page)
{
    rd_status st = RD_E_AGAIN;
    uint32_t n;

    if (s->lock_file.fd < 0 || (s->counts.is_failing && clock_now_ns(s->o.clock) < s->retry_ns)) goto fail;
    n = page_store_find(s, &digests[i], 1);
    if (n > 0 || is_pending(s, digests[i])) {
        count(s, &s->counts.n_known);
        return RD_OK;
    }
    for (int round = 0; round < 2 && st == RD_E_AGAIN; round++) {
        st = open_segment(s, space);
        if (st == RD_OK) st = write_page(s, digests[i], i ? digests[i - 1] : space->seed, tokens, page);
    }
    if (st != RD_OK) goto fail;
    if (s->n_pending * space->page_bytes >= STORE_FLUSH_BYTES) return page_store_flush(s);
    return RD_OK;

fail:
    count(s, &s->counts.n_dropped);
    return st;
}

/* The times of last use of the segments that were used since, so that the next start knows them. */
static void write_uses(struct page_store *s)
{
    char name[SEGMENT_NAME_BYTES];

    for (uint32_t i = 0; i < s->n_segments; i++) {
        int64_t used_s = 0;
        bool moved = false;

        if (!s->segments[i]) continue;
        mutex_lock(&s->lock);
        moved = s->segments[i]->used_moved;
        used_s = s->segments[i]->used_s;
        s->segments[i]->used_moved = false;
        mutex_unlock(&s->lock);
        if (!moved) continue;
        segment_name(s->segments[i]->head.id, name);
        (void)data_file_set_used(s->dir, name, used_s); /* only an order of dropping */
    }
}

static void list_pending(struct page_store *s)
{
    const struct segment_head *h = head_of(s);

    mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_pending; i++) {
        const struct segment_record *r = (const void *)(s->records + (size_t)(s->first_pending + i) * h->record_bytes);

        if (digest_table_insert(&s->table, (struct digest_place){r->digest, s->current, s->first_pending + i}) != RD_OK)
            break; /* no memory: they are found after the next start */
    }
    s->counts.n_pages = s->table.n;
    s->counts.n_written += s->n_pending;
    s->counts.n_bytes_written += s->n_pending * h->page_bytes;
    mutex_unlock(&s->lock);
}

rd_status page_store_flush(struct page_store *s)
{
    const struct segment_head *h;
    uint32_t n = s->n_pending;
    rd_status st;

    if (s->lock_file.fd < 0) return RD_OK;
    if (n > 0) {
        h = head_of(s);
        st = data_file_sync(&s->file);
        if (st != RD_OK) { /* what of it is on the disk nobody can say */
            st = store_write_failed(s);
            store_condemn_segment(s, s->current);
            goto fail;
        }
        st = data_file_write(&s->file, segment_record_offset(h, s->first_pending),
                             s->records + (size_t)s->first_pending * h->record_bytes, (size_t)n * h->record_bytes);
        if (st != RD_OK) {
            st = store_write_failed(s);
            store_writer_reset(s);
            goto fail;
        }
        list_pending(s);
        s->first_pending += n;
        s->n_pending = 0;
        write_succeeded(s);
    }
    write_uses(s);
    return RD_OK;

fail:
    mutex_lock(&s->lock);
    s->counts.n_dropped += n;
    mutex_unlock(&s->lock);
    return st;
}

rd_status page_store_sync(struct page_store *s)
{
    rd_status st = page_store_flush(s), worst = s->lock_file.fd < 0 ? RD_E_AGAIN : RD_OK;
    char name[SEGMENT_NAME_BYTES];

    for (uint32_t place = 0; st == RD_OK && worst == RD_OK && place < s->n_segments; place++) {
        const struct store_segment *seg = s->segments[place];
        struct data_file f = DATA_FILE_CLOSED;

        if (!seg) continue;
        segment_name(seg->head.id, name);
        st = data_file_open(s->dir, name, DATA_FILE_WRITE, &f);
        if (st == RD_OK) st = data_file_sync(&f);
        data_file_close(&f);
    }
    if (st == RD_OK && worst == RD_OK) st = data_file_sync_dir(s->dir);
    return worst == RD_OK ? st : worst;
}
