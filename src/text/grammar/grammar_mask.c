/* text/grammar/grammar_mask.c - which tokens can follow a set.
 *
 * A set that few bytes can follow is walked: down the trie with the sets that the bytes lead to. Of a set that many can
 * follow, each item's state is looked at alone, with whatever is outside of its rule left open: what tokens within the
 * rule can follow is the same in every grammar that has the rule, and found in the vocabulary's table. What is left are
 * the places of the trie where the rule can be over; below them the walk goes on from where its caller waits.
 */
#include "text/grammar/grammar_impl.h"
#include <string.h>
#include "base/mem.h"

#define NARROW_SHARE 32u /* of the trie, below the first bytes: walked without a mask of states */
#define ITEMS_MAX    32u /* items beyond which a wide set is walked as one */
#define BASE_SHARE   3u  /* of the trie: walked again at most, where a state is nearly like another */
#define WARM_RULES   256u
#define WARM_STATES  24u
#define WARM_MASKS   64u
#define WARM_LOOPS   4u
#define NEED_EXACT   1024u /* bytes to the end beyond which they stand for tokens */
#define NEED_NEVER   (UINT32_MAX - 1)

/* A walk: bits of tokens are set, far is raised. */
struct walk {
    uint32_t *bits;
    uint64_t far;
    uint32_t deep;  /* not 0: no deeper than this; such places go into g->leaves as well */
    bool leaves;    /* places where what began OUTSIDE ends go into g->leaves */
    uint32_t state; /* of a mask of a state */
    bool near;      /* only tokens after which the end is at most `limit` tokens away */
    uint64_t limit, near_low, near_high;
    const struct set *far_of; /* far is as high as plain text behind this set asks */
};

static rd_status put_leaf(struct grammar *g, uint32_t node)
{
    if (!mem_grow((void **)&g->leaves, &g->cap_leaves, g->n_leaves + 1, sizeof(*g->leaves))) return RD_E_NOMEM;
    g->leaves[g->n_leaves++] = node;
    return RD_OK;
}

static rd_status take_near(struct grammar *g, uint32_t set, struct walk *w, bool *take)
{
    uint64_t far = g->sets[set]->dist;

    if (far > w->limit) { /* in bytes; fewer tokens may do */
        rd_status st = set_need(g, set, &far);

        if (st != RD_OK) return st;
    }
    *take = far <= w->limit;
    if (*take && far > w->near_low) w->near_low = far;
    if (!*take && far - 1 < w->near_high) w->near_high = far - 1;
    return RD_OK;
}

/* The tokens that end at a node, after which the text stands at `set`. */
static rd_status take_tokens(struct grammar *g, const struct trie_node *node, uint32_t set, struct walk *w)
{
    const struct set *s = g->sets[set];
    bool take = s->dist != NEVER;
    rd_status st = RD_OK;

    if (take && w->near) st = take_near(g, set, w, &take);
    if (st != RD_OK || !take) return st;
    if (s->dist > w->far) w->far = s->dist;
    for (uint32_t i = node[0].first_id; i < node[1].first_id; i++) {
        uint32_t id = g->vocab->ids[i];

        w->bits[id >> 5] |= 1u << (id & 31);
    }
    return RD_OK;
}

/* ---- plain text (grammar_plain.c) -------------------------------------------------------------------------------- */

/* Characters of plain text that can follow a set, whichever they are, and nothing else has to be known of them: no item
 * of the set is over on the way. 0: it is walked. */
static uint32_t plain_room(const struct set *s, const struct walk *w)
{
    if (!s->plain || w->near || (w->leaves && s->n_items > 1)) return 0;
    return w->deep && s->plain == PLAIN_ANY ? PLAIN_MOST - 1 : s->plain;
}

/* A subtree whose texts all can follow where there is that much room. */
static bool is_within(const struct trie_node *node, uint32_t room, const struct walk *w)
{
    uint32_t n = node->plain & PLAIN_CHARS;

    if (n == PLAIN_CHARS || n > room || (w->deep && (node->plain & PLAIN_LONG))) return false;
    return (node->byte & 0xC0) != 0x80; /* the trie and the set agree that a character begins here */
}

