/* tests/fuzz/fuzz_picture.c - any bytes as a picture: refused with a text, or pixels within the limits that a processor takes.
 *
 * Seeds: corpus/fuzz_picture/, the pictures of tests/golden/pictures. A crash found stays there as a file.
 */
#include <stdlib.h>
#include "base/mem.h"
#include "vision/picture.h"
#include "vision/processor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void expect(bool fact)
{
    if (!fact) abort();
}

/* Small, so that any size is quickly made. */
static void process(const struct picture *p)
{
    const struct image_processor smart = {.kind = PROCESSOR_SMART,
                                          .filter = RESIZE_BICUBIC,
                                          .patch = 4,
                                          .merge = 2,
                                          .temporal = 2,
                                          .min_pixels = 256,
                                          .max_pixels = 16384,
                                          .rescale = 1 / 255.0,
                                          .std = {1, 1, 1}};
    const uint8_t *frame = p->rgb;
    struct vision_image *v = NULL;
    struct rd_error err = {RD_OK, ""};

    if (image_processor_run(&smart, &frame, 1, p->width, p->height, &v, &err) != RD_OK) {
        expect(err.text[0] && !v);
        return;
    }
    expect(v->n_rows > 0 && v->n_values == v->t * v->h * v->w * 3 * 2 * 16);
    vision_image_unref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct picture_limits limits = {.max_pixels = 1 << 20};
    const uint64_t alive = mem_n_alive();
    struct picture p;
    struct rd_error err = {RD_OK, ""};

    if (picture_decode(data, n, &limits, &p, &err) == RD_OK) {
        expect(p.rgb && p.width && p.height && (uint64_t)p.width * p.height <= limits.max_pixels);
        process(&p);
    } else {
        expect(err.text[0] && !p.rgb);
    }
    picture_deinit(&p);
    expect(mem_n_alive() == alive);
    return 0;
}
