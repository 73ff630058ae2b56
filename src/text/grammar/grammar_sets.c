/* text/grammar/grammar_sets.c - Earley's sets, interned, and the automaton that they make.
 *
 * A set is known by its kernel: the items that the last byte made, sorted. From them follow the items that go on where a
 * rule is over, and the starts of the rules that are called. Calls of rules that have the empty text have an empty edge
 * beside them (grammar_nfa.c), so no rule has to be over in the set in which it began.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_impl.h"

#define KERNEL_BITS 0x9E3779B97F4A7C15ull

static rd_status put_kernel(struct grammar *g, uint32_t state, uint32_t origin)
{
    if (g->n_kernel == g->cap_kernel &&
        !mem_grow((void **)&g->kernel, &g->cap_kernel, g->n_kernel + 1, sizeof(*g->kernel)))
        return RD_E_NOMEM;
    g->kernel[g->n_kernel++] = (struct item){state, origin};
    return RD_OK;
}

/* ---- closure: into g->items, waiting, ways ----------------------------------------------------------------------- */

static uint64_t item_hash(struct item i)
{
    return (((uint64_t)i.state << 32 | i.origin) * KERNEL_BITS) >> 20;
}

static rd_status seen_grow(struct grammar *g)
{
    size_t cap = g->cap_seen ? g->cap_seen * 2 : 64;
    uint32_t *seen = mem_alloc(cap, sizeof(*seen));

    if (!seen) return RD_E_NOMEM;
    memset(seen, 0xFF, cap * sizeof(*seen));
    for (size_t i = 0; i < g->n_items; i++) {
        size_t h = item_hash(g->items[i]);

        while (seen[h & (cap - 1)] != NONE) h++;
        seen[h & (cap - 1)] = (uint32_t)i;
    }
    mem_free(g->seen);
    g->seen = seen;
    g->cap_seen = cap;
    return RD_OK;
}

static rd_status put_item(struct grammar *g, struct item item)
{
    size_t h;

    if (g->work_left == 0 || g->n_items >= SET_ITEMS) return RD_E_LIMIT;
    g->work_left--;
    if (g->n_items * 2 >= g->cap_seen && seen_grow(g) != RD_OK) return RD_E_NOMEM;
    for (h = item_hash(item); g->seen[h & (g->cap_seen - 1)] != NONE; h++) {
        struct item other = g->items[g->seen[h & (g->cap_seen - 1)]];

        if (other.state == item.state && other.origin == item.origin) return RD_OK;
    }
    if (g->n_items == g->cap_items && !mem_grow((void **)&g->items, &g->cap_items, g->n_items + 1, sizeof(*g->items)))
        return RD_E_NOMEM;
    g->seen[h & (g->cap_seen - 1)] = (uint32_t)g->n_items;
    g->items[g->n_items++] = item;
    return RD_OK;
}

/* Clears `seen` of the items there are. */
static void forget_items(struct grammar *g)
{
    if (g->n_items * 8 > g->cap_seen) {
        if (g->seen) memset(g->seen, 0xFF, g->cap_seen * sizeof(*g->seen));
    } else {
        for (size_t i = g->n_items; i--;) { /* the last first: none lies behind a hole */
            size_t h = item_hash(g->items[i]);

            while (g->seen[h & (g->cap_seen - 1)] != i) h++;
            g->seen[h & (g->cap_seen - 1)] = NONE;
        }
    }
    g->n_items = 0;
}

