/* support/mem_disk.c - see the header. */
#include "mem_disk.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/file_calls.h"

#define MAX_INODES 512u /* of a recording; a copy begins with those that have a name */
#define MAX_NAMES  128u
#define MAX_OPEN   64u
#define FIRST_FD   (1 << 20)
#define FOLDER_FD  (FIRST_FD - 1)
#define NAME_BYTES 64u
#define NO_FILE    UINT32_MAX

struct inode {
    uint8_t *data;
    size_t n, cap;
    int64_t mtime_s;
};
struct name {
    char text[NAME_BYTES];
    uint32_t inode;
};
struct names {
    struct name all[MAX_NAMES];
    uint32_t n;
};

enum op_kind { OP_WRITE, OP_SIZE, OP_ZERO, OP_SYNC, OP_SYNC_NAMES, OP_NAME, OP_RENAME, OP_UNLINK };
struct op {
    enum op_kind kind;
    uint32_t inode;
    size_t at, n;
    uint8_t *data; /* OP_WRITE: [n] */
    char name[NAME_BYTES], to[NAME_BYTES];
};

struct mem_disk {
    struct inode inodes[MAX_INODES];
    uint32_t n_inodes;
    struct names names;
    struct {
        uint32_t inode;
        bool is_open, has_lock;
    } open[MAX_OPEN];
    bool records, refuses_removals;
    struct op *log;
    size_t n_log, cap_log;
    struct inode base[MAX_INODES]; /* what was there when the recording began */
    uint32_t n_base;
    struct names base_names;
};

static struct mem_disk *current;

/* A test's own memory: out of the reach of mem_fail_after, as a disk is. */
static void *must(void *p)
{
    if (!p) abort();
    return p;
}

/* ---- bytes ---- */

static void resize(struct inode *f, size_t n)
{
    if (n > f->cap) {
        f->cap = n + n / 2 + 256;
        f->data = must(realloc(f->data, f->cap));
    }
    if (n > f->n) memset(f->data + f->n, 0, n - f->n);
    f->n = n;
}

static void put_bytes(struct inode *f, size_t at, const uint8_t *p, size_t n)
{
    if (at + n > f->n) resize(f, at + n);
    memcpy(f->data + at, p, n);
}

static void copy_inode(const struct inode *f, struct inode *out)
{
    out->n = 0;
    resize(out, f->n);
    if (f->n) memcpy(out->data, f->data, f->n);
    out->mtime_s = f->mtime_s;
}

/* ---- names ---- */

static struct name *find_name(struct names *names, const char *text)
{
    for (uint32_t i = 0; i < names->n; i++)
        if (strcmp(names->all[i].text, text) == 0) return &names->all[i];
    return NULL;
}

static void set_name(struct names *names, const char *text, uint32_t inode)
{
    struct name *name = find_name(names, text);

    if (!name) {
        if (names->n == MAX_NAMES) abort();
        name = &names->all[names->n++];
        snprintf(name->text, sizeof(name->text), "%s", text);
    }
    name->inode = inode;
}

