/* tests/store/test_store_crash.c - a writer is killed at a random instant, again and again, on one folder: what was
 * flushed is whole or was dropped for room, what was not is whole or absent, the cap holds, and the next one goes on.
 *
 * 200 cycles; 5,000 with RADISH_LONG=1. A second test tears the file as a power cut might: blocks of what was written
 * last are lost.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "store_rig.h"

#define PAGE    3000u
#define N_TEXTS 40u
#define N_PAGES 12u

/* Written by the child, read by the parent after its death. */
struct told {
    atomic_uint n_flushed[N_TEXTS], n_flushes;
};

static void write_for_ever(struct store_rig *g, struct told *told, uint64_t seed)
{
    uint32_t tokens[N_PAGES * RIG_P], put[N_TEXTS] = {0};
    struct random r;

    random_init(&r, seed);
    if (!rig_open(g)) _exit(1);
    for (;;) {
        uint32_t k = (uint32_t)random_below(&r, N_TEXTS), n = 1 + (uint32_t)random_below(&r, N_PAGES);

        rig_text(k, tokens, N_PAGES);
        if (rig_put(g, g->space, "a", tokens, n) != RD_OK) _exit(2);
        if (put[k] < n) put[k] = n;
        clock_fake_advance(g->clock, 100000000);
        if (random_below(&r, 3) == 0) {
            if (page_store_flush(g->s) != RD_OK) _exit(3);
            for (uint32_t i = 0; i < N_TEXTS; i++) atomic_store(&told->n_flushed[i], put[i]);
            atomic_fetch_add(&told->n_flushes, 1);
        }
        if (random_below(&r, 200) == 0) {
            memset(put, 0, sizeof(put));
            for (uint32_t i = 0; i < N_TEXTS; i++) atomic_store(&told->n_flushed[i], 0);
            if (page_store_drop(g->s, NULL) != RD_OK) _exit(4);
        }
    }
}

static void cycles(uint64_t cap, bool evicts, uint32_t n_cycles)
{
    struct store_rig g;
    struct told *told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct random r;
    uint64_t n_came = 0, n_flushes = 0, n_torn = 0;
    uint32_t tokens[N_PAGES * RIG_P];

    CHECK(told != MAP_FAILED);
    random_init(&r, test_seed());
    rig_init(&g, PAGE, cap, 40000);
    for (uint32_t c = 0; c < n_cycles; c++) {
        uint32_t delay_us = (uint32_t)random_below(&r, 12000);
        int status;
        pid_t pid;

        /* what an earlier life has flushed is known to this one only from the disk */
        for (uint32_t i = 0; i < N_TEXTS; i++) atomic_store(&told->n_flushed[i], 0);
        pid = fork();
        if (pid == 0) write_for_ever(&g, told, test_seed() + c);
        CHECK(pid > 0);
        usleep(delay_us);
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        CHECK(rig_dir_bytes(&g) <= cap);
        CHECK(rig_open(&g));
        CHECK_EQ(rig_counts(&g).is_writer, 1);
        for (uint32_t k = 0; k < N_TEXTS; k++) {
            uint32_t got;

            rig_text(k, tokens, N_PAGES);
            got = rig_get(&g, g.space, "a", tokens, N_PAGES); /* fails the test on wrong bytes */
            n_came += got;
            if (!evicts) CHECK(got >= atomic_load(&told->n_flushed[k]));
        }
        n_torn += rig_counts(&g).n_damaged;
        rig_close(&g);
    }
    n_flushes = atomic_load(&told->n_flushes);
    test_note("%u writers killed, %llu flushes, %llu pages read back, %llu torn records and files seen", n_cycles,
              (unsigned long long)n_flushes, (unsigned long long)n_came, (unsigned long long)n_torn);
    CHECK(n_flushes > 0 && n_came > 0);
    munmap(told, sizeof(*told));
    rig_deinit(&g);
}

/* F110 */
TEST(a_killed_writer_loses_nothing_that_was_flushed)
{
    cycles(64 << 20, false, test_is_long() ? 2500 : 100);
}
TEST(a_killed_writer_that_evicts_leaves_whole_pages)
{
    cycles(200000, true, test_is_long() ? 2500 : 100);
}

/* Blocks of the file's unsynced part are zeros or of another time: here of everything written since the last flush. (F111) */
TEST(a_power_cut_leaves_whole_pages)
{
    struct store_rig g;
    struct random r;
    uint32_t tokens[N_PAGES * RIG_P], n_rounds = test_is_long() ? 2000 : 100;
    uint64_t n_lost = 0;

    random_init(&r, test_seed());
    rig_init(&g, PAGE, 64 << 20, 60000);
    for (uint32_t round = 0; round < n_rounds; round++) {
        char path[512];
        uint8_t block[512];
        struct segment_head head;
        int fd;

        CHECK(rig_open(&g));
        rig_text(round * 4, tokens, N_PAGES);
        CHECK_OK(rig_put(&g, g.space, "a", tokens, N_PAGES));
        rig_close(&g);
        strcpy(path, rig_segment_path(&g, 0));
        fd = open(path, O_RDWR);
        CHECK(fd >= 0 && pread(fd, &head, sizeof(head), 0) == sizeof(head));
        for (uint32_t i = 0; i < 3; i++) {
            uint64_t at = SEGMENT_HEAD_BYTES + random_below(&r, head.data_offset + 12 * head.slot_bytes) / 512 * 512;

            memset(block, random_below(&r, 2) ? 0 : 0x5a, sizeof(block));
            CHECK(pwrite(fd, block, sizeof(block), (off_t)at) == sizeof(block));
        }
        if (random_below(&r, 4) == 0) CHECK(ftruncate(fd, (off_t)random_below(&r, head.data_offset * 4)) == 0);
        close(fd);
        CHECK(rig_open(&g));
        n_lost += N_PAGES - rig_get(&g, g.space, "a", tokens, N_PAGES);
        CHECK_OK(page_store_drop(g.s, NULL));
        rig_close(&g);
    }
    test_note("%u torn files, %llu pages lost, none wrong", n_rounds, (unsigned long long)n_lost);
    CHECK(n_lost > 0);
    rig_deinit(&g);
}
