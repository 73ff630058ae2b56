/* api/api_process.c - an rd_engine whose model another program computes (backend/process/): the same calls, with text for tokens.
 *
 *     rd_submit -> preparing thread: messages -> template, if the program told its own, else as they are -> a line of JSON
 *     its events -> text -> the output parser, stop strings and deltas that every request has (api_output.c)
 *
 * Stop strings are found here, and the job is let go then: so they mean the same over every program. What a program does not
 * know is refused by name, never left out.
 */
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "backend/process/process_backend.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json_number.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/output/taught_calls.h"

#define DEFAULT_QUEUE     256u
#define DEFAULT_CONTEXT   131072u /* of a program that does not say */
#define DEFAULT_LOAD_S    600u
#define DEFAULT_SILENCE_S 120u
#define SECOND_NS         1000000000ull

bool api_is_process(const char *device)
{
    return device && strncmp(device, PROCESS_PREFIX, strlen(PROCESS_PREFIX)) == 0;
}

/* ---- open ---- */

static rd_status open_style(rd_engine *e, const char *tool_parser, struct rd_error *err)
{
    const struct process_about *a = process_about(e->process);
    const size_t n = strlen(a->chat_template);
    struct rd_error why = {RD_OK, ""};
    enum output_style found;

    e->style.tools = OUTPUT_HERMES;
    if (n > 0 && chat_template_create(a->chat_template, n, process_text(e->process, "bos_token"),
                                      process_text(e->process, "eos_token"), &e->chat, &why) == RD_OK) {
        found = output_style_detect(chat_template_source(e->chat));
        e->style.own_tools = chat_template_has_tools(e->chat);
        if (e->style.own_tools || found == OUTPUT_GEMMA) e->style.tools = found;
        e->style.think = output_think_detect(chat_template_source(e->chat));
        e->info.has_chat_template = true;
    } else if (n > 0) {
        log_warn("the backend's chat template is not usable (%s): messages are given to it as they are", why.text);
    }
    e->info.thinks = e->style.think != NULL;
    if (api_style_find(e, tool_parser, err) != RD_OK) return RD_E_INVALID;
    if (!e->chat && !process_can(e->process, "chat") && !process_can(e->process, "generate"))
        return error_set(err, RD_E_UNSUPPORTED, "the backend's process has neither generate nor chat among its ops");
    return RD_OK;
}

static void fill_info(rd_engine *e, const struct rd_options *o)
{
    const struct process_about *a = process_about(e->process);
    struct rd_info *i = &e->info;

    snprintf(i->arch, sizeof(i->arch), "%.31s", a->arch);
    snprintf(i->name, sizeof(i->name), "%.127s", a->model);
    snprintf(i->backend, sizeof(i->backend), "process: %.30s %.20s", a->name, a->version);
    i->n_vocab = a->n_vocab;
    i->n_ctx_train = a->n_ctx ? a->n_ctx : DEFAULT_CONTEXT;
    i->n_ctx = o->n_ctx ? u32_min(o->n_ctx, i->n_ctx_train) : i->n_ctx_train;
    i->max_running = a->parallel;
    i->bos = i->eos = i->fim_prefix = i->fim_suffix = i->fim_middle = i->fim_repository = i->fim_file = -1;
}

rd_status api_process_open(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    const struct process_options po = {.command = o->device + strlen(PROCESS_PREFIX),
                                       .model = o->model,
                                       .n_ctx = o->n_ctx,
                                       .n_threads = o->n_threads,
                                       .max_queue = o->max_queue ? o->max_queue : DEFAULT_QUEUE,
                                       .load_ns = (o->process_load_s ? o->process_load_s : DEFAULT_LOAD_S) * SECOND_NS,
                                       .silence_ns = (o->process_silence_s ? o->process_silence_s : DEFAULT_SILENCE_S) *
                                                     SECOND_NS};
    rd_status st = process_open(&po, o->cancelled, o->progress_user, &e->process, err);

    if (st == RD_OK) st = open_style(e, o->tool_parser, err);
    if (st == RD_OK) fill_info(e, o);
    return st;
}

/* ---- what it can be asked ---- */

static rd_status lacks(const char *what, struct rd_error *err)
{
    return error_set(err, RD_E_UNSUPPORTED, "%s: the backend's process cannot do that", what);
}

/* What it does depends on another number, which is off by default. */
static bool is_detail(const char *name)
{
    static const char *const all[] = {"repeat_last_n",      "xtc_threshold",      "dynatemp_exponent", "dry_base",
                                      "dry_allowed_length", "dry_penalty_last_n", "mirostat_tau",      "mirostat_eta"};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i], name) == 0) return true;
    return false;
}

