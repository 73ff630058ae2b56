/* cli/pull_bar.c - see pull_bar.h. */
#include "cli/pull_bar.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"

enum { CELLS = 20, NAME_SHOWN = 26 };
#define DRAW_NS   100000000ull
#define SAMPLE_NS 500000000ull
#define SMOOTH    0.2 /* of the newest half second: about the last three count */

void pull_bar_init(struct pull_bar *bar)
{
    *bar = (struct pull_bar){.is_shown = isatty(STDERR_FILENO)};
}

void pull_bar_clear(struct pull_bar *bar)
{
    if (bar->has_line) fputs("\r\033[K", stderr);
    bar->has_line = false;
}

/* "1.0/2.0 GiB" */
static void put_bytes(char *out, size_t cap, uint64_t n_done, uint64_t n_total)
{
    uint64_t most = n_total == UINT64_MAX ? n_done : n_total;
    bool is_big = most >= 1ull << 30;
    double unit = is_big ? 1ull << 30 : 1ull << 20;

    if (n_total == UINT64_MAX)
        snprintf(out, cap, "%.1f %s", (double)n_done / unit, is_big ? "GiB" : "MiB");
    else
        snprintf(out, cap, "%.1f/%.1f %s", (double)n_done / unit, (double)n_total / unit, is_big ? "GiB" : "MiB");
}

/* "5 s left", "1 m 38 s left", "2 h 05 m left" */
static void put_left(char *out, size_t cap, double seconds)
{
    unsigned s = seconds < 360000 ? (unsigned)seconds : 360000;

    if (s < 60)
        snprintf(out, cap, "%u s left", s);
    else if (s < 3600)
        snprintf(out, cap, "%u m %02u s left", s / 60, s % 60);
    else
        snprintf(out, cap, "%u h %02u m left", s / 3600, s / 60 % 60);
}

void pull_bar_line(char *line, size_t cap, const char *what, uint64_t n_done, uint64_t n_total, double rate)
{
    char cells[CELLS + 1], bytes[64], left[64] = "", share[16] = "";
    size_t n = strlen(what), n_hidden = n > NAME_SHOWN ? n - NAME_SHOWN : 0;
    double part = n_total == UINT64_MAX || !n_total ? 0 : (double)n_done / (double)n_total;

    for (int i = 0; i < CELLS; i++) cells[i] = i < (int)(part * CELLS) ? '#' : '.';
    cells[CELLS] = 0;
    put_bytes(bytes, sizeof(bytes), n_done, n_total);
    if (n_total != UINT64_MAX) snprintf(share, sizeof(share), " %3d %%", (int)(part * 100));
    if (n_total != UINT64_MAX && rate > 0) put_left(left, sizeof(left), (double)(n_total - n_done) / rate);
    n = (size_t)snprintf(line, cap, "%s%s [%s]%s  %s", n_hidden ? ".." : "", what + n_hidden, cells, share, bytes);
    if (rate > 0 && n < cap) snprintf(line + n, cap - n, "  %.1f MiB/s  %s", rate / (1 << 20), left);
}

/* The rate of the last seconds: of the whole would lie after a stall. */
static void measure(struct pull_bar *bar, uint64_t now, uint64_t n_done)
{
    double rate;

    if (!bar->last_ns || n_done < bar->last_bytes) {
        bar->last_ns = now;
        bar->last_bytes = n_done;
        bar->rate = 0;
    }
    if (now - bar->last_ns < SAMPLE_NS) return;
    rate = (double)(n_done - bar->last_bytes) * 1e9 / (double)(now - bar->last_ns);
    bar->rate = bar->rate > 0 ? bar->rate + SMOOTH * (rate - bar->rate) : rate;
    bar->last_ns = now;
    bar->last_bytes = n_done;
}

void pull_bar_show(struct pull_bar *bar, const char *what, uint64_t n_done, uint64_t n_total, bool is_checking)
{
    uint64_t now = clock_now_ns(clock_system());
    char line[256];

    if (!bar->is_shown) return;
    if (is_checking)
        bar->last_ns = 0; /* a disk's speed is not the network's */
    else
        measure(bar, now, n_done);
    if (now - bar->drawn_ns < DRAW_NS && bar->has_line) return;
    bar->drawn_ns = now;
    pull_bar_line(line, sizeof(line), what, n_done, n_total, is_checking ? 0 : bar->rate);
    fprintf(stderr, "\r\033[K%s%s", line, is_checking ? "  reading what is there" : "");
    bar->has_line = true;
}
