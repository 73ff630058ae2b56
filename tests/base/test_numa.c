/* tests/base/test_numa.c - nodes as a folder of sysfs tells them, and threads that keep to one. */
#include "base/numa.h"
#include "base/thread.h"
#include "fake_nodes.h"
#include "test.h"

TEST(nodes_with_cores_of_this_process_are_found)
{
    struct fake_nodes f;
    struct numa_nodes nodes;
    char text[32];
    int cores[2];

    if (!two_cores(cores)) {
        test_skip("one core");
        return;
    }
    CHECK(fake_nodes_make(&f, "0-1,3-4"));
    snprintf(text, sizeof(text), "%d,1022-1023", cores[1]);
    CHECK(fake_nodes_add(&f, 0, text));
    CHECK(fake_nodes_add(&f, 1, "")); /* memory alone */
    snprintf(text, sizeof(text), "%d-%d", cores[0], cores[0]);
    CHECK(fake_nodes_add(&f, 3, text));
    CHECK(fake_nodes_add(&f, 4, "1020-1021")); /* not for us */
    numa_read(f.path, &nodes);
    CHECK_EQ(nodes.n, 2);
    CHECK_EQ(nodes.ids[0], 0);
    CHECK_EQ(nodes.ids[1], 3);
    for (int i = 0; i < NUMA_CORES; i++) {
        CHECK_EQ(nodes.cores[0][i / 64] >> i % 64 & 1, i == cores[1]);
        CHECK_EQ(nodes.cores[1][i / 64] >> i % 64 & 1, i == cores[0]);
    }
    CHECK(fake_nodes_remove(&f));
}

TEST(what_is_no_list_is_no_node)
{
    static const char *const wrong[] = {"", "-", "0-", "0,,1", "zero", "0-1x", "99999999999999999999"};
    struct numa_nodes nodes;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct fake_nodes f;

        CHECK(fake_nodes_make(&f, "0"));
        CHECK(fake_nodes_add(&f, 0, wrong[i]));
        numa_read(f.path, &nodes);
        CHECK_EQ(nodes.n, 0);
        CHECK(fake_nodes_put(&f, "online", wrong[i]));
        numa_read(f.path, &nodes);
        CHECK_EQ(nodes.n, 0);
        CHECK(fake_nodes_remove(&f));
    }
    numa_read("/nowhere", &nodes);
    CHECK_EQ(nodes.n, 0);
}

struct seen {
    cpu_set_t cores;
};

static void look(void *arg)
{
    struct seen *s = arg;

    CHECK_EQ(sched_getaffinity(0, sizeof(s->cores), &s->cores), 0);
}

TEST(a_thread_keeps_to_its_node_and_so_do_those_that_it_starts)
{
    struct numa_nodes nodes = {.n = 2, .ids = {0, 1}};
    struct numa_place before;
    cpu_set_t at_first, now;
    struct thread t = {0};
    struct seen seen;
    int cores[2];

    if (!two_cores(cores)) {
        test_skip("one core");
        return;
    }
    for (int i = 0; i < 2; i++) nodes.cores[i][cores[i] / 64] |= UINT64_C(1) << cores[i] % 64;
    CHECK_EQ(sched_getaffinity(0, sizeof(at_first), &at_first), 0);
    CHECK(numa_keep_to(&nodes, 1, 1, &before));
    CHECK_OK(thread_start(&t, "look", look, &seen));
    thread_join(&t);
    CHECK(CPU_COUNT(&seen.cores) == 1 && CPU_ISSET(cores[1], &seen.cores));
    CHECK_EQ(thread_n_cores(), 1);
    numa_put_back(&before);
    CHECK_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    CHECK(CPU_EQUAL(&at_first, &now));
    CHECK(numa_keep_to(&nodes, 0, 2, &before));
    CHECK_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    CHECK_EQ(CPU_COUNT(&now), 2);
    numa_put_back(&before);
    nodes.cores[0][cores[0] / 64] = 0;
    CHECK(!numa_keep_to(&nodes, 0, 1, &before)); /* no core */
    CHECK_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    CHECK(CPU_EQUAL(&at_first, &now));
}
