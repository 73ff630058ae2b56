/* api/api_text.c - tokenize, detokenize, chat template: the text side of the public API. */
#include <string.h>
#include "api/api_state.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/chat/chat_builtins.h"
#include "text/output/tool_prompt.h"
#include "text/chat/volatile_lines.h"

rd_status rd_tokenize(const rd_engine *engine, const char *text, size_t n_bytes, bool add_special, bool parse_special,
                      int32_t **tokens, uint32_t *n_tokens, struct rd_error *err)
{
    if (engine->process)
        return api_process_tokenize(engine, text, n_bytes, add_special, parse_special, tokens, n_tokens, err);
    return tokenizer_encode(engine->tokenizer, text, n_bytes, add_special, parse_special, tokens, n_tokens, err);
}

const char *rd_token_bytes(const rd_engine *engine, int32_t token, size_t *n_bytes)
{
    struct text_span piece = {"", 0};

    if (engine->tokenizer) piece = tokenizer_piece(engine->tokenizer, token, true);
    *n_bytes = piece.n;
    return piece.s;
}

rd_status rd_detokenize(const rd_engine *engine, const int32_t *tokens, uint32_t n_tokens, bool special, char **text,
                        size_t *n_bytes, struct rd_error *err)
{
    uint32_t n_vocab = engine->process ? 0 : tokenizer_n_tokens(engine->tokenizer);
    struct buf out = {0};
    char *raw = NULL;
    size_t n_raw = 0;
    rd_status st;

    if (engine->process) return api_process_detokenize(engine, tokens, n_tokens, special, text, n_bytes, err);
    for (uint32_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            return error_set(err, RD_E_INVALID, "token %d is not in the vocabulary of %u", tokens[i], n_vocab);
    st = tokenizer_decode(engine->tokenizer, tokens, n_tokens, special, &raw, &n_raw);
    if (st != RD_OK) return error_set(err, st, "cannot decode %u tokens: %s", n_tokens, rd_status_text(st));
    buf_append(&out, "", 0);
    for (size_t i = 0; i < n_raw;) {
        uint32_t cp;
        int len = utf8_decode(raw + i, n_raw - i, &cp);

        if (len > 0)
            buf_append(&out, raw + i, (size_t)len);
        else
            buf_puts(&out, "\xEF\xBF\xBD");
        i += (size_t)(len > 0 ? len : -len);
    }
    mem_free(raw);
    if (!out.failed && out.n == 0) buf_append(&out, "\0", 1), out.n = 0;
    *n_bytes = out.n;
    *text = buf_take(&out, NULL);
    return *text ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory for text");
}

void *api_json_alloc(size_t n)
{
    return mem_alloc(1, n);
}

rd_status api_parse_json(const char *text, const char *what, bool array, json_t **out, struct rd_error *err)
{
    json_error_t json_err;

    *out = NULL;
    if (!text) return RD_OK;
    *out = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &json_err);
    if (!*out && json_error_code(&json_err) == json_error_out_of_memory)
        return error_set(err, RD_E_NOMEM, "%s: out of memory", what);
    if (!*out) return error_set(err, RD_E_INVALID, "%s: not valid JSON (line %d)", what, json_err.line);
    if (array ? json_is_array(*out) : json_is_object(*out)) return RD_OK;
    json_decref(*out);
    *out = NULL;
    return error_set(err, RD_E_INVALID, "%s: must be %s", what, array ? "an array" : "an object");
}

/* Keys in one order, whoever sends them; a text of JSON stays a text. NULL: no memory, or no JSON. */
static json_t *sorted(const json_t *value)
{
    const size_t parse = JSON_DECODE_ANY | JSON_ALLOW_NUL, write = JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY;
    bool is_text = json_is_string(value);
    json_t *v = is_text ? json_loadb(json_string_value(value), json_string_length(value), parse, NULL) : NULL, *out;
    char *text = json_dumps(is_text ? v : value, write);

    out = !text ? NULL : is_text ? json_string(text) : json_loads(text, parse, NULL);
    mem_free(text);
    json_decref(v);
    return out;
}

/* --sort-keys: a function of the request alone, so that clients which shuffle share prompts. */
static void sort_keys(json_t *tools, json_t *messages)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = sorted(json_array_get(tools, i));

        if (tool) json_array_set_new(tools, i, tool);
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");

        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *function = json_object_get(json_array_get(calls, k), "function"), *arguments;

            arguments = sorted(json_object_get(function, "arguments"));
            if (arguments) json_object_set_new(function, "arguments", arguments);
        }
    }
}

