/* api/api_replay.c - what a request's answer leaves for the next turn of its conversation: see answer_memory.h. */
#include <ctype.h>
#include <string.h>
#include "api/api_state.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/sip_hash.h"

struct kv_space api_space(const rd_engine *engine, const struct rd_request_options *o)
{
    struct kv_space owner = {0};

    struct adapter_mix *mix = NULL;

    if (o->cache_salt) owner.salt = sip_hash128(engine->salt_key, o->cache_salt, strlen(o->cache_salt));
    if (api_adapters_mix(engine, o, &mix, NULL) == RD_OK)
        owner.adapter = adapter_mix_id(mix);
    else
        owner.adapter = (struct hash128){1, 1};
    adapter_mix_unref(mix);
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
    case RD_DELTA_CONTENT:
        buf_append(&a->content, s, n);
        break;
    case RD_DELTA_REASONING:
        buf_append(&a->reasoning, s, n);
        break;
    case RD_DELTA_CALL_BEGIN:
        if (!a->calls) a->calls = json_array();
        call = json_pack("{s:s, s:s%, s:s}", "id", id, "name", s, n, "arguments", "");
        if (!call || json_array_append_new(a->calls, call) != 0) a->failed = true;
        break;
    case RD_DELTA_CALL_ARGUMENTS:
        buf_append(&a->arguments, s, n);
        break;
    case RD_DELTA_CALL_END:
        end_call(a);
        break;
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

    for (const char *at = raw; think && (at = strstr(at, think->close));) end = at += strlen(think->close);
    while (end && *end && strchr(" \t\r\n", *end)) end++;
    return end ? (size_t)(end - raw) : 0;
}

/* Does the model's text hold no more than was delivered of it, tags and punctuation apart? What a parser dropped (a
 * member beside name and arguments) must not come back in a prompt. Calls whose arguments the parser wrote itself, from
 * Python or XML, are not text of the model's: those formats have no place for more. */
static bool is_all_delivered(const char *raw, size_t n_raw, const struct api_answer *a)
{
    static const char *const own[] = {"name",       "arguments",  "parameters", "type",       "function",  "tool_call",
                                      "tool_calls", "TOOL_CALLS", "json",       "python_tag", "tool_code", "think",
                                      "call",       "eom_id",     "eot_id",     "im_end"};
    struct buf rest = {0};
    bool is_more = false;

    buf_append(&rest, raw, n_raw);
    for (size_t i = 0; !rest.failed && !a->shown && i < json_array_size(a->calls); i++) { /* shown: in the content */
        const json_t *call = json_array_get(a->calls, i);
        const char *parts[] = {json_string_value(json_object_get(call, "arguments")),
                               json_string_value(json_object_get(call, "name"))};

        for (size_t k = 0; k < 2; k++) {
            char *at = parts[k] && *parts[k] ? memmem(rest.data, rest.n, parts[k], strlen(parts[k])) : NULL;

            if (!at && k == 0 && strcmp(parts[0], "{}") != 0) {
                buf_deinit(&rest);
                return true; /* arguments in another language */
            }
            if (at) memset(at, ' ', strlen(parts[k]));
        }
    }
    for (size_t k = 0; k < 2; k++) {
        const struct buf *text = k ? &a->reasoning : &a->content;
        const char *s = text->n ? text->data : "";
        size_t n = text->n;
        char *at;

        while (n && strchr(" \t\r\n", s[0])) s++, n--;
        while (n && strchr(" \t\r\n", s[n - 1])) n--;
        at = n && !rest.failed ? memmem(rest.data, rest.n, s, n) : NULL;
        if (at) memset(at, ' ', n);
    }
    for (size_t i = 0; !rest.failed && i < rest.n && !is_more;) {
        size_t n = 0;

        while (i + n < rest.n &&
               (isalnum((unsigned char)rest.data[i + n]) || rest.data[i + n] == '_' || rest.data[i + n] & 0x80))
            n++;
        is_more = n > 0;
        for (size_t k = 0; is_more && k < sizeof(own) / sizeof(own[0]); k++)
            is_more = strlen(own[k]) != n || memcmp(own[k], rest.data + i, n) != 0;
        i += n ? n : 1;
    }
    is_more |= rest.failed;
    buf_deinit(&rest);
    return !is_more;
}

