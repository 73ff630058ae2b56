/* text/tokenizer/prefix_index.h - which strings of a set a text begins with, at any place of it.
 *
 * The strings are sorted; those that begin with the same two bytes are one range, which each further byte narrows. Time
 * is bounded by the longest string (LIMIT_SEARCHED_TOKEN_BYTES), whatever the text.
 *
 *     struct prefix_walk w = prefix_walk_begin(index, s, n);
 *     while (prefix_walk_next(&w)) ... w.length, w.value: shortest first ...
 *
 * Thread  read-only after init. Errors  RD_E_NOMEM, RD_E_LIMIT (a string too long).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

/* text: borrowed for prefix_index_init(), copied there. Of equal texts the one with the highest value counts. */
struct prefix_entry {
    const char *s;
    size_t n;
    uint32_t value;
};
struct prefix_index {
    struct prefix_entry *entries; /* [n] sorted, of two bytes and more; their texts are in bytes */
    size_t n;
    char *bytes;
    uint32_t *starts;     /* [65537] first entry with these two bytes in front, or higher ones */
    bool has_single[256]; /* entries of one byte stand here, and not in the list */
    uint32_t single[256]; /* their values */
    uint64_t *may_start;  /* [65536 / 64] bit set of first two bytes */
    int only_first;       /* the one byte that every entry begins with, or -1 */
};
rd_status prefix_index_init(struct prefix_index *x, const struct prefix_entry *entries, size_t n);
void prefix_index_deinit(struct prefix_index *x);

struct prefix_walk {
    const struct prefix_index *x;
    const char *s;
    size_t n, depth, length;
    uint32_t low, high, value;
};
static inline bool prefix_may_start(const struct prefix_index *x, const char *s, size_t n)
{
    uint32_t two = (uint32_t)(unsigned char)s[0] << 8 | (n > 1 ? (unsigned char)s[1] : 0);

    return x->may_start[two / 64] >> (two % 64) & 1;
}
struct prefix_walk prefix_walk_begin(const struct prefix_index *x, const char *s, size_t n);
bool prefix_walk_next(struct prefix_walk *w);
/* Is there an entry that begins with all of s, and goes on? */
bool prefix_index_extends(const struct prefix_index *x, const char *s, size_t n);
