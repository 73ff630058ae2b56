/* base/cache_dir.c - temporaries, locks, renames and the least recently used. */
#include "base/cache_dir.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file_calls.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os_file.h"
#include "base/random.h"

#define TEMPORARY "writing-" /* how a temporary's name begins */

static rd_status fail_with(struct rd_error *err, const char *what, const char *name)
{
    int e = errno;
    char quoted[128];
    rd_status st = e == ENOENT || e == ENOTDIR ? RD_E_NOT_FOUND : RD_E_IO;

    return error_set(err, st, "%s: %s: %s", error_quote(quoted, sizeof(quoted), name, strlen(name)), what, strerror(e));
}

static rd_status join(char path[LIMIT_PATH_BYTES], const char *dir, const char *name, struct rd_error *err)
{
    int n = snprintf(path, LIMIT_PATH_BYTES, "%s/%s", dir, name);

    if (n > 0 && (unsigned)n < LIMIT_PATH_BYTES) return RD_OK;
    return error_set(err, RD_E_INVALID, "the path of a cache file has more than %u bytes", LIMIT_PATH_BYTES - 1);
}

/* Ours, and writable by nobody else. */
static rd_status check_rights(const struct stat *st, const char *name, struct rd_error *err)
{
    char quoted[128];

    if (st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH))) return RD_OK;
    return error_set(err, RD_E_INVALID, "%s: belongs to user %u, rights %03o; wanted user %u and no writing by others",
                     error_quote(quoted, sizeof(quoted), name, strlen(name)), (unsigned)st->st_uid,
                     (unsigned)(st->st_mode & 0777), (unsigned)geteuid());
}

rd_status cache_dir_make(const char *dir, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct stat st;
    rd_status status = join(path, dir, "", err); /* with a slash at its end: every part ends at one */

    if (status != RD_OK) return status;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (file_call_fails() ||
            (file_calls->mkdir(path, 0700) && errno != EEXIST && errno != EISDIR && errno != EROFS && errno != EACCES))
            return fail_with(err, "mkdir", path);
        *slash = '/';
    }
    if (file_call_fails() || file_calls->stat(dir, &st)) return fail_with(err, "stat", dir);
    if (!S_ISDIR(st.st_mode)) return error_set(err, RD_E_INVALID, "the cache folder's name is taken by a file");
    return check_rights(&st, dir, err);
}

static rd_status map_checked(int fd, const char *name, struct file_map *out, struct rd_error *err)
{
    struct stat st;
    void *data = NULL;
    rd_status status;

    if (file_call_fails() || file_calls->fstat(fd, &st)) return fail_with(err, "stat", name);
    if (!S_ISREG(st.st_mode)) return error_set(err, RD_E_INVALID, "%s: not a regular file", name);
    if ((status = check_rights(&st, name, err)) != RD_OK) return status;
    if (st.st_size > 0) {
        data = file_call_fails() ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) return fail_with(err, "mmap", name);
    }
    *out = (struct file_map){.data = data, .n_bytes = (uint64_t)st.st_size, .fd = fd};
    return RD_OK;
}

rd_status cache_dir_map(const char *dir, const char *name, struct file_map *out, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    int fd;
    rd_status st = join(path, dir, name, err);

    if (st != RD_OK) return st;
    fd = file_call_fails() ? -1 : file_calls->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) return fail_with(err, "open", name);
    st = map_checked(fd, name, out, err);
    if (st != RD_OK) file_calls->close(fd);
    return st;
}

/* ---- writing ---- */

/* Room on disk now, so that a full one is noticed before the work is done. */
static int take_room(int fd, uint64_t n_bytes)
{
    if (file_call_fails()) return -1;
    if (n_bytes == 0 || file_calls->take_room(fd, (off_t)n_bytes) == 0) return 0;
    return errno == EOPNOTSUPP ? file_calls->ftruncate(fd, (off_t)n_bytes) : -1;
}

rd_status cache_file_create(const char *dir, uint64_t n_bytes, struct cache_file *out, struct rd_error *err)
{
    struct cache_file f = {-1, NULL};
    char path[LIMIT_PATH_BYTES], name[64];
    uint64_t unique;
    rd_status st;

    *out = f;
    random_os(&unique, sizeof(unique));
    snprintf(name, sizeof(name), TEMPORARY "%016" PRIx64, unique);
    if ((st = join(path, dir, name, err)) != RD_OK) return st;
    f.path = mem_strdup(path);
    if (!f.path) return error_set(err, RD_E_NOMEM, "no memory for a path");
    f.fd = file_call_fails() ? -1 : file_calls->open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f.fd < 0) {
        st = fail_with(err, "create", name);
        mem_free(f.path);
        return st;
    }
    /* The lock says that the writer lives. One who tidies up may hold it for a moment: then the file is theirs. */
    if (file_call_fails() || file_calls->flock(f.fd, LOCK_EX | LOCK_NB))
        st = fail_with(err, "lock", name);
    else if (take_room(f.fd, n_bytes))
        st = fail_with(err, "reserve", name);
    if (st != RD_OK) {
        cache_file_abandon(&f);
        return st;
    }
    *out = f;
    return RD_OK;
}

