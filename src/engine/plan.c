/* engine/plan.c - which rows run in this step, and where their keys and values go.
 *
 * First every decoding sequence, one token each; then prefill chunks, keys in turn and of one key's prompts in order of
 * admission, until the budget: the rows left, and of those, as many as the measured speed computes within a target time:
 * one while others decode, a longer one while none do. Pages: append in place, take, evict; and when nothing is left, a
 * running sequence that is not in the batch yet is preempted: a paused one, else the youngest (it resumes with identical
 * output).
 */
#include <assert.h>
#include "base/checked.h"
#include "base/mem.h"
#include "engine/engine_state.h"
#include "engine/images.h"
#include "engine/listener.h"
#include "engine/pointing.h"

#define IDLE_CHUNK      64u  /* rows: a request that arrives waits no longer for an idle one */
#define MIN_CHUNK       32u  /* rows: at least this much progress per step while others decode */
#define MIN_CHUNK_ALONE 256u /* rows: and while none do, when weights are read too often below it */
#define EVEN_ROWS       32u  /* a prompt's chunks are about equal: multiples of this, except for the last */

static rd_status make_plan(struct engine *e, struct step_plan *p)
{
    struct model_batch_room room = {e->o.executor.max_rows, e->max_live, e->o.executor.max_logits, PLAN_MAX_HIDDEN};
    uint32_t n_live = e->max_live;

    p->run_request = mem_zalloc(n_live, sizeof(struct request *));
    p->run_logits = mem_zalloc(n_live, sizeof(*p->run_logits));
    p->run_hidden = mem_zalloc(n_live, sizeof(*p->run_hidden));
    p->hidden_bytes = (uint64_t)PLAN_MAX_HIDDEN * (e->o.executor.n_state + 1) * sizeof(float);
    p->hidden = mem_map(p->hidden_bytes);
    p->heads = mem_zalloc(e->o.executor.max_logits, sizeof(struct request *));
    p->head_states = mem_zalloc(e->o.executor.max_logits, sizeof(const float *));
    p->n_best = u32_ceil_div(e->o.executor.n_vocab, BEST_BLOCK);
    p->best = mem_zalloc(e->o.executor.gives_best ? e->o.executor.max_logits : 1, p->n_best * sizeof(*p->best));
    p->choices = mem_map(e->o.executor.max_logits * sizeof(*p->choices));
    p->from = mem_zalloc(e->o.executor.max_logits, sizeof(*p->from));
    p->mixes = mem_zalloc(n_live, sizeof(struct adapter_mix *));
    p->states_bytes = ((uint64_t)e->o.executor.max_logits * e->o.executor.n_state + 1) * sizeof(*p->states);
    p->states = mem_map(p->states_bytes);
    if (e->o.executor.vision) {
        p->embeds = mem_zalloc(room.n_rows, sizeof(const float *));
        p->axes = mem_zalloc(3 * (size_t)room.n_rows, sizeof(*p->axes));
        if (!p->embeds || !p->axes) return RD_E_NOMEM;
    }
    if (!p->from || !p->mixes || !p->run_request || !p->run_logits || !p->run_hidden || !p->hidden || !p->heads ||
        !p->head_states || !p->states || !p->best || !p->choices || model_batch_init(&p->batch, room) != RD_OK)
        return RD_E_NOMEM;
    p->batch.n_embed = e->o.executor.vision ? e->o.executor.vision->n_floats : 0;
    p->batch.hidden = p->hidden;
    p->batch.states = e->o.executor.n_state ? p->states : NULL;
    p->batch.best = e->o.executor.gives_best ? p->best : NULL;
    p->batch.choices = e->o.executor.gives_choices ? p->choices : NULL;
    if (e->o.executor.pin) { /* mapped: pages of their own */
        e->o.executor.pin(e->o.executor.self, p->states, p->states_bytes, true);
        e->o.executor.pin(e->o.executor.self, p->choices, e->o.executor.max_logits * sizeof(*p->choices), true);
    }
    return RD_OK;
}

