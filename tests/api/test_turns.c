/* tests/api/test_turns.c - whoever has many things waiting waits for himself. */
#include "api/turns.h"
#include "test.h"

static char order[64];

static void take_all(struct turns *t, const struct turn *items, const char *names)
{
    size_t n = 0;
    struct turn *item;

    while (n < sizeof(order) - 1 && t->first && (item = turns_pop(t))) order[n++] = names[item - items];
    order[n] = 0;
}

TEST(what_comes_late_of_one_does_not_wait_for_all_of_another)
{
    struct turns t;
    struct turn items[10];

    turns_init(&t);
    for (int i = 0; i < 6; i++) CHECK(turns_push(&t, &items[i], 'a', 9));
    CHECK(turns_push(&t, &items[6], 'b', 9));
    CHECK(turns_push(&t, &items[7], 'b', 9));
    CHECK(turns_push(&t, &items[8], 'c', 9));
    CHECK(!turns_push(&t, &items[9], 'b', 2)); /* they are two already */
    take_all(&t, items, "123456xyz");
    CHECK_STR(order, "1xz2y3456");
    turns_deinit(&t);
}

TEST(what_comes_while_others_are_served_is_in_the_running_round)
{
    struct turns t;
    struct turn items[10];

    turns_init(&t);
    for (int i = 0; i < 5; i++) CHECK(turns_push(&t, &items[i], 'a', 9));
    CHECK(turns_pop(&t) == &items[0] && turns_pop(&t) == &items[1] && turns_pop(&t) == &items[2]);
    CHECK(turns_push(&t, &items[5], 'b', 9));
    CHECK(turns_push(&t, &items[6], 'b', 9));
    take_all(&t, items, "12345xy");
    CHECK_STR(order, "x4y5");
    CHECK(turns_push(&t, &items[7], 'a', 9));
    CHECK(turns_pop(&t) == &items[7]);
    turns_deinit(&t);
}

static void pop_until_closed(void *arg)
{
    struct turns *t = arg;

    while (turns_pop(t)) continue;
}

TEST(closing_ends_the_worker_behind_what_waits)
{
    struct turns t;
    struct turn items[3];
    struct thread worker = {0};

    turns_init(&t);
    CHECK_OK(thread_start(&worker, "worker", pop_until_closed, &t));
    for (int i = 0; i < 3; i++) CHECK(turns_push(&t, &items[i], (uint64_t)i, 9));
    CHECK(!turns_are_closed(&t));
    turns_close(&t);
    thread_join(&worker);
    CHECK(!t.first && turns_are_closed(&t));
    CHECK(turns_pop(&t) == NULL);
    turns_deinit(&t);
}