/* A number that is not off, and that the program does not know. */
static const char *unknown_number(const rd_engine *e, const struct rd_sampling *s)
{
    struct rd_sampling d;

    rd_sampling_default(&d);
    if (s->top_n_sigma <= 0) d.top_n_sigma = s->top_n_sigma;
#define UNKNOWN(kind, field, name, alias, fallback, least, most, text)                                                 \
    if (s->field != d.field && !is_detail(name) && !process_takes(e->process, name)) return name;
    RD_SAMPLING_NUMBERS(UNKNOWN)
#undef UNKNOWN
    return s->has_seed && !process_takes(e->process, "seed") ? "seed" : NULL;
}

rd_status api_process_check(const rd_engine *e, const struct rd_request_options *o, struct rd_error *err)
{
    const struct rd_sampling *s = &o->sampling;
    const struct {
        bool wanted;
        const char *what;
    } all[] = {{o->tokens != NULL, "prompt: tokens"},
               {o->prompt && !process_can(e->process, "generate"), "prompt: text without messages"},
               {o->messages_json && !e->chat && !process_can(e->process, "chat"), "messages"},
               {o->max_tokens == 0, "max_tokens: 0"},
               {o->grammar_kind != RD_GRAMMAR_NONE, "response_format, grammars and strict tools"},
               {o->forced_tool != NULL, "tool_choice: a forced call"},
               {o->logprobs || o->prompt_logprobs || o->n_top_logprobs, "logprobs"},
               {o->embed != RD_POOL_NONE, "embeddings"},
               {o->n_score_tokens > 0, "score_tokens"},
               {o->thinking_tokens != RD_NO_LIMIT, "thinking_tokens"},
               {o->ignore_eos && !process_takes(e->process, "ignore_eos"), "ignore_eos"},
               {o->n_stop_tokens > 0, "stop_token_ids"},
               {o->min_tokens > 0, "min_tokens"},
               {s->n_bias || s->n_text_bias, "logit_bias"},
               {s->allowed || s->n_bad_words, "allowed_token_ids and bad_words"},
               {s->samplers != NULL, "samplers"}};
    const char *number;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].wanted) return lacks(all[i].what, err);
    number = unknown_number(e, s);
    return number ? lacks(number, err) : RD_OK;
}

static bool put(json_t *o, const char *key, json_t *value)
{
    return json_object_set_new(o, key, value) == 0;
}

/* 0.7 stays 0.7. */
static json_t *number_REAL(float v)
{
    char text[32];
    const int n = snprintf(text, sizeof(text), "%.6g", (double)v);

    return json_number(text, (size_t)n, (double)v);
}

static json_t *number_WHOLE(int32_t v)
{
    return json_integer(v);
}