rd_status plan_create(struct engine *e)
{
    rd_status st = make_plan(e, &e->plan);

    if (st == RD_OK && e->o.executor.begin) st = make_plan(e, &e->next);
    if (st == RD_OK && e->o.executor.pin) e->o.executor.pin(e->o.executor.self, e->logits, e->logits_bytes, true);
    return st;
}

static void free_plan(struct engine *e, struct step_plan *p)
{
    if (e->o.executor.pin && p->batch.tokens) { /* make_plan came to its end */
        e->o.executor.pin(e->o.executor.self, p->states, 0, false);
        e->o.executor.pin(e->o.executor.self, p->choices, 0, false);
    }
    mem_free(p->best);
    if (p->choices) mem_unmap(p->choices, e->o.executor.max_logits * sizeof(*p->choices));
    model_batch_deinit(&p->batch);
    mem_free(p->run_request);
    mem_free(p->run_logits);
    mem_free(p->run_hidden);
    mem_unmap(p->hidden, p->hidden_bytes);
    mem_free(p->heads);
    mem_free(p->head_states);
    if (p->states) mem_unmap(p->states, p->states_bytes);
    mem_free(p->from);
    mem_free(p->mixes);
    mem_free(p->embeds);
    mem_free(p->axes);
}

void plan_destroy(struct engine *e)
{
    if (e->o.executor.pin && e->plan.batch.tokens && (e->next.batch.tokens || !e->o.executor.begin))
        e->o.executor.pin(e->o.executor.self, e->logits, 0, false);
    free_plan(e, &e->plan);
    free_plan(e, &e->next);
}

/* Outside the batch: the youngest that its slow reader has paused, else the youngest running sequence. */
static struct request *find_victim(const struct engine *e)
{
    struct request *youngest = NULL;

    for (uint32_t i = e->n_live; i-- > 0;) {
        struct request *r = e->live[i];

        if (r->seq.state != KV_SEQ_RUNNABLE || r->in_batch) continue;
        if (request_ring_full(r)) return r;
        if (!youngest) youngest = r;
    }
    return youngest;
}

/* Alone, and still no room: each fork along its path holds a copy of the page that it begins in, or handles hold the
 * rest. Computed anew from an empty tree it takes the fewest pages there can be; if that is not enough either, it can
 * never fit. */
static void start_over(struct engine *e, struct request *r)
{
    if (r->started_over || r->p.idle) {
        request_end(e, r, REQUEST_ERROR, RD_E_NO_PAGES);
        return;
    }
    r->started_over = true;
    request_preempt(e, r);
    radix_clear(e->cache.tree, NULL);
}

/* Pages are there, but their windows are not, and some are used by pages on their way out. */
static bool windows_are_out(const struct engine *e)
{
    const struct window_counts c = page_pool_window_counts(e->pool);

    return e->cache.window && c.n_free + c.n_kept < c.n_total && engine_n_out(e) > 0;
}

/* Pages for n rows of r: evict, then preempt. False: not in this step (r itself may have been preempted or ended). */
static bool find_pages(struct engine *e, struct request *r, uint32_t n, bool may_wait)
{
    bool waited = false;

    for (;;) {
        rd_status st = kv_seq_reserve(&r->seq, n);
        struct request *victim;
        uint32_t need;

        if (st == RD_OK) return true;
        need = kv_seq_pages_needed(&r->seq, n);
        if (need > page_pool_n_free(e->pool) && engine_evict(e, need - page_pool_n_free(e->pool)) > 0) continue;
        if (!waited && windows_are_out(e)) {
            ENGINE_TELL(evicted, (e)); /* as engine_evict does: waits for those on their way */
            waited = true;
            continue;
        }
        if (may_wait && e->plan.batch.n_runs > 0) return false; /* others run, and will release pages */
        victim = find_victim(e);
        assert(victim); /* r itself is one */
        if (victim == r && e->plan.batch.n_runs == 0 && e->n_live == 1) {
            if (engine_n_out(e) > 0)
                request_preempt(e, r); /* they come back */
            else
                start_over(e, r);
            return false;
        }
        request_preempt(e, victim);
        if (victim == r) return false;
    }
}