static uint32_t first_waiting(const struct set *s, uint32_t rule)
{
    uint32_t low = 0, high = s->n_waiting;

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (s->waiting[mid].rule < rule)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* An item of a rule that is over: those that called it go on. */
static rd_status complete(struct grammar *g, struct item item, bool *ends)
{
    uint32_t rule = g->net.rule_of[item.state];
    const struct set *origin;
    rd_status st = RD_OK;

    if (item.origin == OUTSIDE) {
        *ends = true;
        return RD_OK;
    }
    origin = g->sets[item.origin];
    for (uint32_t i = first_waiting(origin, rule);
         st == RD_OK && i < origin->n_waiting && origin->waiting[i].rule == rule; i++) {
        const struct waiting *w = &origin->waiting[i];

        st = put_item(g, (struct item){w->to, w->origin == SELF ? item.origin : w->origin});
    }
    return st;
}

rd_status set_complete(struct grammar *g, uint32_t origin, uint32_t rule)
{
    const struct set *s = origin == OUTSIDE ? NULL : g->sets[origin];
    rd_status st = RD_OK;

    g->n_kernel = 0;
    if (!s) return RD_OK;
    for (uint32_t i = first_waiting(s, rule); st == RD_OK && i < s->n_waiting && s->waiting[i].rule == rule; i++)
        st = put_kernel(g, s->waiting[i].to, s->waiting[i].origin == SELF ? origin : s->waiting[i].origin);
    return st;
}

static rd_status put_calls(struct grammar *g, struct item item)
{
    const struct network *n = &g->net;
    uint32_t from = n->call_first[item.state], end = n->call_first[item.state + 1];

    if (g->n_waiting + (end - from) > SET_WAITING) return RD_E_LIMIT;
    for (uint32_t k = from; k < end; k++) {
        if (g->n_waiting == g->cap_waiting &&
            !mem_grow((void **)&g->waiting, &g->cap_waiting, g->n_waiting + 1, sizeof(*g->waiting)))
            return RD_E_NOMEM;
        g->waiting[g->n_waiting++] = (struct waiting){n->calls[k].rule, n->calls[k].to, item.origin};
    }
    return RD_OK;
}

static int by_rule(const void *x, const void *y)
{
    const struct waiting *a = x, *b = y;

    if (a->rule != b->rule) return a->rule < b->rule ? -1 : 1;
    if (a->to != b->to) return a->to < b->to ? -1 : 1;
    return a->origin < b->origin ? -1 : a->origin > b->origin;
}

/* All items from the kernel's. outer: how many are no predictions. */
static rd_status close_items(struct grammar *g, size_t *outer, bool *ends)
{
    const struct network *n = &g->net;
    rd_status st = RD_OK;

    g->n_waiting = 0;
    for (size_t i = 0; st == RD_OK && i < g->n_kernel; i++) st = put_item(g, g->kernel[i]);
    for (size_t i = 0; st == RD_OK && i < g->n_items; i++)
        if (n->accepts[g->items[i].state]) st = complete(g, g->items[i], ends);
    *outer = g->n_items;
    for (size_t i = 0; st == RD_OK && i < g->n_items; i++) {
        size_t from = g->n_waiting;

        st = put_calls(g, g->items[i]);
        for (size_t k = from; st == RD_OK && k < g->n_waiting; k++)
            st = put_item(g, (struct item){n->starts[g->waiting[k].rule], SELF});
    }
    if (g->n_waiting) qsort(g->waiting, g->n_waiting, sizeof(*g->waiting), by_rule);
    return st;
}

/* ---- distances --------------------------------------------------------------------------------------------------- */

static uint64_t way_up(const struct way *ways, size_t n, uint32_t rule)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (ways[mid].rule < rule)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && ways[low].rule == rule ? ways[low].up : NEVER;
}

/* From the end of the item's rule to the end of the text. */
static uint64_t way_after(const struct grammar *g, uint32_t state, uint32_t origin)
{
    const struct set *s;

    if (origin == OUTSIDE) return 0;
    s = g->sets[origin];
    return way_up(s->ways, s->n_ways, g->net.rule_of[state]);
}

/* Its rule's way up becomes shorter by one of those that wait for it. */
static bool shorten(struct grammar *g, const struct waiting *w, struct way *way)
{
    uint64_t up =
        w->origin == SELF ? way_up(g->ways, g->n_ways, g->net.rule_of[w->to]) : way_after(g, w->to, w->origin);

    up = dist_sum(g->net.dist[w->to], up);
    if (up >= way->up) return false;
    way->up = up;
    return true;
}

