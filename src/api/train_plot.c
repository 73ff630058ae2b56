/* api/train_plot.c - losses by step as a picture: training's thin, their mean over 20 steps thick, evaluation's dots. */
#include <math.h>
#include "api/api_trainer.h"

#define WIDTH  800.0
#define HEIGHT 400.0
#define LEFT   60.0
#define BOTTOM 40.0

struct frame {
    double low, high, n_steps;
};

static double x_of(const struct frame *f, uint64_t step)
{
    return LEFT + (WIDTH - LEFT - 20) * (double)step / f->n_steps;
}
static double y_of(const struct frame *f, double loss)
{
    return 20 + (HEIGHT - BOTTOM - 20) * (f->high - loss) / (f->high - f->low);
}

static void line(const struct frame *f, const struct train_point *points, size_t n, size_t over, const char *style,
                 struct buf *out)
{
    double sum = 0;

    buf_printf(out, "<polyline fill=\"none\" %s points=\"", style);
    for (size_t i = 0; i < n; i++) {
        sum += points[i].loss;
        if (i >= over) sum -= points[i - over].loss;
        buf_printf(out, "%.1f,%.1f ", x_of(f, points[i].step), y_of(f, sum / (double)(i < over ? i + 1 : over)));
    }
    buf_puts(out, "\"/>\n");
}

void train_plot(const struct train_point *points, size_t n, struct buf *out)
{
    struct frame f = {.low = INFINITY, .high = -INFINITY, .n_steps = 1};

    for (size_t i = 0; i < n; i++) {
        f.low = fmin(f.low, fmin(points[i].loss, points[i].eval)); /* fmin leaves NaN out */
        f.high = fmax(f.high, fmax(points[i].loss, points[i].eval));
        f.n_steps = fmax(f.n_steps, (double)points[i].step);
    }
    if (n == 0) f.low = 0, f.high = 1;
    if (f.high - f.low < 1e-9) f.high = f.low + 1e-9;
    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
               "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
               WIDTH, HEIGHT);
    for (int i = 0; i <= 4; i++) {
        double loss = f.low + (f.high - f.low) * i / 4;

        buf_printf(out, "<path d=\"M%.0f %.1fH%.0f\" stroke=\"#ddd\"/><text x=\"8\" y=\"%.1f\">%.3f</text>\n", LEFT,
                   y_of(&f, loss), WIDTH - 20, y_of(&f, loss) + 4, loss);
        buf_printf(out, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.0f</text>\n",
                   LEFT + (WIDTH - LEFT - 20) * i / 4, HEIGHT - 20, f.n_steps * i / 4);
    }
    line(&f, points, n, 1, "stroke=\"#9bd\" stroke-width=\"1\"", out);
    line(&f, points, n, 20, "stroke=\"#05a\" stroke-width=\"2\"", out);
    for (size_t i = 0; i < n; i++)
        if (!isnan(points[i].eval))
            buf_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#d33\"/>\n", x_of(&f, points[i].step),
                       y_of(&f, points[i].eval));
    buf_puts(out, "<text x=\"400\" y=\"14\" text-anchor=\"middle\">loss by step (dots: evaluation)</text>\n</svg>\n");
}
