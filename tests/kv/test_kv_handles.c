/* tests/kv/test_kv_handles.c - handles against lists of tokens that nobody shares, with memory that is looked at. */
#include "base/mem.h"
#include "base/random.h"
#include "kv/kv_handles.h"
#include "test.h"

enum { P = 4, PAGES = 40, MOST = 24, LONGEST = 60, STEPS = 40000 };

/* What pages hold, and what each handle should find there. */
struct world {
    struct page_pool *pool;
    struct kv_handles *handles;
    int rows[PAGES][P];
    uint64_t n_copied;
    struct line {
        kv_handle handle;
        uint32_t n;
        int tokens[LONGEST];
    } lines[MOST];
    uint32_t n_lines;
};

static void copy_rows(void *arg, kv_page to, kv_page from, uint32_t n_rows)
{
    struct world *w = arg;

    for (uint32_t i = 0; i < n_rows; i++) w->rows[to][i] = w->rows[from][i];
    w->n_copied += n_rows;
}

static struct world *world_new(uint32_t n_most)
{
    struct world *w = calloc(1, sizeof(*w));

    if (page_pool_create(PAGES, P, &w->pool) != RD_OK || kv_handles_create(w->pool, n_most, &w->handles) != RD_OK)
        abort();
    return w;
}

static void world_end(struct world *w)
{
    struct page_counts c;

    kv_handles_destroy(w->handles);
    c = page_pool_counts(w->pool);
    if (c.n_free != PAGES) test_fail(__FILE__, __LINE__, "%u of %d pages are free", c.n_free, PAGES);
    page_pool_destroy(w->pool);
    free(w);
}

/* Everybody finds the tokens that are theirs, and no page is held by nobody. */
static bool all_is_well(const struct world *w)
{
    struct rd_error err = {RD_OK, ""};
    uint32_t holders[PAGES] = {0};

    for (uint32_t i = 0; i < w->n_lines; i++) {
        const struct line *l = &w->lines[i];
        struct kv_line found;

        if (kv_handles_find(w->handles, l->handle, &found) != RD_OK || found.n_tokens != l->n) return false;
        for (uint32_t k = 0; k < l->n; k++)
            if (w->rows[found.pages[k / P]][k % P] != l->tokens[k]) return false;
        for (uint32_t k = 0; k * P < l->n; k++) holders[found.pages[k]]++;
    }
    for (uint32_t i = 0; i < PAGES; i++)
        if (page_pool_holders(w->pool, i) != holders[i]) return false;
    return kv_handles_n(w->handles) == w->n_lines && page_pool_check(w->pool, &err) == RD_OK;
}

static void write_line(struct world *w, const struct line *l, uint32_t from)
{
    struct kv_line at;

    if (kv_handles_find(w->handles, l->handle, &at) != RD_OK) abort();
    for (uint32_t k = from; k < l->n; k++) w->rows[at.pages[k / P]][k % P] = l->tokens[k];
}

static const struct line nothing = {.handle = KV_EMPTY};

static const struct line *any(const struct world *w, struct random *r)
{
    const uint64_t i = random_below(r, w->n_lines + 1);

    return i == w->n_lines ? &nothing : &w->lines[i];
}

static void grow(struct world *w, struct random *r, int *next)
{
    struct line l = *any(w, r);
    const uint32_t before = l.n, n = 1 + (uint32_t)random_below(r, 9);
    const uint32_t n_free = page_pool_n_free(w->pool);
    rd_status st;

    if (l.n + n > LONGEST || w->n_lines == MOST) return;
    st = kv_handles_grow(w->handles, l.handle, n, copy_rows, w, &l.handle);
    if (st == RD_E_NO_PAGES) {
        CHECK_EQ(page_pool_n_free(w->pool), n_free);
        return;
    }
    CHECK_OK(st);
    for (uint32_t i = 0; i < n; i++) l.tokens[l.n++] = (*next)++;
    write_line(w, &l, before);
    if (random_below(r, 4) == 0) { /* it failed */
        kv_handles_take_back(w->handles, l.handle);
        CHECK_EQ(page_pool_n_free(w->pool), n_free);
    } else {
        w->lines[w->n_lines++] = l;
    }
}

static void slice(struct world *w, struct random *r)
{
    struct line l = *any(w, r);
    const uint32_t keep = (uint32_t)random_below(r, l.n + 2), n_free = page_pool_n_free(w->pool);
    const uint64_t copied = w->n_copied;

    if (w->n_lines == MOST) return;
    if (keep > l.n) {
        CHECK_EQ(kv_handles_slice(w->handles, l.handle, keep, &l.handle), RD_E_INVALID);
        return;
    }
    CHECK_OK(kv_handles_slice(w->handles, l.handle, keep, &l.handle));
    CHECK_EQ(page_pool_n_free(w->pool), n_free);
    CHECK_EQ(w->n_copied, copied);
    CHECK((l.handle == KV_EMPTY) == (keep == 0));
    l.n = keep;
    if (keep) w->lines[w->n_lines++] = l;
}

