/* backend/process/line_reader.c - keeps what has no end yet; lines that came whole are not copied. */
#include "backend/process/line_reader.h"
#include <string.h>

#define SECOND_NS 1000000000ull

static bool is_flood(struct line_reader *r, size_t n_bytes, uint64_t n_lines, uint64_t now)
{
    if (now - r->second_began_ns >= SECOND_NS) {
        r->second_began_ns = now;
        r->n_bytes = r->n_lines = 0;
    }
    r->n_bytes += n_bytes;
    r->n_lines += n_lines;
    return (r->second_bytes && r->n_bytes > r->second_bytes) || (r->second_lines && r->n_lines > r->second_lines);
}

enum line_fault line_reader_feed(struct line_reader *r, const char *s, size_t n, uint64_t now,
                                 bool (*take)(void *arg, const char *line, size_t n), void *arg)
{
    if (is_flood(r, n, 0, now)) return LINE_FLOOD;
    while (n > 0) {
        const char *end = memchr(s, '\n', n);
        const size_t k = end ? (size_t)(end - s) : n;

        if (r->kept.n + k > r->most_bytes) return LINE_TOO_LONG;
        if (!end) {
            if (r->kept.n == 0) r->kept_since_ns = now;
            buf_append(&r->kept, s, k);
            return r->kept.failed ? LINE_NO_MEMORY : LINE_OK;
        }
        if (is_flood(r, 0, 1, now)) return LINE_FLOOD;
        if (r->kept.n > 0) {
            buf_append(&r->kept, s, k);
            if (r->kept.failed) return LINE_NO_MEMORY;
            if (!take(arg, r->kept.data, r->kept.n)) return LINE_OK;
            buf_clear(&r->kept);
        } else if (!take(arg, s, k)) {
            return LINE_OK;
        }
        s += k + 1;
        n -= k + 1;
    }
    return LINE_OK;
}

void line_reader_reset(struct line_reader *r)
{
    buf_deinit(&r->kept);
    r->second_began_ns = r->n_bytes = r->n_lines = 0;
}
