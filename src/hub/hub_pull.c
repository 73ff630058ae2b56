/* hub/hub_pull.c - see hub_pull.h. */
#include "hub/hub_pull.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "hub/hub_cache.h"

/* ---- settings ---- */

/* What `hf auth login` wrote; false: nothing usable. */
static bool read_token_file(char *token, size_t cap)
{
    static const char *const own[] = {"HF_TOKEN_PATH", NULL};
    char path[LIMIT_PATH_BYTES], *data;
    size_t n;
    bool ok;

    if (hub_home_path(own, "token", path, sizeof(path), NULL) != RD_OK) return false;
    if (file_read_all(path, 65536, &data, &n, NULL) != RD_OK) return false;
    while (n && strchr(" \r\n\t", data[n - 1])) data[--n] = 0;
    ok = n && n < cap;
    if (ok) snprintf(token, cap, "%s", data);
    mem_free(data);
    return ok;
}

static bool is_true(const char *name)
{
    const char *value = hub_variable(name);

    return value &&
           (!strcmp(value, "1") || !strcasecmp(value, "true") || !strcasecmp(value, "yes") || !strcasecmp(value, "on"));
}

rd_status hub_settings_read(struct hub_settings *out, struct rd_error *err)
{
    const char *endpoint = hub_variable("HF_ENDPOINT"), *token = hub_variable("HF_TOKEN");
    size_t n;

    *out = (struct hub_settings){.is_offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE")};
    if (!endpoint) endpoint = "https://huggingface.co";
    if (!token) token = hub_variable("HUGGING_FACE_HUB_TOKEN");
    if (strlen(endpoint) >= sizeof(out->endpoint) ||
        (strncasecmp(endpoint, "https://", 8) && strncasecmp(endpoint, "http://", 7)))
        return error_set(err, RD_E_INVALID, "HF_ENDPOINT is no URL of a hub, which looks like https://huggingface.co");
    if (token && strlen(token) >= sizeof(out->token)) return error_set(err, RD_E_INVALID, "HF_TOKEN is too long");
    snprintf(out->endpoint, sizeof(out->endpoint), "%s", endpoint);
    for (n = strlen(out->endpoint); n && out->endpoint[n - 1] == '/';) out->endpoint[--n] = 0;
    if (token)
        snprintf(out->token, sizeof(out->token), "%s", token);
    else
        (void)read_token_file(out->token, sizeof(out->token));
    return RD_OK;
}

/* ---- what is there ---- */

rd_status hub_find_pulled(const struct hub_ref *ref, uint64_t n_memory, char path[LIMIT_PATH_BYTES],
                          struct rd_error *err)
{
    struct hub_listing m = {.n_files = 0};
    struct buf why = {.limit = 0};
    struct hub_repo r;
    char commit[HUB_COMMIT_BYTES];
    uint32_t first;
    rd_status st = hub_repo_open(ref->repo, false, &r, err);

    if (st == RD_OK) {
        st = hub_repo_commit(&r, ref->revision, commit, err);
        if (st == RD_OK) st = hub_listing_read(&r, commit, &m, err);
        if (st == RD_OK) st = hub_listing_choose(&m, ref, n_memory, &first, &why, err);
        if (st == RD_E_LIMIT) st = hub_listing_choose(&m, ref, UINT64_MAX, &first, &why, err); /* it was wanted */
        if (st == RD_OK) st = hub_repo_path(&r, commit, first == UINT32_MAX ? "" : m.files[first].path, path, err);
    }
    hub_repo_close(&r);
    hub_listing_deinit(&m);
    buf_deinit(&why);
    return st;
}

/* ---- the pull ---- */

/* Whose name the partial has. Other programs of the cache know .incomplete as a beginning; what has pieces is called by a
 * name of ours, and takes over what they left. The blob's lock is held. */
static const char *partial_name(int blobs, const struct hub_fetch *f, const char *plain, const char *with_pieces)
{
    struct stat s;

    if (!fstatat(blobs, with_pieces, &s, AT_SYMLINK_NOFOLLOW)) return with_pieces;
    if (!hub_fetch_has_pieces(f)) return plain;
    (void)renameat(blobs, plain, blobs, with_pieces);
    return with_pieces;
}

/* One blob, under its lock; another program may have brought it meanwhile. */
static rd_status fetch_blob(struct hub_pull *p, const struct hub_repo *r, int blobs, int locks,
                            const struct hub_file *file, struct hub_http *http, const char *url, struct rd_error *err)
{
    char lock[HUB_DIGEST_BYTES + 8], partial[HUB_DIGEST_BYTES + 16], with_pieces[HUB_DIGEST_BYTES + 24];
    rd_status st;
    int fd;

    snprintf(lock, sizeof(lock), "%s.lock", file->digest);
    snprintf(partial, sizeof(partial), "%s.incomplete", file->digest);
    snprintf(with_pieces, sizeof(with_pieces), "%s.parts.incomplete", file->digest);
    st = hub_take_lock(locks, lock, O_RDWR, &p->http, file->path, &fd, err);
    if (st != RD_OK) return st;
    if (!hub_repo_has_blob(r, file->digest, file->n_bytes)) {
        p->now = (struct hub_fetch){.http = http,
                                    .options = &p->http,
                                    .dir = blobs,
                                    .name = file->digest,
                                    .shown = file->path,
                                    .url = url,
                                    .n_bytes = file->n_bytes,
                                    .digest = file->digest};
        p->now.partial = partial_name(blobs, &p->now, partial, with_pieces);
        p->file = file->path;
        st = hub_fetch_file(&p->now, err);
        p->file = NULL;
    }
    close(fd);
    return st;
}

static rd_status pull_file(struct hub_pull *p, const struct hub_repo *r, int blobs, int locks, struct hub_http *http,
                           const struct hub_ref *ref, const struct hub_listing *m, const struct hub_file *file,
                           struct rd_error *err)
{
    struct buf url = {.limit = 0};
    rd_status st = RD_OK;

    if (!hub_repo_has_blob(r, file->digest, file->n_bytes)) {
        buf_printf(&url, "%s/%s/resolve/%s/", p->http.endpoint, ref->repo, m->commit);
        hub_put_url_path(&url, file->path);
        st = url.failed ? error_set(err, RD_E_NOMEM, "out of memory")
                        : fetch_blob(p, r, blobs, locks, file, http, url.data, err);
        buf_deinit(&url);
    }
    if (st == RD_OK) st = hub_repo_link(r, m->commit, file->path, file->digest, err);
    p->n_done += file->n_bytes;
    return st;
}

static rd_status pull_files(struct hub_pull *p, const struct hub_repo *r, struct hub_http *http,
                            const struct hub_ref *ref, const struct hub_listing *m, struct rd_error *err)
{
    char folder[HUB_REPO_BYTES + 32];
    int blobs, locks = -1;
    const char *slash = strrchr(r->path, '/');
    rd_status st = hub_open_folder(r->fd, "blobs", true, &blobs, err);

    snprintf(folder, sizeof(folder), ".locks%s", slash);
    if (st == RD_OK) st = hub_open_folder(r->root, folder, true, &locks, err);
    for (size_t i = 0; i < m->n_files && st == RD_OK; i++)
        if (m->files[i].is_wanted) st = pull_file(p, r, blobs, locks, http, ref, m, m->files + i, err);
    if (st == RD_OK) st = hub_repo_set_commit(r, ref->revision, m->commit, err);
    if (blobs >= 0) close(blobs);
    if (locks >= 0) close(locks);
    return st;
}

static rd_status count_bytes(struct hub_pull *p, const struct hub_listing *m, struct rd_error *err)
{
    for (size_t i = 0; i < m->n_files; i++)
        if (m->files[i].is_wanted && !checked_add(p->n_total, m->files[i].n_bytes, &p->n_total))
            return error_set(err, RD_E_FORMAT, "the hub's sizes are no sizes");
    return RD_OK;
}

rd_status hub_pull(struct hub_pull *p, const struct hub_ref *ref, char path[LIMIT_PATH_BYTES], struct rd_error *err)
{
    struct hub_http *http = NULL;
    struct hub_listing m = {.n_files = 0};
    struct buf why = {.limit = 0};
    struct hub_repo r = {.fd = -1, .root = -1};
    uint32_t first = 0;
    rd_status st = hub_http_create(&p->http, &http, err);

    p->n_total = p->n_done = 0;
    if (st == RD_OK) st = hub_listing_ask(http, p->http.endpoint, ref, &m, err);
    if (st == RD_OK) st = hub_listing_choose(&m, ref, p->n_memory, &first, &why, err);
    if (st == RD_OK) st = count_bytes(p, &m, err);
    if (st == RD_OK && p->chosen) p->chosen(p->http.user, &m, why.data ? why.data : "");
    if (st == RD_OK && !p->only_list) {
        st = hub_repo_open(ref->repo, true, &r, err);
        if (st == RD_OK) st = hub_repo_path(&r, m.commit, first == UINT32_MAX ? "" : m.files[first].path, path, err);
        if (st == RD_OK) st = pull_files(p, &r, http, ref, &m, err);
        hub_repo_close(&r);
    }
    hub_listing_deinit(&m);
    buf_deinit(&why);
    hub_http_destroy(http);
    return st;
}
