/* api/api_generate.c - the blocking calls: one request, a batch of them, and tokens in, logits out. */
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "base/error.h"
#include "base/mem.h"

#define WAIT_MS 1000u /* only how often a waiting loop looks again without being rung */

static rd_status outcome(const struct rd_event *ev, struct rd_error *err)
{
    if (ev->type == RD_EVENT_ERROR) return error_set(err, ev->status, "%s", ev->message);
    if (ev->finish == RD_FINISH_CANCELLED) return error_set(err, RD_E_CANCELLED, "cancelled");
    return RD_OK;
}

/* Runs one request to its end. */
static rd_status follow(rd_request *r, uint32_t index, rd_event_fn on_event, void *user, struct rd_error *err)
{
    struct rd_event ev = {.size = sizeof(ev)};

    for (;;) {
        rd_status st = rd_request_wait(r, WAIT_MS, &ev);

        if (st == RD_E_AGAIN) continue;
        if (st != RD_OK) return error_set(err, st, "%s", rd_status_text(st));
        if (on_event && on_event(user, index, &ev) != 0) rd_request_cancel(r);
        if (ev.type == RD_EVENT_DONE || ev.type == RD_EVENT_ERROR) return outcome(&ev, err);
    }
}

rd_status rd_generate(rd_engine *engine, const struct rd_request_options *o, rd_event_fn on_event, void *user,
                      struct rd_error *err)
{
    rd_request *r = NULL;
    rd_status st = rd_submit(engine, o, NULL, NULL, &r, err);

    if (st != RD_OK) return st;
    st = follow(r, 0, on_event, user, err);
    rd_request_release(r);
    return st;
}

/* The batch's doorbell: any of its requests has something. */
static void ring(void *user)
{
    wake_ring(user);
}

/* Hands out what request i has; true when it has ended. */
static bool drain(rd_request *r, uint32_t i, rd_event_fn on_event, void *user, rd_status *st, struct rd_error *err)
{
    struct rd_event ev = {.size = sizeof(ev)};
    rd_status next;

    while ((next = rd_request_next(r, &ev)) == RD_OK) {
        if (on_event && on_event(user, i, &ev) != 0) rd_request_cancel(r);
        if (ev.type != RD_EVENT_DONE && ev.type != RD_EVENT_ERROR) continue;
        next = outcome(&ev, *st == RD_OK ? err : NULL);
        if (*st == RD_OK) *st = next;
        return true;
    }
    return next != RD_E_AGAIN;
}

rd_status rd_generate_batch(rd_engine *engine, const struct rd_request_options *o, uint32_t n, rd_event_fn on_event,
                            void *user, struct rd_error *err)
{
    rd_request **requests = mem_zalloc(n, sizeof(rd_request *));
    struct wake *bell = NULL;
    uint32_t n_submitted = 0, n_ended = 0;
    rd_status st = requests ? wake_create(&bell) : RD_E_NOMEM;

    if (st != RD_OK) {
        mem_free(requests);
        return error_set(err, st, "%s", rd_status_text(st));
    }
    while (n_ended < n) {
        while (n_submitted < n) { /* a full queue takes the rest as it empties */
            rd_status sub =
                rd_submit(engine, &o[n_submitted], ring, bell, &requests[n_submitted], st == RD_OK ? err : NULL);

            if (sub == RD_E_FULL && n_submitted > n_ended) break;
            n_submitted++;
            if (sub == RD_OK) continue;
            n_ended++;
            if (st == RD_OK) st = sub;
        }
        for (uint32_t i = 0; i < n_submitted; i++) {
            if (!requests[i] || !drain(requests[i], i, on_event, user, &st, err)) continue;
            rd_request_release(requests[i]);
            requests[i] = NULL;
            n_ended++;
        }
        if (n_ended < n) wake_wait(bell, (uint64_t)WAIT_MS * 1000000);
    }
    wake_destroy(bell);
    mem_free(requests);
    return st;
}

/* A request that has no text: made here, waited for here. */
struct raw_job {
    struct request_params p;
    struct request *request;
    struct wake *bell;
};

static rd_status raw_check(const rd_engine *engine, const int32_t *tokens, uint32_t n, struct rd_error *err)
{
    uint32_t n_max = engine->engine ? engine_max_prompt(engine->engine) + 1 : 0;

    if (!engine->engine) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    if (n == 0) return error_set(err, RD_E_INVALID, "no tokens: at least 1 is needed");
    if (n > n_max) return error_set(err, RD_E_CONTEXT, "%u tokens, at most %u fit into the context", n, n_max);
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= engine->info.n_vocab)
            return error_set(err, RD_E_INVALID, "token %d is not in the vocabulary of %u", tokens[i],
                             engine->info.n_vocab);
    return RD_OK;
}

