/* engine/metering.c - the times and tokens of requests, added to the histograms where they become known. */
#include <string.h>
#include "base/checked.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

#define MIN_COMPUTED 16u /* tokens: fewer say little about the speed */
#define NS_PER_S     1000000000ull
#define LIST_NS      (NS_PER_S / 4)

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
    uint64_t now = clock_now_ns(e->o.clock), ns = now - r->usage.admitted_ns;
    uint32_t n_brought = r->usage.n_joined + r->usage.n_ram + r->usage.n_disk;

    r->prompt_known_ns = now;
    e->stats.prompt_device += r->usage.n_cached - u32_min(r->usage.n_cached, n_brought);
    add(e, RD_HIST_PROMPT_TOKENS, r->n_prompt);
    add(e, RD_HIST_COMPUTED_TOKENS, r->n_prompt_computed);
    if (!is_awaited(r)) return;
    add(e, RD_HIST_PREFILL, ns);
    if (r->n_prompt_computed >= MIN_COMPUTED) add(e, RD_HIST_PREFILL_SPEED, milli_per_s(r->n_prompt_computed, ns));
}

static void sampled(struct engine *e, struct request *r, uint64_t now)
{
    if (r->last_token_ns) {
        add(e, RD_HIST_INTER_TOKEN, now - r->last_token_ns);
        gaps_add(&r->gaps, now - r->last_token_ns);
    } else if (is_awaited(r)) {
        add(e, RD_HIST_TTFT, now - asked_ns(r));
    }
    r->last_token_ns = now;
}

/* ---- one by one ---- */

static double ms_between(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) / 1e6 : 0;
}

static double per_second(uint32_t n, double ms)
{
    return ms > 0 ? n * 1e3 / ms : 0;
}

/* A request that has ended, or is there now. */
static struct rd_record describe(const struct request *r, uint64_t now)
{
    const struct request_usage *u = &r->usage;
    bool ended = r->state == REQUEST_ENDED;
    uint64_t asked = asked_ns(r);
    struct rd_record d;

    memset(&d, 0, sizeof(d)); /* padding too: it is copied by words */
    d.id = r->id, d.asked_ns = asked, d.at_ns = now;
    memcpy(d.label, r->label, sizeof(d.label));
    d.phase = (int32_t)(ended ? r->ended_in : request_phase(r));
    d.finish = ended ? (int32_t)r->finish : 0, d.status = ended ? r->status : RD_OK;
    d.match = (int32_t)u->match, d.miss = (int32_t)u->miss, d.n_match = u->n_match;
    d.n_prompt = r->n_prompt, d.n_done = r->prompt_high, d.n_computed = r->n_prompt_computed;
    d.n_cached = u->n_cached, d.n_joined = u->n_joined, d.n_ram = u->n_ram, d.n_disk = u->n_disk;
    d.n_generated = r->n_generated, d.n_drafted = u->n_drafted, d.n_draft_accepted = u->n_draft_accepted;
    d.n_preempted = u->n_preempted, d.max_tokens = r->p.max_tokens;
    d.ended = ended, d.is_idle = r->p.idle, d.continues = r->p.continues;
    d.prepare_ms = ms_between(asked, u->submitted_ns);
    d.queue_ms = ms_between(u->submitted_ns, u->admitted_ns ? u->admitted_ns : now);
    d.ttft_ms = ms_between(asked, u->first_token_ns);
    d.prefill_ms = ms_between(u->admitted_ns, r->prompt_known_ns ? r->prompt_known_ns : now);
    d.decode_ms = ms_between(u->first_token_ns, r->last_token_ns);
    d.total_ms = ms_between(asked, now);
    d.prefill_tok_s = per_second(r->n_prompt_computed, d.prefill_ms);
    d.decode_tok_s = r->n_generated > 1 ? per_second(r->n_generated - 1, d.decode_ms) : 0;
    d.gap_p50_ms = gaps_quantile(&r->gaps, 0.5) / 1e6;
    d.gap_p99_ms = gaps_quantile(&r->gaps, 0.99) / 1e6;
    return d;
}

static void keep_record(struct engine *e, const struct request *r)
{
    struct rd_record d = describe(r, r->usage.ended_ns);

    d.number = atomic_load_explicit(&e->records.n_ended, memory_order_relaxed);
    records_add_ended(&e->records, &d);
}

void metering_list(struct engine *e, uint64_t now)
{
    struct records *list = &e->records;
    bool empty = e->n_live == 0 && e->n_queue == 0;
    uint32_t n = 0;

    if (!empty && now - list->listed_ns < LIST_NS) return;
    list->listed_ns = empty ? 0 : now; /* the next that comes is listed at once */
    for (uint32_t i = 0; i < e->n_live && n < RECORDS_RUNNING; i++) {
        struct rd_record d = describe(e->live[i], now);

        records_set_running(list, n++, &d);
    }
    for (const struct request *r = e->queue_head; r && n < RECORDS_RUNNING; r = r->next) {
        struct rd_record d = describe(r, now);

        records_set_running(list, n++, &d);
    }
    records_set_n_running(list, n);
}

static void fill_ages(struct rd_record *d, uint32_t n, uint64_t now)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t from = d[i].ended ? d[i].at_ns : d[i].asked_ns;

        d[i].age_s = now > from ? (double)(now - from) / 1e9 : 0;
    }
}

uint32_t engine_ended_requests(const struct engine *e, uint64_t *from, struct rd_record *out, uint32_t n_max)
{
    uint32_t n = records_ended(&e->records, from, out, n_max);

    fill_ages(out, n, clock_now_ns(e->o.clock));
    return n;
}

uint32_t engine_running_requests(const struct engine *e, struct rd_record *out, uint32_t n_max)
{
    uint32_t n = records_running(&e->records, out, n_max);

    fill_ages(out, n, clock_now_ns(e->o.clock));
    return n;
}

struct cancel_call {
    uint64_t id;
    bool found;
};

static void cancel_if(struct request *r, struct cancel_call *c)
{
    if (r->id != c->id) return;
    request_cancel(r, CANCEL_GONE);
    c->found = true;
}

static void cancel_on_engine(struct engine *e, void *arg)
{
    for (struct request *r = e->queue_head; r; r = r->next) cancel_if(r, arg);
    for (uint32_t i = 0; i < e->n_live; i++) cancel_if(e->live[i], arg);
}

rd_status engine_cancel_request(struct engine *e, uint64_t id)
{
    struct cancel_call c = {.id = id};
    rd_status st = engine_call(e, cancel_on_engine, &c);

    return st != RD_OK ? st : c.found ? RD_OK : RD_E_NOT_FOUND;
}

static void ended(struct engine *e, struct request *r)
{
    const struct request_usage *u = &r->usage;
    uint64_t ns = r->last_token_ns - u->first_token_ns; /* what the end token took is nobody's token */

    keep_record(e, r);
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
