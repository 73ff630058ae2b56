#pragma once
#include <sched.h>
#include <signal.h>
#include <time.h>
typedef struct _opaque_pthread_t *pthread_t;
typedef struct {
    long __sig;
    char __opaque[56];
} pthread_mutex_t, pthread_attr_t;
typedef struct {
    long __sig;
    char __opaque[40];
} pthread_cond_t;
typedef struct {
    long __sig;
    char __opaque[8];
} pthread_mutexattr_t, pthread_condattr_t, pthread_once_t;
typedef unsigned long pthread_key_t;
#define PTHREAD_MUTEX_INITIALIZER                                                                                      \
    {                                                                                                                  \
        0x32AAABA7,                                                                                                    \
        {                                                                                                              \
            0                                                                                                          \
        }                                                                                                              \
    }
#define PTHREAD_COND_INITIALIZER                                                                                       \
    {                                                                                                                  \
        0x3CB0B1BB,                                                                                                    \
        {                                                                                                              \
            0                                                                                                          \
        }                                                                                                              \
    }
#define PTHREAD_ONCE_INIT                                                                                              \
    {                                                                                                                  \
        0x30B1BCBA,                                                                                                    \
        {                                                                                                              \
            0                                                                                                          \
        }                                                                                                              \
    }
int pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_join(pthread_t, void **);
int pthread_detach(pthread_t);
pthread_t pthread_self(void);
int pthread_equal(pthread_t, pthread_t);
int pthread_setname_np(const char *); /* the calling thread's */
int pthread_getname_np(pthread_t, char *, size_t);
unsigned int pthread_mach_thread_np(pthread_t);
pthread_t pthread_from_mach_thread_np(unsigned int);
int pthread_mutex_init(pthread_mutex_t *, const pthread_mutexattr_t *);
int pthread_mutex_destroy(pthread_mutex_t *);
int pthread_mutex_lock(pthread_mutex_t *);
int pthread_mutex_trylock(pthread_mutex_t *);
int pthread_mutex_unlock(pthread_mutex_t *);
int pthread_cond_init(pthread_cond_t *, const pthread_condattr_t *);
int pthread_cond_destroy(pthread_cond_t *);
int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int pthread_cond_timedwait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
int pthread_cond_timedwait_relative_np(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
int pthread_cond_signal(pthread_cond_t *);
int pthread_cond_broadcast(pthread_cond_t *);
int pthread_condattr_init(pthread_condattr_t *);
int pthread_condattr_destroy(pthread_condattr_t *);
int pthread_once(pthread_once_t *, void (*)(void));
int pthread_key_create(pthread_key_t *, void (*)(void *));
int pthread_setspecific(pthread_key_t, const void *);
void *pthread_getspecific(pthread_key_t);
int pthread_attr_init(pthread_attr_t *);
int pthread_attr_destroy(pthread_attr_t *);
int pthread_attr_setstacksize(pthread_attr_t *, size_t);
int pthread_atfork(void (*)(void), void (*)(void), void (*)(void));
int pthread_kill(pthread_t, int);
