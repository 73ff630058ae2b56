/* base/file.c - the file calls, each through the fault hook, and what turns a SIGBUS of a mapped file into an error. */
#include "base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/error.h"
#include "base/mem.h"
#include "base/os_file.h"
#include "base/random.h"
#include "base/thread.h"

/* ---- the table of calls: every one may fail by the hook first ---- */

#define FILE_NEVER UINT64_MAX

/* Any thread; relaxed: a count and a test hook. */
static _Atomic uint64_t n_calls;
static _Atomic uint64_t fail_at = FILE_NEVER, fail_from = FILE_NEVER, fail_seed;
static _Atomic uint32_t fail_one_in;
static _Atomic int fail_errno;

void file_fail_after(int64_t i)
{
    uint64_t now = atomic_load_explicit(&n_calls, memory_order_relaxed);

    atomic_store_explicit(&fail_at, i < 0 ? FILE_NEVER : now + (uint64_t)i, memory_order_relaxed);
}

uint64_t file_n_calls(void)
{
    return atomic_load_explicit(&n_calls, memory_order_relaxed);
}

void file_fail_from(int64_t i, int error)
{
    uint64_t now = atomic_load_explicit(&n_calls, memory_order_relaxed);

    atomic_store_explicit(&fail_errno, error, memory_order_relaxed);
    atomic_store_explicit(&fail_from, i < 0 ? FILE_NEVER : now + (uint64_t)i, memory_order_relaxed);
}

void file_fail_one_in(uint32_t n, uint64_t seed)
{
    atomic_store_explicit(&fail_seed, seed, memory_order_relaxed);
    atomic_store_explicit(&fail_one_in, n, memory_order_relaxed);
}

bool file_call_fails(void)
{
    uint64_t k = atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    uint32_t n = atomic_load_explicit(&fail_one_in, memory_order_relaxed);

    if (k >= atomic_load_explicit(&fail_from, memory_order_relaxed)) {
        errno = atomic_load_explicit(&fail_errno, memory_order_relaxed);
        return true;
    }
    if (k != atomic_load_explicit(&fail_at, memory_order_relaxed) &&
        (n == 0 || random_at(atomic_load_explicit(&fail_seed, memory_order_relaxed), k) % n != 0))
        return false;
    errno = EIO;
    return true;
}

static int call_open(const char *path, int flags)
{
    return file_call_fails() ? -1 : open(path, flags, 0666);
}
static int call_stat(const char *path, struct stat *st)
{
    return file_call_fails() ? -1 : stat(path, st);
}
static int call_fstat(int fd, struct stat *st)
{
    return file_call_fails() ? -1 : fstat(fd, st);
}
static ssize_t call_read(int fd, void *p, size_t n)
{
    return file_call_fails() ? -1 : read(fd, p, n);
}
static ssize_t call_write(int fd, const void *p, size_t n)
{
    return file_call_fails() ? -1 : write(fd, p, n);
}
static int call_rename(const char *from, const char *to)
{
    return file_call_fails() ? -1 : rename(from, to);
}

static void *call_mmap(int fd, size_t n)
{
    return file_call_fails() ? MAP_FAILED : mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
}

/* A close that fails after writing means lost bytes; the descriptor is gone either way. */
static int call_close(int fd)
{
    bool fails = file_call_fails();
    int rc = close(fd);

    if (fails) errno = EIO;
    return fails ? -1 : rc;
}

/* ---- opening ---- */

static const char *quoted_name(const char *path, char *buf, size_t cap)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash && slash[1] ? slash + 1 : path;

    return error_quote(buf, cap, name, strlen(name));
}

/* From errno. */
static rd_status io_error(struct rd_error *err, const char *what, const char *path)
{
    char name[128];
    int e = errno;
    rd_status st = e == ENOENT || e == ENOTDIR ? RD_E_NOT_FOUND : e == ENXIO ? RD_E_INVALID : RD_E_IO;

    return error_set(err, st, "%s: %s: %s", quoted_name(path, name, sizeof(name)), what, strerror(e));
}

