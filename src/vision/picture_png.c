/* vision/picture_png.c - PNG, by libpng: everything becomes RGBA of 8 bits, a row at a time unless it is interlaced. */
#ifdef RADISH_PICTURES
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <png.h>
#include "base/error.h"
#include "base/mem.h"
#include "vision/picture_inside.h"

#define MOST_CHUNK ((png_alloc_size_t)8 << 20) /* of text, profiles, EXIF */

struct png {
    struct picture_source *s;
    size_t at;
    rd_status st;
    png_structp png;
    png_infop info, end;
    uint8_t *rgba; /* all of it where it is interlaced, else a row */
};

static png_voidp take(png_structp png, png_alloc_size_t n)
{
    return mem_alloc(n, 1);
}

static void give_back(png_structp png, png_voidp p)
{
    mem_free(p);
}

_Noreturn static void on_error(png_structp png, png_const_charp why)
{
    struct png *p = png_get_error_ptr(png);
    char quoted[128];

    if (p->st == RD_OK) {
        error_quote(quoted, sizeof(quoted), why, strlen(why));
        p->st = strstr(why, "emory") ? error_set(p->s->err, RD_E_NOMEM, "out of memory for a picture")
                                     : error_set(p->s->err, RD_E_FORMAT, "the PNG is damaged: %s", quoted);
    }
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp why) {}

static void read_bytes(png_structp png, png_bytep to, size_t n)
{
    struct png *p = png_get_io_ptr(png);

    if (n > p->s->n - p->at) {
        p->st = error_set(p->s->err, RD_E_FORMAT, "the PNG ends early");
        png_error(png, "end");
    }
    memcpy(to, p->s->data + p->at, n);
    p->at += n;
}

static void check_cancelled(struct png *p)
{
    if (!picture_is_cancelled(p->s)) return;
    p->st = error_set(p->s->err, RD_E_CANCELLED, "cancelled");
    png_error(p->png, "cancelled");
}

static void find_turn(struct png *p, png_infop info)
{
    png_uint_32 n = 0;
    png_bytep exif = NULL;

    if (p->s->turn == 1 && png_get_eXIf_1(p->png, info, &n, &exif) && exif) p->s->turn = picture_exif_turn(exif, n);
}

static void to_rgba(struct png *p)
{
    png_set_strip_16(p->png);
    png_set_expand(p->png); /* palettes, bits, a colour that is transparent */
    png_set_gray_to_rgb(p->png);
    png_set_add_alpha(p->png, 255, PNG_FILLER_AFTER);
}

static void read_pixels(struct png *p, struct picture *out)
{
    const int n_passes = png_set_interlace_handling(p->png);
    const size_t n_row = (size_t)out->width * 4, n_kept = n_passes > 1 ? out->height : 1;

    png_read_update_info(p->png, p->info);
    if (png_get_rowbytes(p->png, p->info) != n_row) png_error(p->png, "rows of an unknown form");
    p->rgba = mem_zalloc(n_kept, n_row);
    if (!p->rgba) png_error(p->png, "out of memory");
    for (int pass = 0; pass < n_passes; pass++)
        for (size_t y = 0; y < out->height; y++) {
            uint8_t *row = p->rgba + (n_kept > 1 ? y * n_row : 0);

            check_cancelled(p);
            png_read_row(p->png, row, NULL);
            if (pass == n_passes - 1) picture_put_on_white(row, out->width, out->rgb + y * out->width * 3);
        }
}

static void read_all(struct png *p, struct picture *out)
{
    png_set_read_fn(p->png, p, read_bytes);
    png_set_user_limits(p->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* ours are checked below */
    png_set_chunk_malloc_max(p->png, MOST_CHUNK);
    png_set_chunk_cache_max(p->png, 64);
    png_read_info(p->png, p->info);
    p->st =
        picture_begin(p->s, "PNG", png_get_image_width(p->png, p->info), png_get_image_height(p->png, p->info), out);
    if (p->st != RD_OK) png_error(p->png, "no place");
    to_rgba(p);
    read_pixels(p, out);
    png_read_end(p->png, p->end);
    find_turn(p, p->info);
    find_turn(p, p->end);
}

rd_status picture_decode_png(struct picture_source *s, struct picture *out)
{
    struct png *p = mem_zalloc(1, sizeof(*p));
    rd_status st;

    if (!p) return error_set(s->err, RD_E_NOMEM, "out of memory for a picture");
    p->s = s;
    p->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, p, on_error, on_warning, NULL, take, give_back);
    p->info = p->png ? png_create_info_struct(p->png) : NULL;
    p->end = p->info ? png_create_info_struct(p->png) : NULL;
    if (!p->end) {
        p->st = error_set(s->err, RD_E_NOMEM, "out of memory for a picture");
    } else if (setjmp(png_jmpbuf(p->png)) == 0) {
        read_all(p, out);
    }
    png_destroy_read_struct(&p->png, &p->info, &p->end);
    st = p->st;
    mem_free(p->rgba);
    mem_free(p);
    return st;
}
#endif
