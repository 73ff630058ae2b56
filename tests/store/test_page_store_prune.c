/* tests/store/test_page_store_prune.c - a text is taken out with what goes on behind it, and nothing else. */
#include <sys/stat.h>
#include "store_rig.h"

#define PAGE 1000u

/* The entries dropped; UINT64_MAX: it failed. */
static uint64_t prune(struct store_rig *g, struct store_space *other, const uint32_t *tokens, uint32_t n)
{
    struct store_space *spaces[2] = {g->space, other};
    uint64_t n_dropped = 0;

    return page_store_prune(g->s, spaces, 2, tokens, n, &n_dropped) == RD_OK ? n_dropped : UINT64_MAX;
}

static void put(struct store_rig *g, const uint32_t *tokens, uint32_t n)
{
    CHECK_OK(rig_put(g, g->space, "a", tokens, n));
}

/* Pages of a text that are found, before and after the store was opened again. */
static void check_has(struct store_rig *g, const uint32_t *tokens, uint32_t n, uint32_t n_wanted)
{
    CHECK_EQ(rig_get(g, g->space, "a", tokens, n), n_wanted);
    rig_close(g);
    CHECK(rig_open(g));
    CHECK_EQ(rig_get(g, g->space, "a", tokens, n), n_wanted);
    CHECK_EQ(rig_counts(g).n_damaged + rig_counts(g).n_read_errors, 0);
}

TEST(what_others_go_on_from_stays)
{
    struct store_rig g;
    uint32_t one[8 * RIG_P], two[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 13);                   /* some pages a segment */
    CHECK(rig_open(&g));
    rig_text(4, one, 8);
    rig_text(5, two, 8);                                    /* the same first half */
    put(&g, one, 8);
    put(&g, two, 8);                                        /* still pending: pruning flushes */
    CHECK_EQ(prune(&g, NULL, one, 6 * RIG_P), 4);           /* 6, 7 behind it; 5, 4 its own */
    check_has(&g, one, 8, 4);
    check_has(&g, two, 8, 8);
    CHECK_EQ(prune(&g, NULL, one, 6 * RIG_P), 0);           /* is not there */
    check_has(&g, one, 8, 4);
    CHECK_EQ(prune(&g, NULL, two, 8 * RIG_P), 8);           /* nobody else is left */
    check_has(&g, two, 8, 0);
    CHECK_EQ(rig_counts(&g).n_pages, 0);
    put(&g, two, 8);                                        /* and it can be stored again */
    CHECK_OK(page_store_flush(g.s));
    check_has(&g, two, 8, 8);
    rig_deinit(&g);
}

