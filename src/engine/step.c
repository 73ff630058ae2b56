/* engine/step.c - one turn of the engine: reap, admit, plan, forward, commit, sample, finish. */
#include <assert.h>
#include <math.h>
#include "base/checked.h"
#include "base/log.h"
#include "engine/engine_state.h"
#include "engine/images.h"
#include "engine/listener.h"
#include "engine/pointing.h"

#define HOUSEKEEPING_NS   1000000000ull /* TTL and the accounting equation: once a second */
#define MIN_MEASURED_ROWS 16u           /* smaller prefills say little about the speed */
#define LARGE_PREFILL     128u          /* rows: bound by multiplying, not by reading weights */
#define EXPIRE_NODES      64u           /* nodes dropped per housekeeping at most: a step must stay short */

static void live_remove(struct engine *e, struct request *r)
{
    uint32_t i = 0;

    while (e->live[i] != r) i++;
    for (e->n_live--; i < e->n_live; i++) e->live[i] = e->live[i + 1];
    e->blocked = false; /* what it held may let the next one in */
}

enum rd_phase request_phase(const struct request *r)
{
    if (r->state != REQUEST_LIVE) return request_is_away(r) ? RD_PHASE_LOADING : RD_PHASE_QUEUED;
    if (r->seq.state == KV_SEQ_WAITING) return RD_PHASE_WAITING;
    return r->n_generated > 0 ? RD_PHASE_DECODE : RD_PHASE_PREFILL;
}

static void count_end(struct engine *e, const struct request *r, enum request_finish finish, rd_status st)
{
    e->stats.keys_max = u64_max(e->stats.keys_max, r->seq.n_keys);
    e->stats.n_corrupted += st == RD_E_MODEL_OUTPUT;
    switch (finish) {
    case REQUEST_STOP:
        e->stats.n_stop++;
        break;
    case REQUEST_LENGTH:
        e->stats.n_length++;
        break;
    case REQUEST_CANCELLED:
        e->stats.n_cancelled++;
        break;
    case REQUEST_ERROR:
        e->stats.n_failed++;
        break;
    }
}

/* Keeps the path of a finished prompt for the low-level interface. */
static rd_status hold_path(struct engine *e, struct request *r, uint64_t now)
{
    struct radix_node *root = root_of(e, r);
    uint32_t n_held = 0;

    if (!root) return RD_E_NOMEM;
    r->held = kv_hold(&e->cache, root, r->seq.keys, r->n_prompt, now, &n_held);
    if (n_held == r->n_prompt) return RD_OK;
    kv_unhold(&e->cache, r->held);
    r->held = NULL;
    return RD_E_NOMEM;
}

void request_end(struct engine *e, struct request *r, enum request_finish finish, rd_status st)
{
    uint64_t now = clock_now_ns(e->o.clock);
    bool keep = r->p.cached && r->seq.cached && finish != REQUEST_ERROR;

    r->ended_in = request_phase(r);
    e->stats.n_cancelled_in[r->ended_in] += finish == REQUEST_CANCELLED;
    ENGINE_TELL(ending, (e, r, keep));
    ENGINE_TELL(left, (e, r));
    if (r->state == REQUEST_LIVE) {
        kv_seq_finish(&r->seq, keep, now);
        if (keep) ENGINE_TELL(kept, (e, r));
        live_remove(e, r);
        if (r->p.hold && finish == REQUEST_LENGTH) st = hold_path(e, r, now);
        if (st != RD_OK && finish == REQUEST_LENGTH) finish = REQUEST_ERROR;
    } else {
        queue_remove(e, r);
        e->blocked = false; /* it may be the one that did not fit */
        if (!r->admitted_before) engine_give_place(e);
    }
    count_end(e, r, finish, st);
    r->state = REQUEST_ENDED;
    r->finish = finish;
    r->status = st;
    r->usage.n_prompt = r->n_prompt;
    r->usage.n_generated = r->n_generated;
    r->usage.ended_ns = now;
    ENGINE_TELL(ended, (e, r));
    engine_publish_stats(e); /* before the consumer can know: what it reads then includes this request */
    atomic_store_explicit(&r->ended, true, memory_order_release);
    if (r->p.wake) r->p.wake(r->p.wake_arg);
    request_unref(r);
}