/* Nobody needs the row of logits itself after the prompt, or after a token: the device's choice says all. */
static bool device_may_choose(const struct request *r, struct row_draw *draw)
{
    if (r->p.logits_out) return false;
    if (r->p.max_tokens == 0) return r->prefill.n_scores == 0; /* only whether they are numbers: the greatest tells */
    return sampler_is_plain(r->sampler, &draw->temperature, &draw->min_p, &draw->seed);
}

static void add_run(struct engine *e, struct request *r, uint32_t n)
{
    struct step_plan *p = &e->plan;
    struct model_batch *b = &p->batch;
    struct kv_seq *seq = &r->seq;
    uint32_t pos0 = seq->n_computed, P = e->o.page_tokens, span[2];
    struct row_draw draw = {0};
    bool is_plain = device_may_choose(r, &draw);

    p->run_request[b->n_runs] = r;
    p->run_logits[b->n_runs] = b->n_logits;
    p->run_hidden[b->n_runs] = b->n_hidden;
    model_batch_begin_run(b, pos0, seq->pages, r->p.adapters);
    model_batch_set_windows(b, seq->windows);
    images_span(e, r, pos0, pos0 + n, span);
    model_batch_set_span(b, span[0], span[1]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = pos0 + i;
        kv_key key = pos < seq->n_keys ? seq->keys[pos] : r->draft.tokens[pos - seq->n_keys];
        uint32_t row = model_batch_add_row(b, key_is_token(key) ? key_token(key) : 0, P);

        if (!key_is_token(key)) b->embeds = p->embeds;
        if (p->embeds) p->embeds[row] = key_is_token(key) ? NULL : images_row(e, r, pos);
        if (pos % P == 0) ENGINE_TELL(page_begun, (e, b->row_page[row]));
        if (prefill_pools_at(&r->prefill, pos)) model_batch_want_hidden(b, row);
        if (prefill_pools(&r->prefill)) continue;
        if (r->p.prompt_logprobs && pos < r->n_prompt)
            model_batch_want_logits(b, row, NULL);
        else if (pos + 1 >= seq->n_keys)
            model_batch_want_logits(b, row, is_plain ? &draw : NULL);
    }
    r->in_batch = true;
    r->last_step = e->stats.n_steps;
}

static bool wants_rows(const struct request *r, bool decode)
{
    const struct kv_seq *seq = &r->seq;

    if (seq->state != KV_SEQ_RUNNABLE || r->in_batch || pointer_holds(r)) return false;
    return (seq->n_keys - seq->n_computed == 1 && r->n_generated > 0) == decode;
}

/* The decoding sequence that has waited longest, the oldest first where all run in every step. */
static struct request *next_decode(const struct engine *e)
{
    struct request *best = NULL;

    for (uint32_t i = 0; i < e->n_live; i++) {
        struct request *r = e->live[i];

        if (wants_rows(r, true) && !request_ring_full(r) && (!best || r->last_step < best->last_step)) best = r;
    }
    return best;
}

static bool prefill_waits(const struct engine *e)
{
    for (uint32_t i = 0; i < e->n_live; i++)
        if (wants_rows(e->live[i], false)) return true;
    return false;
}

static uint32_t n_decoding(const struct engine *e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->n_live; i++) n += wants_rows(e->live[i], true) && !request_ring_full(e->live[i]);
    return n;
}