/* How many of the prompt's tokens must stand before the answer again: up to the last one that bounds a turn. Where none
 * does, all of them. */
static uint32_t n_prefix_of(const rd_engine *engine, const uint32_t *ids, uint32_t n_prompt)
{
    const uint32_t n_head = 32; /* tokens that a template writes as the beginning of an answer, at most */

    for (uint32_t i = n_prompt; i > 0 && n_prompt - i < n_head; i--)
        if (api_bounds_turn(engine, (int32_t)ids[i - 1])) return i;
    return n_prompt;
}

void api_answer_keep_as(rd_engine *engine, const struct api_kept *k, struct api_answer *a)
{
    struct answer_parts parts = {.calls = a->calls, .n_messages = k->n_messages};
    struct buf raw = {0};
    bool whole = k->whole && a->calls && k->n_messages;

    for (uint32_t i = k->n_prompt; whole && i < k->n_ids; i++) {
        struct text_span piece = tokenizer_piece(engine->tokenizer, (int32_t)k->ids[i], true);

        buf_append(&raw, piece.s, piece.n);
    }
    parts.raw = raw.data;
    parts.n_raw = raw.n;
    parts.content = a->content.n ? a->content.data : "";
    parts.reasoning = a->reasoning.n ? a->reasoning.data : "";
    parts.n_prefix = n_prefix_of(engine, k->ids, k->n_prompt);
    whole = whole && raw.n && !raw.failed && is_all_delivered(raw.data, raw.n, a);
    if (whole && a->reasoning.n) parts.n_thinking = thinking_bytes(engine->style.think, raw.data);
    answer_memory_keep(engine->answers, k->owner, k->ids, k->n_ids, whole ? &parts : NULL);
    if (k->spelled && !k->spelled->said.failed && !a->failed && !a->content.failed)
        spelling_memory_answer(engine->spellings, k->owner, k->spelled, parts.content, a->content.n, a->calls);
    buf_deinit(&raw);
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
    if (text) (void)rd_warm(r->engine, &o, NULL); /* a queue that is half full has better things to do */
    mem_free(text);
    json_decref(messages);
}

void api_answer_keep(struct rd_request *r)
{
    const struct kv_seq *seq = &r->request->seq;
    struct kv_space owner = r->request->p.space;
    struct api_answer *a = &r->output.answer;
    /* behind its one call the engine may have made more, or not */
    const uint32_t n_ids = r->output.has_all ? u32_min(seq->n_keys, seq->n_prompt + r->n_tokens_out) : seq->n_keys;
    const struct api_kept kept = {.owner = owner,
                                  .ids = seq->keys,
                                  .n_prompt = seq->n_prompt,
                                  .n_ids = n_ids,
                                  .spelled = &r->spelled,
                                  .n_messages = r->o.prompt_end == RD_PROMPT_CONTINUED ? 0 : r->n_messages,
                                  .whole = a->calls && !a->failed && !a->content.failed && !a->reasoning.failed &&
                                           !api_begins_call(r->engine, &r->o) && r->request->finish == REQUEST_STOP &&
                                           r->stop_hit < 0};

    if (r->shift.n_dropped > 0) return; /* its tokens are those of no conversation */
    if (!r->o.messages_json || !r->request->p.cached || r->request->finish == REQUEST_ERROR ||
        seq->n_keys <= seq->n_prompt)
        return;
    if (a->calls && r->request->finish == REQUEST_STOP) /* the client comes back with what the tools say */
        (void)engine_hold_next(r->engine->engine, &owner, seq->keys, seq->n_keys);
    if (a->reasoning.n && !a->calls && !a->failed && r->request->finish == REQUEST_STOP &&
        r->o.prompt_end != RD_PROMPT_CONTINUED)
        warm_next_turn(r);
    if (r->o.replay && !r->engine->no_replay) api_answer_keep_as(r->engine, &kept, a);
}
