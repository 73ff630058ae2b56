/* vision/picture.c - which decoder it is, what is checked before it, and what is done with its pixels. */
#include "vision/picture_inside.h"
#include <string.h>
#include "base/error.h"
#include "base/mem.h"

static const struct format {
    const char *name;
    uint32_t at, n; /* the mark: n bytes at `at` */
    const char *mark;
    rd_status (*decode)(struct picture_source *s, struct picture *out); /* NULL: refused by name */
} formats[] = {
#ifdef RADISH_PICTURES
    {"JPEG", 0, 3, "\xff\xd8\xff", picture_decode_jpeg},
    {"PNG", 0, 8, "\x89PNG\r\n\x1a\n", picture_decode_png},
    {"WebP", 8, 4, "WEBP", picture_decode_webp},
#endif
    {"GIF", 0, 4, "GIF8", NULL},
    {"TIFF", 0, 4, "II*\0", NULL},
    {"TIFF", 0, 4, "MM\0*", NULL},
    {"AVIF", 4, 8, "ftypavif", NULL},
    {"HEIC", 4, 7, "ftyphei", NULL},
    {"HEIF", 4, 8, "ftypmif1", NULL},
    {"PDF", 0, 5, "%PDF-", NULL},
    {"BMP", 0, 2, "BM", NULL},
    {"SVG", 0, 4, "<svg", NULL},
};

bool picture_is_built(void)
{
#ifdef RADISH_PICTURES
    return true;
#else
    return false;
#endif
}

static const struct format *format_of(const uint8_t *data, size_t n)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (n >= formats[i].at + formats[i].n && memcmp(data + formats[i].at, formats[i].mark, formats[i].n) == 0)
            return &formats[i];
    return NULL;
}

bool picture_is_cancelled(const struct picture_source *s)
{
    /* only whether: nothing else is read on the strength of it */
    return s->limits.cancelled && atomic_load_explicit(s->limits.cancelled, memory_order_relaxed);
}

rd_status picture_begin(struct picture_source *s, const char *format, uint64_t w, uint64_t h, struct picture *out)
{
    if (w == 0 || h == 0)
        return error_set(s->err, RD_E_FORMAT, "the %s is %llu x %llu pixels: it has none", format,
                         (unsigned long long)w, (unsigned long long)h);
    if (w > PICTURE_MOST_SIDE || h > PICTURE_MOST_SIDE || w * h > s->limits.max_pixels)
        return error_set(s->err, RD_E_LIMIT, "the %s is %llu x %llu pixels, at most %llu and %u a side are taken",
                         format, (unsigned long long)w, (unsigned long long)h, (unsigned long long)s->limits.max_pixels,
                         PICTURE_MOST_SIDE);
    if (s->limits.admit) {
        const rd_status st = s->limits.admit(s->limits.admit_arg, (uint32_t)w, (uint32_t)h);

        if (st != RD_OK) return error_set(s->err, st, "%s", rd_status_text(st));
    }
    out->width = (uint32_t)w;
    out->height = (uint32_t)h;
    out->rgb = mem_alloc((size_t)(w * h), 3);
    return out->rgb ? RD_OK
                    : error_set(s->err, RD_E_NOMEM, "out of memory for a picture of %llu x %llu pixels",
                                (unsigned long long)w, (unsigned long long)h);
}

void picture_deinit(struct picture *p)
{
    mem_free(p->rgb);
    *p = (struct picture){.rgb = NULL};
}

/* ---- EXIF ---- */

struct tiff {
    const uint8_t *data;
    size_t n;
    bool big_endian;
};

static uint32_t tiff_number(const struct tiff *t, size_t at, uint32_t n_bytes)
{
    uint32_t value = 0;

    for (uint32_t i = 0; i < n_bytes; i++)
        value |= (uint32_t)t->data[at + i] << 8 * (t->big_endian ? n_bytes - 1 - i : i);
    return value;
}

