/* api/api_prep.c - the prep workers: chat template -> text -> token ids -> form -> engine.
 *
 *     rd_submit -> queue -> prep worker: text, tokens, form ---------------------> engine
 *                                     |             \ takes long                  ^
 *                                     |              +-> turns -> the slow thread -+
 *                                     | images are elsewhere                       |
 *                                     +-> turns -> a far thread: the same ---------+
 *
 * A form that is not compiled in some milliseconds is left to one thread that has only time that nobody else wants: whoever
 * sends such forms neither holds up what others have to prepare nor takes the cores that compute. Nor does who names images by
 * URL, at a host that answers slowly or never: threads of their own wait for those.
 */
#include <string.h>
#include "api/api_state.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/output/taught_calls.h"
#include "text/output/tool_prompt.h"

#define MAX_SLOW 32u /* of one tenant that wait: they keep places of the queue meanwhile */

static rd_status copy_tokens(const rd_engine *engine, const int32_t *from, uint32_t n_from, int32_t **tokens,
                             uint32_t *n, struct rd_error *err)
{
    uint32_t n_vocab = engine->info.n_vocab;

    for (uint32_t i = 0; i < n_from; i++)
        if (from[i] < 0 || (uint32_t)from[i] >= n_vocab)
            return error_set(err, RD_E_INVALID, "prompt: token %d is not in the vocabulary of %u", from[i], n_vocab);
    *tokens = (int32_t *)(void *)mem_memdup(from, n_from * sizeof(*from));
    *n = n_from;
    return *tokens ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory for a prompt of %u tokens", n_from);
}

/* What the answer must begin with goes behind the prompt: the end of thinking that is not wanted, a forced call. */
static rd_status begin_answer(const rd_engine *engine, const struct rd_request_options *o, char **text, size_t *n,
                              struct rd_error *err)
{
    const struct think_tags *think = engine->style.think;
    struct buf out = {0};

    buf_append(&out, *text, *n);
    if (think && output_prompt_thinks(think, *text, *n)) buf_printf(&out, "\n%s\n\n", think->close);
    if (api_begins_call(engine, o))
        tool_prompt_begin_call(engine->style.tools, chat_template_source(engine->chat), o->forced_tool, &out);
    mem_free(*text);
    *text = buf_take(&out, n);
    return *text ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory for a prompt");
}

rd_status api_prompt_tokens(const rd_engine *engine, const struct rd_request_options *o, struct api_prompt_notes *notes,
                            int32_t **tokens, uint32_t *n, struct rd_error *err)
{
    struct kv_space owner = api_space(engine, o);
    const bool replay = o->cache_prompt && o->replay && !engine->no_replay;
    struct api_rendering r = {.messages = o->messages_json,
                              .tools = o->tools_json,
                              .kwargs = o->kwargs_json,
                              .end = o->prompt_end,
                              .owner = replay ? &owner : NULL,
                              .notes = notes && notes->looks ? NULL : notes,
                              .keeps_marks = true,
                              .trusts = o->parse_special};
    struct api_images own = {0}, *images = notes ? &notes->images : &own;
    char *text = NULL;
    size_t n_text = 0;
    rd_status st;

    if (o->tokens) return copy_tokens(engine, o->tokens, o->n_tokens, tokens, n, err);
    if (o->prompt)
        return token_memory_encode(engine->texts, o->prompt, o->prompt_bytes, true, NAMES_TOKENS, tokens, n, NULL, err);
    st = api_images_read((rd_engine *)(uintptr_t)engine, o, notes ? notes->far : API_IMAGES_NEVER,
                         notes ? notes->cancelled : NULL, images, err);
    if (st == RD_OK && images->n > 0 && notes && notes->far != API_IMAGES_NEVER && o->cache_prompt)
        api_images_recall(images, owner.salt, notes->cancelled);
    if (st == RD_OK && images->n > 0) r.messages = images->messages;
    if (st == RD_OK) st = api_render(engine, &r, &text, &n_text, err);
    if (st != RD_OK) goto done;
    if (api_begins_call(engine, o) || o->thinking_tokens == 0 || r.ends_thinking)
        st = begin_answer(engine, o, &text, &n_text, err);
    if (st == RD_OK)
        st = images->n > 0 ? api_images_encode(images, text, n_text, tokens, n, err)
                           : api_encode_chat(engine, text, n_text, tokens, n, err);
    if (st == RD_OK && replay) answer_memory_replay(engine->answers, owner, tokens, n);
    if (st == RD_OK && images->n > 0) api_images_find(images, *tokens, *n);
done:
    mem_free(text);
    api_images_deinit(&own);
    return st;
}

