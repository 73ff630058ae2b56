/* api/api_names.c - named caches: list, save and drop by name, and the file that has saved ones over a restart. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "memory/memory_record.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/names/cache_names.h"
#include "engine/tiers/store_link.h"

#define SAVE_ROUNDS 4096u /* each writes at least a page, or gives up */

/* ---- the file: a record for each end of a saved name, and for each drop of one ---- */

static void record_end(struct buf *b, const struct cache_name_end *end)
{
    record_begin(b, RECORD_NAME_END, end->space);
    record_put_u32(b, (uint32_t)end->tenant);
    record_put_u32(b, (uint32_t)(end->tenant >> 32));
    record_put_u32(b, end->n_common);
    record_put_bytes(b, end->name, strlen(end->name) + 1);
    record_put_bytes(b, end->keys, (size_t)end->n * sizeof(*end->keys));
}

static void put_end(void *arg, const struct cache_name_end *end)
{
    rd_engine *e = arg;
    struct buf b = {0};

    record_end(&b, end);
    if (!b.failed) memory_file_put(e->names, b.data, b.n);
    buf_deinit(&b);
}

static void put_drop(void *arg, const struct kv_space *space, const char *name)
{
    rd_engine *e = arg;
    struct buf b = {0};

    record_begin(&b, RECORD_NAME_DROPPED, space);
    record_put_bytes(&b, name, strlen(name) + 1);
    if (!b.failed) memory_file_put(e->names, b.data, b.n);
    buf_deinit(&b);
}

struct load_call {
    struct cache_name_end end;
    bool is_dropped;
};

static void load_on_engine(struct engine *e, void *arg)
{
    struct load_call *c = arg;

    if (c->is_dropped)
        cache_names_forget(e, c->end.space, c->end.name);
    else
        (void)cache_names_restore(e, &c->end); /* without memory it is not there, as without the file */
}

static void load(void *arg, const void *record, size_t n)
{
    rd_engine *e = arg;
    struct record_reader r;
    struct kv_space space;
    uint32_t kind = record_open(&r, record, n, &space);
    struct load_call c = {.end = {.space = &space}, .is_dropped = kind == RECORD_NAME_DROPPED};
    size_t n_name = 0, n_keys = 0;
    const void *keys = NULL;
    kv_key *copy = NULL;

    if (kind != RECORD_NAME_END && kind != RECORD_NAME_DROPPED) return;
    if (kind == RECORD_NAME_END) {
        c.end.tenant = record_u32(&r);
        c.end.tenant |= (uint64_t)record_u32(&r) << 32;
        c.end.n_common = record_u32(&r);
    }
    c.end.name = record_string(&r, &n_name);
    if (kind == RECORD_NAME_END) keys = record_string(&r, &n_keys);
    if (r.bad || n_name < 2 || n_name > LIMIT_CACHE_NAME_CHARS + 1 ||
        memchr(c.end.name, 0, n_name) != c.end.name + n_name - 1)
        return;
    c.end.n = (uint32_t)(n_keys / sizeof(kv_key));
    if (!c.is_dropped && (c.end.n == 0 || c.end.n > e->info.n_ctx)) return;
    if (!c.is_dropped)
        copy = (kv_key *)(void *)mem_memdup(keys, c.end.n * sizeof(*copy)); /* the file's is not aligned */
    c.end.keys = copy;
    if (c.is_dropped || copy) (void)engine_call(e->engine, load_on_engine, &c);
    mem_free(copy);
}

static void again(void *arg, const struct cache_name_end *end)
{
    struct buf b = {0};

    record_end(&b, end);
    if (!b.failed) memory_file_again(arg, b.data, b.n);
    buf_deinit(&b);
}

static void dump_on_engine(struct engine *e, void *arg)
{
    cache_names_each_saved(e, again, arg);
}

static void dump(void *arg, struct memory_file *f)
{
    rd_engine *e = arg;

    (void)engine_call(e->engine, dump_on_engine, f);
}

static void tell_on_engine(struct engine *e, void *arg)
{
    cache_names_tell(e, arg);
}

