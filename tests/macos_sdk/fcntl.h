#pragma once
#include <sys/types.h>
#include <sys/stat.h>
#define O_RDONLY            0x0000
#define O_WRONLY            0x0001
#define O_RDWR              0x0002
#define O_ACCMODE           0x0003
#define O_NONBLOCK          0x0004
#define O_APPEND            0x0008
#define O_NOFOLLOW          0x0100
#define O_CREAT             0x0200
#define O_TRUNC             0x0400
#define O_NOCTTY            0x20000
#define O_EXCL              0x0800
#define O_DIRECTORY         0x100000
#define O_CLOEXEC           0x1000000
#define AT_FDCWD            (-2)
#define AT_SYMLINK_NOFOLLOW 0x0020
#define AT_SYMLINK_FOLLOW   0x0040
#define AT_REMOVEDIR        0x0080
#define F_DUPFD             0
#define F_GETFD             1
#define F_SETFD             2
#define F_GETFL             3
#define F_SETFL             4
#define F_GETLK             7
#define F_SETLK             8
#define F_SETLKW            9
#define F_PREALLOCATE       42
#define F_RDADVISE          44
#define F_NOCACHE           48
#define F_FULLFSYNC         51
#define F_GETPATH           50
#define F_DUPFD_CLOEXEC     67
#define F_PUNCHHOLE         99
#define F_ALLOCATECONTIG    2
#define F_ALLOCATEALL       4
#define F_PEOFPOSMODE       3
#define FD_CLOEXEC          1
#define F_RDLCK             1
#define F_UNLCK             2
#define F_WRLCK             3
struct flock {
    off_t l_start, l_len;
    pid_t l_pid;
    short l_type, l_whence;
};
typedef struct fstore {
    unsigned fst_flags;
    int fst_posmode;
    off_t fst_offset, fst_length, fst_bytesalloc;
} fstore_t;
struct fpunchhole {
    unsigned fp_flags, reserved;
    off_t fp_offset, fp_length;
};
int open(const char *, int, ...);
int openat(int, const char *, int, ...);
int creat(const char *, mode_t);
int fcntl(int, int, ...);