void request_preempt(struct engine *e, struct request *r)
{
    ENGINE_TELL(preempting, (e, r));
    ENGINE_TELL(left, (e, r));
    kv_seq_finish(&r->seq, r->p.cached && r->seq.cached, clock_now_ns(e->o.clock));
    live_remove(e, r);
    queue_put(e, r, true);
    e->blocked = true; /* it did not fit: wait until something else is released */
    e->stats.n_preempted++;
    r->usage.n_preempted++;
}

/* Cancelled requests, queued and live, and those whose ground a device error took away. */
static void reap(struct engine *e)
{
    for (struct request *r = e->queue_head, *next; r; r = next) {
        next = r->next;
        if (atomic_load_explicit(&r->cancel, memory_order_relaxed) != CANCEL_NONE)
            request_end(e, r, REQUEST_CANCELLED, RD_E_CANCELLED);
    }
    for (uint32_t i = 0; i < e->n_live;) {
        struct request *r = e->live[i];
        int cancel = atomic_load_explicit(&r->cancel, memory_order_relaxed);

        if (r->seq.state == KV_SEQ_POISONED)
            request_end(e, r, REQUEST_ERROR, RD_E_DEVICE);
        else if (cancel == CANCEL_SATISFIED)
            request_end(e, r, REQUEST_STOP, RD_OK);
        else if (cancel == CANCEL_GONE)
            request_end(e, r, REQUEST_CANCELLED, RD_E_CANCELLED);
        else
            i++;
    }
}

static bool is_end_token(const struct request *r, int32_t token)
{
    for (uint32_t i = 0; i < r->p.n_end_tokens + r->p.n_stop_tokens; i++)
        if (r->ends[i] == token) return true;
    return false;
}

uint32_t request_n_banned_ends(const struct request *r)
{
    if (r->n_generated < r->p.min_tokens) return r->p.n_end_tokens + r->p.n_stop_tokens;
    return r->p.ignore_eos ? r->p.n_end_tokens : 0;
}

/* Prompt log probabilities of the rows that this step computed: row at position p tells about token p + 1. */
static rd_status keep_prompt_logprobs(struct engine *e, struct request *r, const struct seq_run *run,
                                      const float *logits)
{
    uint32_t n_vocab = e->o.executor.n_vocab;
    struct sampler_result t;

    for (uint32_t i = 0; i < run->n_rows && run->pos0 + i + 1 < r->n_prompt; i++) {
        uint32_t pos = run->pos0 + i + 1;
        rd_status st = sampler_logprobs(e->scratch, logits + (size_t)i * n_vocab, n_vocab, key_token(r->seq.keys[pos]),
                                        r->n_top_cap, &t);

        if (st != RD_OK) return st;
        r->prompt_logprobs[pos] = (struct token_logprob){t.token, t.logprob};
        r->prompt_ranks[pos] = t.rank;
        for (uint32_t k = 0; k < t.n_top && k < r->n_top_cap; k++)
            r->prompt_top[(size_t)pos * r->n_top_cap + k] = t.top[k];
    }
    return RD_OK;
}

static size_t row_of(const struct engine *e, const float *logits)
{
    return (size_t)(logits - e->logits) / e->o.executor.n_vocab;
}

/* Where the row of logits stayed on the device: the token chosen there. RD_E_AGAIN: the row is here (by now), sample
 * from it. */
static rd_status take_choice(struct engine *e, const struct sampler_bounds *bounds, float *logits,
                             struct sampler_result *out)
{
    size_t row = row_of(e, logits);
    const struct row_choice *c = &e->plan.choices[row];
    rd_status st;

