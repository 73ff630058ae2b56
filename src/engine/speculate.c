/* engine/speculate.c - see the header: where drafts come from, what a step costs, how often drafts were right. */
#include "engine/speculate.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "engine/engine_state.h"

#define HISTORY_TOKENS  (1u << 18)      /* of finished requests, per namespace: 3 MiB when full */
#define HISTORY_CONTEXT 16u             /* known tokens before what is new, so that the begin of it can be found */
#define OWN_TOKENS      (1u << 17)      /* of one request at most */
#define N_COSTS         40u
#define ROW_GUESS       0.03            /* a row more costs so much of a step, until it was measured */
#define MIN_GAIN        1.05            /* a draft must promise 5 % more tokens per second */
#define LEARN           0.125           /* weight of a new observation */
#define REVIVE          0.004           /* of the way back to what others see, per step in which no draft was taken */

struct speculation {
    struct draft_index *history;
    double cost[N_COSTS];                /* ns of a step by its rows; 0: never seen */
    float right[DRAFT_CLASSES];          /* how often a drafted token was right, over all requests */
};

rd_status speculation_create(struct engine *e, struct speculation **out)
{
    static const float first_guess[DRAFT_CLASSES] = {0.35f, 0.55f, 0.75f, 0.9f};
    struct speculation *s;
    rd_status st;

    *out = NULL;
    if (!e->o.speculate) return RD_OK;
    s = mem_zalloc(1, sizeof(*s));
    if (!s) return RD_E_NOMEM;
    memcpy(s->right, first_guess, sizeof(first_guess));
    st = draft_index_create(HISTORY_TOKENS, &s->history);
    if (st != RD_OK) {
        mem_free(s);
        return st;
    }
    *out = s;
    return RD_OK;
}

void speculation_destroy(struct speculation *s)
{
    if (!s) return;
    draft_index_destroy(s->history);
    mem_free(s);
}

/* ---- what a step costs ---- */

/* Rows 1 .. 8 one by one, then in steps of 2, 4, 8 .. that double with the rows. */
static uint32_t cost_slot(uint32_t rows)
{
    uint32_t slot = 0, width = 1, begin = 1;

    while (rows >= begin + 8 * width && slot + 8 < N_COSTS) {
        begin += 8 * width;
        slot += 8;
        width *= 2;
    }
    return u32_min(slot + (rows - begin) / width, N_COSTS - 1);
}

static uint32_t slot_rows(uint32_t slot)
{
    uint32_t width = 1, begin = 1;

    for (; slot >= 8; slot -= 8) {
        begin += 8 * width;
        width *= 2;
    }
    return begin + slot * width;
}

/* ns; 0 while nothing was measured. Between two measured sizes on the line between them. */
static double cost_of(const struct speculation *s, uint32_t rows)
{
    uint32_t at = cost_slot(rows), low = at, high = at;

    if (s->cost[at] > 0) return s->cost[at];
    while (low > 0 && s->cost[low] <= 0) low--;
    while (high < N_COSTS - 1 && s->cost[high] <= 0) high++;
    if (s->cost[low] <= 0) return s->cost[high];
    if (s->cost[high] > 0) {
        double share = (double)(rows - slot_rows(low)) / (slot_rows(high) - slot_rows(low));

        return s->cost[low] + (s->cost[high] - s->cost[low]) * share;
    }
    return s->cost[low] * (1 + ROW_GUESS * (rows - slot_rows(low)));
}

void speculation_measure(struct engine *e, uint32_t n_rows, uint64_t ns)
{
    struct speculation *s = e->speculation;
    uint32_t at = cost_slot(n_rows);
    double ratio;

    if (!s || ns == 0) return;
    if (s->cost[at] <= 0) {
        s->cost[at] = (double)ns;
        return;
    }
    ratio = (double)ns / s->cost[at];
    ratio = ratio < 0.5 ? 0.5 : ratio > 2 ? 2 : ratio;       /* a hiccup of the machine is no news about the model */
    for (uint32_t i = 0; i < N_COSTS; i++)                   /* longer contexts, busier machine: all sizes drift */
        s->cost[i] *= 1 + (ratio - 1) * (i == at ? LEARN : LEARN / 4);
}

/* ---- how often drafts are right ---- */

static uint32_t class_of(uint32_t agreement)
{
    return agreement < 5 ? 0 : agreement < 9 ? 1 : agreement < 17 ? 2 : 3;
}

static void learn(float *right, bool was_right)
{
    *right += ((was_right ? 1.0f : 0.0f) - *right) * (float)LEARN;
}

void speculation_verified(struct engine *e, struct request *r, uint32_t n_right)
{
    struct request_draft *d = &r->draft;

    e->stats.drafted += d->n;
    e->stats.draft_accepted += n_right;
    for (uint32_t i = 0; i < u32_min(n_right + 1, d->n); i++) {
        learn(&d->right[d->class_now], i < n_right);
        learn(&e->speculation->right[d->class_now], i < n_right);
    }
}