static void raise_far(const struct grammar *g, const struct set *s, struct walk *w)
{
    uint64_t far;

    if (w->far_of == s) return;
    w->far_of = s;
    far = set_plain_far(g, s);
    if (far > w->far) w->far = far;
}

static void take_subtree(const struct grammar_vocab *v, uint32_t node, uint32_t *bits)
{
    for (uint32_t k = v->nodes[node].first_id; k < v->nodes[v->nodes[node].skip].first_id; k++)
        bits[v->ids[k] >> 5] |= 1u << (v->ids[k] & 31);
}

/* Tokens that are plain text as a whole, from the root. Returns the number of characters up to which all were taken;
 * PLAIN_ANY: all that can follow. */
static uint32_t take_slice(const struct grammar *g, const struct set *s, struct walk *w)
{
    const struct grammar_vocab *v = g->vocab;
    uint32_t room = plain_room(s, w), slice = room < PLAIN_SLICES ? room : PLAIN_SLICES;
    const uint32_t *bits;

    if (!room) return 0;
    raise_far(g, s, w);
    bits = v->slices + (size_t)(room == PLAIN_ANY ? PLAIN_SLICES : slice - 1) * v->n_words;
    for (uint32_t i = 0; i < v->n_words; i++) w->bits[i] |= bits[i];
    return room == PLAIN_ANY || (s->plain_ends && room <= slice) ? PLAIN_ANY : slice;
}

/* Down the trie below node `top`, where the text stands at `from`. `taken`: as take_slice says; inside: behind this node
 * the path is plain text from the root again. */
static rd_status walk_trie(struct grammar *g, uint32_t top, uint32_t from, struct walk *w)
{
    const struct trie_node *nodes = g->vocab->nodes;
    uint32_t base = nodes[top].depth, end = nodes[top].skip, inside = top ? end : 0;
    uint32_t taken = top ? 0 : take_slice(g, g->sets[from], w);
    rd_status st = RD_OK;

    if (!taken) inside = end;
    g->walk[0] = from;
    g->n_chars[0] = 0;
    for (uint32_t i = top + 1; st == RD_OK && i < end;) {
        const struct trie_node *node = &nodes[i];
        uint32_t depth = node->depth - base, parent = g->walk[depth - 1], to, room;
        const struct set *s = g->sets[parent];

        if (taken >= PLAIN_SLICES && i >= inside && g->vocab->next_dirty[i] > i) {
            i = g->vocab->next_dirty[i];
            continue;
        }
        if (!set_has_byte(s, node->byte)) {
            i = node->skip;
            continue;
        }
        room = plain_room(s, w);
        if (room && is_within(node, room, w)) {
            if (i < inside || (node->plain & PLAIN_LONG) ||
                g->n_chars[depth - 1] + (node->plain & PLAIN_CHARS) > taken) {
                raise_far(g, s, w);
                take_subtree(g->vocab, i, w->bits);
            }
            i = node->skip;
            continue;
        }
        to = s->next ? s->next[g->net.class_of[node->byte]] : 0;
        if (!to) {
            g->n_walk = depth; /* what may be swept now is not on the way */
            w->far_of = NULL;
            st = sets_room(g);
            if (st == RD_OK) st = set_step(g, parent, node->byte, &to);
            if (st != RD_OK) break;
        }
        g->walk[depth] = to;
        g->n_chars[depth] = (uint16_t)(g->n_chars[depth - 1] + ((node->byte & 0xC0) != 0x80));
        if (i >= inside && (node->plain & PLAIN_BREAK)) inside = node->skip;
        if (node[1].first_id != node->first_id) st = take_tokens(g, node, to, w);
        if (st == RD_OK && w->leaves && g->sets[to]->ends && node->skip > i + 1) st = put_leaf(g, i);
        if (depth == w->deep && node->skip > i + 1) {
            if (st == RD_OK) st = put_leaf(g, i | LEAF_DEEP);
            i = node->skip;
            continue;
        }
        i++;
    }
    g->n_walk = 0;
    w->far_of = NULL;
    return st;
}

/* ---- masks of states --------------------------------------------------------------------------------------------- */

static bool is_narrow(const struct grammar *g, const struct set *s)
{
    uint32_t n = 0;

    for (unsigned c = 0; c < 256; c++)
        if (set_has_byte(s, (uint8_t)c)) n += g->vocab->weight[c];
    return n < g->vocab->n_nodes / NARROW_SHARE;
}

