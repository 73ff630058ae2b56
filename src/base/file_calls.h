/* base/file_calls.h - the system's calls for the files that radish writes, as a table: data_file.c and cache_dir.c make
 * theirs through it. A test puts another table in its place: a disk in memory that can lose its power
 * (tests/support/mem_disk.h).
 *
 * Each member does what the call of its name does, errno included; sync, room and what is given back: base/os_file.h. Every call goes through the fault hook of base/file.h
 * first, where the caller is; the table knows nothing of it. Maps are not here: who maps a file has the system's.
 *
 * Thread  any thread calls; file_calls_replace: while no other thread uses files.
 */
#pragma once
#include <stddef.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

struct file_calls {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*openat)(int dir, const char *name, int flags);
    int (*close)(int fd);
    ssize_t (*pread)(int fd, void *p, size_t n, off_t at);
    ssize_t (*pwrite)(int fd, const void *p, size_t n, off_t at);
    int (*sync_data)(int fd);
    int (*sync)(int fd); /* of a folder: its names */
    int (*ftruncate)(int fd, off_t n);
    int (*take_room)(int fd, off_t n);
    int (*give_back)(int fd, off_t at, off_t n);
    int (*flock)(int fd, int how);
    int (*fstat)(int fd, struct stat *st);
    int (*stat)(const char *path, struct stat *st);
    int (*lstat)(const char *path, struct stat *st);
    int (*fstatat)(int dir, const char *name, struct stat *st, int flags);
    int (*statvfs)(const char *path, struct statvfs *v);
    int (*utimensat)(int dir, const char *path, const struct timespec times[2], int flags);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*unlinkat)(int dir, const char *name, int flags);
    int (*mkdir)(const char *path, mode_t mode);
    void *(*dir_open)(const char *path); /* opendir, readdir, rewinddir, dirfd, closedir */
    const char *(*dir_next)(void *dir);  /* NULL: no more */
    void (*dir_rewind)(void *dir);
    int (*dir_fd)(void *dir);
    void (*dir_close)(void *dir);
};

extern const struct file_calls *file_calls;
/* NULL: the system's again. */
void file_calls_replace(const struct file_calls *calls);
