/* tests/store/test_store_faults.c - every file call fails once, or from some point on, or at random; memory runs out at
 * every allocation. Whatever comes back is right, nothing leaks, the cap holds, and a store that is healthy again works. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include "mem_disk.h"
#include "store_rig.h"

#define PAGE 600u

/* The whole life of a store; true when nothing in it failed. */
static bool live_once(struct store_rig *g)
{
    uint32_t a[8 * RIG_P], b[8 * RIG_P];
    bool ok;

    rig_text(1, a, 8);
    rig_text(2, b, 8);
    if (!rig_open(g)) return false;
    ok = rig_put(g, g->space, "a", a, 8) == RD_OK && page_store_flush(g->s) == RD_OK;
    ok = rig_get(g, g->space, "a", a, 8) == 8 && ok;
    ok = rig_put(g, g->space, "a", b, 8) == RD_OK && ok;
    page_store_refresh(g->s);
    rig_close(g);
    if (!rig_open(g)) return false;
    ok = rig_get(g, g->space, "a", a, 8) == 8 && rig_get(g, g->space, "a", b, 8) == 8 && ok;
    rig_close(g);
    return ok;
}

/* F112 */
TEST(every_file_call_may_fail_once)
{
    struct store_rig g;
    uint64_t n_calls;

    rig_init(&g, PAGE, 1 << 20, 9000);
    n_calls = file_n_calls();
    CHECK(live_once(&g));
    n_calls = file_n_calls() - n_calls;
    rig_deinit(&g);
    for (uint64_t i = 0; i < n_calls; i++) {
        rig_init(&g, PAGE, 1 << 20, 9000);
        file_fail_after((int64_t)i);
        (void)live_once(&g);
        file_fail_after(-1);
        CHECK(rig_dir_bytes(&g) <= 1 << 20);
        clock_fake_advance(g.clock, 1000000000000ull);
        CHECK(live_once(&g)); /* and is as good as new afterwards */
        rig_deinit(&g);
    }
    test_note("%llu calls failed, one in each life", (unsigned long long)n_calls);
    CHECK(n_calls > 50);
}

TEST(memory_may_run_out_anywhere)
{
    bool done = false;

    for (int64_t i = 0; !done; i++) {
        struct store_rig g;
        uint64_t alive;

        rig_init(&g, PAGE, 1 << 20, 9000);
        alive = mem_n_alive();
        mem_fail_after(i);
        done = live_once(&g);
        mem_fail_after(-1);
        CHECK_EQ(mem_n_alive(), alive);
        CHECK(live_once(&g));
        CHECK_EQ(mem_n_alive(), alive);
        rig_deinit(&g);
        CHECK(i < 10000);
    }
}

/* F112 */
TEST(a_full_disk_costs_a_line_and_a_counter)
{
    static const int errors[] = {ENOSPC, EDQUOT, EIO, EROFS};
    struct store_rig g;
    uint32_t a[8 * RIG_P], b[8 * RIG_P];

    for (size_t k = 0; k < sizeof(errors) / sizeof(errors[0]); k++) {
        rig_init(&g, PAGE, 1 << 20, 9000);
        rig_text(1, a, 8);
        rig_text(100, b, 8);
        CHECK(rig_open(&g));
        CHECK_OK(rig_put(&g, g.space, "a", a, 8));
        CHECK_OK(page_store_flush(g.s));
        file_fail_from(0, errors[k]);
        CHECK(rig_put(&g, g.space, "a", b, 8) != RD_OK);
        file_fail_from(-1, 0);
        CHECK_EQ(rig_counts(&g).n_write_errors, 1); /* one attempt, then it backs off */
        CHECK_EQ(rig_counts(&g).is_failing, 1);
        CHECK_EQ(rig_counts(&g).n_dropped, 8);
        CHECK_EQ(rig_put(&g, g.space, "a", b, 8), RD_E_AGAIN);
        CHECK_EQ(rig_get(&g, g.space, "a", a, 8), 8); /* reading goes on */
        clock_fake_advance(g.clock, 11000000000ull);
        CHECK_OK(rig_put(&g, g.space, "a", b, 8));
        CHECK_OK(page_store_flush(g.s));
        CHECK_EQ(rig_counts(&g).is_failing, 0);
        CHECK_EQ(rig_get(&g, g.space, "a", b, 8), 8);
        CHECK_EQ(rig_counts(&g).n_bytes, rig_dir_bytes(&g));
        rig_deinit(&g);
    }
}