static rd_status set_of_item(struct grammar *g, uint32_t state, uint32_t origin, uint32_t *out)
{
    if (!mem_grow((void **)&g->kernel, &g->cap_kernel, 1, sizeof(*g->kernel))) return RD_E_NOMEM;
    g->kernel[0] = (struct item){state, origin};
    g->n_kernel = 1;
    return set_of_kernel(g, out);
}

/* Bytes of which two states without calls lead to different ones: weight of these in the trie, differs[] true. */
static uint32_t differences(const struct grammar *g, uint32_t x, uint32_t y, bool *differs)
{
    const struct network *n = &g->net;
    uint32_t to[2][256], weight = 0;

    memset(to, 0xFF, sizeof(to));
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = n->edge_first[i ? y : x]; k < n->edge_first[(i ? y : x) + 1]; k++)
            for (unsigned c = n->edges[k].low; c <= n->edges[k].high; c++) to[i][c] = n->edges[k].to;
    for (unsigned c = 0; c < 256; c++) {
        differs[c] = to[0][c] != to[1][c];
        if (differs[c]) weight += g->vocab->weight[c];
    }
    return weight;
}

/* The state to which most of the trie leads: the names that an object knows lead, letter by letter, to that of any other
 * name. NONE: it is no help. */
static uint32_t base_of(const struct grammar *g, uint32_t state, bool *differs)
{
    const struct network *n = &g->net;
    uint32_t best = NONE, most = 0;

    if (n->call_first[state] < n->call_first[state + 1]) return NONE;
    for (uint32_t k = n->edge_first[state]; k < n->edge_first[state + 1]; k++) {
        uint32_t weight = 0;

        for (unsigned c = n->edges[k].low; c <= n->edges[k].high; c++) weight += g->vocab->weight[c];
        if (weight > most) best = n->edges[k].to;
        if (weight > most) most = weight;
    }
    if (best == NONE || best == state || n->call_first[best] < n->call_first[best + 1]) return NONE;
    return differences(g, state, best, differs) < g->vocab->n_nodes / BASE_SHARE ? best : NONE;
}

/* What is below the first bytes that differ is walked, the rest is as in the base's mask. far: of that. m->bits, g->leaves. */
static rd_status walk_apart(struct grammar *g, uint32_t set, const struct local_mask *base, uint64_t far,
                            const bool *differs, struct walk *w)
{
    const struct grammar_vocab *v = g->vocab;
    const struct trie_node *nodes = v->nodes;
    rd_status st = RD_OK;

    memcpy(w->bits, base->bits, v->n_words * sizeof(*w->bits));
    w->far = far;
    if (w->deep) w->deep--; /* counted from below the first byte */
    for (uint32_t i = 0; st == RD_OK && i < base->n_leaves; i++) {
        const uint8_t *first = v->bytes + v->offsets[v->ids[nodes[base->leaves[i] & ~LEAF_DEEP].first_id]];

        if (!differs[*first]) st = put_leaf(g, base->leaves[i]);
    }
    for (uint32_t c = 1; st == RD_OK && c < v->n_nodes; c = nodes[c].skip) {
        uint32_t to = NONE;

        if (!differs[nodes[c].byte]) continue;
        for (uint32_t i = nodes[c].first_id; i < nodes[nodes[c].skip].first_id; i++)
            w->bits[v->ids[i] >> 5] &= ~(1u << (v->ids[i] & 31));
        g->walk[0] = set;
        g->n_walk = 1;
        st = sets_room(g);
        g->n_walk = 0;
        if (st == RD_OK) st = set_step(g, set, nodes[c].byte, &to);
        if (st != RD_OK || to == NONE) continue;
        if (nodes[c + 1].first_id != nodes[c].first_id) st = take_tokens(g, &nodes[c], to, w);
        if (st == RD_OK && g->sets[to]->ends && nodes[c].skip > c + 1) st = put_leaf(g, c);
        /* The set is needed again: it is made anew if it goes meanwhile. */
        if (st == RD_OK) st = walk_trie(g, c, to, w);
        if (st == RD_OK) st = set_of_item(g, w->state, OUTSIDE, &set);
    }
    return st;
}

