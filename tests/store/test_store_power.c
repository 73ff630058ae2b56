/* tests/store/test_store_power.c - the power fails, at any instant of a store's life: the next start works, finds each
 * page whole or not at all, keeps to its cap, and goes on. (F110, F111, F125)
 *
 * A life is some hundred file calls on a disk in memory that keeps a log (support/mem_disk.h): puts, flushes, texts taken
 * out, all of it dropped, evictions, restarts. After each entry of the log the power is cut in several ways, and the
 * store is opened on what is left. Some of these openings run out of memory or meet a disk that fails, at a random
 * place, and are followed by one that does not. The next life begins with what one of the cuts left, so damage adds up.
 *
 * 100,000 cuts; 10,000,000 with RADISH_LONG=1; 3,000 where sanitizers or debugging make each fifty times dearer.
 * RADISH_CUTS overrides.
 */
#include <errno.h>
#include <unistd.h>
#include "mem_disk.h"
#include "store_rig.h"

/* Says what was not so; the caller says where. */
#define MUST(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            test_note("not so: %s", #cond);                                                                            \
            return false;                                                                                              \
        }                                                                                                              \
    } while (0)

#define N_TEXTS     12u
#define N_PAGES     6u
#define LIFE_LOG    160u
#define CUTS_PER_AT 8u
#define MAX_FLUSHES 512u

struct flushed {
    size_t at;
    uint8_t n[N_TEXTS];
}; /* at: length of the log; pages of each text */

struct power {
    struct store_rig g;
    struct mem_disk *disk, *left, *next, *none; /* recorded; after a cut; the next life's begin; empty */
    struct random r;
    bool evicts;
    struct flushed flushed[MAX_FLUSHES];
    uint32_t n_flushed;
    uint64_t n_cuts, n_kind[MEM_CUT_KINDS], n_pages, n_damaged, n_faults, n_lives, n_went_on;
};

static uint64_t n_cuts_wanted(void)
{
    const char *s = getenv("RADISH_CUTS");

    if (s) return strtoull(s, NULL, 10);
#ifdef NDEBUG
    return test_is_long() ? 10000000 : 100000;
#else
    return 3000;
#endif
}

static void rig_on_disk(struct store_rig *g, uint64_t page_bytes, uint64_t cap, uint64_t segment_bytes)
{
    rig_init(g, page_bytes, cap, segment_bytes);
    rmdir(g->dir);
    strcpy(g->dir, "/disk");
}

static bool put(struct power *p, uint32_t k, uint32_t n)
{
    uint32_t tokens[N_PAGES * RIG_P];

    rig_text(k, tokens, N_PAGES);
    return rig_put(&p->g, p->g.space, "a", tokens, n) == RD_OK;
}

/* Whatever comes is right, or the test fails; how many pages came of each text. */
static void get_all(struct power *p, uint8_t *n)
{
    uint32_t tokens[N_PAGES * RIG_P];

    for (uint32_t k = 0; k < N_TEXTS; k++) {
        rig_text(k, tokens, N_PAGES);
        n[k] = (uint8_t)rig_get(&p->g, p->g.space, "a", tokens, N_PAGES);
        p->n_pages += n[k];
    }
}

static void note_flush(struct power *p)
{
    struct flushed *f = &p->flushed[p->n_flushed];

    if (p->n_flushed == MAX_FLUSHES) return;
    f->at = mem_disk_log_length(p->disk);
    get_all(p, f->n);
    p->n_flushed++;
}

/* Texts taken out, or all of them: nothing is promised of what was flushed until the next flush. */
static void forget_flushes(struct power *p)
{
    struct flushed *f = &p->flushed[p->n_flushed];

    if (p->n_flushed == MAX_FLUSHES) return;
    memset(f->n, 0, sizeof(f->n));
    f->at = mem_disk_log_length(p->disk);
    p->n_flushed++;
}

