/* tests/server/test_pressure.c - a budget that is nearly used up is told once, however often it crosses one bound. */
#include "server/monitor/pressure.h"
#include <string.h>
#include "base/log.h"
#include "test.h"

static int n_lines;

static void count(void *user, enum log_level level, const char *line)
{
    (void)user;
    if (level == LOG_WARN && strstr(line, "memory: ")) n_lines++;
}

static struct rd_stats with(uint64_t n_used)
{
    return (struct rd_stats){.pages_total = 100, .pages_free = 100 - n_used, .pages_ready = n_used};
}

TEST(a_warning_comes_once_until_the_budget_is_well_below)
{
    static const struct {
        uint64_t used;
        bool above;
        int lines;
    } turns[] = {{79, false, 0}, {80, false, 0}, {81, true, 1},  {79, true, 1},  {85, true, 1}, {71, true, 1},
                 {70, false, 1}, {75, false, 1}, {100, true, 2}, {30, false, 2}, {90, true, 3}};
    struct pressure p = {0};

    n_lines = 0;
    log_set_sink(count, NULL);
    for (size_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++) {
        struct rd_stats s = with(turns[i].used);

        pressure_look(&p, &s);
        CHECK_EQ(pressure_is_above(&p, BUDGET_KV), turns[i].above);
        CHECK(!pressure_is_above(&p, BUDGET_KV_IN_USE));
        CHECK_EQ(n_lines, turns[i].lines);
    }
    pressure_look(&p, NULL); /* the model is closed */
    CHECK(!pressure_is_above(&p, BUDGET_KV));
    log_set_sink(NULL, NULL);
}

TEST(each_budget_stands_for_itself)
{
    struct rd_stats s = {.pages_total = 100,
                         .pages_free = 5,
                         .pages_locked = 60,
                         .pages_pending = 25,
                         .disk_bytes = 81,
                         .disk_cap_bytes = 100,
                         .ram_pages = 100, /* no limit: there is no such tier */
                         .memory_used_bytes = 100,
                         .memory_limit_bytes = 1000};
    struct pressure p = {0};

    log_set_sink(count, NULL);
    pressure_look(&p, &s);
    CHECK(pressure_is_above(&p, BUDGET_KV) && pressure_is_above(&p, BUDGET_KV_IN_USE));
    CHECK(pressure_is_above(&p, BUDGET_DISK));
    CHECK(!pressure_is_above(&p, BUDGET_RAM) && !pressure_is_above(&p, BUDGET_MEMORY));
    log_set_sink(NULL, NULL);
}