    if (!e->plan.batch.unread[row]) return RD_E_AGAIN;
    if (!isfinite(c->value)) return RD_E_MODEL_OUTPUT;
    if (!sampler_may_draw(bounds, c->token)) {
        st = e->o.executor.read_logits(e->o.executor.self, (uint32_t)row, logits);
        return st == RD_OK ? RD_E_AGAIN : st;
    }
    *out = (struct sampler_result){.token = c->token};
    return RD_OK;
}

/* What the model told about the row, and so needs no pass over it. */
static void know_best(struct engine *e, const float *logits)
{
    const float *best = e->plan.best + row_of(e, logits) * e->plan.n_best;
    bool known = e->o.executor.gives_best && !isnan(best[0]);

    sampler_scratch_know(e->scratch, logits, known ? best : NULL);
}

/* A row of logits to one token: the one that a grammar forces, the device's choice, or a draw. */
static rd_status choose_token(struct engine *e, struct request *r, float *logits, struct sampler_result *out)
{
    struct sampler_bounds bounds = {.banned = r->ends, .n_banned = request_n_banned_ends(r)};
    uint32_t n_room = r->p.goes_on ? UINT32_MAX : r->seq.n_keys_cap - r->seq.n_keys + 1;
    uint32_t n_left = u32_min(r->p.max_tokens - r->n_generated, n_room);
    int32_t forced;
    bool is_forced = constraint_forced(&r->constraint, &forced);
    rd_status st = RD_OK;

    if (!is_forced || r->p.sampling.want_logprob) /* a mask is work, which nobody needs for a token that is given */
        st = constraint_bound(&r->constraint, n_left, r->ends, r->p.n_end_tokens + r->p.n_stop_tokens, &bounds);
    if (st != RD_OK) return st;
    if (is_forced) {
        r->usage.n_forced++;
        return sampler_take(r->sampler, e->scratch, logits, &bounds, forced, out);
    }
    know_best(e, logits);
    st = take_choice(e, &bounds, logits, out);
    if (st == RD_E_AGAIN) st = sampler_sample(r->sampler, e->scratch, logits, &bounds, r->seq.n_keys, out);
    sampler_scratch_know(e->scratch, NULL, NULL);
    return st;
}

/* The logits after the last known token: one more token, of which the caller tells the reader, or the end. False: r has
 * ended (its reader was told), and may be gone. */
static bool sample_next(struct engine *e, struct request *r, float *logits, uint64_t now)
{
    struct sampler_result t;
    int32_t forced;
    rd_status st;

    if (r->pointers.ends) { /* it was preempted, or goes on in the tree, while it waited for its points */
        if (!pointer_holds(r)) request_end(e, r, REQUEST_LENGTH, RD_OK);
        return false;
    }
    if (r->p.logits_out) {
        for (uint32_t i = 0; i < e->o.executor.n_vocab; i++) r->p.logits_out[i] = logits[i];
    }
    if (r->p.max_tokens == 0) {
        st = prefill_score(&r->prefill, e->scratch, logits, e->o.executor.n_vocab);
        request_end(e, r, st == RD_OK ? REQUEST_LENGTH : REQUEST_ERROR, st);
        return false;
    }
    if (constraint_has_ended(&r->constraint)) { /* before its first token */
        request_end(e, r, REQUEST_STOP, RD_OK);
        return false;
    }
    st = choose_token(e, r, logits, &t);
    if (st != RD_OK) {
        request_end(e, r, REQUEST_ERROR, st);
        return false;
    }
    if (r->usage.first_token_ns == 0) r->usage.first_token_ns = now;
    forced = think_budget_next(&r->p.think, pointer_next(r, t.token));
    if (forced != t.token) t = (struct sampler_result){.token = forced};
    if (is_end_token(r, t.token)) {
        r->stop_token = t.token;
        request_end(e, r, REQUEST_STOP, RD_OK);
        return false;
    }
    request_push(r, &t); /* plan.c runs nobody whose ring is full */
    r->n_generated++;
    e->stats.generated++;
    ENGINE_TELL(sampled, (e, r, now));
    sampler_accept(r->sampler, t.token, false);
    st = constraint_accept(&r->constraint, t.token);
    if (st != RD_OK || constraint_has_ended(&r->constraint)) {
        if (st == RD_OK && r->seq.n_keys < r->seq.n_keys_cap) kv_seq_push(&r->seq, (kv_key)t.token);
        request_end(e, r, st == RD_OK ? REQUEST_STOP : REQUEST_ERROR, st);
        return false;
    }
    if (r->n_generated >= r->p.max_tokens || r->seq.n_keys >= r->seq.n_keys_cap) {
        r->pointers.ends = pointer_holds(r);
        if (r->pointers.ends) return true;
        request_end(e, r, REQUEST_LENGTH, RD_OK); /* the last token has no KV yet and is not stored */
        return false;
    }
    kv_seq_push(&r->seq, token_key(t.token));
    return true;
}