static bool live(struct power *p)
{
    uint32_t tokens[N_PAGES * RIG_P];

    p->n_flushed = 0;
    p->n_lives++;
    mem_disk_use(p->disk);
    mem_disk_record(p->disk);
    if (!rig_open(&p->g)) return false;
    while (mem_disk_log_length(p->disk) < LIFE_LOG) {
        uint32_t what = (uint32_t)random_below(&p->r, 64), k = (uint32_t)random_below(&p->r, N_TEXTS);
        uint64_t n = 0;

        clock_fake_advance(p->g.clock, 700000000);
        if (what < 30) {
            if (!put(p, k, 1 + (uint32_t)random_below(&p->r, N_PAGES))) return false;
        } else if (what < 54) {
            if (page_store_flush(p->g.s) != RD_OK) return false;
            note_flush(p);
        } else if (what == 54) {
            const struct store_text text = {tokens, N_PAGES * RIG_P, (uint32_t)random_below(&p->r, N_PAGES * RIG_P)};

            forget_flushes(p);
            rig_text(k, tokens, N_PAGES);
            if (page_store_release(p->g.s, &p->g.space, 1, &text, 1, &n) != RD_OK) return false;
        } else if (what < 57) {
            forget_flushes(p);
            rig_text(k, tokens, N_PAGES);
            if (page_store_prune(p->g.s, &p->g.space, 1, tokens, 1 + (uint32_t)random_below(&p->r, N_PAGES * RIG_P),
                                 &n) != RD_OK)
                return false;
        } else if (what < 58) {
            forget_flushes(p);
            if (page_store_drop(p->g.s, NULL) != RD_OK) return false;
        } else if (what < 61) {
            page_store_refresh(p->g.s);
        } else {
            rig_close(&p->g);
            if (!rig_open(&p->g)) return false;
            note_flush(p);
        }
    }
    if (random_below(&p->r, 2))
        rig_close(&p->g); /* ended, or killed */
    else
        mem_disk_use(p->left), rig_close(&p->g); /* its last flush goes nowhere */
    mem_disk_close_all(p->disk);
    return true;
}

/* Somewhere in opening or reading memory runs out, or the disk fails: an error or a store, and nothing wrong. */
static void open_with_faults(struct power *p)
{
    static const int errors[] = {EIO, ENOSPC, EROFS, EACCES, EMFILE};
    uint8_t n[N_TEXTS];

    p->n_faults++;
    switch (random_below(&p->r, 3)) {
    case 0:
        mem_fail_after((int64_t)random_below(&p->r, 24));
        break;
    case 1:
        file_fail_after((int64_t)random_below(&p->r, 90));
        break;
    default:
        file_fail_from((int64_t)random_below(&p->r, 90), errors[random_below(&p->r, 5)]);
    }
    if (rig_open(&p->g)) get_all(p, n);
    rig_close(&p->g);
    mem_fail_after(-1);
    file_fail_after(-1);
    file_fail_from(-1, 0);
    mem_disk_close_all(p->left);
}

/* What a killed process had flushed before entry `at`. */
static bool has_what_was_flushed(const struct power *p, size_t at, const uint8_t *n)
{
    const struct flushed *f = NULL;

    for (uint32_t i = 0; i < p->n_flushed && p->flushed[i].at <= at; i++) f = &p->flushed[i];
    for (uint32_t k = 0; f && k < N_TEXTS; k++)
        if (n[k] < f->n[k]) return false;
    return true;
}

/* A text that is stored now is there after the next start. Behind a page that is missing there may be others that are
 * listed and damaged: each is found out when it is read, so that the text is whole after a few rounds. */
static bool goes_on(struct power *p)
{
    uint32_t k = (uint32_t)random_below(&p->r, N_TEXTS);
    uint8_t n[N_TEXTS] = {0};

    p->n_went_on++;
    for (uint32_t round = 0; round <= N_PAGES && n[k] < N_PAGES; round++) {
        MUST(put(p, k, N_PAGES) && page_store_flush(p->g.s) == RD_OK);
        rig_close(&p->g);
        mem_disk_close_all(p->left);
        MUST(rig_open(&p->g));
        get_all(p, n);
    }
    return n[k] == N_PAGES;
}

