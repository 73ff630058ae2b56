/* text/grammar/grammar_plain.c - plain text: what a JSON string can hold without an escape.
 *
 * Most of a vocabulary is plain text, and where a string is open, most of it can follow whatever was read. So nobody walks
 * there: of the vocabulary it is known which tokens are plain and how long (once, when it is made), of a state for how many
 * characters any plain text can follow. A mask takes the tokens that are short enough as a whole and walks the others:
 * those with a quote, a backslash, a control character or half a character, 9 thousand of 333 thousand nodes of Qwen's.
 *
 *     the string's state   a..z -> itself             every plain token follows:  slice PLAIN_SLICES
 *     at most 3 more       a..z -> at most 2 more     plain tokens of <= 3 characters:  slice 2, others are walked
 *     names but "id"       i -> i', others -> any     plain tokens all the same: only the quote after "id" is missing
 *
 * Plain characters: UTF-8 from U+0020 on, without the quote and the backslash.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_impl.h"

#define PARTS       4u    /* ranges of the bytes after a first one that a state may tell apart */
#define STEPS_MAX   256u  /* that characters may lead to from one state */
#define FAR_BUCKETS 4096u /* distances that are told apart, in bytes */

/* Places in a character: WHOLE is between two. After E0, ED, F0 and F4 the next byte has a range of its own. */
enum { WHOLE, MORE_1, MORE_2, MORE_3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, NOT_PLAIN };
struct part {
    uint8_t low, high, next;
};
static const struct part first_bytes[] = {
    {0x20, 0x21, WHOLE},    {0x23, 0x5B, WHOLE},  {0x5D, 0x7F, WHOLE},    {0xC2, 0xDF, MORE_1},
    {0xE0, 0xE0, AFTER_E0}, {0xE1, 0xEC, MORE_2}, {0xED, 0xED, AFTER_ED}, {0xEE, 0xEF, MORE_2},
    {0xF0, 0xF0, AFTER_F0}, {0xF1, 0xF3, MORE_3}, {0xF4, 0xF4, AFTER_F4},
};
static const struct part later_bytes[] = {
    [MORE_1] = {0x80, 0xBF, WHOLE},    [MORE_2] = {0x80, 0xBF, MORE_1},   [MORE_3] = {0x80, 0xBF, MORE_2},
    [AFTER_E0] = {0xA0, 0xBF, MORE_1}, [AFTER_ED] = {0x80, 0x9F, MORE_1}, [AFTER_F0] = {0x90, 0xBF, MORE_2},
    [AFTER_F4] = {0x80, 0x8F, MORE_2},
};
#define N_FIRST (sizeof(first_bytes) / sizeof(*first_bytes))

/* ---- of a vocabulary --------------------------------------------------------------------------------------------- */

static uint8_t plain_step(uint8_t place, uint8_t byte)
{
    if (place == NOT_PLAIN) return NOT_PLAIN;
    if (place != WHOLE)
        return byte >= later_bytes[place].low && byte <= later_bytes[place].high ? later_bytes[place].next : NOT_PLAIN;
    for (size_t i = 0; i < N_FIRST; i++)
        if (byte >= first_bytes[i].low && byte <= first_bytes[i].high) return first_bytes[i].next;
    return NOT_PLAIN;
}

/* What the walk down the trie knows of the node at each depth. */
struct trie_path {
    uint32_t node;
    uint16_t n_chars; /* of the text so far */
    uint8_t place;
    bool is_plain; /* from the root on */
};

static void put_in_slices(struct grammar_vocab *v, uint32_t node, const struct trie_path *at)
{
    for (uint32_t k = v->nodes[node].first_id; k < v->nodes[node + 1].first_id; k++) {
        uint32_t id = v->ids[k], first = v->nodes[node].depth > NETWORK_LOOK ? PLAIN_SLICES : at->n_chars - 1u;

        for (uint32_t i = first < PLAIN_SLICES ? first : PLAIN_SLICES; i <= PLAIN_SLICES; i++)
            v->slices[(size_t)i * v->n_words + (id >> 5)] |= 1u << (id & 31);
    }
}

