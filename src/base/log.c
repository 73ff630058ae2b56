/* base/log.c - formats, escapes, then hands one whole line to the sink under a lock. */
#include "base/log.h"
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/thread.h"
#include "base/utf8.h"

#define LOG_TEXT_BYTES 2048 /* of one line before escaping; the rest is cut */
#define LOG_WAIT_MS    200  /* for a reader that is slow for a moment */

static struct mutex sink_lock = {PTHREAD_MUTEX_INITIALIZER};
static log_fn sink; /* under sink_lock */
static void *sink_arg;
static unsigned n_dropped;               /* lines since stderr took one; under sink_lock */
static atomic_bool as_json;              /* main thread writes, before others start; any reads */
static char json[16 * LOG_TEXT_BYTES];   /* the line that is being made; under sink_lock */
static _Atomic int max_level = LOG_INFO; /* any thread writes and reads; relaxed: a late change costs a line */

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

void log_set_json(bool on)
{
    atomic_store(&as_json, on);
}

bool log_is_json(void)
{
    return atomic_load(&as_json);
}

void log_set_sink(log_fn fn, void *arg)
{
    mutex_lock(&sink_lock);
    sink = fn;
    sink_arg = arg;
    mutex_unlock(&sink_lock);
}

/* Neither a control character nor one that breaks lines or turns the direction of writing. */
static bool is_plain(uint32_t cp)
{
    if (cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) || cp == 0xfeff) return false;
    return !((cp >= 0x200e && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069));
}

/* What is not plain, and ill-formed bytes, as \xNN. out holds 4 bytes for each of text and a terminator. */
static void escape(const char *text, size_t n, char *out)
{
    static const char hex[] = "0123456789abcdef";
    size_t used = 0;
    uint32_t cp;

    for (size_t i = 0; i < n;) {
        int length = utf8_decode(text + i, n - i, &cp);
        bool plain = length > 0 && is_plain(cp);
        size_t step = (size_t)(length < 0 ? -length : length);

        for (size_t k = 0; k < step; k++) {
            unsigned char c = (unsigned char)text[i + k];
            if (plain) {
                out[used++] = (char)c;
            } else {
                out[used++] = '\\';
                out[used++] = 'x';
                out[used++] = hex[c >> 4];
                out[used++] = hex[c & 15];
            }
        }
        i += step;
    }
    out[used] = 0;
}

/* False: a write would wait for whoever reads stderr, perhaps for ever. */
static bool stderr_takes_a_line(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&p, 1, n_dropped ? 0 : LOG_WAIT_MS) != 0; /* a pipe has room for PIPE_BUF bytes then */
}

/* ,"key":"text" at json + n, where text holds no control characters: escape() took them. What has no room is left out. */
static size_t put_text(size_t n, const char *key, const char *text)
{
    size_t need = strlen(key) + 2 * strlen(text) + 16;

    if (n + need > sizeof(json)) return n;
    n += (size_t)sprintf(json + n, "%c\"%s\":\"", n ? ',' : '{', key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') json[n++] = '\\';
        json[n++] = *text;
    }
    json[n++] = '"';
    return n;
}

static size_t put_field(size_t n, const struct log_field *f)
{
    char text[LOG_TEXT_BYTES], escaped[4 * LOG_TEXT_BYTES + 1];

    if (n + strlen(f->key) + 64 > sizeof(json)) return n;
    if (f->kind == LOG_NUMBER) return n + (size_t)sprintf(json + n, ",\"%s\":%" PRIu64, f->key, f->as.number);
    if (f->kind == LOG_REAL && isfinite(f->as.real))
        return n + (size_t)snprintf(json + n, 64 + strlen(f->key), ",\"%s\":%.3f", f->key, f->as.real);
    if (f->kind == LOG_REAL || !f->as.text) return n + (size_t)sprintf(json + n, ",\"%s\":null", f->key);
    snprintf(text, sizeof(text), "%s", f->as.text);
    escape(text, strlen(text), escaped);
    return put_text(n, f->key, escaped);
}

/* A line of the log: line holds no control characters. */
struct entry {
    const char *level, *event, *line;
    const struct log_field *fields;
    size_t n_fields;
};

static void put_line(const char *stamp, const struct entry *e)
{
    size_t n = 0;

    if (!log_is_json()) {
        fprintf(stderr, "%s %-5s %s\n", stamp, e->level, e->line);
        return;
    }
    n = put_text(n, "time", stamp);
    n = put_text(n, "level", e->level);
    n = put_text(n, "event", e->event);
    n = put_text(n, "message", e->line);
    for (size_t i = 0; i < e->n_fields; i++) n = put_field(n, &e->fields[i]);
    fprintf(stderr, "%.*s}\n", (int)n, json);
}

static void write_stderr(enum log_level level, struct entry *e)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    time_t now = (time_t)clock_wall_s(clock_system());
    struct tm tm;
    char stamp[32], text[80];

    if (!stderr_takes_a_line()) {
        n_dropped++;
        return;
    }
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (n_dropped) {
        const struct log_field lines = LOG_F_NUMBER("lines", n_dropped);
        const struct entry dropped = {names[LOG_WARN], "dropped", text, &lines, 1};

        snprintf(text, sizeof(text), "%u lines of the log were dropped: its reader was too slow", n_dropped);
        n_dropped = 0;
        put_line(stamp, &dropped);
    }
    e->level = names[level];
    put_line(stamp, e);
}

static void log_entry(enum log_level level, struct entry *e, const char *format, va_list args)
{
    char text[LOG_TEXT_BYTES], line[4 * LOG_TEXT_BYTES + 1];
    int n;

    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed)) return;
    n = vsnprintf(text, sizeof(text), format, args);
    if (n < 0) return;
    escape(text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1, line);
    e->line = line;

    mutex_lock(&sink_lock);
    if (sink)
        sink(sink_arg, level, line);
    else
        write_stderr(level, e);
    mutex_unlock(&sink_lock);
}

void log_line(enum log_level level, const char *format, ...)
{
    struct entry e = {.event = "note"};
    va_list args;

    va_start(args, format);
    log_entry(level, &e, format, args);
    va_end(args);
}

void log_event(enum log_level level, const char *event, const struct log_field *fields, size_t n_fields,
               const char *format, ...)
{
    struct entry e = {.event = event, .fields = fields, .n_fields = n_fields};
    va_list args;

    va_start(args, format);
    log_entry(level, &e, format, args);
    va_end(args);
}
