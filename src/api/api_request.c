/* api/api_request.c - a request as the client sees it: submit, events, cancel, release.
 *
 * Tokens come out of the engine's ring; here they become text: UTF-8 whole, stop strings cut, on the consumer's thread.
 */
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"

#define PIECE_OUT(n) ((n)*3 + 12) /* most that token_decoder_feed writes for a piece of n bytes */
#define DECODE_CHUNK 4096u

void rd_request_options_default(struct rd_request_options *o)
{
    *o = (struct rd_request_options){.size = sizeof(*o),
                                     .prompt_end = RD_PROMPT_AUTO,
                                     .max_tokens = RD_NO_LIMIT,
                                     .thinking_tokens = RD_NO_LIMIT,
                                     .n_keep = RD_KEEP_HEAD,
                                     .jump_ahead = true,
                                     .cache_prompt = true,
                                     .speculation = true,
                                     .replay = true};
    rd_sampling_default(&o->sampling);
}

static rd_status check_options(const rd_engine *engine, const struct rd_request_options *o, struct rd_error *err)
{
    if (!engine->engine && !engine->process)
        return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    if (!!o->chat + !!o->messages_json + !!o->prompt + !!o->tokens != 1)
        return error_set(err, RD_E_INVALID, "exactly one of chat, messages_json, prompt and tokens must be given");
    if (o->chat) return error_set(err, RD_E_INVALID, "chat: it has tools and variables of its own");
    if (o->embed > RD_POOL_LAST) return error_set(err, RD_E_INVALID, "embed: %d is no pooling", (int)o->embed);
    if (o->embed && (o->prompt_logprobs || o->n_score_tokens))
        return error_set(err, RD_E_INVALID, "embed: not together with prompt_logprobs or score_tokens");
    if (o->n_score_tokens && o->max_tokens != 0)
        return error_set(err, RD_E_INVALID, "score_tokens: max_tokens must be 0");
    for (uint32_t i = 0; i < o->n_score_tokens; i++)
        if (o->score_tokens[i] < 0 || (uint32_t)o->score_tokens[i] >= engine->info.n_vocab)
            return error_set(err, RD_E_INVALID, "score_tokens: %d is not in the vocabulary of %u", o->score_tokens[i],
                             engine->info.n_vocab);
    if (o->n_stop > LIMIT_STOP_STRINGS)
        return error_set(err, RD_E_INVALID, "stop: at most %u strings", LIMIT_STOP_STRINGS);
    for (uint32_t i = 0; i < o->n_stop; i++) {
        size_t n = o->stop && o->stop[i] ? strlen(o->stop[i]) : 0;

        if (n == 0 || n > LIMIT_STOP_BYTES)
            return error_set(err, RD_E_INVALID, "stop: each string must have 1 to %u bytes", LIMIT_STOP_BYTES);
    }
    for (uint32_t i = 0; o->adapters && i < o->n_adapters; i++)
        if (!o->adapters[i].name) return error_set(err, RD_E_INVALID, "adapters[%u]: no name given", i);
    if (engine->process) return api_process_check(engine, o, err);
    if (o->cache_name && api_name_check(o->cache_name, err) != RD_OK) return RD_E_INVALID;
    return api_sampling_check(engine, o, err);
}

static char *copy_text(struct arena *a, const char *s, bool *ok)
{
    char *copy = s ? arena_memdup(a, s, strlen(s)) : NULL;

    if (s && !copy) *ok = false;
    return copy;
}

static const char *const *copy_texts(struct arena *a, const char *const *texts, uint32_t n, bool *ok)
{
    const char **copy = arena_alloc(a, (size_t)n + 1, sizeof(*copy)); /* an empty list is not none */

    if (!copy) *ok = false;
    for (uint32_t i = 0; copy && i < n; i++) copy[i] = copy_text(a, texts[i], ok);
    return copy;
}

static const void *copy_list(struct arena *a, const void *list, size_t bytes, bool *ok)
{
    const void *copy = list ? arena_memdup(a, list, bytes) : NULL;

    if (list && !copy) *ok = false;
    return copy;
}

