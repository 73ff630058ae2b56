/* base/file.h - the one table for file calls: mapping model files, reading small files, an I/O fault hook.
 *
 * Thread  any thread.
 * Errors  RD_E_NOT_FOUND, RD_E_IO, RD_E_INVALID (not a regular file: F18), RD_E_LIMIT; err names the path's last part.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/limits.h"
#include "radish/status.h"

/* A whole regular file mapped read-only and shared. A file that shrinks while mapped raises SIGBUS on touch:
 * file_map_guard() turns that into a failed load (F08). */
struct file_map {
    const uint8_t *data;
    uint64_t n_bytes;
    int fd;
    unsigned watch;
};

/* FIFOs, devices, sockets and directories are refused (F18); symbolic links are followed. An empty file: n_bytes 0,
 * data NULL. */
rd_status file_map_open(const char *path, struct file_map *out, struct rd_error *err);
void file_map_close(struct file_map *map);
/* Runs fn(arg) with SIGBUS inside [data, data + n_bytes) of this map caught: RD_E_IO then, else fn's result.
 * fn must not hold locks or allocate without recording it where the caller can free it. Not reentrant per thread. */
rd_status file_map_guard(const struct file_map *map, rd_status (*fn)(void *arg), void *arg, struct rd_error *err);
/* false if the file is now shorter than when it was mapped. */
bool file_map_unchanged(const struct file_map *map);

/* For bytes that are read long after loading, by any thread: until file_map_close(), a page that can no longer be read
 * (F08: the file was cut short, its disk failed) reads as zeros from there to the map's end, and file_map_broken() is
 * true from then on. Whoever computed with the bytes asks that afterwards and throws the result away. A guard goes
 * first. The process's SIGBUS handler is ours meanwhile; faults elsewhere are passed on to the one before.
 * RD_E_LIMIT: FILE_MAX_WATCHES maps are watched already. */
#define FILE_MAX_WATCHES 256u
rd_status file_map_watch(struct file_map *map, struct rd_error *err);
bool file_map_broken(const struct file_map *map);
/* Maps the pages of a range now, which is cheaper than a fault for each: advice, and harmless where the system has no
 * such call. */
void file_map_populate(const struct file_map *map, uint64_t offset, uint64_t n_bytes);
/* The same for bytes of which only the address is known; of any kind of memory. */
void file_populate(const void *bytes, uint64_t n_bytes);

/* Which bytes a path stood for: equal identities, the older one settled, mean equal contents. The change time moves
 * with every write and cannot be set back. settled: at the call, the file had not changed for settle_ns; before that, a
 * write may leave no trace in time stamps of the system's granularity. A writer that has the file mapped since before
 * can change bytes unseen until the system next writes them to disk. */
struct file_identity {
    uint64_t device, inode, n_bytes;
    int64_t mtime_ns, ctime_ns;
};
rd_status file_map_identity(const struct file_map *map, uint64_t settle_ns, struct file_identity *out, bool *settled);

/* The whole file, terminated with a 0 byte beyond n; mem_free it. max: RD_E_LIMIT beyond. */
rd_status file_read_all(const char *path, size_t max, char **data, size_t *n, struct rd_error *err);
rd_status file_write_all(const char *path, const void *data, size_t n, struct rd_error *err);
bool file_exists(const char *path);
/* The absolute path without links; false: there is nothing, or it is not to be seen. */
bool file_real_path(const char *path, char out[LIMIT_PATH_BYTES]);
/* For main(), first: standard streams that the process was started without become /dev/null. Else the next file or
 * socket takes their numbers, and what is logged or printed goes there. Writing to a standard output that was closed fails. */
void file_keep_standard_streams(void);

/* Test hook: the i-th file call from now fails with EIO once; negative: off. */
void file_fail_after(int64_t i);
/* That call and every later one fail with this errno: a disk that is full or gone. Negative: off. */
void file_fail_from(int64_t i, int error);
/* Calls fail with EIO at random, one in n of them; 0: off. */
void file_fail_one_in(uint32_t n, uint64_t seed);
/* File calls made since process start. */
uint64_t file_n_calls(void);
/* For file calls elsewhere in base/: true when the hook says that this one fails; errno is set. */
bool file_call_fails(void);