/* FNV-1a: only the round robin depends on it, so a collision makes two keys share a turn. */
uint64_t api_fair_hash(const char *key)
{
    uint64_t h = 1469598103934665603ull;

    for (; key && *key; key++) h = (h ^ (unsigned char)*key) * 1099511628211ull;
    return h;
}

static rd_status fill_params(const rd_engine *engine, const struct rd_request_options *o, struct request_params *p,
                             struct rd_error *err)
{
    struct kv_space owner = api_space(engine, o);

    memset(p, 0, sizeof(*p));
    p->max_tokens = o->max_tokens;
    p->max_keys = engine->info.n_ctx;
    p->cached = o->cache_prompt && !o->prompt_logprobs;
    p->idle = o->idle;
    p->space = owner;
    p->ignore_eos = o->ignore_eos;
    p->speculate = o->speculation;
    p->prompt_logprobs = o->prompt_logprobs;
    p->end_tokens = engine->style.ends;
    p->n_end_tokens = engine->style.n_ends;
    p->stop_tokens = o->stop_tokens;
    p->n_stop_tokens = o->n_stop_tokens;
    p->min_tokens = o->min_tokens;
    p->keep_match = o->keep_found;
    p->name = o->cache_name;
    p->label = o->label;
    p->fair_key = api_fair_hash(o->fairness_key);
    return api_sampling_fill(o, &p->sampling, err);
}

/* The longest prompt that leaves room for one new token (or for none, when none is wanted). */
static rd_status check_length(const rd_engine *engine, const struct rd_request_options *o, uint32_t *n_tokens,
                              struct rd_error *err)
{
    uint32_t n_max = engine_max_prompt(engine->engine) + (o->max_tokens == 0), n = *n_tokens;

    if (n == 0) return error_set(err, RD_E_INVALID, "the prompt is empty: at least 1 token is needed");
    if (n > n_max && o->truncate) n = *n_tokens = n_max;
    if (n <= n_max) return RD_OK;
    return error_set(
        err, RD_E_CONTEXT,
        "This model's maximum context length is %u tokens. However, your prompt has %u tokens (longest: %u).",
        engine->info.n_ctx, n, n_max);
}

bool api_bounds_turn(const rd_engine *engine, int32_t token)
{
    const struct think_tags *think = engine->style.think;
    struct text_span piece = tokenizer_piece(engine->tokenizer, token, true);

    if (tokenizer_type(engine->tokenizer, token) != TOKEN_CONTROL) return false;
    if (!think) return true;
    return (piece.n != strlen(think->open) || memcmp(piece.s, think->open, piece.n) != 0) &&
           (piece.n != strlen(think->close) || memcmp(piece.s, think->close, piece.n) != 0);
}

/* Does the prompt end inside a thinking block, opened by the template or by the message that is continued? Or may one
 * follow, because the turn has had none? */
static enum api_thinking prompt_thinks(const struct rd_request *r, const int32_t *tokens, uint32_t n)
{
    const struct think_tags *think = r->engine->style.think;
    enum api_thinking thinks = API_THINKING_MAY;
    struct buf turn = {0};
    uint32_t first = n;

    if (!think) return API_THINKING_NONE;
    while (first > 0 && !api_bounds_turn(r->engine, tokens[first - 1])) first--;
    for (; first < n; first++) {
        struct text_span piece = tokenizer_piece(r->engine->tokenizer, tokens[first], true);

        buf_append(&turn, piece.s, piece.n);
    }
    if (turn.n && output_turn_thinks(think, turn.data, turn.n))
        thinks = API_THINKING_OPEN;
    else if (turn.n && memmem(turn.data, turn.n, think->close, strlen(think->close)))
        thinks = API_THINKING_NONE;
    buf_deinit(&turn);
    return thinks;
}

static rd_status begin_output(struct rd_request *r, const int32_t *tokens, uint32_t n, enum api_thinking *thinks,
                              struct rd_error *err)
{
    struct buf head = {0};

    *thinks = prompt_thinks(r, tokens, n);
    r->taught = r->o.parse_tools && r->o.tools_json && taught_calls(r->engine->style.tools, r->o.messages_json);
    if (api_begins_call(r->engine, &r->o)) {
        tool_prompt_begin_call(r->engine->style.tools, chat_template_source(r->engine->chat), r->o.forced_tool, &head);
        r->output.head = head.failed ? NULL : arena_memdup(&r->arena, head.data, head.n);
        buf_deinit(&head);
        if (!r->output.head) return error_set(err, RD_E_NOMEM, "out of memory for a request");
    }
    return api_output_init(r, *thinks == API_THINKING_OPEN, err);
}

