/* text/grammar/grammar_outline.c - parts of a grammar that become rules of their own.
 *
 * What a token may be within a string depends on the string alone, up to its closing quote. As a rule of its own, with
 * the quote, it has the same states wherever it stands, in every grammar, and what is computed for one serves all.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_rules.h"

#define WIDE_CLASS   16u /* characters from which on a loop is worth it */
#define WIDE_COUNT   8u  /* times from which on a repeat is a loop */
#define LOOK_DEPTH   5u
#define LOOK_KIDS    64u
#define REPEAT_COST  4096u /* states from which on a repeated part becomes a rule */
#define KID_COST     32u   /* and the states of that part */
#define PRODUCT_COST 500u
#define PARTS_MAX    16u

/* Whether it has a class of many characters, looking some levels deep. */
static bool is_wide(const struct grammar_builder *b, grammar_node node, unsigned depth)
{
    const struct node *n = &b->nodes[node];
    uint32_t count = 0;

    if (depth == 0 || !node) return false;
    switch (n->kind) {
    case NODE_CLASS:
        for (uint32_t i = 0; i < n->n && count < WIDE_CLASS; i++)
            count += b->ranges[n->a + i].high - b->ranges[n->a + i].low + 1;
        return count >= WIDE_CLASS;
    case NODE_SEQ:
    case NODE_ALT:
        for (uint32_t i = 0; i < n->n && i < LOOK_KIDS; i++)
            if (is_wide(b, b->kids[n->a + i], depth - 1)) return true;
        return false;
    case NODE_REPEAT:
        return is_wide(b, n->a, depth - 1);
    case NODE_RULE:
        return is_wide(b, b->rules[n->a].body, depth - 1);
    default:
        return false;
    }
}

static bool ends_wide(const struct grammar_builder *b, grammar_node node, unsigned depth)
{
    const struct node *n = &b->nodes[node];

    if (depth == 0 || !node) return false;
    switch (n->kind) {
    case NODE_SEQ:
        return ends_wide(b, b->kids[n->a + n->n - 1], depth - 1);
    case NODE_ALT:
        for (uint32_t i = 0; i < n->n && i < LOOK_KIDS; i++)
            if (ends_wide(b, b->kids[n->a + i], depth - 1)) return true;
        return false;
    case NODE_REPEAT:
        return n->max >= WIDE_COUNT ? is_wide(b, n->a, depth - 1) : ends_wide(b, n->a, depth - 1);
    case NODE_RULE:
        return ends_wide(b, b->rules[n->a].body, depth - 1);
    default:
        return false;
    }
}

static bool is_plain(const struct grammar_builder *b, grammar_node node)
{
    const struct node *n = &b->nodes[node];

    if (n->kind == NODE_RULE && b->rules[n->a].body) n = &b->nodes[b->rules[n->a].body];
    return n->kind == NODE_TEXT || n->kind == NODE_CLASS || n->kind == NODE_TOKEN;
}

/* What ends the loop, of the part after it: its first byte, when it is a text; *rest: what remains, 0: nothing. 0: it is
 * no plain end, or the builder failed. */
static grammar_node terminator(struct grammar_builder *b, grammar_node node, grammar_node *rest)
{
    struct node n = b->nodes[node];
    grammar_node first;

    *rest = 0;
    if (n.kind == NODE_ALT) {
        if (n.n > LOOK_KIDS) return 0;
        for (uint32_t i = 0; i < n.n; i++)
            if (!is_plain(b, b->kids[n.a + i])) return 0;
        return node;
    }
    if (!is_plain(b, node)) return 0;
    if (n.kind != NODE_TEXT || n.n == 1) return node;
    if (!grammar_room(b, (void **)&b->bytes, &b->cap_text, (uint64_t)b->n_text + n.n, 1)) return 0;
    first = grammar_text(b, (const char *)b->bytes + n.a, 1); /* there is room: bytes stay where they are */
    *rest = grammar_text(b, (const char *)b->bytes + n.a + 1, n.n - 1);
    return *rest ? first : 0;
}

/* One way through a large count, chunks and a rest, with the end: rest and end as a rule. 0: it is no such way, or the
 * builder failed. */
static grammar_node way_with_end(struct grammar_builder *b, grammar_node way, grammar_node end)
{
    struct node n = b->nodes[way];
    grammar_node parts[PARTS_MAX], last[2] = {way, end};
    uint32_t n_before = 0;

    if (n.kind == NODE_SEQ) {
        if (n.n > PARTS_MAX - 1) return 0;
        n_before = n.n - 1;
        memcpy(parts, b->kids + n.a, n_before * sizeof(*parts));
        last[0] = b->kids[n.a + n_before];
    }
    if (b->nodes[last[0]].kind != NODE_REPEAT || b->nodes[last[0]].max < WIDE_COUNT) return 0;
    parts[n_before] = grammar_rule_with(b, grammar_seq(b, last, 2), "loop");
    return parts[n_before] ? grammar_seq(b, parts, n_before + 1) : 0;
}