/* Hands it to the engine, which rings job->bell. RD_E_FULL: later. */
static rd_status raw_begin(rd_engine *engine, struct raw_job *job, const int32_t *tokens, uint32_t n,
                           struct rd_error *err)
{
    rd_status st;

    job->p.max_tokens = 0;
    job->p.max_keys = engine->info.n_ctx;
    job->p.wake = ring;
    job->p.wake_arg = job->bell;
    sampler_params_default(&job->p.sampling);
    st = engine_take_place(engine->engine);
    if (st != RD_OK) return error_set(err, st, "%s", rd_status_text(st));
    st = request_create(&job->p, engine_cache(engine->engine), engine->info.n_vocab, tokens, n, &job->request, err);
    if (st == RD_OK) st = engine_submit(engine->engine, job->request);
    if (st == RD_OK) return RD_OK;
    engine_give_place(engine->engine);
    return error_set(err, st, "%s", rd_status_text(st));
}

static bool raw_ended(const struct raw_job *job)
{
    return atomic_load_explicit(&job->request->ended, memory_order_acquire);
}

static rd_status raw_outcome(const struct raw_job *job, struct rd_error *err)
{
    rd_status st = job->request->status;

    return st == RD_OK ? RD_OK : error_set(err, st, "%s", rd_status_text(st));
}

static rd_status raw_run(rd_engine *engine, struct raw_job *job, const int32_t *tokens, uint32_t n,
                         struct rd_error *err)
{
    rd_status st = raw_check(engine, tokens, n, err);

    if (st != RD_OK) return st;
    if ((st = wake_create(&job->bell)) != RD_OK) return error_set(err, st, "out of memory");
    st = raw_begin(engine, job, tokens, n, err);
    if (st != RD_OK) return st;
    while (!raw_ended(job)) wake_wait(job->bell, (uint64_t)WAIT_MS * 1000000);
    return raw_outcome(job, err);
}

static void nothing(struct engine *e, void *arg)
{
    (void)e;
    (void)arg;
}

/* The engine rings after it has stored `ended`: once it has turned, the bell is ours alone. */
static void let_engine_turn(rd_engine *engine)
{
    while (engine_call(engine->engine, nothing, NULL) == RD_E_FULL) thread_yield();
}

static void raw_end(rd_engine *engine, struct raw_job *job)
{
    if (job->request) let_engine_turn(engine);
    request_unref(job->request);
    wake_destroy(job->bell);
}

rd_status rd_classify(rd_engine *engine, const int32_t *tokens, uint32_t n, float *logits, struct rd_error *err)
{
    struct raw_job job = {.p = {.cached = true, .logits_out = logits}};
    rd_status st = raw_run(engine, &job, tokens, n, err);

    raw_end(engine, &job);
    return st;
}

struct classify_run {
    rd_engine *engine;
    struct rd_classify_item *items;
    struct raw_job *jobs;
    struct wake *bell;
    uint32_t n, n_begun, n_open; /* begun: run, have ended, or cannot run; open: run */
    uint32_t n_done;             /* at the front, of which none runs */
};

/* Submits prompt after prompt until the queue is full. */
static rd_status classify_begin(struct classify_run *run, struct rd_error *err)
{
    rd_engine *engine = run->engine;
    rd_status first = RD_OK;

    for (; run->n_begun < run->n; run->n_begun++) {
        struct rd_classify_item *item = &run->items[run->n_begun];
        struct raw_job *job = &run->jobs[run->n_begun];
        struct rd_error *said = first == RD_OK ? err : NULL;

        item->status = raw_check(engine, item->tokens, item->n, said);
        for (uint32_t i = 0; item->status == RD_OK && i < item->n_labels; i++)
            if (item->labels[i] < 0 || (uint32_t)item->labels[i] >= engine->info.n_vocab)
                item->status = error_set(said, RD_E_INVALID, "label %d is not in the vocabulary of %u", item->labels[i],
                                         engine->info.n_vocab);
        if (item->status == RD_OK) {
            job->bell = run->bell;
            job->p.cached = true;
            job->p.logits_out = item->logits;
            job->p.prefill.score_tokens = item->labels;
            job->p.prefill.n_scores = item->n_labels;
            item->status = raw_begin(engine, job, item->tokens, item->n, said);
            if (item->status == RD_E_FULL && run->n_open > 0) return first;
            run->n_open += item->status == RD_OK;
        }
        if (item->status == RD_OK) continue;
        if (first == RD_OK) first = item->status;
        request_unref(job->request); /* never reached the engine */
        job->request = NULL;
    }
    return first;
}

