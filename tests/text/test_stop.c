/* tests/text/test_stop.c - stop strings: against a naive search after every byte (F28), limits, memory running
 * out. */
#include "text/tokenizer/stop.h"
#include "test.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"

static struct text_span span(const char *s)
{
    return (struct text_span){s, strlen(s)};
}

/* The first end at which a stop string ends, the longest there. Returns the length of the text before it, or n. */
static size_t naive(const struct text_span *stops, size_t n_stops, const char *s, size_t n, int *hit)
{
    for (size_t end = 1; end <= n; end++) {
        size_t best = 0;

        for (size_t i = 0; i < n_stops; i++)
            if (stops[i].n <= end && stops[i].n > best && memcmp(s + end - stops[i].n, stops[i].s, stops[i].n) == 0) {
                best = stops[i].n;
                *hit = (int)i;
            }
        if (best) return end - best;
    }
    *hit = -1;
    return n;
}

TEST(random_texts_in_random_pieces_equal_a_naive_search)
{
    struct random r;

    random_init(&r, test_seed());
    for (unsigned round = 0; round < (test_is_long() ? 300000 : 30000); round++) {
        struct text_span stops[5];
        char stop_bytes[5][8], text[80], got[80];
        size_t n_stops = random_below(&r, 6), n = random_below(&r, sizeof(text)), n_got = 0, wanted, held_bound = 0;
        struct stop_matcher *m = NULL;
        const char *out;
        int hit = -1, want_hit;

        for (size_t i = 0; i < n_stops; i++) {
            stops[i] = (struct text_span){stop_bytes[i], 1 + random_below(&r, 8)};
            for (size_t k = 0; k < stops[i].n; k++) stop_bytes[i][k] = "ab"[random_below(&r, 2)];
            if (stops[i].n > held_bound) held_bound = stops[i].n;
        }
        for (size_t i = 0; i < n; i++) text[i] = "abbc"[random_below(&r, 4)];
        wanted = naive(stops, n_stops, text, n, &want_hit);
        CHECK_OK(stop_matcher_create(stops, n_stops, &m));
        for (size_t at = 0; at < n && hit < 0;) {
            size_t len = 1 + random_below(&r, 6), n_out;

            if (len > n - at) len = n - at;
            n_out = stop_matcher_feed(m, text + at, len, &out, &hit);
            CHECK(n_got + n_out <= wanted); /* nothing of a stop string ever leaves */
            memcpy(got + n_got, out, n_out);
            n_got += n_out;
            at += len;
            if (hit < 0) CHECK(at - n_got < (held_bound ? held_bound : 1)); /* and no more is held than needs be */
        }
        if (hit >= 0)
            CHECK_EQ(stop_matcher_feed(m, "aaa", 3, &out, &want_hit), 0);
        else
            CHECK_EQ(hit, want_hit);
        {
            size_t n_out = stop_matcher_flush(m, &out);

            memcpy(got + n_got, out, n_out);
            n_got += n_out;
        }
        naive(stops, n_stops, text, n, &want_hit);
        CHECK_EQ(hit, want_hit);
        CHECK_EQ(n_got, wanted);
        CHECK(memcmp(got, text, n_got) == 0);
        stop_matcher_destroy(m);
    }
}

TEST(empty_and_too_many_and_too_long_are_refused)
{
    struct stop_matcher *m = NULL;
    struct text_span stops[LIMIT_STOP_STRINGS + 1];
    char *big = mem_zalloc(LIMIT_STOP_BYTES + 1, 1);

    for (size_t i = 0; i <= LIMIT_STOP_STRINGS; i++) stops[i] = span("x");
    CHECK_EQ(stop_matcher_create(stops, LIMIT_STOP_STRINGS + 1, &m), RD_E_LIMIT);
    CHECK_OK(stop_matcher_create(stops, LIMIT_STOP_STRINGS, &m));
    stop_matcher_destroy(m);
    m = NULL;
    stops[0] = (struct text_span){big, LIMIT_STOP_BYTES + 1};
    CHECK_EQ(stop_matcher_create(stops, 1, &m), RD_E_LIMIT);
    stops[0].n = LIMIT_STOP_BYTES;
    CHECK_OK(stop_matcher_create(stops, 1, &m));
    stop_matcher_destroy(m);
    m = NULL;
    stops[0].n = 0;
    CHECK_EQ(stop_matcher_create(stops, 1, &m), RD_E_INVALID);
    CHECK(!m);
    mem_free(big);
}

TEST(no_memory_leaves_nothing_behind)
{
    struct text_span stops[2] = {span("<|im_end|>"), span("\n\nUser:")};
    uint64_t alive = mem_n_alive();
    struct stop_matcher *m = NULL;
    const char *out;
    int hit;

    for (int64_t i = 0; !m; i++) {
        mem_fail_after(i);
        CHECK(stop_matcher_create(stops, 2, &m) == (m ? RD_OK : RD_E_NOMEM));
        mem_fail_after(-1);
        if (!m) CHECK_EQ(mem_n_alive(), alive);
    }
    mem_fail_after(0);
    CHECK_EQ(stop_matcher_feed(m, "abc", 3, &out, &hit), 0);
    mem_fail_after(-1);
    CHECK_EQ(hit, STOP_NOMEM);
    CHECK_EQ(stop_matcher_feed(m, "abc", 3, &out, &hit), 0);
    CHECK_EQ(stop_matcher_flush(m, &out), 0);
    stop_matcher_destroy(m);
    CHECK_EQ(mem_n_alive(), alive);
}
