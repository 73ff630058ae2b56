/* hub/hub_contents.c - see hub_contents.h. */
#include "hub/hub_contents.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

void hub_each_name(int fd, bool (*fn)(void *arg, int dir, const char *name), void *arg)
{
    DIR *dir = fdopendir(fd);
    struct dirent *entry;

    if (!dir) {
        close(fd);
        return;
    }
    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && !fn(arg, dirfd(dir), entry->d_name)) break;
    closedir(dir);
}

static rd_status no_memory(struct rd_error *err)
{
    return error_set(err, RD_E_NOMEM, "out of memory");
}

/* ---- a tree of files ---- */

struct walk {
    struct hub_entry *list;
    size_t n, cap;
    char above[HUB_FILE_BYTES]; /* of the folder that is walked now */
    int depth;
    bool failed;
};

static bool walk_name(void *arg, int dir, const char *name);

static void walk_below(struct walk *w, int dir, const char *name, const char *path)
{
    char above[HUB_FILE_BYTES];
    int fd;

    if (w->depth >= HUB_DEPTH || hub_open_folder(dir, name, false, &fd, NULL) != RD_OK) return;
    memcpy(above, w->above, sizeof(above));
    snprintf(w->above, sizeof(w->above), "%s", path);
    w->depth++;
    hub_each_name(fd, walk_name, w);
    w->depth--;
    memcpy(w->above, above, sizeof(above));
}

/* "../../blobs/DIGEST" -> DIGEST */
static void digest_of(int dir, const char *name, char digest[HUB_DIGEST_BYTES])
{
    char target[512];
    const char *slash;
    ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);

    if (n <= 0) return;
    target[n] = 0;
    slash = strrchr(target, '/');
    if (slash && hub_digest_is_safe(slash + 1)) snprintf(digest, HUB_DIGEST_BYTES, "%s", slash + 1);
}

static bool walk_name(void *arg, int dir, const char *name)
{
    struct walk *w = arg;
    struct hub_entry e = {.n_bytes = UINT64_MAX};
    struct stat s;
    int n = snprintf(e.path, sizeof(e.path), "%s%s%s", w->above, w->above[0] ? "/" : "", name);

    if (n >= (int)sizeof(e.path) || !hub_path_is_safe(e.path) || w->n >= LIMIT_HUB_FILES) return true;
    if (fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW)) return true;
    if (S_ISDIR(s.st_mode)) {
        walk_below(w, dir, name, e.path);
        return !w->failed;
    }
    if (S_ISLNK(s.st_mode)) digest_of(dir, name, e.digest);
    if (!fstatat(dir, name, &s, 0)) {
        if (!S_ISREG(s.st_mode)) return true;
        e.n_bytes = (uint64_t)s.st_size;
    }
    w->failed = !mem_grow((void **)&w->list, &w->cap, w->n + 1, sizeof(e));
    if (!w->failed) w->list[w->n++] = e;
    return !w->failed;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_entry *)a)->path, ((const struct hub_entry *)b)->path);
}

static rd_status walk_folder(const struct hub_repo *r, const char *folder, struct hub_entry **list, size_t *n,
                             struct rd_error *err)
{
    struct walk w = {.n = 0};
    int fd;
    rd_status st = hub_open_folder(r->fd, folder, false, &fd, err);

    *list = NULL;
    *n = 0;
    if (st != RD_OK) return st;
    hub_each_name(fd, walk_name, &w);
    if (w.failed) {
        mem_free(w.list);
        return no_memory(err);
    }
    if (w.n) qsort(w.list, w.n, sizeof(*w.list), by_path);
    *list = w.list;
    *n = w.n;
    return RD_OK;
}

rd_status hub_repo_files(const struct hub_repo *r, const char *commit, struct hub_entry **list, size_t *n,
                         struct rd_error *err)
{
    char folder[64];

    *list = NULL;
    *n = 0;
    if (!hub_commit_is_safe(commit)) return error_set(err, RD_E_INVALID, "no commit");
    snprintf(folder, sizeof(folder), "snapshots/%s", commit);
    return walk_folder(r, folder, list, n, err);
}

/* ---- revisions ---- */

struct revisions {
    const struct hub_repo *r;
    struct hub_revision *list;
    size_t n, cap;
    bool failed;
};

