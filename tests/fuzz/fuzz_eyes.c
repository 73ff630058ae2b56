/* tests/fuzz/fuzz_eyes.c - any bytes as an encoder's file, or as the text of an image processor: refused with a text, or what is
 * read takes a small picture as its encoder wants it.
 *
 * A file is a GGUF, whose first bytes say so; all else is the text. Seeds: corpus/fuzz_eyes/, golden mmproj files and processors.
 * A crash found stays there as a file.
 */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "format/gguf/gguf.h"
#include "vision/encoder.h"
#include "vision/processor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MOST_ROWS  64u
#define MOST_STEPS 10000

static struct backend *be; /* for good: it has threads */

static void expect(bool fact)
{
    if (!fact) abort();
}

/* NULL: refused. */
static struct vision_image *process(struct image_processor *p)
{
    static const uint8_t rgb[8 * 12 * 3];
    const uint8_t *frame = rgb;
    struct vision_image *v = NULL;
    struct rd_error err = {RD_OK, ""};

    p->max_rows = MOST_ROWS;
    if (image_processor_run(p, &frame, 1, 12, 8, &v, &err) == RD_OK) {
        expect(v->n_rows > 0 && v->n_rows <= MOST_ROWS);
        return v;
    }
    expect(err.text[0] && !v);
    return NULL;
}

static void encode(struct vision_encoder *e, struct vision_image *v)
{
    struct vision_run *run = NULL;
    rd_status st = RD_E_AGAIN;

    if (vision_run_bytes(e, v) > 64u << 20 || vision_run_begin(e, v, &run) != RD_OK) return;
    for (int i = 0; i < MOST_STEPS; i++)
        if ((st = vision_run_step(run, 1000000, NULL)) != RD_E_AGAIN) break;
    expect(st == RD_OK || st == RD_E_AGAIN);
    vision_run_end(run);
}

static void check_file(const struct model_file *g)
{
    struct vision_encoder *e = NULL;
    struct vision_image *v = NULL;
    struct image_processor p;
    struct rd_error err = {RD_OK, ""};

    (void)vision_file_fits(g, "gemma3", 48, &err);
    err.text[0] = 0;
    if (image_processor_of_keys(g, &p, &err) == RD_OK)
        v = process(&p);
    else
        expect(err.text[0]);
    err.text[0] = 0;
    if (vision_encoder_open(g, &backend_cpu_ops, be, 48, &e, &err) != RD_OK)
        expect(err.text[0] && !e);
    else if (v)
        encode(e, v);
    vision_encoder_close(e);
    vision_image_unref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct backend_options options = {.n_threads = 1};
    struct model_file *g = NULL;
    struct image_processor p;
    struct rd_error err = {RD_OK, ""};

    if (!be) expect(backend_cpu_ops.life.create(&options, &be, &err) == RD_OK);
    if (n >= 4 && memcmp(data, "GGUF", 4) == 0) {
        if (gguf_open_bytes(data, n, &g, &err) == RD_OK) check_file(g);
        model_file_close(g);
    } else if (image_processor_read((const char *)data, n, &p, &err) == RD_OK) {
        vision_image_unref(process(&p));
    } else {
        expect(err.text[0]);
    }
    return 0;
}
