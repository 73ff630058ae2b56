/* base/data_file.h - files of our own that are read and written at offsets, in a folder that is the user's alone.
 *
 * Files are made 0600 whatever the umask; symbolic links are not followed, and a file that belongs to another user or
 * that others may write to is refused (base/cache_dir.h makes the folder so). Nothing is synced but by data_file_sync,
 * data_file_sync_dir.
 * Every call goes through the fault hook of base/file.h.
 *
 * Thread  any thread; reads and writes of one file at different places may run beside each other.
 * Errors  RD_E_NOT_FOUND, RD_E_IO, RD_E_INVALID (owner, rights, not a regular file, a path too long),
 *         RD_E_FORMAT (a read beyond the end). errno is kept for the caller's message (data_file_reason).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct data_file {
    int fd;
}; /* fd < 0: closed */
#define DATA_FILE_CLOSED ((struct data_file){-1})

enum data_file_mode {
    DATA_FILE_READ,
    DATA_FILE_WRITE, /* must be there */
    DATA_FILE_NEW    /* must not be there */
};

rd_status data_file_open(const char *dir, const char *name, enum data_file_mode mode, struct data_file *out);
/* Harmless on a closed one. */
void data_file_close(struct data_file *f);
rd_status data_file_size(const struct data_file *f, uint64_t *n_bytes);
rd_status data_file_read(const struct data_file *f, uint64_t offset, void *data, size_t n);
rd_status data_file_write(const struct data_file *f, uint64_t offset, const void *data, size_t n);
/* What was written is on the disk. After a failure it must be taken for lost, and cannot be synced again. */
rd_status data_file_sync(const struct data_file *f);
rd_status data_file_truncate(const struct data_file *f, uint64_t n_bytes);
/* The bytes read as zeros from now on and take no room, where the file system can do that. RD_E_IO: they stay. */
rd_status data_file_give_back(const struct data_file *f, uint64_t offset, uint64_t n_bytes);
/* Of the disk that holds DIR: bytes that this user may still write, and its size. RD_E_IO: the system does not say. */
rd_status data_file_room(const char *dir, uint64_t *n_free, uint64_t *n_total);
/* RD_E_NOT_FOUND: DIR/NAME was removed, or is another file by now. */
rd_status data_file_is_at(const struct data_file *f, const char *dir, const char *name);
/* Time of last use, seconds since 1970: kept as the file's mtime. */
rd_status data_file_used(const struct data_file *f, int64_t *used_s);
rd_status data_file_set_used(const char *dir, const char *name, int64_t used_s);
rd_status data_file_remove(const char *dir, const char *name);
/* The folder's names are on the disk, where the file system can do that: what was removed stays removed. */
rd_status data_file_sync_dir(const char *dir);
/* Opens or makes a file and takes its lock, which goes with the file or the process. RD_E_AGAIN: another holds it. */
rd_status data_file_lock(const char *dir, const char *name, struct data_file *out);
/* The lock of the folder itself, whoever owns it. RD_E_IO: among others, the file system has no such locks. */
rd_status data_file_lock_dir(const char *dir, struct data_file *out);

/* "No space left on device" and the like, of the calling thread's last failed call. */
const char *data_file_reason(char *buf, size_t cap);