/* Down: places, slices, and into next_dirty the parent of each node, which the way up needs. */
static void mark_down(struct grammar_vocab *v, struct trie_path *path)
{
    path[0] = (struct trie_path){.is_plain = true};
    for (uint32_t i = 1; i < v->n_nodes; i++) {
        struct trie_node *node = &v->nodes[i];
        const struct trie_path *up = &path[node->depth - 1];
        uint8_t place = plain_step(up->place, node->byte);
        bool begins = (node->byte & 0xC0) != 0x80;

        node->plain = (place == NOT_PLAIN ? PLAIN_BREAK : 0) | (node->depth > NETWORK_LOOK ? PLAIN_LONG : 0);
        path[node->depth] = (struct trie_path){.node = i,
                                               .n_chars = (uint16_t)(up->n_chars + begins),
                                               .place = place,
                                               .is_plain = up->is_plain && place != NOT_PLAIN};
        /* After what is not plain, text may begin anew. */
        if (place == NOT_PLAIN) path[node->depth].place = plain_step(WHOLE, node->byte);
        if (place == NOT_PLAIN && (node->byte < 0x80)) path[node->depth].place = WHOLE;
        if (path[node->depth].is_plain) put_in_slices(v, i, &path[node->depth]);
        v->next_dirty[i] = up->node;
    }
}

/* Up: how long the plain texts of a subtree are, from before the node's byte. */
static void mark_up(struct grammar_vocab *v)
{
    for (uint32_t i = v->n_nodes; --i;) {
        struct trie_node *node = &v->nodes[i], *up = &v->nodes[v->next_dirty[i]];
        uint32_t n = node->plain & PLAIN_CHARS;

        if (node->plain & PLAIN_BREAK) n = PLAIN_CHARS;
        if (n < PLAIN_MOST && (node->byte & 0xC0) != 0x80) n++;
        node->plain = (uint8_t)((node->plain & ~PLAIN_CHARS) | n);
        if (n > (up->plain & PLAIN_CHARS)) up->plain = (uint8_t)((up->plain & ~PLAIN_CHARS) | n);
        up->plain |= node->plain & PLAIN_LONG;
    }
    v->next_dirty[v->n_nodes] = v->n_nodes;
    for (uint32_t i = v->n_nodes; i--;) {
        bool skips = trie_is_plain(&v->nodes[i]) && !(v->nodes[i].plain & PLAIN_LONG);

        v->next_dirty[i] = skips ? v->next_dirty[i + 1] : i;
    }
}

bool vocab_find_plain(struct grammar_vocab *v)
{
    struct trie_path *path = mem_alloc((size_t)v->max_depth + 1, sizeof(*path));

    v->slices = mem_zalloc((size_t)v->n_words * (PLAIN_SLICES + 1), sizeof(*v->slices));
    v->next_dirty = mem_alloc((size_t)v->n_nodes + 1, sizeof(*v->next_dirty));
    if (path && v->slices && v->next_dirty) {
        mark_down(v, path);
        mark_up(v);
    }
    mem_free(path);
    return path && v->slices && v->next_dirty;
}

/* ---- of a network ------------------------------------------------------------------------------------------------ */

/* From a state in which any plain text may be: no end of the rule, no call, and a way to the end. */
static bool is_inside(const struct network *n, uint32_t state)
{
    return !n->accepts[state] && n->call_first[state] == n->call_first[state + 1] && n->dist[state] != NEVER;
}

/* Where characters lead from a state; a range of characters to one state is one step. */
struct steps {
    struct network *n;
    uint32_t *from, *to; /* [n_steps] */
    size_t n_steps, cap_from, cap_to;
    bool ok;
};

static void put_step(struct steps *all, uint32_t from, uint32_t to)
{
    size_t i = all->n_steps;

    if (i && all->from[i - 1] == from && all->to[i - 1] == to) return;
    if (!mem_grow((void **)&all->from, &all->cap_from, i + 1, sizeof(*all->from)) ||
        !mem_grow((void **)&all->to, &all->cap_to, i + 1, sizeof(*all->to))) {
        all->ok = false;
        return;
    }
    all->from[i] = from;
    all->to[i] = to;
    all->n_steps++;
}

static bool step_after(struct steps *all, uint32_t from, uint32_t state, struct part want);

/* Along all bytes of `want` and what is wanted after them; false: one of them is missing, or is not followed inside. *k: an
 * edge, no farther than the first that matters. */
static bool step_along(struct steps *all, uint32_t from, uint32_t state, uint32_t *k, struct part want)
{
    const struct network *n = all->n;
    uint32_t end = n->edge_first[state + 1], low = want.low, n_parts = 0;

    while (*k < end && n->edges[*k].high < low) ++*k;
    for (; all->ok && low <= want.high; n_parts++) {
        const struct net_edge *e = &n->edges[*k];

        if (*k == end || e->low > low || (want.low >= 0x80 && n_parts == PARTS)) return false;
        if (want.next == WHOLE)
            put_step(all, from, e->to);
        else if (!step_after(all, from, e->to, later_bytes[want.next]))
            return false;
        low = e->high + 1u;
        if (low <= want.high) ++*k;
    }
    return true;
}

