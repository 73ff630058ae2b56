/* base/log.c - formats, escapes, then hands one whole line to the sink under a lock. */
#include "base/log.h"
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
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
static bool as_json;                     /* under sink_lock */
static _Atomic int max_level = LOG_INFO; /* any thread writes and reads; relaxed: a late change costs a line */

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

void log_set_json(bool on)
{
    mutex_lock(&sink_lock);
    as_json = on;
    mutex_unlock(&sink_lock);
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

/* line holds no control characters: escape() took them. */
static void put_line(const char *stamp, const char *level, const char *line)
{
    char json[2 * 4 * LOG_TEXT_BYTES + 1];
    size_t n = 0;

    if (!as_json) {
        fprintf(stderr, "%s %-5s %s\n", stamp, level, line);
        return;
    }
    for (; *line; line++) {
        if (*line == '"' || *line == '\\') json[n++] = '\\';
        json[n++] = *line;
    }
    json[n] = 0;
    fprintf(stderr, "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"%s\"}\n", stamp, level, json);
}

static void write_stderr(enum log_level level, const char *line)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    time_t now = (time_t)clock_wall_s(clock_system());
    struct tm tm;
    char stamp[32], dropped[80];

    if (!stderr_takes_a_line()) {
        n_dropped++;
        return;
    }
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (n_dropped) {
        snprintf(dropped, sizeof(dropped), "%u lines of the log were dropped: its reader was too slow", n_dropped);
        n_dropped = 0;
        put_line(stamp, names[LOG_WARN], dropped);
    }
    put_line(stamp, names[level], line);
}

void log_line(enum log_level level, const char *format, ...)
{
    char text[LOG_TEXT_BYTES], line[4 * LOG_TEXT_BYTES + 1];
    va_list args;
    int n;

    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed)) return;
    va_start(args, format);
    n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (n < 0) return;
    escape(text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1, line);

    mutex_lock(&sink_lock);
    if (sink)
        sink(sink_arg, level, line);
    else
        write_stderr(level, line);
    mutex_unlock(&sink_lock);
}