/* The state beside a row of logits, of the last committed row. */
static void keep_state(struct engine *e, struct request *r, const float *logits)
{
    const float *state = e->plan.states + row_of(e, logits) * e->o.executor.n_state;

    if (e->o.executor.n_state == 0) return;
    kv_seq_keep_state(&r->seq, state);
    pointer_note(e, r, state);
    if (r->seq.n_computed == r->n_prompt) ENGINE_TELL(at_end, (e, r, state));
}

/* Row by row as if each were a step of its own: the token sampled from it either is what the next row was computed for,
 * or that row and all after it never were. */
static bool sample_drafted(struct engine *e, struct request *r, float *logits, uint64_t now)
{
    uint32_t n_right = 0;
    bool live;

    request_ref(r);
    if (!r->draft.is_certain) r->usage.n_drafted += r->draft.n;
    kv_seq_commit_rows(&r->seq, 1);
    keep_state(e, r, logits);
    while (sample_next(e, r, logits, now) && n_right < r->draft.n && !r->pointers.ends &&
           r->seq.keys[r->seq.n_keys - 1] == r->draft.tokens[n_right]) {
        n_right++;
        if (!r->draft.is_certain) r->usage.n_draft_accepted++; /* now: whoever sees the end reads it */
        logits += e->o.executor.n_vocab;
        kv_seq_commit_rows(&r->seq, 1);
        keep_state(e, r, logits);
    }
    if (!r->draft.is_certain) ENGINE_TELL(verified, (e, r, n_right));
    live = r->state == REQUEST_LIVE;
    if (live) kv_seq_unreserve(&r->seq);
    request_unref(r);
    return live;
}

/* Counts each prompt row once: computed here first, or taken from the tree. */
static void count_rows(struct engine *e, struct request *r, const struct seq_run *run)
{
    uint32_t end = u32_min(run->pos0 + run->n_rows, r->n_prompt), begin = u32_max(run->pos0, r->prompt_high);
    uint32_t fresh = end > begin ? end - begin : 0;

    if (run->pos0 < r->n_prompt) e->stats.recomputed += u32_min(run->n_rows, end - run->pos0) - fresh;
    r->n_prompt_computed += fresh;
    e->stats.prompt_computed += fresh;
    if (end <= r->prompt_high) return;
    r->prompt_high = end;
    atomic_store_explicit(&r->prompt_computed, r->n_prompt_computed, memory_order_relaxed);
    atomic_store_explicit(&r->prompt_seen, end, memory_order_relaxed);
    if (end < r->n_prompt) return;
    r->usage.n_cached = r->n_prompt - r->n_prompt_computed;
    e->stats.prompt_cached += r->usage.n_cached;
    r->usage.n_joined = u32_min(r->seq.n_hit_in_flight, r->usage.n_cached);
    e->stats.prompt_joined += r->usage.n_joined;
    ENGINE_TELL(prompt_known, (e, r));
}

