/* tests/server/call_watch.c - a library that is put before libc (LD_PRELOAD): writes down, in the file that CALL_WATCH
 * names, every connection that is made, name that is looked up and file that is opened. F15.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int out = -1;

static void note(const char *call, const char *what)
{
    char line[512];
    int n = snprintf(line, sizeof(line), "%s %s\n", call, what ? what : "");

    if (out >= 0 && write(out, line, (size_t)n) < 0) abort();
}

__attribute__((constructor)) static void begin(void)
{
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    const char *path = getenv("CALL_WATCH");

    if (path) out = real(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

int connect(int fd, const struct sockaddr *address, socklen_t n)
{
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");

    note("connect", "");
    return real(fd, address, n);
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(RTLD_NEXT,
                                                                                                "getaddrinfo");

    note("getaddrinfo", host);
    return real(host, service, hints, list);
}

#define OPENER(name)                                                                                                   \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                \
        va_list args;                                                                                                  \
        int mode;                                                                                                      \
                                                                                                                       \
        va_start(args, flags);                                                                                         \
        mode = va_arg(args, int);                                                                                      \
        va_end(args);                                                                                                  \
        note(#name, path);                                                                                             \
        return real(path, flags, mode);                                                                                \
    }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name)                                                                                                \
    int name(int folder, const char *path, int flags, ...)                                                             \
    {                                                                                                                  \
        int (*real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name);      \
        va_list args;                                                                                                  \
        int mode;                                                                                                      \
                                                                                                                       \
        va_start(args, flags);                                                                                         \
        mode = va_arg(args, int);                                                                                      \
        va_end(args);                                                                                                  \
        note(#name, path);                                                                                             \
        return real(folder, path, flags, mode);                                                                        \
    }
OPENER_AT(openat)
OPENER_AT(openat64)

#define STREAM(name)                                                                                                   \
    FILE *name(const char *path, const char *mode)                                                                     \
    {                                                                                                                  \
        FILE *(*real)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #name);  \
                                                                                                                       \
        note(#name, path);                                                                                             \
        return real(path, mode);                                                                                       \
    }
STREAM(fopen)
STREAM(fopen64)
