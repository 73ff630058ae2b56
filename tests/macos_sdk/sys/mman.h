#pragma once
#include <sys/types.h>
#define PROT_NONE           0
#define PROT_READ           1
#define PROT_WRITE          2
#define MAP_SHARED          1
#define MAP_PRIVATE         2
#define MAP_FIXED           0x10
#define MAP_NORESERVE       0x40
#define MAP_ANON            0x1000
#define MAP_ANONYMOUS       MAP_ANON
#define MAP_FAILED          ((void *)-1)
#define MADV_NORMAL         0
#define MADV_RANDOM         1
#define MADV_SEQUENTIAL     2
#define MADV_WILLNEED       3
#define MADV_DONTNEED       4
#define MADV_FREE           5
#define POSIX_MADV_WILLNEED 3
#define POSIX_MADV_DONTNEED 4
#define MS_ASYNC            1
#define MS_SYNC             16
void *mmap(void *, size_t, int, int, int, off_t);
int munmap(void *, size_t);
int mprotect(void *, size_t, int);
int madvise(void *, size_t, int);
int posix_madvise(void *, size_t, int);
int msync(void *, size_t, int);
int mlock(const void *, size_t);
int munlock(const void *, size_t);
int mincore(const void *, size_t, char *);
