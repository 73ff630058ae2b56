/* base/os_thread.h - what threads have besides POSIX: linux/os_thread_linux.c, darwin/os_thread_darwin.c. Any thread. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OS_THREAD_NAME_BYTES = 16 };

/* Of the calling thread. The second may be called in a signal handler. */
void os_thread_set_name(const char *name);
void os_thread_name(char name[OS_THREAD_NAME_BYTES]);
/* Runs only when no other thread wants its core: a wish. */
void os_thread_set_idle(void);
/* Has a tenth of a core that another thread wants: a wish. */
void os_thread_set_low(void);
/* Cores that this process may use; hardware threads of one core count once in the second. 0: not known. */
uint32_t os_n_cores(void);
uint32_t os_n_physical_cores(void);

/* A condition whose waits are not moved by a change of the wall clock. 0, ETIMEDOUT. */
int os_cond_init(pthread_cond_t *c);
int os_cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *m, uint64_t timeout_ns);

/* Of word_wait.h. */
bool os_word_wait_ns(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void os_word_wake_all(_Atomic uint32_t *word);

/* ---- for the report of a crash: in a signal handler ---- */

/* A number of the calling thread, not 0; fn gets those of all threads, at most `most`. */
int os_thread_id(void);
void os_each_thread(int most, void (*fn)(int id));
bool os_thread_signal(int id, int number);
/* Of the system itself: a sanitizer's nanosleep() lets in signals that it holds back, one crash within another. */
void os_thread_rest_ms(uint32_t ms);
size_t os_signal_stack_bytes(void); /* what the processor's state takes */
