/* tests/memory/test_memory_power.c - the power fails while answers, spellings and secret keys are written: what is read
 * afterwards was written once, byte for byte, or is not there; the file can be written again. (F111)
 *
 * As tests/store/test_store_power.c: a disk in memory that keeps a log, cut behind each of its entries.
 * 20,000 cuts each; 1,000,000 with RADISH_LONG=1; 2,000 under sanitizers.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "memory/memory_file.h"
#include "base/data_file.h"
#include "base/key_file.h"
#include "base/log.h"
#include "mem_disk.h"
#include "test.h"

#define NAME      "answers-x"
#define MAX_BYTES 6000u
#define N_KEPT    8u /* of the last records, when the file is written anew */

struct world {
    struct mem_disk *disk, *left, *none;
    struct memory_file *f;
    struct random r;
    atomic_uint n_put; /* records are numbers from 1 on, with bytes that follow from them */
    uint32_t n_loaded;
    bool is_wrong;
};

static uint64_t n_cuts_wanted(void)
{
#ifdef NDEBUG
    return test_is_long() ? 1000000 : 20000;
#else
    return 2000;
#endif
}

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static size_t make(uint32_t k, uint8_t *record)
{
    size_t n = 4 + random_at(77, k) % 900;

    memcpy(record, &k, sizeof(k));
    for (size_t i = 4; i < n; i++) record[i] = (uint8_t)random_at(k, i);
    return n;
}

static void load(void *arg, const void *record, size_t n)
{
    struct world *w = arg;
    uint8_t want[1024];
    uint32_t k = 0;

    if (n >= sizeof(k)) memcpy(&k, record, sizeof(k));
    if (k == 0 || k > atomic_load(&w->n_put) || make(k, want) != n || memcmp(want, record, n)) w->is_wrong = true;
    w->n_loaded++;
}

static void dump(void *arg, struct memory_file *f)
{
    struct world *w = arg;
    uint8_t record[1024];
    uint32_t n = atomic_load(&w->n_put);

    for (uint32_t k = n > N_KEPT ? n - N_KEPT + 1 : 1; k <= n; k++) memory_file_again(f, record, make(k, record));
}

static bool start(struct world *w)
{
    const struct memory_file_owner owner = {w, load, dump};

    w->n_loaded = 0;
    return memory_file_open("/disk", NAME, MAX_BYTES, &owner, &w->f) == RD_OK && !w->is_wrong;
}

/* As a process that does not get the lock does it: nothing is written, no thread starts. */
static bool look(struct world *w)
{
    struct data_file lock;
    bool ok = data_file_lock("/disk", NAME ".lock", &lock) == RD_OK && start(w);

    memory_file_close(w->f);
    w->f = NULL;
    data_file_close(&lock);
    return ok;
}

static bool live(struct world *w)
{
    uint8_t record[1024];

    mem_disk_use(w->disk);
    mem_disk_record(w->disk);
    if (!start(w) || !w->f) return false;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t k = atomic_fetch_add(&w->n_put, 1) + 1;

        memory_file_put(w->f, record, make(k, record));
        if (random_below(&w->r, 40) == 0) memory_file_clear(w->f);
    }
    memory_file_close(w->f);
    mem_disk_close_all(w->disk);
    return true;
}

TEST(what_is_read_again_was_written_once)
{
    struct world w = {.none = mem_disk_create(), .disk = mem_disk_create(), .left = mem_disk_create()};
    uint64_t n_wanted = n_cuts_wanted(), n_cuts = 0, n_records = 0, n_lives = 0, n_written = 0;

    log_set_sink(ignore_line, NULL);
    random_init(&w.r, test_seed());
    while (n_cuts < n_wanted) {
        if (n_lives++ % 8 == 0) mem_disk_copy(w.none, w.disk);
        CHECK(live(&w));
        for (size_t at = 0; at <= mem_disk_log_length(w.disk); at++) {
            for (int kind = 0; kind < MEM_CUT_KINDS; kind++, n_cuts++) {
                mem_disk_cut(w.disk, at, (enum mem_cut)kind, &w.r, w.left);
                mem_disk_use(w.left);
                CHECK(look(&w));
                n_records += w.n_loaded;
                if (random_below(&w.r, 256)) continue;
                CHECK(start(&w) && w.f); /* and it can be written */
                memory_file_close(w.f);
                mem_disk_close_all(w.left);
                CHECK(look(&w));
                n_written++;
            }
        }
        mem_disk_copy(w.left, w.disk);
    }
    test_note("%llu cuts in %llu lives: %llu records came, all as they were written; %llu files went on",
              (unsigned long long)n_cuts, (unsigned long long)n_lives, (unsigned long long)n_records,
              (unsigned long long)n_written);
    CHECK(n_records > 0 && n_written > 0);
    mem_disk_destroy(w.disk);
    mem_disk_destroy(w.left);
    mem_disk_destroy(w.none);
}

