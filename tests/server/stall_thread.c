/* tests/server/stall_thread.c - a library that is put before libc (LD_PRELOAD): while the file that STALL_FILE names exists,
 * threads of the names that STALL_THREAD says ("rank 1,saver") stand still when they ask for the time. STALL_MS: each time that it asks takes
 * it so many milliseconds. STALL_AT=lock: it stands still before it takes a mutex instead, holding none of those that it takes alone.
 * STALL_AT=word: where it sleeps at a word, or wakes who does (base/word_wait.h).
 */
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_the_thread(void)
{
    const char *threads = getenv("STALL_THREAD");
    char name[16] = "";
    size_t n;

    if (!threads || prctl(PR_GET_NAME, name)) return 0;
    for (; *threads; threads += n + (threads[n] == ',')) {
        n = strcspn(threads, ",");
        if (strlen(name) == n && strncmp(name, threads, n) == 0) return 1;
    }
    return 0;
}

static void stand_still(void)
{
    const char *file = getenv("STALL_FILE");
    const struct timespec pause = {0, 20000000};

    while (file && access(file, F_OK) == 0) nanosleep(&pause, NULL);
}

static int stalls_at(const char *what)
{
    const char *at = getenv("STALL_AT");

    return strcmp(at ? at : "clock", what) == 0;
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *);
    const char *ms = getenv("STALL_MS");

    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (stalls_at("clock") && is_the_thread()) {
        if (ms) usleep((useconds_t)atoi(ms) * 1000);
        stand_still();
    }
    return real(id, out);
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
    static int (*real)(pthread_mutex_t *);

    if (!real) real = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    if (stalls_at("lock") && is_the_thread()) stand_still();
    return real(m);
}

long syscall(long number, ...)
{
    static long (*real)(long, long, long, long, long, long, long);
    long a[6];
    va_list list;

    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (!real) real = (long (*)(long, long, long, long, long, long, long))dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_futex && stalls_at("word") && is_the_thread()) stand_still();
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
