/* base/file_beneath.c - see file_beneath.h. */
#include "base/file_beneath.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/os_file.h"

#define FILE_FLAGS (O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

int file_beneath_open_dir(const char *path)
{
    return file_call_fails() ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Folder by folder, no link. */
static int open_walk(int dir, const char *path)
{
    int at = dup(dir), next;

    while (at >= 0) {
        char name[NAME_MAX + 1];
        size_t n = strcspn(path, "/");
        bool is_last = path[n] == 0;

        if (n > NAME_MAX || n == 0 || (n <= 2 && strspn(path, ".") == n)) {
            close(at);
            errno = ENOENT;
            return -1;
        }
        memcpy(name, path, n);
        name[n] = 0;
        next = openat(at, name, O_NOFOLLOW | (is_last ? FILE_FLAGS : O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        close(at);
        if (is_last) return next;
        at = next;
        path += n + strspn(path + n, "/");
    }
    return -1;
}

static int open_beneath(int dir, const char *path, bool walk)
{
    for (int i = 0; !walk && i < 4; i++) {
        int fd = os_open_beneath(dir, path, FILE_FLAGS);

        if (fd >= 0) return fd;
        if (errno == ENOSYS || errno == EPERM)
            break;                      /* another system, an old kernel, or a sandbox that does not know the call */
        if (errno != EAGAIN) return -1; /* again: something was renamed meanwhile */
    }
    return open_walk(dir, path);
}

static rd_status read_all(int fd, size_t most, void **data, size_t *n_out, struct rd_error *err)
{
    struct stat s;
    uint8_t *bytes;
    size_t n = 0;

    if (file_call_fails() || fstat(fd, &s)) return error_set(err, RD_E_IO, "the file cannot be read");
    if (!S_ISREG(s.st_mode)) return error_set(err, RD_E_INVALID, "it is no regular file");
    if ((uint64_t)s.st_size > most) return error_set(err, RD_E_LIMIT, "the file has more than %zu MiB", most >> 20);
    bytes = mem_alloc((size_t)s.st_size + 1, 1);
    if (!bytes) return error_set(err, RD_E_NOMEM, "out of memory for the file");
    while (n < (size_t)s.st_size) { /* what is written to it meanwhile is not waited for */
        ssize_t k = file_call_fails() ? -1 : pread(fd, bytes + n, (size_t)s.st_size - n, (off_t)n);

        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            mem_free(bytes);
            return error_set(err, RD_E_IO, "the file cannot be read");
        }
        if (k == 0) break;
        n += (size_t)k;
    }
    bytes[n] = 0;
    *data = bytes;
    *n_out = n;
    return RD_OK;
}

rd_status file_beneath_read(int dir, const char *path, size_t most, bool walk, void **data, size_t *n,
                            struct rd_error *err)
{
    rd_status st;
    int fd;

    *data = NULL;
    *n = 0;
    fd = file_call_fails() ? -1 : open_beneath(dir, path, walk);
    if (fd < 0 && errno == EIO) return error_set(err, RD_E_IO, "the file cannot be read");
    if (fd < 0) return error_set(err, RD_E_NOT_FOUND, "there is no such file that may be read");
    st = read_all(fd, most, data, n, err);
    close(fd);
    return st;
}
