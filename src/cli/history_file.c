/* cli/history_file.c - see history_file.h. */
#include "cli/history_file.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

enum { MAX_FILE_BYTES = 32 << 20 };

/* The file's path; its folders are made. false: no place for it. */
static bool find_path(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;

    if (state && *state == '/')
        n = snprintf(path, size, "%s/radish/chat_history", state);
    else if (home && *home == '/')
        n = snprintf(path, size, "%s/.local/state/radish/chat_history", home);
    if (n < 0 || (size_t)n >= size) return false;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST) return false;
        *slash = '/';
    }
    return true;
}

/* Where the last n lines of text begin, and how many lines there are. */
static const char *last_lines(const char *text, const char *end, uint32_t n, uint32_t *n_lines)
{
    uint32_t skip;

    *n_lines = 0;
    for (const char *p = text; p < end; p++) *n_lines += *p == '\n';
    skip = *n_lines > n ? *n_lines - n : 0;
    while (skip > 0) skip -= *text++ == '\n';
    return text;
}

static void each_line(const char *text, const char *end, void (*fn)(void *user, const char *text, size_t n), void *user)
{
    const char *stop;

    for (; text < end && (stop = memchr(text, '\n', (size_t)(end - text))); text = stop + 1) {
        json_t *line = json_loadb(text, (size_t)(stop - text), JSON_DECODE_ANY, NULL); /* a damaged one is left out */
        if (json_is_string(line)) fn(user, json_string_value(line), json_string_length(line));
        json_decref(line);
    }
}

/* Replaces the file by its newest lines: written beside it, then renamed. */
static void shorten(const char *path, const char *text, size_t n)
{
    char other[LIMIT_PATH_BYTES];
    int fd;
    bool ok;

    if (snprintf(other, sizeof(other), "%s.%ld", path, (long)getpid()) >= (int)sizeof(other)) return;
    fd = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return;
    ok = write(fd, text, n) == (ssize_t)n;
    close(fd);
    if (!ok || rename(other, path) != 0) unlink(other);
}

void history_file_open(struct history_file *h, uint32_t n_max, void (*fn)(void *user, const char *text, size_t n),
                       void *user)
{
    char path[LIMIT_PATH_BYTES], *text = NULL;
    uint32_t n_lines = 0;
    size_t n = 0;

    h->fd = -1;
    if (!find_path(path, sizeof(path))) return;
    if (file_exists(path) && file_read_all(path, MAX_FILE_BYTES, &text, &n, NULL) == RD_OK) {
        const char *from = last_lines(text, text + n, n_max, &n_lines);
        each_line(from, text + n, fn, user);
        if (n_lines > 2 * n_max) shorten(path, from, n - (size_t)(from - text));
    }
    mem_free(text);
    h->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (h->fd >= 0) (void)!fchmod(h->fd, 0600);
}

void history_file_add(struct history_file *h, const char *text, size_t n)
{
    struct buf line = {.n = 0};

    if (h->fd < 0 || n > HISTORY_LINE_BYTES) return;
    buf_putc(&line, '"');
    buf_put_json(&line, text, n);
    buf_puts(&line, "\"\n");
    if (!line.failed) (void)!write(h->fd, line.data, line.n);
    buf_deinit(&line);
}

void history_file_close(struct history_file *h)
{
    if (h->fd >= 0) close(h->fd);
    h->fd = -1;
}
