/* api/api_sizes.h - structs that begin with their size, filled for programs that were built with another version's header
 * (radish.h).
 *
 * n is the struct's size in this version, n_first that in version 0.1, which none is shorter than: a size below it was
 * never set.
 * Thread  any thread.
 */
#pragma once
#include <stddef.h>
#include "radish/status.h"

/* Sizes in version 0.1. Whoever adds a member to one of them, at its end, writes offsetof(struct .., it) here. */
#define API_FIRST_INFO        sizeof(struct rd_info)
#define API_FIRST_STATS       sizeof(struct rd_stats)
#define API_FIRST_MEMORY      sizeof(struct rd_memory)
#define API_FIRST_EXPLANATION sizeof(struct rd_cache_explanation)
#define API_FIRST_BACKEND     sizeof(struct rd_backend_info)
#define API_FIRST_EVENT       sizeof(struct rd_event)
#define API_FIRST_FLAT        sizeof(struct rd_flat_info)
#define API_FIRST_ITEM        sizeof(struct rd_classify_item)

/* Of options, which are this version's: made by the function of this name. */
rd_status api_check_size(size_t said, size_t n, const char *maker, struct rd_error *err);
/* The length of the caller's struct, which says `said`. */
size_t api_size(size_t said, size_t n, size_t n_first);
/* As much of all, n bytes, as *out has room for. Its size, the first member of both, is what was written then. */
void api_give(void *out, const void *all, size_t n, size_t n_first);