/* From errno, of a file that is to be read: what is usual in plain words. */
static rd_status cannot_read(struct rd_error *err, const char *what, const char *path)
{
    char name[128];

    if (errno == ENOENT || errno == ENOTDIR)
        return error_set(err, RD_E_NOT_FOUND, "%s: there is no such file", quoted_name(path, name, sizeof(name)));
    if (errno == EACCES || errno == EPERM)
        return error_set(err, RD_E_IO, "%s: this user may not read it", quoted_name(path, name, sizeof(name)));
    return io_error(err, what, path);
}

static rd_status refuse_irregular(const struct stat *st, const char *path, struct rd_error *err)
{
    char name[128];
    const char *kind = S_ISDIR(st->st_mode)    ? "a directory"
                       : S_ISFIFO(st->st_mode) ? "a FIFO"
                       : S_ISSOCK(st->st_mode) ? "a socket"
                                               : "a device";

    if (S_ISREG(st->st_mode)) return RD_OK;
    return error_set(err, RD_E_INVALID, "%s: is %s, wanted a regular file", quoted_name(path, name, sizeof(name)),
                     kind);
}

/* Looks before it opens (opening a device can do something), and again after (the name may have changed hands). */
static rd_status open_regular(const char *path, int *fd_out, uint64_t *n_bytes, struct rd_error *err)
{
    struct stat st;
    rd_status status;
    int fd;

    if (call_stat(path, &st)) return cannot_read(err, "stat", path);
    status = refuse_irregular(&st, path, err);
    if (status) return status;
    fd = call_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return cannot_read(err, "open", path);
    status = call_fstat(fd, &st) ? io_error(err, "stat", path) : refuse_irregular(&st, path, err);
    if (status) {
        close(fd);
        return status;
    }
    *fd_out = fd;
    *n_bytes = (uint64_t)st.st_size;
    return RD_OK;
}

void file_keep_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) /* open() takes the lowest number that is free */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) != fd) return;
}

_Static_assert(LIMIT_PATH_BYTES >= PATH_MAX, "realpath writes so much");
bool file_real_path(const char *path, char out[LIMIT_PATH_BYTES])
{
    return realpath(path, out) != NULL;
}

bool file_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

/* ---- maps ---- */

rd_status file_map_open(const char *path, struct file_map *out, struct rd_error *err)
{
    uint64_t n_bytes;
    void *data = NULL;
    int fd;
    rd_status st = open_regular(path, &fd, &n_bytes, err);

    if (st) return st;
    if (n_bytes > 0) {
        data = call_mmap(fd, n_bytes);
        if (data == MAP_FAILED) {
            st = io_error(err, "mmap", path);
            close(fd);
            return st;
        }
    }
    *out = (struct file_map){.data = data, .n_bytes = n_bytes, .fd = fd};
    return RD_OK;
}

static void unwatch(struct file_map *map);

void file_map_close(struct file_map *map)
{
    unwatch(map);
    if (map->data) {
        munmap((void *)(uintptr_t)map->data, map->n_bytes);
        close(map->fd);
    } else if (map->fd > 0) {
        close(map->fd);
    }
    *map = (struct file_map){.fd = -1};
}

bool file_map_unchanged(const struct file_map *map)
{
    struct stat st;

    return fstat(map->fd, &st) == 0 && (uint64_t)st.st_size >= map->n_bytes;
}

void file_populate(const void *bytes, uint64_t n_bytes)
{
    uintptr_t before = (uintptr_t)bytes % (uintptr_t)sysconf(_SC_PAGESIZE);

    os_populate((const uint8_t *)bytes - before, (size_t)(n_bytes + before));
}

void file_map_populate(const struct file_map *map, uint64_t offset, uint64_t n_bytes)
{
    if (offset < map->n_bytes && n_bytes <= map->n_bytes - offset) file_populate(map->data + offset, n_bytes);
}

static int64_t in_ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

