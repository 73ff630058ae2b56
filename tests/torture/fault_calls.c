/* tests/torture/fault_calls.c - the C library's calls, defined by this program: each asks for a verdict, then does its work.
 *
 * What is not about files or sockets of the program (/proc, /sys, /dev) is left alone: a machine may lack them, and the
 * sanitizers read them.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>
#include "fault_calls.h"

#define SHOWN __attribute__((visibility("default"))) /* or libevent would not meet them */

static void *real(const char *name, _Atomic(void *) *at)
{
    void *f = *at;

    if (!f) *at = f = dlsym(RTLD_NEXT, name);
    return f;
}
/* REAL(f)(args): the C library's f. */
#define REAL(f) ((__typeof__(&f))real(#f, &real_##f))
#define CALL(f) static _Atomic(void *) real_##f;

static int fails(enum fault_kind kind)
{
    int error = fault_verdict(kind);

    if (error > 0) errno = error;
    return error;
}

CALL(fstat)

enum { OTHER, REGULAR, SOCK };
static int class_of(int fd)
{
    struct stat st;
    int keep = errno, rc = REAL(fstat)(fd, &st);

    errno = keep;
    return rc ? OTHER : S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) ? REGULAR : S_ISSOCK(st.st_mode) ? SOCK : OTHER;
}

static enum fault_kind reading(int fd)
{
    return (enum fault_kind[]){FAULT_READ_OTHER, FAULT_READ_FILE, FAULT_RECEIVE}[class_of(fd)];
}
static enum fault_kind writing(int fd)
{
    return (enum fault_kind[]){FAULT_WRITE_OTHER, FAULT_WRITE_FILE, FAULT_SEND}[class_of(fd)];
}

/* Of n bytes: how many go; -1: it fails. FAULT_END: none. */
static ssize_t share(enum fault_kind kind, size_t n)
{
    int error = fails(kind);

    if (error > 0) return -1;
    return error == FAULT_END ? 0 : error == FAULT_SHORT && n > 0 ? 1 : (ssize_t)n;
}

static bool is_ours(const char *path)
{
    return strncmp(path, "/proc/", 6) && strncmp(path, "/sys/", 5) && strncmp(path, "/dev/", 5);
}

/* ---- names ---- */

CALL(open)
CALL(openat)
CALL(stat)
CALL(lstat)
CALL(fstatat)
CALL(rename)
CALL(unlink)
CALL(unlinkat)
CALL(mkdir)
CALL(opendir)
CALL(utimensat)
CALL(statvfs)

static mode_t mode_arg(int flags, va_list args)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
}

SHOWN int open(const char *path, int flags, ...)
{
    va_list args;
    mode_t m;

    va_start(args, flags);
    m = mode_arg(flags, args);
    va_end(args);
    return is_ours(path) && fails(FAULT_OPEN) ? -1 : REAL(open)(path, flags, m);
}

SHOWN int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    mode_t m;

    va_start(args, flags);
    m = mode_arg(flags, args);
    va_end(args);
    return is_ours(path) && fails(FAULT_OPEN) ? -1 : REAL(openat)(dir, path, flags, m);
}