static void drop_name(struct names *names, const char *text)
{
    struct name *name = find_name(names, text);

    if (name) *name = names->all[--names->n];
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* ---- the log ---- */

static struct op *note(struct mem_disk *d, enum op_kind kind, uint32_t inode)
{
    static struct op nowhere;

    if (!d->records) return &nowhere;
    if (d->n_log == d->cap_log) {
        d->cap_log = d->cap_log * 2 + 256;
        d->log = must(realloc(d->log, d->cap_log * sizeof(*d->log)));
    }
    d->log[d->n_log] = (struct op){.kind = kind, .inode = inode};
    return &d->log[d->n_log++];
}

static void clear_log(struct mem_disk *d)
{
    for (size_t i = 0; i < d->n_log; i++) free(d->log[i].data);
    d->n_log = 0;
}

/* ---- the calls ---- */

static uint32_t inode_of(int fd)
{
    uint32_t i = (uint32_t)(fd - FIRST_FD);

    return fd >= FIRST_FD && i < MAX_OPEN && current->open[i].is_open ? current->open[i].inode : NO_FILE;
}

static int fail(int error)
{
    errno = error;
    return -1;
}

static int disk_open(const char *path, int flags, mode_t mode)
{
    struct name *name = find_name(&current->names, last_part(path));
    uint32_t slot = 0, inode;

    (void)mode;
    if (flags & O_DIRECTORY) return FOLDER_FD;
    if (!name && !(flags & O_CREAT)) return fail(ENOENT);
    if (name && (flags & O_EXCL)) return fail(EEXIST);
    while (slot < MAX_OPEN && current->open[slot].is_open) slot++;
    if (slot == MAX_OPEN) return fail(EMFILE);
    if (name) {
        inode = name->inode;
    } else {
        if (current->n_inodes == MAX_INODES) abort();
        inode = current->n_inodes++;
        current->inodes[inode].n = 0;
        set_name(&current->names, last_part(path), inode);
        snprintf(note(current, OP_NAME, inode)->name, NAME_BYTES, "%s", last_part(path));
    }
    current->open[slot].inode = inode;
    current->open[slot].is_open = true;
    current->open[slot].has_lock = false;
    return FIRST_FD + (int)slot;
}

static int disk_openat(int dir, const char *name, int flags)
{
    return dir == FOLDER_FD ? disk_open(name, flags, 0) : fail(EBADF);
}

static int disk_close(int fd)
{
    if (fd == FOLDER_FD) return 0;
    if (inode_of(fd) == NO_FILE) return fail(EBADF);
    current->open[fd - FIRST_FD].is_open = false;
    return 0;
}

static ssize_t disk_pread(int fd, void *p, size_t n, off_t at)
{
    uint32_t i = inode_of(fd);
    const struct inode *f = &current->inodes[i];

    if (i == NO_FILE) return fail(EBADF);
    if ((size_t)at >= f->n) return 0;
    if (n > f->n - (size_t)at) n = f->n - (size_t)at;
    memcpy(p, f->data + at, n);
    return (ssize_t)n;
}

static ssize_t disk_pwrite(int fd, const void *p, size_t n, off_t at)
{
    uint32_t i = inode_of(fd);
    struct op *op;

    if (i == NO_FILE) return fail(EBADF);
    put_bytes(&current->inodes[i], (size_t)at, p, n);
    op = note(current, OP_WRITE, i);
    if (current->records) {
        op->at = (size_t)at;
        op->n = n;
        op->data = must(malloc(n + 1));
        memcpy(op->data, p, n);
    }
    return (ssize_t)n;
}

static int disk_sync_data(int fd)
{
    uint32_t i = inode_of(fd);

    if (i == NO_FILE) return fail(EBADF);
    note(current, OP_SYNC, i);
    return 0;
}

static int disk_sync(int fd)
{
    if (fd != FOLDER_FD) return disk_sync_data(fd);
    note(current, OP_SYNC_NAMES, NO_FILE);
    return 0;
}

static int disk_ftruncate(int fd, off_t n)
{
    uint32_t i = inode_of(fd);

    if (i == NO_FILE) return fail(EBADF);
    resize(&current->inodes[i], (size_t)n);
    note(current, OP_SIZE, i)->n = (size_t)n;
    return 0;
}

static int disk_take_room(int fd, off_t n)
{
    uint32_t i = inode_of(fd);

    if (i == NO_FILE) return fail(EBADF);
    return (size_t)n > current->inodes[i].n ? disk_ftruncate(fd, n) : 0;
}

static int disk_give_back(int fd, off_t at, off_t n)
{
    uint32_t i = inode_of(fd);
    struct inode *f = &current->inodes[i];
    struct op *op;

    if (i == NO_FILE) return fail(EBADF);
    if ((size_t)at >= f->n) return 0;
    if ((size_t)n > f->n - (size_t)at) n = (off_t)(f->n - (size_t)at);
    memset(f->data + at, 0, (size_t)n);
    op = note(current, OP_ZERO, i);
    op->at = (size_t)at;
    op->n = (size_t)n;
    return 0;
}

static int disk_flock(int fd, int how)
{
    uint32_t i = inode_of(fd);

    if (i == NO_FILE) return fail(EBADF);
    (void)how; /* LOCK_EX | LOCK_NB is all that is asked for */
    for (uint32_t k = 0; k < MAX_OPEN; k++)
        if (current->open[k].is_open && current->open[k].has_lock && current->open[k].inode == i)
            return FIRST_FD + (int)k == fd ? 0 : fail(EWOULDBLOCK);
    current->open[fd - FIRST_FD].has_lock = true;
    return 0;
}

static int stat_inode(uint32_t i, struct stat *st)
{
    memset(st, 0, sizeof(*st));
    st->st_mode = S_IFREG | 0600;
    st->st_uid = geteuid();
    st->st_dev = 1;
    st->st_ino = i + 1;
    st->st_size = (off_t)current->inodes[i].n;
    st->st_mtim.tv_sec = (time_t)current->inodes[i].mtime_s;
    return 0;
}

static int disk_fstat(int fd, struct stat *st)
{
    uint32_t i = inode_of(fd);

    return i == NO_FILE ? fail(EBADF) : stat_inode(i, st);
}

static int disk_lstat(const char *path, struct stat *st)
{
    struct name *name = find_name(&current->names, last_part(path));

    return name ? stat_inode(name->inode, st) : fail(ENOENT);
}

/* Only folders are asked for. */
static int disk_stat(const char *path, struct stat *st)
{
    (void)path;
    memset(st, 0, sizeof(*st));
    st->st_mode = S_IFDIR | 0700;
    st->st_uid = geteuid();
    return 0;
}

static int disk_fstatat(int dir, const char *name, struct stat *st, int flags)
{
    (void)flags;
    return dir == FOLDER_FD ? disk_lstat(name, st) : fail(EBADF);
}

static int disk_statvfs(const char *path, struct statvfs *v)
{
    (void)path;
    memset(v, 0, sizeof(*v));
    v->f_frsize = 4096;
    v->f_blocks = 1 << 20;
    v->f_bavail = 1 << 19;
    return 0;
}

static int disk_utimensat(int dir, const char *path, const struct timespec times[2], int flags)
{
    struct name *name = find_name(&current->names, last_part(path));

    (void)dir, (void)flags;
    if (!name) return fail(ENOENT);
    if (times) current->inodes[name->inode].mtime_s = times[1].tv_sec;
    return 0;
}

static int disk_rename(const char *from, const char *to)
{
    struct name *name = find_name(&current->names, last_part(from));
    struct op *op;
    uint32_t inode;

    if (!name) return fail(ENOENT);
    inode = name->inode;
    drop_name(&current->names, last_part(from));
    set_name(&current->names, last_part(to), inode);
    op = note(current, OP_RENAME, inode);
    snprintf(op->name, NAME_BYTES, "%s", last_part(from));
    snprintf(op->to, NAME_BYTES, "%s", last_part(to));
    return 0;
}

static int disk_unlink(const char *path)
{
    struct name *name = find_name(&current->names, last_part(path));

    if (!name) return fail(ENOENT);
    if (current->refuses_removals) return fail(EPERM);
    snprintf(note(current, OP_UNLINK, name->inode)->name, NAME_BYTES, "%s", last_part(path));
    drop_name(&current->names, last_part(path));
    return 0;
}

static int disk_unlinkat(int dir, const char *name, int flags)
{
    (void)flags;
    return dir == FOLDER_FD ? disk_unlink(name) : fail(EBADF);
}

static int disk_mkdir(const char *path, mode_t mode)
{
    (void)path, (void)mode;
    return fail(EEXIST);
}

/* A listing is of the names that there were when it began, as the system may have it. */
struct listing {
    struct names names;
    uint32_t at;
};

static void disk_dir_rewind(void *dir)
{
    struct listing *l = dir;

    l->names = current->names;
    l->at = 0;
}

static void *disk_dir_open(const char *path)
{
    struct listing *l = must(malloc(sizeof(*l)));

    (void)path;
    disk_dir_rewind(l);
    return l;
}

static const char *disk_dir_next(void *dir)
{
    struct listing *l = dir;

    return l->at < l->names.n ? l->names.all[l->at++].text : NULL;
}

static int disk_dir_fd(void *dir)
{
    (void)dir;
    return FOLDER_FD;
}

static const struct file_calls disk_calls = {
    .open = disk_open,
    .openat = disk_openat,
    .close = disk_close,
    .pread = disk_pread,
    .pwrite = disk_pwrite,
    .sync_data = disk_sync_data,
    .sync = disk_sync,
    .ftruncate = disk_ftruncate,
    .take_room = disk_take_room,
    .give_back = disk_give_back,
    .flock = disk_flock,
    .fstat = disk_fstat,
    .stat = disk_stat,
    .lstat = disk_lstat,
    .fstatat = disk_fstatat,
    .statvfs = disk_statvfs,
    .utimensat = disk_utimensat,
    .rename = disk_rename,
    .unlink = disk_unlink,
    .unlinkat = disk_unlinkat,
    .mkdir = disk_mkdir,
    .dir_open = disk_dir_open,
    .dir_next = disk_dir_next,
    .dir_rewind = disk_dir_rewind,
    .dir_fd = disk_dir_fd,
    .dir_close = free,
};

/* ---- disks ---- */

struct mem_disk *mem_disk_create(void)
{
    return must(calloc(1, sizeof(struct mem_disk)));
}

void mem_disk_destroy(struct mem_disk *d)
{
    if (!d) return;
    clear_log(d);
    free(d->log);
    for (uint32_t i = 0; i < MAX_INODES; i++) {
        free(d->inodes[i].data);
        free(d->base[i].data);
    }
    if (current == d) mem_disk_use(NULL);
    free(d);
}

void mem_disk_use(struct mem_disk *d)
{
    current = d;
    file_calls_replace(d ? &disk_calls : NULL);
}

void mem_disk_refuse_removals(struct mem_disk *d, bool refuses)
{
    d->refuses_removals = refuses;
}

void mem_disk_close_all(struct mem_disk *d)
{
    memset(d->open, 0, sizeof(d->open));
}

void mem_disk_record(struct mem_disk *d)
{
    clear_log(d);
    d->records = true;
    for (uint32_t i = 0; i < d->n_inodes; i++) copy_inode(&d->inodes[i], &d->base[i]);
    d->n_base = d->n_inodes;
    d->base_names = d->names;
}

size_t mem_disk_log_length(const struct mem_disk *d)
{
    return d->n_log;
}
uint32_t mem_disk_n_files(const struct mem_disk *d)
{
    return d->names.n;
}

uint64_t mem_disk_bytes(const struct mem_disk *d, const char *suffix)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < d->names.n; i++) {
        const char *text = d->names.all[i].text;
        size_t n = strlen(text), n_suffix = strlen(suffix);

        if (n >= n_suffix && strcmp(text + n - n_suffix, suffix) == 0) sum += d->inodes[d->names.all[i].inode].n;
    }
    return sum;
}

