/* store/page_store.c - opening a folder, finding pages, the least recently used. */
#include "store/page_store.h"
#include <stdlib.h>
#include <string.h>
#include "base/cache_dir.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/key_file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "store/page_store_state.h"

#define SEGMENTS_PER_CAP 64u
#define LARGEST_SEGMENT  (128ull << 20)

/* ---- segments and their places ---- */

rd_status store_add_segment(struct page_store *s, const struct store_segment *seg, uint32_t *place)
{
    struct store_segment *copy;
    uint32_t i = s->counts.n_segments < s->n_segments ? 0 : s->n_segments; /* is there a free place? */

    while (i < s->n_segments && s->segments[i]) i++;
    if (i >= LIMIT_STORE_SEGMENTS) return RD_E_LIMIT;
    if (!mem_grow((void **)&s->segments, &s->cap_segments, (size_t)i + 1, sizeof(*s->segments))) return RD_E_NOMEM;
    copy = mem_alloc(1, sizeof(*copy));
    if (!copy) return RD_E_NOMEM;
    *copy = *seg;
    s->segments[i] = copy;
    if (i == s->n_segments) s->n_segments++;
    s->counts.n_segments++;
    s->counts.n_bytes += seg->file_bytes;
    *place = i;
    return RD_OK;
}

struct store_segment *store_segment_at(struct page_store *s, uint32_t place)
{
    return place < s->n_segments ? s->segments[place] : NULL;
}

void store_touch(struct page_store *s, uint32_t place)
{
    int64_t now = clock_wall_s(s->o.clock);
    struct store_segment *seg = s->segments[place];

    if (seg->used_s == now) return; /* set back, too, where the clock was: see find_oldest */
    seg->used_s = now;
    seg->used_moved = true;
}

/* Out of the index, not off the disk. */
static uint64_t forget_segment(struct page_store *s, uint32_t place)
{
    uint64_t n = digest_table_remove_segment(&s->table, place);

    s->counts.n_pages = s->table.n;
    s->counts.n_segments--;
    s->counts.n_bytes -= s->segments[place]->file_bytes;
    mem_free(s->segments[place]);
    s->segments[place] = NULL;
    return n;
}

/* A file that stays is counted each time; the log says so once, until some file can be removed again. */
static rd_status unlink_segment(struct page_store *s, uint64_t id)
{
    char name[SEGMENT_NAME_BYTES], reason[128];
    rd_status st;

    segment_name(id, name);
    st = data_file_remove(s->dir, name);
    if (st == RD_E_NOT_FOUND) st = RD_OK;
    if (st != RD_OK && !s->cannot_remove)
        log_warn("disk cache: %s cannot be removed (%s); it takes room until it can", name,
                 data_file_reason(reason, sizeof(reason)));
    s->cannot_remove = st != RD_OK;
    if (st == RD_OK) return st;
    mutex_lock(&s->lock);
    s->counts.n_remove_errors++;
    mutex_unlock(&s->lock);
    return st;
}

rd_status store_drop_segment(struct page_store *s, uint32_t place)
{
    rd_status st = unlink_segment(s, s->segments[place]->head.id); /* the saver alone changes the list */

    if (st != RD_OK) return st;
    if (s->current == place) store_writer_reset(s);
    mutex_lock(&s->lock);
    s->counts.n_evicted += forget_segment(s, place);
    mutex_unlock(&s->lock);
    return RD_OK;
}

void store_remove_file(struct page_store *s, uint64_t id)
{
    if (unlink_segment(s, id) != RD_OK && s->n_strays < STORE_MAX_STRAYS) s->strays[s->n_strays++] = id;
}

rd_status store_sweep(struct page_store *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_strays; i++)
        if (unlink_segment(s, s->strays[i]) != RD_OK) s->strays[n++] = s->strays[i];
    s->n_strays = n;
    return n == 0 ? RD_OK : RD_E_IO;
}

void store_condemn_segment(struct page_store *s, uint32_t place)
{
    store_remove_file(s, s->segments[place]->head.id);
    if (s->current == place) store_writer_reset(s);
    mutex_lock(&s->lock);
    (void)forget_segment(s, place);
    mutex_unlock(&s->lock);
}

/* ---- the key ---- */

static void set_key(struct page_store *s, struct sip_key key)
{
    mutex_lock(&s->lock);
    s->key = key;
    s->has_key = true;
    store_seed_spaces(s);
    mutex_unlock(&s->lock);
}

static bool read_key(struct page_store *s)
{
    struct sip_key key;

    if (!key_file_read(s->dir, STORE_KEY_FILE, &key)) return false;
    if (!s->has_key || key.k0 != s->key.k0 || key.k1 != s->key.k1) set_key(s, key);
    return true;
}

/* ---- looking at segments ---- */

