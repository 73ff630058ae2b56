/* hub/hub_remove.c - see hub_remove.h. */
#include "hub/hub_remove.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "hub/hub_contents.h"

enum { MAX_DEPTH = HUB_DEPTH + 8 }; /* the cache's own folders above a repository's */

/* ---- whole folders ---- */

struct sweep {
    uint64_t n_bytes;
    bool is_dry, failed;
    int depth;
};

static void sweep_folder(struct sweep *s, int dir, const char *name);

static bool sweep_name(void *arg, int dir, const char *name)
{
    struct sweep *s = arg;
    struct stat st;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) return true;
    if (S_ISDIR(st.st_mode)) {
        sweep_folder(s, dir, name);
        return true;
    }
    if (S_ISREG(st.st_mode) && st.st_nlink == 1) s->n_bytes += (uint64_t)st.st_size;
    if (!s->is_dry && (file_call_fails() || unlinkat(dir, name, 0))) s->failed = true;
    return true;
}

/* The folder `name` with all that is in it; links are removed, not followed. */
static void sweep_folder(struct sweep *s, int dir, const char *name)
{
    int fd;

    if (s->depth >= MAX_DEPTH || hub_open_folder(dir, name, false, &fd, NULL) != RD_OK) {
        s->failed |= !s->is_dry;
        return;
    }
    s->depth++;
    hub_each_name(fd, sweep_name, s);
    s->depth--;
    if (!s->is_dry && (file_call_fails() || unlinkat(dir, name, AT_REMOVEDIR))) s->failed = true;
}

/* ROOT/models--org--name, and its locks. */
static rd_status sweep_repo(const struct hub_repo *r, bool is_dry, uint64_t *n_bytes, struct rd_error *err)
{
    struct sweep s = {.is_dry = is_dry};
    const char *name = strrchr(r->path, '/') + 1;
    int locks;

    sweep_folder(&s, r->root, name);
    if (!is_dry && hub_open_folder(r->root, ".locks", false, &locks, NULL) == RD_OK) {
        struct sweep unseen = {.is_dry = false};

        sweep_folder(&unseen, locks, name); /* nobody misses them */
        close(locks);
    }
    *n_bytes = s.n_bytes;
    return s.failed ? error_set(err, RD_E_IO, "%.200s: not all of it can be removed", name) : RD_OK;
}

/* Opens it for nobody else. */
static rd_status open_alone(const char *repo, struct hub_repo *r, struct rd_error *err)
{
    rd_status st = hub_repo_open(repo, false, r, err);

    if (st != RD_OK) return st;
    if (!file_call_fails() && !flock(r->fd, LOCK_EX | LOCK_NB)) return RD_OK;
    st = errno == EWOULDBLOCK ? error_set(err, RD_E_AGAIN, "it is being pulled by another program just now")
                              : hub_file_error(repo, "cannot be locked", err);
    hub_repo_close(r);
    return st;
}

rd_status hub_repo_remove_all(const char *repo, bool is_dry, uint64_t *n_bytes, struct rd_error *err)
{
    struct hub_repo r;
    rd_status st = open_alone(repo, &r, err);

    *n_bytes = 0;
    if (st != RD_OK) return st;
    st = sweep_repo(&r, is_dry, n_bytes, err);
    hub_repo_close(&r);
    return st;
}

/* ---- files of one snapshot ---- */

struct digests {
    char (*list)[HUB_DIGEST_BYTES];
    size_t n, cap;
};

static bool add_digest(struct digests *d, const char *digest)
{
    if (!*digest) return true;
    if (!mem_grow((void **)&d->list, &d->cap, d->n + 1, sizeof(*d->list))) return false;
    memcpy(d->list[d->n++], digest, HUB_DIGEST_BYTES);
    return true;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, HUB_DIGEST_BYTES);
}

static bool has_digest(const struct digests *d, const char *digest)
{
    return d->n && bsearch(digest, d->list, d->n, sizeof(*d->list), by_bytes);
}

struct removal {
    const struct hub_repo *r;
    const char *commit;
    bool (*wanted)(void *arg, const char *path);
    void *arg;
    struct digests kept;             /* that files which stay are links to */
    size_t n_kept_here, n_snapshots; /* files that stay in this snapshot; other snapshots */
    bool is_dry, failed;
    uint64_t n_bytes;
};

/* What stays. */
static rd_status survey(struct removal *v, const struct hub_revision *revisions, size_t n, struct rd_error *err)
{
    for (size_t i = 0; i < n; i++) {
        struct hub_entry *files;
        size_t n_files;
        bool is_here = !strcmp(revisions[i].commit, v->commit), ok = true;
        rd_status st = hub_repo_files(v->r, revisions[i].commit, &files, &n_files, err);

        if (st == RD_E_NOT_FOUND) continue; /* a revision whose snapshot is gone */
        if (st != RD_OK) return st;
        v->n_snapshots += !is_here;
        if (is_here) v->n_kept_here = 0;
        for (size_t j = 0; j < n_files && ok; j++) {
            if (is_here && v->wanted(v->arg, files[j].path)) continue;
            v->n_kept_here += is_here;
            ok = add_digest(&v->kept, files[j].digest);
        }
        mem_free(files);
        if (!ok) return error_set(err, RD_E_NOMEM, "out of memory");
    }
    if (v->kept.n) qsort(v->kept.list, v->kept.n, sizeof(*v->kept.list), by_bytes);
    return RD_OK;
}