uint8_t *mem_disk_file(struct mem_disk *d, const char *name, size_t *n)
{
    struct name *found = find_name(&d->names, name);

    *n = found ? d->inodes[found->inode].n : 0;
    return found ? d->inodes[found->inode].data : NULL;
}

static void empty(struct mem_disk *d)
{
    d->n_inodes = 0;
    d->names.n = 0;
    d->records = false;
    mem_disk_close_all(d);
}

static uint32_t add_inode(struct mem_disk *out, const struct inode *f)
{
    if (out->n_inodes == MAX_INODES) abort();
    if (f)
        copy_inode(f, &out->inodes[out->n_inodes]);
    else
        resize(&out->inodes[out->n_inodes], 0);
    return out->n_inodes++;
}

void mem_disk_copy(const struct mem_disk *d, struct mem_disk *out)
{
    empty(out);
    for (uint32_t i = 0; i < d->names.n; i++)
        set_name(&out->names, d->names.all[i].text, add_inode(out, &d->inodes[d->names.all[i].inode]));
}

/* ---- losing power ---- */

/* Blocks of a write that the disk has lost: what is there then. */
static void put_stale(const struct mem_disk *d, struct inode *f, size_t at, size_t n, struct random *r)
{
    const struct inode *other = d->n_inodes ? &d->inodes[random_below(r, d->n_inodes)] : NULL;

    if (at >= f->n) return;
    if (n > f->n - at) n = f->n - at;
    if (other && other->n >= n && random_below(r, 2)) {
        size_t from = random_below(r, other->n - n + 1);

        if (random_below(r, 2)) from = from / 512 * 512;
        memcpy(f->data + at, other->data + from, n); /* of another file, or an older time */
    } else if (random_below(r, 4) == 0) {
        for (size_t i = 0; i < n; i++) f->data[at + i] = (uint8_t)random_u64(r);
    } else {
        memset(f->data + at, 0, n);
    }
}

