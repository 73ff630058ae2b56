/* tests/engine/test_think_budget.c - thinking is closed at its limit, and only then. */
#include "engine/think_budget.h"
#include "test.h"

static const int32_t open_tag[] = {100}, close_tag[] = {101, 102}, forced[] = {7, 101, 102, 8};

static struct think_budget budget(uint32_t limit, bool thinks)
{
    return (struct think_budget){.open = open_tag,
                                 .close = close_tag,
                                 .forced = forced,
                                 .n_open = 1,
                                 .n_close = 2,
                                 .n_forced = 4,
                                 .limit = limit,
                                 .thinks = thinks};
}

/* Feeds 1, 2, 3 .. but for what tokens says; the result as text. */
static const char *run(struct think_budget b, const int32_t *tokens, uint32_t n)
{
    static char text[256];
    size_t at = 0;

    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%d", i ? " " : "", think_budget_next(&b, tokens[i]));
    return text;
}

TEST(thinking_past_its_limit_is_closed)
{
    const int32_t t[] = {1, 2, 3, 4, 5, 6, 9};

    CHECK_STR(run(budget(2, true), t, 7), "1 2 7 101 102 8 9");
    CHECK_STR(run(budget(0, true), t, 7), "7 101 102 8 5 6 9");
    CHECK_STR(run(budget(99, true), t, 7), "1 2 3 4 5 6 9");
    CHECK_STR(run(budget(0, false), t, 7), "1 2 3 4 5 6 9");
}

TEST(the_model_may_close_it_itself)
{
    const int32_t early[] = {1, 101, 102, 2, 3, 4, 5}, late[] = {1, 2, 101, 102, 5, 6, 7},
                  torn[] = {1, 2, 101, 5, 6, 7, 9};

    CHECK_STR(run(budget(2, true), early, 7), "1 101 102 2 3 4 5");
    CHECK_STR(run(budget(2, true), late, 7), "1 2 101 102 5 6 7");
    CHECK_STR(run(budget(2, true), torn, 7), "1 2 101 7 101 102 8");
}

TEST(counting_begins_with_the_tag_and_again_with_another)
{
    const int32_t t[] = {5, 100, 1, 2, 3, 4, 5, 100, 1, 2, 3, 4, 5};

    CHECK_STR(run(budget(1, false), t, 13), "5 100 1 7 101 102 8 100 1 7 101 102 8");
}

TEST(without_a_budget_nothing_changes)
{
    struct think_budget none = {0};

    for (int32_t i = 0; i < 200; i++) CHECK_EQ(think_budget_next(&none, i), i);
}