/* Lists records [seg->n_seen, n_slots) of a segment that is in its place; table: of all of them. */
static rd_status list_records(struct page_store *s, uint32_t place, const uint8_t *table)
{
    struct store_segment *seg = s->segments[place];
    const struct segment_head *h = &seg->head;
    bool is_damaged = false;
    rd_status st = RD_OK;

    for (uint32_t i = seg->n_seen; st == RD_OK && i < h->n_slots; i++) {
        const struct segment_record *r = (const void *)(table + (size_t)i * h->record_bytes);

        if (segment_record_is_empty(h, r)) continue;
        seg->n_taken = i + 1;
        if (!segment_record_is_good(h, i, r) || segment_slot_offset(h, i) + h->page_bytes > seg->file_bytes) {
            s->counts.n_damaged += s->lock_file.fd >= 0; /* to a reader: perhaps half-written just now */
            is_damaged = true;
            continue;
        }
        seg->n_seen = i + 1;
        if (!digest_table_find(&s->table, r->digest))
            st = digest_table_insert(&s->table, (struct digest_place){r->digest, place, i});
    }
    if (is_damaged)
        seg->n_taken = h->n_slots; /* nothing is appended: a longer file would make good a
                                                             * record whose page was cut off */
    s->counts.n_pages = s->table.n;
    return st;
}

static rd_status read_table(const struct data_file *f, const struct segment_head *h, uint8_t **table)
{
    size_t n = (size_t)h->n_slots * h->record_bytes;
    rd_status st;

    *table = mem_alloc(n, 1);
    if (!*table) return RD_E_NOMEM;
    st = data_file_read(f, SEGMENT_HEAD_BYTES, *table, n);
    if (st == RD_OK) return RD_OK;
    mem_free(*table);
    return st;
}

/* RD_E_FORMAT: the file is no segment of this folder. */
static rd_status look_at_segment(struct page_store *s, const char *name, uint64_t id)
{
    struct store_segment seg = {0};
    struct data_file f;
    uint8_t *table = NULL;
    uint32_t place;
    rd_status st = data_file_open(s->dir, name, DATA_FILE_READ, &f);

    if (st != RD_OK) return st == RD_E_INVALID ? RD_E_FORMAT : st;
    st = data_file_read(&f, 0, &seg.head, sizeof(seg.head));
    if (st == RD_OK && !segment_head_is_good(&seg.head, id)) st = RD_E_FORMAT;
    if (st == RD_OK && !s->has_key) set_key(s, seg.head.key);
    if (st == RD_OK && (seg.head.key.k0 != s->key.k0 || seg.head.key.k1 != s->key.k1)) st = RD_E_FORMAT;
    if (st == RD_OK) st = data_file_size(&f, &seg.file_bytes);
    if (st == RD_OK) st = data_file_used(&f, &seg.used_s);
    if (st == RD_OK) st = read_table(&f, &seg.head, &table);
    data_file_close(&f);
    if (st != RD_OK) return st;
    mutex_lock(&s->lock);
    st = store_add_segment(s, &seg, &place);
    if (st == RD_OK) {
        st = list_records(s, place, table);
        if (st != RD_OK) forget_segment(s, place);
    }
    mutex_unlock(&s->lock);
    mem_free(table);
    return st;
}

/* The ids of the folder's segment files. */
struct id_list {
    uint64_t *ids;
    size_t n, cap;
    bool failed;
};

