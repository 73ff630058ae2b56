/* text/grammar/grammar_build.c - the builder: nodes are interned in a table by content, arrays grow within the limits. */
#include "text/grammar/grammar_build.h"
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "text/grammar/grammar_fa.h"
#include "text/grammar/grammar_nodes.h"

#define TICKS_PER_LOOK 256u /* at the clock */
#define CHUNK          256u /* counts above it are made of rules, each of this many of the one below */
#define MAX_CODE       0x10FFFFu

const struct grammar_limits grammar_limits_default = {100000, 1000000, (size_t)64 << 20, 5000000000ull, 0, NULL};

rd_status grammar_builder_create(const struct grammar_limits *l, struct grammar_builder **out)
{
    struct grammar_builder *b = mem_zalloc(1, sizeof(*b));

    if (!b) return RD_E_NOMEM;
    mem_clear_failed();
    b->limits = l ? *l : grammar_limits_default;
    if (!b->limits.clock) b->limits.clock = clock_system();
    clock_limit_begin(&b->time, b->limits.clock, b->limits.max_ns, b->limits.max_wall_ns);
    b->n_nodes = 1;
    *out = b;
    return RD_OK;
}

void grammar_builder_destroy(struct grammar_builder *b)
{
    if (!b) return;
    for (uint32_t i = 0; i < b->n_dags; i++) {
        mem_free(b->dags[i].first);
        mem_free(b->dags[i].edges);
    }
    for (uint32_t i = 0; i < b->n_fas; i++) fa_destroy(b->fas[i]);
    mem_free(b->nodes);
    mem_free(b->table);
    mem_free(b->bytes);
    mem_free(b->ranges);
    mem_free(b->kids);
    mem_free(b->rules);
    mem_free(b->dags);
    mem_free(b->fas);
    mem_free(b);
}

rd_status grammar_status(const struct grammar_builder *b, struct rd_error *err)
{
    if (err && !grammar_ok(b)) *err = b->err;
    return b->err.status;
}

void grammar_fail(struct grammar_builder *b, rd_status st, const char *fmt, ...)
{
    va_list ap;

    if (!grammar_ok(b) || st == RD_OK) return;
    b->err.status = st;
    va_start(ap, fmt);
    vsnprintf(b->err.text, sizeof(b->err.text), fmt, ap);
    va_end(ap);
}

static void *no_memory(struct grammar_builder *b)
{
    grammar_fail(b, RD_E_NOMEM, "out of memory for a grammar");
    return NULL;
}

bool grammar_room(struct grammar_builder *b, void **items, uint32_t *cap, uint64_t want, size_t size)
{
    uint64_t n = *cap ? *cap : 16;
    void *p;

    if (!grammar_ok(b)) return false;
    if (want <= *cap) return true;
    while (n < want) n *= 2;
    if (n >= UINT32_MAX || b->n_bytes + (n - *cap) * size > b->limits.max_bytes) {
        grammar_fail(b, RD_E_INVALID, "the grammar takes more than %zu bytes", b->limits.max_bytes);
        return false;
    }
    p = mem_realloc(*items, n, size);
    if (!p) return no_memory(b) != NULL;
    b->n_bytes += (n - *cap) * size;
    *items = p;
    *cap = (uint32_t)n;
    return true;
}

void grammar_unroom(struct grammar_builder *b, void **items, uint32_t *cap, size_t size)
{
    mem_free(*items);
    b->n_bytes -= *cap * size;
    *items = NULL;
    *cap = 0;
}

bool grammar_has_time(struct grammar_builder *b)
{
    enum clock_end end = grammar_ok(b) ? clock_limit_look(&b->time) : CLOCK_GOES_ON;

    b->worked_out |= end == CLOCK_WORKED_OUT;
    if (end == CLOCK_WORKED_OUT)
        grammar_fail(b, RD_E_INVALID, "the grammar takes longer than %.2g s to compile",
                     (double)b->limits.max_ns / 1e9);
    if (end == CLOCK_RAN_OUT)
        grammar_fail(b, RD_E_FULL, "the machine is too busy to compile the grammar within %.2g s: try again later",
                     (double)b->limits.max_wall_ns / 1e9);
    return grammar_ok(b);
}