/* From no place that a token of the state's mask leads to is the end farther; up: from the end of its rule on. */
static uint64_t far_behind(const struct grammar *g, uint32_t state, const struct local_mask *m, uint64_t up)
{
    return dist_sum(dist_sum(g->net.dist[state], m->rise), up);
}

static rd_status local_of(struct grammar *g, uint32_t state, struct local_mask **out);

/* The walk of a state alone, by way of a state that is nearly the same where there is one (which has none itself: no
 * recursion beyond it). */
static rd_status walk_local(struct grammar *g, uint32_t state, struct walk *w)
{
    bool differs[256];
    uint32_t from = g->net.plain[state] ? NONE : base_of(g, state, differs), set;
    struct local_mask *base = NULL;
    rd_status st = RD_OK;

    if (from != NONE) {
        bool unused[256];

        base = vocab_find(g->vocab, g->net.keys[from]);
        if (!base && base_of(g, from, unused) == NONE) st = local_of(g, from, &base);
    }
    g->n_leaves = 0;
    if (st == RD_OK) st = set_of_item(g, state, OUTSIDE, &set);
    if (st == RD_OK && base) st = walk_apart(g, set, base, far_behind(g, from, base, 0), differs, w);
    if (st == RD_OK && !base) st = walk_trie(g, 0, set, w);
    local_mask_unref(base);
    return st;
}

static rd_status make_local(struct grammar *g, uint32_t state, struct local_mask **out)
{
    uint32_t rule = g->net.rule_of[state];
    struct local_mask *m = mem_zalloc(1, sizeof(*m) + g->vocab->n_words * sizeof(*m->bits));
    struct walk w = {.leaves = true, .deep = g->net.counts[rule] ? NETWORK_LOOK : 0, .state = state};
    rd_status st = m ? RD_OK : RD_E_NOMEM;

    if (st == RD_OK) {
        w.bits = m->bits;
        m->key = g->net.keys[state];
        atomic_init(&m->refs, 1);
        st = walk_local(g, state, &w);
    }
    if (st == RD_OK && g->n_leaves) {
        m->leaves = (uint32_t *)mem_memdup(g->leaves, g->n_leaves * sizeof(*m->leaves));
        if (!m->leaves) st = RD_E_NOMEM;
        m->n_leaves = (uint32_t)g->n_leaves;
    }
    if (st != RD_OK) {
        local_mask_unref(m);
        return st;
    }
    m->rise = w.far > g->net.dist[state] ? w.far - g->net.dist[state] : 0;
    if (w.far == NEVER) m->rise = NEVER;
    vocab_keep(g->vocab, m);
    *out = m;
    return RD_OK;
}

/* Of a state alone, with its rule begun OUTSIDE. */
static rd_status local_of(struct grammar *g, uint32_t state, struct local_mask **out)
{
    *out = vocab_find(g->vocab, g->net.keys[state]);
    return *out ? RD_OK : make_local(g, state, out);
}

/* Below a place at which a mask of a state stops: what is there is asked of the set itself. */
static rd_status walk_deep(struct grammar *g, uint32_t node, uint32_t at, struct walk *w)
{
    const struct grammar_vocab *v = g->vocab;
    uint32_t first = v->ids[v->nodes[node].first_id], room = plain_room(g->sets[at], w), n_chars = 0;
    const uint8_t *bytes = v->bytes + v->offsets[first];
    const uint32_t *all = v->slices + (size_t)PLAIN_SLICES * v->n_words;
    rd_status st = RD_OK;

    if (room && trie_is_plain(&v->nodes[node]) && (all[first >> 5] >> (first & 31) & 1)) {
        for (uint32_t i = 0; room != PLAIN_ANY && i < v->nodes[node].depth; i++) n_chars += (bytes[i] & 0xC0) != 0x80;
        if (n_chars + (v->nodes[node].plain & PLAIN_CHARS) <= room) {
            raise_far(g, g->sets[at], w);
            take_subtree(v, node, w->bits);
            return RD_OK;
        }
    }
    w->far_of = NULL; /* sets may go */
    for (uint32_t i = 0; st == RD_OK && at != NONE && i < v->nodes[node].depth; i++)
        st = set_step(g, at, bytes[i], &at);
    return st == RD_OK && at != NONE ? walk_trie(g, node, at, w) : st;
}

