/* text/grammar/grammar_network.c - the automata of all rules put together as one network.
 *
 * A rule gets its automaton when it is first called. Then all lie side by side, with states numbered through, and what
 * cannot reach an end is cut off: edges to such states, and calls of rules that never end.
 */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "text/grammar/grammar_impl.h"
#include "text/grammar/grammar_rules.h"

#define HASH_ROUNDS 64u /* calls of calls .. that a hash tells apart, where no more rules call each other in a circle */

struct assembly {
    struct grammar_builder *b;
    struct rule_facts *facts;
    uint32_t cap_facts;
    uint32_t *name, cap_name;            /* [n_rules of the builder]: rule of the network, NONE: not called yet */
    uint32_t *rules, n_rules, cap_rules; /* back */
    struct fa **fas;
    uint32_t n_fas, cap_fas;
};

static uint32_t rule_of(struct assembly *a, uint32_t rule)
{
    if (a->name[rule] != NONE) return a->name[rule];
    if (!grammar_room(a->b, (void **)&a->rules, &a->cap_rules, (uint64_t)a->n_rules + 1, sizeof(*a->rules))) return 0;
    a->rules[a->n_rules] = rule;
    return a->name[rule] = a->n_rules++;
}

/* An automaton per rule that is called, beginning with the first. */
static bool make_automata(struct assembly *a, uint32_t start)
{
    struct grammar_builder *b = a->b;

    if (!grammar_room(b, (void **)&a->name, &a->cap_name, b->n_rules, sizeof(*a->name))) return false;
    memset(a->name, 0xFF, b->n_rules * sizeof(*a->name));
    rule_of(a, start);
    for (uint32_t i = 0; grammar_ok(b) && i < a->n_rules; i++) {
        struct fa *f;

        if (!grammar_room(b, (void **)&a->fas, &a->cap_fas, (uint64_t)i + 1, sizeof(*a->fas))) return false;
        f = fa_of_rule(b, a->rules[i], a->facts);
        if (!f) return false;
        a->fas[a->n_fas++] = f;
        for (uint32_t k = 0; k < f->n_edges; k++)
            if (f->edges[k].rule != NONE) f->edges[k].rule = rule_of(a, f->edges[k].rule);
    }
    return grammar_ok(b);
}

void network_deinit(struct network *n)
{
    mem_free(n->edge_first);
    mem_free(n->call_first);
    mem_free(n->edges);
    mem_free(n->calls);
    mem_free(n->accepts);
    mem_free(n->rule_of);
    mem_free(n->starts);
    mem_free(n->dist);
    mem_free(n->hashes);
    mem_free(n->keys);
    mem_free(n->counts);
    mem_free(n->plain);
    mem_free(n->plain_most);
    mem_free(n->plain_far);
    *n = (struct network){0};
}

size_t network_bytes(const struct network *n)
{
    size_t state =
        sizeof(*n->edge_first) + sizeof(*n->call_first) + sizeof(*n->accepts) + sizeof(*n->rule_of) + sizeof(*n->dist) +
        (n->keys ? sizeof(*n->keys) + sizeof(*n->plain) + sizeof(*n->plain_most) + sizeof(*n->plain_far) : 0);
    size_t rule = sizeof(*n->starts) + sizeof(*n->hashes) + sizeof(*n->counts);

    return n->n_states * state + n->n_rules * rule + (size_t)n->cap_edges * (sizeof(*n->edges) + sizeof(*n->calls));
}