static bool put_sampling(const rd_engine *e, const struct rd_sampling *s, json_t *q)
{
    json_t *o = json_object();
    bool ok = o != NULL;

#define PUT(kind, field, name, alias, fallback, least, most, text)                                                     \
    if (process_takes(e->process, name)) ok = ok && put(o, name, number_##kind(s->field));
    RD_SAMPLING_NUMBERS(PUT)
#undef PUT
    if (s->has_seed) ok = ok && put(o, "seed", json_integer((json_int_t)(s->seed & INT64_MAX)));
    return put(q, "sampling", o) && ok;
}

/* Without template messages go as they are; else the prompt's text does. */
static rd_status make_line(struct rd_request *r, bool *thinks, json_t **out, struct rd_error *err)
{
    const rd_engine *e = r->engine;
    const struct rd_request_options *o = &r->o;
    struct api_rendering rendering = {
        .messages = o->messages_json, .tools = o->tools_json, .kwargs = o->kwargs_json, .end = o->prompt_end};
    json_t *q = json_object(), *m = NULL, *t = NULL, *k = NULL;
    char *text = NULL;
    size_t n = 0;
    bool ok = q != NULL;
    rd_status st = RD_OK;

    *thinks = false;
    if (o->messages_json && e->chat) {
        st = api_render(e, &rendering, &text, &n, err);
        if (st == RD_OK && e->style.think) *thinks = output_prompt_thinks(e->style.think, text, n);
        ok = ok && st == RD_OK && put(q, "op", json_string("generate")) && put(q, "prompt", json_stringn(text, n)) &&
             put(q, "is_whole", json_true());
    } else if (o->messages_json) {
        st = api_parse_json(o->messages_json, "messages", true, &m, err);
        if (st == RD_OK) st = api_parse_json(o->tools_json, "tools", true, &t, err);
        if (st == RD_OK) st = api_parse_json(o->kwargs_json, "chat_template_kwargs", false, &k, err);
        ok = ok && st == RD_OK && put(q, "op", json_string("chat")) && put(q, "messages", json_incref(m)) &&
             (!t || put(q, "tools", json_incref(t))) && (!k || put(q, "template_kwargs", json_incref(k))) &&
             put(q, "continue", json_boolean(o->prompt_end == RD_PROMPT_CONTINUED));
    } else {
        ok = ok && put(q, "op", json_string("generate")) &&
             put(q, "prompt", json_stringn(o->prompt, o->prompt_bytes)) && put(q, "is_whole", json_false());
    }
    ok = ok && put(q, "max_tokens", o->max_tokens == RD_NO_LIMIT ? json_null() : json_integer(o->max_tokens)) &&
         put_sampling(e, &o->sampling, q) && (!o->ignore_eos || put(q, "ignore_eos", json_true()));
    mem_free(text);
    json_decref(m);
    json_decref(t);
    json_decref(k);
    if (st == RD_OK && !ok) st = error_set(err, RD_E_NOMEM, "out of memory for a request");
    if (st == RD_OK)
        *out = q;
    else
        json_decref(q);
    return st;
}

static void gone(void *arg)
{
    api_request_unref(arg);
}

static void wake(void *arg)
{
    api_request_ring(arg);
}

void api_process_prepare(struct rd_request *r)
{
    struct rd_error err = {RD_OK, ""};
    json_t *line = NULL;
    bool thinks = false;
    rd_status st = atomic_load(&r->cancelled) ? RD_E_CANCELLED : make_line(r, &thinks, &line, &err);

    if (st == RD_OK && r->o.messages_json) {
        r->taught = r->o.parse_tools && r->o.tools_json && taught_calls(r->engine->style.tools, r->o.messages_json);
        st = api_output_init(r, thinks, &err);
    }
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed); /* the job's, until `gone` */
    if (st == RD_OK) st = process_submit(r->engine->process, line, wake, gone, r, &r->job, &err);
    json_decref(line);
    atomic_fetch_sub(&r->engine->n_preparing, 1);
    if (st == RD_OK) {
        atomic_store(&r->phase, PHASE_PROCESS);
        if (atomic_load(&r->cancelled)) process_cancel(r->job);
        api_request_ring(r);
    } else {
        atomic_fetch_add_explicit(&r->engine->n_rejected, st == RD_E_FULL, memory_order_relaxed);
        atomic_fetch_sub_explicit(&r->refs, 1, memory_order_relaxed);
        api_request_fail(r, st, err.text[0] ? err.text : rd_status_text(st));
    }
    api_request_unref(r);
}

/* ---- what it says ---- */

static void fill_usage(const struct rd_request *r, const struct process_event *p, struct rd_usage *u)
{
    const double ms = (double)(clock_now_ns(clock_system()) - r->asked_ns) / 1e6;

    u->n_prompt = p->n_prompt;
    u->n_cached = p->n_cached;
    u->n_generated = api_output_is_cut(r) ? r->n_tokens_out : p->n_generated;
    u->n_reasoning = r->output.n_reasoning;
    u->ttft_ms = u->prompt_ms = r->first_ms;
    u->predicted_ms = ms > r->first_ms ? ms - r->first_ms : 0;
}

static bool thinks_now(const struct rd_request *r)
{
    return r->output.parser && output_parser_thinks(r->output.parser);
}

static void on_text(struct rd_request *r, const struct process_event *p, struct rd_event *ev)
{
    const bool thought = thinks_now(r);

    if (r->n_tokens_out == 0) r->first_ms = (double)(clock_now_ns(clock_system()) - r->asked_ns) / 1e6;
    r->n_tokens_out += p->n_tokens;
    api_output_feed(r, p->text, p->n_text, false);
    if (thought || thinks_now(r)) r->output.n_reasoning += p->n_tokens;
    if (r->output.has_all) r->output.satisfied = true;
    ev->type = RD_EVENT_TOKEN;
    ev->token = -1;
    ev->usage.n_prompt = p->n_prompt;
    ev->usage.n_cached = p->n_cached;
    ev->usage.prompt_ms = r->first_ms;
    if (api_output_is_cut(r)) process_cancel(r->job);
}

