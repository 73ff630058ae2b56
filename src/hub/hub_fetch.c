/* hub/hub_fetch.c - see hub_fetch.h. */
#include "hub/hub_fetch.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/sha.h"
#include "hub/hub_cache.h"

enum { PIECE_BYTES = 1 << 20 };

struct download {
    struct hub_fetch *f;
    int fd;
    uint64_t n; /* bytes there, all of them in the digest */
    struct sha sha;
    bool has_resumed;
};

static bool is_cancelled(const struct hub_fetch *f)
{
    return f->options->cancelled && *f->options->cancelled;
}

/* ---- the lock ---- */

/* Another user's file, or one that is elsewhere, too, is not ours to write. */
static bool is_ours(const struct stat *s)
{
    return S_ISREG(s->st_mode) && s->st_uid == geteuid() && s->st_nlink == 1;
}

static rd_status wait_for_lock(int fd, const struct hub_http_options *o, const char *shown, struct rd_error *err)
{
    struct timespec fifth = {.tv_nsec = 200000000};
    char text[256];

    for (bool told = false; file_call_fails() || flock(fd, LOCK_EX | LOCK_NB); told = true) {
        if (errno != EWOULDBLOCK && errno != EINTR) return hub_file_error(shown, "cannot be locked", err);
        if (o->cancelled && *o->cancelled) return error_set(err, RD_E_CANCELLED, "stopped");
        if (!told && o->tell) {
            snprintf(text, sizeof(text), "another program downloads %.200s; waiting for it", shown);
            o->tell(o->user, text);
        }
        if (o->tick) o->tick(o->user);
        nanosleep(&fifth, NULL);
    }
    return RD_OK;
}

rd_status hub_take_lock(int dir, const char *name, int flags, const struct hub_http_options *o, const char *shown,
                        int *fd, struct rd_error *err)
{
    struct stat by_fd, by_name;
    rd_status st;

    flags |= O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    for (int tries = 0; tries < 100; tries++) {
        *fd = file_call_fails() ? -1 : openat(dir, name, flags, 0666);
        if (*fd < 0 && errno != ELOOP) return hub_file_error(shown, "cannot be written", err);
        if (*fd < 0 || fstat(*fd, &by_fd) || (by_fd.st_nlink && !is_ours(&by_fd))) {
            if (*fd >= 0) close(*fd);
            if (unlinkat(dir, name, 0)) return hub_file_error(shown, "is in the way and cannot be removed", err);
            continue;
        }
        st = wait_for_lock(*fd, o, shown, err);
        if (st != RD_OK) {
            close(*fd);
            *fd = -1;
            return st;
        }
        if (!fstatat(dir, name, &by_name, AT_SYMLINK_NOFOLLOW) && by_fd.st_ino == by_name.st_ino &&
            by_fd.st_dev == by_name.st_dev)
            return RD_OK;
        close(*fd); /* renamed or removed by the one who held it */
    }
    *fd = -1;
    return error_set(err, RD_E_IO, "%.200s: cannot be locked", shown);
}

/* ---- bytes ---- */

static void begin_digest(struct download *d)
{
    char head[32];
    const struct hub_fetch *f = d->f;

    d->n = 0;
    if (f->digest && strlen(f->digest) == 40) {
        sha1_begin(&d->sha);
        sha_add(&d->sha, head, (size_t)snprintf(head, sizeof(head), "blob %llu", (unsigned long long)f->n_bytes) + 1);
    } else {
        sha256_begin(&d->sha);
    }
}

/* Throws away what is there. */
static rd_status begin_anew(struct download *d, struct rd_error *err)
{
    if (file_call_fails() || ftruncate(d->fd, 0)) return hub_file_error(d->f->shown, "cannot be written", err);
    begin_digest(d);
    d->has_resumed = false;
    d->f->n_there = 0;
    return RD_OK;
}

