/* tests/server/stall_send.c - a library that is put before libzmq (LD_PRELOAD): while the file that STALL_FILE names exists, whoever
 * sends stands still. */
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int zmq_send(void *socket, const void *bytes, size_t n, int flags);
int zmq_send(void *socket, const void *bytes, size_t n, int flags)
{
    static int (*real)(void *, const void *, size_t, int);
    const char *file = getenv("STALL_FILE");
    const struct timespec pause = {0, 20000000};

    if (!real) real = (int (*)(void *, const void *, size_t, int))dlsym(RTLD_NEXT, "zmq_send");
    while (file && access(file, F_OK) == 0) nanosleep(&pause, NULL);
    return real(socket, bytes, n, flags);
}
