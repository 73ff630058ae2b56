/* vision/picture_webp.c - WebP, by libwebp: bytes are given to it in pieces, so that it can be stopped between them. */
#ifdef RADISH_PICTURES
#include <string.h>
#include <webp/decode.h>
#include "base/error.h"
#include "base/mem.h"
#include "vision/picture_inside.h"

#define PIECE ((size_t)64 << 10)

static uint32_t number_at(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* RIFF: chunks of a name, a length and bytes, padded to even. */
static void find_turn(struct picture_source *s)
{
    const size_t n_head = 12, n_chunk = 8, n_mark = 6;

    for (size_t at = n_head; at + n_chunk <= s->n;) {
        size_t n = number_at(s->data + at + 4);
        const uint8_t *body = s->data + at + n_chunk;

        if (n > s->n - at - n_chunk) return;
        if (memcmp(s->data + at, "EXIF", 4) == 0) {
            if (n > n_mark && memcmp(body, "Exif\0", n_mark) == 0) body += n_mark, n -= n_mark; /* some write it */
            s->turn = picture_exif_turn(body, n);
            return;
        }
        at += n_chunk + n + (n & 1);
    }
}

static rd_status explain(struct picture_source *s, VP8StatusCode code)
{
    if (code == VP8_STATUS_OUT_OF_MEMORY) return error_set(s->err, RD_E_NOMEM, "out of memory for a picture");
    if (code == VP8_STATUS_SUSPENDED || code == VP8_STATUS_NOT_ENOUGH_DATA)
        return error_set(s->err, RD_E_FORMAT, "the WebP ends early");
    return error_set(s->err, RD_E_FORMAT, "the WebP is damaged: libwebp's status %d", (int)code);
}

static rd_status decode_into(struct picture_source *s, WebPDecoderConfig *c)
{
    WebPIDecoder *d = WebPINewDecoder(&c->output);
    VP8StatusCode code = VP8_STATUS_SUSPENDED;

    if (!d) return error_set(s->err, RD_E_NOMEM, "out of memory for a picture");
    for (size_t n = 0; n < s->n && code == VP8_STATUS_SUSPENDED && !picture_is_cancelled(s);) {
        n += s->n - n < PIECE ? s->n - n : PIECE;
        code = WebPIUpdate(d, s->data, n);
    }
    WebPIDelete(d);
    if (picture_is_cancelled(s)) return error_set(s->err, RD_E_CANCELLED, "cancelled");
    return code == VP8_STATUS_OK ? RD_OK : explain(s, code);
}

rd_status picture_decode_webp(struct picture_source *s, struct picture *out)
{
    WebPDecoderConfig c;
    VP8StatusCode code;
    uint8_t *rgba = NULL;
    rd_status st;

    if (!WebPInitDecoderConfig(&c)) return error_set(s->err, RD_E_UNSUPPORTED, "libwebp is of another version");
    code = WebPGetFeatures(s->data, s->n, &c.input);
    if (code != VP8_STATUS_OK) return explain(s, code);
    if (c.input.has_animation)
        return error_set(s->err, RD_E_UNSUPPORTED, "an animated WebP is not taken: one with a single picture wanted");
    st = picture_begin(s, "WebP", (uint64_t)c.input.width, (uint64_t)c.input.height, out);
    if (st != RD_OK) return st;
    if (c.input.has_alpha) {
        rgba = mem_alloc((size_t)out->width * out->height, 4);
        if (!rgba) return error_set(s->err, RD_E_NOMEM, "out of memory for a picture");
    }
    c.output.colorspace = rgba ? MODE_RGBA : MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = rgba ? rgba : out->rgb;
    c.output.u.RGBA.stride = (int)(out->width * (rgba ? 4 : 3));
    c.output.u.RGBA.size = (size_t)out->width * out->height * (rgba ? 4 : 3);
    st = decode_into(s, &c);
    if (st == RD_OK && rgba) picture_put_on_white(rgba, (size_t)out->width * out->height, out->rgb);
    find_turn(s);
    mem_free(rgba);
    return st;
}
#endif