rd_status file_map_identity(const struct file_map *map, uint64_t settle_ns, struct file_identity *out, bool *settled)
{
    struct timespec now;
    struct stat st;

    if (map->fd < 0 || call_fstat(map->fd, &st)) return RD_E_IO;
    *out = (struct file_identity){st.st_dev, st.st_ino, (uint64_t)st.st_size, in_ns(os_changed(&st)),
                                  in_ns(os_status_changed(&st))};
    clock_gettime(CLOCK_REALTIME, &now);
    *settled = in_ns(now) - out->ctime_ns >= (int64_t)settle_ns && in_ns(now) - out->mtime_ns >= (int64_t)settle_ns;
    return RD_OK;
}

/* The guard of a thread: where to jump, and for which addresses. The handler reads its own thread's only, and a fault
 * is raised by the very instruction that touched the map, so no other ordering is needed. */
struct guard {
    const uint8_t *data;
    uint64_t n_bytes;
    sigjmp_buf back;
};
static _Thread_local struct guard *volatile current_guard;

static struct mutex guard_lock = {PTHREAD_MUTEX_INITIALIZER};
static unsigned n_guards; /* under guard_lock, watches included: our handler is there while it is not 0 */
static struct sigaction previous_action;

/* Watched maps. Written under guard_lock, read by the handler of any thread: a thread that reads a map has been given
 * it after the entry was complete (release on data, acquire in the handler). broken: set by the handler, read by
 * whoever used the bytes, after the fault in its own thread or one that it has waited for. */
static struct watch {
    _Atomic(const uint8_t *) data;
    _Atomic uint64_t n_bytes;
    atomic_bool broken;
} watches[FILE_MAX_WATCHES];
static uintptr_t page_bytes;

/* The rest of the map that at lies in becomes zeros. mmap is a plain system call: fit for a signal handler. */
static bool mend_watched(const uint8_t *at)
{
    int keep = errno;

    for (unsigned i = 0; i < FILE_MAX_WATCHES; i++) {
        const uint8_t *data = atomic_load_explicit(&watches[i].data, memory_order_acquire), *page, *end;

        if (!data) continue;
        end = data + (atomic_load_explicit(&watches[i].n_bytes, memory_order_relaxed) + page_bytes - 1) / page_bytes *
                         page_bytes;
        if (at < data || at >= end) continue;
        page = at - (uintptr_t)at % page_bytes;
        atomic_store_explicit(&watches[i].broken, true, memory_order_release);
        page = mmap((void *)(uintptr_t)page, (size_t)(end - page), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0);
        errno = keep;
        return page != MAP_FAILED;
    }
    return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    struct guard *g = current_guard;
    const uint8_t *at = info->si_addr;

    if (g && at >= g->data && at < g->data + g->n_bytes) siglongjmp(g->back, 1);
    if (mend_watched(at)) return;
    if (previous_action.sa_flags & SA_SIGINFO) {
        previous_action.sa_sigaction(sig, info, context);
    } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
        previous_action.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL); /* not ours: the instruction faults again and the process ends as it would */
    }
}

static void guard_enter(void)
{
    mutex_lock(&guard_lock);
    if (n_guards++ == 0) {
        struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &previous_action);
    }
    mutex_unlock(&guard_lock);
}

static void guard_leave(void)
{
    mutex_lock(&guard_lock);
    if (--n_guards == 0) sigaction(SIGBUS, &previous_action, NULL);
    mutex_unlock(&guard_lock);
}

rd_status file_map_watch(struct file_map *map, struct rd_error *err)
{
    if (map->watch || !map->data) return RD_OK;
    guard_enter();
    mutex_lock(&guard_lock);
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (unsigned i = 0; i < FILE_MAX_WATCHES && !map->watch; i++) {
        if (atomic_load_explicit(&watches[i].data, memory_order_relaxed)) continue;
        atomic_store_explicit(&watches[i].broken, false, memory_order_relaxed);
        atomic_store_explicit(&watches[i].n_bytes, map->n_bytes, memory_order_relaxed);
        atomic_store_explicit(&watches[i].data, map->data, memory_order_release);
        map->watch = i + 1;
    }
    mutex_unlock(&guard_lock);
    if (map->watch) return RD_OK;
    guard_leave();
    return error_set(err, RD_E_LIMIT, "%u files are mapped already", FILE_MAX_WATCHES);
}