/* ---- masks of sets ----------------------------------------------------------------------------------------------- */

static void mask_destroy(struct grammar *g, struct set_mask *m)
{
    if (!m) return;
    for (uint32_t i = 0; i < m->n_locals; i++) local_release(g, m->locals[i]);
    mem_free(m->locals);
    mem_free(m->ids);
    mem_free(m->bits);
    mem_free(m->near_bits);
    mem_free(m);
}

void set_mask_free(struct grammar *g, struct set *s)
{
    if (!s->mask) return;
    g->n_bytes -= s->mask->n_bytes;
    g->n_masks--;
    mask_destroy(g, s->mask);
    s->mask = NULL;
}

/* The next word that has bits, from word `at` on; n: there is none. Nearly all are empty, and looked at 16 at a time. */
static uint32_t next_word(const uint32_t *bits, uint32_t at, uint32_t n)
{
    while (at < n && !bits[at]) {
        uint32_t some = 0, n_next = at % 16 == 0 && at + 16 <= n ? 16 : 1;

        for (uint32_t i = 0; i < n_next; i++) some |= bits[at + i];
        at += some ? 1 : n_next;
    }
    return at;
}

/* What the walks found (g->bits), as ids when they are few. */
static rd_status keep_bits(struct grammar *g, struct set_mask *m)
{
    uint32_t n = 0, words = g->vocab->n_words;

    for (uint32_t i = 0; n <= words / 2 && (i = next_word(g->bits, i, words)) < words; i++)
        n += (uint32_t)__builtin_popcount(g->bits[i]);
    if (n > words / 2) {
        m->bits = (uint32_t *)mem_memdup(g->bits, words * sizeof(*m->bits));
        m->n_bytes += words * sizeof(*m->bits);
        return m->bits ? RD_OK : RD_E_NOMEM;
    }
    m->ids = mem_alloc(n, sizeof(*m->ids));
    if (!m->ids) return RD_E_NOMEM;
    m->n_bytes += n * sizeof(*m->ids);
    for (uint32_t i = 0; (i = next_word(g->bits, i, words)) < words; i++)
        for (uint32_t left = g->bits[i]; left; left &= left - 1)
            m->ids[m->n_ids++] = i * 32 + (uint32_t)__builtin_ctz(left);
    return RD_OK;
}

/* An item of a wide set, which is `id`. */
static rd_status add_item(struct grammar *g, uint32_t id, struct item item, struct set_mask *m, struct walk *w)
{
    uint32_t alone, after;
    uint64_t up = 0;
    struct local_mask *local;
    rd_status st = set_of_item(g, item.state, OUTSIDE, &alone);

    if (st != RD_OK) return st;
    if (is_narrow(g, g->sets[alone])) {
        st = set_of_item(g, item.state, item.origin, &alone);
        return st == RD_OK ? walk_trie(g, 0, alone, w) : st;
    }
    st = local_of(g, item.state, &local);
    if (st == RD_OK) st = local_hold(g, local);
    if (st != RD_OK) return st;
    m->locals[m->n_locals++] = local;
    m->n_bytes += sizeof(struct local_mask *);
    after = NONE;
    st = set_complete(g, item.origin, g->net.rule_of[item.state]);
    if (st == RD_OK && g->n_kernel) st = set_of_kernel(g, &after);
    if (st == RD_OK && after != NONE) up = g->sets[after]->dist;
    for (uint32_t i = 0; st == RD_OK && i < local->n_leaves; i++)
        if (!(local->leaves[i] & LEAF_DEEP) && after != NONE) st = walk_trie(g, local->leaves[i], after, w);
    for (uint32_t i = 0; st == RD_OK && i < local->n_leaves; i++)
        if (local->leaves[i] & LEAF_DEEP) st = walk_deep(g, local->leaves[i] & ~LEAF_DEEP, id, w);
    up = far_behind(g, item.state, local, up);
    if (up > w->far) w->far = up;
    return st;
}

