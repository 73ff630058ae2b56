/* tests/base/test_child_process.c - what a child is given, how its command is split, and how its end is told. */
#include "base/child_process.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "test.h"

enum { PATIENCE_MS = 60000 };

/* All that it writes until its end. */
static const char *output(struct child_process *c)
{
    static char text[8192];
    size_t n = 0;
    struct pollfd f = {.fd = c->out, .events = POLLIN};

    while (n < sizeof(text) - 1 && poll(&f, 1, PATIENCE_MS) > 0) {
        const ssize_t got = read(c->out, text + n, sizeof(text) - 1 - n);

        if (got <= 0) break;
        n += (size_t)got;
    }
    text[n] = 0;
    return text;
}

static void wait_end(struct child_process *c, char how[64])
{
    struct pollfd f = {.fd = c->end, .events = POLLIN};

    if (c->end >= 0) poll(&f, 1, PATIENCE_MS);
    while (!child_process_reap(c, how)) {}
}

static const char *run(const char *command, const char *const *extra, char how[64])
{
    struct child_process c;
    struct rd_error err = {RD_OK, ""};
    const char *text = "";

    snprintf(how, 64, "not started");
    if (child_process_start(command, extra, &c, &err) != RD_OK) return err.text[0] ? "" : "";
    text = output(&c);
    wait_end(&c, how);
    child_process_end(&c);
    return text;
}

TEST(a_command_is_words)
{
    char how[64];

    CHECK_STR(run("  printf  '<%s>' one \"two three\" 'a\\b' c\\ d \"\" x\"y\"z ", NULL, how),
              "<one><two three><a\\b><c d><><xyz>");
    CHECK_STR(how, "exit 0");
    CHECK_STR(run("printf %s $HOME;ls", NULL, how), "$HOME;ls"); /* no shell */
}

TEST(what_cannot_be_started_is_named)
{
    struct child_process c;
    struct rd_error err = {RD_OK, ""};

    CHECK_EQ(child_process_start("", NULL, &c, &err), RD_E_INVALID);
    CHECK_EQ(child_process_start("   ", NULL, &c, &err), RD_E_INVALID);
    CHECK_EQ(child_process_start("echo 'x", NULL, &c, &err), RD_E_INVALID);
    CHECK_EQ(child_process_start("/nowhere/at/all x", NULL, &c, &err), RD_E_NOT_FOUND);
    CHECK(strstr(err.text, "/nowhere/at/all") != NULL && c.pid == 0);
    CHECK_EQ(child_process_start("/", NULL, &c, &err), RD_E_IO);
    child_process_end(&c);
    child_process_end(NULL);
}

TEST(its_end_is_told)
{
    struct child_process c;
    char how[64];

    run("sh -c 'exit 7'", NULL, how);
    CHECK_STR(how, "exit 7");
    CHECK_OK(child_process_start("sleep 1000", NULL, &c, NULL));
    CHECK(!child_process_reap(&c, how));
    child_process_kill(&c);
    wait_end(&c, how);
    CHECK(strncmp(how, "signal 9 ", 9) == 0);
    child_process_end(&c);
}

TEST(its_group_ends_with_it)
{
    struct child_process c;
    char how[64];
    int grandchild;
    uint64_t end = clock_now_ns(clock_system()) + PATIENCE_MS * 1000000ull;

    CHECK_OK(child_process_start("sh -c 'sleep 1000 & echo $!'", NULL, &c, NULL));
    wait_end(&c, how);
    grandchild = atoi(output(&c));
    CHECK(grandchild > 0);
    child_process_end(&c);
    while (kill(grandchild, 0) == 0 && clock_now_ns(clock_system()) < end) {
        char path[64], stat[256] = "";
        int fd;

        snprintf(path, sizeof(path), "/proc/%d/stat", grandchild);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) (void)!read(fd, stat, sizeof(stat) - 1), close(fd);
        if (strstr(stat, ") Z ")) break; /* nobody reaps it here */
    }
    CHECK(clock_now_ns(clock_system()) < end);
}

TEST(it_is_given_little)
{
    static const char *const extra[] = {"RADISH_TEST_EXTRA=1", NULL};
    char how[64];
    const char *text;
    const int leak = open("/dev/null", O_RDONLY); /* without O_CLOEXEC */

    setenv("HF_TOKEN", "secret", 1);
    setenv("PYTHONHASHSEED", "0", 1);
    text = run("env", extra, how);
    CHECK(strstr(text, "secret") == NULL && strstr(text, "PATH=") != NULL);
    CHECK(strstr(text, "PYTHONHASHSEED=0") != NULL && strstr(text, "RADISH_TEST_EXTRA=1") != NULL);
    CHECK_STR(run("sh -c 'ulimit -c; ls /proc/self/fd | wc -l'", NULL, how), "0\n4\n"); /* ls has opened one */
    close(leak);
}

TEST(a_failing_allocation_leaves_nothing_behind)
{
    const uint64_t alive = mem_n_alive();
    rd_status st = RD_E_NOMEM;
    struct child_process c;

    for (int i = 0; st == RD_E_NOMEM && i < 100; i++) {
        mem_fail_after(i);
        st = child_process_start("true", NULL, &c, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        if (st == RD_OK) child_process_end(&c);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_OK(st);
}
