/* hub/hub_cache.c - see hub_cache.h. */
#include "hub/hub_cache.h"
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
#include "base/os_file.h"
#include "base/os_machine.h"
#include "base/random.h"

rd_status hub_file_error(const char *name, const char *what, struct rd_error *err)
{
    int e = errno;
    char quoted[300], reason[128];
    rd_status st = e == ENOENT ? RD_E_NOT_FOUND : e == ELOOP || e == ENOTDIR ? RD_E_INVALID : RD_E_IO;

    error_quote(quoted, sizeof(quoted), name, strlen(name));
    if (st == RD_E_INVALID)
        return error_set(err, st, "%s: %s: a symbolic link or a file stands where a folder belongs", quoted, what);
    return error_set(err, st, "%s: %s: %s", quoted, what, os_error_text(e, reason, sizeof(reason)));
}

const char *hub_variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* A variable's path and what is below it; "~" is the home. false: too long. */
static bool put_path(const char *value, const char *folder, const char *below, char *out, size_t cap)
{
    const char *home = hub_variable("HOME"), *slash = *below ? "/" : "";
    bool is_in_home = home && value[0] == '~' && (!value[1] || value[1] == '/');
    int n =
        snprintf(out, cap, "%s%s%s%s%s", is_in_home ? home : "", is_in_home ? value + 1 : value, folder, slash, below);

    return n > 0 && (unsigned)n < cap;
}

rd_status hub_home_path(const char *const *own, const char *below, char *out, size_t cap, struct rd_error *err)
{
    static const struct {
        const char *name, *folder;
    } homes[] = {{"HF_HOME", ""}, {"XDG_CACHE_HOME", "/huggingface"}, {"HOME", "/.cache/huggingface"}};
    const char *name = NULL, *folder = "";

    for (; *own && !name; own++)
        if (hub_variable(*own)) name = *own;
    if (name) below = "";
    for (size_t i = 0; i < sizeof(homes) / sizeof(*homes) && !name; i++)
        if (hub_variable(homes[i].name)) name = homes[i].name, folder = homes[i].folder;
    if (!name) return error_set(err, RD_E_INVALID, "neither HF_HOME nor HOME is set: where is the cache of models?");
    if (put_path(hub_variable(name), folder, below, out, cap)) return RD_OK;
    return error_set(err, RD_E_INVALID, "$%s is too long for a path", name);
}

