/* cli/bench_plot.c - see bench_plot.h. */
#include "cli/bench_plot.h"
#include <stdio.h>
#include <string.h>

enum { LABEL_COLUMNS = 30, VALUE_COLUMNS = 18, LEAST_BAR = 10, MOST_BAR = 80 };
enum { SVG_WIDTH = 760, SVG_LEFT = 220, SVG_RIGHT = 110, SVG_ROW = 26, SVG_BAR = 16, SVG_GROUP = 34, SVG_TOP = 76 };

/* The largest figure of the group that row i is of; 0: all are. */
static double most_of(const struct bench_row *rows, size_t n, size_t i)
{
    double most = 0;

    for (size_t k = 0; k < n; k++)
        if (strcmp(rows[k].group, rows[i].group) == 0 && rows[k].tok_s > most) most = rows[k].tok_s;
    return most;
}

static double share_of(const struct bench_row *rows, size_t n, size_t i)
{
    double most = most_of(rows, n, i), share = most > 0 ? rows[i].tok_s / most : 0;

    return share < 0 ? 0 : share;
}

void bench_plot_text(const struct bench_row *rows, size_t n, unsigned width, struct buf *out)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    unsigned room =
        width > LABEL_COLUMNS + VALUE_COLUMNS + LEAST_BAR ? width - LABEL_COLUMNS - VALUE_COLUMNS : LEAST_BAR;

    if (room > MOST_BAR) room = MOST_BAR;
    for (size_t i = 0; i < n; i++) {
        unsigned n_eighths = (unsigned)(share_of(rows, n, i) * room * 8 + 0.5);

        if (i == 0 || strcmp(rows[i].group, rows[i - 1].group) != 0) buf_printf(out, "%s\n", rows[i].group);
        buf_printf(out, "  %-*s", LABEL_COLUMNS - 2, rows[i].label);
        for (unsigned k = 0; k < n_eighths / 8; k++) buf_puts(out, "█");
        buf_printf(out, "%s %.1f tok/s\n", eighths[n_eighths % 8], rows[i].tok_s);
    }
}

static void put_xml(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            buf_puts(out, "&lt;");
        else if (*text == '>')
            buf_puts(out, "&gt;");
        else if (*text == '&')
            buf_puts(out, "&amp;");
        else if (*text == '"')
            buf_puts(out, "&quot;");
        else if ((unsigned char)*text >= ' ')
            buf_putc(out, *text);
    }
}

static void put_text(struct buf *out, int x, int y, const char *kind, const char *text)
{
    buf_printf(out, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, kind);
    put_xml(out, text);
    buf_puts(out, "</text>\n");
}

static int height_of(const struct bench_row *rows, size_t n)
{
    int height = SVG_TOP;

    for (size_t i = 0; i < n; i++)
        height += SVG_ROW + (i == 0 || strcmp(rows[i].group, rows[i - 1].group) != 0 ? SVG_GROUP : 0);
    return height + 16;
}

void bench_plot_svg(const char *title, const char *subtitle, const struct bench_row *rows, size_t n, struct buf *out)
{
    int y = SVG_TOP, height = height_of(rows, n), room = SVG_WIDTH - SVG_LEFT - SVG_RIGHT;
    char value[48];

    buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n"
        "<title>",
        SVG_WIDTH, height, SVG_WIDTH, height);
    put_xml(out, title);
    buf_puts(out, "</title>\n<style>\n"
                  ".page{fill:#ffffff}.bar{fill:#c2334d}.head{font-weight:600;font-size:18px}.group{font-weight:600}\n"
                  ".label{text-anchor:end}.quiet,.label{fill:#57606a}.rule{stroke:#d0d7de}\n"
                  "text{font-family:system-ui,sans-serif;font-size:13px;fill:#1f2328}\n"
                  "@media (prefers-color-scheme:dark){.page{fill:#0d1117}.bar{fill:#f0637c}text{fill:#e6edf3}\n"
                  ".quiet,.label{fill:#9198a1}.rule{stroke:#3d444d}}\n</style>\n");
    buf_printf(out, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", SVG_WIDTH, height);
    put_text(out, 24, 36, "head", title);
    put_text(out, 24, 58, "quiet", subtitle);
    for (size_t i = 0; i < n; i++) {
        int bar = (int)(share_of(rows, n, i) * room + 0.5);

        if (i == 0 || strcmp(rows[i].group, rows[i - 1].group) != 0) {
            y += SVG_GROUP;
            put_text(out, 24, y - 10, "group", rows[i].group);
            buf_printf(out, "<line class=\"rule\" x1=\"24\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", SVG_WIDTH - 24, y - 2,
                       y - 2);
        }
        put_text(out, SVG_LEFT - 10, y + SVG_BAR + 1, "label", rows[i].label);
        buf_printf(out, "<rect class=\"bar\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"2\"/>\n", SVG_LEFT,
                   y + 4, bar > 1 ? bar : 1, SVG_BAR);
        snprintf(value, sizeof(value), "%.1f tok/s", rows[i].tok_s);
        put_text(out, SVG_LEFT + bar + 8, y + SVG_BAR + 1, "value", value);
        y += SVG_ROW;
    }
    buf_puts(out, "</svg>\n");
}