static void copy_text_bias(struct arena *a, struct rd_request_options *c, bool *ok)
{
    struct rd_text_bias *copy = arena_alloc(a, c->sampling.n_text_bias, sizeof(*copy));

    if (!copy) *ok = false;
    for (uint32_t i = 0; copy && i < c->sampling.n_text_bias; i++)
        copy[i] = (struct rd_text_bias){copy_text(a, c->sampling.text_bias[i].text, ok), c->sampling.text_bias[i].bias};
    c->sampling.text_bias = copy;
}

static const struct rd_adapter_use *copy_adapters(struct arena *a, const struct rd_request_options *o, bool *ok)
{
    struct rd_adapter_use *copy =
        arena_alloc(a, (size_t)o->n_adapters + 1, sizeof(*copy)); /* an empty list is not none */

    if (!copy) *ok = false;
    for (uint32_t i = 0; copy && i < o->n_adapters; i++)
        copy[i] = (struct rd_adapter_use){copy_text(a, o->adapters[i].name, ok), o->adapters[i].scale};
    return copy;
}

static rd_status copy_options(struct rd_request *r, const struct rd_request_options *o)
{
    struct rd_request_options *c = &r->o;
    bool ok = true;

    *c = *o;
    c->messages_json = copy_text(&r->arena, o->messages_json, &ok);
    c->tools_json = copy_text(&r->arena, o->tools_json, &ok);
    c->kwargs_json = copy_text(&r->arena, o->kwargs_json, &ok);
    c->fairness_key = copy_text(&r->arena, o->fairness_key, &ok);
    c->cache_salt = copy_text(&r->arena, o->cache_salt, &ok);
    c->label = copy_text(&r->arena, o->label, &ok);
    c->cache_name = copy_text(&r->arena, o->cache_name, &ok);
    if (o->adapters) c->adapters = copy_adapters(&r->arena, o, &ok);
    c->forced_tool = copy_text(&r->arena, o->forced_tool, &ok);
    c->grammar_name = copy_text(&r->arena, o->grammar_name, &ok);
    if (o->grammar) ok &= (c->grammar = arena_memdup(&r->arena, o->grammar, o->grammar_bytes)) != NULL;
    if (o->prompt) ok &= (c->prompt = arena_memdup(&r->arena, o->prompt, o->prompt_bytes)) != NULL;
    c->sampling.samplers = copy_text(&r->arena, o->sampling.samplers, &ok);
    c->score_tokens = copy_list(&r->arena, o->n_score_tokens ? o->score_tokens : NULL,
                                o->n_score_tokens * sizeof(*o->score_tokens), &ok);
    if (o->embed) c->max_tokens = 0;
    c->tokens = copy_list(&r->arena, o->tokens, o->n_tokens * sizeof(*o->tokens), &ok);
    c->sampling.bias = copy_list(&r->arena, o->sampling.n_bias ? o->sampling.bias : NULL,
                                 o->sampling.n_bias * sizeof(*o->sampling.bias), &ok);
    c->sampling.allowed =
        copy_list(&r->arena, o->sampling.allowed, o->sampling.n_allowed * sizeof(*o->sampling.allowed), &ok);
    c->stop_tokens =
        copy_list(&r->arena, o->n_stop_tokens ? o->stop_tokens : NULL, o->n_stop_tokens * sizeof(*o->stop_tokens), &ok);
    c->stop = o->n_stop ? copy_texts(&r->arena, o->stop, o->n_stop, &ok) : NULL;
    c->sampling.bad_words =
        o->sampling.n_bad_words ? copy_texts(&r->arena, o->sampling.bad_words, o->sampling.n_bad_words, &ok) : NULL;
    if (o->sampling.dry_breakers)
        c->sampling.dry_breakers = copy_texts(&r->arena, o->sampling.dry_breakers, o->sampling.n_dry_breakers, &ok);
    if (o->sampling.n_text_bias) copy_text_bias(&r->arena, c, &ok);
    return ok ? RD_OK : RD_E_NOMEM;
}