static bool start_on_what_is_left(struct power *p, size_t at, enum mem_cut kind)
{
    bool has_faults = random_below(&p->r, 8) == 0, has_all = kind == MEM_CUT_KEPT && !has_faults && !p->evicts;
    uint8_t n[N_TEXTS];

    mem_disk_use(p->left);
    if (has_faults) open_with_faults(p);
    MUST(rig_open(&p->g) && rig_counts(&p->g).is_writer);
    get_all(p, n);
    MUST(!has_all || has_what_was_flushed(p, at, n));
    p->n_damaged += rig_counts(&p->g).n_damaged;
    MUST(mem_disk_bytes(p->left, ".pages") <= p->g.cap_bytes);
    if (random_below(&p->r, 8) == 0) MUST(goes_on(p));
    rig_close(&p->g);
    mem_disk_close_all(p->left);
    return true;
}

static void cuts(uint64_t page_bytes, uint64_t cap, uint64_t segment_bytes, bool evicts, uint64_t n_wanted)
{
    struct power p = {.evicts = evicts};
    size_t chosen;

    random_init(&p.r, test_seed() + page_bytes);
    rig_on_disk(&p.g, page_bytes, cap, segment_bytes);
    p.disk = mem_disk_create();
    p.left = mem_disk_create();
    p.next = mem_disk_create();
    p.none = mem_disk_create();
    while (p.n_cuts < n_wanted) {
        CHECK(live(&p));
        chosen = random_below(&p.r, mem_disk_log_length(p.disk));
        for (size_t at = 0; at <= mem_disk_log_length(p.disk); at++) {
            for (uint32_t i = 0; i < CUTS_PER_AT; i++) {
                enum mem_cut kind = (enum mem_cut)(i < MEM_CUT_KINDS ? i : MEM_CUT_MIXED);

                mem_disk_cut(p.disk, at, kind, &p.r, p.left);
                if (at == chosen && i == CUTS_PER_AT - 1) mem_disk_copy(p.left, p.next);
                p.n_cuts++;
                p.n_kind[kind]++;
                if (!start_on_what_is_left(&p, at, kind)) {
                    test_fail(__FILE__, __LINE__, "cut %llu, life %llu, kind %d behind entry %zu of %zu",
                              (unsigned long long)p.n_cuts, (unsigned long long)p.n_lives, (int)kind, at,
                              mem_disk_log_length(p.disk));
                    return;
                }
            }
        }
        mem_disk_copy(p.n_lives % 16 ? p.next : p.none, p.disk);
    }
    test_note("%llu cuts (kept %llu, lost %llu, torn %llu, mixed %llu, names first %llu) in %llu lives: %llu pages "
              "came, all right; %llu damaged ones seen; %llu starts with faults; %llu went on",
              (unsigned long long)p.n_cuts, (unsigned long long)p.n_kind[MEM_CUT_KEPT],
              (unsigned long long)p.n_kind[MEM_CUT_LOST], (unsigned long long)p.n_kind[MEM_CUT_TORN],
              (unsigned long long)p.n_kind[MEM_CUT_MIXED], (unsigned long long)p.n_kind[MEM_CUT_NAMES_FIRST],
              (unsigned long long)p.n_lives, (unsigned long long)p.n_pages, (unsigned long long)p.n_damaged,
              (unsigned long long)p.n_faults, (unsigned long long)p.n_went_on);
    CHECK(p.n_pages > 0 && p.n_damaged > 0);
    mem_disk_use(NULL);
    mem_disk_destroy(p.disk);
    mem_disk_destroy(p.left);
    mem_disk_destroy(p.next);
    mem_disk_destroy(p.none);
    clock_fake_destroy(p.g.clock);
}