TEST(a_text_may_end_within_a_page)
{
    struct store_rig g;
    uint32_t one[8 * RIG_P], two[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(4, one, 8);
    memcpy(two, one, sizeof(two));
    two[5 * RIG_P + 2]++;                                   /* page 5 parts at its third token */
    put(&g, one, 8);
    put(&g, two, 8);
    CHECK_EQ(prune(&g, NULL, one, 5 * RIG_P + 3), 3);       /* 5, 6, 7 of the first alone */
    check_has(&g, one, 8, 5);
    check_has(&g, two, 8, 8);
    put(&g, one, 8);
    CHECK_EQ(prune(&g, NULL, one, 5 * RIG_P + 2), 11);      /* both go on so, and nothing is left that needs 0 to 4 */
    check_has(&g, two, 8, 0);
    put(&g, one, 8);
    put(&g, two, 8);
    CHECK_EQ(prune(&g, NULL, one, 2), 11);                  /* before the first page ends */
    CHECK_EQ(rig_counts(&g).n_pages, 0);
    rig_deinit(&g);
}

/* As ends and packed pages are chained to the pages of a text. */
TEST(what_is_chained_in_other_namespaces_goes_too)
{
    struct store_rig g;
    struct store_space *ends;
    uint32_t tokens[8 * RIG_P];
    struct hash128 chain[9];
    uint8_t page[PAGE] = {0};

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    CHECK_OK(page_store_space(g.s, "a|end", 5, RIG_P, PAGE, &ends));
    rig_text(4, tokens, 8);
    put(&g, tokens, 6);
    page_store_chain(g.s, g.space, tokens, 0, 6, chain);
    chain[6] = (struct hash128){1, 2};
    CHECK_OK(page_store_put(g.s, ends, chain, 6, tokens + 6 * RIG_P, page));
    chain[3] = (struct hash128){1, 3};
    CHECK_OK(page_store_put(g.s, ends, chain, 3, tokens + 3 * RIG_P, page));   /* behind the third page */
    CHECK_EQ(prune(&g, ends, tokens, 4 * RIG_P), 4);        /* 3, 4, 5 and the end behind them; not the other end */
    CHECK(page_store_has(g.s, (struct hash128){1, 3}) && !page_store_has(g.s, (struct hash128){1, 2}));
    check_has(&g, tokens, 6, 3);
    rig_deinit(&g);
}

TEST(the_room_is_given_back)
{
    struct store_rig g;
    uint32_t tokens[8 * RIG_P];
    struct stat before, after;

    rig_init(&g, 1 << 16, 1 << 24, 1 << 22);
    CHECK(rig_open(&g));
    rig_text(4, tokens, 8);
    put(&g, tokens, 8);
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(stat(rig_segment_path(&g, 0), &before), 0);
    CHECK_EQ(prune(&g, NULL, tokens, RIG_P), 8);
    CHECK_EQ(stat(rig_segment_path(&g, 0), &after), 0);
    CHECK_EQ(before.st_size, after.st_size);
    CHECK(after.st_blocks < before.st_blocks || before.st_blocks == 0);
    rig_deinit(&g);
}

TEST(who_does_not_write_takes_nothing_out)
{
    struct store_rig g;
    struct store_options o;
    struct page_store *reader;
    struct store_space *space;
    uint32_t tokens[8 * RIG_P];
    struct hash128 chain[8];
    uint8_t pages[8][PAGE];
    void *to[8];
    uint64_t n_dropped;
    struct store_counts c;

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(4, tokens, 8);
    put(&g, tokens, 8);
    CHECK_OK(page_store_flush(g.s));
    o = (struct store_options){.dir = g.dir, .cap_bytes = 1 << 20, .clock = g.clock};
    CHECK_OK(page_store_open(&o, &reader, NULL));
    CHECK_OK(page_store_space(reader, "a", 1, RIG_P, PAGE, &space));
    CHECK_EQ(page_store_prune(reader, &space, 1, tokens, RIG_P, &n_dropped), RD_E_AGAIN);
    page_store_chain(reader, space, tokens, 0, 8, chain);
    CHECK_EQ(page_store_find(reader, chain, 8), 8);
    CHECK_EQ(prune(&g, NULL, tokens, RIG_P), 8);            /* the reader finds it gone, which is no damage */
    for (uint32_t i = 0; i < 8; i++) to[i] = pages[i];
    CHECK_EQ(page_store_read(reader, space, chain, tokens, 0, 8, to, NULL), 0);
    page_store_get_counts(reader, &c);
    CHECK_EQ(c.n_damaged + c.n_read_errors, 0);
    page_store_close(reader);
    rig_deinit(&g);
}

TEST(a_failed_write_or_allocation_leaves_the_rest_whole)
{
    for (uint32_t at = 0; at < 60; at++) {
        struct store_rig g;
        uint32_t one[8 * RIG_P], two[8 * RIG_P];
        struct store_space *spaces[1];
        uint64_t n_dropped;
        rd_status st;

        rig_init(&g, PAGE, 1 << 20, 1 << 13);
        CHECK(rig_open(&g));
        rig_text(4, one, 8);
        rig_text(5, two, 8);
        put(&g, one, 8);
        put(&g, two, 8);
        CHECK_OK(page_store_flush(g.s));
        spaces[0] = g.space;
        if (at < 30) file_fail_after(at);
        else mem_fail_after(at - 30);
        st = page_store_prune(g.s, spaces, 1, one, 8 * RIG_P, &n_dropped);
        file_fail_after(-1);
        mem_fail_after(-1);
        CHECK(st == RD_OK || (at < 30 ? st == RD_E_IO : st == RD_E_NOMEM));
        CHECK_EQ(rig_get(&g, g.space, "a", two, 8), 8);
        if (st == RD_OK) CHECK_EQ(rig_get(&g, g.space, "a", one, 8), 4);
        rig_deinit(&g);
    }
}
