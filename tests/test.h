/* tests/test.h - one executable per file; TEST registers itself.
 *
 *     TEST(a_fact_that_this_proves) { CHECK_EQ(1 + 1, 2); }
 *
 * Run one by name: ./test_x NAME. A failed CHECK says file, line and both values, marks the test and returns from it.
 * test_seed() is printed with every failure; RADISH_SEED sets it. RADISH_LONG=1: test_is_long() is true.
 */
#pragma once
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "radish/status.h"

/* 1 where the processor is emulated (the preset aarch64): speed means nothing there. */
#ifndef IS_EMULATED
#define IS_EMULATED 0
#endif

struct test_case {
    const char *name;
    void (*fn)(void);
    struct test_case *next;
};
void test_register(struct test_case *t);
void test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
uint64_t test_seed(void);
bool test_is_long(void);
/* Path of a file below tests/golden (or any file of the source tree, relative to its root). Static buffer per call, 4
 * rotate. */
const char *test_path(const char *relative);
/* Path of a real model by tools/fetch-model name, e.g. "smollm2"; NULL when it has not been fetched: test_skip() then. */
const char *test_model(const char *name);
/* Marks the running test as skipped and says why; the test then returns. A skipped test is counted apart, never as passed.
 * An executable in which every test was skipped exits with 77, which ctest counts as skipped. */
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints one line now: what was measured, or what could not run and why. */
void test_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define TEST(test_name)                                                                                                \
    static void test_name(void);                                                                                       \
    __attribute__((constructor)) static void test_name##_register(void)                                                \
    {                                                                                                                  \
        static struct test_case t = {#test_name, test_name, NULL};                                                     \
        test_register(&t);                                                                                             \
    }                                                                                                                  \
    static void test_name(void)

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            test_fail(__FILE__, __LINE__, "CHECK(%s)", #cond);                                                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define CHECK_EQ(a, b)                                                                                                 \
    do {                                                                                                               \
        long long check_a = (long long)(a), check_b = (long long)(b);                                                  \
        if (check_a != check_b) {                                                                                      \
            test_fail(__FILE__, __LINE__, "%s == %s: %lld, wanted %lld", #a, #b, check_a, check_b);                    \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define CHECK_OK(expr)                                                                                                 \
    do {                                                                                                               \
        rd_status check_st = (expr);                                                                                   \
        if (check_st != RD_OK) {                                                                                       \
            test_fail(__FILE__, __LINE__, "%s: %s", #expr, rd_status_name(check_st));                                  \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define CHECK_STR(a, b)                                                                                                \
    do {                                                                                                               \
        const char *check_a = (a), *check_b = (b);                                                                     \
        if (!check_a || !check_b || strcmp(check_a, check_b)) {                                                        \
            test_fail(__FILE__, __LINE__, "%s: \"%s\", wanted \"%s\"", #a, check_a ? check_a : "(null)",               \
                      check_b ? check_b : "(null)");                                                                   \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
