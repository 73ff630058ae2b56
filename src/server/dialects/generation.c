/* server/dialects/generation.c - submit, poll, write, end.
 *
 * Choices are submitted through a window, so that a list of a thousand prompts neither fills the engine's queue at once
 * nor fails because the queue is shorter than the list. A full queue is told to the client (429) only when nothing of
 * the request was accepted yet.
 */
#include "server/dialects/generation.h"
#include "server/http/http_guard.h"
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "server/dialects/foreign.h"
#include "server/http/http_io.h"
#include "server/http/offload.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/prompt_cost.h"
#include "server/dialects/request_body.h"

#define WINDOW             32u         /* choices in the engine at once */
#define EVENTS_PER_POLL    256u        /* of one choice; then others get a turn */
#define SCRATCH_BYTES      (64u << 10) /* memory that an io thread keeps for pieces of streams */
#define OUTPUT_TIGHT       (16u << 10) /* likewise, while memory is short */
#define KEPT_STEP          (64u << 10) /* what is kept of answers is charged in such steps */
#define TEXT_COPIES        4u          /* of a prompt, for each choice: request, text, token ids */
#define GIVE_BACK_BYTES    (8u << 20)  /* what held so much leaves holes in the heap */
#define SECOND_NS          1000000000ull
#define CACHE_HEADER_BYTES 128u
#define OUTPUT_PAUSE       (256u << 10) /* bytes waiting for a slow reader (F43) */

static const struct conn_owner generation_owner, background_owner;

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_system());
}

static size_t output_bytes(const struct generation *g)
{
    return g->conn ? http_output_bytes(g->conn) : 0;
}

static size_t output_pause(const struct generation *g)
{
    return client_memory_tight(&g->io->server->memory) ? OUTPUT_TIGHT : OUTPUT_PAUSE;
}

/* Engine threads, and the io thread for itself. */
static void wake(void *user)
{
    struct generation *g = user;

    http_io_wake(g->io, &g->task);
}

/* Goes on without its connection. */
static void enter_background(struct generation *g)
{
    g->conn = NULL;
    g->background.owner = &background_owner;
    g->background.owner_arg = g;
    http_io_enter_background(g->io, &g->background);
    if (!g->paused) return;
    g->paused = false;
    wake(g);
}

void generation_usage(const struct generation *g, struct rd_usage *u)
{
    memset(u, 0, sizeof(*u));
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct rd_usage *c = &g->choices[i].usage;

        u->n_generated += c->n_generated;
        u->n_reasoning += c->n_reasoning;
        if (i % (uint32_t)g->p.best_of) continue;
        u->n_prompt += c->n_prompt;
        u->n_cached += c->n_cached;
    }
}

uint32_t generation_n_top(const struct generation *g)
{
    int64_t of_prompt = g->p.has_prompt_logprobs ? g->p.prompt_logprobs : 0;

    return (uint32_t)(g->p.top_logprobs > of_prompt ? g->p.top_logprobs : of_prompt);
}

/* Cancels what runs; nothing of g is referenced from elsewhere afterwards. */
static void generation_destroy(struct generation *g)
{
    if (!g) return;
    for (uint32_t i = 0; g->choices && i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];

        rd_request_release(c->request);
        buf_deinit(&c->text);
        buf_deinit(&c->reasoning);
        buf_deinit(&c->calls);
        buf_deinit(&c->logprobs);
        buf_deinit(&c->lp_tokens);
        buf_deinit(&c->lp_top);
        buf_deinit(&c->lp_offsets);
        buf_deinit(&c->prompt_logprobs);
        buf_deinit(&c->token_ids);
        buf_deinit(&c->prompt_ids);
    }
    if (g->shape->destroy) g->shape->destroy(g->state);
    if (g->memory.sum > GIVE_BACK_BYTES) offload_give_back(g->io->server->offload);
    client_charge_clear(&g->memory);
    buf_deinit(&g->frame);
    http_io_leave_background(g->io, &g->background);
    http_io_forget(g->io, &g->task); /* no wake comes any more: every request was released */
    mem_free(g->choices);
    gen_params_deinit(&g->p);
    mem_free(g);
}

