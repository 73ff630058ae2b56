/* text/grammar/grammar_class.c - a class of characters as a small automaton over the bytes of UTF-8.
 *
 * After a leading byte each node stands for the characters that begin so, as a set of continuations; nodes with the same
 * edges are one. All of a block of 64 ^ k characters, which is the most frequent case, is one node per k.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_nodes.h"

#define EDGES_MAX 256u

struct making {
    struct grammar_builder *b;
    const struct grammar_range *ranges;
    uint32_t n_ranges;
    uint32_t clip_low, clip_high; /* characters whose length in bytes is being made */
    uint32_t *first;
    uint32_t n_nodes, cap_first; /* [n_nodes + 1] */
    struct dag_edge *edges;
    uint32_t n_edges, cap_edges;
};

struct list {
    uint32_t n;
    struct dag_edge edges[EDGES_MAX];
};

static void put_edge(struct list *l, uint8_t low, uint8_t high, uint32_t to)
{
    struct dag_edge *last = l->n ? &l->edges[l->n - 1] : NULL;

    if (last && last->to == to && last->high + 1 == low)
        last->high = high;
    else
        l->edges[l->n++] = (struct dag_edge){to, low, high};
}

/* 0: none of low .. high is in the class, 2: all, 1: some. */
static int covered(const struct making *m, uint32_t low, uint32_t high)
{
    uint32_t at = 0, end = m->n_ranges;

    if (low > m->clip_high || high < m->clip_low) return 0;
    while (at < end) { /* the first range that ends at low or later */
        uint32_t mid = (at + end) / 2;

        if (m->ranges[mid].high < low)
            at = mid + 1;
        else
            end = mid;
    }
    if (at == m->n_ranges || m->ranges[at].low > high) return 0;
    return low >= m->clip_low && high <= m->clip_high && m->ranges[at].low <= low && m->ranges[at].high >= high ? 2 : 1;
}

/* The node with these edges, NONE - 1: failed. */
static uint32_t node_of(struct making *m, const struct list *l)
{
    for (uint32_t i = 1; i < m->n_nodes; i++)
        if (m->first[i + 1] - m->first[i] == l->n) {
            const struct dag_edge *e = l->n ? m->edges + m->first[i] : NULL;
            uint32_t k = 0;

            while (k < l->n && e[k].to == l->edges[k].to && e[k].low == l->edges[k].low &&
                   e[k].high == l->edges[k].high)
                k++;
            if (k == l->n) return i;
        }
    if (!grammar_tick(m->b) ||
        !grammar_room(m->b, (void **)&m->first, &m->cap_first, m->n_nodes + 2, sizeof(*m->first)) ||
        !grammar_room(m->b, (void **)&m->edges, &m->cap_edges, (uint64_t)m->n_edges + l->n, sizeof(*m->edges)))
        return NONE - 1;
    if (l->n) memcpy(m->edges + m->n_edges, l->edges, l->n * sizeof(*l->edges));
    m->n_edges += l->n;
    m->first[++m->n_nodes] = m->n_edges;
    return m->n_nodes - 1;
}

/* Of base .. base + 64 ^ k - 1, as k bytes. Recursion: k levels, at most 3. */
static uint32_t block(struct making *m, uint32_t base, unsigned k)
{
    struct list l = {0};
    uint32_t step = 1u << (6 * (k - 1)), full = NONE; /* full: the node of parts that are in the class as a whole */

    for (uint32_t i = 0; i < 64 && grammar_ok(m->b); i++) {
        uint32_t low = base + i * step, to = NONE;
        int how = covered(m, low, low + step - 1);

        if (!how) continue;
        if (k > 1 && (how == 1 || full == NONE))
            to = block(m, low, k - 1);
        else if (k > 1)
            to = full;
        if (how == 2) full = to;
        put_edge(&l, (uint8_t)(0x80 + i), (uint8_t)(0x80 + i), to);
    }
    return node_of(m, &l);
}

static void lead(struct making *m, struct list *root, unsigned k, uint8_t first, uint8_t last, uint32_t low,
                 uint32_t high)
{
    uint32_t step = 1u << (6 * k), full = NONE;

    m->clip_low = low;
    m->clip_high = high;
    for (uint32_t byte = first; byte <= last && grammar_ok(m->b); byte++) {
        uint32_t base = (byte & (0x3F >> k)) * step;
        int how = covered(m, base, base + step - 1);

        if (!how) continue;
        if (how == 2 && full == NONE) full = block(m, base, k);
        put_edge(root, (uint8_t)byte, (uint8_t)byte, how == 2 ? full : block(m, base, k));
    }
}

static bool make(struct making *m)
{
    struct list root = {0};

    if (!grammar_room(m->b, (void **)&m->first, &m->cap_first, 2, sizeof(*m->first))) return false;
    m->first[0] = m->first[1] = 0;
    m->n_nodes = 1; /* the root, whose edges come last: it is node 0 by a swap */
    m->clip_low = 0;
    m->clip_high = 0x7F;
    for (uint32_t c = 0; c < 0x80; c++)
        if (covered(m, c, c)) put_edge(&root, (uint8_t)c, (uint8_t)c, NONE);
    lead(m, &root, 1, 0xC2, 0xDF, 0x80, 0x7FF);
    lead(m, &root, 2, 0xE0, 0xEF, 0x800, 0xFFFF);
    lead(m, &root, 3, 0xF0, 0xF4, 0x10000, 0x10FFFF);
    if (!grammar_room(m->b, (void **)&m->edges, &m->cap_edges, (uint64_t)m->n_edges + root.n, sizeof(*m->edges)))
        return false;
    if (m->n_edges) memmove(m->edges + root.n, m->edges, m->n_edges * sizeof(*m->edges));
    if (root.n) memcpy(m->edges, root.edges, root.n * sizeof(*m->edges));
    for (uint32_t i = 1; i <= m->n_nodes; i++) m->first[i] += root.n;
    m->n_edges += root.n;
    return grammar_ok(m->b);
}

const struct dag *grammar_class_dag(struct grammar_builder *b, grammar_node node)
{
    struct node *n = &b->nodes[node];
    struct making m = {.b = b, .ranges = b->ranges + n->a, .n_ranges = n->n};

    if (n->memo) return &b->dags[n->memo - 1];
    if (!grammar_room(b, (void **)&b->dags, &b->cap_dags, (uint64_t)b->n_dags + 1, sizeof(*b->dags)) || !make(&m)) {
        grammar_unroom(b, (void **)&m.first, &m.cap_first, sizeof(*m.first));
        grammar_unroom(b, (void **)&m.edges, &m.cap_edges, sizeof(*m.edges));
        return NULL;
    }
    b->dags[b->n_dags] = (struct dag){m.n_nodes, m.first, m.edges};
    n->memo = ++b->n_dags;
    return &b->dags[n->memo - 1];
}
