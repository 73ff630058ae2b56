/* tests/text/grammar/naive_grammar.c - see the header. */
#include "naive_grammar.h"
#include <string.h>
#include "base/utf8.h"

static const uint32_t characters[] = {'a', 'b', 'c', 0xE9, 0xEA, 0x65E5, 0x1F600};
#define N_CHARACTERS 7u

uint32_t naive_draw(struct naive *g, uint32_t n)
{
    g->rng = g->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(g->rng >> 33) % n;
}

static uint32_t make_node(struct naive *g, uint32_t depth, bool recursive)
{
    uint32_t id = g->n_nodes++, kind = naive_draw(g, depth ? 16 : 7);
    struct naive_node *n = &g->nodes[id];

    memset(n, 0, sizeof(*n));
    if (g->n_nodes > NAIVE_NODES - 8) kind = 2;
    if (kind == 0)
        n->kind = NAIVE_EMPTY;
    else if (kind == 1 && naive_draw(g, 8) == 0)
        n->kind = NAIVE_NOTHING;
    else if (kind <= 3) {
        n->kind = NAIVE_TEXT_OF;
        n->n = 1 + naive_draw(g, 2);
        for (uint32_t i = 0; i < n->n; i++) n->text[i] = (char)('a' + naive_draw(g, 3));
    } else if (kind <= 4) {
        n->kind = NAIVE_CLASS;
        n->n = 1 + naive_draw(g, 3);
        for (uint32_t i = 0; i < n->n; i++) n->text[i] = (char)naive_draw(g, N_CHARACTERS);
    } else if (kind <= 6) {
        n->kind = recursive ? NAIVE_RULE : NAIVE_EMPTY;
        n->rule = naive_draw(g, g->n_rules);
    } else if (kind <= 9 || kind <= 12) {
        n->kind = kind <= 9 ? NAIVE_SEQ : NAIVE_ALT;
        n->n = 2 + naive_draw(g, 2);
        for (uint32_t i = 0; i < n->n; i++) {
            uint32_t kid = make_node(g, depth - 1, recursive);

            g->nodes[id].kids[i] = kid;
        }
    } else if (kind <= 14) {
        uint32_t kid = make_node(g, depth - 1, recursive);

        n->kind = NAIVE_REPEAT;
        n->kids[0] = kid;
        n->min = naive_draw(g, 3);
        n->max = naive_draw(g, 2) ? GRAMMAR_UNBOUNDED : n->min + naive_draw(g, 3);
    } else {
        uint32_t a = make_node(g, depth - 1, false), b = make_node(g, depth - 1, false);

        n->kind = naive_draw(g, 2) ? NAIVE_BOTH : NAIVE_EXCEPT;
        n->kids[0] = a;
        n->kids[1] = b;
        g->products = true;
    }
    return id;
}

void naive_make(struct naive *g, uint64_t seed)
{
    memset(g, 0, sizeof(*g));
    g->rng = seed;
    naive_draw(g, 2);
    g->n_rules = 1 + naive_draw(g, NAIVE_RULES);
    for (uint32_t i = 0; i < g->n_rules; i++) g->bodies[i] = make_node(g, 3, true);
}

static grammar_node build(const struct naive *g, struct grammar_builder *b, const grammar_node *rules, uint32_t id)
{
    const struct naive_node *n = &g->nodes[id];
    grammar_node kids[3];
    struct grammar_range ranges[8];

    switch (n->kind) {
    case NAIVE_NOTHING:
        return grammar_nothing(b);
    case NAIVE_EMPTY:
        return grammar_empty(b);
    case NAIVE_TEXT_OF:
        return grammar_text(b, n->text, n->n);
    case NAIVE_CLASS:
        for (uint32_t i = 0; i < n->n; i++)
            ranges[i] = (struct grammar_range){characters[(int)n->text[i]], characters[(int)n->text[i]]};
        return grammar_class(b, ranges, n->n, false);
    case NAIVE_RULE:
        return rules[n->rule];
    case NAIVE_SEQ:
    case NAIVE_ALT:
        for (uint32_t i = 0; i < n->n; i++) kids[i] = build(g, b, rules, n->kids[i]);
        return n->kind == NAIVE_SEQ ? grammar_seq(b, kids, n->n) : grammar_alt(b, kids, n->n);
    case NAIVE_REPEAT:
        return grammar_repeat(b, build(g, b, rules, n->kids[0]), n->min, n->max);
    case NAIVE_BOTH:
    case NAIVE_EXCEPT:
        kids[0] = build(g, b, rules, n->kids[0]);
        kids[1] = build(g, b, rules, n->kids[1]);
        return n->kind == NAIVE_BOTH ? grammar_both(b, kids[0], kids[1]) : grammar_except(b, kids[0], kids[1]);
    }
    return 0;
}

grammar_node naive_build(const struct naive *g, struct grammar_builder *b)
{
    grammar_node rules[NAIVE_RULES];

    for (uint32_t i = 0; i < g->n_rules; i++) rules[i] = grammar_rule(b, "r", 1);
    for (uint32_t i = 0; i < g->n_rules; i++) {
        grammar_node body = build(g, b, rules, g->bodies[i]);

        if (grammar_status(b, NULL) == RD_OK) grammar_define(b, rules[i], body);
    }
    return rules[0];
}

