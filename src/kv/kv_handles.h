/* kv/kv_handles.h - handles of what was computed: a number stands for a line of tokens whose keys and values are in pages.
 *
 * Lines share their beginnings, page by page. What grows behind a line writes behind its last row, if nobody else's rows are
 * there, and else into a copy of that one page's rows; so a line never changes, and many may grow behind the same one:
 *
 *     a  7 tokens     pages 0 1          P = 4
 *     b  a, 3 more    pages 0 1 2        row 3 of page 1 is b's, which a does not reach
 *     c  a, 2 more    pages 0 3 4        page 3: rows 0 .. 2 of page 1, copied, then c's
 *     d  b's first 5  pages 0 1
 *
 * A handle's number is given once in a process: those that were freed, are another table's, or never were, are known to be
 * none.
 *
 * Owns    the ids of pages, each held once by every line that it is of; the pool is borrowed.
 * Thread  one at a time.
 * Errors  RD_E_NOT_FOUND: no handle of this table. RD_E_NO_PAGES, RD_E_NOMEM, RD_E_LIMIT (as many handles as there may be):
 *         nothing changed.
 */
#pragma once
#include <stdint.h>
#include "kv/kv_seq.h"
#include "kv/page_pool.h"

typedef uint64_t kv_handle;
#define KV_EMPTY        UINT64_C(0) /* the line without tokens: always there, never freed */
#define KV_MOST_HANDLES 65536u

struct kv_line {
    uint32_t n_tokens;
    const kv_page *pages; /* [ceil(n_tokens / page_tokens)] */
};

struct kv_handles;

/* n_most handles at once, 1 .. KV_MOST_HANDLES. */
rd_status kv_handles_create(struct page_pool *pool, uint32_t n_most, struct kv_handles **out);
/* Frees those that are left. NULL is fine. */
void kv_handles_destroy(struct kv_handles *h);
uint32_t kv_handles_n(const struct kv_handles *h);

/* The line stays where it is until the handle is freed. */
rd_status kv_handles_find(const struct kv_handles *h, kv_handle handle, struct kv_line *out);
/* A line of n >= 1 tokens more, whose places are there, and are to be written before anything else is asked; or
 * kv_handles_take_back, which makes everything what it was, in whatever order. copy: of rows that go on in another page. */
rd_status kv_handles_grow(struct kv_handles *h, kv_handle base, uint32_t n, kv_copy_rows_fn copy, void *copy_arg,
                          kv_handle *out);
void kv_handles_take_back(struct kv_handles *h, kv_handle grown);
/* The first keep tokens; 0: *out is KV_EMPTY. RD_E_INVALID: more than there are. Copies nothing. */
rd_status kv_handles_slice(struct kv_handles *h, kv_handle base, uint32_t keep, kv_handle *out);
/* What is no handle is left alone. */
void kv_handles_free(struct kv_handles *h, kv_handle handle);