static void on_end(struct rd_request *r, const struct process_event *p, struct rd_event *ev)
{
    static const enum rd_finish finishes[] = {[PROCESS_STOP] = RD_FINISH_STOP,
                                              [PROCESS_LENGTH] = RD_FINISH_LENGTH,
                                              [PROCESS_CANCELLED] = RD_FINISH_CANCELLED};

    api_output_finish(r);
    r->ended_sent = true;
    ev->type = RD_EVENT_DONE;
    ev->finish = finishes[p->finish];
    if (api_output_is_cut(r)) {
        ev->finish = RD_FINISH_STOP;
        ev->stop_string = r->stop_hit >= 0 ? r->o.stop[r->stop_hit] : NULL;
    } else if (p->kind == PROCESS_ERROR) {
        ev->type = RD_EVENT_ERROR;
        ev->finish = RD_FINISH_ERROR;
        ev->status = p->status;
        ev->message = error_quote(r->fail_message, sizeof(r->fail_message), p->message, strlen(p->message));
    }
    fill_usage(r, p, &ev->usage);
}

rd_status api_process_next(struct rd_request *r, struct rd_event *ev)
{
    struct process_event p;

    for (;;) {
        if (r->has_held) {
            p = r->held;
            r->has_held = false;
        } else if (!process_next(r->job, &p)) {
            return RD_E_AGAIN;
        }
        if (!r->started_sent) { /* that comes first, whether or not the program said so */
            r->started_sent = true;
            ev->type = RD_EVENT_STARTED;
            ev->usage.n_prompt = p.n_prompt;
            r->held = p;
            r->has_held = p.kind != PROCESS_STARTED;
            return RD_OK;
        }
        if (p.kind == PROCESS_STARTED || (p.kind == PROCESS_TEXT && api_output_is_cut(r))) continue;
        if (p.kind == PROCESS_TEXT)
            on_text(r, &p, ev);
        else
            on_end(r, &p, ev);
        return RD_OK;
    }
}

/* ---- what answers at once ---- */

rd_status api_process_tokenize(const rd_engine *e, const char *text, size_t n_bytes, bool add_special,
                               bool parse_special, int32_t **tokens, uint32_t *n_tokens, struct rd_error *err)
{
    json_t *q, *reply = NULL, *list;
    rd_status st;

    if (!process_can(e->process, "tokenize")) return lacks("tokenize", err);
    q = json_pack("{s:s, s:o, s:b, s:b}", "op", "tokenize", "text", json_stringn(text, n_bytes), "add_special",
                  add_special, "parse_special", parse_special);
    if (!q) return error_set(err, RD_E_INVALID, "the text is no UTF-8, or there is no memory for it");
    st = process_call(e->process, q, &reply, err);
    list = json_object_get(reply, "tokens");
    if (st == RD_OK && !json_is_array(list)) st = error_set(err, RD_E_DEVICE, "the backend's process gave no tokens");
    *tokens = st == RD_OK ? mem_alloc(json_array_size(list) + 1, sizeof(**tokens)) : NULL;
    if (st == RD_OK && !*tokens) st = error_set(err, RD_E_NOMEM, "out of memory for tokens");
    *n_tokens = 0;
    for (size_t i = 0; st == RD_OK && i < json_array_size(list); i++)
        (*tokens)[(*n_tokens)++] = (int32_t)json_integer_value(json_array_get(list, i));
    json_decref(reply);
    json_decref(q);
    return st;
}

static json_t *numbers(const int32_t *list, uint32_t n)
{
    json_t *a = json_array();

    for (uint32_t i = 0; a && i < n; i++)
        if (json_array_append_new(a, json_integer(list[i])) != 0) {
            json_decref(a);
            return NULL;
        }
    return a;
}

rd_status api_process_detokenize(const rd_engine *e, const int32_t *tokens, uint32_t n_tokens, bool special,
                                 char **text, size_t *n_bytes, struct rd_error *err)
{
    json_t *q, *reply = NULL, *v;
    rd_status st;

    *text = NULL;
    if (!process_can(e->process, "detokenize")) return lacks("detokenize", err);
    q = json_pack("{s:s, s:o, s:b}", "op", "detokenize", "tokens", numbers(tokens, n_tokens), "special", special);
    if (!q) return error_set(err, RD_E_NOMEM, "out of memory for tokens");
    st = process_call(e->process, q, &reply, err);
    v = json_object_get(reply, "text");
    if (st == RD_OK && !json_is_string(v)) st = error_set(err, RD_E_DEVICE, "the backend's process gave no text");
    if (st == RD_OK) {
        *n_bytes = json_string_length(v);
        *text = mem_memdup(json_string_value(v), *n_bytes);
        if (!*text) st = error_set(err, RD_E_NOMEM, "out of memory for text");
    }
    json_decref(reply);
    json_decref(q);
    return st;
}

