#pragma once
#include <signal.h>
#include <sys/time.h>
#define FD_ZERO(set)    (*(set) = (fd_set){{0}})
#define FD_SET(fd, set) ((set)->fds_bits[(fd) / 32] |= 1 << (fd) % 32)
int pselect(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *);
int select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
