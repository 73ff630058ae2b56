/* tests/base/test_crash.c - children that crash, and what they say. */
#include "base/crash.h"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/thread.h"
#include "test.h"

static char said[32768];

/* Runs fn in a child after crash_install; how it ended, with what it wrote to stderr in said. */
static int crash_of(void (*fn)(void))
{
    int ends[2], status = 0;
    size_t n = 0;
    ssize_t got;
    pid_t child;

    if (pipe(ends)) abort();
    child = fork();
    if (child == 0) {
        for (int i = 1; i < NSIG; i++) signal(i, SIG_DFL); /* a sanitizer's are not what is tested */
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        crash_install("1.2.3");
        crash_note(0, "pages free", 17);
        crash_note(3, "in decode", 18446744073709551615ull);
        crash_note(CRASH_NOTES, "beyond", 1);
        fn();
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], said + n, sizeof(said) - 1 - n)) > 0) n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

static int count(const char *what)
{
    int n = 0;

    for (const char *at = said; (at = strstr(at, what)); at++) n++;
    return n;
}

static void touch_nothing(void)
{
    volatile int *volatile nowhere = (volatile int *)16;

    *nowhere = 1;
}

TEST(a_bad_address_is_told_with_the_state_and_ends_by_its_signal)
{
    int status = crash_of(touch_nothing);

    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(strstr(said, "radish: crashed by signal 11 (SIGSEGV) at address 0x10, in thread "));
    CHECK(strstr(said, "radish: version 1.2.3, 0."));
    CHECK(strstr(said, "radish: pages free 17, in decode 18446744073709551615\n"));
    CHECK(!strstr(said, "beyond"));
    CHECK(count("(+0x") + count("test_crash(") >= 3); /* frames */
}

static struct mutex lock;
static atomic_int n_waiting;

static void wait_for_lock(void *arg)
{
    (void)arg;
    atomic_fetch_add(&n_waiting, 1); /* it has its name by now */
    mutex_lock(&lock);
    mutex_unlock(&lock);
}

static volatile int depth = 1 << 30;

static int recurse(int n)
{
    volatile char room[4096];

    room[0] = room[4095] = 1;
    return n > depth ? 0 : recurse(n + 1) + room[0];
}

static void fill_stack(void *arg)
{
    (void)arg;
    depth = recurse(0);
}

static void overflow_beside_others(void)
{
    struct thread others[3] = {{0}}, deep = {0};

    mutex_init(&lock);
    mutex_lock(&lock);
    for (int i = 0; i < 3; i++) (void)!thread_start(&others[i], "other", wait_for_lock, NULL);
    while (atomic_load(&n_waiting) < 3) sched_yield();
    (void)!thread_start(&deep, "deep", fill_stack, NULL);
    thread_join(&deep);
}

TEST(a_stack_that_is_full_is_told_of_and_every_thread_with_it)
{
    int status = crash_of(overflow_beside_others);

    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(strstr(said, "(SIGSEGV)") && strstr(said, "in thread deep\n"));
    CHECK_EQ(count("radish: thread other\n"), 3);
    CHECK_EQ(count("radish: thread deep\n"), 1);
    CHECK_EQ(count("radish: crashed"), 1);
}

static void crash_in_thread(void *arg)
{
    (void)arg;
    touch_nothing();
}

static void crash_many_times(void)
{
    struct thread t[8] = {{0}};

    for (int i = 0; i < 8; i++) (void)!thread_start(&t[i], "crasher", crash_in_thread, NULL);
    for (int i = 0; i < 8; i++) thread_join(&t[i]);
}

TEST(of_threads_that_crash_together_one_reports)
{
    int status = crash_of(crash_many_times);

    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK_EQ(count("radish: crashed"), 1);
}

static void end_itself(void)
{
    abort();
}

static void be_sent_one(void)
{
    kill(getpid(), SIGABRT);
    pause();
}

TEST(abort_and_a_signal_that_was_sent_are_told_apart_by_the_sender)
{
    int status = crash_of(end_itself);

    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(strstr(said, "radish: crashed by signal 6 (SIGABRT) of process "));
    status = crash_of(be_sent_one);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(count("radish: thread") >= 1);
}