static void fill_budget(const struct rd_request *r, bool thinks, struct think_budget *b)
{
    const struct api_style *s = &r->engine->style;

    if (r->o.thinking_tokens == RD_NO_LIMIT || !s->think) return;
    *b = (struct think_budget){.open = s->open,
                               .close = s->close,
                               .forced = s->forced,
                               .n_open = s->n_open,
                               .n_close = s->n_close,
                               .n_forced = s->n_forced,
                               .limit = r->o.thinking_tokens,
                               .thinks = thinks};
}

static rd_status keep_left_out(struct rd_request *r, const struct buf *left_out, struct rd_error *err)
{
    const size_t n_logged = 120;

    r->left_out = left_out->failed ? NULL : arena_memdup(&r->arena, left_out->data, left_out->n);
    if (!r->left_out) return error_set(err, RD_E_NOMEM, "out of memory for a request");
    if (!atomic_exchange(&r->engine->left_out_logged, true))
        log_info("lines of system prompts that are new in every request are left out (--no-normalise keeps them)");
    log_debug("left out of the system prompt: %.*s", (int)u64_min(n_logged, left_out->n - 1), r->left_out);
    return RD_OK;
}

rd_status api_request_params(struct rd_request *r, const int32_t *tokens, uint32_t n, int thinks,
                             struct request_params *p, struct rd_error *err)
{
    rd_status st = fill_params(r->engine, &r->o, p, err);

    if (st != RD_OK) return st;
    p->adapters = r->adapters; /* as they were when it was submitted, whatever its names mean now */
    p->space.adapter = adapter_mix_id(r->adapters);
    p->wake = api_request_wake;
    p->wake_arg = r;
    p->goes_on = r->shift.is_on;
    p->places = r->images.places;
    p->n_places = r->images.n;
    p->vision = r->images.n > 0 ? r->engine->executor->vision : NULL;
    if (r->images.n > 0) p->pointer = r->engine->pointer;
    p->asked_ns = r->asked_ns;
    if (r->shift.is_on) p->max_tokens = r->shift.n_wanted;
    if (r->o.messages_json) fill_budget(r, thinks == API_THINKING_OPEN, &p->think);
    if (p->cached && !r->o.idle) salt_ring_note(&r->engine->salts, r->o.fairness_key, api_space(r->engine, &r->o));
    if (p->cached) api_retain_fill(r->engine, &r->o, spelling_memory_tools(&r->spelled), tokens, n, p);
    if (r->o.embed) api_embed_wish(r->engine, r->o.embed, n, &p->prefill, &p->cached);
    p->prefill.score_tokens = r->o.score_tokens;
    p->prefill.n_scores = r->o.n_score_tokens;
    return api_sampling_texts(r->engine, &r->o, &r->arena, &p->sampling, err);
}

/* All but the form, into r->ready. */
static rd_status prepare(struct rd_request *r, enum api_images_far far, struct rd_error *err)
{
    int32_t *tokens = NULL;
    uint32_t n = 0;
    enum api_thinking thinks = API_THINKING_NONE;
    struct api_prompt_notes notes = {.cancelled = &r->cancelled, .far = far};
    rd_status st = api_prompt_tokens(r->engine, &r->o, &notes, &tokens, &n, err);

    if (st == RD_OK && notes.left_out.n > 0) st = keep_left_out(r, &notes.left_out, err);
    r->spelled = notes.spelled;
    notes.spelled.tools = NULL; /* the reference is the request's now */
    r->n_messages = notes.n_messages;
    r->n_restored = notes.n_restored;
    r->images = notes.images;
    notes.images = (struct api_images){0}; /* likewise */
    api_notes_deinit(r->engine, &notes);

    if (st == RD_OK && r->images.n == 0 && api_shift_is_on(r->engine, &r->o)) api_shift_begin(r, tokens, &n);
    if (st == RD_OK) st = check_length(r->engine, &r->o, &n, err);
    if (st == RD_OK && r->o.messages_json) st = begin_output(r, tokens, n, &thinks, err);
    r->shift.thinks = r->ready.thinks = thinks;
    r->ready.tokens = tokens;
    r->ready.n_tokens = n;
    if (st == RD_OK) st = api_request_params(r, tokens, n, thinks, &r->ready.params, err);
    return st;
}

/* RD_E_AGAIN, quickly only: nothing has changed. */
static rd_status make_request(struct rd_request *r, bool quickly, struct rd_error *err)
{
    struct request_params *p = &r->ready.params;
    rd_status st = api_form_fill(r, (enum api_thinking)r->ready.thinks, quickly, &p->constraint, err);

    if (st == RD_OK)
        st = request_create(p, engine_cache(r->engine->engine), r->engine->info.n_vocab, r->ready.tokens,
                            r->ready.n_tokens, &r->request, err);
    grammar_unref(p->constraint.grammar); /* the request has its own reference */
    p->constraint.grammar = NULL;
    if (st == RD_OK) r->request->id = atomic_fetch_add_explicit(&r->engine->next_id, 1, memory_order_relaxed);
    return st;
}