static bool shorten_forwards(struct grammar *g)
{
    struct way *way = g->ways;
    bool changes = false;

    for (size_t i = 0; i < g->n_waiting; i++) {
        while (way->rule != g->waiting[i].rule) way++;
        changes |= shorten(g, &g->waiting[i], way);
    }
    return changes;
}

static bool shorten_backwards(struct grammar *g)
{
    struct way *way = g->ways + g->n_ways - 1;
    bool changes = false;

    for (size_t i = g->n_waiting; i--;) {
        while (way->rule != g->waiting[i].rule) way--;
        changes |= shorten(g, &g->waiting[i], way);
    }
    return changes;
}

/* From the ends of the rules that are called here. Rules that called others in this very set get theirs from each other:
 * again, to and fro, until nothing becomes shorter. Mostly that is twice; more is work, as there are grammars that take as
 * many times as they have rules. */
static rd_status measure_ways(struct grammar *g)
{
    bool changes = true;

    g->n_ways = 0;
    for (size_t i = 0; i < g->n_waiting; i++) {
        if (i && g->waiting[i].rule == g->waiting[i - 1].rule) continue;
        if (g->n_ways == g->cap_ways && !mem_grow((void **)&g->ways, &g->cap_ways, g->n_ways + 1, sizeof(*g->ways)))
            return RD_E_NOMEM;
        g->ways[g->n_ways++] = (struct way){g->waiting[i].rule, NEVER};
    }
    for (uint64_t times = 0; changes; times++) {
        const uint64_t work = times < 3 ? 0 : g->n_waiting;

        if (work > g->work_left) return RD_E_LIMIT;
        g->work_left -= work;
        changes = times % 2 ? shorten_backwards(g) : shorten_forwards(g);
    }
    return RD_OK;
}

/* ---- interning --------------------------------------------------------------------------------------------------- */

static int by_item(const void *x, const void *y)
{
    const struct item *a = x, *b = y;

    if (a->state != b->state) return a->state < b->state ? -1 : 1;
    return a->origin < b->origin ? -1 : a->origin > b->origin;
}

static void sort_kernel(struct grammar *g)
{
    size_t n = 0;

    if (g->n_kernel > 1) qsort(g->kernel, g->n_kernel, sizeof(*g->kernel), by_item);
    for (size_t i = 0; i < g->n_kernel; i++)
        if (!n || by_item(&g->kernel[n - 1], &g->kernel[i])) g->kernel[n++] = g->kernel[i];
    g->n_kernel = n;
}

static rd_status table_grow(struct grammar *g)
{
    uint32_t cap = g->cap_table ? g->cap_table * 2 : 256;
    uint32_t *table = mem_zalloc(cap, sizeof(*table));

    if (!table) return RD_E_NOMEM;
    for (uint32_t i = 1; i < g->n_sets; i++)
        if (g->sets[i]) {
            uint32_t *at = &table[g->sets[i]->hash & (cap - 1)];

            g->sets[i]->chain = *at;
            *at = i;
        }
    mem_free(g->table);
    g->table = table;
    g->cap_table = cap;
    return RD_OK;
}

/* A free id; its set is stored by the caller, which cannot fail. */
static rd_status new_id(struct grammar *g, uint32_t *id)
{
    size_t cap = g->cap_sets;

    if (g->n_alive >= g->cap_table && table_grow(g) != RD_OK) return RD_E_NOMEM;
    if (g->n_free) {
        *id = g->free_ids[g->n_free - 1];
        return RD_OK;
    }
    if (g->n_sets >= NONE - 1) return RD_E_NOMEM;
    if (!mem_grow((void **)&g->sets, &cap, (size_t)g->n_sets + 1, sizeof(*g->sets))) return RD_E_NOMEM;
    g->cap_sets = (uint32_t)cap;
    cap = g->cap_free;
    if (!mem_grow((void **)&g->free_ids, &cap, g->cap_sets, sizeof(*g->free_ids))) return RD_E_NOMEM;
    g->cap_free = (uint32_t)cap;
    *id = g->n_sets;
    return RD_OK;
}