/* What was computed of prompts, or found, of a request that did not come to its end: no more is its tenant's. */
static void count_begun(const struct generation *g, uint64_t *n_prompt, uint64_t *n_cached)
{
    *n_prompt = *n_cached = 0;
    for (uint32_t i = 0; i < g->n_choices; i += (uint32_t)g->p.best_of) {
        const struct choice *c = &g->choices[i];
        struct rd_progress now = {.n_done = c->ended ? c->usage.n_prompt : 0, .n_cached = c->usage.n_cached};

        if (c->request) rd_request_progress(c->request, &now);
        *n_prompt += now.n_done;
        *n_cached += now.n_cached;
    }
}

static void count_tenant(const struct generation *g, int status, const struct rd_usage *u)
{
    struct tenant_stats *t = server_tenant(g->server, g->tenant);
    uint64_t n_prompt = u->n_prompt, n_cached = u->n_cached;

    if (!t) return;
    if (status != 200) count_begun(g, &n_prompt, &n_cached);
    atomic_fetch_sub_explicit(&t->n_running, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(status == 200   ? &t->n_done
                              : status == 499 ? &t->n_cancelled
                                              : &t->n_failed,
                              1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->n_prompt, n_prompt, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->n_cached, n_cached, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->n_generated, u->n_generated, memory_order_relaxed);
}

/* The one line of a request. status 499: the client left; why: of an error, or "". */
static void log_end(const struct generation *g, int status, const char *why)
{
    const char *ignored = g->conn && g->conn->ignored.n ? g->conn->ignored.data : NULL;
    const bool is_cut = status == 200 && g->choices[0].finish == RD_FINISH_LENGTH && g->choices[0].ended;
    const double ms = (double)(now_ns() - g->begun_ns) / 1e6;
    struct rd_usage u;
    char peer[64] = "gone";

    generation_usage(g, &u);
    count_tenant(g, status, &u);
    if (g->conn) http_peer(g->conn, peer, sizeof(peer));
    if (g->conn) g->conn->is_logged = true;
    log_event(LOG_INFO, "request",
              LOG_FIELDS(LOG_F_TEXT("request_id", g->conn ? http_request_id(g->conn) : NULL), LOG_F_TEXT("id", g->id),
                         LOG_F_TEXT("method", g->conn ? g->conn->head.method_text : NULL),
                         LOG_F_TEXT("route", g->conn ? g->conn->head.path : NULL),
                         LOG_F_NUMBER("status", (uint64_t)status), LOG_F_REAL("ms", ms),
                         LOG_F_TEXT("client", g->conn ? peer : NULL), LOG_F_TEXT("error", *why ? why : NULL),
                         LOG_F_NUMBER("prompt_tokens", u.n_prompt), LOG_F_NUMBER("cached_tokens", u.n_cached),
                         LOG_F_NUMBER("generated_tokens", u.n_generated), LOG_F_REAL("queue_ms", u.queue_ms),
                         LOG_F_REAL("ttft_ms", u.ttft_ms), LOG_F_TEXT("cut", is_cut ? "length" : NULL),
                         LOG_F_TEXT("ignored", ignored)),
              "%s %s %d prompt %u cached %u generated %u%s, %.1f ms%s%.160s; client %s, %s%s%s", g->id,
              g->conn ? g->conn->head.path : "(background)", status, u.n_prompt, u.n_cached, u.n_generated,
              is_cut ? " (cut)" : "", ms, *why ? ": " : "", why, peer, g->conn ? http_request_id(g->conn) : "-",
              ignored ? "; ignored: " : "", ignored ? ignored : "");
}

/* ---- the ways to end; g is gone afterwards ---- */

/* What the cache did, for whoever does not look into the body: in the head, or behind a stream, whose head leaves before
 * that is known. */
static void put_cache_header(const struct generation *g, char header[CACHE_HEADER_BYTES])
{
    struct rd_usage u;

    generation_usage(g, &u);
    snprintf(header, CACHE_HEADER_BYTES, CACHE_HEADER ": prompt=%u; cached=%u; cause=%s\r\n", u.n_prompt, u.n_cached,
             rd_miss_cause_name((enum rd_miss_cause)g->choices[0].usage.miss));
}

/* The last bytes of a stream, and the fields behind it. */
static void finish_stream(struct http_conn *conn, struct buf *out, const char *trailers)
{
    if (conn && out->failed) {
        http_stream_break(conn);
    } else if (conn) {
        http_stream_write(conn, out->data, out->n);
        http_stream_end_with(conn, trailers);
    }
    buf_deinit(out);
}

static void end_with_error(struct generation *g, struct api_error *e)
{
    struct http_conn *conn = g->conn;
    struct buf out = {0};
    bool streaming = g->streaming;

    log_end(g, e->http, e->message);
    if (!g->p.chat) foreign_rename(e, "messages", "prompt");
    if (g->shape->rename) g->shape->rename(e);
    if (streaming) {
        g->shape->error(g, e, &out);
        if (g->shape->keep) g->shape->keep(g, &out);
    }
    generation_destroy(g);
    if (streaming)
        finish_stream(conn, &out, "");
    else
        http_reply_error(conn, e);
}

static void end_stream(struct generation *g)
{
    struct http_conn *conn = g->conn;
    struct buf out = {0};
    char trailer[CACHE_HEADER_BYTES];

    if (g->shape->end) g->shape->end(g, &out);
    log_end(g, 200, "");
    put_cache_header(g, trailer);
    generation_destroy(g);
    finish_stream(conn, &out, trailer);
}

static void end_whole(struct generation *g)
{
    struct http_conn *conn = g->conn;
    struct buf out = {0};
    char header[CACHE_HEADER_BYTES];

    g->shape->whole(g, &out);
    log_end(g, 200, "");
    put_cache_header(g, header);
    generation_destroy(g);
    if (out.failed)
        http_reply_json(conn, &out); /* which says so */
    else
        http_reply(conn, 200, "application/json", header, &out);
    buf_deinit(&out);
}

static void on_gone(void *arg)
{
    struct generation *g = arg;

    if (g->shape->background && g->streaming) {
        enter_background(g);
        return;
    }
    log_end(g, 499, "");
    generation_destroy(g);
}

/* ---- into the engine ---- */

static void fill_sampling(const struct generation *g, uint32_t k, struct rd_request_options *o)
{
    const struct gen_params *p = &g->p;

    o->sampling = p->sampling;
    o->sampling.dry_breakers = (const char *const *)p->dry_breakers.items;
    o->sampling.n_dry_breakers = p->dry_breakers.n;
    o->sampling.samplers = p->samplers;
    o->sampling.bias = p->bias;
    o->sampling.n_bias = p->n_bias;
    o->sampling.text_bias = p->text_bias;
    o->sampling.n_text_bias = p->n_text_bias;
    o->sampling.allowed = p->allowed;
    o->sampling.n_allowed = p->n_allowed;
    o->sampling.bad_words = (const char *const *)p->bad_words.items;
    o->sampling.n_bad_words = p->bad_words.n;
    o->sampling.has_seed = p->has_seed;
    o->sampling.seed = k == 0 ? (uint64_t)p->seed : random_at((uint64_t)p->seed, k); /* choices of one request differ */
}

void generation_chat_options(const struct gen_params *p, struct rd_request_options *o)
{
    o->adapters = p->adapters;
    o->n_adapters = p->n_adapters;
    o->messages_json = p->messages;
    o->tools_json = p->tools;
    o->kwargs_json = p->kwargs;
    o->pan_and_scan = p->pan_and_scan;
    o->parse_special = p->messages_special;
    o->prompt_end = p->prompt_end;
    o->parse_tools = p->tools != NULL;
    o->single_call = !p->parallel_tool_calls;
    o->parse_thinking = p->split_thinking;
    o->thinking_tokens = p->thinking_tokens < 0 ? RD_NO_LIMIT : (uint32_t)p->thinking_tokens;
    o->forced_tool = p->forced_tool;
}

static void fill_options(struct generation *g, struct choice *c, uint32_t k, struct rd_request_options *o)
{
    const struct gen_params *p = &g->p;

    rd_request_options_default(o);
    if (p->chat) {
        generation_chat_options(p, o);
    } else {
        const struct prompt *prompt = &p->prompts[c->prompt_index];

        o->adapters = p->adapters;
        o->n_adapters = p->n_adapters;
        o->prompt = prompt->text;
        o->prompt_bytes = prompt->n_text;
        o->tokens = prompt->tokens;
        o->n_tokens = prompt->n_tokens;
    }
    o->grammar_kind = p->grammar_kind;
    o->grammar = p->grammar;
    o->grammar_bytes = p->n_grammar;
    o->grammar_name = p->grammar_name;
    o->jump_ahead = p->jump_ahead;
    o->max_tokens = p->max_tokens < 0 ? RD_NO_LIMIT : (uint32_t)p->max_tokens;
    fill_sampling(g, k, o);
    o->stop = (const char *const *)p->stop;
    o->n_stop = p->n_stop;
    o->stop_tokens = p->stop_tokens;
    o->n_stop_tokens = p->n_stop_tokens;
    o->min_tokens = (uint32_t)p->min_tokens;
    o->include_stop = p->include_stop;
    o->ignore_eos = p->ignore_eos;
    o->cache_prompt = p->cache_prompt;
    o->speculation = p->speculation;
    o->replay = p->replay;
    o->keep_head_s = (uint32_t)p->keep_head_s;
    o->keep_prompt_s = (uint32_t)p->keep_prompt_s;
    o->keep_all_s = (uint32_t)p->keep_all_s;
    o->keep_found = p->cache_key != NULL;
    o->context_shift = !p->has_context_shift ? 0 : p->context_shift ? 1 : -1;
    o->n_keep = p->n_keep < 0 ? RD_KEEP_HEAD : (uint32_t)p->n_keep;
    o->logprobs = p->logprobs || p->best_of > p->n;
    o->n_top_logprobs = generation_n_top(g);
    o->prompt_logprobs = (p->echo && p->logprobs) || (p->has_prompt_logprobs && k == 0);
    if (g->shape->options) g->shape->options(g, c, o);
}

/* false: g has ended with an error. */
static bool submit_more(struct generation *g)
{
    while (g->n_submitted < g->n_choices && g->n_submitted - g->n_ended < WINDOW) {
        struct choice *c = &g->choices[g->n_submitted];
        struct rd_request_options o;
        struct rd_error err = {RD_OK, ""};
        struct api_error e;
        rd_status st;

        struct buf salt = {0};

        fill_options(g, c, g->n_submitted % (uint32_t)g->p.best_of, &o);
        http_tenant_salt(g->conn, g->p.cache_salt, &salt);
        o.cache_salt = salt.data;
        o.fairness_key = g->conn->tenant;
        o.cache_name = g->p.cache_name;
        o.label = g->id;
        st = salt.failed ? RD_E_NOMEM : rd_submit(g->served->engine, &o, wake, g, &c->request, &err);
        buf_deinit(&salt);
        if (st == RD_E_FULL && g->n_submitted > 0) return true; /* the tick tries again */
        if (st != RD_OK) {
            api_error_from_status(&e, st, err.text);
            end_with_error(g, &e);
            return false;
        }
        g->n_submitted++;
    }
    return true;
}

/* ---- out of the engine ---- */

/* false: nobody wants the rest, and g has ended. */
static bool write_stream(struct generation *g, struct buf *out)
{
    struct api_error e;

    if (g->streaming && out->failed) { /* a stream that lacks a piece is not gone on with */
        api_error_from_status(&e, RD_E_NOMEM, NULL);
        end_with_error(g, &e);
        return false;
    }
    if (g->streaming && g->shape->keep && !g->shape->keep(g, out)) {
        struct http_conn *conn = g->conn;

        log_end(g, 499, "");
        generation_destroy(g);
        finish_stream(conn, out, "");
        return false;
    }
    if (g->conn && out->n && !out->failed) {
        http_stream_write(g->conn, out->data, out->n);
        g->sent_ns = now_ns();
    }
    buf_clear(out);
    return true;
}

static bool tells_progress(const struct generation *g)
{
    return g->p.return_progress && g->streaming && g->shape->progress;
}

static void begin_choice(struct generation *g, struct choice *c, struct buf *out)
{
    c->opened = true;
    if (g->shape->begin) g->shape->begin(g, c, out);
}

/* The head of a stream, and its first pieces; or a reply, and the stream without its client. false: g has ended. */
static bool begin_stream(struct generation *g)
{
    struct http_conn *conn = g->conn;
    struct buf out = {0}, reply = {0};
    struct api_error e;
    bool leaves = g->leaves, alive;

    if (g->shape->accept && g->shape->accept(g, &e)) {
        end_with_error(g, &e);
        return false;
    }
    if (leaves)
        enter_background(g);
    else
        http_stream_start_with(g->conn, g->shape->media, CACHE_HEADER);
    g->streaming = true;
    g->sent_ns = now_ns();
    for (uint32_t i = 0; i < g->n_submitted && g->shape->begins_at_once; i++) begin_choice(g, &g->choices[i], &out);
    if (tells_progress(g)) g->shape->progress(g, &g->choices[0], true, &out);
    if (leaves) g->shape->whole(g, &reply);
    alive = write_stream(g, &out);
    if (leaves) http_reply_json(conn, &reply);
    buf_deinit(&out);
    buf_deinit(&reply);
    return alive;
}

/* Opens the stream once every submitted choice was accepted: until then errors have an HTTP status. false: not yet, or
 * g has ended. */
static bool open_stream(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_submitted; i++) {
        struct choice *c = &g->choices[i];
        struct rd_event ev = {.size = sizeof(ev)};
        struct api_error e;
        rd_status st;

        if (c->started) continue;
        st = rd_request_next(c->request, &ev);
        if (st == RD_E_AGAIN) return false;
        if (st == RD_OK && ev.type == RD_EVENT_STARTED) {
            c->started = true;
            c->usage = ev.usage;
            continue;
        }
        api_error_from_status(&e, st == RD_OK ? ev.status : st, st == RD_OK ? ev.message : NULL);
        end_with_error(g, &e);
        return false;
    }
    return begin_stream(g);
}

