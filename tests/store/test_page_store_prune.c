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

    rig_init(&g, PAGE, 1 << 20, 1 << 13); /* some pages a segment */
    CHECK(rig_open(&g));
    rig_text(4, one, 8);
    rig_text(5, two, 8); /* the same first half */
    put(&g, one, 8);
    put(&g, two, 8);                              /* still pending: pruning flushes */
    CHECK_EQ(prune(&g, NULL, one, 6 * RIG_P), 4); /* 6, 7 behind it; 5, 4 its own */
    check_has(&g, one, 8, 4);
    check_has(&g, two, 8, 8);
    CHECK_EQ(prune(&g, NULL, one, 6 * RIG_P), 0); /* is not there */
    check_has(&g, one, 8, 4);
    CHECK_EQ(prune(&g, NULL, two, 8 * RIG_P), 8); /* nobody else is left */
    check_has(&g, two, 8, 0);
    CHECK_EQ(rig_counts(&g).n_pages, 0);
    put(&g, two, 8); /* and it can be stored again */
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
    two[5 * RIG_P + 2]++; /* page 5 parts at its third token */
    put(&g, one, 8);
    put(&g, two, 8);
    CHECK_EQ(prune(&g, NULL, one, 5 * RIG_P + 3), 3); /* 5, 6, 7 of the first alone */
    check_has(&g, one, 8, 5);
    check_has(&g, two, 8, 8);
    put(&g, one, 8);
    CHECK_EQ(prune(&g, NULL, one, 5 * RIG_P + 2), 11); /* both go on so, and nothing is left that needs 0 to 4 */
    check_has(&g, two, 8, 0);
    put(&g, one, 8);
    put(&g, two, 8);
    CHECK_EQ(prune(&g, NULL, one, 2), 11); /* before the first page ends */
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
    CHECK_OK(page_store_put(g.s, ends, chain, 3, tokens + 3 * RIG_P, page)); /* behind the third page */
    CHECK_EQ(prune(&g, ends, tokens, 4 * RIG_P), 4); /* 3, 4, 5 and the end behind them; not the other end */
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
    CHECK_EQ(prune(&g, NULL, tokens, RIG_P), 8); /* the reader finds it gone, which is no damage */
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
        if (at < 30)
            file_fail_after(at);
        else
            mem_fail_after(at - 30);
        st = page_store_prune(g.s, spaces, 1, one, 8 * RIG_P, &n_dropped);
        file_fail_after(-1);
        mem_fail_after(-1);
        CHECK(st == RD_OK || (at < 30 ? st == RD_E_IO : st == RD_E_NOMEM));
        CHECK_EQ(rig_get(&g, g.space, "a", two, 8), 8);
        if (st == RD_OK) CHECK_EQ(rig_get(&g, g.space, "a", one, 8), 4);
        rig_deinit(&g);
    }
}

/* ---- texts that are let go of ---- */

static uint64_t release(struct store_rig *g, struct store_space *ends, const struct store_text *texts, uint32_t n)
{
    struct store_space *spaces[2] = {g->space, ends};
    uint64_t n_dropped = 0;

    return page_store_release(g->s, spaces, 2, texts, n, &n_dropped) == RD_OK ? n_dropped : UINT64_MAX;
}

