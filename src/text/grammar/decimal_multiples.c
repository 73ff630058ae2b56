/* text/grammar/decimal_multiples.c - the decimal texts of multiples, as an automaton over digits.
 *
 * A state is what decides how the digits so far can go on: how many there are (up to the bounds' length), how they compare
 * with the bounds' first digits, the remainder, and behind a point the number of digits there. The automaton is written as
 * rules that begin with each other (a state's texts are those of a state before it, and one digit more), which keeps the
 * sets of a parser small.
 */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/decimal_range.h"
#include "text/grammar/node_list.h"

#define MAX_STATES 2000u
#define NONE       UINT32_MAX

struct state {
    uint16_t k;
    uint8_t low, high;
    uint16_t fraction;
    uint32_t rest;
}; /* low, high: 0 below, 1 equal, 2 above */
struct automaton {
    struct grammar_builder *b;
    uint32_t step, scale;
    const char *low, *high; /* digits; high NULL: none */
    uint32_t cap;           /* digits that are counted */
    struct state *states;
    grammar_node *rules;
    struct node_list *ways; /* [n]: the alternatives of a state's rule */
    size_t n, states_cap;
    bool failed;
};

static uint8_t compared(uint8_t so_far, const char *bound, uint32_t k, int d)
{
    if (so_far != 1 || !bound || k >= strlen(bound)) return so_far;
    return d < bound[k] - '0' ? 0 : d > bound[k] - '0' ? 2 : 1;
}

/* How k digits whose first ones compare so stand to the bound: -1, 0, 1. */
static int against(const struct state *s, uint8_t so_far, const char *bound)
{
    size_t n = strlen(bound);

    if (s->k != n) return s->k < n ? -1 : 1;
    return (int)so_far - 1;
}

static bool is_end(const struct automaton *a, const struct state *s)
{
    uint64_t rest = s->rest;

    if (s->k == 0) return false;
    for (uint32_t f = s->fraction ? s->fraction - 1u : 0; f < a->scale; f++) rest = rest * 10 % a->step;
    if (rest || s->fraction == 1) return false; /* nothing behind the point yet */
    if (against(s, s->low, a->low) < 0) return false;
    return !a->high || against(s, s->high, a->high) <= 0;
}

/* The state after one more digit; false: there is none. A zero leads only itself. */
static bool after_digit(const struct automaton *a, const struct state *s, int d, struct state *out)
{
    *out = *s;
    out->rest = (s->rest * 10 + (uint32_t)d) % a->step;
    if (s->fraction) {
        if (s->fraction > a->scale) return false;
        out->fraction++;
        return true;
    }
    out->low = compared(s->low, a->low, s->k, d);
    out->high = compared(s->high, a->high, s->k, d);
    if (out->k < a->cap) out->k++;
    return !a->high || s->k < strlen(a->high);
}

static bool same(const struct state *a, const struct state *b)
{
    return a->k == b->k && a->low == b->low && a->high == b->high && a->fraction == b->fraction && a->rest == b->rest;
}

static uint32_t find(struct automaton *a, const struct state *s)
{
    struct state normal = *s;

    if (normal.k > strlen(a->low)) normal.low = 2;
    if (!a->high) normal.high = 0;
    for (size_t i = 0; i < a->n; i++)
        if (same(&a->states[i], &normal)) return (uint32_t)i;
    return NONE;
}

static uint32_t find_or_add(struct automaton *a, const struct state *s)
{
    struct state normal = *s;
    uint32_t i = find(a, s);

    if (i != NONE || a->failed) return i;
    if (a->n == MAX_STATES) {
        grammar_fail(a->b, RD_E_UNSUPPORTED, "multipleOf %u with these bounds needs too many states", a->step);
        a->failed = true;
        return NONE;
    }
    if (normal.k > strlen(a->low)) normal.low = 2;
    if (!a->high) normal.high = 0;
    a->states[a->n] = normal;
    a->rules[a->n] = grammar_rule(a->b, "multiple", 8);
    return (uint32_t)a->n++;
}

static void add_way(struct automaton *a, uint32_t from, const struct state *to, grammar_node sign)
{
    uint32_t i = find_or_add(a, to);

    if (i != NONE) node_list_add(a->b, &a->ways[i], from == NONE ? sign : grammar_pair(a->b, a->rules[from], sign));
}

static grammar_node digit(struct automaton *a, int d)
{
    char c = (char)('0' + d);

    return grammar_text(a->b, &c, 1);
}

