#pragma once
#include <time.h>
struct kevent {
    uintptr_t ident;
    int16_t filter;
    uint16_t flags;
    uint32_t fflags;
    intptr_t data;
    void *udata;
};
#define EVFILT_READ  (-1)
#define EVFILT_WRITE (-2)
#define EVFILT_PROC  (-5)
#define EVFILT_USER  (-10)
#define EV_ADD       0x0001
#define EV_DELETE    0x0002
#define EV_ONESHOT   0x0010
#define EV_CLEAR     0x0020
#define EV_EOF       0x8000
#define NOTE_EXIT    0x80000000
#define NOTE_TRIGGER 0x01000000
int kqueue(void);
int kevent(int, const struct kevent *, int, struct kevent *, int, const struct timespec *);