static bool note_id(void *arg, const char *name)
{
    struct id_list *l = arg;
    uint64_t id;

    if (!segment_parse_name(name, &id)) return true;
    if (!mem_grow((void **)&l->ids, &l->cap, l->n + 1, sizeof(*l->ids)) || l->n >= LIMIT_STORE_SEGMENTS) {
        l->failed = true;
        return false;
    }
    l->ids[l->n++] = id;
    return true;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* What cannot be a segment of ours, or cannot be read, is removed by the writer: it would take room for nothing. */
static rd_status scan(struct page_store *s)
{
    struct id_list l = {0};
    char name[SEGMENT_NAME_BYTES];
    rd_status st = cache_dir_list(s->dir, note_id, &l);

    if (l.failed) st = RD_E_NOMEM;
    if (l.n) qsort(l.ids, l.n, sizeof(*l.ids), newest_first);
    for (size_t i = 0; st == RD_OK && i < l.n; i++) {
        segment_name(l.ids[i], name);
        if (l.ids[i] >= s->next_id) s->next_id = l.ids[i] == UINT64_MAX ? 1 : l.ids[i] + 1; /* 0 is none */
        rd_status seen = look_at_segment(s, name, l.ids[i]);
        if (seen == RD_OK || seen == RD_E_NOT_FOUND) continue;
        mutex_lock(&s->lock);
        if (seen == RD_E_NOMEM)
            st = seen;
        else if (seen == RD_E_FORMAT)
            s->counts.n_damaged++;
        else
            s->counts.n_read_errors++;
        mutex_unlock(&s->lock);
        if (st == RD_OK && s->lock_file.fd >= 0) store_remove_file(s, l.ids[i]);
    }
    mem_free(l.ids);
    return st;
}

/* ---- opening and closing ---- */

static rd_status become_writer(struct page_store *s, struct rd_error *err)
{
    struct sip_key fresh;
    rd_status st = RD_OK;
    bool had_file;

    cache_dir_tidy(s->dir, ".none", UINT64_MAX, NULL); /* temporaries of the dead */
    had_file = read_key(s);
    st = scan(s);
    if (st != RD_OK) return error_set(err, st, "the cache folder cannot be read: %s", rd_status_text(st));
    if (!s->has_key) {
        random_os(&fresh, sizeof(fresh));
        set_key(s, fresh);
    }
    if (!had_file) st = key_file_write(s->dir, STORE_KEY_FILE, s->key, err);
    if (st != RD_OK) return st;
    mutex_lock(&s->lock);
    s->counts.is_writer = 1;
    mutex_unlock(&s->lock);
    return store_make_room(s, 0) == RD_OK ? RD_OK
                                          : error_set(err, RD_E_IO, "the cache folder's files cannot be removed");
}

rd_status page_store_open(const struct store_options *o, struct page_store **out, struct rd_error *err)
{
    struct page_store *s = mem_zalloc(1, sizeof(*s));
    char reason[128];
    rd_status st = RD_E_NOMEM;

    *out = NULL;
    if (!s) return error_set(err, st, "no memory");
    mutex_init(&s->lock);
    s->o = *o;
    s->lock_file = s->file = DATA_FILE_CLOSED;
    s->current = UINT32_MAX;
    s->next_id = 1;
    s->pause_s = STORE_FIRST_PAUSE_S;
    s->counts.cap_bytes = o->cap_bytes;
    if (s->o.segment_bytes == 0) s->o.segment_bytes = u64_min(o->cap_bytes / SEGMENTS_PER_CAP, LARGEST_SEGMENT);
    s->dir = mem_strdup(o->dir);
    s->about = o->about ? mem_strdup(o->about) : NULL;
    if (!s->dir || (o->about && !s->about)) goto fail;
    s->o.dir = s->dir; /* the caller's may be gone after this call */
    s->o.about = s->about;
    if ((st = cache_dir_make(s->dir, err)) != RD_OK) goto fail;
    st = data_file_lock(s->dir, STORE_LOCK_FILE, &s->lock_file);
    if (st == RD_OK) {
        st = become_writer(s, err);
    } else {
        if (st == RD_E_AGAIN)
            log_info("another process writes the disk cache: this one only reads it");
        else
            log_warn("the disk cache is only read: %s", data_file_reason(reason, sizeof(reason)));
        st = read_key(s) ? scan(s) : RD_OK;
    }
    if (st != RD_OK) goto fail;
    *out = s;
    return RD_OK;

fail:
    if (err && !err->text[0]) error_set(err, st, "the cache folder cannot be opened: %s", rd_status_text(st));
    page_store_close(s);
    return st;
}

void page_store_close(struct page_store *s)
{
    if (!s) return;
    if (s->lock_file.fd >= 0) (void)page_store_flush(s);
    store_writer_reset(s);
    store_free_spaces(s);
    for (uint32_t i = 0; i < s->n_segments; i++) mem_free(s->segments[i]);
    mem_free(s->segments);
    digest_table_deinit(&s->table);
    mutex_deinit(&s->lock);
    data_file_close(&s->lock_file);
    mem_free(s->about);
    mem_free(s->dir);
    mem_free(s);
}

/* ---- the reader's look ---- */

/* What a writer has added to a segment that we know. False: it is gone. */
static bool see_more(struct page_store *s, uint32_t place)
{
    struct store_segment *seg = s->segments[place];
    char name[SEGMENT_NAME_BYTES];
    struct data_file f;
    uint8_t *table = NULL;
    uint64_t file_bytes = 0;
    rd_status st;

    segment_name(seg->head.id, name);
    st = data_file_open(s->dir, name, DATA_FILE_READ, &f);
    if (st != RD_OK) return st != RD_E_NOT_FOUND;
    st = data_file_size(&f, &file_bytes);
    if (st == RD_OK && file_bytes > seg->file_bytes) st = read_table(&f, &seg->head, &table);
    data_file_close(&f);
    if (st != RD_OK || !table) return true;
    mutex_lock(&s->lock);
    s->counts.n_bytes += file_bytes - seg->file_bytes;
    seg->file_bytes = file_bytes;
    (void)list_records(s, place, table); /* without memory: what is listed so far */
    mutex_unlock(&s->lock);
    mem_free(table);
    return true;
}

static bool is_known(const struct page_store *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->n_segments; i++)
        if (s->segments[i] && s->segments[i]->head.id == id) return true;
    return false;
}