static uint32_t n_run_hidden(const struct step_plan *p, uint32_t i)
{
    return (i + 1 < p->batch.n_runs ? p->run_hidden[i + 1] : p->batch.n_hidden) - p->run_hidden[i];
}

/* The hidden states of run i, which is of a request that pools. */
static const float *run_hidden(const struct engine *e, const struct step_plan *p, uint32_t i)
{
    return p->hidden + (size_t)p->run_hidden[i] * e->o.executor.n_state;
}

/* False: this run ends a prefill with logits, or has hidden states, that are no numbers. Seen before the commit, so
 * that its keys never become matchable. */
static bool prefill_is_sound(const struct engine *e, const struct step_plan *p, uint32_t i)
{
    const struct request *r = p->run_request[i];
    const struct seq_run *run = &p->batch.runs[i];
    uint32_t end = i + 1 < p->batch.n_runs ? p->run_logits[i + 1] : p->batch.n_logits;

    if (prefill_pools(&r->prefill))
        return prefill_is_finite(run_hidden(e, p, i), (uint64_t)n_run_hidden(p, i) * e->o.executor.n_state);
    if (run->pos0 + run->n_rows < r->seq.n_keys || (i < p->n_decode && r->n_generated > 0)) return true;
    if (p->batch.unread[end - 1]) return isfinite(p->choices[end - 1].value);
    return sampler_check_logits(e->logits + (size_t)(end - 1) * e->o.executor.n_vocab, e->o.executor.n_vocab) == RD_OK;
}

static void pool_run(struct engine *e, uint32_t i)
{
    struct step_plan *p = &e->plan;
    struct request *r = p->run_request[i];

    prefill_pool(&r->prefill, p->batch.runs[i].pos0, p->batch.runs[i].n_rows, run_hidden(e, p, i));
    if (r->seq.n_computed < r->seq.n_keys) return;
    if (prefill_pools_at(&r->prefill, r->n_prompt - 1))
        kv_seq_keep_state(&r->seq, run_hidden(e, p, i) + (size_t)(n_run_hidden(p, i) - 1) * e->o.executor.n_state);
    prefill_pool_end(&r->prefill);
    request_end(e, r, REQUEST_LENGTH, RD_OK);
}

/* Run i is committed: its token, or its end. False: r was told of its end, or has no token to tell of. */
static bool finish_run(struct engine *e, uint32_t i, uint64_t now)
{
    struct step_plan *p = &e->plan;
    struct request *r = p->run_request[i];
    float *logits = e->logits + (size_t)p->run_logits[i] * e->o.executor.n_vocab;
    uint32_t last = (i + 1 < p->batch.n_runs ? p->run_logits[i + 1] : p->batch.n_logits) - 1;
    bool in_prompt = r->p.prompt_logprobs && p->batch.runs[i].pos0 < r->n_prompt;
    rd_status st = r->unsound  ? RD_E_MODEL_OUTPUT
                   : in_prompt ? keep_prompt_logprobs(e, r, &p->batch.runs[i], logits)
                               : RD_OK;

    if (st != RD_OK) {
        request_end(e, r, REQUEST_ERROR, st);
    } else if (prefill_pools(&r->prefill)) {
        pool_run(e, i);
    } else if (r->draft.n > 0) {
        return sample_drafted(e, r, logits, now);
    } else if (r->seq.n_computed == r->seq.n_keys) {
        logits = e->logits + (size_t)last * e->o.executor.n_vocab;
        keep_state(e, r, logits);
        return sample_next(e, r, logits, now);
    }
    return false;
}