static uint32_t n_said;

static void count_removals(void *arg, enum log_level level, const char *line)
{
    (void)arg;
    n_said += level == LOG_WARN && strstr(line, "cannot be removed") != NULL;
}

/* Files whose folder may not be written to any more, or that were made immutable: counted, said once, and tried again. */
TEST(a_file_that_cannot_be_removed_is_counted_and_said_once)
{
    struct mem_disk *disk = mem_disk_create();
    struct store_rig g;
    uint32_t a[8 * RIG_P], b[8 * RIG_P];
    uint64_t n_files;

    rig_init(&g, PAGE, 1 << 20, 9000);
    rmdir(g.dir);
    strcpy(g.dir, "/disk");
    mem_disk_use(disk);
    log_set_sink(count_removals, NULL);
    n_said = 0;
    rig_text(1, a, 8);
    rig_text(100, b, 8);
    CHECK(rig_open(&g));
    CHECK_OK(rig_put(&g, g.space, "a", a, 8));
    CHECK_OK(page_store_flush(g.s));
    n_files = rig_counts(&g).n_segments;
    CHECK(n_files > 1);
    mem_disk_refuse_removals(disk, true);
    CHECK_EQ(page_store_drop(g.s, NULL), RD_E_IO);
    CHECK_EQ(rig_counts(&g).n_remove_errors, n_files);
    CHECK_EQ(page_store_drop(g.s, NULL), RD_E_IO);
    CHECK_EQ(rig_counts(&g).n_remove_errors, 2 * n_files);
    CHECK_EQ(n_said, 1);
    CHECK_EQ(rig_counts(&g).n_segments, n_files); /* and they still count towards the cap */
    mem_disk_refuse_removals(disk, false);
    CHECK_OK(page_store_drop(g.s, NULL));
    CHECK_EQ(rig_counts(&g).n_segments, 0);
    CHECK_OK(rig_put(&g, g.space, "a", b, 8));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, g.space, "a", b, 8), 8);
    rig_close(&g);
    clock_fake_destroy(g.clock);
    mem_disk_use(NULL);
    mem_disk_destroy(disk);
}

/* What was dropped is found no more, and that a power cut might bring it back is told. */
TEST(a_folder_that_cannot_be_synced_after_a_drop_is_told)
{
    for (int64_t call = 1; call <= 2; call++) { /* behind the removal: the folder is opened, and synced */
        struct store_rig g;
        uint32_t a[RIG_P];

        rig_init(&g, PAGE, 1 << 20, 9000);
        rig_text(1, a, 1);
        CHECK(rig_open(&g));
        CHECK_OK(rig_put(&g, g.space, "a", a, 1));
        CHECK_OK(page_store_flush(g.s));
        file_fail_after(call);
        CHECK_EQ(page_store_drop(g.s, NULL), RD_E_IO);
        file_fail_after(-1);
        CHECK_EQ(rig_counts(&g).n_remove_errors, 1);
        CHECK_EQ(rig_counts(&g).n_segments, 0);
        CHECK_OK(page_store_drop(g.s, NULL));
        rig_close(&g);
        rig_deinit(&g);
    }
}