/* Content, thinking and calls of an event. */
static void take_deltas(struct generation *g, struct choice *c, const struct rd_event *ev, struct buf *out)
{
    for (uint32_t i = 0; i < ev->n_deltas; i++) {
        const struct rd_delta *d = &ev->deltas[i];

        if (d->type == RD_DELTA_CALL_BEGIN) c->n_calls++;
        if (d->type == RD_DELTA_REASONING && !g->p.include_reasoning) continue;
        if (g->shape->delta) g->shape->delta(g, c, d, out);
    }
    if (g->shape->flush) g->shape->flush(g, c, out);
}

/* An end token of the model is nobody's business; one that the client named is. */
static int32_t named_stop_token(const struct generation *g, int32_t token)
{
    for (uint32_t i = 0; i < g->p.n_stop_tokens; i++)
        if (g->p.stop_tokens[i] == token) return token;
    return -1;
}

/* Of many prompts, one that is answered: the request goes, which is larger than its answer. The first stays: the end of the
 * response tells of it. */
static void let_go(struct generation *g, struct choice *c)
{
    uint32_t i = 0;

    if (g->p.n_prompts < 2 || c == g->choices) return;
    while (c->stop_string && i < g->p.n_stop && strcmp(g->p.stop[i], c->stop_string) != 0) i++;
    if (c->stop_string && i == g->p.n_stop) return;
    if (c->stop_string) c->stop_string = g->p.stop[i];
    c->usage.left_out = NULL;
    rd_request_release(c->request);
    c->request = NULL;
}