/* What a sync has waited for is read again, wherever the power fails from then on; without one some of it is lost. */
TEST(a_sync_outlives_a_power_cut)
{
    struct world w = {.disk = mem_disk_create(), .left = mem_disk_create()};
    uint8_t record[1024];
    uint64_t n_lost = 0;
    size_t at;

    log_set_sink(ignore_line, NULL);
    random_init(&w.r, test_seed());
    for (int syncs = 0; syncs < 2; syncs++) {
        mem_disk_use(w.disk);
        mem_disk_record(w.disk);
        CHECK(start(&w) && w.f);
        atomic_store(&w.n_put, 5);
        for (uint32_t k = 1; k <= 5; k++) memory_file_put(w.f, record, make(k, record));
        if (syncs) CHECK_OK(memory_file_sync(w.f));
        at = mem_disk_log_length(w.disk);
        memory_file_close(w.f);
        if (!syncs) at = mem_disk_log_length(w.disk);
        mem_disk_close_all(w.disk);
        for (uint32_t i = 0; i < 40 * MEM_CUT_KINDS; i++) {
            mem_disk_cut(w.disk, at, (enum mem_cut)(i % MEM_CUT_KINDS), &w.r, w.left);
            mem_disk_use(w.left);
            CHECK(look(&w));
            if (syncs)
                CHECK(w.n_loaded >= 5);
            else
                n_lost += w.n_loaded < 5;
        }
    }
    CHECK(n_lost > 0);
    CHECK_EQ(memory_file_sync(NULL), RD_E_IO);
    mem_disk_use(NULL);
    mem_disk_destroy(w.disk);
    mem_disk_destroy(w.left);
}

/* The key of cache salts, that of the store: an old one, the new one or none. */
TEST(a_key_is_one_that_was_written)
{
    struct mem_disk *disk = mem_disk_create(), *left = mem_disk_create();
    struct random r;
    struct sip_key key = {0, 0};
    uint64_t n_wanted = n_cuts_wanted(), n_cuts = 0, n_none = 0;

    random_init(&r, test_seed());
    while (n_cuts < n_wanted) {
        uint64_t first = n_cuts + 1;

        mem_disk_use(disk);
        mem_disk_record(disk);
        for (uint64_t k = first; k < first + 4; k++)
            CHECK_OK(key_file_write("/disk", "salt.key", (struct sip_key){k, ~k}, NULL));
        for (size_t at = 0; at <= mem_disk_log_length(disk); at++) {
            for (int kind = 0; kind < MEM_CUT_KINDS; kind++, n_cuts++) {
                mem_disk_cut(disk, at, (enum mem_cut)kind, &r, left);
                mem_disk_use(left);
                if (key_file_read("/disk", "salt.key", &key))
                    CHECK(key.k0 > 0 && key.k0 < first + 4 && key.k1 == ~key.k0);
                else
                    n_none++;
            }
        }
        mem_disk_close_all(disk);
        mem_disk_copy(disk, left);
        mem_disk_copy(left, disk);
    }
    test_note("%llu cuts: a key that was written, or none (%llu times)", (unsigned long long)n_cuts,
              (unsigned long long)n_none);
    CHECK(n_none > 0 && n_none < n_cuts);
    mem_disk_destroy(disk);
    mem_disk_destroy(left);
}