static void finish_step(struct engine *e, uint64_t now)
{
    struct step_plan *p = &e->plan;
    uint64_t sampled_ns;

    for (uint32_t i = 0; i < p->batch.n_runs; i++) {
        struct request *r = p->run_request[i];

        if (!r) continue; /* ended since the step was given to the device */
        if (step_ahead_redo(e, i)) {
            p->run_request[i] = NULL;
            continue;
        }
        r->redo = false;
        count_rows(e, r, &p->batch.runs[i]);
        r->unsound = !prefill_is_sound(e, p, i);
        if (r->unsound)
            kv_seq_unreserve(&r->seq);
        else if (r->draft.n == 0)
            kv_seq_commit_rows(&r->seq, p->batch.runs[i].n_rows); /* all first: only now are they matchable as ready */
    }
    ENGINE_TELL(committed, (e, now));
    for (uint32_t i = 0; i < p->batch.n_runs; i++)
        if (p->run_request[i] && !finish_run(e, i, now)) p->run_request[i] = NULL; /* it may be gone */
    sampled_ns = clock_now_ns(e->o.clock);
    e->stats.sample_ns += sampled_ns - now;
    /* All at once: readers that are woken one by one cost the step a switch of threads each. */
    for (uint32_t i = 0; i < p->batch.n_runs; i++) {
        struct request *r = p->run_request[i];

        if (r && r->p.wake) r->p.wake(r->p.wake_arg);
    }
    e->stats.output_ns += clock_now_ns(e->o.clock) - sampled_ns;
}

static void note_device_error(struct engine *e)
{
    e->stats.device_errors++;
    if (e->o.executor.is_dead && e->o.executor.is_dead(e->o.executor.self)) e->stats.device_dead = 1;
}

/* Prompts that are stored whole: nothing of them is computed, not even their last token. */
static void run_heads(struct engine *e)
{
    struct step_plan *p = &e->plan;
    float *logits = e->logits + (size_t)(e->o.executor.max_logits - p->n_heads) * e->o.executor.n_vocab;
    rd_status st = e->o.executor.head(e->o.executor.self, p->n_heads, p->head_states, logits);
    uint64_t now = clock_now_ns(e->o.clock);

    if (st != RD_OK) {
        log_error("the head over %u kept states failed: %s", p->n_heads, rd_status_name(st));
        note_device_error(e);
    }
    for (uint32_t i = 0; i < p->n_heads; i++, logits += e->o.executor.n_vocab) {
        struct request *r = p->heads[i];

        p->batch.unread[row_of(e, logits)] = false;
        if (e->o.executor.gives_best) p->best[row_of(e, logits) * p->n_best] = NAN;
        count_rows(e, r, &(struct seq_run){.pos0 = r->n_prompt});
        if (st != RD_OK)
            request_end(e, r, REQUEST_ERROR, st);
        else if (sample_next(e, r, logits, now) && r->p.wake)
            r->p.wake(r->p.wake_arg);
    }
}

/* The last hidden state of a text that is stored whole is its vector already. */
static void pool_kept_states(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_live;) {
        struct request *r = e->live[i];
        const float *state = prefill_pools(&r->prefill) && r->p.cached ? kv_seq_take_whole(&r->seq) : NULL;

        if (!state) {
            i++;
            continue;
        }
        count_rows(e, r, &(struct seq_run){.pos0 = r->n_prompt});
        prefill_pool(&r->prefill, r->n_prompt - 1, 1, state);
        prefill_pool_end(&r->prefill);
        request_end(e, r, REQUEST_LENGTH, RD_OK);
    }
}

static void fail_step(struct engine *e, rd_status st)
{
    struct step_plan *p = &e->plan;

    log_error("a step of %u rows failed: %s", p->batch.n_rows, rd_status_name(st));
    note_device_error(e);
    for (uint32_t i = 0; i < p->batch.n_runs; i++)
        if (p->run_request[i]) kv_seq_poison(&p->run_request[i]->seq);
    reap(e);
    step_ahead_drop(e); /* it went on from what failed; all its requests have ended */
}