/* A clock that is set back or on by hours changes the order in which segments go, and nothing else. (F79) */
TEST(a_wall_clock_that_jumps_costs_no_page_that_has_room)
{
    static const int64_t jumps[] = {-3600, 3600, -86400 * 365, 86400 * 365, -1, 0};
    struct store_rig g;
    uint32_t tokens[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 9000);
    CHECK(rig_open(&g));
    for (uint32_t round = 0; round < 24; round++) {
        rig_text(round * 4, tokens, 8);
        CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
        CHECK_OK(page_store_flush(g.s));
        clock_fake_jump(g.clock, jumps[round % 6]);
        for (uint32_t k = 0; k <= round; k++) {
            rig_text(k * 4, tokens, 8);
            CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 8);
        }
        if (round % 8 == 7) {
            rig_close(&g);
            CHECK(rig_open(&g));
        }
    }
    rig_close(&g);
    g.cap_bytes = 60000; /* and with too little room it still keeps to its cap */
    CHECK(rig_open(&g));
    for (uint32_t round = 0; round < 24; round++) {
        rig_text(1000 + round * 4, tokens, 8);
        CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
        CHECK_OK(page_store_flush(g.s));
        clock_fake_jump(g.clock, jumps[round % 6]);
        CHECK(rig_dir_bytes(&g) <= g.cap_bytes);
    }
    CHECK(rig_counts(&g).n_evicted > 0);
    CHECK_EQ(rig_counts(&g).is_failing, 0);
    rig_deinit(&g);
}

/* Written and used while the clock was years ahead, as it is where a machine starts without the time: those that nobody
 * uses any more do not stay for years in place of what is written now, and those that are used do. (F79) */
TEST(what_a_clock_that_was_ahead_stamped_goes_when_it_is_not_used)
{
    struct store_rig g;
    uint32_t used[8 * RIG_P], tokens[8 * RIG_P];

    rig_init(&g, PAGE, 60000, 9000);
    clock_fake_jump(g.clock, 86400 * 365 * 10);
    CHECK(rig_open(&g));
    rig_text(4, used, 8);
    CHECK_OK(rig_put(&g, g.space, "a", used, 8));
    for (uint32_t k = 2; k < 40; k++) {
        clock_fake_advance(g.clock, 2000000000u);
        rig_text(k * 4, tokens, 8);
        CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
        CHECK_OK(page_store_flush(g.s));
        CHECK_EQ(rig_get(&g, g.space, "a", used, 8), 8);
    }
    rig_close(&g);
    clock_fake_jump(g.clock, -86400 * 365 * 10);
    CHECK(rig_open(&g));
    for (uint32_t k = 100; k < 140; k++) {
        clock_fake_advance(g.clock, 2000000000u);
        CHECK_EQ(rig_get(&g, g.space, "a", used, 8), 8);
        rig_text(k * 4, tokens, 8);
        CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
        CHECK_OK(page_store_flush(g.s));
    }
    for (uint32_t k = 138; k < 140; k++) { /* what was written last */
        rig_text(k * 4, tokens, 8);
        CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 8);
    }
    rig_deinit(&g);
}

/* F113 */
TEST(what_a_failed_sync_may_have_lost_is_dropped)
{
    struct store_rig g;
    uint32_t a[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 17);
    rig_text(1, a, 8);
    CHECK(rig_open(&g));
    CHECK_OK(rig_put(&g, g.space, "a", a, 4));
    CHECK_OK(page_store_flush(g.s));
    CHECK_OK(rig_put(&g, g.space, "a", a, 8));
    file_fail_after(0);
    CHECK_EQ(page_store_flush(g.s), RD_E_IO);
    file_fail_after(-1);
    CHECK_EQ(rig_get(&g, g.space, "a", a, 8), 0); /* never taken for clean: the whole segment is gone */
    CHECK_EQ(rig_dir_bytes(&g), 0);
    clock_fake_advance(g.clock, 11000000000ull);
    CHECK_OK(rig_put(&g, g.space, "a", a, 8));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, g.space, "a", a, 8), 8);
    rig_deinit(&g);
}

/* A folder that is read-only for this process: the lock cannot be made. (F112) */
TEST(without_a_lock_the_store_only_reads)
{
    struct store_rig g;
    uint32_t a[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 9000);
    rig_text(1, a, 8);
    CHECK(rig_open(&g));
    CHECK_OK(rig_put(&g, g.space, "a", a, 8));
    rig_close(&g);
    for (int64_t i = 0; i < 12; i++) {
        file_fail_after(i);
        if (rig_open(&g)) {
            if (!rig_counts(&g).is_writer) {
                file_fail_after(-1);
                CHECK_EQ(rig_get(&g, g.space, "a", a, 8), 8);
                CHECK_EQ(rig_put(&g, g.space, "a", a, 8), RD_E_AGAIN);
                rig_deinit(&g);
                return;
            }
            rig_close(&g);
        }
    }
    CHECK(!"the lock was always taken");
}