rd_status hub_cache_root(char root[LIMIT_PATH_BYTES / 4], struct rd_error *err)
{
    static const char *const own[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", NULL};

    return hub_home_path(own, "hub", root, LIMIT_PATH_BYTES / 4, err);
}

/* One folder, without a slash. */
static rd_status open_one(int dir, const char *name, bool make, int *fd, struct rd_error *err)
{
    *fd = -1;
    if (make && (file_call_fails() || (mkdirat(dir, name, 0777) && errno != EEXIST)))
        return hub_file_error(name, "cannot be made", err);
    if (!file_call_fails()) *fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *fd < 0 ? hub_file_error(name, "cannot be opened", err) : RD_OK;
}

rd_status hub_open_folder(int dir, const char *name, bool make, int *fd, struct rd_error *err)
{
    char part[256];
    rd_status st = RD_OK;
    int here = dir, next = -1;

    do {
        size_t n = strcspn(name, "/");

        if (!n || n >= sizeof(part)) st = error_set(err, RD_E_INVALID, "\"%.200s\" is no folder's name", name);
        if (st == RD_OK) {
            snprintf(part, sizeof(part), "%.*s", (int)n, name);
            st = open_one(here, part, make, &next, err);
        }
        if (here != dir) close(here);
        here = next;
        name += n + (name[n] == '/');
    } while (st == RD_OK && *name);
    *fd = st == RD_OK ? here : -1;
    return st;
}

rd_status hub_open_root(const char *root, bool make, int *fd, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];

    *fd = -1;
    if (snprintf(path, sizeof(path), "%s/", root) >= (int)sizeof(path))
        return error_set(err, RD_E_INVALID, "the path has more than %u bytes", LIMIT_PATH_BYTES - 2);
    for (char *slash = path + 1; make && (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (file_call_fails() || (mkdir(path, 0777) && errno != EEXIST && errno != EISDIR && access(path, X_OK)))
            return hub_file_error(path, "cannot be made", err);
        *slash = '/';
    }
    *fd = file_call_fails() ? -1 : open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *fd < 0 ? hub_file_error(root, "cannot be opened", err) : RD_OK;
}

/* A model's folder; when it will be written to, so that hub_repo_remove stays away. */
static rd_status open_in_use(int root, const char *name, bool make, int *fd, struct rd_error *err)
{
    struct stat s;
    rd_status st;
    bool has_lock;

    for (int tries = 0; tries < 100; tries++) {
        st = hub_open_folder(root, name, make, fd, err);
        if (st != RD_OK || !make) return st;
        has_lock = !file_call_fails() && !flock(*fd, LOCK_SH);
        if (has_lock && !fstat(*fd, &s) && s.st_nlink) return RD_OK; /* it was not removed while we waited */
        if (!has_lock && errno != EINTR) st = hub_file_error(name, "cannot be locked", err);
        close(*fd);
        *fd = -1;
        if (st != RD_OK) return st;
    }
    return error_set(err, RD_E_IO, "%s: cannot be locked", name);
}

rd_status hub_repo_open(const char *repo, bool make, struct hub_repo *out, struct rd_error *err)
{
    char root[LIMIT_PATH_BYTES / 4], name[HUB_REPO_BYTES + 16];
    const char *slash = strchr(repo, '/');
    rd_status st;

    *out = (struct hub_repo){.fd = -1, .root = -1};
    st = hub_cache_root(root, err);
    if (st != RD_OK) return st;
    snprintf(name, sizeof(name), "models--%.*s--%s", (int)(slash - repo), repo, slash + 1);
    snprintf(out->path, sizeof(out->path), "%s/%s", root, name);
    st = hub_open_root(root, make, &out->root, err);
    if (st == RD_OK) st = open_in_use(out->root, name, make, &out->fd, err);
    if (st != RD_OK) hub_repo_close(out);
    return st;
}

void hub_repo_close(struct hub_repo *r)
{
    if (r->fd >= 0) close(r->fd);
    if (r->root >= 0) close(r->root);
    r->fd = r->root = -1;
}

/* The folder of refs/a/b, and "b". */
static rd_status open_ref(const struct hub_repo *r, const char *revision, bool make, int *fd, const char **last,
                          struct rd_error *err)
{
    char folder[HUB_REVISION_BYTES + 8];
    const char *slash = strrchr(revision, '/');

    *last = slash ? slash + 1 : revision;
    if (slash)
        snprintf(folder, sizeof(folder), "refs/%.*s", (int)(slash - revision), revision);
    else
        snprintf(folder, sizeof(folder), "refs");
    return hub_open_folder(r->fd, folder, make, fd, err);
}

rd_status hub_repo_commit(const struct hub_repo *r, const char *revision, char commit[HUB_COMMIT_BYTES],
                          struct rd_error *err)
{
    char text[HUB_COMMIT_BYTES + 2] = "";
    const char *name;
    ssize_t n = -1;
    int dir, fd;
    rd_status st;

    if (hub_commit_is_safe(revision)) {
        snprintf(commit, HUB_COMMIT_BYTES, "%s", revision);
        return RD_OK;
    }
    if (!hub_revision_is_safe(revision)) return error_set(err, RD_E_INVALID, "\"%.100s\" is no revision", revision);
    st = open_ref(r, revision, false, &dir, &name, err);
    if (st != RD_OK) return st;
    fd = file_call_fails() ? -1 : openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) n = file_call_fails() ? -1 : read(fd, text, sizeof(text) - 1);
    st = n < 0 ? hub_file_error(name, "cannot be read", err) : RD_OK;
    if (fd >= 0) close(fd);
    close(dir);
    if (st != RD_OK) return st;
    while (n && strchr("\r\n ", text[n - 1])) n--;
    text[n] = 0;
    if (!hub_commit_is_safe(text)) return error_set(err, RD_E_FORMAT, "refs/%.100s holds no commit", revision);
    memcpy(commit, text, HUB_COMMIT_BYTES);
    return RD_OK;
}

/* A name that nobody else has. */
static void temporary_name(char name[48])
{
    unsigned long long number;

    random_os(&number, sizeof(number));
    snprintf(name, 48, ".radish-%016llx", number);
}

rd_status hub_repo_set_commit(const struct hub_repo *r, const char *revision, const char *commit, struct rd_error *err)
{
    char temporary[48];
    const char *name;
    size_t n = strlen(commit);
    int dir, fd = -1;
    rd_status st;

    if (hub_commit_is_safe(revision)) return RD_OK;
    if (!hub_revision_is_safe(revision) || !hub_commit_is_safe(commit))
        return error_set(err, RD_E_INVALID, "\"%.100s\" is no revision, or its commit none", revision);
    st = open_ref(r, revision, true, &dir, &name, err);
    if (st != RD_OK) return st;
    temporary_name(temporary);
    if (!file_call_fails()) fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 || file_call_fails() || write(fd, commit, n) != (ssize_t)n || file_call_fails() || os_sync(fd) ||
        file_call_fails() || renameat(dir, temporary, dir, name)) {
        st = hub_file_error(revision, "cannot be written", err);
        if (fd >= 0) unlinkat(dir, temporary, 0);
    }
    if (fd >= 0) close(fd);
    close(dir);
    return st;
}