static rd_status make_stops(struct rd_request *r)
{
    struct text_span spans[LIMIT_STOP_STRINGS];

    for (uint32_t i = 0; i < r->o.n_stop; i++) spans[i] = (struct text_span){r->o.stop[i], strlen(r->o.stop[i])};
    return stop_matcher_create(spans, r->o.n_stop, &r->stops);
}

static void request_free(struct rd_request *r)
{
    request_unref(r->request);
    process_release(r->job);
    api_shift_deinit(r);
    stop_matcher_destroy(r->stops);
    api_output_deinit(&r->output);
    buf_deinit(&r->text);
    api_images_deinit(&r->images);
    arena_deinit(&r->arena);
    adapter_mix_unref(r->adapters);
    if (r->spelled.tools) spelling_memory_release(r->engine->spellings, &r->spelled);
    cond_deinit(&r->cond);
    mutex_deinit(&r->lock);
    mem_free(r);
}

void api_request_unref(struct rd_request *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) request_free(r);
}

rd_status rd_submit(rd_engine *engine, const struct rd_request_options *options, void (*wake)(void *user),
                    void *wake_user, rd_request **out, struct rd_error *err)
{
    struct rd_request_options own, *o = &own;
    struct adapter_mix *mix = NULL;
    struct rd_request *r;
    rd_status st;

    *out = NULL;
    st = api_options(options, &own, err);
    if (st == RD_OK) st = check_options(engine, o, err);
    if (st == RD_OK) st = api_adapters_mix(engine, o, &mix, err);
    if (st != RD_OK) return st;
    if (engine->engine) st = engine_take_place(engine->engine);
    if (st != RD_OK) {
        adapter_mix_unref(mix);
        atomic_fetch_add_explicit(&engine->n_rejected, 1, memory_order_relaxed);
        return error_set(err, st, "%s", rd_status_text(st));
    }
    r = mem_zalloc(1, sizeof(*r));
    if (!r) {
        adapter_mix_unref(mix);
        if (engine->engine) engine_give_place(engine->engine);
        return error_set(err, RD_E_NOMEM, "out of memory for a request");
    }
    mutex_init(&r->lock);
    cond_init(&r->cond);
    arena_init(&r->arena, 0);
    r->engine = engine;
    r->adapters = mix;
    r->wake = wake;
    r->wake_user = wake_user;
    r->stop_hit = -1;
    r->asked_ns = clock_now_ns(clock_system());
    atomic_init(&r->refs, 1);
    if (engine->tokenizer) token_decoder_init(&r->decoder, engine->tokenizer, false);
    st = copy_options(r, o);
    if (st == RD_OK) st = make_stops(r);
    if (st == RD_OK) {
        atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
        atomic_fetch_add(&engine->n_preparing, 1);
        st = queue_push(engine->prep, r);
        if (st == RD_OK) {
            *out = r;
            return RD_OK;
        }
        atomic_fetch_sub(&engine->n_preparing, 1);
    }
    if (engine->engine) engine_give_place(engine->engine);
    request_free(r);
    return error_set(err, st, "%s", rd_status_text(st));
}

rd_status rd_warm(rd_engine *engine, const struct rd_request_options *o, struct rd_error *err)
{
    struct rd_request_options warm = *o;
    struct rd_request *r;
    uint32_t n_max;
    rd_status st;

    warm.idle = warm.cache_prompt = true;
    warm.max_tokens = 0;
    if (engine->engine && engine_n_places(engine->engine, &n_max) > n_max / 2)
        return error_set(err, RD_E_FULL, "%s", rd_status_text(RD_E_FULL));
    st = rd_submit(engine, &warm, NULL, NULL, &r, err);
    if (st == RD_OK) api_request_unref(r); /* nobody waits for it; the engine has a reference */
    return st;
}

void api_request_ring(struct rd_request *r)
{
    mutex_lock(&r->lock);
    r->rung = true;
    cond_signal(&r->cond);
    if (r->wake) r->wake(r->wake_user);
    mutex_unlock(&r->lock);
}