static void remove_blob(struct removal *v, const struct hub_entry *file)
{
    char path[HUB_DIGEST_BYTES + 8];

    if (has_digest(&v->kept, file->digest)) return;
    snprintf(path, sizeof(path), "blobs/%s", file->digest);
    if (!v->is_dry && (file_call_fails() || unlinkat(v->r->fd, path, 0))) {
        v->failed |= errno != ENOENT; /* another of the files was a link to it, too */
        return;
    }
    if (file->n_bytes != UINT64_MAX) v->n_bytes += file->n_bytes;
}

/* Its name in the snapshot, and the folders that are empty then. */
static void remove_name(struct removal *v, int snapshot, const char *path)
{
    char folder[HUB_FILE_BYTES];
    char *slash;
    int dir = snapshot;

    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    if (slash && hub_open_folder(snapshot, folder, false, &dir, NULL) != RD_OK) dir = -1;
    if (dir < 0 || file_call_fails() || unlinkat(dir, slash ? slash + 1 : path, 0)) v->failed = true;
    if (slash && dir >= 0) close(dir);
    for (; slash && !unlinkat(snapshot, folder, AT_REMOVEDIR); *slash = 0) /* fails where something is left */
        if (!(slash = strrchr(folder, '/'))) break;
}

static rd_status remove_files(struct removal *v, struct rd_error *err)
{
    struct hub_entry *files = NULL;
    char folder[64];
    size_t n = 0;
    int snapshot;
    rd_status st;

    snprintf(folder, sizeof(folder), "snapshots/%s", v->commit);
    st = hub_open_folder(v->r->fd, folder, false, &snapshot, err);
    if (st != RD_OK) return st;
    st = hub_repo_files(v->r, v->commit, &files, &n, err);
    for (size_t i = 0; i < n; i++) {
        if (!v->wanted(v->arg, files[i].path)) continue;
        if (!v->is_dry) remove_name(v, snapshot, files[i].path);
        if (files[i].digest[0])
            remove_blob(v, files + i);
        else if (files[i].n_bytes != UINT64_MAX)
            v->n_bytes += files[i].n_bytes;
    }
    mem_free(files);
    close(snapshot);
    return st;
}

/* The snapshot has no files: it goes, and the revisions that name it. */
static void remove_snapshot(struct removal *v, const struct hub_revision *revisions, size_t n)
{
    struct sweep s = {.is_dry = v->is_dry};
    char path[HUB_REVISION_BYTES + 8];
    int fd;

    if (v->is_dry) return;
    if (hub_open_folder(v->r->fd, "snapshots", false, &fd, NULL) == RD_OK) {
        sweep_folder(&s, fd, v->commit);
        close(fd);
    }
    for (size_t i = 0; i < n; i++) {
        char *slash;

        if (strcmp(revisions[i].commit, v->commit) || hub_commit_is_safe(revisions[i].name)) continue;
        snprintf(path, sizeof(path), "refs/%s", revisions[i].name);
        slash = strrchr(path, '/');
        *slash = 0;
        if (hub_open_folder(v->r->fd, path, false, &fd, NULL) != RD_OK) continue;
        if (file_call_fails() || unlinkat(fd, slash + 1, 0)) v->failed = true;
        close(fd);
    }
}

static rd_status remove_wanted(struct removal *v, struct rd_error *err)
{
    struct hub_revision *revisions;
    size_t n;
    rd_status st = hub_repo_revisions(v->r, &revisions, &n, err);

    if (st != RD_OK) return st;
    st = survey(v, revisions, n, err);
    if (st == RD_OK && !v->n_kept_here && !v->n_snapshots) {
        st = sweep_repo(v->r, v->is_dry, &v->n_bytes, err);
    } else if (st == RD_OK) {
        st = remove_files(v, err);
        if (st == RD_OK && !v->n_kept_here) remove_snapshot(v, revisions, n);
    }
    mem_free(revisions);
    return st;
}

rd_status hub_repo_remove(const char *repo, const char *commit, bool (*wanted)(void *arg, const char *path), void *arg,
                          bool is_dry, uint64_t *n_bytes, struct rd_error *err)
{
    struct hub_repo r;
    struct removal v = {.r = &r, .commit = commit, .wanted = wanted, .arg = arg, .is_dry = is_dry};
    rd_status st;

    *n_bytes = 0;
    if (!hub_commit_is_safe(commit)) return error_set(err, RD_E_INVALID, "no commit");
    st = open_alone(repo, &r, err);
    if (st != RD_OK) return st;
    st = remove_wanted(&v, err);
    if (st == RD_OK && v.failed) st = error_set(err, RD_E_IO, "%.200s: not all of it can be removed", repo);
    *n_bytes = v.n_bytes;
    mem_free(v.kept.list);
    hub_repo_close(&r);
    return st;
}