/* Takes the bytes of an earlier try into the digest. */
static rd_status read_partial(struct download *d, struct rd_error *err)
{
    struct hub_fetch *f = d->f;
    struct stat s;
    rd_status st = RD_OK;
    char *piece;
    ssize_t n;

    begin_digest(d);
    if (fstat(d->fd, &s)) return hub_file_error(f->shown, "cannot be read", err);
    if (!s.st_size || (uint64_t)s.st_size > f->n_bytes) return begin_anew(d, err);
    piece = mem_alloc(PIECE_BYTES, 1);
    if (!piece) return error_set(err, RD_E_NOMEM, "out of memory");
    f->is_checking = true;
    while (st == RD_OK) {
        n = file_call_fails() ? -1 : pread(d->fd, piece, PIECE_BYTES, (off_t)d->n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = hub_file_error(f->shown, "cannot be read", err);
        if (n <= 0) break;
        sha_add(&d->sha, piece, (size_t)n);
        f->n_there = d->n += (uint64_t)n;
        if (f->options->tick) f->options->tick(f->options->user);
        if (is_cancelled(f)) st = error_set(err, RD_E_CANCELLED, "stopped");
    }
    f->is_checking = false;
    mem_free(piece);
    d->has_resumed = true;
    return st;
}

static uint64_t have(void *arg)
{
    return ((struct download *)arg)->n;
}

static rd_status begin(void *arg, uint64_t from, uint64_t n_total, struct rd_error *err)
{
    struct download *d = arg;
    uint64_t wanted = d->f->n_bytes;

    if (n_total != UINT64_MAX && wanted != UINT64_MAX && n_total != wanted)
        return error_set(err, RD_E_FORMAT, "%.200s: %llu bytes are offered, %llu were announced", d->f->shown,
                         (unsigned long long)n_total, (unsigned long long)wanted);
    return from == d->n ? RD_OK : begin_anew(d, err);
}

static rd_status put(void *arg, const void *data, size_t n, struct rd_error *err)
{
    struct download *d = arg;
    const char *p = data;

    if (n > d->f->n_bytes - d->n)
        return error_set(err, RD_E_FORMAT, "%.200s: more than the %llu bytes that were announced", d->f->shown,
                         (unsigned long long)d->f->n_bytes);
    while (n) {
        ssize_t wrote = file_call_fails() ? -1 : pwrite(d->fd, p, n, (off_t)d->n);

        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return hub_file_error(d->f->shown, "cannot be written", err);
        sha_add(&d->sha, p, (size_t)wrote);
        p += wrote;
        n -= (size_t)wrote;
        d->f->n_there = d->n += (uint64_t)wrote;
    }
    return RD_OK;
}

/* Whether the rest has room: a disk should not be full after an hour. */
static rd_status check_room(const struct download *d, struct rd_error *err)
{
    const struct hub_fetch *f = d->f;
    struct statvfs v;
    uint64_t need = f->n_bytes - d->n, n_free = UINT64_MAX;

    if (f->n_bytes == UINT64_MAX) return RD_OK;
    if (!file_call_fails() && !fstatvfs(d->fd, &v)) n_free = (uint64_t)v.f_bavail * v.f_frsize;
    if (need <= n_free && f->n_bytes <= INT64_MAX) return RD_OK;
    return error_set(err, RD_E_LIMIT, "%.200s: %llu MiB are still to come, and the disk has %llu MiB free", f->shown,
                     (unsigned long long)(need >> 20), (unsigned long long)(n_free >> 20));
}

static bool begins_with(const struct download *d, const char *magic)
{
    char head[16];
    size_t n = strlen(magic);

    return n <= sizeof(head) && !file_call_fails() && pread(d->fd, head, n, 0) == (ssize_t)n && !memcmp(head, magic, n);
}

/* What is there is what was announced. RD_E_FORMAT: it is not. */
static rd_status check(struct download *d, struct rd_error *err)
{
    const struct hub_fetch *f = d->f;
    char hex[SHA_HEX_BYTES];

    if (f->n_bytes != UINT64_MAX && d->n != f->n_bytes)
        return error_set(err, RD_E_FORMAT, "%.200s: %llu bytes came, %llu were announced", f->shown,
                         (unsigned long long)d->n, (unsigned long long)f->n_bytes);
    if (f->magic && !begins_with(d, f->magic))
        return error_set(err, RD_E_FORMAT, "%.200s: what came does not begin with \"%s\": it is no model", f->shown,
                         f->magic);
    if (!f->digest) return RD_OK;
    sha_end(&d->sha, hex);
    if (!strcmp(hex, f->digest)) return RD_OK;
    return error_set(err, RD_E_FORMAT, "%.200s: what came has %s %s, wanted %s", f->shown,
                     strlen(f->digest) == 40 ? "git's SHA-1" : "SHA-256", hex, f->digest);
}

static rd_status give_name(struct download *d, struct rd_error *err)
{
    const struct hub_fetch *f = d->f;

    if (file_call_fails() || fsync(d->fd)) return hub_file_error(f->shown, "cannot be written to the disk", err);
    if (file_call_fails() || renameat(f->dir, f->partial, f->dir, f->name))
        return hub_file_error(f->shown, "cannot be renamed", err);
    (void)fsync(f->dir); /* without it a power cut may cost the name, not the bytes */
    return RD_OK;
}

rd_status hub_fetch_file(struct hub_fetch *f, struct rd_error *err)
{
    struct download d = {.f = f, .fd = -1};
    struct hub_sink sink = {&d, have, begin, put};
    rd_status st = hub_take_lock(f->dir, f->partial, O_RDWR, f->options, f->shown, &d.fd, err);

    if (st != RD_OK) return st;
    st = read_partial(&d, err);
    if (st == RD_OK) st = check_room(&d, err);
    if (st == RD_OK && (d.n != f->n_bytes || !d.n)) st = hub_http_get(f->http, f->url, f->if_range, &sink, NULL, err);
    if (st == RD_OK) st = check(&d, err);
    if (st == RD_E_FORMAT && d.has_resumed) { /* the earlier try's bytes may be the wrong ones */
        st = begin_anew(&d, err);
        if (st == RD_OK) st = hub_http_get(f->http, f->url, f->if_range, &sink, NULL, err);
        if (st == RD_OK) st = check(&d, err);
    }
    if (st == RD_OK) st = give_name(&d, err);
    if (st == RD_E_FORMAT || (st != RD_OK && !d.n)) unlinkat(f->dir, f->partial, 0);
    close(d.fd);
    return st;
}