static void find_first(const struct grammar *g, struct set *s)
{
    const struct network *n = &g->net;

    for (uint32_t i = 0; i < s->n_items; i++)
        for (uint32_t k = n->edge_first[s->items[i].state]; k < n->edge_first[s->items[i].state + 1]; k++)
            for (unsigned c = n->edges[k].low; c <= n->edges[k].high; c++) s->first[c >> 6] |= 1ull << (c & 63);
}

/* From the end of an item's rule to the end of the text, of an item of this set. */
static uint64_t way_up_from(const struct grammar *g, const struct set *s, struct item item)
{
    if (item.origin == SELF) return way_up(s->ways, s->n_ways, g->net.rule_of[item.state]);
    return way_after(g, item.state, item.origin);
}

/* Of one item that has the most. */
static void find_plain(const struct grammar *g, struct set *s)
{
    const uint8_t *plain = g->net.plain;

    for (uint32_t i = 0; plain && i < s->n_items; i++)
        if (plain[s->items[i].state] > s->plain && way_up_from(g, s, s->items[i]) != NEVER)
            s->plain = plain[s->items[i].state];
    s->plain_ends = s->plain != 0 && s->plain < PLAIN_MOST;
    for (uint32_t i = 0; s->plain_ends && i < s->n_items; i++)
        s->plain_ends = g->net.plain_most[s->items[i].state] <= s->plain;
}

uint64_t set_plain_far(const struct grammar *g, const struct set *s)
{
    for (uint32_t i = 0; i < s->n_items; i++) {
        uint64_t up;

        if (g->net.plain[s->items[i].state] != s->plain) continue;
        up = way_up_from(g, s, s->items[i]);
        if (up != NEVER) return dist_sum(g->net.plain_far[s->items[i].state], up);
    }
    return NEVER;
}

/* The set of what was closed; its parts lie behind it. */
static rd_status make_set(struct grammar *g, uint64_t hash, size_t outer, bool ends, uint32_t *out)
{
    size_t items = g->n_items * sizeof(*g->items), waiting = g->n_waiting * sizeof(*g->waiting);
    size_t ways = g->n_ways * sizeof(*g->ways);
    struct set *s;
    uint32_t id;

    if (new_id(g, &id) != RD_OK) return RD_E_NOMEM;
    s = mem_alloc(1, sizeof(*s) + ways + items + waiting);
    if (!s) return RD_E_NOMEM;
    *s = (struct set){.hash = hash,
                      .n_kernel = (uint32_t)g->n_kernel,
                      .n_outer = (uint32_t)outer,
                      .n_items = (uint32_t)g->n_items,
                      .n_waiting = (uint32_t)g->n_waiting,
                      .n_ways = (uint32_t)g->n_ways,
                      .ends = ends,
                      .dist = NEVER};
    s->ways = (struct way *)(s + 1);
    s->items = (struct item *)((char *)s->ways + ways);
    s->waiting = (struct waiting *)((char *)s->items + items);
    if (ways) memcpy(s->ways, g->ways, ways);
    if (items) memcpy(s->items, g->items, items);
    if (waiting) memcpy(s->waiting, g->waiting, waiting);
    for (uint32_t i = 0; i < s->n_outer; i++) {
        uint64_t d = dist_sum(g->net.dist[s->items[i].state], way_after(g, s->items[i].state, s->items[i].origin));

        if (d < s->dist) s->dist = d;
    }
    find_first(g, s);
    find_plain(g, s);
    if (id == g->n_sets)
        g->n_sets++;
    else
        g->n_free--;
    g->sets[id] = s;
    g->n_alive++;
    g->n_bytes += set_bytes(g, s);
    s->chain = g->table[hash & (g->cap_table - 1)];
    g->table[hash & (g->cap_table - 1)] = id;
    *out = id;
    return RD_OK;
}

