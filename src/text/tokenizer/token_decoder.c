/* text/tokenizer/token_decoder.c - pieces of tokens to text that is always whole UTF-8. */
#include <string.h>
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* Writes what is decided at the front of pending; an unfinished sequence stays, unless this is the end of the text. */
static size_t drain(struct token_decoder *d, bool at_end, char *out)
{
    size_t n_out = 0;

    while (d->n_pending) {
        uint32_t cp, n;
        int len = utf8_decode(d->pending, d->n_pending, &cp);

        if (len < 0 && !at_end && utf8_unfinished_tail(d->pending, d->n_pending) == d->n_pending) break;
        n = (uint32_t)(len < 0 ? -len : len);
        n_out += (size_t)utf8_encode(cp, out + n_out); /* cp is U+FFFD for what is ill-formed */
        d->n_pending -= n;
        memmove(d->pending, d->pending + n, d->n_pending);
    }
    return n_out;
}

size_t token_decoder_feed(struct token_decoder *d, struct text_span piece, char *out)
{
    size_t n_out = 0, i = d->first && d->strip_first_space && piece.n && piece.s[0] == ' ';

    d->first = false;
    for (; i < piece.n; i++) {
        if (d->n_pending == 0 && (unsigned char)piece.s[i] < 0x80) {
            out[n_out++] = piece.s[i];
            continue;
        }
        d->pending[d->n_pending++] = piece.s[i];
        n_out += drain(d, false, out + n_out);
    }
    return n_out;
}

size_t token_decoder_flush(struct token_decoder *d, char *out)
{
    return drain(d, true, out);
}
