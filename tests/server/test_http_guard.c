/* tests/server/test_http_guard.c - F49: comparing keys tells nothing; F51: which names in a Host header are private. */
#include "server/http/http_guard.h"
#include "server/http/keys.h"
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/random.h"
#include "test.h"

#define KEY_BYTES 64u

/* key with byte `at` changed; at == KEY_BYTES: the key itself. */
static void make_key(char *s, size_t at)
{
    for (size_t i = 0; i < KEY_BYTES; i++) s[i] = (char)('a' + i % 26);
    if (at < KEY_BYTES) s[at] = '!';
}

TEST(a_key_is_equal_only_to_itself)
{
    char key[KEY_BYTES], sent[KEY_BYTES + 1] = {0};

    make_key(key, KEY_BYTES);
    for (size_t at = 0; at <= KEY_BYTES; at++) {
        make_key(sent, at);
        CHECK_EQ(keys_equal(sent, KEY_BYTES, key, KEY_BYTES), at == KEY_BYTES);
    }
    for (size_t n = 0; n < KEY_BYTES; n++) CHECK(!keys_equal(key, n, key, KEY_BYTES));
    CHECK(!keys_equal(sent, KEY_BYTES + 1, key, KEY_BYTES));
    CHECK(!keys_equal(sent, KEY_BYTES, key, 0));
}

/* In a child: does the comparison reach behind the first n_readable of the bytes that were sent? */
static bool faults(size_t differs_at, size_t n_readable)
{
    long page = sysconf(_SC_PAGESIZE);
    char key[KEY_BYTES], *area;
    int status = 0;
    pid_t child;

    make_key(key, KEY_BYTES);
    area = mmap(NULL, (size_t)page * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) return false;
    make_key(area + page - n_readable, differs_at);
    mprotect(area + page, (size_t)page, PROT_NONE);
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(keys_equal(area + page - n_readable, KEY_BYTES, key, KEY_BYTES));
    }
    if (child > 0) waitpid(child, &status, 0);
    munmap(area, (size_t)page * 2);
    return child > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

/* Whichever byte differs, the last one is looked at: it lies in a page that cannot be read. */
TEST(the_comparison_looks_at_the_last_byte_whatever_differs_before)
{
    for (size_t at = 0; at + 1 < KEY_BYTES; at += 9) {
        CHECK(faults(at, KEY_BYTES - 1));
        CHECK(!faults(at, KEY_BYTES));
    }
}

/* Instructions of a child from a stop to its end, the comparison between them; 0: cannot be traced here. */
static uint64_t count_instructions(size_t differs_at)
{
    char key[KEY_BYTES], sent[KEY_BYTES];
    uint64_t n = 0;
    int status = 0;
    pid_t child;

    make_key(key, KEY_BYTES);
    make_key(sent, differs_at);
    child = fork();
    if (child < 0) return 0;
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(2);
        raise(SIGSTOP);
        keys_equal(sent, KEY_BYTES, key, KEY_BYTES);
        _exit(0);
    }
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        n++;
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL)) break;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? n : 0;
}

TEST(the_comparison_takes_the_same_instructions_whatever_differs)
{
#ifdef __SANITIZE_THREAD__
    test_skip("the thread sanitizer's own instructions are not the same each time");
    return;
#endif
    uint64_t first = count_instructions(0);

    if (first == 0) {
        test_skip("processes cannot be traced here");
        return;
    }
    for (size_t at = 1; at < KEY_BYTES; at += 7) CHECK_EQ(count_instructions(at), first);
    test_note("%llu instructions, wherever the key differs", (unsigned long long)first);
}

/* Welch's t of how long both take, in turns drawn at random; what took longest (the machine did something else) is left
 * out of both alike. */
TEST(welchs_t_of_a_million_comparisons_is_noise)
{
    enum { RUN = 64 };
    uint64_t n[2] = {0}, seed = test_seed();
    double mean[2] = {0}, m2[2] = {0};
    char key[KEY_BYTES], sent[2][KEY_BYTES];
    volatile unsigned sink = 0;

    if (!test_is_long()) {
        test_skip("RADISH_LONG=1 only");
        return;
    }
    make_key(key, KEY_BYTES);
    make_key(sent[0], 0);
    make_key(sent[1], KEY_BYTES - 1);
    for (uint32_t i = 0; i < 2000000 / RUN; i++) {
        uint32_t which = (uint32_t)(random_at(seed, i) & 1);
        uint64_t begun = clock_now_ns(clock_system());
        double took, delta;

        for (int k = 0; k < RUN; k++) sink += keys_equal(sent[which], KEY_BYTES, key, KEY_BYTES);
        took = (double)(clock_now_ns(clock_system()) - begun);
        if (took > 20000) continue;
        delta = took - mean[which];
        mean[which] += delta / (double)++n[which];
        m2[which] += delta * (took - mean[which]);
    }
    double t = fabs(mean[0] - mean[1]) /
               sqrt(m2[0] / (double)(n[0] - 1) / (double)n[0] + m2[1] / (double)(n[1] - 1) / (double)n[1]);
    CHECK_EQ(sink, 0); /* none of them was equal */
    test_note("Welch's t of %llu and %llu runs: %.2f", (unsigned long long)n[0], (unsigned long long)n[1], t);
    CHECK(t < 4.5);
}

TEST(names_that_a_website_cannot_have_are_private)
{
    static const char *const yes[] = {"127.0.0.1",   "192.168.1.5:8000", "8.8.8.8",
                                      "[::1]",       "[2001:db8::1]:80", "localhost",
                                      "LOCALHOST:1", "radish",           "radish:8000",
                                      "a-b_c",       "gpu.local",        "host.docker.internal:8000",
                                      "x.lan",       "x.home.arpa",      "a.b.localhost",
                                      "gpu.local."};
    static const char *const no[] = {"",
                                     ":80",
                                     "evil.example",
                                     "evil.example:80",
                                     "127.0.0.1.nip.io",
                                     "2130706433",
                                     "0x7f000001",
                                     "0x7f.1",
                                     "127.1",
                                     "0177.0.0.1",
                                     "[evil]",
                                     "[::1",
                                     "[::1]x",
                                     "a:",
                                     "a:b",
                                     "a:1:2",
                                     "::1",
                                     "a b",
                                     "a/b",
                                     "a@b",
                                     ".local",
                                     "local.evil.example",
                                     "256.1.1.1",
                                     "1.2.3.4.5"};

    for (size_t i = 0; i < sizeof(yes) / sizeof(*yes); i++)
        if (!http_host_is_private(yes[i])) test_fail(__FILE__, __LINE__, "%s is private", yes[i]);
    for (size_t i = 0; i < sizeof(no) / sizeof(*no); i++)
        if (http_host_is_private(no[i])) test_fail(__FILE__, __LINE__, "%s is not private", no[i]);
}