static rd_status make_mask(struct grammar *g, uint32_t id)
{
    struct set *s = g->sets[id];
    struct set_mask *m = mem_zalloc(1, sizeof(*m));
    struct walk w = {.bits = g->bits};
    rd_status st = m ? RD_OK : RD_E_NOMEM;

    memset(g->bits, 0, g->vocab->n_words * sizeof(*g->bits));
    if (st == RD_OK && (s->n_items > ITEMS_MAX || is_narrow(g, s))) {
        st = walk_trie(g, 0, id, &w);
    } else if (st == RD_OK) {
        m->locals = mem_alloc(s->n_items, sizeof(struct local_mask *));
        if (!m->locals) st = RD_E_NOMEM;
        for (uint32_t i = 0; st == RD_OK && i < s->n_items; i++) {
            struct item item = s->items[i];

            /* One that only calls: what it called is among the items. */
            if (g->net.edge_first[item.state] == g->net.edge_first[item.state + 1]) continue;
            if (item.origin == SELF) item.origin = id;
            st = add_item(g, id, item, m, &w);
        }
    }
    if (st == RD_OK) st = keep_bits(g, m);
    if (st != RD_OK) {
        mask_destroy(g, m);
        return st;
    }
    m->far = w.far;
    m->n_bytes += sizeof(*m);
    g->n_bytes += m->n_bytes;
    g->n_masks++;
    s->mask = m;
    return RD_OK;
}

/* Into g->bits. */
static void compose(const struct grammar *g, const struct set_mask *m)
{
    uint32_t words = g->vocab->n_words;

    if (m->bits)
        memcpy(g->bits, m->bits, words * sizeof(*g->bits));
    else if (m->n_locals)
        memcpy(g->bits, m->locals[0]->bits, words * sizeof(*g->bits));
    else
        memset(g->bits, 0, words * sizeof(*g->bits));
    for (uint32_t k = m->bits ? 0 : 1; k < m->n_locals; k++)
        for (uint32_t i = 0; i < words; i++) g->bits[i] |= m->locals[k]->bits[i];
    for (uint32_t i = 0; i < m->n_ids; i++) g->bits[m->ids[i] >> 5] |= 1u << (m->ids[i] & 31);
}

/* Only tokens after which at most `limit` more are needed. */
static rd_status compose_near(struct grammar *g, uint32_t id, uint64_t limit)
{
    struct set_mask *m = g->sets[id]->mask;
    uint32_t words = g->vocab->n_words;
    struct walk w = {.bits = g->bits, .near = true, .limit = limit, .near_high = NEVER};
    rd_status st;

    if (m->near_bits && limit >= m->near_low && limit <= m->near_high) {
        memcpy(g->bits, m->near_bits, words * sizeof(*g->bits));
        return RD_OK;
    }
    memset(g->bits, 0, words * sizeof(*g->bits));
    st = walk_trie(g, 0, id, &w);
    if (st != RD_OK) return st;
    m = g->sets[id]->mask; /* a sweep may have taken it */
    if (!m) return RD_OK;
    if (!m->near_bits) {
        m->near_bits = mem_alloc(words, sizeof(*m->near_bits));
        if (!m->near_bits) return RD_OK; /* it is asked again then */
        m->n_bytes += words * sizeof(*m->near_bits);
        g->n_bytes += words * sizeof(*m->near_bits);
    }
    memcpy(m->near_bits, g->bits, words * sizeof(*g->bits));
    m->near_low = w.near_low;
    m->near_high = w.near_high;
    return RD_OK;
}

rd_status set_mask_of(struct grammar *g, uint32_t id, uint64_t n_left)
{
    struct set *s = g->sets[id];
    uint64_t need;
    rd_status st = RD_OK;

    g->now++;
    if (s->mask)
        g->n_hits++;
    else {
        g->n_misses++;
        st = make_mask(g, id);
    }
    if (st != RD_OK) return st;
    s->mask->used = g->now;
    if (n_left == 0) n_left = 1;
    if (s->mask->far <= n_left - 1) {
        compose(g, s->mask);
        return RD_OK;
    }
    st = set_need(g, id, &need);
    if (st != RD_OK) return st;
    return compose_near(g, id, (n_left > need ? n_left : need) - 1);
}