static void free_ready(struct rd_request *r)
{
    mem_free(r->ready.tokens);
    r->ready.tokens = NULL;
}

static void fail(struct rd_request *r, rd_status st, const char *text)
{
    api_images_deinit(&r->images); /* at once, whenever its reader looks */
    free_ready(r);
    engine_give_place(r->engine->engine);
    api_request_fail(r, st, text);
    api_request_unref(r);
}

static void submit(struct rd_request *r)
{
    rd_engine *engine = r->engine;
    struct request *request = r->request;
    rd_status st;

    free_ready(r);
    request_ref(request); /* once it runs, the consumer may drop everything at any time */
    atomic_store(&r->phase, PHASE_RUNNING);
    if (atomic_load(&r->cancelled)) request_cancel(request, CANCEL_GONE);
    api_request_ring(r);                         /* RD_EVENT_STARTED is there */
    st = engine_submit(engine->engine, request); /* our reference on r is the engine's now, until the last wake */
    atomic_fetch_sub(&engine->n_preparing, 1);   /* only now: at any time it is counted here or there */
    request_unref(request);
    if (st != RD_OK) fail(r, st, rd_status_text(st));
}

/* A prepared request gets its form and goes to the engine. false: it takes long, and has nothing yet. */
static bool finish(struct rd_request *r, bool quickly, rd_status st, struct rd_error *err)
{
    if (st == RD_OK && atomic_load(&r->cancelled))
        st = error_set(err, RD_E_CANCELLED, "%s", rd_status_text(RD_E_CANCELLED));
    if (st == RD_OK) st = make_request(r, quickly, err);
    if (quickly && st == RD_E_AGAIN) return false;
    if (st == RD_OK) {
        submit(r);
        return true;
    }
    atomic_fetch_add_explicit(&r->engine->n_cancelled_preparing, st == RD_E_CANCELLED, memory_order_relaxed);
    atomic_fetch_sub(&r->engine->n_preparing, 1);
    fail(r, st, err->text[0] ? err->text : rd_status_text(st));
    return true;
}

/* Prepared as far as it may be: to the engine, or to who has time for its form. */
static void go_on(struct rd_request *r, rd_status st, struct rd_error *err)
{
    if (finish(r, true, st, err)) return;
    if (turns_push(&r->engine->slow, &r->ready.turn, api_fair_hash(r->o.fairness_key), MAX_SLOW)) return;
    error_set(err, RD_E_FULL, "%u forms that take long to compile are waiting already: try again later", MAX_SLOW);
    finish(r, false, err->status, err);
}

static void prepare_and_submit(struct rd_request *r)
{
    struct rd_error err = {RD_OK, ""};
    rd_status st;

    if (r->engine->process) {
        api_process_prepare(r);
        return;
    }
    st = atomic_load(&r->cancelled) ? RD_E_CANCELLED : prepare(r, API_IMAGES_LATER, &err);
    if (st == RD_E_AGAIN) {
        if (turns_push(&r->engine->far, &r->ready.turn, api_fair_hash(r->o.fairness_key), MAX_SLOW)) return;
        st = error_set(&err, RD_E_FULL, "%u requests whose images are fetched are waiting already: try again later",
                       MAX_SLOW);
    }
    go_on(r, st, &err);
}

void api_prep_main(void *arg)
{
    rd_engine *engine = arg;
    struct rd_request *r;

    while ((r = queue_pop(engine->prep))) prepare_and_submit(r);
}

static struct rd_request *request_of(struct turn *turn)
{
    return (struct rd_request *)((char *)turn - offsetof(struct rd_request, ready.turn));
}

void api_slow_main(void *arg)
{
    rd_engine *engine = arg;
    struct turn *turn;

    thread_set_low(); /* not idle: strict tools are 0.2 s of work, for which a busy machine took tens of seconds */
    while ((turn = turns_pop(&engine->slow))) {
        struct rd_error err = {RD_OK, ""};

        finish(request_of(turn), false, turns_are_closed(&engine->slow) ? RD_E_CLOSED : RD_OK, &err);
    }
}

void api_far_main(void *arg)
{
    rd_engine *engine = arg;
    struct turn *turn;

    while ((turn = turns_pop(&engine->far))) {
        struct rd_request *r = request_of(turn);
        struct rd_error err = {RD_OK, ""};
        rd_status st = RD_E_CLOSED;

        if (!turns_are_closed(&engine->far))
            st = atomic_load(&r->cancelled) ? RD_E_CANCELLED : prepare(r, API_IMAGES_NOW, &err);
        go_on(r, st, &err);
    }
}