static void forget_all(struct page_store *s)
{
    mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_segments; i++)
        if (s->segments[i]) (void)forget_segment(s, i);
    mutex_unlock(&s->lock);
}

/* The folder was removed under its writer: without the lock nobody keeps a second one from writing there. */
static void leave_folder(struct page_store *s)
{
    log_warn("the folder of the disk cache was removed: what it held is lost, it is begun anew");
    mutex_lock(&s->lock);
    s->counts.n_dropped += s->n_pending;
    s->counts.is_writer = s->counts.is_failing = 0;
    mutex_unlock(&s->lock);
    store_writer_reset(s);
    forget_all(s);
    s->n_strays = 0;
    s->pause_s = STORE_FIRST_PAUSE_S;
    data_file_close(&s->lock_file);
}

static bool take_lock(struct page_store *s)
{
    rd_status st = data_file_lock(s->dir, STORE_LOCK_FILE, &s->lock_file);

    if (st == RD_E_NOT_FOUND && cache_dir_make(s->dir, NULL) == RD_OK)
        st = data_file_lock(s->dir, STORE_LOCK_FILE, &s->lock_file);
    return st == RD_OK;
}

void page_store_refresh(struct page_store *s)
{
    bool was_writer = s->lock_file.fd >= 0;
    struct id_list l = {0};
    char name[SEGMENT_NAME_BYTES];

    if (was_writer && data_file_is_at(&s->lock_file, s->dir, STORE_LOCK_FILE) != RD_E_NOT_FOUND) return;
    if (was_writer) leave_folder(s);
    if (take_lock(s)) {
        forget_all(s);
        if (become_writer(s, NULL) == RD_OK) {
            if (!was_writer) log_info("the disk cache has no other writer any more: this process writes it now");
            return;
        }
        data_file_close(&s->lock_file);
    }
    if (!read_key(s) && !s->has_key) return;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        if (!s->segments[i] || see_more(s, i)) continue;
        mutex_lock(&s->lock);
        (void)forget_segment(s, i);
        mutex_unlock(&s->lock);
    }
    (void)cache_dir_list(s->dir, note_id, &l); /* what cannot be seen now: the next time */
    for (size_t i = 0; i < l.n; i++) {
        segment_name(l.ids[i], name);
        if (!is_known(s, l.ids[i])) (void)look_at_segment(s, name, l.ids[i]); /* half-made ones: the next time */
    }
    mem_free(l.ids);
}

/* ---- finding ---- */

uint32_t page_store_find(struct page_store *s, const struct hash128 *digests, uint32_t n)
{
    uint32_t i = 0;

    mutex_lock(&s->lock);
    for (; i < n; i++) {
        const struct digest_place *p = digest_table_find(&s->table, digests[i]);

        if (!p) break;
        store_touch(s, p->segment);
    }
    mutex_unlock(&s->lock);
    return i;
}

bool page_store_has(struct page_store *s, struct hash128 digest)
{
    bool has;

    mutex_lock(&s->lock);
    has = digest_table_find(&s->table, digest) != NULL;
    mutex_unlock(&s->lock);
    return has;
}

void page_store_get_counts(struct page_store *s, struct store_counts *out)
{
    mutex_lock(&s->lock);
    *out = s->counts;
    mutex_unlock(&s->lock);
}

/* ---- dropping ---- */

/* Without it a power cut might bring back what was dropped. */
static rd_status sync_names(struct page_store *s)
{
    char reason[128];
    rd_status st = data_file_sync_dir(s->dir);

    if (st == RD_OK || st == RD_E_NOT_FOUND) return RD_OK;
    log_warn("disk cache: the folder cannot be synced (%s)", data_file_reason(reason, sizeof(reason)));
    mutex_lock(&s->lock);
    s->counts.n_remove_errors++;
    mutex_unlock(&s->lock);
    return RD_E_IO;
}

/* space NULL: whatever there is. */
static rd_status drop_all_of(struct page_store *s, const struct hash128 *space)
{
    rd_status st = RD_OK;
    bool any = false;

    if (s->lock_file.fd < 0) return RD_E_AGAIN;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        if (!s->segments[i] || (space && !hash128_equal(s->segments[i]->head.space, *space))) continue;
        any = true;
        if (store_drop_segment(s, i) != RD_OK) st = RD_E_IO;
    }
    return any && sync_names(s) != RD_OK ? RD_E_IO : st;
}

rd_status page_store_drop(struct page_store *s, struct store_space *space)
{
    return drop_all_of(s, space ? &space->seed : NULL);
}

rd_status page_store_drop_listed(struct page_store *s, struct hash128 space)
{
    return drop_all_of(s, &space);
}