/* Rows for the next token and its drafts, where they cost nobody a page. */
static bool reserve_draft(struct engine *e, struct request *r, uint32_t n_rows_left)
{
    uint32_t n = 1 + r->draft.n;

    return r->draft.n > 0 && n <= n_rows_left && kv_seq_pages_needed(&r->seq, n) <= page_pool_n_free(e->pool) &&
           kv_seq_reserve(&r->seq, n) == RD_OK;
}

static uint32_t logits_room(const struct engine *e)
{
    return e->o.executor.max_logits - e->plan.n_heads - e->plan.batch.n_logits;
}

/* Before all others: it happens once to a request, so nobody starves. */
static void plan_heads(struct engine *e)
{
    struct step_plan *p = &e->plan;

    for (uint32_t i = 0; i < e->n_live && p->n_heads < e->o.executor.max_logits; i++) {
        struct request *r = e->live[i];
        const void *state =
            prefill_pools(&r->prefill) || request_ring_full(r) || pointer_holds(r) ? NULL : kv_seq_take_whole(&r->seq);

        if (!state) continue;
        p->heads[p->n_heads] = r;
        p->head_states[p->n_heads++] = state;
        r->in_batch = true;
    }
}

/* More sequences than the batch has room for take turns. One row of logits is left to a prefill: it would never end
 * beside as many decodes. */
static void plan_decodes(struct engine *e)
{
    struct step_plan *p = &e->plan;
    uint32_t n_logits = logits_room(e), n_rows, n_most;
    struct request *r;

    n_rows = u32_min(n_logits > 1 && prefill_waits(e) ? n_logits - 1 : n_logits,
                     e->o.executor.max_rows - (prefill_waits(e) ? images_most_rows(e) : 0));
    n_most = u32_min(u32_min(e->o.max_running, n_rows), n_decoding(e));
    ENGINE_TELL(propose, (e, n_most, n_rows - n_most));
    while (p->n_decode < n_most && (r = next_decode(e))) {
        if (!reserve_draft(e, r, n_rows - p->batch.n_rows - (n_most - p->n_decode - 1))) {
            r->draft.n = 0;
            if (!find_pages(e, r, 1, false)) continue; /* r has left the live list */
        }
        add_run(e, r, 1 + r->draft.n);
        p->n_decode++;
    }
    p->n_decode_rows = p->batch.n_rows;
}

/* What a rate in milli-tokens per second computes in ns, but least. */
static uint32_t rows_within(uint64_t rate, uint64_t ns, uint32_t least)
{
    return u32_max((uint32_t)u64_min(rate / 1000 * (ns / 1000) / 1000000, UINT32_MAX), least);
}

static uint32_t prefill_budget(const struct engine *e)
{
    uint32_t rows = u32_min(e->o.executor.max_rows - e->plan.batch.n_rows, e->o.max_chunk);

    if (e->plan.n_decode == 0) {
        if (e->o.prompt_target_ns == 0) return rows;
        return u32_min(rows, rows_within(e->prompt_rate, e->o.prompt_target_ns, MIN_CHUNK_ALONE));
    }
    /* no prompt was long enough to tell: what decodes is a bound, and a whole prompt in one step may be as long as 50 of theirs */
    if (e->prefill_rate == 0) return e->decode_rate ? u32_min(rows, MIN_CHUNK) : rows;
    return u32_min(rows, rows_within(e->prefill_rate, e->o.step_target_ns, MIN_CHUNK));
}

/* Rows whose pages find windows that nobody uses; one at least, for which others may have to go. */
static uint32_t rows_in_windows(const struct engine *e, const struct kv_seq *seq, uint32_t n)
{
    struct window_counts c = page_pool_window_counts(e->pool);
    uint64_t room = (uint64_t)seq->n_pages + c.n_free + c.n_kept; /* one of them may be a copy on write's */

    if (!e->cache.window || n == 0) return n;
    if (room * e->o.page_tokens <= seq->n_computed + e->o.page_tokens) return 1;
    return (uint32_t)u64_min(n, (room - 1) * e->o.page_tokens - seq->n_computed);
}