/* One event of a choice. */
static void take_event(struct generation *g, struct choice *c, const struct rd_event *ev, struct buf *out)
{
    if (ev->type == RD_EVENT_STARTED) {
        c->started = true;
        c->usage = ev->usage;
        if (g->streaming && g->shape->begins_at_once) begin_choice(g, c, out);
        return;
    }
    c->usage.n_cached = ev->usage.n_cached;
    c->usage.n_ram = ev->usage.n_ram;
    c->usage.n_disk = ev->usage.n_disk;
    c->usage.n_shared = ev->usage.n_shared;
    if (tells_progress(g) && c == &g->choices[0] && !c->computed) g->shape->progress(g, c, false, out);
    if (!c->computed && ++g->n_computed == g->n_choices)
        client_charge_force(&g->memory, CLIENT_REQUESTS, g->n_prompt_bytes * (1 + TEXT_COPIES / 2));
    c->computed = true;
    c->usage.prompt_ms = ev->usage.prompt_ms;
    if (!c->first_ns) c->first_ns = now_ns();
    if (!c->opened) begin_choice(g, c, out);
    if (ev->type == RD_EVENT_TOKEN) {
        c->usage.n_generated++;
        c->sum_logprob += (double)ev->logprob;
        if (g->p.return_token_ids && ev->token >= 0)
            buf_printf(&c->token_ids, "%s%d", c->token_ids.n ? "," : "", ev->token);
        if (g->p.logprobs && g->shape->collect) g->shape->collect(g, c, ev);
    }
    take_deltas(g, c, ev, out);
    if (ev->type != RD_EVENT_DONE) return;
    c->ended = true;
    c->finish = ev->finish;
    c->stop_string = ev->stop_string;
    c->stop_token = named_stop_token(g, ev->stop_token);
    c->usage = ev->usage;
    if (g->n_ended == 0 && c->usage.n_prompt > 0) {
        prompt_prints_keep(g->server->prints, g->tenant, g->id, &g->p, &c->usage);
    }
    g->n_ended++;
    g->shape->finish(g, c, out);
    let_go(g, c);
}