/* What an ended one found. */
static rd_status classify_end(struct rd_classify_item *item, struct raw_job *job, struct rd_error *err)
{
    const struct prefill_result *found = &job->request->prefill;

    item->status = raw_outcome(job, err);
    for (uint32_t i = 0; item->status == RD_OK && i < item->n_labels; i++) {
        if (item->logprobs) item->logprobs[i] = found->scores[i];
        if (found->scores[i] > found->scores[item->best]) item->best = i;
    }
    return item->status;
}

/* Takes what has ended; returns the first error among it. */
static rd_status classify_take(struct classify_run *run, struct rd_error *err)
{
    rd_status first = RD_OK;

    while (run->n_done < run->n_begun && !run->jobs[run->n_done].request) run->n_done++;
    for (uint32_t i = run->n_done; i < run->n_begun; i++) {
        struct raw_job *job = &run->jobs[i];
        rd_status st;

        if (!job->request || !raw_ended(job)) continue;
        st = classify_end(&run->items[i], job, first == RD_OK ? err : NULL);
        if (first == RD_OK) first = st;
        request_unref(job->request);
        job->request = NULL;
        run->n_open--;
    }
    return first;
}

static rd_status classify_all(rd_engine *engine, struct rd_classify_item *items, uint32_t n, struct rd_error *err)
{
    struct classify_run run = {engine, items, mem_zalloc(n, sizeof(struct raw_job)), NULL, n, 0, 0, 0};
    rd_status st;

    if (engine->process) {
        mem_free(run.jobs);
        return api_process_classify(engine, items, n, err);
    }
    st = run.jobs ? wake_create(&run.bell) : RD_E_NOMEM;
    if (st != RD_OK) {
        mem_free(run.jobs);
        return error_set(err, st, "out of memory");
    }
    for (uint32_t i = 0; i < n; i++) items[i].best = 0;
    while (run.n_begun < n || run.n_open > 0) {
        rd_status one = classify_begin(&run, st == RD_OK ? err : NULL);

        if (st == RD_OK) st = one;
        if (run.n_open > 0) wake_wait(run.bell, (uint64_t)WAIT_MS * 1000000);
        one = classify_take(&run, st == RD_OK ? err : NULL);
        if (st == RD_OK) st = one;
    }
    if (engine->engine) let_engine_turn(engine);
    wake_destroy(run.bell);
    mem_free(run.jobs);
    return st;
}

rd_status rd_classify_batch(rd_engine *engine, struct rd_classify_item *items, uint32_t n, struct rd_error *err)
{
    const size_t size = n ? api_size(items->size, sizeof(*items), API_FIRST_ITEM) : sizeof(*items);
    struct rd_classify_item *ours;
    rd_status st;

    if (size == sizeof(*items)) return classify_all(engine, items, n, err);
    ours = mem_zalloc(n, sizeof(*ours));
    if (!ours) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        memcpy(&ours[i], (char *)items + i * size, size < sizeof(*ours) ? size : sizeof(*ours));
    st = classify_all(engine, ours, n, err);
    for (uint32_t i = 0; i < n; i++) {
        struct rd_classify_item *theirs = (void *)((char *)items + i * size);

        theirs->best = ours[i].best;
        theirs->status = ours[i].status;
    }
    mem_free(ours);
    return st;
}

rd_status rd_forward_cold(rd_engine *engine, const int32_t *tokens, uint32_t n, float *logits, struct rd_error *err)
{
    struct raw_job job = {.p = {.cached = false, .logits_out = logits}};
    rd_status st = raw_run(engine, &job, tokens, n, err);

    raw_end(engine, &job);
    return st;
}

rd_status rd_score(rd_engine *engine, const int32_t *tokens, uint32_t n, float *logprobs, struct rd_error *err)
{
    struct raw_job job = {.p = {.cached = false, .prompt_logprobs = true}};
    rd_status st = raw_run(engine, &job, tokens, n, err);

    for (uint32_t i = 0; st == RD_OK && i < n; i++) logprobs[i] = i ? job.request->prompt_logprobs[i].logprob : 0;
    raw_end(engine, &job);
    return st;
}

