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
#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/os_file.h"
#include "base/sha.h"
#include "hub/hub_cache.h"
#include "hub/hub_ranges.h"

enum { READ_BYTES = 1 << 20 };

/* Behind the bytes of a partial with pieces; n_pieces counts of 4 bytes follow. As this machine writes numbers. */
struct pieces_head {
    char magic[8];
    uint64_t n_bytes, piece_bytes, n_pieces;
};

static const char pieces_magic[8] = {'r', 'a', 'd', 'p', 'a', 'r', 't', '1'};

struct download {
    struct hub_fetch *f;
    int fd;
    uint64_t n; /* bytes there from the start on, all of them in the digest */
    struct sha sha;
    bool has_resumed;
    uint32_t *counts; /* [n_pieces] bytes there of each piece; NULL: no pieces */
    uint64_t piece_bytes, n_pieces;
    char *piece; /* [READ_BYTES], to read again */
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

static void forget_pieces(struct download *d)
{
    mem_free(d->counts);
    d->counts = NULL;
}

/* Throws away what is there. */
static rd_status begin_anew(struct download *d, struct rd_error *err)
{
    forget_pieces(d);
    if (file_call_fails() || ftruncate(d->fd, 0)) return hub_file_error(d->f->shown, "cannot be written", err);
    begin_digest(d);
    d->has_resumed = false;
    d->f->n_there = 0;
    return RD_OK;
}

/* Takes bytes that are there into the digest, up to `to` and at most `most` of them. */
static rd_status read_again(struct download *d, uint64_t to, uint64_t most, struct rd_error *err)
{
    if (!d->piece && !(d->piece = mem_alloc(READ_BYTES, 1))) return error_set(err, RD_E_NOMEM, "out of memory");
    while (d->n < to && most) {
        uint64_t n = u64_min(u64_min(to - d->n, most), READ_BYTES);
        ssize_t got = file_call_fails() ? -1 : pread(d->fd, d->piece, n, (off_t)d->n);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return hub_file_error(d->f->shown, "cannot be read", err);
        if (got == 0) return error_set(err, RD_E_IO, "%.200s: another program has cut it", d->f->shown);
        sha_add(&d->sha, d->piece, (size_t)got);
        d->n += (uint64_t)got;
        most -= (uint64_t)got;
        if (d->f->is_checking) d->f->n_there = d->n;
        if (d->f->is_checking && d->f->options->tick) d->f->options->tick(d->f->options->user);
        if (is_cancelled(d->f)) return error_set(err, RD_E_CANCELLED, "stopped");
    }
    return RD_OK;
}

/* ---- pieces ---- */

static uint64_t piece_size(const struct download *d, uint64_t piece)
{
    return u64_min(d->piece_bytes, d->f->n_bytes - piece * d->piece_bytes);
}

static uint64_t have_of_piece(void *arg, uint64_t piece)
{
    return ((struct download *)arg)->counts[piece];
}

/* Where the bytes end that are there from the start on without a gap. */
static uint64_t front(const struct download *d)
{
    uint64_t piece = d->n / d->piece_bytes;

    while (piece < d->n_pieces && d->counts[piece] == piece_size(d, piece)) piece++;
    return piece < d->n_pieces ? piece * d->piece_bytes + d->counts[piece] : d->f->n_bytes;
}

static uint64_t count_pieces(const struct download *d)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < d->n_pieces; i++) n += d->counts[i];
    return n;
}

static rd_status write_at(struct download *d, const void *data, size_t n, uint64_t at, struct rd_error *err)
{
    const char *p = data;

    while (n) {
        ssize_t wrote = file_call_fails() ? -1 : pwrite(d->fd, p, n, (off_t)at);

        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return hub_file_error(d->f->shown, "cannot be written", err);
        p += wrote;
        at += (uint64_t)wrote;
        n -= (size_t)wrote;
    }
    return RD_OK;
}

static rd_status put_piece(void *arg, uint64_t piece, const void *data, size_t n, struct rd_error *err)
{
    struct download *d = arg;
    uint64_t at = piece * d->piece_bytes + d->counts[piece];
    uint32_t count = d->counts[piece] + (uint32_t)n;
    rd_status st = write_at(d, data, n, at, err);

    if (st != RD_OK) return st;
    st = write_at(d, &count, sizeof(count), d->f->n_bytes + sizeof(struct pieces_head) + piece * sizeof(count), err);
    if (st != RD_OK) return st;
    d->counts[piece] = count;
    d->f->n_there += n;
    if (at != d->n) return read_again(d, front(d), READ_BYTES, err); /* a little each time: the others go on coming */
    sha_add(&d->sha, data, n);
    d->n += n;
    return RD_OK;
}

