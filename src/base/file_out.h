/* base/file_out.h - a file that appears whole or not at all: written under a temporary name beside its own, then
 * renamed over it.
 *
 * Thread  its owner. Errors  RD_E_IO, RD_E_NOT_FOUND (the folder), RD_E_LIMIT (the path is too long); err names the path
 *         and the system's reason. Every call goes through the fault hook of base/file.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/limits.h"
#include "radish/status.h"

struct file_out {
    char path[LIMIT_PATH_BYTES], temporary[LIMIT_PATH_BYTES];
    int fd;           /* < 0: not open; zeroed it must not be used */
    uint64_t n_bytes; /* written so far */
};

/* Refuses a path that is there and no regular file. */
rd_status file_out_open(const char *path, struct file_out *out, struct rd_error *err);
/* With these permissions, whatever the umask, before a byte is in it. */
rd_status file_out_open_as(const char *path, uint32_t mode, struct file_out *out, struct rd_error *err);
rd_status file_out_write(struct file_out *f, const void *data, size_t n, struct rd_error *err);
/* On the disk, and under its name. Closed either way. */
rd_status file_out_commit(struct file_out *f, struct rd_error *err);
/* Removes the temporary file; harmless when closed. */
void file_out_abandon(struct file_out *f);
/* These bytes: open, write, commit. */
rd_status file_out_all(const char *path, const void *data, size_t n, struct rd_error *err);
/* A folder for files of the user's: makes it and the missing ones above it, with the rights that the umask leaves; one that is
 * there stays as it is. On success a file can be made in it. (What is only for this process: base/cache_dir.h.) */
rd_status file_out_folder(const char *dir, struct rd_error *err);
/* Takes the last one away again, if nothing is in it. */
void file_out_no_folder(const char *dir);
