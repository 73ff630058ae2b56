/* tests/fuzz/fuzz_utf8.c - any bytes as the pieces of tokens: what a stream delivers is well-formed at every moment, is
 * in the end what a reading of the whole gives, and holds nothing of a stop string however the bytes are cut: F27 and
 * F28.
 *
 * Input: byte 0 how the bytes are cut; byte 1 the number of stop strings (of 4) and, above, the length of each; the stop
 * strings; the text.
 */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/stop.h"
#include "text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define STOPS 4u

static void expect(bool fact)
{
    if (!fact) abort();
}

/* The reference: one U+FFFD for every unit that is ill-formed. */
static void read_whole(const char *s, size_t n, struct buf *out)
{
    for (size_t at = 0; at < n;) {
        char bytes[UTF8_MAX_BYTES];
        uint32_t cp;
        int len = utf8_decode(s + at, n - at, &cp);

        buf_append(out, bytes, (size_t)utf8_encode(cp, bytes));
        at += (size_t)(len < 0 ? -len : len);
    }
}

/* Where the match that ends first begins; n when there is none. */
static size_t find_stop(const struct buf *text, const struct text_span *stops, size_t n_stops)
{
    for (size_t end = 1; end <= text->n; end++) {
        size_t first = SIZE_MAX;

        for (size_t i = 0; i < n_stops; i++)
            if (stops[i].n <= end && memcmp(text->data + end - stops[i].n, stops[i].s, stops[i].n) == 0 &&
                end - stops[i].n < first)
                first = end - stops[i].n;
        if (first != SIZE_MAX) return first;
    }
    return text->n;
}

static void stream(const char *s, size_t n, unsigned cut, struct stop_matcher *m, struct buf *out)
{
    struct token_decoder d = {0};
    const char *text;
    bool stopped = false;
    size_t n_text;

    for (size_t at = 0, k = 0; !stopped; k++) {
        size_t len = cut ? 1 + (k * cut + k / 3) % 7 : n;
        char piece[64];
        char *room = len > 16 ? mem_alloc(len * 3 + 12, 1) : piece;
        bool at_end = at >= n;
        int hit = -1;

        if (!room) return;
        if (len > n - at) len = n - at;
        n_text = at_end ? token_decoder_flush(&d, room) : token_decoder_feed(&d, (struct text_span){s + at, len}, room);
        at += len;
        expect(n_text <= len * 3 + 12 && utf8_valid(room, n_text));
        n_text = stop_matcher_feed(m, room, n_text, &text, &hit);
        expect(hit != STOP_NOMEM);
        buf_append(out, text, n_text);
        stopped = hit >= 0 || at_end;
        if (at_end && hit < 0) {
            n_text = stop_matcher_flush(m, &text);
            buf_append(out, text, n_text);
        }
        if (room != piece) mem_free(room);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct text_span stops[STOPS];
    size_t n_stops, len, at = 2, end;
    struct buf whole = {0};
    uint64_t alive = mem_n_alive();

    if (n < 2) return 0;
    n_stops = data[1] % STOPS;
    len = 1 + data[1] / STOPS % 8;
    if (n < 2 + n_stops * len) return 0;
    for (size_t i = 0; i < n_stops; i++, at += len) stops[i] = (struct text_span){(const char *)data + at, len};
    read_whole((const char *)data + at, n - at, &whole);
    end = find_stop(&whole, stops, n_stops);
    for (unsigned i = 0; i < 3; i++) {
        struct stop_matcher *m = NULL;
        struct buf out = {0};

        expect(stop_matcher_create(stops, n_stops, &m) == RD_OK);
        stream((const char *)data + at, n - at, i == 0 ? 0 : i == 1 ? 1 + data[0] % 64 : 7, m, &out);
        expect(out.n == end && (end == 0 || memcmp(out.data, whole.data, end) == 0));
        stop_matcher_destroy(m);
        buf_deinit(&out);
    }
    buf_deinit(&whole);
    expect(mem_n_alive() == alive);
    return 0;
}