/* What was once wrong in this request is tried again some time. */
static void revive(const struct engine *e, struct request_draft *d)
{
    d->right[d->class_now] += (e->speculation->right[d->class_now] - d->right[d->class_now]) * (float)REVIVE;
}

/* Tokens that k drafted ones are expected to add. */
static double expected(double right, uint32_t k)
{
    double sum = 0, p = 1;

    for (uint32_t i = 0; i < k; i++) sum += p *= right;
    return sum;
}

/* ---- drafts ---- */

static bool decodes(const struct request *r)
{
    return r->seq.state == KV_SEQ_RUNNABLE && r->n_generated > 0 && r->seq.n_keys - r->seq.n_computed == 1;
}

/* Brings the request's own index up to its keys. False: no memory, then it has no drafts. */
static bool index_own(struct engine *e, struct request *r)
{
    struct request_draft *d = &r->draft;

    if (!d->own) {
        if (d->failed) return false;
        d->failed = draft_index_create(u32_min(r->seq.n_keys_cap, OWN_TOKENS), &d->own) != RD_OK;
        if (d->failed) return false;
        memcpy(d->right, e->speculation->right, sizeof(d->right));
    }
    draft_index_append(d->own, r->seq.keys + d->n_indexed, r->seq.n_keys - d->n_indexed);
    d->n_indexed = r->seq.n_keys;
    return true;
}

/* The longest agreement wins; the request's own text where both agree as far. */
static void find_draft(struct engine *e, struct request *r)
{
    struct request_draft *d = &r->draft;
    const struct kv_seq *seq = &r->seq;
    uint32_t n_most = u32_min(u32_min(DRAFT_MAX, r->p.max_tokens - r->n_generated - 1), seq->n_keys_cap - seq->n_keys);
    uint32_t agreed, agreed2, n2;
    kv_key other[DRAFT_MAX];

    n_most = u32_min(n_most, request_ring_room(r) - 1);
    agreed = draft_index_find(d->own, true, seq->keys, seq->n_keys, n_most, d->tokens, &d->n);
    if (r->p.cached && agreed < DRAFT_MAX_MATCH) {
        agreed2 =
            draft_index_find(e->speculation->history, false, seq->keys, seq->n_keys, n_most, other, &n2);
        if (agreed2 > agreed) {
            memcpy(d->tokens, other, n2 * sizeof(*other));
            d->n = n2;
            agreed = agreed2;
        }
    }
    d->class_now = class_of(agreed);
}

/* How many of the n drafted tokens to take, when the step has n_rows rows and gives n_tokens tokens without them. */
static uint32_t best_length(const struct engine *e, const struct request_draft *d, uint32_t n_rows, double n_tokens,
                            uint32_t n_most)
{
    double now = cost_of(e->speculation, n_rows), best = MIN_GAIN;
    uint32_t n = u32_min(d->n, n_most), best_n = 0;

    for (uint32_t k = 1; now > 0 && k <= n; k = k < n ? u32_min(2 * k + 1, n) : n + 1) {
        double more = (n_tokens + expected(d->right[d->class_now], k)) / n_tokens;
        double gain = more / (cost_of(e->speculation, n_rows + k) / now);

        if (gain > best) {
            best = gain;
            best_n = k;
        }
    }
    return best_n;
}

void speculation_plan(struct engine *e, uint32_t n_decoding, uint32_t n_free_rows)
{
    double n_tokens = n_decoding;
    uint32_t n_rows = n_decoding;

    for (uint32_t i = 0; i < e->n_live; i++) {
        struct request *r = e->live[i];
        struct request_draft *d = &r->draft;
        uint32_t n;

        d->n = 0;
        if (!e->speculation || !r->p.speculate || !decodes(r) || request_ring_full(r) || !index_own(e, r)) continue;
        find_draft(e, r);
        if (d->n == 0) continue;
        if (e->o.chunk_seed) n = (uint32_t)random_below(&e->chunk_random, u32_min(d->n, n_free_rows) + 1);
        else n = best_length(e, d, n_rows, n_tokens, n_free_rows);
        if (n == 0) revive(e, d);
        d->n = n;
        n_rows += n;
        n_free_rows -= n;
        n_tokens += expected(d->right[d->class_now], n);
    }
}

void speculation_remember(struct engine *e, struct request *r)
{
    struct speculation *s = e->speculation;
    uint32_t known = r->usage.n_cached > HISTORY_CONTEXT ? r->usage.n_cached - HISTORY_CONTEXT : 0;

    if (!s || r->n_generated == 0 || r->seq.n_keys <= known + DRAFT_MIN_MATCH) return;
    draft_index_append(s->history, r->seq.keys + known, r->seq.n_keys - known);
    draft_index_separate(s->history);
}

void speculation_forget(struct engine *e)
{
    if (e->speculation) draft_index_clear(e->speculation->history);
}