/* What c keeps until its answer is complete is charged before it gets much longer; twice, because the response is
 * written from it. -1: there is no room. */
static int charge_kept(struct generation *g, struct choice *c, struct api_error *e)
{
    size_t n = c->text.n + c->reasoning.n + c->calls.n + c->logprobs.n + c->lp_tokens.n + c->lp_top.n +
               c->lp_offsets.n + c->prompt_logprobs.n + c->token_ids.n + c->prompt_ids.n;

    g->n_kept += n - c->n_kept;
    c->n_kept = n;
    if (g->n_kept < g->n_charged + KEPT_STEP) return 0;
    if (client_charge_set(&g->memory, CLIENT_ANSWERS, 2 * (uint64_t)g->n_kept, e)) return -1;
    g->n_charged = g->n_kept;
    return 0;
}

/* false: g has ended. */
static bool read_choice(struct generation *g, struct choice *c, struct buf *out)
{
    struct rd_event ev = {.size = sizeof(ev)};
    struct api_error e;

    for (uint32_t k = 0; k < EVENTS_PER_POLL && !c->ended; k++) {
        rd_status st;

        if (output_bytes(g) + out->n > output_pause(g) && g->conn) {
            g->paused = true;
            return true;
        }
        st = rd_request_next(c->request, &ev);
        if (st == RD_E_AGAIN) return true;
        if (st != RD_OK || ev.type == RD_EVENT_ERROR ||
            (ev.type == RD_EVENT_DONE && ev.finish == RD_FINISH_CANCELLED)) {
            st = st != RD_OK ? RD_E_INTERNAL : ev.status != RD_OK ? ev.status : RD_E_CANCELLED;
            api_error_from_status(&e, st, ev.type == RD_EVENT_ERROR ? ev.message : NULL);
            if (g->streaming && !write_stream(g, out)) return false;
            end_with_error(g, &e);
            return false;
        }
        take_event(g, c, &ev, out);
        if (out->failed || c->text.failed || c->reasoning.failed || c->calls.failed || c->logprobs.failed ||
            c->prompt_logprobs.failed || c->token_ids.failed || c->prompt_ids.failed) {
            api_error_from_status(&e, RD_E_NOMEM, NULL);
            end_with_error(g, &e);
            return false;
        }
        if (charge_kept(g, c, &e)) {
            end_with_error(g, &e);
            return false;
        }
    }
    if (!c->ended) wake(g);
    return true;
}

