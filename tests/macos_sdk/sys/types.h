/* Types of Darwin on arm64, as used by this tree: an interface, not Apple's file (tests/macos_sdk/README). */
#pragma once
#include <stddef.h>
#include <stdint.h>
typedef long ssize_t;
typedef int64_t off_t;
typedef int32_t pid_t;
typedef uint32_t uid_t, gid_t, id_t;
typedef uint16_t mode_t, nlink_t;
typedef int32_t dev_t;
typedef uint64_t ino_t;
typedef int64_t blkcnt_t;
typedef int32_t blksize_t;
typedef long time_t, clock_t;
typedef int32_t suseconds_t;
typedef uint32_t useconds_t;
typedef uint32_t socklen_t;
typedef unsigned int fsblkcnt_t, fsfilcnt_t;
typedef struct fd_set {
    int32_t fds_bits[32];
} fd_set;
