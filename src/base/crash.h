/* base/crash.h - the last words of a process: what happened, where each thread was, and what was being counted.
 *
 *     radish: crashed by signal 11 (SIGSEGV) at address 0x10, in thread engine
 *     radish: version 0.1.0, 12.3 s after the start
 *     radish: requests decoding 3, pages free 1020, ...
 *     radish: thread engine
 *     radish(+0x1a2b3)[0x55d0c1a2b3]                 addr2line -fe PROGRAM 0x1a2b3 says which line that is
 *     ...
 *
 * For SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT. Nothing that a client sent is in it. Then the signal does what it did
 * before crash_install: a core file, mostly, or a sanitizer's report. The handlers call nothing but what may be called in
 * one (signal-safety(7)), and backtrace(), which is loaded beforehand. A report that does not end within half a minute (a
 * stopped thread may hold the loader's lock) is left: the process ends by SIGALRM.
 *
 * Thread  crash_install: the main thread, before others start; threads of base/thread.h then have a stack of their own for
 *         the handlers. crash_note: any thread, one for each place.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define CRASH_NOTES 24u

void crash_install(const char *version);
/* Each line of the report is a JSON object like those of the log (log.h): event "crash", with signal and thread. */
void crash_set_json(bool on);
/* A number that the report tells: place is below CRASH_NOTES, name a constant. The report lists them by place. */
void crash_note(unsigned place, const char *name, uint64_t value);
/* A thread's stack for the handlers; harmless where crash_install was not called. */
void crash_thread_begin(void);
void crash_thread_end(void);
