/* text/grammar/grammar_memory.c - what sets and masks may take, and what goes when it is too much.
 *
 * Sets that no matcher holds, that no walk stands on and in which nothing of these began go with a sweep. What remains
 * decides when the next one comes, so that it is not every byte's. Before a sweep a grammar asks the budget for more, as
 * long as an eighth of it stays for grammars that are still to come.
 *
 *     what all matchers hold > granted:  those that alone hold more than granted / n_matchers, and than HELD_BYTES, are
 *                                        over their share, and end at their next step. All others together fit.
 */
#include <stdlib.h>
#include "base/mem.h"
#include "text/grammar/grammar_impl.h"

#define GRANT         ((size_t)256 << 10)
#define RESERVE_SHARE 8u                  /* of the budget: not for those that grow */
#define HELD_BYTES    ((size_t)256 << 10) /* a text may hold in any case: JSON that is nested about 600 deep */
#define SLACK_BYTES   ((size_t)16 << 10)  /* between sweeps: what a walk needs again is not made anew all the time */
#define SCRATCH_BYTES ((size_t)64 << 10)  /* of one list, kept from call to call */

/* ---- the budget -------------------------------------------------------------------------------------------------- */

static bool take_up_to(struct grammar_budget *b, uint64_t n, uint64_t limit)
{
    unsigned long long used = atomic_load_explicit(&b->used, memory_order_relaxed);

    do
        if (used > limit || n > limit - used) return false;
    while (
        !atomic_compare_exchange_weak_explicit(&b->used, &used, used + n, memory_order_relaxed, memory_order_relaxed));
    return true;
}

bool grammar_budget_take(struct grammar_budget *b, uint64_t n)
{
    return take_up_to(b, n, b->limit);
}

void grammar_budget_give(struct grammar_budget *b, uint64_t n)
{
    atomic_fetch_sub_explicit(&b->used, n, memory_order_relaxed);
}

/* So that n bytes are granted. */
static bool grant(struct grammar *g, size_t n)
{
    size_t want = (n / GRANT + 1) * GRANT;

    if (want > g->space) want = g->space;
    if (n > want) return false;
    if (want <= g->granted) return true;
    if (g->budget && !take_up_to(g->budget, want - g->granted, g->budget->limit - g->budget->limit / RESERVE_SHARE))
        return false;
    g->granted = want;
    return true;
}

/* What is not needed is given back. */
static void give(struct grammar *g)
{
    size_t keep = (g->n_bytes / GRANT + 2) * GRANT;

    if (keep < g->least) keep = g->least;
    if (!g->budget || keep >= g->granted) return;
    grammar_budget_give(g->budget, g->granted - keep);
    g->granted = keep;
}

/* ---- sets -------------------------------------------------------------------------------------------------------- */

size_t set_bytes(const struct grammar *g, const struct set *s)
{
    return sizeof(*s) + s->n_items * sizeof(*s->items) + s->n_waiting * sizeof(*s->waiting) +
           s->n_ways * sizeof(*s->ways) + (s->next ? g->net.n_classes * sizeof(*s->next) : 0) + sizeof(*g->sets) +
           sizeof(*g->free_ids) + sizeof(*g->table) + sizeof(*g->marks);
}

void set_free(struct grammar *g, uint32_t id)
{
    struct set *s = g->sets[id];

    g->n_bytes -= set_bytes(g, s);
    set_mask_free(g, s);
    mem_free(s->next);
    mem_free(s);
    g->sets[id] = NULL;
    g->n_alive--;
}

static void mark(struct grammar *g, uint32_t id)
{
    if (id == OUTSIDE || id == NONE || g->sets[id]->marked) return;
    g->sets[id]->marked = true;
    g->marks[g->n_marks++] = id; /* a stack; there is room for all */
}

/* All that those marked began in. Returns their bytes. */
static size_t mark_origins(struct grammar *g)
{
    size_t n = 0;

    while (g->n_marks) {
        const struct set *s = g->sets[g->marks[--g->n_marks]];

        n += set_bytes(g, s);
        for (uint32_t i = 0; i < s->n_items; i++)
            if (s->items[i].origin != SELF) mark(g, s->items[i].origin);
        for (uint32_t i = 0; i < s->n_waiting; i++)
            if (s->waiting[i].origin != SELF) mark(g, s->waiting[i].origin);
    }
    return n;
}

static void mark_matcher(struct grammar *g, const struct grammar_matcher *m)
{
    for (uint32_t i = 0; i <= m->n_back; i++) mark(g, m->steps[(m->at + m->cap - i) % m->cap]);
}

static void mark_held(struct grammar *g)
{
    mark(g, g->start);
    for (uint32_t i = 0; i < g->n_walk; i++) mark(g, g->walk[i]);
    mutex_lock(&g->lock);
    for (const struct grammar_matcher *m = g->matchers; m; m = m->next) mark_matcher(g, m);
    mutex_unlock(&g->lock);
    mark_origins(g);
}

/* Of the sets that stay, what is known of sets that go is forgotten. */
static void forget_next(struct grammar *g, struct set *s)
{
    for (uint32_t c = 0; s->next && c < g->net.n_classes; c++)
        if (s->next[c] && !g->sets[s->next[c]]->marked) s->next[c] = 0;
}

