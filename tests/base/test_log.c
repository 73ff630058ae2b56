/* tests/base/test_log.c - levels, escaping, whole lines from many threads. */
#include "base/log.h"
#include <fcntl.h>
#include <unistd.h>
#include "base/thread.h"
#include "test.h"

static struct {
    char last[9000];
    int n_lines, n_torn;
    enum log_level level;
} seen; /* the sink is called under a lock */

static void sink(void *arg, enum log_level level, const char *line)
{
    seen.n_lines++;
    seen.level = level;
    if (strncmp(line, "thread ", 7) == 0 && strcmp(line + strlen(line) - 4, " end")) seen.n_torn++;
    snprintf(seen.last, sizeof(seen.last), "%s", line);
}

TEST(lines_above_the_level_are_dropped)
{
    log_set_sink(sink, NULL);
    seen.n_lines = 0;
    log_debug("no %d", 1);
    CHECK_EQ(seen.n_lines, 0);
    log_info("yes %d", 2);
    CHECK_STR(seen.last, "yes 2");
    CHECK_EQ(seen.level, LOG_INFO);
    log_set_level(LOG_ERROR);
    log_warn("no");
    CHECK_EQ(seen.n_lines, 1);
    log_set_level(LOG_DEBUG);
    log_debug("now %s", "yes");
    CHECK_STR(seen.last, "now yes");
    log_set_level(LOG_INFO);
    log_set_sink(NULL, NULL);
}

TEST(foreign_bytes_cannot_forge_a_line)
{
    log_set_sink(sink, NULL);
    log_info("a %s b", "\n2026 error \x1b[31m \xC2\x9B \xFF \xC3\xA9");
    CHECK_STR(seen.last, "a \\x0a2026 error \\x1b[31m \\xc2\\x9b \\xff \xC3\xA9 b");
    log_set_sink(NULL, NULL);
}

TEST(a_line_that_is_too_long_is_cut)
{
    char longer[5000];

    memset(longer, '\n', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    log_set_sink(sink, NULL);
    log_info("%s", longer);
    CHECK_EQ(strlen(seen.last), 2047 * 4);
    log_set_sink(NULL, NULL);
}

TEST(a_log_that_nobody_reads_stops_nobody)
{
    static char bytes[1 << 17];
    int ends[2], was = dup(STDERR_FILENO);
    ssize_t n, n_full = 0, at;

    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while ((n = write(ends[1], bytes, 4096)) > 0) n_full += n;
    CHECK_EQ(fcntl(ends[1], F_SETFL, 0), 0);
    dup2(ends[1], STDERR_FILENO);
    alarm(30); /* what waits is ended */
    for (int i = 0; i < 1000; i++) log_info("unread");
    for (at = 0; at < n_full; at += n) n = read(ends[0], bytes, sizeof(bytes));
    log_info("read again");
    alarm(0);
    dup2(was, STDERR_FILENO);
    close(ends[1]);
    for (at = 0; (n = read(ends[0], bytes + at, sizeof(bytes) - 1 - (size_t)at)) > 0;) at += n;
    bytes[at] = 0;
    CHECK(strstr(bytes, "warn  1000 lines of the log were dropped: its reader was too slow\n") != NULL);
    CHECK(strstr(bytes, "info  read again\n") != NULL && strstr(bytes, "unread") == NULL);
    close(ends[0]);
    close(was);
}

static void log_often(void *arg)
{
    for (int i = 0; i < 500; i++) log_info("thread %d line %d end", *(int *)arg, i);
}

TEST(lines_of_threads_do_not_mix)
{
    struct thread t[4] = {0};
    int names[4] = {0, 1, 2, 3};

    log_set_sink(sink, NULL);
    seen.n_lines = seen.n_torn = 0;
    for (int i = 0; i < 4; i++) CHECK_OK(thread_start(&t[i], "log", log_often, &names[i]));
    for (int i = 0; i < 4; i++) thread_join(&t[i]);
    CHECK_EQ(seen.n_lines, 2000);
    CHECK_EQ(seen.n_torn, 0);
    log_set_sink(NULL, NULL);
    log_warn("this line and its time stamp belong on stderr");
}