TEST(a_text_that_is_let_go_of_leaves_what_others_stored)
{
    struct store_rig g;
    uint32_t one[8 * RIG_P], two[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 13);
    CHECK(rig_open(&g));
    rig_text(4, one, 8);
    rig_text(5, two, 8); /* the same first half */
    put(&g, one, 8);
    put(&g, two, 8);
    CHECK_EQ(release(&g, NULL, &(struct store_text){one, 6 * RIG_P, 0}, 1), 0); /* its page 6 goes on from there */
    check_has(&g, one, 8, 8);
    CHECK_EQ(release(&g, NULL, &(struct store_text){one, 8 * RIG_P + 1, 6 * RIG_P + 1}, 1), 2); /* 6, 7: its own */
    check_has(&g, one, 8, 6);
    CHECK_EQ(release(&g, NULL, &(struct store_text){one, 8 * RIG_P, 0}, 1), 2); /* 4, 5 */
    check_has(&g, one, 8, 4);
    check_has(&g, two, 8, 8);
    put(&g, one, 8);
    CHECK_EQ(release(&g, NULL, (struct store_text[]){{one, 8 * RIG_P, 0}, {two, 8 * RIG_P, 0}}, 2),
             12); /* both at once */
    check_has(&g, two, 8, 0);
    CHECK_EQ(rig_counts(&g).n_pages, 0);
    CHECK_EQ(release(&g, NULL, &(struct store_text){one, 3, 0}, 1), 0);
    rig_deinit(&g);
}

/* An end as engine/tiers/store_end.c puts it: t tokens behind n pages. */
static void put_end(struct store_rig *g, struct store_space *ends, const uint32_t *tokens, uint32_t n, uint32_t t)
{
    uint32_t page_tokens[2 * RIG_P], i = n ? 1 : 0;
    struct hash128 chain[9], pair[2];
    uint8_t page[PAGE] = {0};

    page_store_chain(g->s, g->space, tokens, 0, n, chain);
    if (n) pair[0] = chain[n - 1];
    for (uint32_t k = 0; k < RIG_P; k++) page_tokens[i * RIG_P + k] = k < t ? tokens[n * RIG_P + k] : UINT32_MAX;
    page_store_chain(g->s, ends, page_tokens, i, i + 1, pair);
    CHECK_OK(page_store_put(g->s, ends, pair, i, page_tokens + (size_t)i * RIG_P, page));
}

TEST(its_own_ends_go_with_it)
{
    struct store_rig g;
    struct store_space *ends;
    uint32_t one[8 * RIG_P], other[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    CHECK_OK(page_store_space(g.s, "a|end", 5, RIG_P, PAGE, &ends));
    rig_text(4, one, 8);
    memcpy(other, one, sizeof(other));
    other[5 * RIG_P]++;
    put(&g, one, 8);
    put_end(&g, ends, one, 0, 3);
    put_end(&g, ends, one, 3, 2); /* of turns before */
    put_end(&g, ends, one, 7, 0);
    put_end(&g, ends, one, 8, 0);
    CHECK_EQ(release(&g, ends, &(struct store_text){one, 8 * RIG_P, 2 * RIG_P}, 1), 9); /* pages 2 .. 7, three ends */
    check_has(&g, one, 8, 2);
    CHECK_OK(page_store_space(g.s, "a|end", 5, RIG_P, PAGE, &ends));
    put(&g, one, 8);
    put_end(&g, ends, one, 3, 2);
    put_end(&g, ends, other, 5, 1); /* another's, behind page 4 */
    put_end(&g, ends, one, 7, 0);
    CHECK_EQ(release(&g, ends, &(struct store_text){one, 8 * RIG_P, 0}, 1), 4); /* pages 5, 6, 7, and the end */
    check_has(&g, one, 8, 5);
    rig_deinit(&g);
}

TEST(letting_go_fails_whole_where_memory_does)
{
    struct store_rig g;
    uint32_t one[8 * RIG_P];
    const struct store_text text = {one, 8 * RIG_P, 0};
    uint64_t n_dropped = 0;
    rd_status st = RD_E_NOMEM;

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(4, one, 8);
    put(&g, one, 8);
    CHECK_OK(page_store_flush(g.s));
    for (int64_t i = 0; st == RD_E_NOMEM; i++) {
        CHECK_EQ(rig_get(&g, g.space, "a", one, 8), 8);
        mem_fail_after(i);
        st = page_store_release(g.s, &g.space, 1, &text, 1, &n_dropped);
        mem_fail_after(-1);
    }
    CHECK_OK(st);
    CHECK_EQ(n_dropped, 8);
    rig_deinit(&g);
}