static void grow_all(struct automaton *a)
{
    struct state start, next;

    memset(&start, 0, sizeof(start));
    start.low = start.high = 1;
    for (int d = 1; d <= 9; d++)
        if (after_digit(a, &start, d, &next)) add_way(a, NONE, &next, digit(a, d));
    for (uint32_t i = 0; i < a->n && !a->failed; i++) {
        struct state from = a->states[i];

        for (int d = 0; d <= 9; d++)
            if (after_digit(a, &from, d, &next)) add_way(a, i, &next, digit(a, d));
        if (a->scale && !from.fraction) {
            next = from;
            next.fraction = 1;
            add_way(a, i, &next, grammar_word(a->b, "."));
        }
    }
}

/* Zero before the point: it goes on only behind one. Its states have k 1 and are told apart by low = 0 of "0". */
static void grow_zero(struct automaton *a)
{
    struct state zero, next;

    if (!a->scale) return;
    memset(&zero, 0, sizeof(zero));
    zero.k = 1;
    zero.low = zero.high = 1;
    next = zero;
    next.fraction = 1;
    add_way(a, NONE, &next, grammar_word(a->b, "0."));
}

static grammar_node magnitudes(struct grammar_builder *b, uint32_t step, uint32_t scale, const char *low,
                               const char *high)
{
    struct automaton a = {.b = b, .step = step, .scale = scale, .low = low, .high = high};
    struct node_list ends = {0};

    a.cap = (uint32_t)strlen(low) + 1;
    if (high && strlen(high) + 1 > a.cap) a.cap = (uint32_t)strlen(high) + 1;
    a.states = mem_zalloc(MAX_STATES, sizeof(*a.states));
    a.rules = mem_zalloc(MAX_STATES, sizeof(*a.rules));
    a.ways = mem_zalloc(MAX_STATES, sizeof(*a.ways));
    if (!a.states || !a.rules || !a.ways) {
        grammar_fail(b, RD_E_NOMEM, "out of memory");
    } else {
        if (strcmp(low, "0") == 0) node_list_add(b, &ends, grammar_word(b, "0"));
        grow_zero(&a);
        grow_all(&a);
        for (size_t i = 0; i < a.n; i++) {
            grammar_define(b, a.rules[i], node_list_alt(b, &a.ways[i]));
            if (is_end(&a, &a.states[i])) node_list_add(b, &ends, a.rules[i]);
        }
    }
    mem_free(a.states);
    mem_free(a.rules);
    mem_free(a.ways);
    return node_list_alt(b, &ends);
}

/* Steps that divide 10, 100 or 1000: the last digits decide, which is regular. */
static grammar_node last_digits(struct grammar_builder *b, uint32_t step, uint32_t power, uint32_t n_digits)
{
    struct grammar_range any = {'0', '9'}, first = {'1', '9'};
    struct node_list options = {0}, shorter = {0};
    grammar_node before = grammar_pair(b, grammar_class(b, &first, 1, false),
                                       grammar_repeat(b, grammar_class(b, &any, 1, false), 0, GRAMMAR_UNBOUNDED));

    for (uint32_t v = 0; v < power; v += step) {
        char text[12];

        snprintf(text, sizeof(text), "%0*u", (int)n_digits, (unsigned)v);
        node_list_add(b, &options, grammar_word(b, text));
        snprintf(text, sizeof(text), "%u", (unsigned)v);
        node_list_add(b, &shorter, grammar_word(b, text));
    }
    return grammar_either(b, grammar_pair(b, before, node_list_alt(b, &options)), node_list_alt(b, &shorter));
}

grammar_node decimal_multiples(struct grammar_builder *b, uint32_t step, uint32_t scale, const struct decimal *low,
                               const struct decimal *high)
{
    struct node_list options = {0};
    const struct decimal zero = {.whole = "0"};

    if (low && high && decimal_compare(low, high) > 0) return grammar_nothing(b);
    for (uint32_t power = 10, n = 1; power <= 1000 && !scale; power *= 10, n++) {
        grammar_node node;

        if (power % step) continue;
        node = grammar_pair(b, grammar_maybe(b, grammar_word(b, "-")), last_digits(b, step, power, n));
        return low || high ? grammar_both(b, node, decimal_integers(b, low, high)) : node;
    }
    if (!high || !high->negative) {
        const struct decimal *from = low && !low->negative ? low : &zero;

        node_list_add(b, &options, magnitudes(b, step, scale, from->whole, high ? high->whole : NULL));
    }
    if (!low || low->negative) {
        const struct decimal *from = high && high->negative ? high : &zero;

        node_list_add(
            b, &options,
            grammar_pair(b, grammar_word(b, "-"), magnitudes(b, step, scale, from->whole, low ? low->whole : NULL)));
    }
    return node_list_alt(b, &options);
}