static uint32_t chunk_length(struct engine *e, struct request *r, uint32_t budget)
{
    uint32_t left = r->seq.n_keys - r->seq.n_computed, n = u32_min(budget, left), room;

    if (left > budget) { /* no small rest at the end: it costs as much */
        n = u32_ceil_div(left, u32_ceil_div(left, budget));
        n = u32_min(budget, u32_ceil_div(n, EVEN_ROWS) * EVEN_ROWS);
    }
    if (r->p.idle) n = u32_min(n, IDLE_CHUNK);
    if (prefill_pools(&r->prefill))
        n = u32_min(n, PLAN_MAX_HIDDEN - e->plan.batch.n_hidden);
    else if (r->p.prompt_logprobs)
        n = u32_min(n, logits_room(e));
    else if (logits_room(e) == 0)
        n = u32_min(n, left - 1);
    n = rows_in_windows(e, &r->seq, n);
    if (n > 0 && e->o.chunk_seed) n = 1 + (uint32_t)random_below(&e->chunk_random, n);
    room = e->o.executor.max_rows - e->plan.batch.n_rows;
    return images_chunk(e, r, n,
                        logits_room(e) == 0 ? u32_min(room, left - 1) : room); /* an image may be all that is left */
}

/* Of those that this plan has not asked yet: the one admitted first, of the key whose prompts had rows longest ago. */
static struct request *next_prefill(const struct engine *e)
{
    struct request *best = NULL;

    for (uint32_t i = 0; i < e->n_live; i++) {
        struct request *r = e->live[i];

        if (r->asked_plan == e->n_plans || !wants_rows(r, false) || request_ring_full(r)) continue;
        if (!best || r->turns[REQUEST_TURN_ROWS] < best->turns[REQUEST_TURN_ROWS]) best = r;
    }
    return best;
}

static void plan_prefills(struct engine *e)
{
    uint32_t budget = prefill_budget(e);
    struct request *r;

    while (budget > 0 && (r = next_prefill(e))) {
        const uint32_t n = chunk_length(e, r, budget);

        r->asked_plan = e->n_plans;
        if (r->images.lost) {
            request_end(e, r, REQUEST_ERROR, RD_E_NOMEM);
        } else if (n > 0 && find_pages(e, r, n, true)) {
            add_run(e, r, n);
            budget -= u32_min(budget, n);
            fair_had_turn(e, r->p.fair_key, REQUEST_TURN_ROWS);
        }
    }
    e->plan.n_prefill_rows = e->plan.batch.n_rows - e->plan.n_decode_rows;
}

/* What rows of models with M-RoPE turn by, where an image is among what they come behind. */
static void place_axes(struct engine *e)
{
    struct step_plan *p = &e->plan;
    struct model_batch *b = &p->batch;
    bool any = false;

    if (!p->axes || !e->o.executor.vision->three_axes) return;
    for (uint32_t i = 0; i < b->n_runs; i++) any |= p->run_request[i]->images.n > 0;
    if (!any) return;
    b->rope_axes = p->axes;
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct request_images *ri = &p->run_request[i]->images;
        const struct seq_run *run = &b->runs[i];

        vision_positions(ri->places, ri->n, run->pos0, run->n_rows, p->axes + run->row0, b->n_rows);
    }
}

void plan_step(struct engine *e)
{
    struct model_batch *b = &e->plan.batch;

    e->n_plans++;
    model_batch_clear(b);
    b->embeds = NULL;
    b->rope_axes = NULL;
    e->plan.n_decode = e->plan.n_heads = 0;
    for (uint32_t i = 0; i < e->n_live; i++) e->live[i]->in_batch = false;
    plan_heads(e);
    plan_decodes(e);
    plan_prefills(e);
    place_axes(e);
}
