/* cli/pull_bar.h - how far a download is, on a terminal: share, bytes, rate, time left. Main thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pull_bar {
    bool is_shown; /* stderr is a terminal */
    bool has_line; /* one stands there now */
    uint64_t last_ns, last_bytes, drawn_ns;
    double rate; /* bytes a second, smoothed; 0: not known yet */
};

void pull_bar_init(struct pull_bar *bar);
/* what: "Q4_K_M.gguf"; n_total UINT64_MAX: unknown. is_checking: bytes of an earlier try are read again. Draws ten times a
 * second at most. */
void pull_bar_show(struct pull_bar *bar, const char *what, uint64_t n_done, uint64_t n_total, bool is_checking);
/* Takes it off the screen: before a message, and at the end. */
void pull_bar_clear(struct pull_bar *bar);

/* The line itself, of what was measured: "x.gguf [####....]  50 %  1.0/2.0 GiB  10.5 MiB/s  1 m 38 s left". */
void pull_bar_line(char *line, size_t cap, const char *what, uint64_t n_done, uint64_t n_total, double rate);
