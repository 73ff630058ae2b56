/* api/api_cache_dir.c - the disk cache of a folder, without a model: what is in it, is it whole, away with it.
 *
 * A namespace of the store has a digest for a name; who stored there left a text of the model's name, the KV type, and what the pages
 * are: "pages" of KV, "ends" of texts behind their last whole page, "packed" pages, rows of "images".
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/cache_dir.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/page_store.h"

#define LISTED_SPACES 1024u
#define NO_CAP        (UINT64_MAX / 4) /* looking at a folder drops nothing of it */

struct label {
    char model[256], kv_type[48], what[16];
};

static bool read_label(const struct store_space_info *i, struct label *out)
{
    memset(out, 0, sizeof(*out));
    strcpy(out->what, "pages");
    return sscanf(i->about, "%255[^\n]\n%47[^\n]\n%15[a-z]", out->model, out->kv_type, out->what) >= 2;
}

/* ---- a folder ---- */

struct look {
    bool has_key;
};

static bool look_at(void *arg, const char *name)
{
    struct look *l = arg;

    l->has_key = l->has_key || strcmp(name, "key") == 0;
    return !l->has_key;
}

static rd_status open_dir(const char *dir, struct page_store **out, struct store_counts *counts, struct rd_error *err)
{
    struct store_options o = {.dir = dir, .cap_bytes = NO_CAP, .clock = clock_system()};
    struct look l = {false};
    rd_status st = cache_dir_list(dir, look_at, &l);

    if (st != RD_OK || !l.has_key) return error_set(err, RD_E_NOT_FOUND, "there is no disk cache in it");
    st = page_store_open(&o, out, err);
    if (st == RD_OK) page_store_get_counts(*out, counts);
    return st;
}

static void put_text(const char *name, const char *s, struct buf *out)
{
    buf_printf(out, ",\"%s\":\"", name);
    buf_put_json(out, s, strlen(s));
    buf_puts(out, "\"");
}

static void put_entry(const struct store_space_info *i, struct buf *out)
{
    int64_t age = clock_wall_s(clock_system()) - i->used_s;
    struct label l;

    buf_printf(out, "{\"id\":\"%016" PRIx64 "%016" PRIx64 "\"", i->space.high, i->space.low);
    if (read_label(i, &l)) {
        put_text("model", l.model, out);
        put_text("kv_type", l.kv_type, out);
        put_text("what", l.what, out);
    } else {
        buf_puts(out, ",\"model\":null,\"kv_type\":null,\"what\":null");
    }
    buf_printf(out,
               ",\"pages\":%" PRIu64 ",\"tokens\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"segments\":%" PRIu64
               ",\"age_s\":%" PRId64 "}",
               i->n_pages, i->n_tokens, i->n_bytes, i->n_segments, age > 0 ? age : 0);
}

static void list(struct page_store *s, const char *dir, const struct store_counts *c, struct store_space_info *spaces,
                 struct buf *out)
{
    uint32_t n = page_store_list(s, spaces, LISTED_SPACES);

    buf_puts(out, "{\"dir\":\"");
    buf_put_json(out, dir, strlen(dir));
    buf_printf(out,
               "\",\"in_use\":%s,\"bytes\":%" PRIu64 ",\"pages\":%" PRIu64 ",\"segments\":%" PRIu64
               ",\"damaged\":%" PRIu64 ",\"entries\":[",
               c->is_writer ? "false" : "true", c->n_bytes, c->n_pages, c->n_segments, c->n_damaged);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) buf_puts(out, ",");
        put_entry(&spaces[i], out);
    }
    buf_puts(out, "]}");
}

static void verify(struct page_store *s, const struct store_counts *c, struct buf *out)
{
    uint64_t n_good = 0, n_bad = 0;

    page_store_verify(s, &n_good, &n_bad);
    buf_printf(out, "{\"pages\":%" PRIu64 ",\"damaged\":%" PRIu64 ",\"dropped\":%s}", n_good, n_bad + c->n_damaged,
               c->is_writer ? "true" : "false");
}

static bool is_answers(void *arg, const char *name)
{
    if (strncmp(name, "answers-", 8) == 0) cache_dir_remove(arg, name);
    return true;
}

/* Of one model, or all there is, with what is kept beside it. */
static rd_status clear(struct page_store *s, const char *dir, const char *model, struct store_space_info *spaces,
                       struct buf *out, struct rd_error *err)
{
    uint32_t n = page_store_list(s, spaces, LISTED_SPACES), n_cleared = 0;
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct label l;
        char id[40];

        snprintf(id, sizeof(id), "%016" PRIx64 "%016" PRIx64, spaces[i].space.high, spaces[i].space.low);
        (void)read_label(&spaces[i], &l);
        if (model && strcmp(model, l.model) != 0 && strcmp(model, id) != 0) continue;
        if (page_store_drop_listed(s, spaces[i].space) != RD_OK)
            return error_set(err, RD_E_IO, "some of it could not be removed");
        n_cleared++;
        n_bytes += spaces[i].n_bytes;
    }
    if (model && n_cleared == 0) {
        char quoted[128];

        return error_set(err, RD_E_NOT_FOUND, "nothing of a model or with an id %s is in it",
                         error_quote(quoted, sizeof(quoted), model, strlen(model)));
    }
    if (!model) (void)cache_dir_list(dir, is_answers, (void *)(uintptr_t)dir);
    buf_printf(out, "{\"entries\":%u,\"bytes\":%" PRIu64 "}", n_cleared, n_bytes);
    return RD_OK;
}

rd_status rd_cache_dir(const char *dir, enum rd_cache_dir_job job, const char *model, char **json, struct rd_error *err)
{
    struct store_space_info *spaces;
    struct page_store *s = NULL;
    struct store_counts counts;
    struct buf out = {0};
    rd_status st;

    *json = NULL;
    if (!dir) return error_set(err, RD_E_INVALID, "no folder given");
    spaces = mem_zalloc(LISTED_SPACES, sizeof(*spaces));
    st = spaces ? open_dir(dir, &s, &counts, err) : error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK && job == RD_CACHE_DIR_CLEAR && !counts.is_writer)
        st = error_set(err, RD_E_AGAIN, "a running process writes there: clear it through the server");
    if (st == RD_OK && job == RD_CACHE_DIR_LIST) list(s, dir, &counts, spaces, &out);
    if (st == RD_OK && job == RD_CACHE_DIR_VERIFY) verify(s, &counts, &out);
    if (st == RD_OK && job == RD_CACHE_DIR_CLEAR) st = clear(s, dir, model, spaces, &out, err);
    page_store_close(s);
    mem_free(spaces);
    if (st == RD_OK) *json = buf_take(&out, NULL);
    buf_deinit(&out);
    if (st == RD_OK && !*json) st = error_set(err, RD_E_NOMEM, "out of memory");
    return st;
}
