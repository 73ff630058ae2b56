/* engine/draft/speculate.c - how many drafted tokens each decoding sequence takes into the next step.
 *
 * Drafts come from what has been written before (draft_index.h): by this request, its prompt included, and by earlier
 * requests of its namespace; with a draft model (draft_model.h) also from that, where the text holds nothing. A step
 * computes the logits of all drafted rows at once; step.c samples row after row exactly as it would have without
 * drafts and stops at the first token that differs. A row's bits depend on its own prefix alone and random numbers on
 * the position, so output is the same, token for token, with or without drafts.
 *
 * Whether it pays is estimated from what was seen: the time of a step by its rows, and how often drafts with so much
 * agreement were right, in this request and in all. A draft is taken only for an expected gain of 5 %.
 * Source  Leviathan et al., arXiv:2211.17192 (verification in one batch).
 */
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "engine/draft_index.h"
#include "engine/draft/draft_model.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

#define HISTORY_TOKENS  (1u << 18) /* of finished requests, per namespace: 3 MiB when full */
#define HISTORY_CONTEXT 16u        /* known tokens before what is new, so that the begin of it can be found */
#define N_HISTORIES     8u
#define OWN_TOKENS      (1u << 17) /* of one request at most */
#define N_COSTS         40u
#define MODEL_CATCH_UP  64u   /* rows of prompts under the draft model, per step */
#define MODEL_MOST      8u    /* tokens that it writes ahead */
#define ROW_GUESS       0.03  /* a row more costs so much of a step, until it was measured */
#define MIN_GAIN        1.05  /* a draft must promise 5 % more tokens per second */
#define LEARN           0.125 /* weight of a new observation */
#define REVIVE          0.004 /* of the way back to what others see, per step in which no draft was taken */

/* What was written in one namespace. */
struct history {
    struct draft_index *index;
    struct kv_space space;
    uint64_t last_use;
};

struct speculation {
    struct history histories[N_HISTORIES]; /* the one used longest ago makes room for a new namespace */
    uint64_t n_uses;
    double cost[N_COSTS];       /* ns of a step by its rows; 0: never seen */
    float right[DRAFT_CLASSES]; /* how often a drafted token was right, over all requests */
    struct request **asked;     /* [max_running] who gets drafts from the draft model */
};

static rd_status begin(struct engine *e)
{
    static const float first_guess[DRAFT_CLASSES] = {0.35f, 0.55f, 0.75f, 0.9f, 0.6f};
    struct speculation *s;

    if (!e->o.speculate) return RD_OK;
    s = e->speculation = mem_zalloc(1, sizeof(*s));
    if (!s) return RD_E_NOMEM;
    memcpy(s->right, first_guess, sizeof(first_guess));
    s->asked = mem_zalloc(e->o.max_running, sizeof(struct request *));
    return s->asked ? RD_OK : RD_E_NOMEM;
}

static void let_go(struct engine *e)
{
    struct speculation *s = e->speculation;

    if (!s) return;
    for (uint32_t i = 0; i < N_HISTORIES; i++) draft_index_destroy(s->histories[i].index);
    mem_free(s->asked);
    mem_free(s);
    e->speculation = NULL;
}

/* ---- histories ---- */

static struct draft_index *history_of(struct speculation *s, const struct request *r)
{
    for (uint32_t i = 0; i < N_HISTORIES; i++) {
        struct history *h = &s->histories[i];

        if (!h->index || !kv_space_equal(&h->space, &r->p.space)) continue;
        h->last_use = ++s->n_uses;
        return h->index;
    }
    return NULL;
}

/* NULL: no memory for one. */
static struct draft_index *make_history(struct speculation *s, const struct request *r)
{
    struct draft_index *index = history_of(s, r);
    struct history *oldest = &s->histories[0];

    if (index) return index;
    for (uint32_t i = 1; i < N_HISTORIES; i++)
        if (s->histories[i].last_use < oldest->last_use) oldest = &s->histories[i];
    if (draft_index_create(HISTORY_TOKENS, &index) != RD_OK) return NULL;
    draft_index_destroy(oldest->index);
    *oldest = (struct history){index, r->p.space, ++s->n_uses};
    return index;
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

static void measure(struct engine *e, uint32_t n_rows, uint64_t ns)
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
    ratio = ratio < 0.5 ? 0.5 : ratio > 2 ? 2 : ratio; /* a hiccup of the machine is no news about the model */
    for (uint32_t i = 0; i < N_COSTS; i++)             /* longer contexts, busier machine: all sizes drift */
        s->cost[i] *= 1 + (ratio - 1) * (i == at ? LEARN : LEARN / 4);
}

