/* backend/process/line_reader.h - bytes of a pipe to lines, with a longest line, and a most per second.
 * Thread  its owner.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

enum line_fault { LINE_OK, LINE_TOO_LONG, LINE_FLOOD, LINE_NO_MEMORY };

struct line_reader {
    size_t most_bytes;                   /* of a line */
    uint64_t second_bytes, second_lines; /* most in a second; 0: any */
    struct buf kept;                     /* what has no end yet */
    uint64_t kept_since_ns;              /* kept.n > 0: when its first byte came */
    uint64_t second_began_ns, n_bytes, n_lines;
};

/* Every whole line, without its end, goes to take, which says whether to go on. */
enum line_fault line_reader_feed(struct line_reader *r, const char *s, size_t n, uint64_t now_ns,
                                 bool (*take)(void *arg, const char *line, size_t n), void *arg);
void line_reader_reset(struct line_reader *r);
