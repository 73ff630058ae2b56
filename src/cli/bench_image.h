/* cli/bench_image.h - what an image costs: `radish bench --image FILE`.
 *
 *     cold     nobody has seen it: to the first token, and the encoder's time of that
 *     seen     another conversation about it: its rows are kept, keys and values are computed
 *     cached   the first conversation again
 *
 * Thread  main thread.
 */
#pragma once
#include "base/buf.h"
#include "radish/radish.h"

struct bench_image {
    uint32_t n_tokens;                             /* of the first conversation's prompt, image and all */
    double encode_ms, cold_ms, seen_ms, cached_ms; /* medians */
};

/* messages: two conversations about the image in this file, made by bench_image_read; NULL: none. */
struct bench_image_file {
    struct buf first, second;
};

/* false: it cannot be read, and stderr says why. Freed by deinit, also then. */
bool bench_image_read(const char *path, struct bench_image_file *out);
void bench_image_deinit(struct bench_image_file *f);
/* The medians of n_reps (1 .. 101) rounds, after one that is thrown away. RD_E_INVALID: this model sees nothing, or that is
 * no image. */
rd_status bench_image_measure(rd_engine *engine, const struct bench_image_file *f, uint32_t n_reps,
                              struct bench_image *out, struct rd_error *err);
