/* text/tokenizer/text_breaks.c - see the header. */
#include "text/tokenizer/text_breaks.h"
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"

#define MARK   "\xef\xb7\x90"
#define N_MARK 3u

void text_breaks_deinit(struct text_breaks *b)
{
    mem_free(b->at);
    *b = (struct text_breaks){NULL, 0, 0};
}

bool text_breaks_cut(const struct text_breaks *b, size_t from, size_t end)
{
    size_t low = 0, high = b ? b->n : 0;

    while (low < high) { /* the first one behind from */
        size_t middle = low + (high - low) / 2;

        if (b->at[middle] <= from)
            low = middle + 1;
        else
            high = middle;
    }
    return b && low < b->n && b->at[low] < end;
}

void text_marks_write(struct buf *out)
{
    buf_append(out, MARK, N_MARK);
}

void text_marks_write_text(struct buf *out, const char *s, size_t n)
{
    const char *end = s + n, *mark;

    while ((mark = memmem(s, (size_t)(end - s), MARK, N_MARK))) {
        buf_append(out, s, (size_t)(mark - s));
        buf_puts(out, MARK MARK);
        s = mark + N_MARK;
    }
    buf_append(out, s, (size_t)(end - s));
}

bool text_mark_is(const char *s, size_t n)
{
    return n >= N_MARK && !memcmp(s, MARK, N_MARK);
}

rd_status text_marks_take(const char *s, size_t n, char **text, size_t *n_text, struct text_breaks *breaks)
{
    const char *end = s + n, *mark = memmem(s, n, MARK, N_MARK);
    char *out;

    *text = NULL;
    *n_text = 0;
    if (!mark) return RD_OK;
    if (n > LIMIT_TEXT_BYTES) return RD_E_LIMIT;
    out = mem_alloc(n + 1, 1);
    if (!out) return RD_E_NOMEM;
    while (mark) {
        bool is_text = end - mark >= 2 * N_MARK && !memcmp(mark + N_MARK, MARK, N_MARK);
        size_t len = (size_t)(mark - s) + (is_text ? N_MARK : 0);

        memcpy(out + *n_text, s, len);
        *n_text += len;
        s = mark + (is_text ? 2 : 1) * N_MARK;
        mark = memmem(s, (size_t)(end - s), MARK, N_MARK);
        if (is_text) continue;
        if (!mem_grow((void **)&breaks->at, &breaks->cap, breaks->n + 1, sizeof(*breaks->at))) {
            mem_free(out);
            return RD_E_NOMEM;
        }
        breaks->at[breaks->n++] = (uint32_t)*n_text;
    }
    memcpy(out + *n_text, s, (size_t)(end - s));
    *n_text += (size_t)(end - s);
    out[*n_text] = 0;
    *text = out;
    return RD_OK;
}