void api_request_wake(void *request)
{
    struct rd_request *r = request;
    /* The engine calls once more after it has stored `ended`: that call gives the engine's reference back. */
    bool last = atomic_load_explicit(&r->request->ended, memory_order_relaxed);

    if (last) atomic_store(&r->shift.last_wake, true); /* behind this r->request is not looked at */
    api_request_ring(r);
    if (last) api_request_unref(r);
}

void api_request_fail(struct rd_request *r, rd_status st, const char *message)
{
    r->fail_status = st;
    error_quote(r->fail_message, sizeof(r->fail_message), message, strlen(message));
    atomic_store(&r->phase, PHASE_FAILED);
    api_request_ring(r);
}

/* 0: it is not computed yet. */
static double prompt_ms(const struct request_usage *u)
{
    return u->admitted_ns && u->first_token_ns ? (double)(u->first_token_ns - u->admitted_ns) / 1e6 : 0;
}

static void fill_usage(const struct rd_request *r, struct rd_usage *u)
{
    const struct request_usage *s = &api_shift_first(r)->usage, *l = &r->request->usage, *sum = &r->shift.sum;
    uint64_t first = s->first_token_ns ? s->first_token_ns : s->ended_ns;

    memset(u, 0, sizeof(*u));
    u->n_prompt = api_shift_first(r)->n_prompt;
    u->n_shifts = r->shift.n_shifts;
    u->n_dropped = r->shift.n_dropped;
    u->n_cached = s->n_cached;
    u->n_joined = s->n_joined;
    u->miss = (int)s->miss;
    u->n_ram = s->n_ram;
    u->n_disk = s->n_disk;
    u->n_shared = s->n_shared;
    u->n_lossy = s->n_lossy;
    u->n_drafted = sum->n_drafted + l->n_drafted;
    u->n_draft_accepted = sum->n_draft_accepted + l->n_draft_accepted;
    u->n_forced = sum->n_forced + l->n_forced;
    u->n_generated = api_output_is_cut(r) ? r->n_tokens_out : sum->n_generated + l->n_generated;
    u->n_reasoning = r->output.n_reasoning;
    u->left_out = r->left_out;
    u->n_restored = r->n_restored;
    u->n_images = s->n_images;
    u->n_images_encoded = s->n_images_encoded;
    u->encoder_ms = (double)s->encoder_ns / 1e6;
    if (!s->admitted_ns) return;
    u->queue_ms = (double)(s->admitted_ns - s->submitted_ns) / 1e6;
    u->prompt_ms = (double)(first - s->admitted_ns) / 1e6;
    u->predicted_ms = (double)(l->ended_ns - first) / 1e6;
    u->ttft_ms = (double)(first - s->submitted_ns) / 1e6;
    if (s->encoded_ns) u->images_ready_ms = (double)(s->encoded_ns - s->submitted_ns) / 1e6;
}

/* A control token that the parser must see; its text never becomes content. */
static bool is_visible(const struct rd_request *r, int32_t token)
{
    const struct api_style *s = &r->engine->style;

    for (uint32_t i = 0; r->output.parser && i < s->n_visible; i++)
        if (s->visible[i] == token) return true;
    return false;
}

static void feed_special(struct rd_request *r, int32_t token)
{
    struct text_span piece = tokenizer_piece(r->engine->tokenizer, token, true);
    char rest[16];

    api_output_feed(r, rest, token_decoder_flush(&r->decoder, rest), false);
    api_output_feed(r, piece.s, piece.n, true);
}

static void feed_piece(struct rd_request *r, struct text_span piece)
{
    char out[PIECE_OUT(DECODE_CHUNK)];

    for (size_t at = 0; at < piece.n;) { /* a vocabulary entry can be long */
        size_t n = piece.n - at < DECODE_CHUNK ? piece.n - at : DECODE_CHUNK;
        size_t n_out = token_decoder_feed(&r->decoder, (struct text_span){piece.s + at, n}, out);

        api_output_feed(r, out, n_out, false);
        at += n;
    }
}