bool hub_repo_has_blob(const struct hub_repo *r, const char *digest, uint64_t n_bytes)
{
    char name[HUB_DIGEST_BYTES + 8];
    struct stat s;

    snprintf(name, sizeof(name), "blobs/%s", digest);
    return !file_call_fails() && !fstatat(r->fd, name, &s, 0) && S_ISREG(s.st_mode) && (uint64_t)s.st_size == n_bytes;
}

/* "a/b/c" -> "../../" for what lies in a/b. */
static void climb(const char *path, char up[3 * HUB_DEPTH + 1])
{
    size_t n = 0;

    for (; *path && n < 3 * HUB_DEPTH; path++)
        if (*path == '/') memcpy(up + n, "../", 3), n += 3;
    up[n] = 0;
}

/* Whatever stands there is replaced at once. */
static rd_status put_link(int dir, const char *name, const char *target, struct rd_error *err)
{
    char temporary[48], now[LIMIT_PATH_BYTES];
    ssize_t n = readlinkat(dir, name, now, sizeof(now));
    rd_status st = RD_OK;

    if (n == (ssize_t)strlen(target) && !memcmp(now, target, (size_t)n)) return RD_OK;
    temporary_name(temporary);
    if (file_call_fails() || symlinkat(target, dir, temporary) || file_call_fails() ||
        renameat(dir, temporary, dir, name)) {
        st = hub_file_error(name, "cannot be linked", err);
        unlinkat(dir, temporary, 0);
    }
    return st;
}

rd_status hub_make_link(int dir, const char *name, const char *target, struct rd_error *err)
{
    struct stat s;

    if (!fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) && !S_ISLNK(s.st_mode))
        return error_set(err, RD_E_INVALID, "%.200s is there already, and no other name of something", name);
    return put_link(dir, name, target, err);
}

rd_status hub_repo_link(const struct hub_repo *r, const char *commit, const char *path, const char *digest,
                        struct rd_error *err)
{
    char folder[HUB_FILE_BYTES + 64], up[3 * HUB_DEPTH + 1], target[3 * HUB_DEPTH + 96];
    const char *slash = strrchr(path, '/');
    rd_status st;
    int dir;

    if (!hub_commit_is_safe(commit) || !hub_path_is_safe(path) || !hub_digest_is_safe(digest))
        return error_set(err, RD_E_INVALID, "\"%.100s\" is no safe name for a file", path);
    snprintf(folder, sizeof(folder), "snapshots/%s%s%.*s", commit, slash ? "/" : "", (int)(slash ? slash - path : 0),
             path);
    st = hub_open_folder(r->fd, folder, true, &dir, err);
    if (st != RD_OK) return st;
    climb(path, up);
    snprintf(target, sizeof(target), "../../%sblobs/%s", up, digest);
    st = put_link(dir, slash ? slash + 1 : path, target, err);
    close(dir);
    return st;
}

rd_status hub_repo_path(const struct hub_repo *r, const char *commit, const char *path, char out[LIMIT_PATH_BYTES],
                        struct rd_error *err)
{
    int n = snprintf(out, LIMIT_PATH_BYTES, "%s/snapshots/%s%s%s", r->path, commit, *path ? "/" : "", path);

    if (n > 0 && (unsigned)n < LIMIT_PATH_BYTES) return RD_OK;
    return error_set(err, RD_E_INVALID, "the path has more than %u bytes", LIMIT_PATH_BYTES - 1);
}

bool hub_whose_path(const char *path, char repo[HUB_REPO_BYTES], char commit[HUB_COMMIT_BYTES],
                    char file[HUB_FILE_BYTES])
{
    const char *at = strstr(path, "/models--"), *between, *end;

    if (!at) return false;
    at += strlen("/models--");
    between = strstr(at, "--");
    end = strstr(at, "/snapshots/");
    if (!between || !end || between > end) return false;
    if (snprintf(repo, HUB_REPO_BYTES, "%.*s/%.*s", (int)(between - at), at, (int)(end - between - 2), between + 2) >=
        HUB_REPO_BYTES)
        return false;
    end += strlen("/snapshots/");
    snprintf(commit, HUB_COMMIT_BYTES, "%.40s", end);
    if (!hub_commit_is_safe(commit) || !hub_ref_is(repo)) return false;
    end += strlen(commit);
    if (*end && *end != '/') return false;
    snprintf(file, HUB_FILE_BYTES, "%s", *end ? end + 1 : "");
    return !*file || hub_path_is_safe(file);
}