SHOWN int stat(const char *path, struct stat *st)
{
    return is_ours(path) && fails(FAULT_STAT) ? -1 : REAL(stat)(path, st);
}
SHOWN int lstat(const char *path, struct stat *st)
{
    return is_ours(path) && fails(FAULT_STAT) ? -1 : REAL(lstat)(path, st);
}
SHOWN int fstat(int fd, struct stat *st)
{
    return class_of(fd) == REGULAR && fails(FAULT_STAT) ? -1 : REAL(fstat)(fd, st);
}
SHOWN int fstatat(int dir, const char *path, struct stat *st, int flags)
{
    return fails(FAULT_STAT) ? -1 : REAL(fstatat)(dir, path, st, flags);
}
SHOWN int rename(const char *from, const char *to)
{
    return fails(FAULT_RENAME) ? -1 : REAL(rename)(from, to);
}
SHOWN int unlink(const char *path)
{
    return fails(FAULT_UNLINK) ? -1 : REAL(unlink)(path);
}
SHOWN int unlinkat(int dir, const char *path, int flags)
{
    return fails(FAULT_UNLINK) ? -1 : REAL(unlinkat)(dir, path, flags);
}
SHOWN int mkdir(const char *path, mode_t m)
{
    return fails(FAULT_MKDIR) ? -1 : REAL(mkdir)(path, m);
}
SHOWN DIR *opendir(const char *path)
{
    return is_ours(path) && fails(FAULT_LIST) ? NULL : REAL(opendir)(path);
}
SHOWN int utimensat(int dir, const char *path, const struct timespec t[2], int flags)
{
    return fails(FAULT_TOUCH) ? -1 : REAL(utimensat)(dir, path, t, flags);
}
SHOWN int statvfs(const char *path, struct statvfs *v)
{
    return fails(FAULT_ROOM) ? -1 : REAL(statvfs)(path, v);
}

/* ---- bytes ---- */

CALL(read)
CALL(pread)
CALL(write)
CALL(pwrite)
CALL(readv)
CALL(writev)
CALL(recv)
CALL(send)

SHOWN ssize_t read(int fd, void *p, size_t n)
{
    ssize_t part = share(reading(fd), n);

    return part <= 0 ? part : REAL(read)(fd, p, (size_t)part);
}
SHOWN ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    ssize_t part = share(FAULT_READ_FILE, n);

    return part <= 0 ? part : REAL(pread)(fd, p, (size_t)part, at);
}
SHOWN ssize_t write(int fd, const void *p, size_t n)
{
    ssize_t part = share(writing(fd), n);

    return part < 0 ? part : REAL(write)(fd, p, (size_t)part);
}
SHOWN ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    ssize_t part = share(FAULT_WRITE_FILE, n);

    return part < 0 ? part : REAL(pwrite)(fd, p, (size_t)part, at);
}
SHOWN ssize_t recv(int fd, void *p, size_t n, int flags)
{
    ssize_t part = share(FAULT_RECEIVE, n);

    return part < 0 ? part : REAL(recv)(fd, p, (size_t)part, flags);
}
SHOWN ssize_t send(int fd, const void *p, size_t n, int flags)
{
    ssize_t part = share(FAULT_SEND, n);

    return part < 0 ? part : REAL(send)(fd, p, (size_t)part, flags);
}

static struct iovec first_of(const struct iovec *v, int n, ssize_t part)
{
    struct iovec first = {NULL, 0};

    for (int i = 0; i < n && first.iov_len == 0; i++) first = v[i];
    if ((size_t)part < first.iov_len) first.iov_len = (size_t)part;
    return first;
}

SHOWN ssize_t readv(int fd, const struct iovec *v, int n)
{
    ssize_t part = share(reading(fd), 2);
    struct iovec first = first_of(v, n, part);

    if (part < 0) return -1;
    return part == 1 ? REAL(readv)(fd, &first, 1) : REAL(readv)(fd, v, n);
}
SHOWN ssize_t writev(int fd, const struct iovec *v, int n)
{
    ssize_t part = share(writing(fd), 2);
    struct iovec first = first_of(v, n, part);

    if (part < 0) return -1;
    return part == 1 ? REAL(writev)(fd, &first, 1) : REAL(writev)(fd, v, n);
}

/* ---- open files ---- */

CALL(close)
CALL(fsync)
CALL(fdatasync)
CALL(ftruncate)
CALL(fallocate)
CALL(flock)
CALL(mmap)

