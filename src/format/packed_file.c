/* format/packed_file.c - digests in parallel, notes, the checks of an entry, and writing one. */
#include "format/packed_file.h"
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "base/cache_dir.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/thread.h"
#include "format/model_file_inside.h"

#define PACKED_VERSION 2u
/* In an entry's name: programs that lay files out otherwise must not find, and then remove, one another's. */
#define PACKED_FORMAT      ((uint64_t)PACKED_VERSION << 32 | PACKED_BLOCK)
#define PACKED_MAX_THREADS 16u
#define PACKED_SUFFIX      ".packed"
#define NOTE_SUFFIX        ".id"
#define NOTES_BYTES        65536u     /* of all notes: those of files that are gone go in time */
#define DIGEST_BLOCK       (4u << 20) /* of a model's digest */

static const char packed_magic[8] = "RDPACKED", note_magic[8] = "RDPACKID";

struct packed_head {
    char magic[8];
    uint32_t version, block_bytes;
    uint64_t n_file_bytes, n_tensors, n_blocks, data_offset, n_model_bytes;
    struct hash128 packing, content;
    struct hash128 check; /* of head and tables with this zero */
};

struct packed_note {
    char magic[8];
    struct file_identity identity;
    struct hash128 packing, content;
    uint64_t head, check; /* check: of all before it */
};

struct packed_file {
    struct file_map map;
    const struct packed_head *head;
    const struct packed_tensor *tensors;
    const uint64_t *checks;
};

struct packed_name {
    char text[96];
};

/* ---- digests of many blocks by several threads ---- */

struct digest_job {
    const struct file_map *map;
    uint64_t begin, end, block_bytes, n_blocks;
    struct hash128 *digests; /* [n_blocks], or NULL: compare with checks */
    const uint64_t *checks;
    const atomic_bool *stop; /* may be NULL */
    /* all threads: the next block, relaxed, only unique; whether one differs: relaxed, read after joining */
    atomic_uint_fast64_t next;
    atomic_bool differs;
};