TEST(every_handle_finds_its_tokens_whatever_grows_is_sliced_and_freed_around_it)
{
    struct world *w = world_new(MOST);
    kv_handle gone[64] = {0};
    struct random r;
    int next = 1;

    random_init(&r, test_seed());
    for (int i = 0; i < STEPS; i++) {
        const uint64_t what = random_below(&r, 8);

        if (what < 4) grow(w, &r, &next);
        if (what == 4) slice(w, &r);
        if (what > 5 && w->n_lines) {
            const uint64_t k = random_below(&r, w->n_lines);

            gone[random_below(&r, 64)] = w->lines[k].handle;
            kv_handles_free(w->handles, w->lines[k].handle);
            w->lines[k] = w->lines[--w->n_lines];
        }
        for (int k = 0; k < 3; k++) { /* what is gone stays gone, and disturbs nobody */
            const kv_handle old = gone[random_below(&r, 64)];
            struct kv_line line;

            kv_handles_free(w->handles, old);
            CHECK(old == KV_EMPTY || kv_handles_find(w->handles, old, &line) == RD_E_NOT_FOUND);
            kv_handles_free(w->handles, ((uint64_t)random_below(&r, UINT32_MAX) << 32 | random_below(&r, UINT32_MAX)) |
                                            UINT64_C(1) << 63); /* nobody counts that far */
        }
        CHECK(all_is_well(w));
    }
    CHECK(w->n_copied > 100);
    world_end(w);
}

TEST(growth_takes_a_page_only_where_the_last_one_is_full_or_somebody_elses)
{
    struct world *w = world_new(8);
    kv_handle a, b, c, d;

    CHECK_OK(kv_handles_grow(w->handles, KV_EMPTY, 6, copy_rows, w, &a));
    CHECK_OK(kv_handles_slice(w->handles, a, 6, &d)); /* two hold page 1 */
    CHECK_EQ(page_pool_n_free(w->pool), PAGES - 2);
    CHECK_OK(kv_handles_grow(w->handles, a, 2, copy_rows, w, &b)); /* rows 2, 3 of page 1 */
    CHECK_EQ(page_pool_n_free(w->pool), PAGES - 2);
    CHECK_OK(kv_handles_grow(w->handles, a, 1, copy_rows, w, &c)); /* they are b's */
    CHECK_EQ(page_pool_n_free(w->pool), PAGES - 3);
    CHECK_EQ(w->n_copied, 2);
    kv_handles_take_back(w->handles, c);
    kv_handles_take_back(w->handles, b);
    CHECK_OK(kv_handles_grow(w->handles, a, 2, copy_rows, w, &b)); /* as if nothing had been */
    CHECK_EQ(page_pool_n_free(w->pool), PAGES - 2);
    kv_handles_free(w->handles, b);
    kv_handles_free(w->handles, d);
    CHECK_OK(kv_handles_grow(w->handles, a, 2, copy_rows, w, &b)); /* nobody but a is left */
    CHECK_EQ(page_pool_n_free(w->pool), PAGES - 2);
    CHECK_EQ(w->n_copied, 2);
    CHECK_OK(kv_handles_slice(w->handles, b, 4, &d));
    CHECK_OK(kv_handles_grow(w->handles, d, 1, copy_rows, w, &c)); /* behind a full page: none to copy */
    CHECK_EQ(w->n_copied, 2);
    world_end(w);
}

TEST(tables_do_not_know_each_others_handles_and_have_an_end)
{
    struct world *one = world_new(3), *two = world_new(3);
    kv_handle a, b, c, d;
    struct kv_line line;

    CHECK_OK(kv_handles_grow(one->handles, KV_EMPTY, 1, copy_rows, one, &a));
    CHECK_EQ(kv_handles_find(two->handles, a, &line), RD_E_NOT_FOUND);
    CHECK_OK(kv_handles_grow(two->handles, KV_EMPTY, 1, copy_rows, two, &b));
    CHECK(a != b);
    kv_handles_free(two->handles, a);
    CHECK_OK(kv_handles_find(two->handles, b, &line));
    CHECK_OK(kv_handles_slice(one->handles, a, 1, &c));
    CHECK_OK(kv_handles_slice(one->handles, a, 1, &d));
    CHECK_EQ(kv_handles_slice(one->handles, a, 1, &b), RD_E_LIMIT);
    CHECK_EQ(kv_handles_grow(one->handles, a, 1, copy_rows, one, &b), RD_E_LIMIT);
    kv_handles_free(one->handles, d);
    CHECK_OK(kv_handles_grow(one->handles, a, 1, copy_rows, one, &b));
    world_end(one);
    world_end(two);
}

TEST(without_memory_nothing_changes)
{
    const uint64_t alive = mem_n_alive();

    for (int64_t k = 0;; k++) {
        struct page_pool *pool = NULL;
        struct kv_handles *h = NULL;
        struct world w = {0};
        kv_handle a = 0, b = 0;
        rd_status st = page_pool_create(PAGES, P, &pool);

        CHECK_OK(st);
        mem_fail_after(k);
        st = kv_handles_create(pool, 8, &h);
        if (st == RD_OK) st = kv_handles_grow(h, KV_EMPTY, 6, copy_rows, &w, &a);
        if (st == RD_OK) st = kv_handles_grow(h, a, 6, copy_rows, &w, &b);
        if (st == RD_OK) st = kv_handles_slice(h, b, 9, &b);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        kv_handles_destroy(h);
        CHECK_EQ(page_pool_n_free(pool), PAGES);
        page_pool_destroy(pool);
        CHECK_EQ(mem_n_alive(), alive);
        if (st == RD_OK) break;
    }
}
