/* api/inspect_eyes.c - see inspect_eyes.h. */
#include "api/inspect_eyes.h"
#include <stdio.h>
#include <string.h>
#include "vision/processor.h"

/* Pictures whose tokens are told. */
static const struct {
    uint32_t w, h;
} examples[] = {{640, 480}, {1344, 1344}, {1920, 1080}};
#define N_EXAMPLES (sizeof(examples) / sizeof(examples[0]))

bool inspect_is_encoder(const struct model_file *g)
{
    struct model_str arch = {NULL, 0};

    return model_file_str(g, "general.architecture", &arch, NULL) == RD_OK && arch.n == 4 &&
           memcmp(arch.s, "clip", 4) == 0;
}

/* Rows of the text model that a picture takes; 0: it is not taken. */
static uint64_t rows_of(const struct image_processor *p, uint32_t w, uint32_t h)
{
    uint32_t to_w = 0, to_h = 0;

    return image_processor_size(p, w, h, &to_w, &to_h, NULL) == RD_OK ? image_processor_rows(p, to_w, to_h) : 0;
}

static void put_text(const struct model_file *eyes, const struct image_processor *p, struct buf *out)
{
    uint64_t n_layers = 0;
    struct model_str kind = {"", 0};

    (void)model_file_str(eyes, "clip.projector_type", &kind, NULL);
    (void)model_file_u64(eyes, "clip.vision.block_count", 0, UINT32_MAX, &n_layers, NULL);
    buf_printf(out, "images        %.*s encoder, %llu layers, patches of %u x %u pixels\n", (int)kind.n, kind.s,
               (unsigned long long)n_layers, p->patch, p->patch);
    for (size_t i = 0; i < N_EXAMPLES; i++)
        buf_printf(out, "%s%u x %u: %llu tokens%s", i ? ", " : "              ", examples[i].w, examples[i].h,
                   (unsigned long long)rows_of(p, examples[i].w, examples[i].h), i + 1 < N_EXAMPLES ? "" : "\n");
}

static void put_json(const struct image_processor *p, struct buf *out)
{
    buf_printf(out, ", \"images\": {\"patch\": %u, \"tokens\": {", p->patch);
    for (size_t i = 0; i < N_EXAMPLES; i++)
        buf_printf(out, "%s\"%ux%u\": %llu", i ? ", " : "", examples[i].w, examples[i].h,
                   (unsigned long long)rows_of(p, examples[i].w, examples[i].h));
    buf_puts(out, "}}");
}

void inspect_put_eyes(const struct model_file *g, const char *path, bool json, struct buf *out)
{
    const struct model_file *eyes = inspect_is_encoder(g) ? g : model_file_vision(g);
    struct image_processor p;
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    if (!eyes) return;
    st = eyes == g ? image_processor_of_keys(g, &p, &why) : image_processor_open(path, eyes, 0, &p, &why);
    if (st != RD_OK && json) {
        buf_puts(out, ", \"images\": {\"error\": \"");
        buf_put_json(out, why.text, strlen(why.text));
        buf_puts(out, "\"}");
    } else if (st != RD_OK) {
        buf_printf(out, "images        no: %s\n", why.text);
    } else if (json) {
        put_json(&p, out);
    } else {
        put_text(eyes, &p, out);
    }
}