uint32_t picture_exif_turn(const uint8_t *data, size_t n)
{
    const uint32_t orientation = 0x0112, type_short = 3, entry_bytes = 12;
    struct tiff t = {data, n, n > 0 && data[0] == 'M'};
    uint32_t ifd, n_entries;

    if (n < 8 || (memcmp(data, "II*\0", 4) != 0 && memcmp(data, "MM\0*", 4) != 0)) return 1;
    ifd = tiff_number(&t, 4, 4);
    if (ifd > n - 2) return 1;
    n_entries = tiff_number(&t, ifd, 2);
    for (size_t i = 0, at = (size_t)ifd + 2; i < n_entries && at + entry_bytes <= n; i++, at += entry_bytes) {
        uint32_t turn;

        if (tiff_number(&t, at, 2) != orientation) continue;
        turn = tiff_number(&t, at + 2, 2) == type_short ? tiff_number(&t, at + 8, 2) : 1;
        return turn >= 1 && turn <= 8 ? turn : 1;
    }
    return 1;
}

/* Where pixel (x, y) of the upright picture lies in the one that was stored, w x h. */
static size_t stored_at(uint32_t turn, uint32_t w, uint32_t h, uint32_t x, uint32_t y)
{
    const bool swapped = turn >= 5; /* its rows are columns */
    uint32_t sx = swapped ? y : x, sy = swapped ? x : y;

    if (turn == 2 || turn == 3 || turn == 7 || turn == 8) sx = w - 1 - sx;
    if (turn == 3 || turn == 4 || turn == 6 || turn == 7) sy = h - 1 - sy;
    return (size_t)sy * w + sx;
}

static rd_status turn_upright(struct picture_source *s, struct picture *p)
{
    struct picture up = {.width = p->width, .height = p->height};

    if (s->turn == 1) return RD_OK;
    if (s->turn >= 5) up.width = p->height, up.height = p->width;
    up.rgb = mem_alloc((size_t)up.width * up.height, 3);
    if (!up.rgb) return error_set(s->err, RD_E_NOMEM, "out of memory to turn a picture");
    for (uint32_t y = 0; y < up.height; y++)
        for (uint32_t x = 0; x < up.width; x++)
            memcpy(up.rgb + 3 * ((size_t)y * up.width + x), p->rgb + 3 * stored_at(s->turn, p->width, p->height, x, y),
                   3);
    mem_free(p->rgb);
    *p = up;
    return RD_OK;
}

/* Rounded as Pillow's alpha_composite() does it, for a backdrop of 255. */
void picture_put_on_white(const uint8_t *rgba, size_t n, uint8_t *rgb)
{
    for (size_t i = 0; i < n; i++, rgba += 4)
        for (uint32_t c = 0; c < 3; c++) {
            uint32_t sum = (rgba[c] * (uint32_t)rgba[3] + 255u * (255u - rgba[3])) * 128u + (128u << 7);

            *rgb++ = (uint8_t)((((sum >> 8) + sum) >> 8) >> 7);
        }
}

rd_status picture_decode(const uint8_t *data, size_t n, const struct picture_limits *limits, struct picture *out,
                         struct rd_error *err)
{
    struct picture_source s = {.data = data, .n = n, .turn = 1, .err = err};
    const struct format *format = format_of(data, n);
    rd_status st;

    *out = (struct picture){.rgb = NULL};
    if (limits) s.limits = *limits;
    if (!s.limits.max_bytes) s.limits.max_bytes = PICTURE_MOST_BYTES;
    if (!s.limits.max_pixels) s.limits.max_pixels = PICTURE_MOST_PIXELS;
    if (n == 0) return error_set(err, RD_E_FORMAT, "the picture is empty");
    if (n > s.limits.max_bytes)
        return error_set(err, RD_E_LIMIT, "the picture has %zu bytes, at most %zu are taken", n, s.limits.max_bytes);
    if (!picture_is_built())
        return error_set(err, RD_E_UNSUPPORTED, "this program was built without libjpeg, libpng and libwebp");
    if (!format) return error_set(err, RD_E_FORMAT, "the %zu bytes are no picture: JPEG, PNG or WebP wanted", n);
    if (!format->decode)
        return error_set(err, RD_E_UNSUPPORTED, "a %s is not taken: JPEG, PNG or WebP wanted", format->name);
    st = picture_is_cancelled(&s) ? error_set(err, RD_E_CANCELLED, "cancelled") : format->decode(&s, out);
    if (st == RD_OK) st = turn_upright(&s, out);
    if (st != RD_OK) picture_deinit(out);
    return st;
}