static uint64_t rate_of(uint64_t n_tokens, uint64_t ns)
{
    return ns ? n_tokens * 1000000000000ull / ns : 0;
}

/* The rate moves on by 1 / parts of the way to what was measured now. */
static void smooth(uint64_t *rate, uint64_t now, uint32_t parts)
{
    *rate = *rate ? (*rate * (parts - 1) + now) / parts : now;
}

/* Rows of prompts in the time of their step, decodes beside them included: what plan.c fits into its target. A step
 * much shorter than that is one of few rows, and only shows that at least this many are possible. */
static void measure_prefill(struct engine *e, uint64_t now, uint64_t ns)
{
    if (now > e->prefill_rate)
        smooth(&e->prefill_rate, now, 2);
    else if (ns >= e->o.step_target_ns / 2)
        smooth(&e->prefill_rate, now, 8);
}

static void measure(struct engine *e, uint64_t ns)
{
    struct step_plan *p = &e->plan;
    uint64_t now = rate_of(p->n_prefill_rows, ns);

    e->stats.n_steps++;
    e->stats.step_runs += p->batch.n_runs;
    e->stats.step_rows += p->batch.n_rows;
    e->stats.step_ns_last = ns;
    if (p->n_prefill_rows >= MIN_MEASURED_ROWS) measure_prefill(e, now, ns);
    if (p->n_decode == 0 && p->n_prefill_rows >= LARGE_PREFILL) smooth(&e->prompt_rate, now, 2);
    if (p->n_prefill_rows == 0) ENGINE_TELL(stepped, (e, p->n_decode_rows, ns));
}

static void housekeeping(struct engine *e, uint64_t now)
{
    struct page_counts c = page_pool_counts(e->pool);

    if (now - e->housekeeping_ns < HOUSEKEEPING_NS) return;
    e->housekeeping_ns = now;
    if (e->o.ttl_ns && now > e->o.ttl_ns) {
        radix_expire(e->cache.tree, now - e->o.ttl_ns, now, EXPIRE_NODES);
        ENGINE_TELL(expire, (e, now - e->o.ttl_ns, now));
    }
    radix_drop_empty(e->cache.tree, e->root);
    while (radix_counts(e->cache.tree).node_bytes > e->o.kv_bytes / 8 && engine_evict(e, EXPIRE_NODES) > 0) {}
    if (c.n_free + c.n_ready + c.n_locked + c.n_pending + c.n_quarantined != c.n_total) {
        e->stats.accounting_errors++;
        log_error("page accounting: %u free, %u ready, %u locked, %u pending, %u quarantined of %u", c.n_free,
                  c.n_ready, c.n_locked, c.n_pending, c.n_quarantined, c.n_total);
    }
}

static void drain_inbox(struct engine *e)
{
    struct request *r;

    for (uint32_t i = 0; i < e->o.max_queue && (r = queue_try_pop(e->inbox)); i++) {
        r->queued_ns = clock_now_ns(e->o.clock);
        e->stats.n_submitted++;
        queue_put(e, r, false);
    }
}

/* Plan's step, whose results are there in the end; behind it the next one may have begun. */
static rd_status run_step(struct engine *e)
{
    const struct executor *x = &e->o.executor;
    rd_status st;

    if (!e->is_begun) {
        if (!step_ahead_can_begin(e)) return x->forward(x->self, &e->plan.batch, e->logits);
        st = x->begin(x->self, &e->plan.batch, NULL);
        if (st != RD_OK) return st;
    }
    e->is_begun = false;
    step_ahead_begin(e);
    st = x->end(x->self);
    step_ahead_done(&e->plan);
    return st;
}

/* Everybody who was admitted has hung up: nobody waits for what the step computes, now or for its pages. */
static bool is_moot(void *arg)
{
    struct engine *e = arg;

    atomic_fetch_add_explicit(&e->n_beats, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < e->n_live; i++)
        if (atomic_load_explicit(&e->live[i]->cancel, memory_order_relaxed) != CANCEL_GONE) return false;
    return true;
}