/* Reads what came. g may be gone afterwards. */
static void poll_events(struct generation *g)
{
    struct buf *out = &g->io->scratch; /* g may be gone at the end */
    bool alive = true;

    if (g->paused && output_bytes(g) > output_pause(g)) return;
    g->paused = false;
    if (g->p.stream && !g->streaming && !open_stream(g)) return;
    for (uint32_t i = 0; alive && !g->paused && i < g->n_submitted; i++)
        if (!g->choices[i].ended) alive = read_choice(g, &g->choices[i], out);
    if (alive && write_stream(g, out)) {
        if (g->paused && output_bytes(g) <= output_pause(g)) { /* the client took all at once: nothing tells of that */
            wake(g);
        } else if (g->n_ended == g->n_choices) {
            if (g->streaming)
                end_stream(g);
            else
                end_whole(g);
        } else {
            submit_more(g);
        }
    }
    if (out->failed || out->cap > SCRATCH_BYTES)
        buf_deinit(out);
    else
        buf_clear(out);
}

static void on_drained(void *arg)
{
    struct generation *g = arg;

    if (g->paused) poll_events(g);
}

/* false: g has ended. */
static bool still_wanted(struct generation *g)
{
    struct buf nothing = {0};
    bool wanted = write_stream(g, &nothing);

    buf_deinit(&nothing);
    return wanted;
}