/* Recursion: as deep as a character has bytes. */
static bool step_after(struct steps *all, uint32_t from, uint32_t state, struct part want)
{
    uint32_t k = all->n->edge_first[state];

    return is_inside(all->n, state) && step_along(all, from, state, &k, want);
}

/* All plain characters from a state; false: one is missing, or there are too many ways, and no step is kept. */
static bool step_from(struct steps *all, uint32_t state)
{
    size_t n_before = all->n_steps;
    uint32_t k = all->n->edge_first[state];
    bool can = is_inside(all->n, state);

    for (size_t i = 0; i < N_FIRST && can; i++)
        can = step_along(all, state, state, &k, first_bytes[i]) && all->n_steps - n_before <= STEPS_MAX;
    if (!can) all->n_steps = n_before;
    return can;
}

/* Edges by where they lead: those to state s are list[first[s]] .. list[first[s + 1] - 1]. first: [n_states + 1], zeroed. */
static void by_target(uint32_t n_states, const uint32_t *to, size_t n_edges, uint32_t *list, uint32_t *first)
{
    for (size_t i = 0; i < n_edges; i++) first[to[i]]++;
    for (uint32_t s = 0; s < n_states; s++) first[s + 1] += first[s];
    for (size_t i = n_edges; i--;) list[--first[to[i]]] = (uint32_t)i;
}

/* Characters that can follow: nowhere more than one more than after the next one, whichever it is. So numbers spread backwards
 * from the states where some character is missing, in the order of their size. queue: [n_states]. */
static bool count_plain(struct network *n, const struct steps *all, uint32_t *queue)
{
    uint32_t *first = mem_zalloc((size_t)n->n_states + 1, sizeof(*first)), n_queue = 0;
    uint32_t *list = mem_alloc(all->n_steps + 1, sizeof(*list));
    bool ok = first && list;

    if (ok) by_target(n->n_states, all->to, all->n_steps, list, first);
    for (uint32_t pass = 0; ok && pass < 2; pass++) /* outside: before those inside where no character is sure */
        for (uint32_t s = 0; s < n->n_states; s++)
            if (n->plain[s] == 0 && is_inside(n, s) == (pass == 1)) queue[n_queue++] = s;
    for (uint32_t i = 0; ok && i < n_queue; i++) {
        uint32_t s = queue[i], most = is_inside(n, s) ? n->plain[s] + 1u : 0;

        for (uint32_t k = first[s]; k < first[s + 1]; k++) {
            uint32_t from = all->from[list[k]];

            if (n->plain[from] != PLAIN_ANY) continue;
            n->plain[from] = (uint8_t)(most < PLAIN_MOST ? most : PLAIN_MOST - 1);
            queue[n_queue++] = from;
        }
    }
    mem_free(first);
    mem_free(list);
    return ok;
}

static bool may_be_plain(const struct net_edge *e)
{
    return e->high >= 0x20 && !(e->low == e->high && (e->low == '"' || e->low == '\\'));
}

static uint32_t far_bucket(uint64_t dist)
{
    return dist < FAR_BUCKETS - 1 ? (uint32_t)dist : FAR_BUCKETS - 1;
}

/* States by distance, ascending; those of FAR_BUCKETS - 1 and more in no order behind the others. Returns how many have one. */
static uint32_t by_distance(const struct network *n, uint32_t *out)
{
    uint32_t count[FAR_BUCKETS + 1] = {0};

    for (uint32_t s = 0; s < n->n_states; s++)
        if (n->dist[s] != NEVER) count[far_bucket(n->dist[s]) + 1]++;
    for (uint32_t i = 0; i < FAR_BUCKETS; i++) count[i + 1] += count[i];
    for (uint32_t s = 0; s < n->n_states; s++)
        if (n->dist[s] != NEVER) out[count[far_bucket(n->dist[s])]++] = s;
    return count[FAR_BUCKETS - 1];
}

/* Edges that plain text may go along, by where they lead: to state s edge list[first[s]] .. list[first[s + 1] - 1]. */
struct ways {
    uint32_t *first, *from, *to, *list, n_edges;
    uint8_t *begins; /* with a character */
};

static void ways_deinit(struct ways *w)
{
    mem_free(w->first);
    mem_free(w->from);
    mem_free(w->to);
    mem_free(w->list);
    mem_free(w->begins);
}

