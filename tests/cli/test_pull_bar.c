/* tests/cli/test_pull_bar.c - the line of a download, of numbers that are given. */
#include "cli/pull_bar.h"
#include "test.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static const char *line(const char *what, uint64_t n_done, uint64_t n_total, double rate)
{
    static char text[256];

    pull_bar_line(text, sizeof(text), what, n_done, n_total, rate);
    return text;
}

TEST(share_bytes_rate_and_time_left)
{
    CHECK_STR(line("x.gguf", GIB, 2 * GIB, 10 * MIB),
              "x.gguf [##########..........]  50 %  1.0/2.0 GiB  10.0 MiB/s  1 m 42 s left");
    CHECK_STR(line("x.gguf", 0, 200 * MIB, 0), "x.gguf [....................]   0 %  0.0/200.0 MiB");
    CHECK_STR(line("x.gguf", 190 * MIB, 200 * MIB, 2 * MIB),
              "x.gguf [###################.]  95 %  190.0/200.0 MiB  2.0 MiB/s  5 s left");
    CHECK_STR(line("x.gguf", 0, 100 * GIB, 10 * MIB),
              "x.gguf [....................]   0 %  0.0/100.0 GiB  10.0 MiB/s  2 h 50 m left");
}

TEST(what_is_not_known_is_not_shown)
{
    CHECK_STR(line("x.gguf", 3 * MIB, UINT64_MAX, 0), "x.gguf [....................]  3.0 MiB");
    CHECK_STR(line("x.gguf", 0, 0, 0), "x.gguf [....................]   0 %  0.0/0.0 MiB");
}

TEST(a_long_name_shows_its_end)
{
    CHECK_STR(line("a-very-long-name-of-a-model-indeed-Q4_K_M.gguf", 0, MIB, 0),
              "..a-model-indeed-Q4_K_M.gguf [....................]   0 %  0.0/1.0 MiB");
}