static void tell_progress(struct generation *g)
{
    struct buf out = {0};
    struct rd_progress p;

    rd_request_progress(g->choices[0].request, &p);
    if (p.n_done <= g->n_progress) return;
    g->shape->progress(g, &g->choices[0], false, &out);
    write_stream(g, &out);
    buf_deinit(&out);
}

static void on_tick(void *arg, uint64_t now)
{
    struct generation *g = arg;

    if (g->p.stream && !g->streaming) { /* a request that only waits its turn wakes nobody: look by ourselves */
        poll_events(g);
        return;
    }
    if (g->streaming && !still_wanted(g)) return;
    if (tells_progress(g) && !g->choices[0].computed) tell_progress(g);
    if (g->streaming && g->shape->ping && g->ping_ns && now > g->sent_ns && now - g->sent_ns > g->ping_ns &&
        http_output_bytes(g->conn) == 0) {
        const char *ping = g->choices[0].opened ? g->shape->ping : ": ping\n\n";

        http_stream_write(g->conn, ping, strlen(ping));
        g->sent_ns = now;
    }
    if (g->n_submitted < g->n_choices) submit_more(g);
}

static void on_stop(void *arg)
{
    struct api_error e;

    api_error_from_status(&e, RD_E_CLOSED, "The server is shutting down");
    end_with_error(arg, &e);
}

static void on_background_tick(void *arg, uint64_t now)
{
    (void)now;
    still_wanted(arg);
}

static void on_task(struct http_task *task)
{
    poll_events((struct generation *)task);
}

static const struct conn_owner generation_owner = {on_gone, on_drained, on_tick, on_stop};
static const struct conn_owner background_owner = {.tick = on_background_tick, .stop = on_stop};

static size_t length_of(const char *s)
{
    return s ? strlen(s) : 0;
}

/* Of the texts and ids that become prompts. */
static uint64_t prompt_bytes(const struct gen_params *p)
{
    uint64_t n = length_of(p->messages) + length_of(p->tools) + length_of(p->kwargs);

    for (uint32_t i = 0; i < p->n_prompts; i++) n += p->prompts[i].n_text + 4 * (uint64_t)p->prompts[i].n_tokens;
    return n;
}

/* To make tokens of them. */
static uint64_t text_cost(const struct gen_params *p)
{
    uint64_t most = p->messages ? prompt_messages_cost(p->messages, strlen(p->messages)) : 0;

    if (p->tools) most += prompt_json_cost(p->tools, strlen(p->tools));
    for (uint32_t i = 0; i < p->n_prompts; i++)
        most = u64_max(most, prompt_text_cost(p->prompts[i].text, p->prompts[i].n_text));
    return most;
}

/* What the requests take until they are gone: the parameters, and for each choice of a prompt what is made of it. The
 * values of the body's JSON are made once more when the prompt is prepared. */
