/* base/data_file.c - open, pread, pwrite, fdatasync, flock, each through the fault hook. */
#include "base/data_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/file.h"
#include "base/file_calls.h"
#include "base/limits.h"
#include "base/os_file.h"

static rd_status from_errno(void)
{
    return errno == ENOENT || errno == ENOTDIR ? RD_E_NOT_FOUND : errno == ELOOP ? RD_E_INVALID : RD_E_IO;
}

static bool join(char path[LIMIT_PATH_BYTES], const char *dir, const char *name)
{
    int n = snprintf(path, LIMIT_PATH_BYTES, "%s/%s", dir, name);

    if (n > 0 && (unsigned)n < LIMIT_PATH_BYTES) return true;
    errno = ENAMETOOLONG;
    return false;
}

/* A regular file of ours that nobody else may write to. */
static rd_status check_rights(int fd)
{
    struct stat st;

    if (file_call_fails() || file_calls->fstat(fd, &st)) return RD_E_IO;
    if (S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH))) return RD_OK;
    errno = EPERM;
    return RD_E_INVALID;
}

static rd_status open_with(const char *dir, const char *name, int flags, struct data_file *out)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st;
    int fd;

    *out = DATA_FILE_CLOSED;
    if (!join(path, dir, name)) return RD_E_INVALID;
    if (file_call_fails()) return RD_E_IO;
    fd = file_calls->open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0) return from_errno();
    st = check_rights(fd);
    if (st == RD_OK)
        out->fd = fd;
    else
        file_calls->close(fd);
    return st;
}

rd_status data_file_open(const char *dir, const char *name, enum data_file_mode mode, struct data_file *out)
{
    static const int flags[] = {O_RDONLY, O_RDWR, O_RDWR | O_CREAT | O_EXCL};

    return open_with(dir, name, flags[mode], out);
}

void data_file_close(struct data_file *f)
{
    if (f->fd >= 0) file_calls->close(f->fd);
    *f = DATA_FILE_CLOSED;
}

rd_status data_file_size(const struct data_file *f, uint64_t *n_bytes)
{
    struct stat st;

    if (file_call_fails() || file_calls->fstat(f->fd, &st)) return RD_E_IO;
    *n_bytes = (uint64_t)st.st_size;
    return RD_OK;
}

rd_status data_file_read(const struct data_file *f, uint64_t offset, void *data, size_t n)
{
    uint8_t *p = data;

    while (n > 0) {
        ssize_t got = file_call_fails() ? -1 : file_calls->pread(f->fd, p, n, (off_t)offset);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return RD_E_IO;
        if (got == 0) return RD_E_FORMAT;
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return RD_OK;
}

rd_status data_file_write(const struct data_file *f, uint64_t offset, const void *data, size_t n)
{
    const uint8_t *p = data;

    while (n > 0) {
        ssize_t put = file_call_fails() ? -1 : file_calls->pwrite(f->fd, p, n, (off_t)offset);

        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        if (put <= 0) return RD_E_IO;
        p += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return RD_OK;
}

rd_status data_file_sync(const struct data_file *f)
{
    return file_call_fails() || file_calls->sync_data(f->fd) ? RD_E_IO : RD_OK;
}

rd_status data_file_truncate(const struct data_file *f, uint64_t n_bytes)
{
    return file_call_fails() || file_calls->ftruncate(f->fd, (off_t)n_bytes) ? RD_E_IO : RD_OK;
}

rd_status data_file_give_back(const struct data_file *f, uint64_t offset, uint64_t n_bytes)
{
    return file_call_fails() || file_calls->give_back(f->fd, (off_t)offset, (off_t)n_bytes) ? RD_E_IO : RD_OK;
}

rd_status data_file_room(const char *dir, uint64_t *n_free, uint64_t *n_total)
{
    struct statvfs v;

    if (file_call_fails() || file_calls->statvfs(dir, &v)) return RD_E_IO;
    *n_free = (uint64_t)v.f_bavail * v.f_frsize;
    *n_total = (uint64_t)v.f_blocks * v.f_frsize;
    return RD_OK;
}

rd_status data_file_is_at(const struct data_file *f, const char *dir, const char *name)
{
    char path[LIMIT_PATH_BYTES];
    struct stat ours, there;

    if (!join(path, dir, name)) return RD_E_INVALID;
    if (file_call_fails() || file_calls->fstat(f->fd, &ours)) return RD_E_IO;
    if (file_calls->lstat(path, &there)) return from_errno();
    return ours.st_dev == there.st_dev && ours.st_ino == there.st_ino ? RD_OK : RD_E_NOT_FOUND;
}

rd_status data_file_used(const struct data_file *f, int64_t *used_s)
{
    struct stat st;

    if (file_call_fails() || file_calls->fstat(f->fd, &st)) return RD_E_IO;
    *used_s = os_changed(&st).tv_sec;
    return RD_OK;
}

rd_status data_file_set_used(const char *dir, const char *name, int64_t used_s)
{
    char path[LIMIT_PATH_BYTES];
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = used_s}};

    if (!join(path, dir, name)) return RD_E_INVALID;
    if (file_call_fails()) return RD_E_IO;
    return file_calls->utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) ? from_errno() : RD_OK;
}

rd_status data_file_remove(const char *dir, const char *name)
{
    char path[LIMIT_PATH_BYTES];

    if (!join(path, dir, name)) return RD_E_INVALID;
    if (file_call_fails()) return RD_E_IO;
    return file_calls->unlink(path) ? from_errno() : RD_OK;
}

rd_status data_file_sync_dir(const char *dir)
{
    int fd = file_call_fails() ? -1 : file_calls->open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    rd_status st = RD_OK;

    if (fd < 0) return from_errno();
    if (file_call_fails() || (file_calls->sync(fd) && errno != EINVAL)) st = RD_E_IO;
    file_calls->close(fd);
    return st;
}

/* Closes it where another has the lock. */
static rd_status take_lock(struct data_file *f)
{
    rd_status st;

    if (!file_call_fails() && file_calls->flock(f->fd, LOCK_EX | LOCK_NB) == 0) return RD_OK;
    st = errno == EWOULDBLOCK ? RD_E_AGAIN : RD_E_IO;
    data_file_close(f);
    return st;
}

rd_status data_file_lock(const char *dir, const char *name, struct data_file *out)
{
    rd_status st = open_with(dir, name, O_RDWR | O_CREAT, out);

    return st == RD_OK ? take_lock(out) : st;
}

rd_status data_file_lock_dir(const char *dir, struct data_file *out)
{
    *out = DATA_FILE_CLOSED;
    if (!file_call_fails()) out->fd = file_calls->open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    return out->fd >= 0 ? take_lock(out) : from_errno();
}

const char *data_file_reason(char *buf, size_t cap)
{
    snprintf(buf, cap, "%s", strerror(errno));
    return buf;
}