static void unwatch(struct file_map *map)
{
    if (!map->watch) return;
    mutex_lock(&guard_lock);
    atomic_store_explicit(&watches[map->watch - 1].data, NULL, memory_order_release);
    mutex_unlock(&guard_lock);
    map->watch = 0;
    guard_leave();
}

bool file_map_broken(const struct file_map *map)
{
    return map->watch && atomic_load_explicit(&watches[map->watch - 1].broken, memory_order_acquire);
}

rd_status file_map_guard(const struct file_map *map, rd_status (*fn)(void *arg), void *arg, struct rd_error *err)
{
    struct guard guard = {.data = map->data, .n_bytes = map->n_bytes};
    volatile rd_status st = RD_E_IO;

    guard_enter();
    if (sigsetjmp(guard.back, 1) == 0) {
        current_guard = &guard;
        st = fn(arg);
    } else {
        st = error_set(err, RD_E_IO,
                       "the file became shorter than %" PRIu64 " bytes, or its disk failed, while it was read",
                       map->n_bytes);
    }
    current_guard = NULL;
    guard_leave();
    return st;
}

/* ---- whole small files ---- */

rd_status file_read_all(const char *path, size_t max, char **data, size_t *n, struct rd_error *err)
{
    char name[128], *p = NULL;
    uint64_t n_bytes;
    size_t have = 0;
    int fd;
    rd_status st = open_regular(path, &fd, &n_bytes, err);

    if (st) return st;
    if (n_bytes > max) {
        st = error_set(err, RD_E_LIMIT, "%s: %" PRIu64 " bytes, at most %zu", quoted_name(path, name, sizeof(name)),
                       n_bytes, max);
        goto fail;
    }
    p = mem_alloc(n_bytes + 1, 1);
    if (!p) {
        st = error_set(err, RD_E_NOMEM, "%s: no memory for %" PRIu64 " bytes", quoted_name(path, name, sizeof(name)),
                       n_bytes);
        goto fail;
    }
    while (have < n_bytes) {
        ssize_t got = call_read(fd, p + have, n_bytes - have);
        if (got == 0) break; /* it shrank: what is there is the file */
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            st = io_error(err, "read", path);
            goto fail;
        }
        have += (size_t)got;
    }
    close(fd);
    p[have] = 0;
    *data = p;
    *n = have;
    return RD_OK;

fail:
    mem_free(p);
    close(fd);
    return st;
}

/* Under a name of its own first, then renamed: a reader sees the old file or the new one, never half of it. */
rd_status file_write_all(const char *path, const void *data, size_t n, struct rd_error *err)
{
    const char *p = data;
    size_t size = strlen(path) + 32, done = 0;
    char *temporary = mem_alloc(size, 1);
    uint64_t unique;
    rd_status st;
    int fd = -1;

    if (!temporary) return error_set(err, RD_E_NOMEM, "no memory for a path");
    random_os(&unique, sizeof(unique));
    snprintf(temporary, size, "%s.%016" PRIx64, path, unique);
    fd = call_open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
    if (fd < 0) {
        st = io_error(err, "create", path);
        goto done;
    }
    while (done < n) {
        ssize_t put = call_write(fd, p + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            st = io_error(err, "write", path);
            close(fd);
            goto remove;
        }
        done += (size_t)put;
    }
    if (call_close(fd)) {
        st = io_error(err, "close", path);
        goto remove;
    }
    if (call_rename(temporary, path)) {
        st = io_error(err, "rename", path);
        goto remove;
    }
    st = RD_OK;
    goto done;

remove:
    unlink(temporary);
done:
    mem_free(temporary);
    return st;
}