static bool network_alloc(struct network *n, const struct assembly *a)
{
    size_t edges = 0;

    n->n_rules = a->n_fas;
    for (uint32_t i = 0; i < a->n_fas; i++) {
        n->n_states += a->fas[i]->n_states;
        edges += a->fas[i]->n_edges;
    }
    n->edge_first = mem_alloc((size_t)n->n_states + 1, sizeof(*n->edge_first));
    n->call_first = mem_alloc((size_t)n->n_states + 1, sizeof(*n->call_first));
    n->cap_edges = (uint32_t)edges;
    n->edges = mem_alloc(edges, sizeof(*n->edges));
    n->calls = mem_alloc(edges, sizeof(*n->calls));
    n->accepts = mem_alloc(n->n_states, 1);
    n->rule_of = mem_alloc(n->n_states, sizeof(*n->rule_of));
    n->starts = mem_alloc((size_t)n->n_rules + 1, sizeof(*n->starts));
    n->dist = mem_alloc(n->n_states, sizeof(*n->dist));
    n->hashes = mem_zalloc(n->n_rules, sizeof(*n->hashes));
    return n->edge_first && n->call_first && n->edges && n->calls && n->accepts && n->rule_of && n->starts && n->dist &&
           n->hashes;
}

static void fill(struct network *n, const struct assembly *a)
{
    uint32_t state = 0;

    for (uint32_t i = 0; i < a->n_fas; i++) {
        const struct fa *f = a->fas[i];
        uint32_t base = n->starts[i] = state;

        for (uint32_t s = 0; s < f->n_states; s++, state++) {
            n->edge_first[state] = n->n_edges;
            n->call_first[state] = n->n_calls;
            n->accepts[state] = f->accepts[s];
            n->rule_of[state] = i;
            for (uint32_t k = f->first[s]; k < f->first[s + 1]; k++) {
                const struct fa_edge *e = &f->edges[k];

                if (e->rule == NONE)
                    n->edges[n->n_edges++] = (struct net_edge){base + e->to, e->low, e->high};
                else
                    n->calls[n->n_calls++] = (struct net_call){e->rule, base + e->to};
            }
        }
    }
    n->starts[n->n_rules] = n->edge_first[state] = n->call_first[state] = 0;
    n->starts[n->n_rules] = state;
    n->edge_first[state] = n->n_edges;
    n->call_first[state] = n->n_calls;
}

/* Takes edges away that lead to no end. dist: of all bytes. */
static void trim(struct network *n)
{
    uint32_t n_edges = 0, n_calls = 0, edge = 0, call = 0;

    for (uint32_t s = 0; s < n->n_states; s++) {
        n->edge_first[s] = n_edges;
        for (; edge < n->edge_first[s + 1]; edge++)
            if (n->dist[n->edges[edge].to] != NEVER) n->edges[n_edges++] = n->edges[edge];
        n->call_first[s] = n_calls;
        for (; call < n->call_first[s + 1]; call++)
            if (n->dist[n->calls[call].to] != NEVER && n->dist[n->starts[n->calls[call].rule]] != NEVER)
                n->calls[n_calls++] = n->calls[call];
    }
    n->edge_first[n->n_states] = n->n_edges = n_edges;
    n->call_first[n->n_states] = n->n_calls = n_calls;
}

static void classify(struct network *n)
{
    bool starts[257] = {true};

    for (uint32_t i = 0; i < n->n_edges; i++) starts[n->edges[i].low] = starts[n->edges[i].high + 1] = true;
    for (unsigned c = 0; c < 256; c++) {
        n->n_classes += starts[c];
        n->class_of[c] = (uint8_t)(n->n_classes - 1);
    }
}

/* Of a rule's automaton, calls of rules without their names. */
static struct hash128 hash_shape(const struct network *n, uint32_t rule)
{
    struct hash128 h = {n->secret[0], n->secret[1]};
    uint32_t start = n->starts[rule];

    for (uint32_t s = start; s < n->starts[rule + 1]; s++) {
        struct hash128 sizes = {n->edge_first[s + 1] - n->edge_first[s], n->call_first[s + 1] - n->call_first[s]};

        h = name_mixed(n, h, sizes, n->accepts[s]);
        for (uint32_t k = n->edge_first[s]; k < n->edge_first[s + 1]; k++) {
            struct hash128 edge = {n->edges[k].to - start, (uint64_t)n->edges[k].low << 8 | n->edges[k].high};

            h = name_mixed(n, h, edge, 2);
        }
        for (uint32_t k = n->call_first[s]; k < n->call_first[s + 1]; k++)
            h = name_mixed(n, h, (struct hash128){n->calls[k].to - start, 0}, 3);
    }
    return h;
}