/* What was dropped is dropped, wherever the power fails from then on: the folder's names are synced. */
TEST(a_drop_outlives_a_power_cut)
{
    struct power p = {.evicts = false};
    uint64_t n_names = 0;
    size_t flushed, dropped;

    random_init(&p.r, test_seed());
    rig_on_disk(&p.g, 600, 4 << 20, 12000);
    p.disk = mem_disk_create();
    p.left = mem_disk_create();
    mem_disk_use(p.disk);
    mem_disk_record(p.disk);
    CHECK(rig_open(&p.g));
    for (uint32_t k = 0; k < N_TEXTS; k++) CHECK(put(&p, k, N_PAGES));
    CHECK_OK(page_store_flush(p.g.s));
    flushed = mem_disk_log_length(p.disk);
    CHECK_OK(page_store_drop(p.g.s, NULL));
    dropped = mem_disk_log_length(p.disk);
    for (uint32_t i = 0; i < 100 * MEM_CUT_KINDS; i++) {
        mem_disk_cut(p.disk, flushed, (enum mem_cut)(i % MEM_CUT_KINDS), &p.r, p.left);
        n_names += mem_disk_bytes(p.left, ".pages") > 0;
        mem_disk_cut(p.disk, dropped, (enum mem_cut)(i % MEM_CUT_KINDS), &p.r, p.left);
        CHECK_EQ(mem_disk_bytes(p.left, ".pages"), 0);
    }
    CHECK(n_names > 0); /* there was something to come back */
    rig_close(&p.g);
    mem_disk_use(NULL);
    mem_disk_destroy(p.disk);
    mem_disk_destroy(p.left);
    clock_fake_destroy(p.g.clock);
}

/* What was synced is all there, wherever the power fails from then on; a flush alone does not promise that. */
TEST(a_sync_outlives_a_power_cut)
{
    struct power p = {.evicts = false};
    uint64_t n_lost = 0;
    size_t flushed, synced;
    uint8_t n[N_TEXTS];

    random_init(&p.r, test_seed());
    rig_on_disk(&p.g, 600, 4 << 20, 12000);
    p.disk = mem_disk_create();
    p.left = mem_disk_create();
    mem_disk_use(p.disk);
    mem_disk_record(p.disk);
    CHECK(rig_open(&p.g));
    for (uint32_t k = 0; k < N_TEXTS; k++) CHECK(put(&p, k, N_PAGES));
    CHECK_OK(page_store_flush(p.g.s));
    flushed = mem_disk_log_length(p.disk);
    CHECK_OK(page_store_sync(p.g.s));
    synced = mem_disk_log_length(p.disk);
    rig_close(&p.g);
    for (uint32_t i = 0; i < 40 * MEM_CUT_KINDS; i++) {
        for (int after = 0; after < 2; after++) {
            mem_disk_cut(p.disk, after ? synced : flushed, (enum mem_cut)(i % MEM_CUT_KINDS), &p.r, p.left);
            mem_disk_use(p.left);
            CHECK(rig_open(&p.g));
            get_all(&p, n);
            for (uint32_t k = 0; k < N_TEXTS; k++) {
                if (after)
                    CHECK_EQ(n[k], N_PAGES);
                else
                    n_lost += n[k] < N_PAGES;
            }
            rig_close(&p.g);
            mem_disk_close_all(p.left);
        }
    }
    CHECK(n_lost > 0); /* there was something to lose */
    mem_disk_use(NULL);
    mem_disk_destroy(p.disk);
    mem_disk_destroy(p.left);
    clock_fake_destroy(p.g.clock);
}

TEST(small_pages_with_room)
{
    cuts(600, 4 << 20, 12000, false, n_cuts_wanted() / 2);
}
TEST(pages_over_several_blocks)
{
    cuts(5000, 4 << 20, 40000, false, n_cuts_wanted() / 4);
}
TEST(a_store_that_evicts)
{
    cuts(600, 40000, 9000, true, n_cuts_wanted() / 4);
}
