/* base/file.h - the one table for file calls: mapping model files, reading small files, an I/O fault hook.
 *
 * Thread  any thread.
 * Errors  RD_E_NOT_FOUND, RD_E_IO, RD_E_INVALID (not a regular file: F18), RD_E_LIMIT; err names the path's last part.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

/* A whole regular file mapped read-only and shared. A file that shrinks while mapped raises SIGBUS on touch:
 * file_map_guard() turns that into a failed load (F08). */
struct file_map { const uint8_t *data; uint64_t n_bytes; int fd; };

/* FIFOs, devices, sockets and directories are refused (F18); symbolic links are followed. An empty file: n_bytes 0,
 * data NULL. */
rd_status file_map_open(const char *path, struct file_map *out, struct rd_error *err);
void file_map_close(struct file_map *map);
/* Runs fn(arg) with SIGBUS inside [data, data + n_bytes) of this map caught: RD_E_IO then, else fn's result.
 * fn must not hold locks or allocate without recording it where the caller can free it. Not reentrant per thread. */
rd_status file_map_guard(const struct file_map *map, rd_status (*fn)(void *arg), void *arg, struct rd_error *err);
/* false if the file is now shorter than when it was mapped. */
bool file_map_unchanged(const struct file_map *map);

/* The whole file, terminated with a 0 byte beyond n; mem_free it. max: RD_E_LIMIT beyond. */
rd_status file_read_all(const char *path, size_t max, char **data, size_t *n, struct rd_error *err);
rd_status file_write_all(const char *path, const void *data, size_t n, struct rd_error *err);
bool file_exists(const char *path);

/* Test hook: the i-th file call from now fails with EIO once; negative: off. */
void file_fail_after(int64_t i);
