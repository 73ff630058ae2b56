/* engine/step_ahead.c - the next decode step is given to the device while this one runs, so that it never waits for us.
 *
 *     device   | step N            | step N+1          | step N+2 ..
 *     host       begin N+1, wait N | finish N, begin N+2, wait N+1 | ..
 *
 * A step ahead has the rows of those that go on for sure as far as lengths tell. Its tokens are the choices of the step
 * before, taken on the device. Who turns out to have ended (an end token, a stop string, a cancel) has a row too many in
 * it: the request is forgotten there, its row and pages are given back at once. What is given to the device later comes
 * after that row, so that whoever gets them writes over it.
 *
 * There is no step ahead while anybody waits to be admitted or to prefill, whose choice needs the host (grammar,
 * penalties), who has images, who drafts, or whose reader is slow. Where the device chose an end that must not be (ignore_eos,
 * min_tokens), the host would choose anew from the row of logits, which the step ahead has written over: the row is
 * computed once more, with no step ahead of it. The text is the same with and without.
 */
#include <assert.h>
#include "base/checked.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

#define DRAFTING_RUNS 16u /* so few sequences gain more from drafts than from steps ahead */

bool step_ahead_can_begin(const struct engine *e)
{
    const struct step_plan *p = &e->plan;
    const struct model_batch *b = &p->batch;

    if (!e->o.executor.begin || p->n_heads > 0 || b->n_hidden > 0 ||
        (b->n_adapted > 0 && !e->o.executor.begins_adapted) || b->n_rows != b->n_runs || b->n_logits != b->n_rows ||
        p->n_decode != b->n_runs)
        return false;
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (!p->batch.unread[i] || p->run_request[i]->draft.n > 0) return false;
    return true;
}

/* The token of the step that runs is the last by length. */
static bool ends_by_length(const struct request *r)
{
    return r->n_generated + 1 >= r->p.max_tokens || r->seq.n_keys >= r->seq.n_keys_cap;
}

static bool goes_on_blindly(const struct engine *e, const struct request *r)
{
    return atomic_load_explicit(&r->cancel, memory_order_relaxed) == CANCEL_NONE && r->p.think.n_forced == 0 &&
           r->constraint.state == CONSTRAINT_NONE && r->images.n == 0 && !r->redo && request_ring_room(r) >= 2 &&
           r->seq.state == KV_SEQ_RUNNABLE &&
           !(e->speculation && r->p.speculate && e->plan.batch.n_runs <= DRAFTING_RUNS);
}

/* Everybody who lives is in the step that runs, and nobody waits to come in. */
static bool may_go_ahead(struct engine *e, uint32_t *n_pages)
{
    const struct step_plan *p = &e->plan;
    uint32_t n = 0;

    *n_pages = 0;
    if (e->n_queue > e->n_loading && !e->blocked) return false;
    for (uint32_t i = 0; i < p->batch.n_runs; i++) {
        const struct request *r = p->run_request[i];

        if (!r) continue;
        n++;
        if (!goes_on_blindly(e, r)) return false;
        if (!ends_by_length(r)) *n_pages += kv_seq_pages_ahead(&r->seq);
    }
    return n == e->n_live;
}

static void add_row(struct engine *e, struct request *r, uint32_t from)
{
    const struct step_plan *p = &e->plan;
    struct step_plan *next = &e->next;
    struct model_batch *b = &next->batch;
    uint32_t i = b->n_runs, pos = r->seq.n_reserved - 1, P = e->o.page_tokens;
    kv_page page = r->seq.pages[pos / P];

    model_batch_begin_run(b, pos, r->seq.pages, r->p.adapters);
    model_batch_set_windows(b, r->seq.windows);
    model_batch_want_logits(b, model_batch_add_row(b, 0, P), &p->batch.draws[from]);
    next->run_request[i] = r;
    next->run_logits[i] = i;
    next->run_hidden[i] = 0;
    next->from[i] = from;
    next->mixes[i] = adapter_mix_ref(r->p.adapters);
    if (pos % P == 0) ENGINE_TELL(page_begun, (e, page));
}

void step_ahead_begin(struct engine *e)
{
    const struct step_plan *p = &e->plan;
    struct model_batch *b = &e->next.batch;
    uint32_t n_pages, n_free = page_pool_n_free(e->pool);

    assert(!e->has_next);
    if (!may_go_ahead(e, &n_pages)) return;
    if (n_pages > n_free) (void)engine_evict(e, n_pages - n_free);
    if (n_pages > page_pool_n_free(e->pool)) return;
    model_batch_clear(b);
    b->embeds = NULL; /* this plan was another step's */
    b->rope_axes = NULL;
    for (uint32_t i = 0; i < p->batch.n_runs; i++) {
        struct request *r = p->run_request[i];

        if (r && !ends_by_length(r) && kv_seq_reserve_ahead(&r->seq) == RD_OK) add_row(e, r, i);
    }
    if (b->n_runs == 0) return;
    e->next.n_heads = e->next.n_prefill_rows = 0;
    e->next.n_decode = e->next.n_decode_rows = b->n_runs;
    e->has_next = true;
    e->stats.n_steps_ahead++;
    if (e->o.executor.begin(e->o.executor.self, b, e->next.from) == RD_OK) return;
    /* The device failed: so does the step that runs, which ends everybody here. */
    for (uint32_t i = 0; i < b->n_runs; i++) e->next.run_request[i] = NULL;
    step_ahead_done(&e->next);
    e->has_next = false;
}

void step_ahead_take(struct engine *e)
{
    struct step_plan plan = e->plan;

    assert(e->has_next);
    e->plan = e->next;
    e->next = plan;
    e->has_next = false;
    e->is_begun = true;
    for (uint32_t i = 0; i < e->plan.batch.n_runs; i++)
        if (e->plan.run_request[i]) e->plan.run_request[i]->last_step = e->stats.n_steps;
}

void step_ahead_done(struct step_plan *p)
{
    for (uint32_t i = 0; p->mixes && i < p->batch.n_runs; i++) {
        adapter_mix_unref(p->mixes[i]);
        p->mixes[i] = NULL;
    }
}

/* r ends or is preempted: its row in the step under way counts for nothing. */
static void forget(struct engine *e, struct request *r)
{
    if (!e->has_next || !r->seq.is_ahead) return;
    for (uint32_t i = 0; i < e->next.batch.n_runs; i++)
        if (e->next.run_request[i] == r) e->next.run_request[i] = NULL;
}

bool step_ahead_redo(struct engine *e, uint32_t i)
{
    struct request *r = e->plan.run_request[i];
    int32_t token = e->plan.choices[e->plan.run_logits[i]].token;
    uint32_t n_banned = request_n_banned_ends(r), k = 0;

    if (!e->has_next || n_banned == 0) return false;
    while (k < n_banned && r->ends[k] != token) k++;
    if (k == n_banned) return false;
    forget(e, r);
    kv_seq_unreserve(&r->seq);
    r->redo = true;
    return true;
}

void step_ahead_drop(struct engine *e)
{
    if (!e->has_next) return;
    for (uint32_t i = 0; i < e->next.batch.n_runs; i++)
        if (e->next.run_request[i]) kv_seq_unreserve(&e->next.run_request[i]->seq);
    (void)e->o.executor.end(e->o.executor.self);
    step_ahead_done(&e->next);
    e->has_next = false;
}

const struct engine_listener listens_ahead = {.left = forget};