/* ---- how often drafts are right ---- */

static uint32_t class_of(uint32_t agreement)
{
    return agreement < 5 ? 0 : agreement < 9 ? 1 : agreement < 17 ? 2 : 3;
}

#define CLASS_MODEL (DRAFT_CLASSES - 1)

static void learn(float *right, bool was_right)
{
    *right += ((was_right ? 1.0f : 0.0f) - *right) * (float)LEARN;
}

static void note_verified(struct engine *e, struct request *r, uint32_t n_right)
{
    struct request_draft *d = &r->draft;

    e->stats.drafts += d->n > 0;
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

static bool may_run_ahead(const struct request *r)
{
    return !request_ring_full(r) && r->seq.state == KV_SEQ_RUNNABLE && r->n_generated > 0 &&
           r->seq.n_keys - r->seq.n_computed == 1;
}

static bool may_draft(const struct request *r)
{
    return r->p.speculate && may_run_ahead(r);
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

static uint32_t most_tokens(const struct request *r)
{
    uint32_t n = u32_min(u32_min(DRAFT_MAX, r->p.max_tokens - r->n_generated - 1), r->seq.n_keys_cap - r->seq.n_keys);

    return u32_min(n, request_ring_room(r) - 1);
}

/* What the step is expected to give and cost so far, while drafts are handed out. */
struct outlook {
    uint32_t n_rows, n_free_rows;
    double n_tokens, extra_ns;
};

/* The longest agreement wins; the request's own text where both agree as far. */
static void find_draft(struct engine *e, struct request *r)
{
    struct request_draft *d = &r->draft;
    const struct kv_seq *seq = &r->seq;
    uint32_t n_most = most_tokens(r), agreed, agreed2, n2;
    struct draft_index *history = r->p.cached ? history_of(e->speculation, r) : NULL;
    kv_key other[DRAFT_MAX];

    agreed = draft_index_find(d->own, true, seq->keys, seq->n_keys, n_most, d->tokens, &d->n);
    if (history && agreed < DRAFT_MAX_MATCH) {
        agreed2 = draft_index_find(history, false, seq->keys, seq->n_keys, n_most, other, &n2);
        if (agreed2 > agreed) {
            memcpy(d->tokens, other, n2 * sizeof(*other));
            d->n = n2;
            agreed = agreed2;
        }
    }
    d->n = constraint_agree(&r->constraint, d->tokens, d->n);
    d->class_now = class_of(agreed);
}

/* What a grammar forces is computed all at once: only the rows count. True: there is something. */
static bool take_certain(struct request *r, struct outlook *o)
{
    struct request_draft *d = &r->draft;
    const int32_t *tokens;
    uint32_t n = constraint_ahead(&r->constraint, &tokens);

    d->is_certain = false;
    if (n == 0 || !may_run_ahead(r)) return false;
    d->n = u32_min(u32_min(n, most_tokens(r)), o->n_free_rows);
    for (uint32_t i = 0; i < d->n; i++) d->tokens[i] = (kv_key)tokens[i];
    d->is_certain = true;
    o->n_rows += d->n;
    o->n_free_rows -= d->n;
    o->n_tokens += d->n;
    return true;
}

/* How many of at most n tokens of a class of drafts to take; writing one takes token_ns. */
static uint32_t best_length(const struct engine *e, const struct outlook *now, double right, uint32_t n,
                            double token_ns)
{
    double cost = cost_of(e->speculation, now->n_rows) + now->extra_ns, best = MIN_GAIN;
    uint32_t best_n = 0;

    n = u32_min(n, now->n_free_rows);
    if (cost_of(e->speculation, now->n_rows) <= 0) return 0;
    for (uint32_t k = 1; k <= n; k = k < n ? u32_min(2 * k + 1, n) : n + 1) {
        double more = (now->n_tokens + expected(right, k)) / now->n_tokens;
        double dearer = (cost_of(e->speculation, now->n_rows + k) + now->extra_ns + k * token_ns) / cost;

        if (more / dearer > best) {
            best = more / dearer;
            best_n = k;
        }
    }
    return best_n;
}

static uint32_t choose_length(struct engine *e, struct request_draft *d, struct outlook *o, uint32_t n, double token_ns)
{
    uint32_t chosen;

    if (e->o.chunk_seed)
        chosen = (uint32_t)random_below(&e->chunk_random, u32_min(n, o->n_free_rows) + 1);
    else
        chosen = best_length(e, o, d->right[d->class_now], n, token_ns);
    if (chosen == 0) revive(e, d);
    o->n_rows += chosen;
    o->n_free_rows -= chosen;
    o->n_tokens += expected(d->right[d->class_now], chosen);
    o->extra_ns += chosen * token_ns;
    return chosen;
}

/* Those that found nothing in the text, and whose shadow has caught up. */
static void ask_model(struct engine *e, struct outlook *o)
{
    struct draft_model *m = e->o.draft_model;
    double token_ns = (double)draft_model_step_ns(m);
    uint32_t n_rows_left = MODEL_CATCH_UP, n = 0;

    for (uint32_t i = 0; i < e->n_live && n < e->o.max_running; i++) {
        struct request *r = e->live[i];
        struct request_draft *d = &r->draft;

        d->n_wanted = 0;
        if (d->n > 0 || d->is_certain || !may_draft(r) || !draft_model_catch_up(m, r, &n_rows_left)) continue;
        if (!d->own) memcpy(d->right, e->speculation->right, sizeof(d->right));
        d->class_now = CLASS_MODEL;
        d->n_wanted = choose_length(e, d, o, u32_min(most_tokens(r), MODEL_MOST), token_ns / (n + 1));
        if (d->n_wanted > 0) e->speculation->asked[n++] = r;
    }
    if (n > 0) draft_model_write(m, e->speculation->asked, n);
}

/* Sets n_draft and draft of every live request that decodes. n_free_rows: rows (and rows of logits) that the step has
 * beside one for each of them. */
static void propose(struct engine *e, uint32_t n_decoding, uint32_t n_free_rows)
{
    struct outlook o = {n_decoding, n_free_rows, n_decoding, 0};

    for (uint32_t i = 0; i < e->n_live; i++) {
        struct request *r = e->live[i];

        r->draft.n = 0;
        if (take_certain(r, &o) || !e->speculation || !may_draft(r) || !index_own(e, r)) continue;
        find_draft(e, r);
        if (r->draft.n > 0) r->draft.n = choose_length(e, &r->draft, &o, r->draft.n, 0);
    }
    if (e->speculation && e->o.draft_model) ask_model(e, &o);
}

/* What r has written is remembered for others of its namespace. */
static void remember(struct engine *e, struct request *r, bool is_kept)
{
    struct speculation *s = e->speculation;
    struct draft_index *history;
    uint32_t known = r->usage.n_cached > HISTORY_CONTEXT ? r->usage.n_cached - HISTORY_CONTEXT : 0;

    if (!is_kept || !s || r->n_generated == 0 || r->seq.n_keys <= known + DRAFT_MIN_MATCH) return;
    history = make_history(s, r);
    if (!history) return;
    draft_index_append(history, r->seq.keys + known, r->seq.n_keys - known);
    draft_index_separate(history);
}

static void forget(struct engine *e)
{
    for (uint32_t i = 0; e->speculation && i < N_HISTORIES; i++)
        if (e->speculation->histories[i].index) draft_index_clear(e->speculation->histories[i].index);
    if (e->o.draft_model) draft_model_clear(e->o.draft_model);
}

/* ---- the draft model ---- */

static void leave(struct engine *e, struct request *r)
{
    (void)e;
    draft_model_leave(r);
}

static void expire(struct engine *e, uint64_t before_ns, uint64_t now)
{
    if (e->o.draft_model) draft_model_expire(e->o.draft_model, before_ns, now);
}

static void hand_over(struct engine *e)
{
    if (e->o.draft_model) draft_model_hand_over(e->o.draft_model);
}

static rd_status check(const struct engine *e, struct rd_error *err)
{
    return e->o.draft_model ? draft_model_check(e->o.draft_model, err) : RD_OK;
}

const struct engine_listener listens_speculation = {
    .begin = begin,
    .let_go = let_go,
    .hand_over = hand_over,
    .check = check,
    .propose = propose,
    .stepped = measure,
    .expire = expire,
    .verified = note_verified,
    .ending = remember,
    .left = leave,
    .cleared = forget,
};