bool grammar_worked_out(const struct grammar_builder *b)
{
    return b->worked_out;
}

struct grammar_limits grammar_limits_left(const struct grammar_builder *b)
{
    struct grammar_limits l = b->limits;

    clock_limit_left(&b->time, &l.max_ns, &l.max_wall_ns);
    return l;
}

bool grammar_tick(struct grammar_builder *b)
{
    return ++b->n_ticks % TICKS_PER_LOOK ? grammar_ok(b) : grammar_has_time(b);
}

bool grammar_count_states(struct grammar_builder *b, uint32_t n)
{
    if (!grammar_ok(b)) return false;
    if (n <= b->limits.max_states - b->n_states) {
        b->n_states += n;
        return grammar_tick(b);
    }
    grammar_fail(b, RD_E_INVALID, "the grammar takes more than %u states", b->limits.max_states);
    return false;
}

/* ---- nodes, kept once -------------------------------------------------------------------------------------------- */

/* What a node's content is beside its fields. */
static size_t content(const struct grammar_builder *b, const struct node *n, const void **p)
{
    switch (n->kind) {
    case NODE_TEXT:
        *p = b->bytes + n->a;
        return n->n;
    case NODE_CLASS:
        *p = b->ranges + n->a;
        return n->n * sizeof(*b->ranges);
    case NODE_SEQ:
    case NODE_ALT:
        *p = b->kids + n->a;
        return n->n * sizeof(*b->kids);
    default:
        *p = NULL;
        return 0;
    }
}

static uint64_t node_hash(const struct grammar_builder *b, const struct node *n)
{
    const void *p;
    size_t size = content(b, n, &p);
    uint64_t key[4] = {n->kind, ((uint64_t)n->n << 32) | (p ? 0 : n->a), ((uint64_t)n->min << 32) | n->max,
                       p ? hash64_of(p, size) : 0};

    return hash64_of(key, sizeof(key));
}

static bool same_node(const struct grammar_builder *b, const struct node *x, const struct node *y)
{
    const void *p, *q;
    size_t size = content(b, x, &p);

    if (x->kind != y->kind || x->n != y->n || x->min != y->min || x->max != y->max) return false;
    content(b, y, &q);
    return p ? !memcmp(p, q, size) : x->a == y->a;
}

static bool grow_table(struct grammar_builder *b)
{
    uint32_t want = b->cap_table ? b->cap_table * 2 : 256, cap = 0, *table = NULL;

    if (!grammar_room(b, (void **)&table, &cap, want, sizeof(*table))) return false;
    grammar_unroom(b, (void **)&b->table, &b->cap_table, sizeof(*b->table));
    memset(table, 0, cap * sizeof(*table));
    for (uint32_t i = 1; i < b->n_nodes; i++) {
        uint32_t *at = &table[node_hash(b, &b->nodes[i]) & (cap - 1)];

        b->nodes[i].next = *at;
        *at = i;
    }
    b->table = table;
    b->cap_table = cap;
    return true;
}

/* The node with n's content, which is the last of its pool when `from` says where the pool was before: taken back if the
 * node is known. */
static grammar_node keep(struct grammar_builder *b, struct node n, uint32_t *pool, uint32_t from)
{
    uint32_t at;

    if (!grammar_tick(b)) return 0;
    if (b->n_nodes * 2 > b->cap_table && !grow_table(b)) return 0;
    at = (uint32_t)node_hash(b, &n) & (b->cap_table - 1);
    for (uint32_t i = b->table[at]; i; i = b->nodes[i].next)
        if (same_node(b, &b->nodes[i], &n)) {
            if (pool) *pool = from;
            return i;
        }
    if (b->n_nodes > b->limits.max_nodes) {
        grammar_fail(b, RD_E_INVALID, "the grammar has more than %u parts", b->limits.max_nodes);
        return 0;
    }
    if (!grammar_room(b, (void **)&b->nodes, &b->cap_nodes, b->n_nodes + 1, sizeof(*b->nodes))) return 0;
    n.next = b->table[at];
    b->nodes[b->n_nodes] = n;
    b->table[at] = b->n_nodes;
    return b->n_nodes++;
}

