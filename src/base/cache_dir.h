/* base/cache_dir.h - a folder of big files that can be made again, shared by processes of one user.
 *
 * A file is written under a temporary name, which only its writer has locked, and renamed when it is complete: readers
 * see a whole file or none. Two writers of one name are fine: the later rename wins. Removing a file that others have
 * mapped leaves them their bytes. Files and folder are the user's alone (0600, 0700): one that belongs to
 * another, or that others may write to, is refused, because its bytes are computed with.
 * Files are not synced but by cache_file_sync: what a power cut leaves behind is for the reader's checksums to find.
 *
 * Thread  any thread; a struct cache_file: its owner.
 * Errors  RD_E_IO, RD_E_NOT_FOUND, RD_E_INVALID (owner, rights, not a regular file, a path too long), RD_E_NOMEM.
 *         Every call goes through the fault hook of base/file.h.
 */
#pragma once
#include "base/file.h"

/* Makes the folder and the missing ones above it. */
rd_status cache_dir_make(const char *dir, struct rd_error *err);

/* Maps dir/name (file_map_close). Symbolic links are not followed. */
rd_status cache_dir_map(const char *dir, const char *name, struct file_map *out, struct rd_error *err);

/* A new file of n_bytes zeros, its room taken on disk where the system can say so before. */
struct cache_file {
    int fd;
    char *path;
};
rd_status cache_file_create(const char *dir, uint64_t n_bytes, struct cache_file *out, struct rd_error *err);
rd_status cache_file_write(struct cache_file *f, uint64_t offset, const void *data, size_t n, struct rd_error *err);
/* What was written is on the disk. For small files whose loss costs more than time. */
rd_status cache_file_sync(const struct cache_file *f, struct rd_error *err);
/* Gives the file its name and closes it; on failure it is gone. */
rd_status cache_file_commit(struct cache_file *f, const char *dir, const char *name, struct rd_error *err);
/* Removes a file that was not committed; harmless after commit or on zeros. */
void cache_file_abandon(struct cache_file *f);

/* Every file of the folder that is no temporary: fn returns false to stop. RD_E_IO: the folder cannot be read. */
rd_status cache_dir_list(const char *dir, bool (*fn)(void *arg, const char *name), void *arg);
/* Marks a file as used now. */
void cache_dir_touch(const char *dir, const char *name);
void cache_dir_remove(const char *dir, const char *name);
/* Removes temporaries whose writer is gone; then, while files that end in suffix take more than cap_bytes together, the
 * least recently used of them, but not keep. */
void cache_dir_tidy(const char *dir, const char *suffix, uint64_t cap_bytes, const char *keep);