/* The numbers of one item, as it answered it. */
static rd_status take_scores(struct rd_classify_item *item, const json_t *reply, struct rd_error *err)
{
    const json_t *list = json_object_get(reply, "logprobs");

    if (json_array_size(list) != item->n_labels)
        return error_set(err, RD_E_DEVICE, "the backend's process gave %zu numbers for %u labels",
                         json_array_size(list), item->n_labels);
    item->best = 0;
    for (uint32_t i = 0; i < item->n_labels; i++) {
        const float v = (float)json_number_value(json_array_get(list, i));

        if (item->logprobs) item->logprobs[i] = v;
        if (v > (float)json_number_value(json_array_get(list, item->best))) item->best = i;
    }
    return RD_OK;
}

static rd_status call_batch(const rd_engine *e, json_t *list, struct rd_classify_item *items, uint32_t n,
                            struct rd_error *err)
{
    json_t *q = json_pack("{s:s, s:O}", "op", "batch", "requests", list), *reply = NULL, *results;
    rd_status st = q ? process_call(e->process, q, &reply, err) : error_set(err, RD_E_NOMEM, "out of memory");

    results = json_object_get(reply, "results");
    if (st == RD_OK && json_array_size(results) != n)
        st = error_set(err, RD_E_DEVICE, "the backend's process gave %zu results of %u", json_array_size(results), n);
    for (uint32_t i = 0; i < n; i++) {
        items[i].status = st == RD_OK ? take_scores(&items[i], json_array_get(results, i), err) : st;
        if (st == RD_OK) st = items[i].status;
    }
    json_decref(reply);
    json_decref(q);
    return st;
}

rd_status api_process_classify(const rd_engine *e, struct rd_classify_item *items, uint32_t n, struct rd_error *err)
{
    const bool at_once = n > 1 && process_can(e->process, "batch");
    json_t *list = json_array();
    rd_status st = RD_OK;

    if (!process_can(e->process, "classify")) st = lacks("classify", err);
    for (uint32_t i = 0; i < n && st == RD_OK; i++)
        if (items[i].logits || items[i].n_labels == 0 || items[i].n == 0)
            st = lacks("classify without labels, or with logits", err);
    for (uint32_t i = 0; i < n; i++) {
        json_t *q = NULL, *reply = NULL;

        items[i].status = st;
        if (st != RD_OK) continue;
        q = json_pack("{s:s, s:o, s:o}", "op", "classify", "tokens", numbers(items[i].tokens, items[i].n), "labels",
                      numbers(items[i].labels, items[i].n_labels));
        if (!q)
            st = error_set(err, RD_E_NOMEM, "out of memory");
        else if (at_once)
            st = json_array_append(list, q) == 0 ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory");
        else
            st = process_call(e->process, q, &reply, err);
        if (st == RD_OK && !at_once) st = take_scores(&items[i], reply, err);
        items[i].status = st;
        json_decref(reply);
        json_decref(q);
    }
    if (st == RD_OK && at_once) st = call_batch(e, list, items, n, err);
    json_decref(list);
    return st;
}

void api_process_stats(rd_engine *e, struct rd_stats *out)
{
    struct process_state s;

    process_get_state(e->process, &s);
    out->n_preparing = atomic_load(&e->n_preparing);
    out->n_queued = s.n_queued, out->n_decode = s.n_running;
    out->n_submitted = s.n_submitted, out->n_stop = s.n_stop, out->n_length = s.n_length;
    out->n_cancelled = s.n_cancelled, out->n_failed = s.n_failed;
    out->n_rejected = s.n_rejected + atomic_load_explicit(&e->n_rejected, memory_order_relaxed);
    out->prompt_tokens_cached = s.n_cached_tokens;
    out->prompt_tokens_computed = s.n_prompt_tokens - s.n_cached_tokens;
    out->tokens_generated = s.n_generated_tokens;
    out->n_turns = s.n_turns;
    out->n_beats = s.n_events;
    out->weight_bytes = s.memory_bytes;
    out->process_starts = s.n_starts;
    out->process_is_down = !s.is_up;
}