/* A write by blocks of the file, each of which reaches the disk or does not. */
static void put_in_parts(const struct mem_disk *d, struct inode *f, const struct op *op, enum mem_cut kind,
                         struct random *r)
{
    size_t block = random_below(r, 2) ? 512 : 4096, at = op->at, end = op->at + op->n;
    size_t torn_at = kind == MEM_CUT_TORN ? op->at + random_below(r, op->n + 1) : 0;
    uint32_t kept_of_8 = (uint32_t)random_below(r, kind == MEM_CUT_NAMES_FIRST ? 3 : 9);

    while (at < end) {
        size_t to = (at / block + 1) * block < end ? (at / block + 1) * block : end;
        bool keeps = kind == MEM_CUT_TORN ? to <= torn_at : random_below(r, 8) < kept_of_8;

        if (keeps)
            put_bytes(f, at, op->data + (at - op->at), to - at);
        else if (kind != MEM_CUT_TORN)
            put_stale(d, f, at, to - at, r);
        at = to;
    }
}

static void apply_whole(struct inode *f, const struct op *op)
{
    if (op->kind == OP_WRITE)
        put_bytes(f, op->at, op->data, op->n);
    else if (op->kind == OP_SIZE)
        resize(f, op->n);
    else if (op->kind == OP_ZERO && op->at + op->n <= f->n)
        memset(f->data + op->at, 0, op->n);
}