rd_status rd_embed(rd_engine *engine, const int32_t *tokens, uint32_t n, enum rd_pooling pooling, float *out,
                   struct rd_error *err)
{
    struct raw_job job = {.p = {.cached = true}};
    rd_status st;

    if (pooling <= RD_POOL_NONE || pooling > RD_POOL_LAST)
        return error_set(err, RD_E_INVALID, "pooling %d is unknown", (int)pooling);
    if (!engine->engine) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    if (n > 0) api_embed_wish(engine, pooling, n, &job.p.prefill, &job.p.cached);
    st = raw_run(engine, &job, tokens, n, err);
    if (st == RD_OK) memcpy(out, job.request->prefill.embedding, engine->info.hidden * sizeof(*out));
    raw_end(engine, &job);
    return st;
}

struct hold_call {
    struct rd_kv *kv;
    uint32_t n_held;
    bool release;
};

static void hold_on_engine(struct engine *e, void *arg)
{
    struct hold_call *c = arg;

    if (c->release) {
        kv_unhold(engine_cache(e), c->kv->node);
        c->kv->node = NULL;
        return;
    }
    c->kv->node = kv_hold(engine_cache(e), engine_root(e), token_keys(c->kv->tokens), c->kv->n,
                          clock_now_ns(clock_system()), &c->n_held);
}

static struct rd_kv *kv_new(rd_engine *engine, const int32_t *first, uint32_t n_first, const int32_t *second,
                            uint32_t n_second)
{
    struct rd_kv *kv = mem_zalloc(1, sizeof(*kv));

    if (!kv) return NULL;
    kv->engine = engine;
    kv->n = n_first + n_second;
    kv->tokens = mem_alloc((size_t)kv->n + 1, sizeof(*kv->tokens));
    if (!kv->tokens) {
        mem_free(kv);
        return NULL;
    }
    if (n_first) memcpy(kv->tokens, first, n_first * sizeof(*first));
    if (n_second) memcpy(kv->tokens + n_first, second, n_second * sizeof(*second));
    return kv;
}

rd_status rd_forward(rd_engine *engine, const rd_kv *base, const int32_t *tokens, uint32_t n, float *logits,
                     rd_kv **out, struct rd_error *err)
{
    struct raw_job job = {.p = {.cached = true, .hold = out != NULL, .logits_out = logits}};
    struct rd_kv *kv;
    rd_status st;

    if (out) *out = NULL;
    if (n == 0) return error_set(err, RD_E_INVALID, "no tokens: at least 1 is needed");
    if (n > UINT32_MAX - 1 - (base ? base->n : 0)) return error_set(err, RD_E_CONTEXT, "too many tokens");
    kv = kv_new(engine, base ? base->tokens : NULL, base ? base->n : 0, tokens, n);
    if (!kv) return error_set(err, RD_E_NOMEM, "out of memory for a cache handle");
    st = raw_run(engine, &job, kv->tokens, kv->n, err);
    if (st == RD_OK && out) {
        kv->node = job.request->held;
        *out = kv;
        kv = NULL;
    }
    raw_end(engine, &job);
    if (kv) mem_free(kv->tokens);
    mem_free(kv);
    return st;
}

rd_status rd_kv_slice(const rd_kv *base, uint32_t keep, rd_kv **out, struct rd_error *err)
{
    struct hold_call call = {0};
    rd_status st;

    *out = NULL;
    if (!base || keep > base->n)
        return error_set(err, RD_E_INVALID, "cannot keep %u of %u tokens", keep, base ? base->n : 0);
    call.kv = kv_new(base->engine, base->tokens, keep, NULL, 0);
    if (!call.kv) return error_set(err, RD_E_NOMEM, "out of memory for a cache handle");
    st = engine_call(base->engine->engine, hold_on_engine, &call);
    if (st == RD_OK) {
        *out = call.kv;
        return RD_OK;
    }
    mem_free(call.kv->tokens);
    mem_free(call.kv);
    return error_set(err, st, "%s", rd_status_text(st));
}

uint32_t rd_kv_length(const rd_kv *kv)
{
    return kv ? kv->n : 0;
}

void rd_kv_free(rd_kv **kv)
{
    struct hold_call call = {.release = true};

    if (!kv || !*kv) return;
    call.kv = *kv;
    while (engine_call((*kv)->engine->engine, hold_on_engine, &call) == RD_E_FULL) thread_yield();
    mem_free((*kv)->tokens);
    mem_free(*kv);
    *kv = NULL;
}