/* include_stop: an end token has no text that a client wants, a stop token has. */
static void feed_stop_token(struct rd_request *r)
{
    int32_t token = r->request->stop_token;

    for (uint32_t i = 0; r->o.include_stop && i < r->o.n_stop_tokens; i++) {
        if (r->o.stop_tokens[i] != token || api_output_is_cut(r)) continue;
        feed_piece(r, tokenizer_piece(r->engine->tokenizer, token, true));
        return;
    }
}

/* Named after the field that rules out the most; the form, and min_tokens, are part of it with any. */
static const char *why_nothing_is_left(const struct rd_sampling *s)
{
    if (s->n_allowed)
        return "allowed_token_ids: with the output's form, logit_bias, bad_words and min_tokens nothing is left to "
               "draw";
    if (s->n_bias || s->n_text_bias)
        return "logit_bias: with the output's form, bad_words and min_tokens nothing is left to draw";
    if (s->n_bad_words) return "bad_words: with the output's form and min_tokens nothing is left to draw";
    return "the output's form and min_tokens leave nothing to draw";
}

static rd_status ended_event(struct rd_request *r, struct rd_event *ev)
{
    const struct request *q = r->request;
    char rest[16];

    feed_stop_token(r);
    api_output_feed(r, rest, token_decoder_flush(&r->decoder, rest), false);
    api_output_finish(r);
    r->ended_sent = true;
    api_answer_keep(r);
    ev->type = RD_EVENT_DONE;
    ev->stop_token = q->stop_token;
    ev->finish = (enum rd_finish)q->finish;
    ev->status = q->status;
    if (api_output_is_cut(r)) {
        ev->finish = RD_FINISH_STOP;
        ev->status = RD_OK;
        ev->stop_string = r->stop_hit >= 0 ? r->o.stop[r->stop_hit] : NULL;
        ev->stop_token = -1;
    } else if (r->output.has_call &&
               q->finish == REQUEST_LENGTH) { /* for its closing tag there was no room: all the same */
        ev->finish = RD_FINISH_STOP;
    } else if (q->finish == REQUEST_ERROR) {
        ev->type = RD_EVENT_ERROR;
        ev->message = q->status == RD_E_INVALID ? why_nothing_is_left(&r->o.sampling) : rd_status_text(q->status);
    }
    fill_usage(r, &ev->usage);
    return RD_OK;
}

/* Nothing more is wanted of it. */
static void let_go(struct rd_request *r)
{
    request_cancel(r->request, CANCEL_SATISFIED);
    engine_kick(r->engine->engine);
}

static void token_event(struct rd_request *r, const struct token_out *t, struct rd_event *ev)
{
    bool thought = r->output.parser && output_parser_thinks(r->output.parser);

    r->n_tokens_out++;
    r->shift.last_token = t->token;
    if (is_visible(r, t->token))
        feed_special(r, t->token);
    else
        feed_piece(r, tokenizer_piece(r->engine->tokenizer, t->token, false));
    if (thought || (r->output.parser && output_parser_thinks(r->output.parser))) r->output.n_reasoning++;
    ev->type = RD_EVENT_TOKEN;
    ev->token = t->token;
    ev->logprob = t->logprob;
    ev->n_top = t->n_top;
    ev->usage.n_prompt = api_shift_first(r)->n_prompt; /* all stand once the prompt is computed */
    ev->usage.n_cached = api_shift_first(r)->usage.n_cached;
    ev->usage.n_ram = api_shift_first(r)->usage.n_ram;
    ev->usage.n_disk = api_shift_first(r)->usage.n_disk;
    ev->usage.n_shared = api_shift_first(r)->usage.n_shared;
    ev->usage.prompt_ms = prompt_ms(&api_shift_first(r)->usage);
    if (api_output_is_cut(r)) let_go(r);
}

