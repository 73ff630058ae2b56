/* cli/run_dir.c - see run_dir.h. */
#include "cli/run_dir.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/os_process.h"
#include "radish/radish.h"

enum { MAX_ENTRY_BYTES = 65536, MAX_ENTRIES = 1024 };

const char *run_dir_path(char path[LIMIT_PATH_BYTES])
{
    const char *own = getenv("RADISH_RUN_DIR"), *run = getenv("XDG_RUNTIME_DIR");

    if (own && *own)
        snprintf(path, LIMIT_PATH_BYTES, "%s", own);
    else if (run && *run == '/')
        snprintf(path, LIMIT_PATH_BYTES, "%s/radish", run);
    else
        snprintf(path, LIMIT_PATH_BYTES, "/tmp/radish-%lu", (unsigned long)geteuid());
    return path;
}

static rd_status refuse(struct rd_error *err, const char *path, const char *why)
{
    return error_set(err, RD_E_INVALID, "%s %s; remove it, or set RADISH_RUN_DIR", path, why);
}

/* make: with the folder itself, not those above. RD_E_NOT_FOUND: there is none. */
static rd_status open_folder(bool make, int *fd, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct stat s;
    rd_status st = RD_OK;

    run_dir_path(path);
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
        return error_set(err, RD_E_IO, "%s cannot be made: %s", path, strerror(errno));
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0 && (errno == ENOTDIR || errno == ELOOP)) return refuse(err, path, "is a link or a file, not a folder");
    if (*fd < 0 && errno == ENOENT) return error_set(err, RD_E_NOT_FOUND, "%s is not there", path);
    if (*fd < 0) return error_set(err, RD_E_IO, "%s cannot be opened: %s", path, strerror(errno));
    if (fstat(*fd, &s) != 0)
        st = error_set(err, RD_E_IO, "%s: %s", path, strerror(errno));
    else if (s.st_uid != geteuid())
        st = refuse(err, path, "belongs to another user");
    else if (s.st_mode & 022)
        st = refuse(err, path, "may be written by others");
    else if ((s.st_mode & 077) && fchmod(*fd, 0700) != 0)
        st = error_set(err, RD_E_IO, "%s: its mode cannot be set: %s", path, strerror(errno));
    if (st != RD_OK) close(*fd);
    return st;
}

/* ---- to be one ---- */

static bool put_entry(const struct run_entry *e, struct buf *out)
{
    const char *line = e->models;

    buf_printf(out, "{\"pid\": %d, \"start\": %llu, \"started\": %lld, \"version\": \"%s\", \"address\": \"",
               (int)e->pid, (unsigned long long)e->start, (long long)e->started_s, e->version);
    buf_put_json(out, e->address, strlen(e->address));
    buf_puts(out, "\", \"models\": [");
    while (*line) {
        size_t n = strcspn(line, "\n");

        buf_puts(out, line == e->models ? "\"" : ", \"");
        buf_put_json(out, line, n);
        buf_putc(out, '"');
        line += n + (line[n] == '\n');
    }
    buf_puts(out, "]}\n");
    return !out->failed;
}

/* Under a name that readers leave alone until it is locked and whole. */
static rd_status write_entry(int dir, struct run_entry *e, int *fd, struct rd_error *err)
{
    struct buf text = {.limit = MAX_ENTRY_BYTES};
    char partial[sizeof(e->name) + 2];
    bool ok = put_entry(e, &text);

    snprintf(partial, sizeof(partial), ".%s", e->name);
    *fd = ok ? openat(dir, partial, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    ok = *fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0 && write(*fd, text.data, text.n) == (ssize_t)text.n &&
         renameat(dir, partial, dir, e->name) == 0;
    buf_deinit(&text);
    if (ok) return RD_OK;
    error_set(err, RD_E_IO, "this server cannot be registered: %s", strerror(errno));
    if (*fd >= 0) {
        close(*fd);
        (void)unlinkat(dir, partial, 0);
    }
    *fd = -1;
    return RD_E_IO;
}

rd_status run_dir_enter(struct run_entry *e, int *fd, struct rd_error *err)
{
    struct run_entry *others;
    size_t n;
    int dir;
    rd_status st = open_folder(true, &dir, err);

    *fd = -1;
    if (st != RD_OK) return st;
    if (run_dir_list(&others, &n, NULL) == RD_OK) mem_free(others); /* removes the dead */
    e->pid = getpid();
    e->start = os_process_began(e->pid);
    e->started_s = clock_wall_s(clock_system());
    snprintf(e->version, sizeof(e->version), "%s", rd_version());
    snprintf(e->name, sizeof(e->name), "%d-%llu.json", (int)e->pid, (unsigned long long)e->start);
    st = write_entry(dir, e, fd, err);
    close(dir);
    return st;
}

void run_dir_leave(const struct run_entry *e, int fd)
{
    int dir;

    if (fd < 0) return;
    if (open_folder(false, &dir, NULL) == RD_OK) {
        (void)unlinkat(dir, e->name, 0);
        close(dir);
    }
    close(fd);
}

/* ---- to see them ---- */

/* What a person will see: no control character. */
static void copy_text(char *out, size_t cap, const char *text)
{
    size_t n = 0;

    for (; text && *text && n + 1 < cap; text++)
        if ((unsigned char)*text >= ' ' && *text != 0x7f) out[n++] = *text;
    out[n] = 0;
}

static bool parse_entry(const char *text, size_t n, struct run_entry *e)
{
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL), *model;
    json_int_t pid = json_integer_value(json_object_get(v, "pid"));
    size_t i, at = 0;

    e->pid = pid > 0 && pid <= INT32_MAX ? (pid_t)pid : 0;
    e->start = (uint64_t)json_integer_value(json_object_get(v, "start"));
    e->started_s = json_integer_value(json_object_get(v, "started"));
    copy_text(e->address, sizeof(e->address), json_string_value(json_object_get(v, "address")));
    copy_text(e->version, sizeof(e->version), json_string_value(json_object_get(v, "version")));
    e->models[0] = 0;
    json_array_foreach(json_object_get(v, "models"), i, model)
    {
        char name[512];

        copy_text(name, sizeof(name), json_string_value(model));
        if (at + strlen(name) + 2 > sizeof(e->models)) break;
        at += (size_t)snprintf(e->models + at, sizeof(e->models) - at, "%s%s", at ? "\n" : "", name);
    }
    json_decref(v);
    return e->pid > 0 && e->address[0];
}

