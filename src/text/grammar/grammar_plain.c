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

#define ROUNDS   8u /* over the states of a network, until numbers stay */
#define PARTS    4u /* ranges of the bytes after a first one that a state may tell apart */
#define SEEN_MAX 64u

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
    for (uint32_t i = v->n_nodes; i--;) v->next_dirty[i] = trie_is_plain(&v->nodes[i]) ? v->next_dirty[i + 1] : i;
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

/* Characters up to the one that leads to the state, and those that can follow there. */
static uint8_t with_one_more(const struct network *n, uint32_t state)
{
    if (!is_inside(n, state)) return 0;
    return n->plain[state] == PLAIN_ANY ? PLAIN_ANY : (uint8_t)(n->plain[state] + 1);
}

static uint8_t least_after(const struct network *n, uint32_t state, struct part want);

/* The least that can follow along bytes of `want` and what is wanted after them; 0: one of them is missing. *k: an edge, no
 * farther than the first that matters. */
static uint8_t least_of(const struct network *n, uint32_t state, uint32_t *k, struct part want)
{
    uint32_t end = n->edge_first[state + 1], low = want.low, n_parts = 0;
    uint8_t least = PLAIN_ANY;

    while (*k < end && n->edges[*k].high < low) ++*k;
    for (; low <= want.high; n_parts++) {
        const struct net_edge *e = &n->edges[*k];
        uint8_t rest;

        if (*k == end || e->low > low || (want.low >= 0x80 && n_parts == PARTS)) return 0;
        rest = want.next == WHOLE ? with_one_more(n, e->to) : least_after(n, e->to, later_bytes[want.next]);
        if (rest < least) least = rest;
        if (!least) return 0;
        low = e->high + 1u;
        if (low <= want.high) ++*k;
    }
    return least;
}

static uint8_t least_after(const struct network *n, uint32_t state, struct part want)
{
    uint32_t k = n->edge_first[state];

    return is_inside(n, state) ? least_of(n, state, &k, want) : 0;
}

/* Characters of any plain text that can follow: one and the least of what can follow then. */
static uint8_t plain_of(const struct network *n, uint32_t state)
{
    uint32_t k = n->edge_first[state];
    uint8_t least = PLAIN_ANY;

    if (!is_inside(n, state)) return 0;
    for (size_t i = 0; i < N_FIRST && least; i++) {
        uint8_t of = least_of(n, state, &k, first_bytes[i]);

        if (of < least) least = of;
    }
    return least == PLAIN_ANY || least < PLAIN_MOST ? least : PLAIN_MOST - 1;
}

/* From above: numbers only fall. Where they do not come to rest soon, nothing is known. */
bool network_find_plain(struct network *n)
{
    bool changes = true;

    n->plain = mem_alloc(n->n_states, sizeof(*n->plain));
    if (!n->plain) return false;
    memset(n->plain, PLAIN_ANY, n->n_states);
    for (uint32_t round = 0; changes && round < ROUNDS; round++) {
        changes = false;
        for (uint32_t s = n->n_states; s--;) {
            uint8_t of = n->plain[s] ? plain_of(n, s) : 0;

            changes |= of != n->plain[s];
            n->plain[s] = of;
        }
    }
    if (changes) memset(n->plain, 0, n->n_states);
    return true;
}

static bool may_be_plain(const struct net_edge *e)
{
    return e->high >= 0x20 && !(e->low == e->high && (e->low == '"' || e->low == '\\'));
}

uint64_t network_plain_far(const struct network *n, uint32_t state)
{
    uint32_t rule = n->rule_of[state], start = n->starts[rule], todo[SEEN_MAX], n_todo = 0;
    uint64_t seen, far = 0;

    if (n->starts[rule + 1] - start > SEEN_MAX) return n->far[rule];
    seen = 1ull << (state - start);
    todo[n_todo++] = state;
    while (n_todo) {
        uint32_t s = todo[--n_todo];

        if (n->dist[s] != NEVER && n->dist[s] > far) far = n->dist[s];
        for (uint32_t k = n->edge_first[s]; k < n->edge_first[s + 1]; k++) {
            uint64_t bit = 1ull << (n->edges[k].to - start);

            if ((seen & bit) || !may_be_plain(&n->edges[k])) continue;
            seen |= bit;
            todo[n_todo++] = n->edges[k].to;
        }
    }
    return far;
}