static void read_text(const struct naive *g, const uint8_t *text, uint32_t n, uint32_t i, uint32_t *ends, bool *goes)
{
    uint32_t left = g->n_text - i;

    if (left >= n && !memcmp(g->text + i, text, n)) *ends |= 1u << (i + n);
    if (left <= n && !memcmp(g->text + i, text, left)) *goes = true;
}

/* A sequence of kids (of one kid again and again, when again): from i. */
static void read_seq(const struct naive *g, const struct naive_node *n, uint32_t i, uint32_t *ends, bool *goes)
{
    uint32_t at = 1u << i, count = n->kind == NAIVE_SEQ          ? n->n
                                   : n->max == GRAMMAR_UNBOUNDED ? n->min + g->n_text + 1
                                                                 : n->max;
    uint32_t min = n->kind == NAIVE_SEQ ? n->n : n->min;

    if (min == 0) *ends |= at;
    if (min == 0 && i == g->n_text) *goes = true;
    for (uint32_t k = 0; k < count && at; k++) {
        uint32_t kid = n->kids[n->kind == NAIVE_SEQ ? k : 0], next = 0;
        bool rest = true;

        for (uint32_t j = k + 1; n->kind == NAIVE_SEQ && j < count; j++) rest &= g->has_text[n->kids[j]];
        for (uint32_t p = 0; p <= g->n_text; p++)
            if (at >> p & 1) {
                next |= g->ends[kid][p];
                *goes |= rest && g->goes[kid][p];
            }
        at = next;
        if (k + 1 >= min) *ends |= at;
    }
}

static bool node_has_text(const struct naive *g, const struct naive_node *n)
{
    bool all = true, any = false;

    for (uint32_t i = 0; i < n->n && i < 3; i++) {
        all &= g->has_text[n->kids[i]];
        any |= g->has_text[n->kids[i]];
    }
    switch (n->kind) {
    case NAIVE_NOTHING:
        return false;
    case NAIVE_SEQ:
        return all;
    case NAIVE_ALT:
        return any;
    case NAIVE_REPEAT:
        return n->min == 0 || g->has_text[n->kids[0]];
    case NAIVE_RULE:
        return g->has_text[g->bodies[n->rule]];
    default:
        return true; /* of products not known */
    }
}

static void read_node(const struct naive *g, uint32_t id, uint32_t i, uint32_t *ends, bool *goes)
{
    const struct naive_node *n = &g->nodes[id];
    char text[UTF8_MAX_BYTES];

    if (i == g->n_text && g->has_text[id]) *goes = true;
    switch (n->kind) {
    case NAIVE_NOTHING:
        break;
    case NAIVE_EMPTY:
        *ends |= 1u << i;
        break;
    case NAIVE_TEXT_OF:
        read_text(g, (const uint8_t *)n->text, n->n, i, ends, goes);
        break;
    case NAIVE_CLASS:
        for (uint32_t k = 0; k < n->n; k++) {
            int size = utf8_encode(characters[(int)n->text[k]], text);

            read_text(g, (const uint8_t *)text, (uint32_t)size, i, ends, goes);
        }
        break;
    case NAIVE_ALT:
        for (uint32_t k = 0; k < n->n; k++) {
            *ends |= g->ends[n->kids[k]][i];
            *goes |= g->goes[n->kids[k]][i];
        }
        break;
    case NAIVE_SEQ:
    case NAIVE_REPEAT:
        read_seq(g, n, i, ends, goes);
        break;
    case NAIVE_RULE:
        *ends |= g->ends[g->bodies[n->rule]][i];
        *goes |= g->goes[g->bodies[n->rule]][i];
        break;
    case NAIVE_BOTH:
        *ends |= g->ends[n->kids[0]][i] & g->ends[n->kids[1]][i];
        break;
    case NAIVE_EXCEPT:
        *ends |= g->ends[n->kids[0]][i] & ~g->ends[n->kids[1]][i];
        break;
    }
}

/* Kids have larger ids than their nodes and hold no rules below products, so nodes read from the last to the first see
 * their products' kids finished in the first round: what is subtracted does not grow later. */
void naive_read(struct naive *g, const uint8_t *text, uint32_t n)
{
    bool changes = true;

    if (n) memcpy(g->text, text, n);
    g->n_text = n;
    memset(g->ends, 0, sizeof(g->ends));
    memset(g->goes, 0, sizeof(g->goes));
    memset(g->has_text, 0, sizeof(g->has_text));
    while (changes) {
        changes = false;
        for (uint32_t id = g->n_nodes; id--;) {
            bool has = node_has_text(g, &g->nodes[id]);

            changes |= has != g->has_text[id];
            g->has_text[id] = has;
        }
    }
    changes = true;
    while (changes) {
        changes = false;
        for (uint32_t id = g->n_nodes; id--;)
            for (uint32_t i = 0; i <= n; i++) {
                uint32_t ends = g->ends[id][i];
                bool goes = g->goes[id][i];

                read_node(g, id, i, &ends, &goes);
                changes |= ends != g->ends[id][i] || goes != g->goes[id][i];
                g->ends[id][i] = ends;
                g->goes[id][i] = goes;
            }
    }
}

bool naive_is_text(const struct naive *g)
{
    return g->ends[g->bodies[0]][0] >> g->n_text & 1;
}
bool naive_is_prefix(const struct naive *g)
{
    return g->goes[g->bodies[0]][0];
}
