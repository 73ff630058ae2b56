/* api/api_grammar.c - grammars by themselves (radish/grammar.h): compiled without a model, matched, explained. */
#include "radish/grammar.h"
#include <string.h>
#include "api/form_node.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "text/grammar/grammar.h"

struct rd_grammar {
    struct grammar *compiled;
    double compile_ms;
};

static rd_status compile(enum rd_grammar_kind kind, const char *text, size_t n, struct grammar **out,
                         struct rd_error *err)
{
    struct grammar_builder *b = NULL;
    rd_status st = grammar_builder_create(&form_limits, &b);

    if (st != RD_OK) return error_set(err, st, "%s", rd_status_text(st));
    st = grammar_compile(b, form_node(b, kind, text, n, NULL), NULL, 0, out, err);
    grammar_builder_destroy(b);
    return st;
}

rd_status rd_grammar_compile(enum rd_grammar_kind kind, const char *text, size_t n, rd_grammar **out,
                             struct rd_error *err)
{
    uint64_t start = clock_now_ns(clock_system());
    rd_grammar *g;
    rd_status st;

    if (!out || (unsigned)kind >= RD_GRAMMAR_N_KINDS || (!text && n))
        return error_set(err, RD_E_INVALID, "invalid argument");
    if (n > LIMIT_BODY_BYTES) return error_set(err, RD_E_LIMIT, "a grammar of more than %u bytes", LIMIT_BODY_BYTES);
    g = mem_zalloc(1, sizeof(*g));
    if (!g) return error_set(err, RD_E_NOMEM, "out of memory");
    st = compile(kind, text ? text : "", n, &g->compiled, err);
    if (st != RD_OK) {
        mem_free(g);
        return st;
    }
    g->compile_ms = (double)(clock_now_ns(clock_system()) - start) / 1e6;
    *out = g;
    return RD_OK;
}

void rd_grammar_free(rd_grammar *g)
{
    if (!g) return;
    grammar_unref(g->compiled);
    mem_free(g);
}

rd_status rd_grammar_match(rd_grammar *g, const char *text, size_t n, bool *accepts, size_t *n_good)
{
    struct grammar_matcher *m = NULL;
    size_t good = 0;
    rd_status st;

    if (!g || (!text && n) || n >= UINT32_MAX) return RD_E_INVALID;
    st = grammar_matcher_create(g->compiled, 2, &m);
    if (st != RD_OK) return st;
    st = grammar_accept_bytes(m, (const uint8_t *)text, n);
    if (st == RD_OK) good = n;
    if (st == RD_E_INVALID && n_good) { /* how far: halves of what is left, kept when they fit */
        size_t step = 1;

        while (step < n) step *= 2;
        for (; step; step /= 2) {
            if (good + step > n) continue;
            if (grammar_accept_bytes(m, (const uint8_t *)text, good + step) != RD_OK) continue;
            grammar_rollback(m, 1);
            good += step;
        }
    }
    if (n_good) *n_good = good;
    if (accepts) *accepts = st == RD_OK && grammar_can_end(m);
    grammar_matcher_destroy(m);
    return st == RD_E_INVALID ? RD_OK : st;
}

rd_status rd_grammar_example(rd_grammar *g, char **text, size_t *n)
{
    struct grammar_matcher *m = NULL;
    struct clock_limit time;
    uint64_t length = 0;
    rd_status st;

    if (!g || !text) return RD_E_INVALID;
    *text = NULL;
    st = grammar_matcher_create(g->compiled, 1, &m);
    if (st != RD_OK) return st;
    clock_limit_begin(&time, clock_system(), form_limits.max_ns, form_limits.max_wall_ns);
    length = grammar_shortest(m, NULL, 0, NULL);
    if (length > LIMIT_TEXT_BYTES)
        st = RD_E_LIMIT;
    else if (!(*text = mem_zalloc(length + 1, 1)))
        st = RD_E_NOMEM;
    else if (grammar_shortest(m, (uint8_t *)*text, (uint32_t)length, &time) != length)
        st = RD_E_LIMIT;
    if (st != RD_OK) {
        mem_free(*text);
        *text = NULL;
    }
    if (n) *n = st == RD_OK ? (size_t)length : 0;
    grammar_matcher_destroy(m);
    return st;
}

void rd_grammar_get_info(const rd_grammar *g, struct rd_grammar_info *out)
{
    struct grammar_counts c;

    memset(out, 0, sizeof(*out));
    if (!g) return;
    c = grammar_counts(g->compiled);
    out->n_rules = c.n_rules;
    out->n_states = c.n_states;
    out->bytes = c.bytes;
    out->compile_ms = g->compile_ms;
}