/* Closed all the same: the number is free after an error, too. */
SHOWN int close(int fd)
{
    int error = class_of(fd) == REGULAR ? fault_verdict(FAULT_CLOSE_FILE) : 0, rc = REAL(close)(fd);

    if (error) errno = error;
    return error ? -1 : rc;
}
SHOWN int fsync(int fd)
{
    return fails(FAULT_SYNC) ? -1 : REAL(fsync)(fd);
}
SHOWN int fdatasync(int fd)
{
    return fails(FAULT_SYNC) ? -1 : REAL(fdatasync)(fd);
}
SHOWN int ftruncate(int fd, off_t n)
{
    return fails(FAULT_TRUNCATE) ? -1 : REAL(ftruncate)(fd, n);
}
SHOWN int fallocate(int fd, int how, off_t at, off_t n)
{
    return fails(FAULT_ALLOCATE) ? -1 : REAL(fallocate)(fd, how, at, n);
}
SHOWN int flock(int fd, int how)
{
    return fails(FAULT_LOCK) ? -1 : REAL(flock)(fd, how);
}
SHOWN void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return fd >= 0 && fails(FAULT_MAP) ? MAP_FAILED : REAL(mmap)(at, n, protection, flags, fd, offset);
}

/* ---- sockets, the event loop, threads ---- */

CALL(socket)
CALL(bind)
CALL(listen)
CALL(getsockname)
CALL(setsockopt)
CALL(accept4)
CALL(epoll_create1)
CALL(epoll_ctl)
CALL(epoll_wait)
CALL(eventfd)
CALL(pipe2)
CALL(poll)
CALL(pthread_create)
CALL(getrandom)

SHOWN int socket(int domain, int type, int protocol)
{
    return fails(FAULT_SOCKET) ? -1 : REAL(socket)(domain, type, protocol);
}
SHOWN int bind(int fd, const struct sockaddr *a, socklen_t n)
{
    return fails(FAULT_BIND) ? -1 : REAL(bind)(fd, a, n);
}
SHOWN int listen(int fd, int n)
{
    return fails(FAULT_LISTEN) ? -1 : REAL(listen)(fd, n);
}
SHOWN int getsockname(int fd, struct sockaddr *a, socklen_t *n)
{
    return fails(FAULT_NAME) ? -1 : REAL(getsockname)(fd, a, n);
}
SHOWN int setsockopt(int fd, int level, int name, const void *p, socklen_t n)
{
    return fails(FAULT_OPTION) ? -1 : REAL(setsockopt)(fd, level, name, p, n);
}
/* A client that came is taken and lost where the error says so; else it waits on. */
SHOWN int accept4(int fd, struct sockaddr *a, socklen_t *n, int flags)
{
    int error = fails(FAULT_ACCEPT), taken;

    if (!error) return REAL(accept4)(fd, a, n, flags);
    if (error == ECONNABORTED || error == EPROTO) {
        taken = REAL(accept4)(fd, a, n, flags);
        if (taken < 0) return -1;
        REAL(close)(taken);
    }
    errno = error;
    return -1;
}
SHOWN int epoll_create1(int flags)
{
    return fails(FAULT_POLL_MAKE) ? -1 : REAL(epoll_create1)(flags);
}
SHOWN int epoll_ctl(int fd, int op, int of, struct epoll_event *e)
{
    return op != EPOLL_CTL_DEL && fails(FAULT_POLL_SET) ? -1 : REAL(epoll_ctl)(fd, op, of, e);
}
SHOWN int epoll_wait(int fd, struct epoll_event *e, int n, int ms)
{
    return fails(FAULT_POLL_WAIT) ? -1 : REAL(epoll_wait)(fd, e, n, ms);
}
SHOWN int eventfd(unsigned value, int flags)
{
    return fails(FAULT_PIPE) ? -1 : REAL(eventfd)(value, flags);
}
SHOWN int pipe2(int fd[2], int flags)
{
    return fails(FAULT_PIPE) ? -1 : REAL(pipe2)(fd, flags);
}
SHOWN int poll(struct pollfd *p, nfds_t n, int ms)
{
    return fails(FAULT_POLL_WAIT) ? -1 : REAL(poll)(p, n, ms);
}
SHOWN ssize_t getrandom(void *p, size_t n, unsigned flags)
{
    return fails(FAULT_RANDOM) ? -1 : REAL(getrandom)(p, n, flags);
}
SHOWN int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    int error = fault_verdict(FAULT_THREAD);

    return error ? error : REAL(pthread_create)(t, a, fn, arg);
}
