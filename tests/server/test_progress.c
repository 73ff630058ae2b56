/* tests/server/test_progress.c - when an engine counts as one that does not get on. */
#include "server/monitor/progress.h"
#include "test.h"

#define S 1000000000ull

TEST(work_without_steps_is_a_stall_and_steps_end_it)
{
    struct progress p = {.stall_ns = 10 * S, .send_ns = 30 * S};
    struct rd_stats s = {.n_steps = 5, .n_queued = 1};

    for (uint64_t t = 100; t < 110; t++) {
        s.n_turns++; /* it lives, and that is all */
        progress_look(&p, &s, t * S);
        CHECK_EQ(progress_stalled_s(&p), 0);
    }
    s.n_turns++;
    progress_look(&p, &s, 115 * S);
    CHECK_EQ(progress_stalled_s(&p), 15);
    s.n_steps++;
    progress_look(&p, &s, 116 * S);
    CHECK_EQ(progress_stalled_s(&p), 0);
    for (uint64_t t = 117; t < 200; t++) { /* one long step: layers are seen */
        s.n_beats++;
        progress_look(&p, &s, t * S);
        CHECK_EQ(progress_stalled_s(&p), 0);
    }
}

TEST(an_idle_engine_must_turn_and_no_more)
{
    struct progress p = {.stall_ns = 10 * S};
    struct rd_stats s = {.n_turns = 7};

    for (uint64_t t = 1; t < 100; t++) {
        s.n_turns++;
        progress_look(&p, &s, t * S);
        CHECK_EQ(progress_stalled_s(&p), 0);
    }
    progress_look(&p, &s, 110 * S);
    CHECK_EQ(progress_stalled_s(&p), 0);
    progress_look(&p, &s, 111 * S);
    CHECK_EQ(progress_stalled_s(&p), 12);
    progress_forget(&p); /* unloaded, and another is loaded */
    CHECK_EQ(progress_stalled_s(&p), 0);
    progress_look(&p, &s, 300 * S);
    CHECK_EQ(progress_stalled_s(&p), 0);
}

TEST(readers_that_are_slow_have_their_own_time)
{
    struct progress p = {.stall_ns = 10 * S, .send_ns = 30 * S};
    struct rd_stats s = {.n_decode = 2, .n_paused = 2, .n_queued = 3};

    for (uint64_t t = 1; t < 41; t++) {
        s.n_turns++;
        progress_look(&p, &s, t * S);
        CHECK_EQ(progress_stalled_s(&p), 0);
    }
    s.n_turns++;
    progress_look(&p, &s, 41 * S);
    CHECK_EQ(progress_stalled_s(&p), 40);
    s.n_paused = 1; /* one reads again: it must get on */
    s.n_turns++;
    progress_look(&p, &s, 42 * S);
    CHECK_EQ(progress_stalled_s(&p), 41);
}

TEST(no_limit_no_stall)
{
    struct progress p = {0};
    struct rd_stats s = {.n_decode = 1};

    progress_look(&p, &s, 1 * S);
    progress_look(&p, &s, 1000000 * S);
    CHECK_EQ(progress_stalled_s(&p), 0);
}
