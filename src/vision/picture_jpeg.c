/* vision/picture_jpeg.c - JPEG, by libjpeg-turbo's scalar interface: rows as they come, an end that is missing is an error. */
#ifdef RADISH_PICTURES
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <jpeglib.h>
#include <jerror.h>
#include "base/error.h"
#include "base/mem.h"
#include "vision/picture_inside.h"

#define MOST_SCANS 200 /* of a progressive one: each goes over all blocks again */

struct jpeg {
    struct jpeg_error_mgr errors; /* first: libjpeg hands out its address */
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    rd_status st;
    struct picture_source *s;
    struct jpeg_decompress_struct d;
    uint8_t *cmyk; /* a row */
};

static struct jpeg *jpeg_of(j_common_ptr common)
{
    return (struct jpeg *)(void *)common->err;
}

_Noreturn static void give_up(struct jpeg *j, rd_status st, const char *text)
{
    j->st = error_set(j->s->err, st, "%s", text);
    longjmp(j->back, 1);
}

_Noreturn static void on_error(j_common_ptr common)
{
    struct jpeg *j = jpeg_of(common);
    char why[JMSG_LENGTH_MAX], text[JMSG_LENGTH_MAX + 32];

    common->err->format_message(common, why);
    snprintf(text, sizeof(text), "the JPEG is damaged: %s", why);
    give_up(j, common->err->msg_code == JERR_OUT_OF_MEMORY ? RD_E_NOMEM : RD_E_FORMAT, text);
}

/* What is a bit damaged is shown as far as it goes, as everybody does; what ends early is not. */
static void on_message(j_common_ptr common, int level)
{
    if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF)
        give_up(jpeg_of(common), RD_E_FORMAT, "the JPEG ends early");
}

static void on_output(j_common_ptr common) {}

static void on_progress(j_common_ptr common)
{
    struct jpeg *j = jpeg_of(common);

    if (picture_is_cancelled(j->s)) give_up(j, RD_E_CANCELLED, "cancelled");
    if (j->d.input_scan_number > MOST_SCANS) give_up(j, RD_E_LIMIT, "the JPEG has more than 200 scans");
}

static void find_turn(struct jpeg *j)
{
    const size_t n_mark = 6;

    for (jpeg_saved_marker_ptr m = j->d.marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > n_mark && memcmp(m->data, "Exif\0", n_mark) == 0) {
            j->s->turn = picture_exif_turn(m->data + n_mark, m->data_length - n_mark);
            return;
        }
}

/* Adobe's way, which is everybody's: 255 is no ink. */
static void cmyk_to_rgb(const uint8_t *cmyk, uint32_t n, uint8_t *rgb)
{
    for (uint32_t i = 0; i < n; i++, cmyk += 4)
        for (uint32_t c = 0; c < 3; c++) {
            uint32_t light = cmyk[3], part = (255u - cmyk[c]) * light + 128u;

            *rgb++ = (uint8_t)(light - (((part >> 8) + part) >> 8));
        }
}

static rd_status read_rows(struct jpeg *j, struct picture *out)
{
    struct jpeg_decompress_struct *d = &j->d;
    const bool is_cmyk = d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK;
    rd_status st = picture_begin(j->s, "JPEG", d->image_width, d->image_height, out);

    if (st != RD_OK) return st;
    d->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    if (is_cmyk) {
        j->cmyk = mem_alloc(out->width, 4);
        if (!j->cmyk) return error_set(j->s->err, RD_E_NOMEM, "out of memory for a picture");
    }
    jpeg_start_decompress(d);
    while (d->output_scanline < d->output_height) {
        uint8_t *row = out->rgb + (size_t)d->output_scanline * out->width * 3, *to = is_cmyk ? j->cmyk : row;

        if (jpeg_read_scanlines(d, &to, 1) == 1 && is_cmyk) cmyk_to_rgb(j->cmyk, out->width, row);
    }
    jpeg_finish_decompress(d);
    return RD_OK;
}

rd_status picture_decode_jpeg(struct picture_source *s, struct picture *out)
{
    struct jpeg *j = mem_zalloc(1, sizeof(*j));
    rd_status st;

    if (!j) return error_set(s->err, RD_E_NOMEM, "out of memory for a picture");
    j->s = s;
    j->d.err = jpeg_std_error(&j->errors);
    j->errors.error_exit = on_error;
    j->errors.emit_message = on_message;
    j->errors.output_message = on_output;
    j->progress.progress_monitor = on_progress;
    if (setjmp(j->back) == 0) {
        jpeg_create_decompress(&j->d);
        j->d.progress = &j->progress;
        jpeg_mem_src(&j->d, s->data, s->n);
        jpeg_save_markers(&j->d, JPEG_APP0 + 1, 0xffff);
        jpeg_read_header(&j->d, TRUE);
        find_turn(j);
        j->st = read_rows(j, out);
    }
    jpeg_destroy_decompress(&j->d);
    st = j->st;
    mem_free(j->cmyk);
    mem_free(j);
    return st;
}
#endif
