/* base/file_calls.c - the table whose members are the system's own. */
#include "base/file_calls.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/os_file.h"

static int system_open(const char *path, int flags, mode_t mode)
{
    return open(path, flags, mode);
}
static int system_openat(int dir, const char *name, int flags)
{
    return openat(dir, name, flags);
}
static void *system_dir_open(const char *path)
{
    return opendir(path);
}
static void system_dir_rewind(void *dir)
{
    rewinddir(dir);
}
static int system_dir_fd(void *dir)
{
    return dirfd(dir);
}
static void system_dir_close(void *dir)
{
    closedir(dir);
}

static const char *system_dir_next(void *dir)
{
    struct dirent *e = readdir(dir);

    return e ? e->d_name : NULL;
}

static const struct file_calls system_calls = {
    .open = system_open,
    .openat = system_openat,
    .close = close,
    .pread = pread,
    .pwrite = pwrite,
    .sync_data = os_sync_data,
    .sync = os_sync,
    .ftruncate = ftruncate,
    .take_room = os_take_room,
    .give_back = os_give_back,
    .flock = flock,
    .fstat = fstat,
    .stat = stat,
    .lstat = lstat,
    .fstatat = fstatat,
    .statvfs = statvfs,
    .utimensat = utimensat,
    .rename = rename,
    .unlink = unlink,
    .unlinkat = unlinkat,
    .mkdir = mkdir,
    .dir_open = system_dir_open,
    .dir_next = system_dir_next,
    .dir_rewind = system_dir_rewind,
    .dir_fd = system_dir_fd,
    .dir_close = system_dir_close,
};

const struct file_calls *file_calls = &system_calls;

void file_calls_replace(const struct file_calls *calls)
{
    file_calls = calls ? calls : &system_calls;
}