static rd_status next_event(struct rd_request *r, struct rd_event *ev)
{
    struct token_logprob top[LIMIT_TOP_LOGPROBS];
    struct token_out t;
    bool was_full = false, ended;

    if (r->ended_sent) return RD_E_CLOSED;
    switch (atomic_load(&r->phase)) {
    case PHASE_PREPARING:
        return RD_E_AGAIN;
    case PHASE_FAILED:
        r->ended_sent = true;
        ev->type = RD_EVENT_ERROR;
        ev->finish = r->fail_status == RD_E_CANCELLED ? RD_FINISH_CANCELLED : RD_FINISH_ERROR;
        ev->status = r->fail_status;
        ev->message = r->fail_message;
        return RD_OK;
    case PHASE_PROCESS:
        return api_process_next(r, ev);
    default:
        break;
    }
    if (!r->started_sent) {
        r->started_sent = true;
        ev->type = RD_EVENT_STARTED;
        ev->usage.n_prompt = r->request->n_prompt;
        return RD_OK;
    }
    ended = atomic_load_explicit(&r->request->ended,
                                 memory_order_acquire); /* before the ring: what was pushed before the end is seen */
    while (request_pop(r->request, &t, top, &was_full)) {
        if (was_full) engine_kick(r->engine->engine);
        if (api_output_is_cut(r)) continue; /* made after the end: nothing of it leaves */
        if (r->output.has_all) {
            r->output.satisfied = true;
            let_go(r);
            continue;
        }
        for (uint32_t i = 0; i < t.n_top; i++) ev->top[i] = (struct rd_logprob){top[i].token, top[i].logprob};
        token_event(r, &t, ev);
        return RD_OK;
    }
    if (!ended) return RD_E_AGAIN;
    if (!api_shift_is_due(r)) return ended_event(r, ev);
    if (!atomic_load(&r->shift.last_wake)) return RD_E_AGAIN; /* it rings once more */
    return api_shift_go_on(r) == RD_OK ? RD_E_AGAIN : ended_event(r, ev);
}

rd_status rd_request_next(rd_request *r, struct rd_event *ev)
{
    const size_t size = api_size(ev->size, sizeof(*ev), API_FIRST_EVENT);
    rd_status st;

    _Static_assert(sizeof(*ev) == API_FIRST_EVENT, "a shorter one is to be filled through a copy");
    memset(ev, 0, offsetof(struct rd_event, top));
    ev->size = size < sizeof(*ev) ? size : sizeof(*ev);
    ev->stop_string = NULL;
    ev->stop_token = -1;
    ev->status = RD_OK;
    ev->message = "";
    ev->finish = RD_FINISH_STOP;
    memset(&ev->usage, 0, sizeof(ev->usage));
    buf_clear(&r->text);
    buf_clear(&r->output.text);
    r->output.n_deltas = 0;
    st = next_event(r, ev);
    if (st == RD_OK) api_output_hand_out(r, ev);
    if (st == RD_OK && r->text.failed) { /* no memory for the text: end it rather than lose a part */
        rd_request_cancel(r);
        r->ended_sent = true;
        ev->type = RD_EVENT_ERROR;
        ev->status = RD_E_NOMEM;
        ev->message = rd_status_text(RD_E_NOMEM);
    }
    ev->text = r->text.n ? r->text.data : "";
    ev->text_bytes = r->text.n;
    return st;
}

rd_status rd_request_wait(rd_request *r, uint32_t timeout_ms, struct rd_event *ev)
{
    uint64_t deadline = clock_now_ns(clock_system()) + (uint64_t)timeout_ms * 1000000;

    for (;;) {
        rd_status st = rd_request_next(r, ev);
        uint64_t now;

        if (st != RD_E_AGAIN) return st;
        mutex_lock(&r->lock);
        while (!r->rung && (now = clock_now_ns(clock_system())) < deadline)
            cond_wait_ns(&r->cond, &r->lock, deadline - now);
        if (!r->rung) {
            mutex_unlock(&r->lock);
            return RD_E_AGAIN;
        }
        r->rung = false;
        mutex_unlock(&r->lock);
    }
}

