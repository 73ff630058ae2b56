/* api/api_replay.c - what a request's answer leaves for the next turn of its conversation: see answer_memory.h. */
#include <string.h>
#include "api/api_state.h"
#include "base/mem.h"
#include "base/sip_hash.h"

struct answer_owner api_owner(const rd_engine *engine, const struct rd_request_options *o)
{
    struct answer_owner owner = {.salted = o->cache_salt != NULL};

    if (owner.salted) owner.salt = sip_hash128(engine->salt_key, o->cache_salt, strlen(o->cache_salt));
    return owner;
}

/* The call that is being written gets its arguments. */
static void end_call(struct api_answer *a)
{
    json_t *call = json_array_get(a->calls, json_array_size(a->calls) - 1);
    json_t *arguments = json_stringn(a->arguments.n ? a->arguments.data : "", a->arguments.n);

    if (json_object_set_new(call, "arguments", arguments) != 0 || a->arguments.failed)
        a->failed = true; /* takes NULL */
    buf_clear(&a->arguments);
}

void api_answer_add(struct api_answer *a, enum rd_delta_type type, const char *id, const char *s, size_t n)
{
    json_t *call;

    switch (type) {
    case RD_DELTA_CONTENT: buf_append(&a->content, s, n); break;
    case RD_DELTA_REASONING: buf_append(&a->reasoning, s, n); break;
    case RD_DELTA_CALL_BEGIN:
        if (!a->calls) a->calls = json_array();
        call = json_pack("{s:s, s:s%, s:s}", "id", id, "name", s, n, "arguments", "");
        if (!call || json_array_append_new(a->calls, call) != 0) a->failed = true;
        break;
    case RD_DELTA_CALL_ARGUMENTS: buf_append(&a->arguments, s, n); break;
    case RD_DELTA_CALL_END: end_call(a); break;
    }
}

void api_answer_deinit(struct api_answer *a)
{
    buf_deinit(&a->content);
    buf_deinit(&a->reasoning);
    buf_deinit(&a->arguments);
    json_decref(a->calls);
}

/* Bytes of raw that are thinking: up to the last closing tag and the white space behind it. */
static size_t thinking_bytes(const struct think_tags *think, const char *raw)
{
    const char *end = NULL;

    for (const char *at = raw; think && (at = strstr(at, think->close)); ) end = at += strlen(think->close);
    while (end && *end && strchr(" \t\r\n", *end)) end++;
    return end ? (size_t)(end - raw) : 0;
}

static void keep_parts(struct rd_request *r, struct answer_owner owner, const struct buf *raw)
{
    const struct kv_seq *seq = &r->request->seq;
    struct api_answer *a = &r->output.answer;
    struct answer_parts parts = {.raw = raw->data, .n_raw = raw->n, .calls = a->calls};

    parts.content = a->content.n ? a->content.data : "";
    parts.reasoning = a->reasoning.n ? a->reasoning.data : "";
    if (a->reasoning.n) parts.n_thinking = thinking_bytes(r->engine->style.think, raw->data);
    answer_memory_keep(r->engine->answers, owner, seq->keys, seq->n_keys, &parts);
}

/* Most templates leave thinking out of the history: the next turn then begins with this conversation, without it. It is
 * computed now, when there is time, up to where the next message of the user begins. */
static void warm_next_turn(struct rd_request *r)
{
    struct api_answer *a = &r->output.answer;
    struct rd_request_options o = r->o;
    json_t *messages = json_loads(r->o.messages_json, JSON_ALLOW_NUL, NULL);
    char *text = NULL;

    json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "assistant", "content",
                                              a->content.n ? a->content.data : "", a->content.n));
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "."));
    if (messages) text = json_dumps(messages, JSON_COMPACT);
    o.messages_json = text;
    o.prompt_end = RD_PROMPT_CLOSED;
    o.forced_tool = NULL;
    if (text) (void)rd_warm(r->engine, &o, NULL);           /* a queue that is half full has better things to do */
    mem_free(text);
    json_decref(messages);
}

void api_answer_keep(struct rd_request *r)
{
    const struct kv_seq *seq = &r->request->seq;
    struct answer_owner owner = {r->request->p.salted, r->request->p.salt};
    struct api_answer *a = &r->output.answer;
    struct buf raw = {0};
    bool whole = a->calls && !a->failed && !a->content.failed && !a->reasoning.failed && !r->o.forced_tool &&
                 r->request->finish == REQUEST_STOP && r->stop_hit < 0;

    if (!r->o.messages_json || !r->request->p.cached || r->request->finish == REQUEST_ERROR ||
        seq->n_keys <= seq->n_prompt)
        return;
    if (a->calls && r->request->finish == REQUEST_STOP)      /* the client comes back with what the tools say */
        (void)engine_hold_next(r->engine->engine, owner.salted, &owner.salt, seq->keys, seq->n_keys);
    if (a->reasoning.n && !a->calls && !a->failed && r->request->finish == REQUEST_STOP &&
        r->o.prompt_end != RD_PROMPT_CONTINUED)
        warm_next_turn(r);
    for (uint32_t i = seq->n_prompt; whole && i < seq->n_keys; i++) {
        struct text_span piece = tokenizer_piece(r->engine->tokenizer, (int32_t)seq->keys[i], true);

        buf_append(&raw, piece.s, piece.n);
    }
    if (raw.n && !raw.failed) keep_parts(r, owner, &raw);
    else answer_memory_keep(r->engine->answers, owner, seq->keys, seq->n_keys, NULL);
    buf_deinit(&raw);
}
