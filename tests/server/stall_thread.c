/* tests/server/stall_thread.c - a library that is put before libc (LD_PRELOAD): while the file that STALL_FILE names exists,
 * the thread of the name that STALL_THREAD says stands still when it asks for the time. STALL_MS: each time that it asks takes
 * it so many milliseconds.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *);
    const char *file = getenv("STALL_FILE"), *thread = getenv("STALL_THREAD"), *ms = getenv("STALL_MS");
    const struct timespec pause = {0, 20000000};
    char name[16] = "";

    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (thread && prctl(PR_GET_NAME, name) == 0 && strcmp(name, thread) == 0) {
        if (ms) usleep((useconds_t)atoi(ms) * 1000);
        while (file && access(file, F_OK) == 0) nanosleep(&pause, NULL);
    }
    return real(id, out);
}
