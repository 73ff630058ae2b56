/* base/log.h - the log sink: one line per event on stderr or to a callback. The only global of radish.
 * Foreign bytes are escaped (F53). No prompt text at level info or below.
 * Thread  any thread; lines do not mix.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
typedef void (*log_fn)(void *arg, enum log_level level, const char *line);

void log_set_level(enum log_level level);
/* Lines on stderr are JSON, each an object of its own:
 *     {"time":"2026-11-23T10:41:48Z","level":"info","event":"ready","message":"ready: ..","model":"m","seconds":0.1}
 * What was not logged by log_event has the event "note". docs/operate.md names the events and their fields. */
void log_set_json(bool on);
bool log_is_json(void);
/* NULL: stderr, with time stamps. Where that is not read (a pipe that is full, a terminal that is held), lines are
 * dropped and their number is told later: a server must not stop with its terminal. */
void log_set_sink(log_fn fn, void *arg);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

/* A field of a JSON line beside its text. Texts are escaped as the message is; NULL: null. */
struct log_field {
    const char *key;
    enum log_kind { LOG_TEXT, LOG_NUMBER, LOG_REAL } kind;
    union {
        const char *text;
        uint64_t number;
        double real;
    } as;
};
#define LOG_F_TEXT(k, v)   ((struct log_field){(k), LOG_TEXT, {.text = (v)}})
#define LOG_F_NUMBER(k, v) ((struct log_field){(k), LOG_NUMBER, {.number = (v)}})
#define LOG_F_REAL(k, v)   ((struct log_field){(k), LOG_REAL, {.real = (v)}})

/* As log_line. event and the keys are ours, and stay the same: programs read them. */
void log_event(enum log_level level, const char *event, const struct log_field *fields, size_t n_fields,
               const char *format, ...) __attribute__((format(printf, 5, 6)));
#define LOG_FIELDS(...)                                                                                                \
    ((const struct log_field[]){__VA_ARGS__}),                                                                         \
        sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field)
