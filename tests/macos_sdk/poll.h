#pragma once
struct pollfd {
    int fd;
    short events, revents;
};
typedef unsigned nfds_t;
#define POLLIN   1
#define POLLOUT  4
#define POLLERR  8
#define POLLHUP  16
#define POLLNVAL 32
int poll(struct pollfd *, nfds_t, int);