/* Calls of chunks, each exactly that many times: what a count that is a multiple of a chunk ends with. */
static bool is_whole_chunks(const struct grammar_builder *b, grammar_node way)
{
    const struct node *n = &b->nodes[way];
    uint32_t n_parts = n->kind == NODE_SEQ ? n->n : 1;

    for (uint32_t i = 0; i < n_parts; i++) {
        const struct node *part = n->kind == NODE_SEQ ? &b->nodes[b->kids[n->a + i]] : n;

        if (part->kind == NODE_REPEAT && part->min == part->max) part = &b->nodes[part->a];
        if (part->kind != NODE_RULE) return false;
    }
    return true;
}

/* A count above what one automaton holds is two ways (grammar_build.c): fewer chunks than it has and less than a chunk, or
 * all of them and the rest. Both with the end behind them; 0: it is no such count, or the builder failed. */
static grammar_node count_with_end(struct grammar_builder *b, grammar_node count, grammar_node end)
{
    struct node n = b->nodes[count];
    grammar_node ways[2];

    if (n.kind != NODE_ALT || n.n != 2) return 0;
    for (uint32_t i = 0; i < 2; i++) {
        grammar_node way = b->kids[n.a + i], whole[2] = {way, end};

        ways[i] = is_whole_chunks(b, way) ? grammar_seq(b, whole, 2) : way_with_end(b, way, end);
        if (!ways[i]) return 0;
    }
    return grammar_alt(b, ways, 2);
}

/* Of the kids of a sequence: each run of loops with its end becomes a rule. */
static bool outline_loops(struct grammar_builder *b, grammar_node node)
{
    uint32_t at = b->nodes[node].a, n = b->nodes[node].n, m = 0;

    for (uint32_t i = 0; i < n; i++) {
        grammar_node kid = b->kids[at + i], rest = 0, end, body, rule, parts[PARTS_MAX];
        uint32_t from = m;

        b->kids[at + m++] = kid;
        if (i + 1 == n || !ends_wide(b, kid, LOOK_DEPTH)) continue;
        end = terminator(b, b->kids[at + i + 1], &rest);
        if (!grammar_ok(b)) return false;
        if (!end) continue;
        while (from > 0 && ends_wide(b, b->kids[at + from - 1], LOOK_DEPTH)) from--;
        if (m - from > PARTS_MAX - 1) from = m - (PARTS_MAX - 1);
        if (from == 0 && i + 2 == n && !rest) continue; /* all of it: the rule would be this very sequence */
        memcpy(parts, b->kids + at + from, (m - from) * sizeof(*parts));
        parts[m - from] = count_with_end(b, parts[m - from - 1], end);
        if (!grammar_ok(b)) return false;
        if (parts[m - from]) {
            parts[m - from - 1] = parts[m - from];
            body = grammar_seq(b, parts, m - from);
        } else {
            parts[m - from] = end;
            body = grammar_seq(b, parts, m - from + 1);
        }
        if (!body) return false;
        if (body == node) continue; /* it is nothing but a loop and its end */
        rule = grammar_rule_with(b, body, "loop");
        if (!rule) return false;
        b->kids[at + from] = rule;
        m = from + 1;
        if (rest)
            b->kids[at + i + 1] = rest;
        else
            i++;
    }
    b->nodes[node].n = m;
    return true;
}

static uint32_t sum(uint64_t v)
{
    return v > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)v;
}

/* About how many states. costs: of nodes before it. */
static uint32_t cost(const struct grammar_builder *b, const struct node *n, const uint32_t *costs, uint32_t n_costs)
{
    uint64_t v = 1, kid;

    switch (n->kind) {
    case NODE_TEXT:
        return n->n;
    case NODE_CLASS:
        return 1 + 2 * n->n;
    case NODE_SEQ:
    case NODE_ALT:
        for (uint32_t i = 0; i < n->n; i++) {
            uint32_t k = b->kids[n->a + i];

            v += k < n_costs ? costs[k] : 2;
        }
        return sum(v);
    case NODE_REPEAT:
        kid = n->a < n_costs ? costs[n->a] : 2;
        return sum(kid * (n->max == GRAMMAR_UNBOUNDED ? n->min + 1u : n->max) + 1);
    case NODE_BOTH:
    case NODE_EXCEPT:
        return PRODUCT_COST;
    default:
        return 2;
    }
}

bool grammar_outline(struct grammar_builder *b)
{
    uint32_t *costs = NULL, cap = 0, n = b->n_nodes;

    if (!grammar_room(b, (void **)&costs, &cap, n, sizeof(*costs))) return false;
    for (uint32_t i = 1; i < n && grammar_tick(b); i++) {
        struct node *node = &b->nodes[i];

        if (node->kind == NODE_SEQ && !outline_loops(b, i)) break;
        node = &b->nodes[i];
        costs[i] = cost(b, node, costs, i);
        if (node->kind == NODE_REPEAT && costs[i] > REPEAT_COST && node->a < i && costs[node->a] > KID_COST &&
            !is_wide(b, node->a, LOOK_DEPTH)) {
            grammar_node rule = grammar_rule_with(b, node->a, "part");

            if (!rule) break;
            b->nodes[i].a = rule;
            costs[i] = sum(2 * (uint64_t)b->nodes[i].max);
        }
    }
    grammar_unroom(b, (void **)&costs, &cap, sizeof(*costs));
    return grammar_ok(b);
}
