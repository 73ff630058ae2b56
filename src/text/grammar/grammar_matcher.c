/* text/grammar/grammar_matcher.c - grammars and matchers as the engine sees them. */
#include <assert.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "text/grammar/grammar_build.h"
#include "text/grammar/grammar_impl.h"
#include "text/grammar/grammar_nodes.h"

#define SPACE          ((size_t)32 << 20)
#define BACK_MAX       (1u << 20)
#define WARM_WORK      (32ull << 20)
#define MASK_WORK      (2ull << 20)
#define QUICK_WORK     (1ull << 20)
#define BYTES_PER_LOOK 16u /* at the clock */

static void grammar_destroy(struct grammar *g)
{
    if (!g) return;
    assert(!g->matchers);
    if (g->budget) grammar_budget_give(g->budget, g->fixed + g->granted);
    sets_deinit(g);
    network_deinit(&g->net);
    mutex_deinit(&g->lock);
    mem_free(g->bits);
    mem_free(g->walk);
    mem_free(g->n_chars);
    grammar_vocab_unref(g->vocab);
    mem_free(g);
}

static rd_status make(struct grammar *g, struct grammar_builder *b, grammar_node root)
{
    if (!network_make(&g->net, b, root, g->vocab)) return b->err.status;
    if (g->vocab) {
        g->bits = mem_alloc((size_t)g->vocab->n_words, sizeof(*g->bits));
        g->walk = mem_alloc((size_t)g->vocab->max_depth + 1, sizeof(*g->walk));
        g->n_chars = mem_alloc((size_t)g->vocab->max_depth + 1, sizeof(*g->n_chars));
        if (!g->bits || !g->walk || !g->n_chars) return RD_E_NOMEM;
    }
    return sets_start(g);
}

rd_status grammar_compile(struct grammar_builder *b, grammar_node root, struct grammar_vocab *vocab, size_t space,
                          struct grammar **out, struct rd_error *err)
{
    struct grammar *g;
    rd_status st;

    if (mem_has_failed() && b->err.status != RD_E_NOMEM) {
        b->err.status = RD_OK; /* what failed first may be but a consequence */
        grammar_fail(b, RD_E_NOMEM, "out of memory for a grammar");
    }
    if (grammar_status(b, err) != RD_OK) return b->err.status;
    if (!root || root >= b->n_nodes) return error_set(err, RD_E_INVALID, "node %u of a grammar does not exist", root);
    g = mem_zalloc(1, sizeof(*g));
    if (!g) return error_set(err, RD_E_NOMEM, "out of memory for a grammar");
    mutex_init(&g->lock);
    atomic_init(&g->refs, 1);
    g->vocab = vocab ? grammar_vocab_ref(vocab) : NULL;
    g->space = space ? space : SPACE;
    g->work_left = WARM_WORK;
    st = make(g, b, root);
    if (st == RD_OK) {
        *out = g;
        return RD_OK;
    }
    grammar_destroy(g);
    if (b->err.status == RD_E_NOMEM) b->err.status = RD_OK; /* of this compile: the builder is as it was */
    if (st == RD_E_NOMEM) mem_clear_failed();
    if (st == RD_E_NOMEM) return error_set(err, RD_E_NOMEM, "out of memory for a grammar");
    if (st == RD_E_LIMIT) return error_set(err, RD_E_INVALID, "the grammar is too ambiguous to be followed");
    if (err) *err = b->err;
    return st;
}

bool grammar_is_shared(const struct grammar *g)
{
    /* Acquire: what the others did is over when they are gone. */
    return atomic_load_explicit(&g->refs, memory_order_acquire) != 1;
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void grammar_unref(struct grammar *g)
{
    /* Release and acquire: what other holders did is over when the last one frees. */
    if (g && atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) == 1) grammar_destroy(g);
}

