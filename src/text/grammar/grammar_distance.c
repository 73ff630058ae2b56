/* text/grammar/grammar_distance.c - how many bytes are missing, at least, to the end of a rule, from each of its states.
 *
 * Dijkstra's algorithm backwards from the ends, as Knuth generalised it to grammars (Information Processing Letters 6(1),
 * 1977): a call costs what its rule costs from its start, and counts once both that and the way after it are known.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_impl.h"

#define TOO_FAR ((uint64_t)1 << 60) /* longer ways are as good as none */

struct heap_entry {
    uint64_t dist;
    uint32_t state;
};
struct back {
    uint32_t from, rule;
}; /* an edge of bytes: rule NONE, or UNSPELT */
#define UNSPELT (NONE - 1)

struct measuring {
    struct network *n;
    struct heap_entry *heap;
    size_t n_heap, cap_heap;
    struct back *backs;
    uint32_t *back_first;             /* edges and calls by where they lead */
    uint32_t *callers, *caller_first; /* calls by rule: places in n->calls */
    uint32_t *call_from;              /* [n_calls] */
    uint8_t *is_final;
};

static bool heap_push(struct measuring *m, uint32_t state, uint64_t dist)
{
    size_t i = m->n_heap;

    if (m->is_final[state] || dist >= m->n->dist[state] || dist > TOO_FAR) return true;
    m->n->dist[state] = dist;
    if (!mem_grow((void **)&m->heap, &m->cap_heap, i + 1, sizeof(*m->heap))) return false;
    m->n_heap++;
    for (; i && m->heap[(i - 1) / 2].dist > dist; i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = (struct heap_entry){dist, state};
    return true;
}

static struct heap_entry heap_pop(struct measuring *m)
{
    struct heap_entry top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < m->n_heap) {
        if (child + 1 < m->n_heap && m->heap[child + 1].dist < m->heap[child].dist) child++;
        if (m->heap[child].dist >= last.dist) break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* Whether an edge can be spelt: one of its bytes is a token, or it is of a special token (0xFF and what comes after). */
static bool is_spelt(const struct net_edge *e, const bool *has_byte, bool in_token)
{
    if (!has_byte || in_token || e->high == 0xFF) return true;
    for (unsigned c = e->low; c <= e->high; c++)
        if (has_byte[c]) return true;
    return false;
}

/* States within special tokens: up to 3 edges after one of 0xFF. */
static void mark_tokens(const struct network *n, uint8_t *in_token)
{
    for (unsigned level = 0; level < 3; level++)
        for (uint32_t s = 0; s < n->n_states; s++)
            for (uint32_t k = n->edge_first[s]; k < n->edge_first[s + 1]; k++)
                if (level ? in_token[s] == level : n->edges[k].high == 0xFF)
                    in_token[n->edges[k].to] = (uint8_t)(level + 1);
}

static bool prepare(struct measuring *m, const bool *has_byte)
{
    const struct network *n = m->n;
    uint8_t *in_token = mem_zalloc(n->n_states, 1);

    m->backs = mem_alloc((size_t)n->n_edges + n->n_calls, sizeof(*m->backs));
    m->back_first = mem_zalloc((size_t)n->n_states + 1, sizeof(*m->back_first));
    m->callers = mem_alloc(n->n_calls, sizeof(*m->callers));
    m->caller_first = mem_zalloc((size_t)n->n_rules + 1, sizeof(*m->caller_first));
    m->call_from = mem_alloc(n->n_calls, sizeof(*m->call_from));
    m->is_final = mem_zalloc(n->n_states, 1);
    if (!in_token || !m->backs || !m->back_first || !m->callers || !m->caller_first || !m->call_from || !m->is_final) {
        mem_free(in_token);
        return false;
    }
    if (has_byte) mark_tokens(n, in_token);
    for (uint32_t i = 0; i < n->n_edges; i++) m->back_first[n->edges[i].to]++;
    for (uint32_t i = 0; i < n->n_calls; i++) {
        m->back_first[n->calls[i].to]++;
        m->caller_first[n->calls[i].rule]++;
    }
    for (uint32_t s = 0; s < n->n_states; s++) m->back_first[s + 1] += m->back_first[s];
    for (uint32_t r = 0; r < n->n_rules; r++) m->caller_first[r + 1] += m->caller_first[r];
    for (uint32_t s = 0; s < n->n_states; s++) {
        for (uint32_t k = n->edge_first[s]; k < n->edge_first[s + 1]; k++)
            m->backs[--m->back_first[n->edges[k].to]] =
                (struct back){s, is_spelt(&n->edges[k], has_byte, in_token[s]) ? NONE : UNSPELT};
        for (uint32_t k = n->call_first[s]; k < n->call_first[s + 1]; k++) {
            m->backs[--m->back_first[n->calls[k].to]] = (struct back){s, n->calls[k].rule};
            m->callers[--m->caller_first[n->calls[k].rule]] = k;
            m->call_from[k] = s;
        }
    }
    mem_free(in_token);
    return true;
}

/* The distance of a state is final: what leads to it becomes nearer. */
static bool settle(struct measuring *m, uint32_t s)
{
    const struct network *n = m->n;
    uint32_t rule = n->rule_of[s];

    m->is_final[s] = 1;
    for (uint32_t i = m->back_first[s]; i < m->back_first[s + 1]; i++) {
        const struct back *k = &m->backs[i];

        if (k->rule == UNSPELT) continue;
        if (k->rule == NONE
                ? !heap_push(m, k->from, n->dist[s] + 1)
                : m->is_final[n->starts[k->rule]] && !heap_push(m, k->from, n->dist[s] + n->dist[n->starts[k->rule]]))
            return false;
    }
    if (s != n->starts[rule]) return true;
    for (uint32_t i = m->caller_first[rule]; i < m->caller_first[rule + 1]; i++) {
        uint32_t k = m->callers[i], to = n->calls[k].to;

        if (m->is_final[to] && !heap_push(m, m->call_from[k], n->dist[s] + n->dist[to])) return false;
    }
    return true;
}

bool network_measure(struct network *n, const bool *has_byte)
{
    struct measuring m = {.n = n};
    bool ok = prepare(&m, has_byte);

    for (uint32_t s = 0; s < n->n_states; s++) n->dist[s] = NEVER;
    for (uint32_t s = 0; ok && s < n->n_states; s++)
        if (n->accepts[s]) ok = heap_push(&m, s, 0);
    while (ok && m.n_heap) {
        struct heap_entry e = heap_pop(&m);

        if (!m.is_final[e.state]) ok = settle(&m, e.state);
    }
    mem_free(m.heap);
    mem_free(m.backs);
    mem_free(m.back_first);
    mem_free(m.callers);
    mem_free(m.caller_first);
    mem_free(m.call_from);
    mem_free(m.is_final);
    return ok;
}