/* A rule's hash: its shape with the hashes of the rules that it calls. Those are known before, except for rules that call each
 * other in a circle: they are told apart round by round, one call deeper in each. As many rounds as there are of them tell
 * all apart, and no more do when a round has told none apart. */
struct hashing {
    struct network *n;
    struct grammar_builder *b;
    struct place {
        uint32_t component, rule;
    } * order; /* what is called comes first */
    struct hash128 *shapes, *next;
};

static int by_component(const void *x, const void *y)
{
    const struct place *a = x, *b = y;

    if (a->component != b->component) return a->component < b->component ? -1 : 1;
    return a->rule < b->rule ? -1 : a->rule > b->rule;
}

static int by_hash(const void *x, const void *y)
{
    const struct hash128 *a = x, *b = y;

    if (a->low != b->low) return a->low < b->low ? -1 : 1;
    return a->high < b->high ? -1 : a->high > b->high;
}

static struct hash128 hash_calls(const struct network *n, uint32_t rule, struct hash128 h)
{
    for (uint32_t k = n->call_first[n->starts[rule]]; k < n->call_first[n->starts[rule + 1]]; k++)
        h = name_mixed(n, h, n->hashes[n->calls[k].rule], 4);
    return h;
}

/* The rules of one component, once more. false: the time is over. */
static bool hash_round(struct hashing *h, const struct place *of, uint32_t n_of)
{
    for (uint32_t i = 0; i < n_of; i++) {
        if (!grammar_tick(h->b)) return false;
        h->next[i] = hash_calls(h->n, of[i].rule, h->shapes[of[i].rule]);
    }
    for (uint32_t i = 0; i < n_of; i++) h->n->hashes[of[i].rule] = h->next[i];
    return true;
}

/* How many hashes there are in next, which becomes sorted. */
static uint32_t count_distinct(struct hashing *h, uint32_t n_of)
{
    uint32_t n = 0;

    qsort(h->next, n_of, sizeof(*h->next), by_hash);
    for (uint32_t i = 0; i < n_of; i++) n += i == 0 || !hash128_equal(h->next[i - 1], h->next[i]);
    return n;
}

static bool hash_circle(struct hashing *h, const struct place *of, uint32_t n_of)
{
    uint32_t rounds = n_of < HASH_ROUNDS ? HASH_ROUNDS : n_of, n_distinct = 0;

    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t before = n_distinct;

        if (!hash_round(h, of, n_of)) return false;
        if (round + 2 < HASH_ROUNDS) continue; /* at least this many: in all grammars that have these rules */
        n_distinct = count_distinct(h, n_of);
        if (round + 1 >= HASH_ROUNDS && n_distinct == before) break;
    }
    return true;
}

static bool hash_all(struct hashing *h, const struct assembly *a)
{
    const uint32_t n = h->n->n_rules;

    for (uint32_t r = 0; r < n; r++) {
        if (!grammar_tick(h->b)) return false;
        h->shapes[r] = hash_shape(h->n, r);
        h->order[r] = (struct place){a->facts[a->rules[r]].component, r};
    }
    qsort(h->order, n, sizeof(*h->order), by_component);
    for (uint32_t at = 0, end; at < n; at = end) {
        for (end = at + 1; end < n && h->order[end].component == h->order[at].component;) end++;
        if (a->facts[a->rules[h->order[at].rule]].recursive ? !hash_circle(h, h->order + at, end - at)
                                                            : !hash_round(h, h->order + at, end - at))
            return false;
    }
    return true;
}