rd_status grammar_charge(struct grammar *g, struct grammar_budget *budget, size_t least)
{
    assert(!g->budget && !g->matchers);
    g->least = least < g->space ? least : g->space;
    g->fixed = sizeof(*g) + network_bytes(&g->net);
    if (g->vocab)
        g->fixed += g->vocab->n_words * sizeof(*g->bits) +
                    ((size_t)g->vocab->max_depth + 1) * (sizeof(*g->walk) + sizeof(*g->n_chars));
    if (g->fixed + g->least > budget->limit / GRAMMAR_BUDGET_SHARE) return RD_E_LIMIT;
    if (!grammar_budget_take(budget, g->fixed + g->least)) return RD_E_FULL;
    g->budget = budget;
    g->granted = g->sweep_at = g->least;
    return RD_OK;
}

/* Work and memory of one call begin. */
static rd_status begin(struct grammar *g, struct grammar_matcher *m, uint64_t work)
{
    g->work_left = work;
    g->asker = m;
    return sets_room(g);
}

static rd_status ended(struct grammar *g, rd_status st)
{
    scratch_trim(g);
    g->asker = NULL;
    return st;
}

static rd_status warm(struct grammar *g, uint64_t work)
{
    rd_status st;

    if (!g->vocab) return RD_OK;
    st = begin(g, NULL, work);
    if (st == RD_OK) st = masks_warm(g);
    if (st == RD_OK) st = set_mask_of(g, g->start, NEVER);
    return ended(g, st);
}

rd_status grammar_warm(struct grammar *g)
{
    return warm(g, WARM_WORK);
}

rd_status grammar_warm_quickly(struct grammar *g)
{
    rd_status st = warm(g, QUICK_WORK);

    return st == RD_E_LIMIT ? RD_E_AGAIN : st;
}

struct grammar_counts grammar_counts(const struct grammar *g)
{
    return (struct grammar_counts){g->net.n_rules, g->net.n_states, g->n_alive, g->n_masks,
                                   g->n_bytes,     g->n_hits,       g->n_misses};
}

/* ---- matchers ---------------------------------------------------------------------------------------------------- */

rd_status grammar_matcher_create(struct grammar *g, uint32_t n_back, struct grammar_matcher **out)
{
    struct grammar_matcher *m;

    if (n_back > BACK_MAX) n_back = BACK_MAX;
    m = mem_alloc(1, sizeof(*m) + ((size_t)n_back + 1) * sizeof(*m->steps));
    if (!m) return RD_E_NOMEM;
    *m = (struct grammar_matcher){.g = grammar_ref(g), .cap = n_back + 1};
    m->steps[0] = g->start;
    mutex_lock(&g->lock);
    m->next = g->matchers;
    if (m->next) m->next->prev = m;
    g->matchers = m;
    mutex_unlock(&g->lock);
    *out = m;
    return RD_OK;
}

void grammar_matcher_destroy(struct grammar_matcher *m)
{
    if (!m) return;
    mutex_lock(&m->g->lock);
    if (m->prev)
        m->prev->next = m->next;
    else
        m->g->matchers = m->next;
    if (m->next) m->next->prev = m->prev;
    mutex_unlock(&m->g->lock);
    grammar_unref(m->g);
    mem_free(m);
}

static const struct set *here(const struct grammar_matcher *m)
{
    return m->g->sets[m->steps[m->at]];
}

static rd_status follow(struct grammar_matcher *m, const uint8_t *bytes, size_t n, bool is_token)
{
    uint32_t at = m->steps[m->at];

    for (size_t i = 0; i < n; i++) {
        rd_status st = set_step(m->g, at, bytes[i], &at);

        if (st != RD_OK) return st;
        if (at == NONE) return RD_E_INVALID;
    }
    if (is_token && m->g->sets[at]->dist == NEVER) return RD_E_INVALID; /* no token would lead on: not in the mask */
    m->at = (m->at + 1) % m->cap;
    m->steps[m->at] = at;
    if (m->n_back + 1 < m->cap) m->n_back++;
    return RD_OK;
}

static rd_status accept_bytes(struct grammar_matcher *m, const uint8_t *bytes, size_t n, bool is_token)
{
    rd_status st = begin(m->g, m, SETS_WORK);

    if (st == RD_OK) st = follow(m, bytes, n, is_token);
    return ended(m->g, st);
}