void api_names_open(rd_engine *e, const char *dir)
{
    const struct memory_file_owner owner = {e, load, dump};
    struct cache_name_teller teller = {e, put_end, put_drop};
    char name[64];

    snprintf(name, sizeof(name), "names-%016" PRIx64 "%016" PRIx64, e->content.high, e->content.low);
    if (memory_file_open(dir, name, 2 * (uint64_t)LIMIT_CACHE_NAME_BYTES, &owner, &e->names) != RD_OK)
        log_warn("saved names are not kept over a restart: out of memory");
    if (e->names) (void)engine_call(e->engine, tell_on_engine, &teller);
}

void api_names_close(rd_engine *e)
{
    struct cache_name_teller nobody = {0};

    if (!e->names) return;
    (void)engine_call(e->engine, tell_on_engine, &nobody);
    memory_file_close(e->names);
    e->names = NULL;
}

static void clear_on_engine(struct engine *e, void *arg)
{
    (void)arg;
    cache_names_clear(e);
}

void api_names_clear(rd_engine *e)
{
    (void)engine_call(e->engine, clear_on_engine, NULL);
    memory_file_clear(e->names);
}

/* ---- the calls ---- */

struct name_call {
    const rd_engine *engine;
    struct kv_space space;
    const char *name;
    struct cache_name_info info;
    uint64_t n_pages;
    uint32_t n_left;
    struct buf out;
    uint64_t now;
    uint32_t n;
    struct cache_names_cursor cursor;
    bool more;
    rd_status st;
};

static rd_status begin(rd_engine *engine, const char *cache_salt, const char *name, struct name_call *c,
                       struct rd_error *err)
{
    const struct rd_request_options o = {.cache_salt = cache_salt};

    *c = (struct name_call){.engine = engine, .name = name, .now = clock_now_ns(clock_system())};
    if (!engine->engine) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    c->space = api_space(engine, &o);
    return name ? api_name_check(name, err) : RD_OK;
}

static void fill(const struct name_call *c, struct rd_cache_name *out)
{
    const struct cache_name_info *i = &c->info;

    *out = (struct rd_cache_name){.n_texts = i->n_ends,
                                  .n_running = i->n_running,
                                  .n_tokens = i->n_tokens,
                                  .n_own_tokens = i->n_own,
                                  .n_disk_tokens = i->n_disk,
                                  .own_bytes = i->n_own * c->engine->info.kv_bytes_per_token,
                                  .age_s = (double)(c->now - u64_min(c->now, i->last_use_ns)) / 1e9,
                                  .is_saved = i->is_saved};
}

rd_status api_name_check(const char *name, struct rd_error *err)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F) n = 0;
    if (n > 0 && n <= LIMIT_CACHE_NAME_CHARS) return RD_OK;
    return error_set(err, RD_E_INVALID, "cache_name: 1 to %u bytes wanted, without control characters",
                     LIMIT_CACHE_NAME_CHARS);
}

static rd_status failed(rd_status st, struct rd_error *err)
{
    switch (st) {
    case RD_OK:
        return RD_OK;
    case RD_E_NOT_FOUND:
        return error_set(err, st, "cache_name: there is no such named cache");
    case RD_E_UNSUPPORTED:
        return error_set(err, st, "there is no disk cache to save it in");
    case RD_E_LIMIT:
        return error_set(err, st, "cache_name: at most %u names of a key are saved, and a quarter of the disk cache",
                         LIMIT_SAVED_NAMES);
    default:
        return error_set(err, st, "%s", rd_status_text(st));
    }
}

static void list_name(void *arg, const struct cache_name_info *info)
{
    struct name_call *c = arg;
    struct rd_cache_name n;

    c->info = *info;
    fill(c, &n);
    buf_puts(&c->out, c->n++ ? ",{\"cache_name\":\"" : "{\"cache_name\":\"");
    buf_put_json(&c->out, info->name, strlen(info->name));
    buf_printf(&c->out,
               "\",\"texts\":%u,\"running\":%u,\"tokens\":%" PRIu64 ",\"own_tokens\":%" PRIu64 ",\"own_bytes\":%" PRIu64
               ",\"disk_tokens\":%" PRIu64 ",\"saved\":%s,\"age_s\":%.1f}",
               n.n_texts, n.n_running, n.n_tokens, n.n_own_tokens, n.own_bytes, n.n_disk_tokens,
               n.is_saved ? "true" : "false", n.age_s);
}

