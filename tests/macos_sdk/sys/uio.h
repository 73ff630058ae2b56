#pragma once
#include <sys/socket.h>
ssize_t readv(int, const struct iovec *, int);
ssize_t writev(int, const struct iovec *, int);
