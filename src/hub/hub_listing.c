/* hub/hub_listing.c - see hub_listing.h. */
#include "hub/hub_listing.h"
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "hub/hub_contents.h"
#include "hub/hub_variants.h"

void hub_listing_deinit(struct hub_listing *m)
{
    for (size_t i = 0; i < m->n_files; i++) mem_free(m->files[i].path);
    mem_free(m->files);
    mem_free(m->variants);
    *m = (struct hub_listing){.n_files = 0};
}

static rd_status no_memory(struct rd_error *err)
{
    return error_set(err, RD_E_NOMEM, "out of memory");
}

static rd_status add_file(struct hub_listing *m, const char *path, uint64_t n_bytes, const char *digest,
                          struct rd_error *err)
{
    struct hub_file f = {.n_bytes = n_bytes};

    if (m->n_files >= LIMIT_HUB_FILES)
        return error_set(err, RD_E_LIMIT, "the model has more than %u files", LIMIT_HUB_FILES);
    if (!mem_grow((void **)&m->files, &m->cap, m->n_files + 1, sizeof(f))) return no_memory(err);
    f.path = mem_strdup(path);
    if (!f.path) return no_memory(err);
    snprintf(f.digest, sizeof(f.digest), "%s", digest);
    m->files[m->n_files++] = f;
    return RD_OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static rd_status finish(struct hub_listing *m, struct rd_error *err)
{
    if (m->n_files) qsort(m->files, m->n_files, sizeof(*m->files), by_path);
    for (size_t i = 1; i < m->n_files; i++)
        if (!strcmp(m->files[i - 1].path, m->files[i].path))
            return error_set(err, RD_E_FORMAT, "the hub names a file twice");
    return hub_find_variants(m) ? RD_OK : no_memory(err);
}

/* ---- what a hub says ---- */

static rd_status parse(const struct buf *text, json_t **out, struct rd_error *err)
{
    json_error_t why;

    *out = text->n ? json_loadb(text->data, text->n, JSON_REJECT_DUPLICATES, &why) : NULL;
    if (*out) return RD_OK;
    return error_set(err, RD_E_FORMAT, "what the hub answers is no JSON");
}

/* {"type": "file", "path", "size", "oid", "lfs": {"oid", "size"}} */
static rd_status take_entry(struct hub_listing *m, const json_t *entry, struct rd_error *err)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *lfs = json_object_get(entry, "lfs"), *from = json_is_object(lfs) ? lfs : entry;
    const char *path = json_string_value(json_object_get(entry, "path"));
    const char *digest = json_string_value(json_object_get(from, "oid"));
    const json_t *size = json_object_get(from, "size");

    if (!path || !type) return error_set(err, RD_E_FORMAT, "what the hub answers is no list of files");
    if (strcmp(type, "file")) return RD_OK;
    if (digest && !strncmp(digest, "sha256:", 7)) digest += 7;
    if (!digest || !hub_digest_is_safe(digest) || !json_is_integer(size) || json_integer_value(size) < 0 ||
        !hub_path_is_safe(path)) {
        char quoted[128];

        return error_set(err, RD_E_FORMAT, "the hub names a file that cannot be: \"%s\"",
                         error_quote(quoted, sizeof(quoted), path, strlen(path)));
    }
    return add_file(m, path, (uint64_t)json_integer_value(size), digest, err);
}

static rd_status take_page(struct hub_listing *m, const struct buf *text, struct rd_error *err)
{
    json_t *list;
    rd_status st = parse(text, &list, err);

    if (st == RD_OK && !json_is_array(list))
        st = error_set(err, RD_E_FORMAT, "what the hub answers is no list of files");
    for (size_t i = 0; st == RD_OK && i < json_array_size(list); i++) st = take_entry(m, json_array_get(list, i), err);
    json_decref(list);
    return st;
}

static rd_status ask_commit(struct hub_http *http, const struct buf *url, char commit[HUB_COMMIT_BYTES],
                            struct rd_error *err)
{
    struct buf text = {.limit = 0};
    json_t *about = NULL;
    const char *sha;
    rd_status st = hub_http_text(http, url->data, LIMIT_HUB_ANSWER_BYTES, &text, NULL, err);

    if (st == RD_OK) st = parse(&text, &about, err);
    if (st == RD_OK) {
        sha = json_string_value(json_object_get(about, "sha"));
        if (sha && hub_commit_is_safe(sha))
            snprintf(commit, HUB_COMMIT_BYTES, "%s", sha);
        else
            st = error_set(err, RD_E_FORMAT, "the hub names no commit");
    }
    json_decref(about);
    buf_deinit(&text);
    return st;
}

static rd_status ask_files(struct hub_http *http, const char *endpoint, struct buf *url, struct hub_listing *m,
                           struct rd_error *err)
{
    struct buf text = {.limit = 0};
    struct hub_answer answer;
    rd_status st = RD_OK;

    for (uint32_t page = 0; st == RD_OK; page++) {
        if (page == LIMIT_HUB_PAGES) st = error_set(err, RD_E_LIMIT, "the hub's list of files does not end");
        if (st == RD_OK) st = hub_http_text(http, url->data, LIMIT_HUB_ANSWER_BYTES, &text, &answer, err);
        if (st == RD_OK) st = take_page(m, &text, err);
        if (st != RD_OK || !answer.next[0]) break;
        if (!hub_same_origin(answer.next, endpoint))
            st = error_set(err, RD_E_FORMAT, "the hub's list of files goes on at another host");
        buf_clear(url);
        buf_puts(url, answer.next);
        if (url->failed) st = no_memory(err);
    }
    buf_deinit(&text);
    return st;
}

rd_status hub_listing_ask(struct hub_http *http, const char *endpoint, const struct hub_ref *ref,
                          struct hub_listing *out, struct rd_error *err)
{
    struct buf url = {.limit = 0};
    rd_status st;

    buf_printf(&url, "%s/api/models/%s/revision/", endpoint, ref->repo);
    for (const char *c = ref->revision; *c; c++) { /* here a slash is a part of the name */
        char one[2] = {*c, 0};

        if (*c == '/')
            buf_puts(&url, "%2F");
        else
            hub_put_url_path(&url, one);
    }
    st = url.failed ? no_memory(err) : ask_commit(http, &url, out->commit, err);
    buf_clear(&url);
    buf_printf(&url, "%s/api/models/%s/tree/%s?recursive=true", endpoint, ref->repo, out->commit);
    if (st == RD_OK) st = url.failed ? no_memory(err) : ask_files(http, endpoint, &url, out, err);
    buf_deinit(&url);
    return st == RD_OK ? finish(out, err) : st;
}

/* ---- what is there ---- */

rd_status hub_listing_read(const struct hub_repo *r, const char *commit, struct hub_listing *out, struct rd_error *err)
{
    struct hub_entry *files;
    size_t n;
    rd_status st = hub_repo_files(r, commit, &files, &n, err);

    for (size_t i = 0; i < n && st == RD_OK; i++)
        if (files[i].n_bytes != UINT64_MAX) st = add_file(out, files[i].path, files[i].n_bytes, files[i].digest, err);
    mem_free(files);
    if (st == RD_OK) st = finish(out, err);
    snprintf(out->commit, sizeof(out->commit), "%s", commit);
    return st;
}
