/* base/log.h - the log sink: one line per event on stderr or to a callback. The only global of radish.
 * Foreign bytes are escaped (F53). No prompt text at level info or below.
 * Thread  any thread; lines do not mix.
 */
#pragma once
#include <stdbool.h>
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
typedef void (*log_fn)(void *arg, enum log_level level, const char *line);

void log_set_level(enum log_level level);
/* Lines on stderr are JSON: {"time":"2026-11-23T10:41:48Z","level":"info","message":".."}. */
void log_set_json(bool on);
/* NULL: stderr, with time stamps. Where that is not read (a pipe that is full, a terminal that is held), lines are
 * dropped and their number is told later: a server must not stop with its terminal. */
void log_set_sink(log_fn fn, void *arg);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