static grammar_node simple(struct grammar_builder *b, uint8_t kind, uint32_t a)
{
    return keep(b, (struct node){.kind = kind, .a = a}, NULL, 0);
}

grammar_node grammar_empty(struct grammar_builder *b)
{
    return simple(b, NODE_EMPTY, 0);
}
grammar_node grammar_nothing(struct grammar_builder *b)
{
    return simple(b, NODE_NOTHING, 0);
}

grammar_node grammar_text(struct grammar_builder *b, const char *text, size_t n)
{
    uint32_t from = b->n_text;

    if (!n) return grammar_empty(b);
    if (n > UINT32_MAX / 4) n = UINT32_MAX / 4; /* beyond every limit: fails below */
    if (!grammar_room(b, (void **)&b->bytes, &b->cap_text, (uint64_t)from + n, 1)) return 0;
    memcpy(b->bytes + from, text, n);
    b->n_text += (uint32_t)n;
    return keep(b, (struct node){.kind = NODE_TEXT, .a = from, .n = (uint32_t)n}, &b->n_text, from);
}

grammar_node grammar_token(struct grammar_builder *b, int32_t token)
{
    if (token < 0 || token > 0xFFFFFF) {
        grammar_fail(b, RD_E_INVALID, "token %d is no token that a grammar can name", token);
        return 0;
    }
    return simple(b, NODE_TOKEN, (uint32_t)token);
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static int by_low(const void *x, const void *y)
{
    const struct grammar_range *a = x, *b = y;

    return a->low < b->low ? -1 : a->low > b->low;
}

static void put_range(struct grammar_builder *b, uint32_t low, uint32_t high)
{
    if (low <= high) b->ranges[b->n_ranges++] = (struct grammar_range){low, high};
}

/* Without surrogates. */
static void put_plain(struct grammar_builder *b, uint32_t low, uint32_t high)
{
    if (low > MAX_CODE) return;
    if (high > MAX_CODE) high = MAX_CODE;
    if (low < 0xD800) put_range(b, low, high < 0xD800 ? high : 0xD7FF);
    if (high > 0xDFFF) put_range(b, low > 0xDFFF ? low : 0xE000, high);
}

grammar_node grammar_class(struct grammar_builder *b, const struct grammar_range *ranges, uint32_t n, bool negated)
{
    uint32_t from = b->n_ranges, next = 0;
    struct grammar_range *sorted;

    for (uint32_t i = 0; i < n; i++)
        if (ranges[i].low > ranges[i].high)
            grammar_fail(b, RD_E_INVALID, "a range of characters from U+%04X down to U+%04X", ranges[i].low,
                         ranges[i].high);
    if (!grammar_room(b, (void **)&b->ranges, &b->cap_ranges, from + 2 * (uint64_t)n + 4, sizeof(*ranges))) return 0;
    sorted = mem_alloc(n, sizeof(*sorted));
    if (!sorted) {
        no_memory(b);
        return 0;
    }
    if (n) memcpy(sorted, ranges, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_low);
    for (uint32_t i = 0; i < n;) { /* neighbours become one */
        uint32_t low = sorted[i].low, high = sorted[i].high;

        for (i++; i < n && (high == UINT32_MAX || sorted[i].low <= high + 1); i++)
            if (sorted[i].high > high) high = sorted[i].high;
        if (!negated)
            put_plain(b, low, high);
        else if (low > next)
            put_plain(b, next, low - 1);
        next = high >= MAX_CODE ? MAX_CODE + 1 : high + 1;
    }
    if (negated && next <= MAX_CODE) put_plain(b, next, MAX_CODE);
    mem_free(sorted);
    if (b->n_ranges == from) return grammar_nothing(b);
    return keep(b, (struct node){.kind = NODE_CLASS, .a = from, .n = b->n_ranges - from}, &b->n_ranges, from);
}

/* ---- trees ------------------------------------------------------------------------------------------------------- */

static bool is_node(struct grammar_builder *b, grammar_node n)
{
    if (!grammar_ok(b)) return false;
    assert(n && n < b->n_nodes);
    if (n && n < b->n_nodes) return true;
    grammar_fail(b, RD_E_INTERNAL, "node %u of a grammar does not exist", n);
    return false;
}

/* The node itself, or a rule with it where a tree on top of it would become too deep. */
static grammar_node lifted(struct grammar_builder *b, grammar_node n)
{
    grammar_node r;

    if (b->nodes[n].depth + 1u < NODE_DEPTH) return n;
    r = grammar_rule(b, "deep", 4);
    if (r) grammar_define(b, r, n);
    return r;
}

static bool put_kid(struct grammar_builder *b, grammar_node n)
{
    if (!n || !grammar_room(b, (void **)&b->kids, &b->cap_kids, (uint64_t)b->n_kids + 1, sizeof(*b->kids)))
        return false;
    b->kids[b->n_kids++] = n;
    return true;
}

/* The kids since `from` as a node of that kind. */
static grammar_node keep_kids(struct grammar_builder *b, uint8_t kind, uint32_t from)
{
    uint32_t n = b->n_kids - from, depth = 0;

    if (n == 0) return kind == NODE_SEQ ? grammar_empty(b) : grammar_nothing(b);
    if (n == 1) return b->kids[--b->n_kids];
    for (uint32_t i = from; i < b->n_kids; i++)
        if (b->nodes[b->kids[i]].depth > depth) depth = b->nodes[b->kids[i]].depth;
    return keep(b, (struct node){.kind = kind, .depth = (uint16_t)(depth + 1), .a = from, .n = n}, &b->n_kids, from);
}

grammar_node grammar_seq(struct grammar_builder *b, const grammar_node *parts, uint32_t n)
{
    uint32_t from;

    for (uint32_t i = 0; i < n; i++) {
        if (!is_node(b, parts[i])) return 0;
        if (b->nodes[parts[i]].kind == NODE_NOTHING) return parts[i];
    }
    from = b->n_kids;
    for (uint32_t i = 0; i < n; i++) {
        const struct node *kid = &b->nodes[parts[i]];
        uint32_t at = kid->a, n_kids = kid->n;

        if (kid->kind == NODE_EMPTY) continue;
        if (kid->kind != NODE_SEQ) {
            if (!put_kid(b, lifted(b, parts[i]))) return 0;
            continue;
        }
        for (uint32_t k = 0; k < n_kids; k++) /* of a sequence: its parts */
            if (!put_kid(b, b->kids[at + k])) return 0;
    }
    return grammar_ok(b) ? keep_kids(b, NODE_SEQ, from) : 0;
}

static int by_id(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    return a < b ? -1 : a > b;
}

grammar_node grammar_alt(struct grammar_builder *b, const grammar_node *parts, uint32_t n)
{
    uint32_t from, m;

    for (uint32_t i = 0; i < n; i++)
        if (!is_node(b, parts[i])) return 0;
    from = b->n_kids;
    for (uint32_t i = 0; i < n; i++) {
        if (b->nodes[parts[i]].kind == NODE_NOTHING) continue;
        if (!put_kid(b, lifted(b, parts[i]))) return 0;
    }
    if (!grammar_ok(b)) return 0;
    if (b->n_kids > from) qsort(b->kids + from, b->n_kids - from, sizeof(*b->kids), by_id);
    m = from;
    for (uint32_t i = from; i < b->n_kids; i++)
        if (m == from || b->kids[m - 1] != b->kids[i]) b->kids[m++] = b->kids[i];
    b->n_kids = m;
    return keep_kids(b, NODE_ALT, from);
}

static grammar_node repeat_node(struct grammar_builder *b, grammar_node node, uint32_t min, uint32_t max)
{
    if (!node || !grammar_ok(b)) return 0;
    if (max == 0) return grammar_empty(b);
    if (min == 1 && max == 1) return node;
    node = lifted(b, node);
    if (!node) return 0;
    return keep(
        b,
        (struct node){
            .kind = NODE_REPEAT, .depth = (uint16_t)(b->nodes[node].depth + 1), .a = node, .min = min, .max = max},
        NULL, 0);
}

grammar_node grammar_rule_with(struct grammar_builder *b, grammar_node body, const char *name)
{
    grammar_node rule;

    if (!body || !grammar_ok(b)) return 0;
    if (b->nodes[body].rule) return b->nodes[body].rule;
    rule = grammar_rule(b, name, strlen(name));
    if (!rule) return 0;
    grammar_define(b, rule, body);
    b->rules[b->nodes[rule].a].is_called = true;
    b->nodes[body].rule = rule;
    return rule;
}

/* CHUNK times a node, as a rule: counted repeats become as many calls of it and a rest. */
static grammar_node chunk_of(struct grammar_builder *b, grammar_node node)
{
    return grammar_rule_with(b, repeat_node(b, node, CHUNK, CHUNK), "repeat");
}

/* Exactly count times: calls of a chunk, and the rest. */
static grammar_node times(struct grammar_builder *b, grammar_node node, uint32_t count)
{
    grammar_node parts[2];

    if (count <= CHUNK) return repeat_node(b, node, count, count);
    parts[0] = times(b, chunk_of(b, node), count / CHUNK); /* 4 levels at most */
    parts[1] = repeat_node(b, node, count % CHUNK, count % CHUNK);
    return parts[0] && parts[1] ? grammar_seq(b, parts, 2) : 0;
}

/* Up to count times: fewer than q chunks and less than a chunk, or q chunks and up to the rest. */
static grammar_node up_to(struct grammar_builder *b, grammar_node node, uint32_t count)
{
    uint32_t q = count / CHUNK;
    grammar_node chunk, few[2], all[2], alt[2];

    if (count <= CHUNK) return repeat_node(b, node, 0, count);
    chunk = chunk_of(b, node);
    if (!chunk) return 0;
    few[0] = up_to(b, chunk, q - 1);
    few[1] = repeat_node(b, node, 0, CHUNK - 1);
    all[0] = times(b, chunk, q);
    all[1] = repeat_node(b, node, 0, count % CHUNK);
    if (!grammar_ok(b)) return 0;
    alt[0] = grammar_seq(b, few, 2);
    alt[1] = grammar_seq(b, all, 2);
    return grammar_ok(b) ? grammar_alt(b, alt, 2) : 0;
}

grammar_node grammar_repeat(struct grammar_builder *b, grammar_node node, uint32_t min, uint32_t max)
{
    grammar_node parts[2];

    if (!is_node(b, node)) return 0;
    if (min > max || min == GRAMMAR_UNBOUNDED) {
        grammar_fail(b, RD_E_INVALID, "a repeat of at least %u and at most %u times", min, max);
        return 0;
    }
    if (b->nodes[node].kind == NODE_EMPTY) return node;
    if (b->nodes[node].kind == NODE_NOTHING) return min ? node : grammar_empty(b);
    if (min <= CHUNK && (max == GRAMMAR_UNBOUNDED || max <= CHUNK)) return repeat_node(b, node, min, max);
    parts[0] = times(b, node, min);
    parts[1] = max == GRAMMAR_UNBOUNDED ? repeat_node(b, node, 0, max) : up_to(b, node, max - min);
    return grammar_ok(b) ? grammar_seq(b, parts, 2) : 0;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

grammar_node grammar_rule(struct grammar_builder *b, const char *name, size_t n)
{
    grammar_node node;

    if (n > 100) n = 100; /* for messages */
    if (!grammar_room(b, (void **)&b->rules, &b->cap_rules, (uint64_t)b->n_rules + 1, sizeof(*b->rules)) ||
        !grammar_room(b, (void **)&b->bytes, &b->cap_text, (uint64_t)b->n_text + n, 1))
        return 0;
    node = simple(b, NODE_RULE, b->n_rules);
    if (!node) return 0;
    if (n) memcpy(b->bytes + b->n_text, name, n);
    b->rules[b->n_rules++] = (struct rule){.name = b->n_text, .n_name = (uint32_t)n, .self = node};
    b->n_text += (uint32_t)n;
    return node;
}

void grammar_define(struct grammar_builder *b, grammar_node rule, grammar_node body)
{
    struct rule *r;

    if (!is_node(b, rule) || !is_node(b, body)) return;
    assert(b->nodes[rule].kind == NODE_RULE);
    if (b->nodes[rule].kind != NODE_RULE) return;
    r = &b->rules[b->nodes[rule].a];
    if (r->body) {
        char name[128];

        grammar_fail(b, RD_E_INVALID, "the rule %s is defined twice",
                     error_quote(name, sizeof(name), (const char *)b->bytes + r->name, r->n_name));
        return;
    }
    r->body = body;
}

static grammar_node pair(struct grammar_builder *b, uint8_t kind, grammar_node a, grammar_node c)
{
    uint16_t depth;

    if (!is_node(b, a) || !is_node(b, c)) return 0;
    a = lifted(b, a);
    c = lifted(b, c);
    if (!a || !c) return 0;
    depth = b->nodes[a].depth > b->nodes[c].depth ? b->nodes[a].depth : b->nodes[c].depth;
    return keep(b, (struct node){.kind = kind, .depth = (uint16_t)(depth + 1), .a = a, .n = c}, NULL, 0);
}

grammar_node grammar_both(struct grammar_builder *b, grammar_node a, grammar_node also)
{
    return a == also ? a : pair(b, NODE_BOTH, a, also);
}

grammar_node grammar_except(struct grammar_builder *b, grammar_node a, grammar_node minus)
{
    return pair(b, NODE_EXCEPT, a, minus);
}

/* ---- is it regular? ---------------------------------------------------------------------------------------------- */

static bool regular_below(struct grammar_builder *b, grammar_node node, uint32_t n_rules);

static bool regular_rule(struct grammar_builder *b, struct node *n, uint32_t n_rules)
{
    uint32_t at = n->a;
    bool is;

    if (!b->rules[at].body || b->rules[at].is_open || n_rules >= 64) return false;
    b->rules[at].is_open = true;
    is = regular_below(b, b->rules[at].body, n_rules + 1);
    b->rules[at].is_open = false;
    return is;
}

/* Recursion is bounded by NODE_DEPTH times the rules entered. */
static bool regular_below(struct grammar_builder *b, grammar_node node, uint32_t n_rules)
{
    struct node *n = &b->nodes[node];
    bool is = true;

    if (n->stamp == b->stamp) return true; /* seen and regular */
    if (!grammar_tick(b)) return false;
    switch (n->kind) {
    case NODE_SEQ:
    case NODE_ALT:
        for (uint32_t i = 0; is && i < n->n; i++) is = regular_below(b, b->kids[n->a + i], n_rules);
        break;
    case NODE_REPEAT:
        is = regular_below(b, n->a, n_rules);
        break;
    case NODE_BOTH:
    case NODE_EXCEPT:
        is = regular_below(b, n->a, n_rules) && regular_below(b, n->n, n_rules);
        break;
    case NODE_RULE:
        is = regular_rule(b, n, n_rules);
        break;
    default:
        break;
    }
    if (is) n->stamp = b->stamp;
    return is;
}

bool grammar_is_regular(struct grammar_builder *b, grammar_node node)
{
    b->stamp++;
    return regular_below(b, node, 0);
}

int grammar_is_nothing(struct grammar_builder *b, grammar_node node)
{
    const struct fa *fa;

    if (!is_node(b, node) || !grammar_is_regular(b, node)) return -1;
    fa = fa_of_node(b, node);
    return fa ? fa_is_nothing(fa) : -1;
}