rd_status cache_file_write(struct cache_file *f, uint64_t offset, const void *data, size_t n, struct rd_error *err)
{
    const char *p = data;

    while (n > 0) {
        ssize_t put = file_call_fails() ? -1 : file_calls->pwrite(f->fd, p, n, (off_t)offset);

        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        if (put <= 0) return fail_with(err, "write", f->path);
        p += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return RD_OK;
}

rd_status cache_file_sync(const struct cache_file *f, struct rd_error *err)
{
    if (file_call_fails() || file_calls->sync_data(f->fd)) return fail_with(err, "sync", f->path);
    return RD_OK;
}

rd_status cache_file_commit(struct cache_file *f, const char *dir, const char *name, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st = join(path, dir, name, err);

    if (st == RD_OK && (file_call_fails() || file_calls->rename(f->path, path))) st = fail_with(err, "rename", name);
    if (st != RD_OK) {
        cache_file_abandon(f);
        return st;
    }
    mem_free(f->path); /* the name is given: the lock means nothing any more */
    file_calls->close(f->fd);
    *f = (struct cache_file){-1, NULL};
    return RD_OK;
}

void cache_file_abandon(struct cache_file *f)
{
    if (!f->path) return;
    file_calls->unlink(f->path);
    mem_free(f->path);
    file_calls->close(f->fd);
    *f = (struct cache_file){-1, NULL};
}

/* ---- the folder ---- */

rd_status cache_dir_list(const char *dir, bool (*fn)(void *arg, const char *name), void *arg)
{
    void *d = file_call_fails() ? NULL : file_calls->dir_open(dir);
    const char *name;

    if (!d) return RD_E_IO;
    while ((name = file_calls->dir_next(d)))
        if (name[0] != '.' && strncmp(name, TEMPORARY, strlen(TEMPORARY)) && !fn(arg, name)) break;
    file_calls->dir_close(d);
    return RD_OK;
}

void cache_dir_touch(const char *dir, const char *name)
{
    char path[LIMIT_PATH_BYTES];

    if (join(path, dir, name, NULL) != RD_OK || file_call_fails()) return;
    (void)file_calls->utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
}

void cache_dir_remove(const char *dir, const char *name)
{
    char path[LIMIT_PATH_BYTES];

    if (join(path, dir, name, NULL) == RD_OK && !file_call_fails()) (void)file_calls->unlink(path);
}

/* A temporary that can be locked has no writer any more. */
static void remove_if_left(int dir_fd, const char *name)
{
    int fd = file_call_fails() ? -1 : file_calls->openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0) return;
    if (file_calls->flock(fd, LOCK_EX | LOCK_NB) == 0) (void)file_calls->unlinkat(dir_fd, name, 0);
    file_calls->close(fd);
}

struct usage {
    uint64_t n_bytes;
    struct timespec oldest;
    char name[256];
};

static bool is_older(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

static void look_over(void *d, const char *suffix, const char *keep, struct usage *u)
{
    const char *name;

    *u = (struct usage){0};
    file_calls->dir_rewind(d);
    while ((name = file_calls->dir_next(d))) {
        size_t n = strlen(name), n_suffix = strlen(suffix);
        struct stat st;

        if (!strncmp(name, TEMPORARY, strlen(TEMPORARY))) {
            remove_if_left(file_calls->dir_fd(d), name);
            continue;
        }
        if (n <= n_suffix || strcmp(name + n - n_suffix, suffix)) continue;
        if (file_call_fails() || file_calls->fstatat(file_calls->dir_fd(d), name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        u->n_bytes += (uint64_t)st.st_size;
        if (keep && !strcmp(name, keep)) continue;
        if (u->name[0] && !is_older(os_changed(&st), u->oldest)) continue;
        u->oldest = os_changed(&st);
        snprintf(u->name, sizeof(u->name), "%s", name);
    }
}

void cache_dir_tidy(const char *dir, const char *suffix, uint64_t cap_bytes, const char *keep)
{
    void *d = file_call_fails() ? NULL : file_calls->dir_open(dir);
    struct usage u;

    if (!d) return;
    for (look_over(d, suffix, keep, &u); u.n_bytes > cap_bytes && u.name[0]; look_over(d, suffix, keep, &u))
        if (file_call_fails() || file_calls->unlinkat(file_calls->dir_fd(d), u.name, 0)) break;
    file_calls->dir_close(d);
}