static bool hash_rules(struct network *n, const struct assembly *a)
{
    struct hashing h = {.n = n, .b = a->b};
    bool ok;

    h.order = mem_alloc(n->n_rules, sizeof(*h.order));
    h.shapes = mem_alloc(n->n_rules, sizeof(*h.shapes));
    h.next = mem_alloc(n->n_rules, sizeof(*h.next));
    ok = h.order && h.shapes && h.next;
    if (!ok) grammar_fail(a->b, RD_E_NOMEM, "out of memory for a grammar");
    ok = ok && hash_all(&h, a);
    mem_free(h.order);
    mem_free(h.shapes);
    mem_free(h.next);
    return ok;
}

static void fail_without_text(struct grammar_builder *b, const struct assembly *a, const struct network *n)
{
    char name[128];

    for (uint32_t r = n->n_rules; r--;) { /* the one called last is nearest to the cause */
        const struct rule *rule = &b->rules[a->rules[r]];

        if (n->dist[n->starts[r]] != NEVER) continue;
        grammar_fail(b, RD_E_INVALID, "the rule %s is a language without any text",
                     error_quote(name, sizeof(name), (const char *)b->bytes + rule->name, rule->n_name));
        return;
    }
}

/* Distances by bytes that are tokens, when some byte of the grammar is none. */
static bool measure_spelt(struct network *n, struct grammar_builder *b, const bool *has_byte)
{
    int missing = -1;

    for (uint32_t i = 0; i < n->n_edges; i++)
        for (unsigned c = n->edges[i].low; c <= n->edges[i].high; c++)
            if (!has_byte[c] && c != 0xFF) missing = (int)c;
    if (missing < 0) return true;
    if (!network_measure(n, has_byte)) {
        grammar_fail(b, RD_E_NOMEM, "out of memory for a grammar");
        return false;
    }
    if (n->dist[0] != NEVER) return true;
    grammar_fail(b, RD_E_INVALID,
                 "the vocabulary has no token for some bytes of the grammar (0x%02X is one): no text of it "
                 "can be written",
                 (unsigned)missing);
    return false;
}

static bool assemble(struct network *n, struct assembly *a, const struct grammar_vocab *vocab)
{
    struct grammar_builder *b = a->b;

    if (!network_alloc(n, a)) goto nomem;
    fill(n, a);
    if (!network_measure(n, NULL)) goto nomem;
    if (n->dist[0] == NEVER) {
        fail_without_text(b, a, n);
        return false;
    }
    trim(n);
    classify(n);
    if (!hash_rules(n, a)) return false;
    if (vocab && !measure_spelt(n, b, vocab->has_byte)) return false;
    if (vocab && (!network_name(n) || !network_find_plain(n))) goto nomem;
    return true;

nomem:
    grammar_fail(b, RD_E_NOMEM, "out of memory for a grammar");
    return false;
}

bool network_make(struct network *n, struct grammar_builder *b, grammar_node root, const struct grammar_vocab *vocab)
{
    struct assembly a = {.b = b};
    grammar_node start;
    bool ok;

    if (vocab) memcpy(n->secret, vocab->secret, sizeof(n->secret));
    if (!grammar_outline(b)) return false;
    start = b->nodes[root].kind == NODE_RULE ? root : grammar_rule_with(b, root, "root");
    ok = start && grammar_learn(b, b->nodes[start].a, vocab, &a.facts, &a.cap_facts) &&
         make_automata(&a, b->nodes[start].a) && assemble(n, &a, vocab);
    for (uint32_t i = 0; i < a.n_fas; i++) fa_destroy(a.fas[i]);
    grammar_unroom(b, (void **)&a.facts, &a.cap_facts, sizeof(*a.facts));
    grammar_unroom(b, (void **)&a.name, &a.cap_name, sizeof(*a.name));
    grammar_unroom(b, (void **)&a.rules, &a.cap_rules, sizeof(*a.rules));
    grammar_unroom(b, (void **)&a.fas, &a.cap_fas, sizeof(*a.fas));
    return ok;
}