/* The step ended early, as if it had not run; its requests end before the next. */
static void drop_step(struct engine *e)
{
    struct step_plan *p = &e->plan;

    for (uint32_t i = 0; i < p->batch.n_runs; i++)
        if (p->run_request[i]) kv_seq_unreserve(&p->run_request[i]->seq);
}

/* Who was cancelled since reap has rows in one step more. */
static void count_late(struct engine *e)
{
    for (uint32_t i = 0; i < e->plan.batch.n_runs; i++) {
        struct request *r = e->plan.run_request[i];

        if (!r || atomic_load_explicit(&r->cancel, memory_order_relaxed) != CANCEL_GONE) continue;
        if (++r->n_late_steps > e->stats.steps_after_cancel) e->stats.steps_after_cancel = r->n_late_steps;
    }
}

/* turn_ns: when the turn began; begin: its step, which may have been given to the device by the turn before. */
static void step(struct engine *e, uint64_t turn_ns, uint64_t begin)
{
    uint64_t n_generated = e->stats.generated, run_ns = clock_now_ns(e->o.clock);
    rd_status st;

    e->stats.plan_ns += run_ns - turn_ns;
    count_late(e);
    engine_publish_stats(e); /* a step can take long: who runs in it is seen now */
    e->plan.batch.is_moot = e->plan.n_prefill_rows > 0 ? is_moot : NULL;
    e->plan.batch.moot_arg = e;
    st = run_step(e);
    e->plan.batch.is_moot = NULL;
    e->step_end_ns = clock_now_ns(e->o.clock);
    e->stats.forward_ns += e->step_end_ns - run_ns;
    if (st == RD_E_CANCELLED) {
        drop_step(e);
        return;
    }
    if (st != RD_OK) {
        fail_step(e, st);
        return;
    }
    measure(e, e->step_end_ns - begin);
    finish_step(e, e->step_end_ns);
    if (e->plan.n_prefill_rows == 0)
        smooth(&e->decode_rate, rate_of(e->stats.generated - n_generated, e->step_end_ns - begin), 8);
}

bool engine_step(struct engine *e)
{
    uint64_t turn_ns = clock_now_ns(e->o.clock);
    uint64_t begin = e->step_end_ns; /* of a step under way; else now */
    bool was_idle = false, encodes;

    thread_owner_check(&e->owner);
    atomic_fetch_add_explicit(&e->n_turns, 1, memory_order_relaxed);
    drain_inbox(e);
    ENGINE_TELL(collect, (e, clock_now_ns(e->o.clock)));
    reap(e);
    admission_run(e);
    pool_kept_states(e);
    if (e->has_next) {
        step_ahead_take(e);
    } else {
        plan_step(e);
        if (e->plan.n_heads > 0) run_heads(e);
        begin = clock_now_ns(e->o.clock);
    }
    ENGINE_TELL(before_step, (e));
    if (e->plan.batch.n_rows > 0)
        step(e, turn_ns, begin);
    else if (e->plan.n_heads == 0 && e->n_live == 0 && e->n_queue == 0)
        was_idle = engine_idles(e);
    encodes = images_wait(e) || pointer_waits(e); /* whoever waits for what is done now goes on in the next turn */
    if (!e->has_next && images_wait(e) && !(pointer_waits(e) && e->n_turns % 2))
        images_encode(e);
    else if (!e->has_next)
        pointer_work(e); /* in turns with images, where there are both */
    housekeeping(e, begin);
    metering_list(e, begin);
    engine_publish_stats(e);
    return e->plan.batch.n_rows + e->plan.n_heads > 0 || was_idle || encodes || engine_must_turn(e) ||
           (e->n_live == 0 && e->n_queue > e->n_loading && engine_n_out(e) == 0); /* one starts over */
}
