/* tests/test_main.c - runs the tests that registered themselves, and ends with "N passed, M failed, K skipped". */
#include "test.h"
#include <stdarg.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"

#define EXIT_SKIPPED 77 /* SKIP_RETURN_CODE of tests/CMakeLists.txt */

static struct test_case *first, **last = &first;
static const char *current = "";
static bool current_failed, current_skipped;
static uint64_t seed;

void test_register(struct test_case *t)
{
    *last = t;
    last = &t->next;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;

    current_failed = true;
    printf("%s:%d: %s: ", file, line, current);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("  (RADISH_SEED=%" PRIu64 ")\n", seed);
    fflush(stdout);
}

uint64_t test_seed(void)
{
    return seed;
}

bool test_is_long(void)
{
    const char *s = getenv("RADISH_LONG");

    return s && *s && strcmp(s, "0") != 0;
}

const char *test_path(const char *relative)
{
    static char paths[4][4096];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/tests/golden/%s", RADISH_SOURCE_DIR, relative);
    if (!file_exists(path)) snprintf(path, sizeof(paths[0]), "%s/%s", RADISH_SOURCE_DIR, relative);
    return path;
}

const char *test_model(const char *name)
{
    static char paths[4][4096];
    static unsigned next;
    char *path = paths[next++ % 4];
    const char *dir = getenv("RADISH_MODELS"), *home = getenv("HOME");

    if (dir && *dir)
        snprintf(path, sizeof(paths[0]), "%s/%s.gguf", dir, name);
    else
        snprintf(path, sizeof(paths[0]), "%s/.cache/radish/models/%s.gguf", home ? home : "", name);
    return file_exists(path) ? path : NULL;
}

void test_note(const char *format, ...)
{
    va_list args;

    printf("%s: ", current);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

void test_skip(const char *format, ...)
{
    va_list args;

    current_skipped = true;
    printf("skipped %s: ", current);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

enum outcome { PASSED, FAILED, SKIPPED, N_OUTCOMES };

static enum outcome run_one(const struct test_case *t)
{
    static const char *const words[] = {"ok", "FAILED", "skipped"};
    enum outcome outcome;

    uint64_t start = clock_now_ns(clock_system());

    current = t->name;
    current_failed = current_skipped = false;
    t->fn();
    outcome = current_failed ? FAILED : current_skipped ? SKIPPED : PASSED;
    mem_fail_after(-1); /* a failed CHECK returns before the test switches its hooks off */
    file_fail_after(-1);
    printf("%s %s (%.2f s)\n", words[outcome], t->name, (double)(clock_now_ns(clock_system()) - start) * 1e-9);
    fflush(stdout);
    return outcome;
}

static bool is_wanted(const struct test_case *t, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], t->name) == 0) return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    const char *given = getenv("RADISH_SEED");
    unsigned n[N_OUTCOMES] = {0};

    if (!given || !parse_u64(given, strlen(given), &seed)) {
        random_os(&seed, sizeof(seed));
        seed >>= 16; /* short enough to type */
    }
    for (const struct test_case *t = first; t; t = t->next) {
        if (!is_wanted(t, argc, argv)) continue;
        n[run_one(t)]++;
    }
    printf("%u passed, %u failed, %u skipped\n", n[PASSED], n[FAILED], n[SKIPPED]);
    if (n[PASSED] + n[FAILED] + n[SKIPPED] == 0) {
        printf("no test of that name\n");
        return 2;
    }
    return n[FAILED] ? 1 : n[PASSED] ? 0 : EXIT_SKIPPED;
}
