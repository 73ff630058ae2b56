/* tests/kv/test_page_pool.c - pages, their holders and states, alone. */
#include "base/mem.h"
#include "base/random.h"
#include "kv/page_pool.h"
#include "kv/page_pool_state.h"
#include "test.h"

TEST(shared_page_outlives_its_first_holder)
{
    struct page_pool *pool = NULL;
    kv_page id, rest[2];

    CHECK_OK(page_pool_create(2, 16, &pool));
    CHECK_OK(page_pool_take(pool, 1, &id));
    page_pool_retain(pool, id);
    page_pool_release(pool, id);
    CHECK_EQ(page_pool_n_free(pool), 1); /* the second holder still has it */
    CHECK_EQ(page_pool_take(pool, 2, rest), RD_E_NO_PAGES);
    CHECK_EQ(page_pool_n_free(pool), 1); /* a failed take takes nothing */
    page_pool_release(pool, id);
    CHECK_EQ(page_pool_n_free(pool), 2);
    page_pool_destroy(pool);
}

TEST(a_page_is_in_exactly_one_state)
{
    struct page_pool *pool = NULL;
    kv_page id;

    CHECK_OK(page_pool_create(3, 4, &pool));
    CHECK_EQ(page_pool_counts(pool).n_free, 3);
    CHECK_OK(page_pool_take(pool, 1, &id));
    CHECK_EQ(page_pool_counts(pool).n_ready, 1);
    page_pool_pin(pool, id);
    CHECK_EQ(page_pool_counts(pool).n_locked, 1);
    page_pool_add_writer(pool, id);
    CHECK_EQ(page_pool_counts(pool).n_pending, 1); /* writing counts before locking */
    CHECK_EQ(page_pool_counts(pool).n_locked, 0);
    page_pool_quarantine(pool, id);
    CHECK_EQ(page_pool_counts(pool).n_quarantined, 1); /* and a bad page before everything */
    CHECK_EQ(page_pool_counts(pool).n_pending, 0);
    page_pool_drop_writer(pool, id);
    page_pool_unpin(pool, id);
    CHECK_EQ(page_pool_counts(pool).n_quarantined, 1);
    page_pool_release(pool, id);
    CHECK_EQ(page_pool_counts(pool).n_free, 3); /* free with its last release */
    CHECK_OK(page_pool_take(pool, 1, &id));
    CHECK_EQ(page_pool_counts(pool).n_quarantined, 0);
    CHECK_OK(page_pool_check(pool, NULL));
    page_pool_release(pool, id);
    page_pool_destroy(pool);
}

TEST(a_page_taken_again_has_no_fill)
{
    struct page_pool *pool = NULL;
    kv_page id;

    CHECK_OK(page_pool_create(1, 4, &pool));
    CHECK_OK(page_pool_take(pool, 1, &id));
    CHECK_EQ(page_pool_fill(pool, id), 0);
    page_pool_set_fill(pool, id, 3);
    CHECK_EQ(page_pool_fill(pool, id), 3);
    page_pool_release(pool, id);
    CHECK_OK(page_pool_take(pool, 1, &id));
    CHECK_EQ(page_pool_fill(pool, id), 0);
    CHECK_EQ(page_pool_holders(pool, id), 1);
    page_pool_release(pool, id);
    page_pool_destroy(pool);
}

TEST(taking_no_pages_is_fine_even_when_none_are_left)
{
    struct page_pool *pool = NULL;
    kv_page ids[2];

    CHECK_OK(page_pool_create(2, 1, &pool));
    CHECK_OK(page_pool_take(pool, 2, ids));
    CHECK(ids[0] != ids[1]);
    CHECK_OK(page_pool_take(pool, 0, NULL));
    CHECK_EQ(page_pool_take(pool, 1, ids), RD_E_NO_PAGES);
    page_pool_release(pool, 0);
    page_pool_release(pool, 1);
    page_pool_destroy(pool);
    page_pool_destroy(NULL);
}

TEST(create_without_memory_leaks_nothing)
{
    struct page_pool *pool = NULL;
    uint64_t n_alive = mem_n_alive();
    rd_status st = RD_E_NOMEM;
    int i = 0;

    for (; st != RD_OK && i < 100; i++) {
        mem_fail_after(i);
        st = page_pool_create(8, 4, &pool);
        mem_fail_after(-1);
        CHECK(st == RD_OK || (st == RD_E_NOMEM && pool == NULL && mem_n_alive() == n_alive));
    }
    CHECK(i > 1);
    page_pool_destroy(pool);
    CHECK_EQ(mem_n_alive(), n_alive);
}