/* The length that a file has had after these operations: sizes may be kept where data is not. */
static size_t size_after(const struct op *const *ops, size_t n, size_t size)
{
    for (size_t i = 0; i < n; i++) {
        if (ops[i]->kind == OP_SIZE)
            size = ops[i]->n;
        else if (ops[i]->kind == OP_WRITE && ops[i]->at + ops[i]->n > size)
            size = ops[i]->at + ops[i]->n;
    }
    return size;
}

/* What was not synced of one file. */
static void apply_unsynced(const struct mem_disk *d, struct inode *f, const struct op **ops, size_t n,
                           enum mem_cut kind, struct random *r)
{
    size_t n_whole = 0;

    if (n == 0 || kind == MEM_CUT_LOST) return;
    if (kind == MEM_CUT_KEPT) n_whole = n;
    if (kind == MEM_CUT_TORN) n_whole = random_below(r, n + 1);
    for (size_t i = 0; i < n_whole; i++) apply_whole(f, ops[i]);
    if (kind == MEM_CUT_TORN && n_whole < n && ops[n_whole]->kind == OP_WRITE)
        put_in_parts(d, f, ops[n_whole], kind, r);
    if (kind == MEM_CUT_KEPT || kind == MEM_CUT_TORN) return;
    if (kind == MEM_CUT_NAMES_FIRST || random_below(r, 2)) resize(f, size_after(ops, n, f->n));
    for (size_t i = n - 1; i > 0; i--) { /* in any order */
        size_t k = random_below(r, i + 1);
        const struct op *swap = ops[i];

        ops[i] = ops[k];
        ops[k] = swap;
    }
    for (size_t i = 0; i < n; i++) {
        if (ops[i]->kind == OP_WRITE)
            put_in_parts(d, f, ops[i], kind, r);
        else if (ops[i]->kind == OP_ZERO && random_below(r, 2))
            apply_whole(f, ops[i]);
    }
    if (kind == MEM_CUT_MIXED && random_below(r, 8) == 0) resize(f, random_below(r, f->n + 1));
}