static void list_on_engine(struct engine *e, void *arg)
{
    struct name_call *c = arg;

    if (!c->cursor.ids) c->st = cache_names_begin(e, &c->space, &c->cursor);
    c->more = c->st == RD_OK && cache_names_next(e, &c->cursor, list_name, c);
}

char *rd_cache_names(rd_engine *engine, const char *cache_salt)
{
    struct name_call c;

    if (begin(engine, cache_salt, NULL, &c, NULL) != RD_OK) return NULL;
    buf_puts(&c.out, "{\"object\":\"list\",\"data\":[");
    do {
        if (engine_call(engine->engine, list_on_engine, &c) != RD_OK) c.st = RD_E_CLOSED;
    } while (c.st == RD_OK && c.more);
    if (c.st != RD_OK) c.out.failed = true;
    cache_names_end(&c.cursor);
    buf_puts(&c.out, "]}");
    return buf_take(&c.out, NULL);
}

static void drop_on_engine(struct engine *e, void *arg)
{
    struct name_call *c = arg;

    c->st = cache_names_drop(e, &c->space, c->name, &c->info, &c->n_pages);
}

rd_status rd_cache_drop_name(rd_engine *engine, const char *cache_salt, const char *name, struct rd_cache_name *was,
                             uint64_t *n_pages, struct rd_error *err)
{
    struct name_call c;
    rd_status st = begin(engine, cache_salt, name ? name : "", &c, err);

    *was = (struct rd_cache_name){0};
    *n_pages = 0;
    if (st != RD_OK) return st;
    st = engine_call(engine->engine, drop_on_engine, &c);
    if (st == RD_OK) st = c.st;
    if (st != RD_OK) return failed(st, err);
    fill(&c, was);
    *n_pages = c.n_pages;
    if (engine->store) (void)store_link_sync(engine->engine); /* what it had there is gone by now, or soon */
    return RD_OK;
}

static void save_on_engine(struct engine *e, void *arg)
{
    struct name_call *c = arg;

    c->st = cache_names_save(e, &c->space, c->name, &c->info, &c->n_left);
}

rd_status rd_cache_save_name(rd_engine *engine, const char *cache_salt, const char *name, struct rd_cache_name *out,
                             struct rd_error *err)
{
    struct name_call c;
    rd_status st = begin(engine, cache_salt, name ? name : "", &c, err);
    uint32_t n_before = UINT32_MAX;
    uint64_t n_dropped = 0;

    *out = (struct rd_cache_name){0};
    if (st != RD_OK) return st;
    for (uint32_t i = 0; st == RD_OK && i < SAVE_ROUNDS; i++) {
        st = engine_call(engine->engine, save_on_engine, &c);
        if (st == RD_OK) st = c.st;
        if (i == 0) n_dropped = c.info.n_dropped;
        if (st == RD_OK) st = store_link_sync(engine->engine);
        if (st != RD_OK || c.n_left == 0 || c.n_left >= n_before) break;
        n_before = c.n_left;
    }
    if (st == RD_OK) st = engine_call(engine->engine, save_on_engine, &c); /* what is on disk by now */
    if (st == RD_OK) st = c.st;
    if (st == RD_OK && c.info.n_missing > 0 && c.info.n_dropped > n_dropped)
        st = RD_E_IO; /* a full disk; what requests added meanwhile is no failure */
    if (st == RD_OK) st = memory_file_sync(engine->names);
    if (st == RD_E_AGAIN || st == RD_E_IO)
        return error_set(err, st, "the disk cache cannot be written now, or another process writes it");
    if (st != RD_OK) return failed(st, err);
    fill(&c, out);
    return RD_OK;
}
