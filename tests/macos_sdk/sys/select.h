#pragma once
#include <sys/time.h>
int select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