static void add_revision(struct revisions *v, const char *name, const char *commit)
{
    v->failed = v->failed || !mem_grow((void **)&v->list, &v->cap, v->n + 1, sizeof(*v->list));
    if (v->failed) return;
    snprintf(v->list[v->n].name, HUB_REVISION_BYTES, "%.*s", HUB_REVISION_BYTES - 1, name);
    snprintf(v->list[v->n++].commit, HUB_COMMIT_BYTES, "%.*s", HUB_COMMIT_BYTES - 1, commit);
}

static bool take_snapshot(void *arg, int dir, const char *name)
{
    struct revisions *v = arg;
    struct stat s;

    if (!hub_commit_is_safe(name) || fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(s.st_mode)) return true;
    for (size_t i = 0; i < v->n; i++)
        if (!strcmp(v->list[i].commit, name)) return true;
    add_revision(v, name, name);
    return !v->failed;
}

static rd_status take_refs(struct revisions *v, struct rd_error *err)
{
    struct hub_entry *refs;
    char commit[HUB_COMMIT_BYTES];
    size_t n;
    rd_status st = walk_folder(v->r, "refs", &refs, &n, err);

    if (st == RD_E_NOT_FOUND || st == RD_E_INVALID) return RD_OK; /* none: a commit was pulled, or no folder */
    for (size_t i = 0; i < n && st == RD_OK; i++)
        if (hub_revision_is_safe(refs[i].path) && !hub_commit_is_safe(refs[i].path) &&
            hub_repo_commit(v->r, refs[i].path, commit, NULL) == RD_OK)
            add_revision(v, refs[i].path, commit);
    mem_free(refs);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hub_revision *)a)->name, ((const struct hub_revision *)b)->name);
}

rd_status hub_repo_revisions(const struct hub_repo *r, struct hub_revision **list, size_t *n, struct rd_error *err)
{
    struct revisions v = {.r = r};
    int fd;
    rd_status st = take_refs(&v, err);

    *list = NULL;
    *n = 0;
    if (st == RD_OK && hub_open_folder(r->fd, "snapshots", false, &fd, NULL) == RD_OK)
        hub_each_name(fd, take_snapshot, &v);
    if (st == RD_OK && v.failed) st = no_memory(err);
    if (st != RD_OK) {
        mem_free(v.list);
        return st;
    }
    if (v.n) qsort(v.list, v.n, sizeof(*v.list), by_name);
    *list = v.list;
    *n = v.n;
    return RD_OK;
}

/* ---- models ---- */

struct repos {
    struct hub_repo_name *list;
    size_t n, cap;
    bool failed;
};

static bool take_repo(void *arg, int dir, const char *name)
{
    struct repos *v = arg;
    struct hub_repo_name repo;
    const char *between;

    (void)dir;
    if (strncmp(name, "models--", 8)) return true;
    between = strstr(name + 8, "--");
    if (!between || snprintf(repo.text, sizeof(repo.text), "%.*s/%s", (int)(between - name - 8), name + 8,
                             between + 2) >= (int)sizeof(repo.text))
        return true;
    if (!hub_ref_is(repo.text) || strpbrk(repo.text, ":@")) return true;
    v->failed = !mem_grow((void **)&v->list, &v->cap, v->n + 1, sizeof(repo));
    if (!v->failed) v->list[v->n++] = repo;
    return !v->failed;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct hub_repo_name *)a)->text, ((const struct hub_repo_name *)b)->text);
}

rd_status hub_cache_repos(struct hub_repo_name **list, size_t *n, struct rd_error *err)
{
    char root[LIMIT_PATH_BYTES / 4];
    struct repos v = {NULL, 0, 0, false};
    int fd;
    rd_status st = hub_cache_root(root, err);

    *list = NULL;
    *n = 0;
    if (st == RD_OK) st = hub_open_root(root, false, &fd, err);
    if (st == RD_E_NOT_FOUND) return RD_OK;
    if (st != RD_OK) return st;
    hub_each_name(fd, take_repo, &v);
    if (v.failed) {
        mem_free(v.list);
        return no_memory(err);
    }
    if (v.n) qsort(v.list, v.n, sizeof(*v.list), by_text);
    *list = v.list;
    *n = v.n;
    return RD_OK;
}