bool hub_fetch_has_pieces(const struct hub_fetch *f)
{
    return f->options->n_connections > 1 && f->n_bytes >= HUB_PIECES_FROM && f->n_bytes <= INT64_MAX / 2 &&
           (f->digest || f->if_range);
}

/* A 32nd of the file, in whole MiB: enough to share out, few enough requests. */
static uint64_t piece_bytes_for(uint64_t n_bytes)
{
    uint64_t mib = (n_bytes / 32 + (1 << 20) - 1) >> 20;

    return (mib < 1 ? 1 : mib > 32 ? 32 : mib) << 20;
}

static uint64_t size_with_pieces(const struct download *d)
{
    return d->f->n_bytes + sizeof(struct pieces_head) + d->n_pieces * sizeof(*d->counts);
}

static bool alloc_counts(struct download *d, uint64_t piece_bytes)
{
    d->piece_bytes = piece_bytes;
    d->n_pieces = (d->f->n_bytes + piece_bytes - 1) / piece_bytes;
    d->counts = mem_zalloc(d->n_pieces, sizeof(*d->counts));
    return d->counts;
}

/* The pieces of an earlier try. d->counts stays NULL where there are none that make sense. */
static rd_status read_pieces(struct download *d, uint64_t size, struct rd_error *err)
{
    struct pieces_head h;
    ssize_t n;
    bool ok;

    if (file_call_fails() || pread(d->fd, &h, sizeof(h), (off_t)d->f->n_bytes) != sizeof(h)) return RD_OK;
    if (memcmp(h.magic, pieces_magic, 8) || h.n_bytes != d->f->n_bytes) return RD_OK;
    if (h.piece_bytes != piece_bytes_for(h.n_bytes)) return RD_OK;
    if (!alloc_counts(d, h.piece_bytes)) return error_set(err, RD_E_NOMEM, "out of memory");
    n = (ssize_t)(d->n_pieces * sizeof(*d->counts));
    ok = size == size_with_pieces(d) && h.n_pieces == d->n_pieces &&
         pread(d->fd, d->counts, (size_t)n, (off_t)(d->f->n_bytes + sizeof(h))) == n;
    for (uint64_t i = 0; i < d->n_pieces && ok; i++) ok = d->counts[i] <= piece_size(d, i);
    if (!ok) forget_pieces(d);
    return RD_OK;
}

/* Makes a beginning of n bytes one with pieces. The head is written last. */
static rd_status make_pieces(struct download *d, uint64_t n, struct rd_error *err)
{
    struct pieces_head h = {.n_bytes = d->f->n_bytes, .piece_bytes = piece_bytes_for(d->f->n_bytes)};
    rd_status st;

    memcpy(h.magic, pieces_magic, 8);
    if (!alloc_counts(d, h.piece_bytes)) return error_set(err, RD_E_NOMEM, "out of memory");
    h.n_pieces = d->n_pieces;
    for (uint64_t i = 0; i < d->n_pieces && n > i * d->piece_bytes; i++)
        d->counts[i] = (uint32_t)u64_min(n - i * d->piece_bytes, piece_size(d, i));
    if (file_call_fails() || ftruncate(d->fd, (off_t)size_with_pieces(d)))
        return hub_file_error(d->f->shown, "cannot be written", err);
    st = write_at(d, d->counts, d->n_pieces * sizeof(*d->counts), d->f->n_bytes + sizeof(h), err);
    return st == RD_OK ? write_at(d, &h, sizeof(h), d->f->n_bytes, err) : st;
}

/* ---- what an earlier try left ---- */

/* Whether the rest has room: a disk should not be full after an hour. */
static rd_status check_room(const struct download *d, struct rd_error *err)
{
    const struct hub_fetch *f = d->f;
    struct statvfs v;
    uint64_t need = f->n_bytes - f->n_there, n_free = UINT64_MAX;

    if (f->n_bytes == UINT64_MAX) return RD_OK;
    if (!file_call_fails() && !fstatvfs(d->fd, &v)) n_free = (uint64_t)v.f_bavail * v.f_frsize;
    if (need <= n_free && f->n_bytes <= INT64_MAX) return RD_OK;
    return error_set(err, RD_E_LIMIT, "%.200s: %llu MiB are still to come, and the disk has %llu MiB free", f->shown,
                     (unsigned long long)(need >> 20), (unsigned long long)(n_free >> 20));
}

