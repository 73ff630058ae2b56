/* engine/metering.c - the times and tokens of requests, added to the histograms where they become known. */
#include "base/checked.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

#define MIN_COMPUTED 16u /* tokens: fewer say little about the speed */
#define NS_PER_S     1000000000ull

static void add(struct engine *e, enum rd_histogram_id id, uint64_t value)
{
    histogram_add(&e->meter.of[id], value);
}

/* Its client waits for it from the beginning on. */
static bool is_awaited(const struct request *r)
{
    return !r->p.idle && !r->p.continues;
}

static uint64_t asked_ns(const struct request *r)
{
    return r->p.asked_ns ? r->p.asked_ns : r->usage.submitted_ns;
}

static uint64_t milli_per_s(uint32_t n, uint64_t ns)
{
    return n * 1000 * NS_PER_S / u64_max(ns, 1);
}

static void admitted(struct engine *e, struct request *r)
{
    if (r->admitted_before || !is_awaited(r)) return;
    add(e, RD_HIST_PREPARE, r->usage.submitted_ns - asked_ns(r));
    add(e, RD_HIST_QUEUE, clock_now_ns(e->o.clock) - r->usage.submitted_ns);
    if (r->p.max_tokens > 0) add(e, RD_HIST_MAX_TOKENS, r->seq.n_keys_cap - r->n_prompt);
}

static void committed(struct engine *e, uint64_t now)
{
    (void)now;
    add(e, RD_HIST_STEP_ROWS, e->plan.batch.n_rows);
}

static void prompt_known(struct engine *e, struct request *r)
{
    uint64_t ns = clock_now_ns(e->o.clock) - r->usage.admitted_ns;
    uint32_t n_brought = r->usage.n_joined + r->usage.n_ram + r->usage.n_disk;

    e->stats.prompt_device += r->usage.n_cached - u32_min(r->usage.n_cached, n_brought);
    add(e, RD_HIST_PROMPT_TOKENS, r->n_prompt);
    add(e, RD_HIST_COMPUTED_TOKENS, r->n_prompt_computed);
    if (!is_awaited(r)) return;
    add(e, RD_HIST_PREFILL, ns);
    if (r->n_prompt_computed >= MIN_COMPUTED) add(e, RD_HIST_PREFILL_SPEED, milli_per_s(r->n_prompt_computed, ns));
}

static void sampled(struct engine *e, struct request *r, uint64_t now)
{
    if (r->last_token_ns)
        add(e, RD_HIST_INTER_TOKEN, now - r->last_token_ns);
    else if (is_awaited(r))
        add(e, RD_HIST_TTFT, now - asked_ns(r));
    r->last_token_ns = now;
}

static void ended(struct engine *e, struct request *r)
{
    const struct request_usage *u = &r->usage;
    uint64_t ns = r->last_token_ns - u->first_token_ns; /* what the end token took is nobody's token */

    if (r->finish > REQUEST_LENGTH || !u->admitted_ns) return;
    if (r->p.max_tokens > 0) add(e, RD_HIST_GENERATED_TOKENS, u->n_generated);
    if (!is_awaited(r)) return;
    add(e, RD_HIST_RUN, u->ended_ns - u->admitted_ns);
    add(e, RD_HIST_E2E, u->ended_ns - asked_ns(r));
    if (u->first_token_ns) add(e, RD_HIST_DECODE, u->ended_ns - u->first_token_ns);
    if (u->n_generated < 2) return;
    add(e, RD_HIST_PER_TOKEN, ns / (u->n_generated - 1));
    add(e, RD_HIST_DECODE_SPEED, milli_per_s(u->n_generated - 1, ns));
}

const struct engine_listener listens_meter = {
    .admitted = admitted, .committed = committed, .prompt_known = prompt_known, .sampled = sampled, .ended = ended};