void rd_request_cancel(rd_request *r)
{
    atomic_store(&r->cancelled, true);
    if (atomic_load(&r->phase) == PHASE_PROCESS) process_cancel(r->job);
    if (atomic_load(&r->phase) != PHASE_RUNNING) return;
    mutex_lock(&r->lock); /* api_shift.c may put another one there */
    request_cancel(r->request, CANCEL_GONE);
    mutex_unlock(&r->lock);
    engine_kick(r->engine->engine);
}

void rd_request_release(rd_request *r)
{
    if (!r) return;
    mutex_lock(&r->lock);
    r->wake = NULL;
    mutex_unlock(&r->lock);
    rd_request_cancel(r);
    api_request_unref(r);
}

void rd_request_progress(const rd_request *r, struct rd_progress *out)
{
    uint32_t computed;

    memset(out, 0, sizeof(*out));
    if (atomic_load(&r->phase) != PHASE_RUNNING) return;
    computed = atomic_load_explicit(&r->request->prompt_computed, memory_order_relaxed);
    out->n_prompt = r->request->n_prompt;
    out->n_done = atomic_load_explicit(&r->request->prompt_seen, memory_order_relaxed);
    out->n_cached = out->n_done > computed ? out->n_done - computed : 0;
}

const int32_t *rd_request_prompt(const rd_request *r, uint32_t *n)
{
    *n = 0;
    if (atomic_load(&r->phase) != PHASE_RUNNING) return NULL;
    *n = api_shift_first(r)->n_prompt;
    return key_tokens(api_shift_first(r)->seq.keys);
}

/* What the engine has left behind with the request's end; NULL before, or when it failed. */
static const struct prefill_result *prefill_of(const rd_request *r)
{
    if (atomic_load(&r->phase) != PHASE_RUNNING) return NULL;
    if (!atomic_load_explicit(&r->request->ended, memory_order_acquire)) return NULL;
    return r->request->finish == REQUEST_LENGTH ? &r->request->prefill : NULL;
}

const float *rd_request_embedding(const rd_request *r, uint32_t *n)
{
    const struct prefill_result *p = prefill_of(r);

    *n = p && p->embedding ? p->hidden : 0;
    return *n ? p->embedding : NULL;
}

const float *rd_request_scores(const rd_request *r, uint32_t *n)
{
    const struct prefill_result *p = prefill_of(r);

    *n = p ? p->n_scores : 0;
    return *n ? p->scores : NULL;
}

const struct rd_point *rd_request_points(const rd_request *r, uint32_t *n)
{
    _Static_assert(sizeof(struct rd_point) == sizeof(struct vision_point) &&
                       offsetof(struct rd_point, image) == offsetof(struct vision_point, image),
                   "the public point is the engine's");
    *n = 0;
    if (atomic_load(&r->phase) != PHASE_RUNNING) return NULL;
    if (!atomic_load_explicit(&r->request->ended, memory_order_acquire)) return NULL;
    *n = r->request->pointers.n_points;
    return *n ? (const struct rd_point *)(const void *)r->request->pointers.points : NULL;
}

const struct rd_logprob *rd_request_prompt_logprobs(const rd_request *r, const struct rd_logprob **top, uint32_t *n)
{
    _Static_assert(sizeof(struct rd_logprob) == sizeof(struct token_logprob),
                   "the public log probability is the sampler's");
    *n = 0;
    *top = NULL;
    if (atomic_load(&r->phase) != PHASE_RUNNING || !api_shift_first(r)->prompt_logprobs) return NULL;
    *n = api_shift_first(r)->n_prompt;
    *top = (const struct rd_logprob *)api_shift_first(r)->prompt_top;
    return (const struct rd_logprob *)api_shift_first(r)->prompt_logprobs;
}

const uint32_t *rd_request_prompt_ranks(const rd_request *r, uint32_t *n)
{
    *n = 0;
    if (atomic_load(&r->phase) != PHASE_RUNNING || !api_shift_first(r)->prompt_ranks) return NULL;
    *n = api_shift_first(r)->n_prompt;
    return api_shift_first(r)->prompt_ranks;
}