/* rd_options.thinking, where a conversation says nothing about it: under both names that templates have for it. */
static rd_status default_thinking(const rd_engine *engine, struct api_rendering *r, json_t **kwargs)
{
    static const char *const names[] = {"enable_thinking", "thinking"};

    if (!engine->sets_thinking) return RD_OK;
    for (size_t i = 0; i < 2; i++)
        if (json_object_get(*kwargs, names[i])) return RD_OK;
    if (!*kwargs) *kwargs = json_object();
    for (size_t i = 0; i < 2; i++)
        if (json_object_set_new(*kwargs, names[i], json_boolean(engine->thinks_unasked))) return RD_E_NOMEM;
    r->ends_thinking = !engine->thinks_unasked;
    return RD_OK;
}

rd_status api_render(const rd_engine *engine, struct api_rendering *r, char **text, size_t *n, struct rd_error *err)
{
    static const enum chat_end ends[] = {CHAT_END_NONE, CHAT_END_AUTO, CHAT_END_GENERATION, CHAT_END_CONTINUE};
    json_t *m = NULL, *t = NULL, *k = NULL;
    struct buf unseen = {0};
    struct chat_input in;
    rd_status st;

    if (!engine->chat) return error_set(err, RD_E_UNSUPPORTED, "chat template: the backend's process has told none");
    if ((st = api_parse_json(r->messages, "messages", true, &m, err)) != RD_OK) goto done;
    if ((st = api_parse_json(r->tools, "tools", true, &t, err)) != RD_OK) goto done;
    if ((st = api_parse_json(r->kwargs, "chat_template_kwargs", false, &k, err)) != RD_OK) goto done;
    if ((st = default_thinking(engine, r, &k)) != RD_OK) {
        error_set(err, st, "out of memory");
        goto done;
    }
    if (!engine->keep_volatile &&
        (st = volatile_lines_leave_out(m, r->notes ? &r->notes->left_out : &unseen)) != RD_OK) {
        error_set(err, st, "out of memory");
        goto done;
    }
    if (r->notes) r->notes->n_messages = (uint32_t)json_array_size(m);
    if (engine->sort_keys && !r->raw) sort_keys(t, m);
    if (r->owner && !engine->keep_volatile)
        spelling_memory_recall(engine->spellings, *r->owner, t, m, r->notes ? &r->notes->spelled : NULL);
    if ((unsigned)r->end >= sizeof(ends) / sizeof(ends[0])) {
        st = error_set(err, RD_E_INVALID, "prompt_end: unknown value %d", (int)r->end);
        goto done;
    }
    if (!r->trusts && ((st = api_mark(engine, &t, err)) != RD_OK || (st = api_mark(engine, &k, err)) != RD_OK))
        goto done;
    in = (struct chat_input){.tools = t, .kwargs = k, .now_s = clock_wall_s(clock_system()), .end = ends[r->end]};
    if (r->owner && !r->as_sent) {
        uint32_t n_restored;

        st = api_render_restored(engine, *r->owner, &in, m, r->trusts, text, n, &n_restored, err);
        if (r->notes) r->notes->n_restored = n_restored;
    } else {
        st = api_render_messages(engine, &in, m, NULL, r->trusts, text, n, err);
    }
    if (st == RD_OK && !r->keeps_marks && (st = api_unmark(text, n, err)) != RD_OK) mem_free(*text);
done:
    if (st != RD_OK) api_unmark_error(err);
    json_decref(m);
    json_decref(t);
    json_decref(k);
    buf_deinit(&unseen);
    return st;
}

void api_notes_deinit(const rd_engine *engine, struct api_prompt_notes *notes)
{
    buf_deinit(&notes->left_out);
    api_images_deinit(&notes->images);
    if (engine->spellings) spelling_memory_release(engine->spellings, &notes->spelled);
}

