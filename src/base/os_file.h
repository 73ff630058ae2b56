/* base/os_file.h - what systems do with files in ways of their own: linux/os_file_linux.c, darwin/os_file_darwin.c.
 *
 * Like the calls that they stand for: 0 or a descriptor, or -1 and errno. Any thread.
 */
#pragma once
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/* The file's bytes outlive a power cut; os_sync: its names and times, too, and a folder's names. */
int os_sync_data(int fd);
int os_sync(int fd);
/* n bytes from the beginning have room on the disk, and the file is at least as long. EOPNOTSUPP: not on this file system. */
int os_take_room(int fd, off_t n);
/* What lies there reads as zeros and need take no room; the file stays as long. */
int os_give_back(int fd, off_t at, off_t n);
/* path below the folder dir, links that stay below it included. ENOSYS: this system has no such call. */
int os_open_beneath(int dir, const char *path, int flags);
/* Mapped pages of a file are read now, where the system can be asked. p begins a page. */
void os_populate(const void *p, size_t n);
/* When its bytes, or anything of it, last changed. */
struct timespec os_changed(const struct stat *s);
struct timespec os_status_changed(const struct stat *s);
/* Where what a loader maps of a shared object ends, so that a shorter file can be refused: the system's loader may map it all the
 * same, and whoever touches what is missing dies. 0: it cannot be told, or the loader looks by itself. */
off_t os_object_end(const char *path);