static void sweep(struct grammar *g)
{
    mark_held(g);
    for (uint32_t i = 1; i < g->n_sets; i++)
        if (g->sets[i] && g->sets[i]->marked) forget_next(g, g->sets[i]);
    for (uint32_t i = 0; i < g->cap_table; i++) g->table[i] = 0;
    for (uint32_t i = 1; i < g->n_sets; i++) {
        struct set *s = g->sets[i];

        if (!s) continue;
        if (!s->marked) {
            set_free(g, i);
            g->free_ids[g->n_free++] = i;
            continue;
        }
        s->marked = false;
        if (s->mask && g->now - s->mask->used > g->n_alive) set_mask_free(g, s);
        s->chain = g->table[s->hash & (g->cap_table - 1)];
        g->table[s->hash & (g->cap_table - 1)] = i;
    }
    for (uint32_t i = 1; g->n_bytes > g->granted / 2 && i < g->n_sets; i++) /* still much: masks can be made again */
        if (g->sets[i]) set_mask_free(g, g->sets[i]);
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static size_t held_alone(struct grammar *g, const struct grammar_matcher *m)
{
    size_t n;

    mark_matcher(g, m);
    n = mark_origins(g);
    for (uint32_t i = 1; i < g->n_sets; i++)
        if (g->sets[i]) g->sets[i]->marked = false;
    return n;
}

/* More is held than is granted, and no more is given. */
static void find_those_over(struct grammar *g)
{
    size_t n = 0, share;

    mutex_lock(&g->lock);
    for (const struct grammar_matcher *m = g->matchers; m; m = m->next) n++;
    share = n && g->granted / n > HELD_BYTES ? g->granted / n : HELD_BYTES;
    for (struct grammar_matcher *m = g->matchers; m; m = m->next) m->is_over = held_alone(g, m) > share;
    mutex_unlock(&g->lock);
}

static rd_status answer(const struct grammar *g, bool too_much)
{
    if (g->asker) return g->asker->is_over ? RD_E_LIMIT : RD_OK;
    return too_much && g->n_bytes > HELD_BYTES ? RD_E_LIMIT : RD_OK;
}

rd_status sets_room(struct grammar *g)
{
    bool too_much;

    if (g->n_bytes <= g->sweep_at) return answer(g, false);
    if (grant(g, g->n_bytes)) {
        g->sweep_at = g->granted;
        return answer(g, false);
    }
    if (!mem_grow((void **)&g->marks, &g->cap_marks, g->n_sets, sizeof(*g->marks))) return RD_E_NOMEM;
    sweep(g);
    too_much = !grant(g, g->n_bytes);
    if (too_much) find_those_over(g);
    give(g);
    g->sweep_at = g->n_bytes + (g->n_bytes / 4 > SLACK_BYTES ? g->n_bytes / 4 : SLACK_BYTES);
    if (g->sweep_at < g->granted) g->sweep_at = g->granted;
    return answer(g, too_much);
}

/* ---- lists that are worked with ---------------------------------------------------------------------------------- */

static void trim(void **list, size_t *cap, size_t size, size_t most)
{
    if (*cap * size <= most) return;
    mem_free(*list);
    *list = NULL;
    *cap = 0;
}

static void trim_all(struct grammar *g, size_t most)
{
    trim((void **)&g->kernel, &g->cap_kernel, sizeof(*g->kernel), most);
    trim((void **)&g->items, &g->cap_items, sizeof(*g->items), most);
    trim((void **)&g->waiting, &g->cap_waiting, sizeof(*g->waiting), most);
    trim((void **)&g->ways, &g->cap_ways, sizeof(*g->ways), most);
    trim((void **)&g->seen, &g->cap_seen, sizeof(*g->seen), most);
    trim((void **)&g->leaves, &g->cap_leaves, sizeof(*g->leaves), most);
    trim((void **)&g->path, &g->cap_path, sizeof(*g->path), most);
}

void scratch_trim(struct grammar *g)
{
    trim_all(g, SCRATCH_BYTES);
}

void scratch_free(struct grammar *g)
{
    trim_all(g, 0);
}

/* ---- local masks ------------------------------------------------------------------------------------------------- */

static struct held_local *held_of(struct grammar *g, const struct local_mask *m)
{
    for (size_t i = 0; i < g->n_held; i++)
        if (g->held[i].m == m) return &g->held[i];
    return NULL;
}

rd_status local_hold(struct grammar *g, struct local_mask *m)
{
    struct held_local *h = held_of(g, m);

    if (h) {
        h->n_uses++;
        local_mask_unref(m);
        return RD_OK;
    }
    if (!mem_grow((void **)&g->held, &g->cap_held, g->n_held + 1, sizeof(*g->held))) {
        local_mask_unref(m);
        return RD_E_NOMEM;
    }
    g->held[g->n_held++] = (struct held_local){m, 1};
    g->n_bytes += local_mask_bytes(g->vocab, m);
    return RD_OK;
}

void local_release(struct grammar *g, const struct local_mask *m)
{
    struct held_local *h = held_of(g, m);

    if (--h->n_uses) return;
    g->n_bytes -= local_mask_bytes(g->vocab, m);
    local_mask_unref(h->m);
    *h = g->held[--g->n_held];
}
