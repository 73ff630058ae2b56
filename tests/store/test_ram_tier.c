/* tests/store/test_ram_tier.c - slots by digest, the least recently used goes first, what is held stays. */
#include "store/ram_tier.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define P 4u

static struct hash128 digest_of(uint64_t id)
{
    return (struct hash128){id * 0x9e3779b97f4a7c15ull, id};
}

static struct ram_tier *make(uint64_t n_pages, uint64_t page_bytes, bool thread)
{
    struct ram_tier *t = NULL;

    if (ram_tier_create(&(struct ram_tier_options){n_pages * page_bytes, page_bytes, P, thread}, &t) != RD_OK)
        test_fail(__FILE__, __LINE__, "no tier");
    return t;
}

static const uint32_t *tokens_of(uint64_t id)
{
    static uint32_t tokens[P];

    for (uint32_t i = 0; i < P; i++) tokens[i] = (uint32_t)id + i;
    return tokens;
}

static uint32_t put(struct ram_tier *t, uint64_t id)
{
    uint32_t slot = ram_tier_take(t, digest_of(id), tokens_of(id));

    if (slot == RAM_NO_SLOT) return slot;
    *(uint64_t *)ram_tier_bytes(t, slot) = id;
    ram_tier_release(t, slot);
    return slot;
}

static bool has(const struct ram_tier *t, uint64_t id)
{
    uint32_t slot = ram_tier_find(t, digest_of(id), tokens_of(id));

    return slot != RAM_NO_SLOT && *(uint64_t *)ram_tier_bytes(t, slot) == id;
}

TEST(the_least_recently_used_page_goes_first)
{
    struct ram_tier *t = make(8, 4096, false);
    uint32_t n = (uint32_t)ram_tier_get_counts(t).n_slots;

    CHECK_EQ(n, 8);
    for (uint32_t i = 1; i <= n; i++) CHECK(put(t, i) != RAM_NO_SLOT);
    ram_tier_touch(t, ram_tier_find(t, digest_of(1), tokens_of(1)));
    CHECK(put(t, 100) != RAM_NO_SLOT);
    CHECK(has(t, 1) && !has(t, 2) && has(t, 3) && has(t, 100));
    ram_tier_retire(t, ram_tier_find(t, digest_of(100), tokens_of(100)));
    CHECK(put(t, 101) != RAM_NO_SLOT);
    CHECK(!has(t, 100) && has(t, 3));
    CHECK_EQ(ram_tier_get_counts(t).n_dropped, 2);
    ram_tier_destroy(t);
}

TEST(what_is_held_is_not_given_to_others)
{
    struct ram_tier *t = make(2, 4096, false);
    uint32_t a = ram_tier_take(t, digest_of(1), tokens_of(1)), b = ram_tier_take(t, digest_of(2), tokens_of(2));

    CHECK(a != RAM_NO_SLOT && b != RAM_NO_SLOT);
    CHECK_EQ(put(t, 3), RAM_NO_SLOT);
    ram_tier_clear(t);
    CHECK_EQ(ram_tier_get_counts(t).n_pages, 2);
    ram_tier_release(t, b);
    CHECK_EQ(put(t, 3), b);
    CHECK(!has(t, 2));
    ram_tier_release(t, a);
    ram_tier_clear(t);
    CHECK_EQ(ram_tier_get_counts(t).n_pages, 0);
    ram_tier_destroy(t);
}

TEST(a_digest_with_other_tokens_is_not_found)
{
    struct ram_tier *t = make(2, 4096, false);

    CHECK(put(t, 1) != RAM_NO_SLOT);
    CHECK_EQ(ram_tier_find(t, digest_of(1), tokens_of(2)), RAM_NO_SLOT);
    CHECK_EQ(ram_tier_take(t, digest_of(1), tokens_of(2)), RAM_NO_SLOT);
    CHECK(has(t, 1));
    ram_tier_destroy(t);
}

static void note_pin(void *arg, void *p, uint64_t n_bytes, bool on)
{
    int64_t *n = arg;

    (void)p;
    *n += on ? (int64_t)n_bytes : -(int64_t)n_bytes;
}

TEST(memory_is_prepared_by_a_thread_and_pinned)
{
    struct ram_tier *t = make(48, 1 << 20, true); /* three chunks */
    static int64_t n_pinned;
    uint64_t id = 1;

    ram_tier_pin(t, note_pin, &n_pinned);
    for (int tries = 0; tries < 60000 && ram_tier_get_counts(t).n_dropped < 10; tries++)
        if (put(t, ++id) == RAM_NO_SLOT) clock_sleep_ns(1000000); /* it is not there yet */
    CHECK(ram_tier_get_counts(t).n_dropped >= 10);                /* all of it is, and was used first */
    CHECK_EQ(ram_tier_get_counts(t).n_pages, ram_tier_get_counts(t).n_slots);
    CHECK(n_pinned > 0);
    ram_tier_unpin(t);
    CHECK_EQ(n_pinned, 0);
    ram_tier_destroy(t);
}

TEST(random_puts_and_drops_agree_with_a_list)
{
    struct ram_tier *t = make(16, 4096, false);
    uint64_t list[16], n = 0; /* the oldest first */
    struct random r;

    random_init(&r, test_seed());
    for (int step = 0; step < 20000; step++) {
        uint64_t id = 1 + random_below(&r, 40), i = 0;

        while (i < n && list[i] != id) i++;
        CHECK_EQ(has(t, id), i < n);
        if (i < n) {
            uint32_t slot = ram_tier_find(t, digest_of(id), tokens_of(id));
            bool drop = random_below(&r, 4) == 0;

            for (n--; i < n; i++) list[i] = list[i + 1];
            if (drop)
                ram_tier_drop(t, slot);
            else
                ram_tier_touch(t, slot);
            if (drop) continue;
        } else {
            if (n == 16) {
                for (n--, i = 0; i < n; i++) list[i] = list[i + 1];
            }
            CHECK(put(t, id) != RAM_NO_SLOT);
        }
        list[n++] = id;
        CHECK_EQ(ram_tier_get_counts(t).n_pages, n);
    }
    ram_tier_destroy(t);
}

TEST(without_memory_there_is_no_tier)
{
    size_t before = mem_n_alive();
    struct ram_tier *t = NULL;
    rd_status st;

    for (int64_t i = 0;; i++) {
        mem_fail_after(i);
        st = ram_tier_create(&(struct ram_tier_options){1 << 20, 4096, P, false}, &t);
        mem_fail_after(-1);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), before);
    }
    mem_fail_after(0);
    CHECK_EQ(put(t, 1), RAM_NO_SLOT); /* none for the index */
    mem_fail_after(-1);
    CHECK(put(t, 1) != RAM_NO_SLOT);
    ram_tier_destroy(t);
    CHECK_EQ(mem_n_alive(), before);
}