rd_status grammar_accept_bytes(struct grammar_matcher *m, const uint8_t *bytes, size_t n)
{
    return accept_bytes(m, bytes, n, false);
}

rd_status grammar_accept(struct grammar_matcher *m, int32_t token)
{
    const struct grammar_vocab *v = m->g->vocab;
    uint64_t n;

    if (!v || token < 0 || (uint32_t)token >= v->n_tokens) return RD_E_INVALID;
    n = v->offsets[token + 1] - v->offsets[token];
    return n ? accept_bytes(m, v->bytes + v->offsets[token], n, true) : RD_E_INVALID;
}

void grammar_rollback(struct grammar_matcher *m, uint32_t n)
{
    assert(n <= m->n_back);
    if (n > m->n_back) n = m->n_back;
    m->at = (m->at + m->cap - n) % m->cap;
    m->n_back -= n;
}

static bool has_more(const struct set *s)
{
    return s->first[0] | s->first[1] | s->first[2] | s->first[3];
}

bool grammar_can_end(const struct grammar_matcher *m)
{
    return here(m)->ends;
}
bool grammar_must_end(const struct grammar_matcher *m)
{
    return here(m)->ends && !has_more(here(m));
}

rd_status grammar_mask(struct grammar_matcher *m, uint32_t n_left, const uint32_t **bits)
{
    rd_status st;

    if (!m->g->vocab) return RD_E_INVALID;
    st = begin(m->g, m, MASK_WORK);
    if (st == RD_OK) st = set_mask_of(m->g, m->steps[m->at], n_left == UINT32_MAX ? NEVER : n_left);
    if (st == RD_OK) *bits = m->g->bits;
    return ended(m->g, st);
}

/* The one byte that can follow; -1: there are several, or the text can end. */
static int only_byte(const struct set *s)
{
    int n = 0, byte = -1;

    if (s->ends) return -1;
    for (int i = 0; i < 4; i++) {
        n += __builtin_popcountll(s->first[i]);
        if (s->first[i]) byte = 64 * i + __builtin_ctzll(s->first[i]);
    }
    return n == 1 ? byte : -1;
}

uint32_t grammar_forced(struct grammar_matcher *m, uint8_t *bytes, uint32_t cap)
{
    uint32_t n = 0, at = m->steps[m->at], whole = 0; /* whole: without a special token that is begun */
    unsigned token = 0;

    if (begin(m->g, m, SETS_WORK) != RD_OK) return 0;
    while (n < cap) {
        int byte = only_byte(m->g->sets[at]);

        if (byte < 0 || set_step(m->g, at, (uint8_t)byte, &at) != RD_OK) break;
        if (token || byte == 0xFF) token = (token + 1) % 4;
        bytes[n++] = (uint8_t)byte;
        if (!token) whole = n;
    }
    ended(m->g, RD_OK);
    return whole;
}

/* The first of dist bytes from a set on. Every place is another set, and none is swept away on the way. */
static bool spell_shortest(struct grammar *g, uint32_t at, uint8_t *bytes, uint64_t n, const struct clock_limit *time)
{
    const size_t most = g->n_bytes + g->space;

    for (uint64_t i = 0; i < n; i++) {
        int byte = set_short_byte(g, g->sets[at]);

        if (g->n_bytes > most) return false;
        if (time && i % BYTES_PER_LOOK == 0 && clock_limit_look(time) != CLOCK_GOES_ON) return false;
        if (byte < 0 || set_step(g, at, (uint8_t)byte, &at) != RD_OK) return false;
        bytes[i] = (uint8_t)byte;
    }
    return true;
}

uint64_t grammar_shortest(struct grammar_matcher *m, uint8_t *bytes, uint32_t cap, const struct clock_limit *time)
{
    const uint64_t dist = here(m)->dist, n = dist < cap ? dist : cap;
    bool ok;

    if (n == 0) return dist;
    ok = begin(m->g, m, SETS_WORK) == RD_OK && spell_shortest(m->g, m->steps[m->at], bytes, n, time);
    ended(m->g, RD_OK);
    return ok ? dist : NEVER;
}
