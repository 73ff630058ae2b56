/* bench/vision/bench_encode.c - an encoder of images alone: what a picture of noise takes.
 *
 *     bench_encode MMPROJ WIDTH SIDE [THREADS [ISA [DEVICE [ROUNDS [GFLOP]]]]]
 *
 * WIDTH: of the text model; ISA: - for the best; DEVICE: as --device has it; GFLOP: of a step, 0 for the encoder's own choice; on a
 * CPU steps are as the server's where nobody decodes, if nothing is said: of 60 ms by what the last one took. Prints a line of JSON
 * a round: rows, wall and processor time of the encoder in seconds (opening it is not counted), the longest step in ms. Processor
 * time is what counts on a machine that others use, too. bench/vision/run compares.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "backend/backend_registry.h"
#include "base/checked.h"
#include "base/clock.h"
#include "model/model.h"
#include "vision/encoder.h"
#include "vision/processor.h"

#define STEP_S 0.06

struct bench {
    struct model_file *g;
    const struct backend_ops *ops;
    struct backend *be;
    struct vision_encoder *e;
    struct vision_image *image;
};

static double wall_s(void)
{
    return (double)clock_now_ns(clock_system()) / 1e9;
}

static double processor_s(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static rd_status make_image(struct bench *b, uint32_t side, struct rd_error *err)
{
    const size_t n = (size_t)side * side * 3;
    uint8_t *rgb = malloc(n);
    const uint8_t *frame = rgb;
    struct image_processor p;
    rd_status st = rgb ? image_processor_of_keys(b->g, &p, err) : RD_E_NOMEM;

    for (size_t i = 0; st == RD_OK && i < n; i++) rgb[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
    if (st == RD_OK) st = image_processor_run(&p, &frame, 1, side, side, &b->image, err);
    free(rgb);
    return st;
}

/* measures: steps of STEP_S, n_flops is the least. */
static rd_status encode(const struct bench *b, uint64_t n_flops, bool measures)
{
    const double wall = wall_s(), processor = processor_s();
    struct vision_run *run = NULL;
    uint64_t n_next = n_flops, n_done = 0;
    double longest = 0;
    rd_status st = vision_run_begin(b->e, b->image, &run);

    if (st == RD_OK) st = RD_E_AGAIN;
    while (st == RD_E_AGAIN) {
        const double began = wall_s();

        double took;

        st = vision_run_step(run, n_next, &n_done);
        took = wall_s() - began;
        if (took > longest) longest = took;
        if (measures) n_next = u64_max((uint64_t)((double)n_done * STEP_S / took), n_flops);
    }
    if (st == RD_OK) /* rows are in the host's memory */
        printf("{\"rows\": %u, \"wall_s\": %.3f, \"processor_s\": %.3f, \"longest_step_ms\": %.1f}\n", b->image->n_rows,
               wall_s() - wall, processor_s() - processor, longest * 1e3);
    vision_run_end(run);
    return st;
}

int main(int argc, char **argv)
{
    const struct backend_options o = {.n_threads = argc > 4 ? (uint32_t)atoi(argv[4]) : 0,
                                      .isa = argc > 5 && argv[5][0] != '-' ? argv[5] : NULL};
    const int n_rounds = argc > 7 ? atoi(argv[7]) : 1;
    const bool measures = argc <= 8 && (argc <= 6 || strcmp(argv[6], "cpu") == 0);
    const uint64_t n_flops = argc > 8 ? (uint64_t)atoi(argv[8]) * 1000000000u : measures ? VISION_STEP_FLOPS : 0;
    struct bench b = {0};
    struct rd_error err = {RD_OK, ""};
    rd_status st;

    if (argc < 4) {
        fprintf(stderr, "bench_encode MMPROJ WIDTH SIDE [THREADS [ISA [DEVICE [ROUNDS [GFLOP]]]]]\n");
        return 2;
    }
    st = model_file_open(argv[1], model_hub_families(), &b.g, &err);
    if (st == RD_OK) st = backend_open(argc > 6 ? argv[6] : "cpu", &o, &b.ops, &b.be, &err);
    if (st == RD_OK) st = vision_encoder_open(b.g, b.ops, b.be, (uint32_t)atoi(argv[2]), &b.e, &err);
    if (st == RD_OK) st = make_image(&b, (uint32_t)atoi(argv[3]), &err);
    for (int i = 0; st == RD_OK && i < n_rounds; i++) st = encode(&b, n_flops, measures);
    if (st != RD_OK) fprintf(stderr, "%s: %s\n", rd_status_name(st), err.text);
    vision_image_unref(b.image);
    vision_encoder_close(b.e);
    if (b.be) b.ops->life.destroy(b.be);
    model_file_close(b.g);
    return st != RD_OK;
}