/* Takes its bytes into the digest. */
static rd_status read_partial(struct download *d, struct rd_error *err)
{
    struct hub_fetch *f = d->f;
    struct stat s;
    uint64_t size;
    rd_status st = RD_OK;

    begin_digest(d);
    if (fstat(d->fd, &s)) return hub_file_error(f->shown, "cannot be read", err);
    size = (uint64_t)s.st_size;
    if (size > f->n_bytes) st = read_pieces(d, size, err);
    if (st == RD_OK && (!size || (size > f->n_bytes && !d->counts))) st = begin_anew(d, err), size = 0;
    f->n_there = d->counts ? count_pieces(d) : size;
    if (st == RD_OK) st = check_room(d, err);
    if (st == RD_OK && !d->counts && size < f->n_bytes && hub_fetch_has_pieces(f)) st = make_pieces(d, size, err);
    d->has_resumed = size > 0;
    f->is_checking = true;
    if (st == RD_OK) st = read_again(d, d->counts ? front(d) : size, UINT64_MAX, err);
    f->is_checking = false;
    f->n_there = d->counts ? count_pieces(d) : d->n;
    return st;
}

/* ---- bytes of one connection ---- */

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
    rd_status st;

    if (n > d->f->n_bytes - d->n)
        return error_set(err, RD_E_FORMAT, "%.200s: more than the %llu bytes that were announced", d->f->shown,
                         (unsigned long long)d->f->n_bytes);
    st = write_at(d, data, n, d->n, err);
    if (st != RD_OK) return st;
    sha_add(&d->sha, data, n);
    d->f->n_there = d->n += n;
    return RD_OK;
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

    if (d->counts && (file_call_fails() || ftruncate(d->fd, (off_t)f->n_bytes)))
        return hub_file_error(f->shown, "cannot be written", err);
    if (file_call_fails() || os_sync(d->fd)) return hub_file_error(f->shown, "cannot be written to the disk", err);
    if (file_call_fails() || renameat(f->dir, f->partial, f->dir, f->name))
        return hub_file_error(f->shown, "cannot be renamed", err);
    (void)os_sync(f->dir); /* without it a power cut may cost the name, not the bytes */
    return RD_OK;
}

static rd_status get_pieces(struct download *d, struct rd_error *err)
{
    struct hub_pieces pieces = {d, d->f->n_bytes, d->piece_bytes, have_of_piece, put_piece};
    uint32_t n_connections = u32_min(d->f->options->n_connections, HUB_MAX_CONNECTIONS);
    rd_status st =
        hub_http_get_pieces(d->f->http, d->f->url, d->f->if_range, n_connections ? n_connections : 1, &pieces, err);

    if (st != RD_OK) return st;
    return read_again(d, d->f->n_bytes, UINT64_MAX, err);
}

/* What is missing, and whether all of it is right. */
static rd_status get(struct download *d, struct rd_error *err)
{
    const struct hub_fetch *f = d->f;
    struct hub_sink sink = {d, have, begin, put};
    char text[600];
    rd_status st = RD_OK;

    if (d->counts) st = get_pieces(d, err);
    if (st == RD_E_AGAIN) {
        snprintf(text, sizeof(text), "%.200s: %.300s; starting over with one connection", f->shown, err->text);
        if (f->options->tell) f->options->tell(f->options->user, text);
        st = begin_anew(d, err);
    }
    if (st == RD_OK && !d->counts && (d->n != f->n_bytes || !d->n))
        st = hub_http_get(f->http, f->url, f->if_range, &sink, NULL, err);
    return st == RD_OK ? check(d, err) : st;
}

rd_status hub_fetch_file(struct hub_fetch *f, struct rd_error *err)
{
    struct download d = {.f = f, .fd = -1};
    struct rd_error unseen;
    rd_status st;

    if (!err) err = &unseen;
    st = hub_take_lock(f->dir, f->partial, O_RDWR, f->options, f->shown, &d.fd, err);
    if (st != RD_OK) return st;
    st = read_partial(&d, err);
    if (st == RD_OK) st = get(&d, err);
    if (st == RD_E_FORMAT && d.has_resumed) { /* the earlier try's bytes may be the wrong ones */
        st = begin_anew(&d, err);
        if (st == RD_OK && hub_fetch_has_pieces(f)) st = make_pieces(&d, 0, err);
        if (st == RD_OK) st = get(&d, err);
    }
    if (st == RD_OK) st = give_name(&d, err);
    if (st == RD_E_FORMAT || (st != RD_OK && !f->n_there)) unlinkat(f->dir, f->partial, 0);
    forget_pieces(&d);
    mem_free(d.piece);
    close(d.fd);
    return st;
}
