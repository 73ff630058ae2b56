/* tests/text/grammar/test_grammar_minimal.c - minimal automata against the definition: two states are one if and only if the
 * same texts lead to an end from both.
 */
#include <string.h>
#include "base/random.h"
#include "test.h"
#include "text/grammar/grammar_fa.h"
#include "text/grammar/grammar_build.h"

#define MOST    40u
#define SYMBOLS 7u /* bytes a to e, and two rules */

/* A deterministic automaton as a table. */
struct naive {
    uint32_t n, to[MOST][SYMBOLS];
    bool accepts[MOST];
};

static bool is_alive(const struct naive *a, uint32_t state)
{
    bool met[MOST] = {false};
    uint32_t todo[MOST], n = 0;

    met[state] = true;
    todo[n++] = state;
    for (uint32_t i = 0; i < n; i++) {
        if (a->accepts[todo[i]]) return true;
        for (uint32_t c = 0; c < SYMBOLS; c++) {
            uint32_t to = a->to[todo[i]][c];

            if (to == NONE || met[to]) continue;
            met[to] = true;
            todo[n++] = to;
        }
    }
    return false;
}

/* block[s]: states that no text tells apart have the same; dead ones NONE. Round by round. */
static void naive_blocks(const struct naive *a, uint32_t *block)
{
    for (uint32_t s = 0; s < a->n; s++) block[s] = is_alive(a, s) ? a->accepts[s] : NONE;
    for (uint32_t round = 0; round <= a->n; round++) {
        uint32_t next[MOST], n = 0;

        for (uint32_t s = 0; s < a->n; s++) {
            next[s] = block[s] == NONE ? NONE : n;
            for (uint32_t t = 0; t < s && next[s] == n; t++) {
                bool same = block[s] == block[t];

                for (uint32_t c = 0; same && c < SYMBOLS; c++) {
                    uint32_t x = a->to[s][c], y = a->to[t][c];

                    same = (x == NONE ? NONE : block[x]) == (y == NONE ? NONE : block[y]);
                }
                if (same) next[s] = next[t];
            }
            n += next[s] == n;
        }
        memcpy(block, next, a->n * sizeof(*block));
    }
}

/* Random, with twins among the targets: few letters lead anywhere, and states are often copies of earlier ones. */
static void make_naive(struct naive *a, struct random *r)
{
    a->n = 1 + (uint32_t)random_below(r, MOST);
    for (uint32_t s = 0; s < a->n; s++) {
        uint32_t like = s && random_below(r, 3) == 0 ? (uint32_t)random_below(r, s) : NONE;

        a->accepts[s] = like == NONE ? random_below(r, 4) == 0 : a->accepts[like];
        for (uint32_t c = 0; c < SYMBOLS; c++) {
            a->to[s][c] = random_below(r, 3) ? (uint32_t)random_below(r, a->n) : NONE;
            if (like != NONE) a->to[s][c] = a->to[like][c];
            if (c && c < 5 && random_below(r, 2)) a->to[s][c] = a->to[s][c - 1]; /* wide ranges */
        }
    }
}

/* The automaton's edges, ranges cut at random. */
static bool put_raw(struct grammar_builder *b, const struct naive *a, struct random *r, struct raw_fa *raw)
{
    for (uint32_t s = 0; s < a->n; s++) {
        if (!raw_state(b, raw, a->accepts[s])) return false;
        for (uint32_t c = 0; c < SYMBOLS; c++) {
            struct raw_edge e = {s, a->to[s][c], c < 5 ? NONE : c - 5, (uint8_t)('a' + c), (uint8_t)('a' + c)};

            if (e.to == NONE) continue;
            if (c >= 5) e.low = e.high = 0;
            while (c < 4 && a->to[s][c + 1] == e.to && random_below(r, 4)) e.high = (uint8_t)('a' + ++c);
            if (!raw_edge(b, raw, e)) return false;
        }
    }
    return true;
}

static uint32_t step(const struct fa *f, uint32_t state, uint32_t symbol)
{
    for (uint32_t k = f->first[state]; k < f->first[state + 1]; k++) {
        const struct fa_edge *e = &f->edges[k];

        if (symbol < 5 ? e->rule == NONE && e->low <= 'a' + symbol && e->high >= 'a' + symbol : e->rule == symbol - 5)
            return e->to;
    }
    return NONE;
}

/* Both walked side by side: a state of one for each block of the other that is met, and back. */
static void compare(const struct naive *a, const struct fa *f)
{
    uint32_t block[MOST], of_block[MOST], todo[MOST], n = 0, n_met = 0;
    bool used[MOST] = {false};

    naive_blocks(a, block);
    memset(of_block, 0xFF, sizeof(of_block));
    if (block[0] == NONE) { /* no text at all: a start without an end, which may lead to itself */
        CHECK_EQ(f->n_states, 1);
        CHECK(!f->accepts[0]);
        return;
    }
    of_block[block[0]] = 0;
    todo[n++] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = todo[i], mine = of_block[block[s]];

        CHECK(!used[mine]); /* one block each */
        used[mine] = true;
        n_met++;
        CHECK_EQ(f->accepts[mine] != 0, a->accepts[s]);
        for (uint32_t c = 0; c < SYMBOLS; c++) {
            uint32_t to = a->to[s][c], here = step(f, mine, c);
            bool dead = to == NONE || block[to] == NONE;

            CHECK_EQ(here == NONE, dead);
            if (dead || here == NONE) continue;
            if (of_block[block[to]] == NONE) {
                of_block[block[to]] = here;
                todo[n++] = to;
            }
            CHECK_EQ(of_block[block[to]], here);
        }
    }
    CHECK_EQ(f->n_states, n_met);
}

TEST(two_states_are_one_when_no_text_tells_them_apart)
{
    for (uint32_t i = 0; i < (test_is_long() ? 200000u : 4000u); i++) {
        struct random r;
        struct naive a;
        struct grammar_limits l = grammar_limits_default;
        struct grammar_builder *b = NULL;
        struct raw_fa raw = {0};
        struct fa *f;

        random_init(&r, test_seed() + i);
        make_naive(&a, &r);
        l.max_ns = 0;
        CHECK_OK(grammar_builder_create(&l, &b));
        CHECK(put_raw(b, &a, &r, &raw));
        f = fa_minimal(b, &raw);
        CHECK(f != NULL);
        if (f) compare(&a, f);
        fa_destroy(f);
        raw_deinit(b, &raw);
        grammar_builder_destroy(b);
    }
}