/* F112 */
TEST(random_faults_never_bring_wrong_bytes)
{
    struct store_rig g;
    struct random r;
    uint32_t tokens[10 * RIG_P], n_turns = test_is_long() ? 100000 : 5000, n_came = 0;

    random_init(&r, test_seed());
    rig_init(&g, PAGE, 60000, 9000);
    file_fail_one_in(40, test_seed());
    for (uint32_t i = 0; i < n_turns; i++) {
        uint32_t n = 1 + (uint32_t)random_below(&r, 10);

        clock_fake_advance(g.clock, random_below(&r, 6000000000ull));
        if (!g.s && !rig_open(&g)) continue;
        rig_text(random_below(&r, 30), tokens, 10);
        if (random_below(&r, 2))
            (void)rig_put(&g, g.space, "a", tokens, n);
        else
            n_came += rig_get(&g, g.space, "a", tokens, n);
        if (random_below(&r, 4) == 0) (void)page_store_flush(g.s);
        if (random_below(&r, 60) == 0) rig_close(&g);
        if (i % 50 == 0) CHECK(rig_dir_bytes(&g) <= 60000);
    }
    file_fail_one_in(0, 0);
    test_note("%u pages came back between the faults", n_came);
    CHECK(n_came > 100);
    rig_close(&g);
    CHECK(rig_open(&g));
    clock_fake_advance(g.clock, 1000000000000ull);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 10));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 10), 10);
    rig_deinit(&g);
}

/* A folder as a crash leaves it: written pages whose records never were, a record cut in two, a temporary file. */
static void leave_wreck(struct store_rig *g, const uint32_t *a, const uint32_t *b)
{
    char path[512];
    struct segment_head head;
    int fd;

    CHECK(rig_open(g));
    CHECK_OK(rig_put(g, g->space, "a", a, 8));
    CHECK_OK(page_store_flush(g->s));
    CHECK_OK(rig_put(g, g->space, "a", b, 8));
    rig_close(g);
    strcpy(path, rig_segment_path(g, 0));
    fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &head, sizeof(head), 0) == sizeof(head));
    CHECK(pwrite(fd, "torn", 4, (off_t)segment_record_offset(&head, 3) + 40) == 4);
    close(fd);
    snprintf(path, sizeof(path), "%s/.tmp-99999-1", g->dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "left", 4) == 4);
    close(fd);
}

/* F125 */
TEST(memory_and_files_may_fail_anywhere_while_it_starts_after_a_crash)
{
    uint32_t a[8 * RIG_P], b[8 * RIG_P];
    bool opened[2] = {false, false};

    rig_text(1, a, 8);
    rig_text(9, b, 8);
    for (int what = 0; what < 2; what++)
        for (int64_t i = 0; i < 400; i++) {
            struct store_rig g;
            uint32_t n_whole;
            uint64_t n_files;

            rig_init(&g, PAGE, 1 << 20, 9000);
            leave_wreck(&g, a, b);
            n_files = file_n_calls();
            if (what == 0)
                mem_fail_after(i);
            else
                file_fail_after(i);
            if (rig_open(&g)) {
                (void)rig_get(&g, g.space, "a", a, 8); /* fails the test on wrong bytes */
                opened[what] = true;
                rig_close(&g);
            }
            mem_fail_after(-1);
            file_fail_after(-1);
            CHECK(rig_open(&g));
            n_whole = rig_get(&g, g.space, "a", a, 8);
            CHECK(what == 1 || n_whole == 3); /* up to the torn one; a file that cannot be read may go */
            CHECK_OK(rig_put(&g, g.space, "a", a, 8));
            CHECK_OK(page_store_flush(g.s));
            CHECK_EQ(rig_get(&g, g.space, "a", a, 8), 8);
            rig_deinit(&g);
            if (file_n_calls() - n_files < (uint64_t)i) break;
        }
    CHECK(opened[0] && opened[1]);
}
