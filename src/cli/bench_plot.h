/* cli/bench_plot.h - the figures of `radish bench` as bars: in the terminal, or as an SVG picture.
 *
 * Rows of one group share a scale, whose end is the group's largest figure; a prefill is ten times a decode and would
 * leave nothing to see of it. The picture needs no font, script or file of others, and follows a dark page.
 * Any thread.
 */
#pragma once
#include <stddef.h>
#include "base/buf.h"

struct bench_row {
    const char *group; /* "prefill"; rows of a group follow each other */
    char label[64];    /* "512 tokens" */
    double tok_s;
};

/* width: columns of the whole line. Bars of eighths of a column. */
void bench_plot_text(const struct bench_row *rows, size_t n, unsigned width, struct buf *out);
void bench_plot_svg(const char *title, const char *subtitle, const struct bench_row *rows, size_t n, struct buf *out);