static rd_status prompt_text(const rd_engine *engine, const struct rd_request_options *o, bool keeps_marks,
                             char **prompt, size_t *n_bytes, struct rd_error *err)
{
    struct api_images images = {.n = 0};
    struct rd_request_options own;
    struct api_rendering r = {.raw = true, .keeps_marks = keeps_marks};
    rd_status st = api_options(o, &own, err);

    if (st != RD_OK) return st;
    r.messages = own.messages_json;
    r.tools = own.tools_json;
    r.kwargs = own.kwargs_json;
    r.end = own.prompt_end;
    r.trusts = own.parse_special;
    if (engine->sees) st = api_images_read((rd_engine *)(uintptr_t)engine, &own, API_IMAGES_NEVER, NULL, &images, err);
    if (st == RD_OK && images.n > 0) r.messages = images.messages;
    if (st == RD_OK) st = api_render(engine, &r, prompt, n_bytes, err);
    if (st == RD_OK && images.n > 0) st = api_images_write(&images, prompt, n_bytes, err);
    api_images_deinit(&images);
    return st;
}

rd_status rd_prompt_text(const rd_engine *engine, const struct rd_request_options *o, char **prompt, size_t *n_bytes,
                         struct rd_error *err)
{
    return prompt_text(engine, o, false, prompt, n_bytes, err);
}

rd_status api_prompt_marked(const rd_engine *engine, const struct rd_request_options *o, char **prompt, size_t *n_bytes,
                            struct rd_error *err)
{
    return prompt_text(engine, o, true, prompt, n_bytes, err);
}

rd_status rd_apply_template(const rd_engine *engine, const char *messages_json, const char *tools_json,
                            const char *kwargs_json, enum rd_prompt_end end, char **prompt, size_t *n_bytes,
                            struct rd_error *err)
{
    struct rd_request_options o;

    rd_request_options_default(&o);
    o.messages_json = messages_json;
    o.tools_json = tools_json;
    o.kwargs_json = kwargs_json;
    o.prompt_end = end;
    return rd_prompt_text(engine, &o, prompt, n_bytes, err);
}

static rd_status process_prompt(const rd_engine *engine, const struct rd_request_options *o, int32_t **tokens,
                                uint32_t *n_tokens, struct rd_error *err)
{
    struct api_rendering r = {
        .messages = o->messages_json, .tools = o->tools_json, .kwargs = o->kwargs_json, .end = o->prompt_end};
    char *text = NULL;
    size_t n = 0;
    rd_status st;

    if (o->tokens) return error_set(err, RD_E_UNSUPPORTED, "prompt: tokens: the backend's process takes text");
    if (o->prompt) return api_process_tokenize(engine, o->prompt, o->prompt_bytes, true, true, tokens, n_tokens, err);
    st = api_render(engine, &r, &text, &n, err);
    if (st == RD_OK) st = api_process_tokenize(engine, text, n, false, true, tokens, n_tokens, err);
    mem_free(text);
    return st;
}

rd_status rd_prompt_tokens(const rd_engine *engine, const struct rd_request_options *o, int32_t **tokens,
                           uint32_t *n_tokens, struct rd_error *err)
{
    struct rd_request_options own;
    rd_status st = api_options(o, &own, err);

    if (st != RD_OK) return st;
    if (engine->process) return process_prompt(engine, &own, tokens, n_tokens, err);
    return api_prompt_tokens(engine, &own, NULL, tokens, n_tokens, err);
}

const char *rd_chat_template_names(void)
{
    return chat_builtin_names();
}

rd_status api_texts_init(rd_engine *engine, struct rd_error *err)
{
    rd_status st = token_memory_create(engine->tokenizer, LIMIT_KEPT_TEXT_BYTES, &engine->texts);

    salt_ring_init(&engine->salts);
    random_os(&engine->salt_key, sizeof(engine->salt_key));
    if (st == RD_OK) st = api_memory_init(engine);
    return st == RD_OK ? st : error_set(err, st, "out of memory for a tokenizer");
}

rd_status api_encode_whole(const rd_engine *engine, const char *text, size_t n, enum token_names names, int32_t **ids,
                           uint32_t *n_ids, struct rd_error *err)
{
    int32_t bos = tokenizer_bos(engine->tokenizer);
    struct text_span bos_text = tokenizer_piece(engine->tokenizer, bos, true);
    bool has_bos = bos >= 0 && bos_text.n > 0 && n >= bos_text.n && memcmp(text, bos_text.s, bos_text.n) == 0;

    return token_memory_encode(engine->texts, text, n, !has_bos, names, ids, n_ids, NULL, err);
}

rd_status api_encode_chat(const rd_engine *engine, const char *text, size_t n, int32_t **ids, uint32_t *n_ids,
                          struct rd_error *err)
{
    return api_encode_whole(engine, text, n, NAMES_MARKED, ids, n_ids, err);
}