static void digest_blocks(void *arg)
{
    struct digest_job *j = arg;
    uint64_t i;

    while ((i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_blocks) {
        uint64_t at = j->begin + i * j->block_bytes, n = u64_min(j->block_bytes, j->end - at);

        if (j->stop && atomic_load_explicit(j->stop, memory_order_relaxed)) return;
        file_map_populate(j->map, at, n);
        if (j->digests)
            j->digests[i] = hash128_of(j->map->data + at, n);
        else if (hash64_of(j->map->data + at, n) != j->checks[i])
            atomic_store_explicit(&j->differs, true, memory_order_relaxed);
    }
}

static void run_digests(struct digest_job *j, uint32_t n_threads)
{
    struct thread helpers[PACKED_MAX_THREADS] = {0};
    uint32_t n = (uint32_t)u64_min(u32_min(n_threads, PACKED_MAX_THREADS), j->n_blocks);

    for (uint32_t i = 1; i < n; i++)
        if (thread_start(&helpers[i], "digest", digest_blocks, j) != RD_OK) break; /* fewer hands, the same work */
    digest_blocks(j);
    for (uint32_t i = 1; i < n; i++) thread_join(&helpers[i]);
}

/* Of a file: the digest of its blocks' digests. */
static rd_status map_digest(const struct file_map *map, uint32_t n_threads, const atomic_bool *stop,
                            struct hash128 *out, struct rd_error *err)
{
    struct digest_job j = {.map = map, .end = map->n_bytes, .block_bytes = DIGEST_BLOCK, .stop = stop};

    j.n_blocks = (map->n_bytes + DIGEST_BLOCK - 1) / DIGEST_BLOCK;
    j.digests = mem_zalloc(j.n_blocks, sizeof(*j.digests));
    if (!j.digests) return error_set(err, RD_E_NOMEM, "no memory for the digest of a model");
    run_digests(&j, n_threads);
    *out = hash128_of(j.digests, j.n_blocks * sizeof(*j.digests));
    mem_free(j.digests);
    return RD_OK;
}

/* Of the whole model: its file's digest, or what several files have together, and a directory's metadata. */
static rd_status model_digest(const struct model_file *g, uint32_t n_threads, const atomic_bool *stop,
                              struct hash128 *out, struct rd_error *err)
{
    struct hash128 parts[2] = {g->keys ? *g->keys : (struct hash128){0, 0}, {0, 0}};

    for (uint32_t i = 0; i < model_file_n_maps(g); i++) {
        rd_status st = map_digest(model_file_map_at(g, i), n_threads, stop, &parts[1], err);

        if (st != RD_OK) return st;
        parts[0] = g->keys || model_file_n_maps(g) > 1 ? hash128_of(parts, sizeof(parts)) : parts[1];
    }
    *out = parts[0];
    if (stop && atomic_load_explicit(stop, memory_order_relaxed)) return RD_E_CANCELLED;
    if (model_file_broken(g) || !model_file_unchanged(g))
        return error_set(err, RD_E_IO, "the model file became shorter");
    return RD_OK;
}

/* Of a file, or of all files: the times are the latest, the rest is mixed with what the metadata says. */
static rd_status model_identity(const struct model_file *g, uint64_t settle_ns, struct file_identity *out,
                                bool *settled)
{
    struct {
        struct hash128 keys;
        uint64_t inodes;
        struct file_identity one;
    } mix;
    rd_status st;

    if (!g->keys && model_file_n_maps(g) == 1) return file_map_identity(model_file_map(g), settle_ns, out, settled);
    memset(out, 0, sizeof(*out));
    memset(&mix, 0, sizeof(mix));
    if (g->keys) mix.keys = *g->keys;
    *settled = true;
    for (uint32_t i = 0; i < model_file_n_maps(g); i++) {
        bool still;

        st = file_map_identity(model_file_map_at(g, i), settle_ns, &mix.one, &still);
        if (st != RD_OK) return st;
        *settled &= still;
        mix.inodes = hash64_of(&mix, sizeof(mix));
        out->mtime_ns = mix.one.mtime_ns > out->mtime_ns ? mix.one.mtime_ns : out->mtime_ns;
        out->ctime_ns = mix.one.ctime_ns > out->ctime_ns ? mix.one.ctime_ns : out->ctime_ns;
    }
    out->device = mix.one.device;
    out->inode = mix.inodes;
    out->n_bytes = model_file_bytes(g); /* the shards': not the directory's name and template */
    return RD_OK;
}

/* ---- names and notes ---- */

/* Of metadata, size, packing and format: entries of other models or packings are not even looked at. Never 0. */
static uint64_t head_digest(const struct model_file *g, struct hash128 packing)
{
    uint64_t end = g->keys ? 0 : model_file_map(g)->n_bytes, n_tensors = model_file_n_tensors(g);
    struct {
        uint64_t n_bytes, format;
        struct hash128 metadata, packing;
    } all = {model_file_bytes(g), PACKED_FORMAT, {0, 0}, packing};

    for (uint64_t i = 0; i < n_tensors; i++) end = u64_min(end, model_file_tensor(g, i)->offset);
    all.metadata = g->keys ? *g->keys : hash128_of(model_file_map(g)->data, end);
    return hash64_of(&all, sizeof(all)) | 1;
}

static struct packed_name entry_name(const struct packed_key *k)
{
    struct packed_name name;

    snprintf(name.text, sizeof(name.text), "%016" PRIx64 "-%016" PRIx64 "%016" PRIx64 PACKED_SUFFIX, k->head,
             k->content.high, k->content.low);
    return name;
}

static struct packed_name note_name(const struct packed_key *k)
{
    struct packed_name name;
    struct {
        struct file_identity identity;
        struct hash128 packing;
        uint64_t format;
    } all = {k->identity, k->packing, PACKED_FORMAT};

    snprintf(name.text, sizeof(name.text), "%016" PRIx64 NOTE_SUFFIX, hash64_of(&all, sizeof(all)));
    return name;
}

static bool same_identity(const struct file_identity *a, const struct file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->n_bytes == b->n_bytes && a->mtime_ns == b->mtime_ns &&
           a->ctime_ns == b->ctime_ns;
}

/* The digest that this very file had; false: nobody noted it. */
static bool read_note(const struct packed_options *o, struct packed_key *k)
{
    struct packed_name name = note_name(k);
    struct file_map map;
    struct packed_note note;
    bool good = false;

    if (!k->settled || cache_dir_map(o->dir, name.text, &map, NULL) != RD_OK) return false;
    if (map.n_bytes == sizeof(note)) {
        memcpy(&note, map.data, sizeof(note));
        good = !memcmp(note.magic, note_magic, sizeof(note_magic)) &&
               note.check == hash64_of(&note, offsetof(struct packed_note, check)) &&
               same_identity(&note.identity, &k->identity) && hash128_equal(note.packing, k->packing);
    }
    file_map_close(&map);
    if (!good) {
        cache_dir_remove(o->dir, name.text);
        return false;
    }
    k->content = note.content;
    k->head = note.head;
    k->has_content = true;
    return true;
}

static void write_note(const struct packed_options *o, const struct packed_key *k)
{
    struct packed_note note;
    struct packed_name name = note_name(k);
    struct cache_file f;

    if (!k->settled) return;
    memset(&note, 0, sizeof(note));
    memcpy(note.magic, note_magic, sizeof(note_magic));
    note.identity = k->identity;
    note.packing = k->packing;
    note.content = k->content;
    note.head = k->head;
    note.check = hash64_of(&note, offsetof(struct packed_note, check));
    if (cache_file_create(o->dir, sizeof(note), &f, NULL) != RD_OK) return;
    if (cache_file_write(&f, 0, &note, sizeof(note), NULL) == RD_OK)
        (void)cache_file_commit(&f, o->dir, name.text, NULL);
    cache_file_abandon(&f);
}

/* ---- opening ---- */

/* Everything that the head and the tables say, against the file's size and themselves. */
static bool head_adds_up(struct packed_file *p, const struct packed_key *k)
{
    const struct packed_head *h = p->head;
    struct packed_head copy;
    uint64_t tensors_bytes, checks_bytes, end, data_bytes;
    struct hash128 parts[2];

    if (p->map.n_bytes < sizeof(*h) || memcmp(h->magic, packed_magic, sizeof(packed_magic))) return false;
    if (h->version != PACKED_VERSION || h->block_bytes != PACKED_BLOCK || h->n_file_bytes != p->map.n_bytes)
        return false;
    if (h->n_model_bytes != k->identity.n_bytes || !hash128_equal(h->packing, k->packing)) return false;
    if (!hash128_equal(h->content, k->content)) return false;
    if (!checked_mul(h->n_tensors, sizeof(struct packed_tensor), &tensors_bytes)) return false;
    if (!checked_mul(h->n_blocks, sizeof(uint64_t), &checks_bytes)) return false;
    if (!checked_add(sizeof(*h), tensors_bytes, &end) || !checked_add(end, checks_bytes, &end)) return false;
    if (end > h->data_offset || h->data_offset > h->n_file_bytes || h->data_offset % PACKED_BLOCK) return false;
    data_bytes = h->n_file_bytes - h->data_offset;
    if (h->n_blocks != data_bytes / PACKED_BLOCK + (data_bytes % PACKED_BLOCK != 0)) return false;
    copy = *h;
    memset(&copy.check, 0, sizeof(copy.check));
    parts[0] = hash128_of(&copy, sizeof(copy));
    parts[1] = hash128_of(p->map.data + sizeof(*h), h->data_offset - sizeof(*h));
    if (!hash128_equal(hash128_of(parts, sizeof(parts)), h->check)) return false;
    p->tensors = (const struct packed_tensor *)(p->map.data + sizeof(*h));
    p->checks = (const uint64_t *)(p->map.data + sizeof(*h) + tensors_bytes);
    for (uint64_t i = 0; i < h->n_tensors; i++) {
        const struct packed_tensor *t = &p->tensors[i];

        if (t->offset % PACKED_ALIGN || t->offset < h->data_offset || t->offset > h->n_file_bytes) return false;
        if (t->n_bytes > h->n_file_bytes - t->offset) return false;
    }
    return true;
}

static bool entry_adds_up(struct packed_file *p, const struct packed_key *key, uint32_t n_threads)
{
    struct digest_job j = {.map = &p->map};

    if (!p->map.data) return false;
    p->head = (const struct packed_head *)p->map.data;
    if (!head_adds_up(p, key)) return false;
    mem_advise_huge(p->map.data, p->map.n_bytes);
    j.begin = p->head->data_offset;
    j.end = p->head->n_file_bytes;
    j.block_bytes = PACKED_BLOCK;
    j.n_blocks = p->head->n_blocks;
    j.checks = p->checks;
    run_digests(&j, n_threads);
    return !atomic_load_explicit(&j.differs, memory_order_relaxed) && !file_map_broken(&p->map) &&
           file_map_unchanged(&p->map);
}

static rd_status open_entry(const struct packed_options *o, const struct packed_key *key, struct packed_file **out,
                            struct rd_error *err)
{
    struct packed_name name = entry_name(key);
    struct packed_file *p = mem_zalloc(1, sizeof(*p));
    rd_status st;

    if (!p) return error_set(err, RD_E_NOMEM, "no memory for a packed file");
    p->map.fd = -1;
    st = cache_dir_map(o->dir, name.text, &p->map, err);
    if (st == RD_OK) st = file_map_watch(&p->map, err);
    if (st == RD_OK && !entry_adds_up(p, key, o->n_threads)) {
        cache_dir_remove(o->dir, name.text);
        st = error_set(err, RD_E_FORMAT, "%s is damaged; it is made again", name.text);
    }
    if (st != RD_OK) {
        packed_close(p);
        return st;
    }
    cache_dir_touch(o->dir, name.text);
    *out = p;
    return RD_OK;
}

struct prefix_search {
    char prefix[24];
    bool found;
};

static bool look_for_prefix(void *arg, const char *name)
{
    struct prefix_search *s = arg;

    if (!strncmp(name, s->prefix, strlen(s->prefix))) s->found = true;
    return !s->found;
}

rd_status packed_open(const struct packed_options *o, const struct model_file *g, struct hash128 packing,
                      struct packed_key *key, struct packed_file **out, struct rd_error *err)
{
    struct prefix_search search = {.found = false};
    rd_status st;

    memset(key, 0, sizeof(*key));
    key->packing = packing;
    if (model_file_n_maps(g) == 0) return RD_E_NOT_FOUND;
    st = model_identity(g, o->settle_ns, &key->identity, &key->settled);
    if (st != RD_OK) return error_set(err, st, "the model file cannot be looked at");
    if (read_note(o, key)) return open_entry(o, key, out, err);

    key->head = head_digest(g, packing);
    snprintf(search.prefix, sizeof(search.prefix), "%016" PRIx64 "-", key->head);
    (void)cache_dir_list(o->dir, look_for_prefix, &search);
    if (!search.found) return RD_E_NOT_FOUND;
    st = model_digest(g, o->n_threads, NULL, &key->content, err);
    if (st != RD_OK) return st;
    key->has_content = true;
    st = open_entry(o, key, out, err);
    if (st == RD_OK) write_note(o, key);
    return st;
}

rd_status packed_content(const struct packed_options *o, const struct model_file *g, struct hash128 *content,
                         struct rd_error *err)
{
    struct packed_key key;
    rd_status st;

    memset(&key, 0, sizeof(key)); /* packing 0: of any */
    if (model_file_n_maps(g) == 0) return error_set(err, RD_E_NOT_FOUND, "the model is no file");
    st = model_identity(g, o->settle_ns, &key.identity, &key.settled);
    if (st != RD_OK) return error_set(err, st, "the model file cannot be looked at");
    if (!read_note(o, &key)) {
        key.head = head_digest(g, key.packing);
        st = model_digest(g, o->n_threads, NULL, &key.content, err);
        if (st == RD_OK) write_note(o, &key);
    }
    if (st == RD_OK) *content = key.content;
    return st;
}

void packed_close(struct packed_file *p)
{
    if (!p) return;
    file_map_close(&p->map);
    mem_free(p);
}

uint64_t packed_n_tensors(const struct packed_file *p)
{
    return p->head->n_tensors;
}

const struct packed_tensor *packed_tensor_at(const struct packed_file *p, uint64_t i)
{
    return &p->tensors[i];
}

const void *packed_data(const struct packed_file *p, const struct packed_tensor *t)
{
    return p->map.data + t->offset;
}

uint64_t packed_file_bytes(const struct packed_file *p)
{
    return p->map.n_bytes;
}

bool packed_broken(const struct packed_file *p)
{
    return file_map_broken(&p->map);
}

/* ---- saving ---- */

struct save {
    struct packed_head head;
    struct packed_tensor *tensors;
    const void *const *data;
    uint64_t *checks;
    uint8_t *block; /* one PACKED_BLOCK of the file as it will be */
};

static rd_status plan(struct save *s, const struct packed_key *key, const struct packed_tensor *tensors, uint64_t n,
                      struct rd_error *err)
{
    struct packed_head *h = &s->head;
    uint64_t bytes = sizeof(*h) + n * sizeof(*tensors), data_bytes = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t room = tensors[i].n_bytes;

        if (!checked_align(room, PACKED_ALIGN, &room) || !checked_add(data_bytes, room, &data_bytes))
            return error_set(err, RD_E_LIMIT, "weights of more than 2^64 bytes");
    }
    memcpy(h->magic, packed_magic, sizeof(h->magic));
    h->version = PACKED_VERSION;
    h->block_bytes = PACKED_BLOCK;
    h->n_tensors = n;
    h->n_blocks = data_bytes / PACKED_BLOCK + (data_bytes % PACKED_BLOCK != 0);
    bytes += h->n_blocks * sizeof(uint64_t);
    h->data_offset = (bytes + PACKED_BLOCK - 1) / PACKED_BLOCK * PACKED_BLOCK;
    h->n_file_bytes = h->data_offset + data_bytes;
    h->n_model_bytes = key->identity.n_bytes;
    h->packing = key->packing;
    h->content = key->content;
    s->tensors = mem_alloc(n, sizeof(*tensors));
    s->checks = mem_zalloc(h->n_blocks, sizeof(*s->checks));
    s->block = mem_zalloc(1, PACKED_BLOCK);
    if (!s->tensors || !s->checks || !s->block) return error_set(err, RD_E_NOMEM, "no memory to save packed weights");
    memcpy(s->tensors, tensors, n * sizeof(*tensors));
    data_bytes = h->data_offset;
    for (uint64_t i = 0; i < n; i++) {
        s->tensors[i].offset = data_bytes;
        data_bytes += (tensors[i].n_bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    }
    return RD_OK;
}

/* Bytes [at, at + n) of the file, all of them data, into s->block. *next: the first tensor that may reach into them. */
static void fill_block(struct save *s, uint64_t at, uint64_t n, uint64_t *next)
{
    memset(s->block, 0, n);
    for (uint64_t i = *next; i < s->head.n_tensors && s->tensors[i].offset < at + n; i++) {
        const struct packed_tensor *t = &s->tensors[i];
        uint64_t from = u64_max(t->offset, at), to = u64_min(t->offset + t->n_bytes, at + n);

        if (from < to) memcpy(s->block + (from - at), (const uint8_t *)s->data[i] + (from - t->offset), to - from);
        if (t->offset + t->n_bytes <= at + n) *next = i + 1;
    }
}

static rd_status write_data(struct save *s, struct cache_file *f, const atomic_bool *stop, struct rd_error *err)
{
    uint64_t next = 0;

    for (uint64_t i = 0; i < s->head.n_blocks; i++) {
        uint64_t at = s->head.data_offset + i * PACKED_BLOCK, n = u64_min(PACKED_BLOCK, s->head.n_file_bytes - at);
        rd_status st;

        if (atomic_load_explicit(stop, memory_order_relaxed)) return RD_E_CANCELLED;
        fill_block(s, at, n, &next);
        s->checks[i] = hash64_of(s->block, n);
        mem_make_huge_page();
        st = cache_file_write(f, at, s->block, n, err);
        if (st != RD_OK) return st;
    }
    return RD_OK;
}

/* All before the data, last: it is what makes the file one. */
static rd_status write_head(struct save *s, struct cache_file *f, struct rd_error *err)
{
    uint64_t n = s->head.data_offset - sizeof(s->head), tensors_bytes = s->head.n_tensors * sizeof(*s->tensors);
    uint8_t *all = mem_zalloc(s->head.data_offset, 1), *tables = all + sizeof(s->head);
    struct hash128 parts[2];
    rd_status st;

    if (!all) return error_set(err, RD_E_NOMEM, "no memory to save packed weights");
    memcpy(tables, s->tensors, tensors_bytes);
    memcpy(tables + tensors_bytes, s->checks, s->head.n_blocks * sizeof(*s->checks));
    parts[0] = hash128_of(&s->head, sizeof(s->head));
    parts[1] = hash128_of(tables, n);
    s->head.check = hash128_of(parts, sizeof(parts));
    memcpy(all, &s->head, sizeof(s->head));
    st = cache_file_write(f, 0, all, s->head.data_offset, err);
    mem_free(all);
    return st;
}

static rd_status check_worth(const struct packed_options *o, const struct packed_key *key, const struct save *s,
                             struct rd_error *err)
{
    uint64_t n = s->head.n_file_bytes;

    if (n < o->min_bytes) return error_set(err, RD_E_LIMIT, "%" PRIu64 " bytes are packed as fast", n);
    if (n > o->cap_bytes)
        return error_set(err, RD_E_LIMIT, "%" PRIu64 " bytes, the folder may take %" PRIu64, n, o->cap_bytes);
    if (!key->settled) return error_set(err, RD_E_AGAIN, "the model file was changed a moment ago");
    return RD_OK;
}

rd_status packed_save(const struct packed_options *o, const struct model_file *g, const struct packed_key *key,
                      const struct packed_tensor *tensors, const void *const *data, uint64_t n_tensors,
                      const atomic_bool *stop, struct rd_error *err)
{
    struct packed_key k = *key;
    struct save s = {.data = data};
    struct cache_file f = {-1, NULL};
    struct file_identity now;
    struct packed_name name;
    bool settled;
    rd_status st = plan(&s, &k, tensors, n_tensors, err);

    if (st == RD_OK) st = check_worth(o, &k, &s, err);
    if (st == RD_OK) st = cache_dir_make(o->dir, err);
    if (st == RD_OK && !k.has_content) st = model_digest(g, 1, stop, &k.content, err);
    if (st != RD_OK) goto done;
    if (k.head == 0) k.head = head_digest(g, k.packing);
    s.head.content = k.content;
    name = entry_name(&k);
    cache_dir_tidy(o->dir, PACKED_SUFFIX, o->cap_bytes - s.head.n_file_bytes, NULL); /* room first */
    st = cache_file_create(o->dir, s.head.n_file_bytes, &f, err);
    if (st == RD_OK) st = write_data(&s, &f, stop, err);
    if (st == RD_OK) st = write_head(&s, &f, err);
    if (st != RD_OK) goto done;
    /* What was packed, what the digest is of, and what the file is now must be one. */
    st = model_identity(g, o->settle_ns, &now, &settled);
    if (st == RD_OK && (!same_identity(&now, &k.identity) || model_file_broken(g)))
        st = error_set(err, RD_E_AGAIN, "the model file changed meanwhile");
    if (st == RD_OK) st = cache_file_commit(&f, o->dir, name.text, err);
    if (st != RD_OK) goto done;
    write_note(o, &k);
    cache_dir_tidy(o->dir, PACKED_SUFFIX, o->cap_bytes, name.text);
    cache_dir_tidy(o->dir, NOTE_SUFFIX, NOTES_BYTES, NULL);

done:
    cache_file_abandon(&f);
    mem_free(s.tensors);
    mem_free(s.checks);
    mem_free(s.block);
    return st;
}