static void apply_name(struct names *names, const struct op *op)
{
    struct name *from;

    if (op->kind == OP_NAME) set_name(names, op->name, op->inode);
    if (op->kind == OP_UNLINK && (from = find_name(names, op->name)) && from->inode == op->inode)
        drop_name(names, op->name);
    if (op->kind == OP_RENAME && (from = find_name(names, op->name)) && from->inode == op->inode) {
        drop_name(names, op->name);
        set_name(names, op->to, op->inode);
    }
}

/* Names that are on the disk: those before a sync of the folder; of the rest a journal that a sync writes out up to there
 * keeps their order, or each by itself. */
static void cut_names(const struct mem_disk *d, size_t n, enum mem_cut kind, struct random *r, struct names *out)
{
    bool journal = random_below(r, 2), all = kind == MEM_CUT_KEPT || kind == MEM_CUT_NAMES_FIRST;
    size_t last_sync = 0, n_ordered = 0, n_synced = 0;
    uint32_t kept_of_8 = (uint32_t)random_below(r, 9);

    for (size_t i = 0; i < n; i++)
        if (d->log[i].kind == OP_SYNC)
            last_sync = i;
        else if (d->log[i].kind == OP_SYNC_NAMES)
            last_sync = n_synced = i;
    if (journal) n_ordered = last_sync + random_below(r, n - last_sync + 1);
    *out = d->base_names;
    for (size_t i = 0; i < n; i++) {
        if (d->log[i].kind < OP_NAME) continue;
        if (all || i < n_synced || (journal ? i < n_ordered : random_below(r, 8) < kept_of_8))
            apply_name(out, &d->log[i]);
    }
}

void mem_disk_cut(const struct mem_disk *d, size_t n, enum mem_cut kind, struct random *r, struct mem_disk *out)
{
    static const struct op *pending[1 << 14];
    struct names names;

    empty(out);
    cut_names(d, n, kind, r, &names);
    for (uint32_t k = 0; k < names.n; k++) {
        uint32_t i = names.all[k].inode, place = add_inode(out, i < d->n_base ? &d->base[i] : NULL);
        struct inode *f = &out->inodes[place];
        size_t n_pending = 0;

        for (size_t o = 0; o < n; o++) {
            if (d->log[o].inode != i || d->log[o].kind >= OP_NAME) continue;
            if (d->log[o].kind == OP_SYNC) {
                for (size_t p = 0; p < n_pending; p++) apply_whole(f, pending[p]);
                n_pending = 0;
            } else if (n_pending < sizeof(pending) / sizeof(pending[0])) {
                pending[n_pending++] = &d->log[o];
            }
        }
        apply_unsynced(d, f, pending, n_pending, kind, r);
        f->mtime_s = d->inodes[i].mtime_s;
        set_name(&out->names, names.all[k].text, place);
    }
}