static bool ways_init(struct ways *w, const struct network *n)
{
    w->first = mem_zalloc((size_t)n->n_states + 1, sizeof(*w->first));
    w->from = mem_alloc((size_t)n->n_edges + 1, sizeof(*w->from));
    w->to = mem_alloc((size_t)n->n_edges + 1, sizeof(*w->to));
    w->list = mem_alloc((size_t)n->n_edges + 1, sizeof(*w->list));
    w->begins = mem_alloc((size_t)n->n_edges + 1, 1);
    if (!w->first || !w->from || !w->to || !w->list || !w->begins) return false;
    for (uint32_t s = 0; s < n->n_states; s++)
        for (uint32_t k = n->edge_first[s]; k < n->edge_first[s + 1]; k++) {
            const struct net_edge *e = &n->edges[k];

            if (!may_be_plain(e)) continue;
            w->begins[w->n_edges] = e->low < 0x80 || e->high >= 0xC0;
            w->to[w->n_edges] = e->to;
            w->from[w->n_edges++] = s;
        }
    by_target(n->n_states, w->to, w->n_edges, w->list, w->first);
    return true;
}

/* The farthest state first: backwards from there, all that are not known yet. queue, sorted: [n_states]. */
static void find_far(struct network *n, const struct ways *w, uint32_t *queue, uint32_t *sorted)
{
    uint32_t n_sorted = by_distance(n, sorted);
    uint64_t most = 0;

    for (uint32_t i = 0; i < n_sorted; i++)
        if (n->dist[sorted[i]] > most) most = n->dist[sorted[i]];
    for (uint32_t s = 0; s < n->n_states; s++) n->plain_far[s] = NEVER;
    for (uint32_t i = n_sorted; i--;) {
        uint32_t n_queue = 0, s = sorted[i];
        uint64_t far = n->dist[s] < FAR_BUCKETS - 1 ? n->dist[s] : most;

        if (n->plain_far[s] != NEVER) continue;
        n->plain_far[s] = far;
        queue[n_queue++] = s;
        while (n_queue) {
            uint32_t at = queue[--n_queue];

            for (uint32_t k = w->first[at]; k < w->first[at + 1]; k++) {
                uint32_t before = w->from[w->list[k]];

                if (n->plain_far[before] != NEVER) continue;
                n->plain_far[before] = far;
                queue[n_queue++] = before;
            }
        }
    }
}

/* The most characters that can follow, whichever they are: of states from which all ways end, each after those that it leads
 * to. queue, left: [n_states]. */
static void count_most(struct network *n, const struct ways *w, uint32_t *queue, uint32_t *left)
{
    uint32_t n_queue = 0;

    memset(n->plain_most, 0, n->n_states);
    memset(left, 0, n->n_states * sizeof(*left));
    for (uint32_t i = 0; i < w->n_edges; i++) left[w->from[i]]++;
    for (uint32_t s = 0; s < n->n_states; s++)
        if (!left[s] && is_inside(n, s)) queue[n_queue++] = s;
    for (uint32_t i = 0; i < n_queue; i++)
        for (uint32_t k = w->first[queue[i]]; k < w->first[queue[i] + 1]; k++) {
            uint32_t edge = w->list[k], from = w->from[edge], more = n->plain_most[queue[i]] + w->begins[edge];

            if (more > PLAIN_MOST) more = PLAIN_MOST;
            if (more > n->plain_most[from]) n->plain_most[from] = (uint8_t)more;
            if (!--left[from] && is_inside(n, from)) queue[n_queue++] = from;
        }
    for (uint32_t s = 0; s < n->n_states; s++)
        if (left[s] || !is_inside(n, s)) n->plain_most[s] = PLAIN_ANY;
}

bool network_find_plain(struct network *n)
{
    struct steps all = {.n = n, .ok = true};
    struct ways w = {0};
    uint32_t *queue = mem_alloc(n->n_states, sizeof(*queue)), *other = mem_alloc(n->n_states, sizeof(*other));
    bool ok;

    n->plain = mem_alloc(n->n_states, sizeof(*n->plain));
    n->plain_most = mem_alloc(n->n_states, sizeof(*n->plain_most));
    n->plain_far = mem_alloc(n->n_states, sizeof(*n->plain_far));
    ok = queue && other && n->plain && n->plain_most && n->plain_far && ways_init(&w, n);
    for (uint32_t s = 0; ok && s < n->n_states; s++) {
        n->plain[s] = step_from(&all, s) ? PLAIN_ANY : 0;
        ok = all.ok;
    }
    ok = ok && count_plain(n, &all, queue);
    if (ok) find_far(n, &w, queue, other);
    if (ok) count_most(n, &w, queue, other);
    ways_deinit(&w);
    mem_free(all.from);
    mem_free(all.to);
    mem_free(queue);
    mem_free(other);
    return ok;
}