static int charge_requests(struct http_conn *conn, struct generation *g, uint32_t n_choices, struct api_error *e)
{
    uint64_t n = prompt_bytes(&g->p), tree = conn->memory.parts[CLIENT_TREES];

    tree = tree > 2 * n ? (tree - 2 * n) / 2 : 0;
    g->n_prompt_bytes = n * (uint64_t)g->p.best_of;
    client_charge_force(&conn->memory, CLIENT_TREES, 0);
    client_charge_init(&g->memory, &conn->io->server->memory, conn->tenant);
    n += TEXT_COPIES * n * (uint64_t)g->p.best_of + g->p.n_text_cost + tree + n_choices * sizeof(struct choice);
    client_charge_force(&conn->memory, CLIENT_ANSWERS, 0);
    return client_charge_set(&g->memory, CLIENT_REQUESTS, n, e);
}

static void begin(struct http_conn *conn, const struct response_shape *shape, struct gen_params *p, void *state)
{
    uint32_t n_choices = (p->chat ? 1 : p->n_prompts) * (uint32_t)p->best_of;
    struct generation *g = mem_zalloc(1, sizeof(*g));
    struct tenant_stats *tenant;
    struct api_error e;
    uint64_t random[2];

    api_error_from_status(&e, RD_E_NOMEM, NULL);
    if (g) {
        g->p = *p;
        if (charge_requests(conn, g, n_choices, &e) == 0) g->choices = mem_zalloc(n_choices, sizeof(*g->choices));
    }
    if (!g || !g->choices) {
        if (g) client_charge_clear(&g->memory);
        mem_free(g);
        gen_params_deinit(p);
        if (shape->destroy) shape->destroy(state);
        http_reply_error(conn, &e);
        return;
    }
    g->conn = conn;
    g->tenant = conn->tenant;
    g->io = conn->io;
    g->server = server_of(conn);
    g->served = served_of(conn);
    g->background.n_users = conn->n_users;
    g->task.run = on_task;
    g->shape = shape;
    g->state = state;
    g->leaves = shape->background && !p->stream;
    g->p.stream = p->stream || shape->background;
    memset(p, 0, sizeof(*p));
    g->n_choices = n_choices;
    g->begun_ns = now_ns();
    g->ping_ns = (g->p.has_ping ? g->p.ping_s > 0 ? (uint64_t)g->p.ping_s : 0 : g->server->sse_ping_s) * SECOND_NS;
    g->created_s = clock_wall_s(clock_system());
    random_os(random, sizeof(random));
    snprintf(g->id, sizeof(g->id), "%s%016llx%08llx", shape->id_prefix, (unsigned long long)random[0],
             (unsigned long long)(random[1] >> 32));
    for (uint32_t i = 0; i < n_choices; i++) {
        g->choices[i].prompt_index = i / (uint32_t)g->p.best_of;
        g->choices[i].index = i / (uint32_t)g->p.best_of * (uint32_t)g->p.n + i % (uint32_t)g->p.best_of;
    }
    conn->owner = &generation_owner;
    conn->owner_arg = g;
    tenant = server_tenant(g->server, g->tenant);
    if (tenant) atomic_fetch_add_explicit(&tenant->n_running, 1, memory_order_relaxed);
    submit_more(g);
}

/* Of a worker, until the io thread begins it. */
struct kept {
    const struct response_shape *shape;
    struct gen_params p;
    void *state;
};

static void drop_kept(void *arg)
{
    struct kept *k = arg;

    if (k->shape->destroy) k->shape->destroy(k->state);
    gen_params_deinit(&k->p);
    mem_free(k);
}

static void begin_kept(struct http_conn *conn, void *arg)
{
    struct kept *k = arg;

    begin(conn, k->shape, &k->p, k->state);
    mem_free(k);
}

void generation_start(struct http_conn *conn, const struct response_shape *shape, struct gen_params *p, void *state)
{
    struct kept *k = conn->job ? mem_zalloc(1, sizeof(*k)) : NULL;
    struct api_error e;

    p->n_text_cost = text_cost(p);
    if (!conn->job) {
        begin(conn, shape, p, state);
    } else if (k) {
        *k = (struct kept){shape, *p, state};
        memset(p, 0, sizeof(*p));
        offload_keep(conn, begin_kept, drop_kept, k);
    } else {
        api_error_from_status(&e, RD_E_NOMEM, NULL);
        gen_params_deinit(p);
        if (shape->destroy) shape->destroy(state);
        http_reply_error(conn, &e);
    }
}