rd_status set_of_kernel(struct grammar *g, uint32_t *out)
{
    uint64_t hash;
    size_t outer = 0;
    bool ends = false;
    rd_status st;

    sort_kernel(g);
    hash = hash64_of(g->kernel, g->n_kernel * sizeof(*g->kernel));
    for (uint32_t i = g->cap_table ? g->table[hash & (g->cap_table - 1)] : 0; i; i = g->sets[i]->chain) {
        const struct set *s = g->sets[i];

        if (s->hash == hash && s->n_kernel == g->n_kernel &&
            !memcmp(s->items, g->kernel, g->n_kernel * sizeof(*g->kernel))) {
            *out = i;
            return RD_OK;
        }
    }
    st = close_items(g, &outer, &ends);
    if (st == RD_OK) st = measure_ways(g);
    if (st == RD_OK) st = make_set(g, hash, outer, ends, out);
    forget_items(g);
    return st;
}

rd_status set_step(struct grammar *g, uint32_t from, uint8_t byte, uint32_t *to)
{
    const struct network *n = &g->net;
    struct set *s = g->sets[from];
    uint32_t class = n->class_of[byte];
    rd_status st = RD_OK;

    *to = NONE;
    if (!set_has_byte(s, byte)) return RD_OK;
    if (s->next && s->next[class]) {
        *to = s->next[class];
        return RD_OK;
    }
    if (!s->next) {
        s->next = mem_zalloc(n->n_classes, sizeof(*s->next));
        if (!s->next) return RD_E_NOMEM;
        g->n_bytes += n->n_classes * sizeof(*s->next);
    }
    g->n_kernel = 0;
    for (uint32_t i = 0; st == RD_OK && i < s->n_items; i++)
        for (uint32_t k = n->edge_first[s->items[i].state]; k < n->edge_first[s->items[i].state + 1]; k++) {
            if (n->edges[k].low > byte) break;
            if (n->edges[k].high < byte) continue;
            st = put_kernel(g, n->edges[k].to, s->items[i].origin == SELF ? from : s->items[i].origin);
            break;
        }
    if (st == RD_OK) st = set_of_kernel(g, to);
    if (st == RD_OK) s->next[class] = *to;
    return st;
}

int set_short_byte(const struct grammar *g, const struct set *s)
{
    const struct network *n = &g->net;
    int best = -1;

    if (s->dist == 0 || s->dist == NEVER) return -1;
    for (uint32_t i = 0; i < s->n_items; i++) {
        uint32_t state = s->items[i].state;
        uint64_t up = way_up_from(g, s, s->items[i]);

        if (dist_sum(n->dist[state], up) != s->dist) continue;
        for (uint32_t k = n->edge_first[state]; k < n->edge_first[state + 1]; k++) {
            const struct net_edge *e = &n->edges[k];
            unsigned c = e->low;

            if (n->dist[e->to] == NEVER || n->dist[e->to] + 1 != n->dist[state]) continue;
            while (g->vocab && c < e->high && !g->vocab->has_byte[c]) c++;
            if (best < 0 || (int)c < best) best = (int)c;
        }
    }
    return best;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

rd_status sets_start(struct grammar *g)
{
    g->sets = mem_zalloc(16, sizeof(*g->sets));
    g->free_ids = mem_zalloc(16, sizeof(*g->free_ids));
    if (!g->sets || !g->free_ids) return RD_E_NOMEM;
    g->cap_sets = g->cap_free = 16;
    g->n_sets = 1; /* OUTSIDE */
    g->granted = g->sweep_at = g->space;
    g->n_kernel = 0;
    if (put_kernel(g, g->net.starts[0], OUTSIDE) != RD_OK) return RD_E_NOMEM;
    return set_of_kernel(g, &g->start);
}

void sets_deinit(struct grammar *g)
{
    for (uint32_t i = 1; i < g->n_sets; i++)
        if (g->sets[i]) set_free(g, i);
    mem_free(g->sets);
    mem_free(g->free_ids);
    mem_free(g->table);
    mem_free(g->marks);
    scratch_free(g);
    mem_free(g->held);
}