/* Whether a lock is held on the entry; the file is open then. Removes it if there is none. */
static bool is_held(int dir, const char *name, int *fd)
{
    struct stat s, there;

    *fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0) return false;
    if (fstat(*fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & 022)) {
        if (flock(*fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
        if (fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && there.st_ino == s.st_ino)
            (void)unlinkat(dir, name, 0);
    }
    close(*fd);
    *fd = -1;
    return false;
}

static bool is_entry(const char *name)
{
    size_t n = strlen(name);

    return name[0] != '.' && n > 5 && n < sizeof(((struct run_entry *)0)->name) && strcmp(name + n - 5, ".json") == 0;
}

static bool read_entry(int dir, const char *name, struct run_entry *e)
{
    char text[MAX_ENTRY_BYTES];
    ssize_t n;
    int fd;

    *e = (struct run_entry){.pid = 0};
    if (!is_entry(name) || !is_held(dir, name, &fd)) return false;
    n = pread(fd, text, sizeof(text), 0);
    close(fd);
    snprintf(e->name, sizeof(e->name), "%s", name);
    if (n <= 0 || !parse_entry(text, (size_t)n, e)) return false;
    e->is_here = e->start && os_process_began(e->pid) == e->start;
    return true;
}

static int by_age(const void *a, const void *b)
{
    const struct run_entry *x = a, *y = b;

    if (x->started_s != y->started_s) return x->started_s < y->started_s ? -1 : 1;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

rd_status run_dir_list(struct run_entry **list, size_t *n, struct rd_error *err)
{
    size_t cap = 0;
    struct dirent *entry;
    DIR *names = NULL;
    int dir, copy;
    rd_status st = open_folder(false, &dir, err);

    *list = NULL;
    *n = 0;
    if (st == RD_E_NOT_FOUND) return RD_OK;
    if (st != RD_OK) return st;
    copy = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) names = fdopendir(copy);
    if (!names && copy >= 0) close(copy);
    while (names && st == RD_OK && *n < MAX_ENTRIES && (entry = readdir(names))) {
        if (!mem_grow((void **)list, &cap, *n + 1, sizeof(**list)))
            st = error_set(err, RD_E_NOMEM, "out of memory");
        else if (read_entry(dir, entry->d_name, *list + *n))
            ++*n;
    }
    if (!names) st = error_set(err, RD_E_IO, "the folder of running servers cannot be read: %s", strerror(errno));
    if (names) closedir(names);
    close(dir);
    if (st == RD_OK && *n) qsort(*list, *n, sizeof(**list), by_age);
    if (st == RD_OK) return st;
    mem_free(*list);
    *list = NULL;
    *n = 0;
    return st;
}

bool run_entry_is_alive(const struct run_entry *e)
{
    int dir, fd;
    bool alive;

    if (open_folder(false, &dir, NULL) != RD_OK) return false;
    alive = is_held(dir, e->name, &fd);
    if (alive) close(fd);
    close(dir);
    return alive;
}

rd_status run_entry_signal(const struct run_entry *e, int signal_number, struct rd_error *err)
{
    int process, rc;

    if (!e->is_here) return error_set(err, RD_E_INVALID, "%s runs in another container: stop it there", e->address);
    process = os_process_open(e->pid); /* from here on its number cannot become another's */
    if (!run_entry_is_alive(e) || os_process_began(e->pid) != e->start) {
        if (process >= 0) close(process);
        return error_set(err, RD_E_NOT_FOUND, "it has ended");
    }
    rc = os_process_signal(process, e->pid, signal_number);
    if (rc != 0) error_set(err, RD_E_IO, "process %d cannot be told: %s", (int)e->pid, strerror(errno));
    if (process >= 0) close(process);
    return rc == 0 ? RD_OK : RD_E_IO;
}
