/* base/file_beneath.h - a file below a folder, by a path that a stranger gives.
 *
 * The path leads nowhere else: not by "..", by an absolute path, by a link that leads out, or by /proc's links. The system sees
 * to that while it opens (openat2, RESOLVE_BENEATH); where it has no such call, each folder is opened by itself and no link is
 * followed at all. Regular files only: a FIFO or a device is not waited for.
 *
 * Thread  any thread.
 * Errors  RD_E_NOT_FOUND nothing there, or it leads out: a stranger learns not which; RD_E_INVALID no regular file; RD_E_LIMIT
 *         more than `most` bytes; RD_E_IO; RD_E_NOMEM. err has no path.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "radish/status.h"

/* The folder, to be closed by close(); -1: there is none, errno says why. */
int file_beneath_open_dir(const char *path);
/* path: relative to it. *data: [*n], mem_free'd by the caller. walk: without openat2, for tests. */
rd_status file_beneath_read(int dir, const char *path, size_t most, bool walk, void **data, size_t *n,
                            struct rd_error *err);