/* The naive model keeps the numbers; the state follows from them. */
TEST(long_random_run_agrees_with_a_naive_model)
{
    enum { N = 37 };
    struct {
        uint32_t holders, writers, pins, fill;
        bool bad;
    } m[N] = {{0, 0, 0, 0, false}};
    struct page_pool *pool = NULL;
    struct random rng;

    random_init(&rng, test_seed());
    CHECK_OK(page_pool_create(N, 8, &pool));
    for (int step = 0; step < 100000; step++) {
        kv_page id = (kv_page)random_below(&rng, N);
        switch (random_below(&rng, 8)) {
        case 0: {
            kv_page got[4];
            uint32_t n = (uint32_t)random_below(&rng, 5), n_free = page_pool_n_free(pool);
            rd_status st = page_pool_take(pool, n, got);
            CHECK_EQ(st, n > n_free ? RD_E_NO_PAGES : RD_OK);
            for (uint32_t i = 0; st == RD_OK && i < n; i++) {
                CHECK_EQ(m[got[i]].holders, 0);
                memset(&m[got[i]], 0, sizeof(m[0]));
                m[got[i]].holders = 1;
            }
            break;
        }
        case 1:
            if (m[id].holders > 0) page_pool_retain(pool, id), m[id].holders++;
            break;
        case 2:
            if (m[id].holders > m[id].writers && m[id].holders > m[id].pins)
                page_pool_release(pool, id), m[id].holders--;
            if (m[id].holders == 0) m[id].bad = false, m[id].fill = 0;
            break;
        case 3:
            if (m[id].writers < m[id].holders) page_pool_add_writer(pool, id), m[id].writers++;
            break;
        case 4:
            if (m[id].writers > 0) page_pool_drop_writer(pool, id), m[id].writers--;
            break;
        case 5:
            if (m[id].pins < m[id].holders) page_pool_pin(pool, id), m[id].pins++;
            break;
        case 6:
            if (m[id].pins > 0) page_pool_unpin(pool, id), m[id].pins--;
            break;
        default:
            if (m[id].holders > 0 && random_below(&rng, 20) == 0) page_pool_quarantine(pool, id), m[id].bad = true;
            if (m[id].holders > 0) page_pool_set_fill(pool, id, m[id].fill = (uint32_t)random_below(&rng, 9));
            break;
        }
        struct page_counts want = {.n_total = N}, have = page_pool_counts(pool);
        for (id = 0; id < N; id++) {
            (*(m[id].holders == 0  ? &want.n_free
               : m[id].bad         ? &want.n_quarantined
               : m[id].writers > 0 ? &want.n_pending
               : m[id].pins > 0    ? &want.n_locked
                                   : &want.n_ready))++;
            CHECK_EQ(page_pool_holders(pool, id), m[id].holders);
            CHECK_EQ(page_pool_fill(pool, id), m[id].fill);
        }
        CHECK(memcmp(&want, &have, sizeof(want)) == 0);
        CHECK_OK(page_pool_check(pool, NULL));
    }
    for (kv_page id = 0; id < N; id++) {
        while (m[id].writers-- > 0) page_pool_drop_writer(pool, id);
        while (m[id].pins-- > 0) page_pool_unpin(pool, id);
        while (m[id].holders-- > 0) page_pool_release(pool, id);
    }
    page_pool_destroy(pool);
}

/* `what` is made of place; the check says `said`; then place is as it was. */
#define BREAK(place, what, said)                                                                                       \
    do {                                                                                                               \
        __typeof__(place) was = (place);                                                                               \
        struct rd_error err = {RD_OK, ""};                                                                             \
                                                                                                                       \
        (place) = (what);                                                                                              \
        CHECK_EQ(page_pool_check(pool, &err), RD_E_INTERNAL);                                                          \
        (place) = was;                                                                                                 \
        CHECK(strstr(err.text, said));                                                                                 \
        CHECK_OK(page_pool_check(pool, NULL));                                                                         \
    } while (0)

TEST(every_invariant_of_the_pool_is_checked)
{
    struct page_pool *pool;
    kv_page ids[3];
    struct page_record *held, *spare;

    CHECK_OK(page_pool_create(4, 8, &pool));
    CHECK_OK(page_pool_take(pool, 3, ids));
    held = &pool->records[ids[0]];
    spare = &pool->records[3];

    BREAK(held->n_writers, 2, "1 holders, 2 writers, 0 pins");
    BREAK(held->n_pins, 2, "1 holders, 0 writers, 2 pins");
    BREAK(held->fill, 9, "fill 9 of 8");
    BREAK(spare->fill, 1, "page 3: free, but has fill 1");
    BREAK(spare->quarantined, true, "page 3: free");
    BREAK(pool->n_free, 0, "recounted");
    BREAK(pool->counts.n_free, 0, "pages free 0 ready 3");
    BREAK(pool->counts.n_ready, 2, "pages free 1 ready 2");
    BREAK(pool->counts.n_locked, 1, "locked 1");
    BREAK(pool->counts.n_pending, 1, "pending 1");
    BREAK(pool->counts.n_quarantined, 1, "quarantined 1");
    BREAK(pool->free_ids[0], ids[0], "free list entry 0: page 0 is held");
    BREAK(pool->free_ids[0], 4, "free list entry 0: page 4 is held");

    for (int i = 0; i < 3; i++) page_pool_release(pool, ids[i]);
    page_pool_destroy(pool);
}
