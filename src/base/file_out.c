/* base/file_out.c - see file_out.h. */
#include "base/file_out.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/os_file.h"
#include "base/os_machine.h"

static rd_status failed(const struct file_out *f, const char *what, struct rd_error *err)
{
    char reason[128];
    int code = errno;

    return error_set(err, code == ENOENT ? RD_E_NOT_FOUND : RD_E_IO, "%.300s: %s: %s", f->path, what,
                     os_error_text(code, reason, sizeof(reason)));
}

static rd_status open_it(const char *path, mode_t mode, struct file_out *out, struct rd_error *err)
{
    struct stat s;
    int n;

    out->fd = -1;
    out->n_bytes = 0;
    n = snprintf(out->temporary, sizeof(out->temporary), "%s.part-%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof(out->temporary))
        return error_set(err, RD_E_LIMIT, "the path of the output has %zu bytes, at most %u", strlen(path),
                         LIMIT_PATH_BYTES - 32);
    snprintf(out->path, sizeof(out->path), "%s", path);
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return error_set(err, RD_E_INVALID, "%.300s: there already, and no regular file", path);
    if (!file_call_fails()) out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    return out->fd < 0 ? failed(out, "cannot be made", err) : RD_OK;
}

rd_status file_out_open(const char *path, struct file_out *out, struct rd_error *err)
{
    return open_it(path, 0666, out, err);
}

rd_status file_out_open_as(const char *path, uint32_t mode, struct file_out *out, struct rd_error *err)
{
    rd_status st = open_it(path, 0600, out, err);

    if (st != RD_OK || fchmod(out->fd, (mode_t)mode) == 0) return st;
    st = failed(out, "cannot have its permissions", err);
    file_out_abandon(out);
    return st;
}

rd_status file_out_write(struct file_out *f, const void *data, size_t n, struct rd_error *err)
{
    const char *p = data;

    while (n) {
        size_t part = n < (size_t)1 << 30 ? n : (size_t)1 << 30;
        ssize_t wrote = file_call_fails() ? -1 : write(f->fd, p, part);

        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return failed(f, "cannot be written", err);
        p += wrote;
        n -= (size_t)wrote;
        f->n_bytes += (uint64_t)wrote;
    }
    return RD_OK;
}

rd_status file_out_commit(struct file_out *f, struct rd_error *err)
{
    rd_status st = RD_OK;
    int fd = f->fd;

    if (file_call_fails() || os_sync(fd) != 0) st = failed(f, "cannot be written to the disk", err);
    f->fd = -1;
    if (close(fd) != 0 && st == RD_OK) st = failed(f, "cannot be closed", err);
    if (st == RD_OK && (file_call_fails() || rename(f->temporary, f->path) != 0))
        st = failed(f, "cannot be renamed to its name", err);
    if (st != RD_OK) unlink(f->temporary);
    return st;
}

void file_out_abandon(struct file_out *f)
{
    if (f->fd < 0) return;
    close(f->fd);
    f->fd = -1;
    unlink(f->temporary);
}

rd_status file_out_all(const char *path, const void *data, size_t n, struct rd_error *err)
{
    struct file_out f;
    rd_status st = file_out_open(path, &f, err);

    if (st != RD_OK) return st;
    st = file_out_write(&f, data, n, err);
    if (st == RD_OK) return file_out_commit(&f, err);
    file_out_abandon(&f);
    return st;
}

rd_status file_out_folder(const char *dir, struct rd_error *err)
{
    struct file_out f = {.fd = -1}, probe;
    struct stat s;
    int n = snprintf(f.path, sizeof(f.path), "%s/", dir); /* with a slash at its end: every part ends at one */
    rd_status st;

    if (n < 0 || (size_t)n >= sizeof(f.path) - 32)
        return error_set(err, RD_E_LIMIT, "the path of the output has %zu bytes, at most %u", strlen(dir),
                         LIMIT_PATH_BYTES - 32);
    for (char *slash = strchr(f.path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (file_call_fails()) return failed(&f, "cannot be made", err);
        if (mkdir(f.path, 0777) != 0) {
            int why = errno;

            if (stat(f.path, &s) != 0) { /* that there is none is no reason */
                errno = why;
                return failed(&f, "cannot be made", err);
            }
        }
        *slash = '/';
    }
    if (file_call_fails() || stat(dir, &s) != 0) return failed(&f, "cannot be read", err);
    if (!S_ISDIR(s.st_mode)) return error_set(err, RD_E_INVALID, "%.300s: there already, and no folder", dir);
    memcpy(f.path + n, "probe", sizeof("probe"));
    st = file_out_open(f.path, &probe, err);
    file_out_abandon(&probe);
    return st;
}

void file_out_no_folder(const char *dir)
{
    (void)rmdir(dir); /* that it is not empty is no failure */
}