/* Many bytes lead from the state to itself: others are walked by way of it. */
static bool is_loop(const struct grammar *g, uint32_t state)
{
    const struct network *n = &g->net;
    uint32_t weight = 0;

    for (uint32_t k = n->edge_first[state]; k < n->edge_first[state + 1]; k++)
        if (n->edges[k].to == state)
            for (unsigned c = n->edges[k].low; c <= n->edges[k].high; c++) weight += g->vocab->weight[c];
    return weight > g->vocab->n_nodes / 2;
}

/* Of the first states of each rule, which are the nearest to its start, and some loops behind them: wide ones are what takes
 * time when it is asked first. */
rd_status masks_warm(struct grammar *g)
{
    const struct network *n = &g->net;
    uint32_t n_made = 0, n_loops = 0;

    for (uint32_t r = 0; r < n->n_rules && r < WARM_RULES; r++) {
        uint32_t end = n->starts[r + 1], most = n->starts[r] + WARM_STATES;

        for (uint32_t s = n->starts[r]; s < end && n_made < WARM_MASKS; s++) {
            struct local_mask *m;
            uint32_t alone;
            rd_status st;

            if (n->edge_first[s] == n->edge_first[s + 1]) continue;
            if (s >= most && n_loops >= WARM_LOOPS) break;
            if (s >= most && !is_loop(g, s)) continue;
            n_loops += s >= most;
            st = set_of_item(g, s, OUTSIDE, &alone);
            if (st == RD_OK && is_narrow(g, g->sets[alone])) continue;
            if (st == RD_OK) st = local_of(g, s, &m);
            if (st != RD_OK) return st;
            local_mask_unref(m);
            n_made++;
        }
    }
    return RD_OK;
}

/* ---- tokens to the end ------------------------------------------------------------------------------------------- */

static uint32_t child_of(const struct grammar_vocab *v, uint32_t node, uint8_t byte)
{
    uint32_t end = v->nodes[node].skip;

    for (uint32_t i = node + 1; i < end; i = v->nodes[i].skip) {
        if (v->nodes[i].byte == byte) return i;
        if (v->nodes[i].byte > byte) break;
    }
    return 0;
}

/* The way from path[i], whose later steps are known: 1 and the best after a token that the way begins with. */
static uint32_t best_token(const struct grammar *g, size_t i, size_t n)
{
    const struct grammar_vocab *v = g->vocab;
    uint32_t best = NEED_NEVER, node = 0;

    for (size_t k = i; k < n; k++) {
        uint32_t after;

        node = child_of(v, node, g->path[k].byte);
        if (!node) break;
        if (v->nodes[node].first_id == v->nodes[node + 1].first_id) continue;
        after = g->sets[g->path[k + 1].set]->need - 1;
        if (after < NEED_NEVER && after + 1 < best) best = after + 1;
    }
    return best;
}

/* The shortest way is one text, wherever one stands on it; of it the fewest tokens are counted from its end. The way is
 * followed until as many steps are known as a token can be long. */
rd_status set_need(struct grammar *g, uint32_t id, uint64_t *need)
{
    size_t n = 0;
    uint32_t known = 0;

    *need = g->sets[id]->dist;
    if (*need > NEED_EXACT) return RD_OK; /* bytes stand for tokens, and there may be more than 2^32 */
    for (uint32_t at = id;; n++) {
        struct set *s = g->sets[at];
        int byte;
        rd_status st;

        if (!mem_grow((void **)&g->path, &g->cap_path, n + 1, sizeof(*g->path))) return RD_E_NOMEM;
        if (s->dist == 0) s->need = 1;
        known = s->need ? known + 1 : 0;
        g->path[n].set = at;
        if (s->dist == 0 || known > g->vocab->max_depth || (n == 0 && s->need)) break;
        byte = set_short_byte(g, s);
        if (byte < 0) {
            s->need = NEED_NEVER + 1;
            break;
        }
        g->path[n].byte = (uint8_t)byte;
        st = set_step(g, at, (uint8_t)byte, &at);
        if (st != RD_OK) return st;
    }
    for (size_t i = n; i--;)
        if (!g->sets[g->path[i].set]->need) g->sets[g->path[i].set]->need = best_token(g, i, n) + 1;
    *need = g->sets[id]->need - 1;
    return RD_OK;
}
