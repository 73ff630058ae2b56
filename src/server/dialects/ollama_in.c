/* server/dialects/ollama_in.c - bodies of /api/chat and /api/generate as bodies of chat completions and completions. */
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "server/dialects/foreign.h"
#include "server/dialects/ollama.h"

int ollama_check_model(const json_t *body, const struct rd_info *info, struct api_error *e)
{
    const json_t *model = json_object_get(body, "model"), *name = json_object_get(body, "name");
    const char *asked, *id = info->model_id;
    char quoted[160];

    if (!model) model = name;
    if (!model || json_is_null(model)) return 0;
    asked = json_string_value(model);
    if (!asked) return api_error_set(e, 400, "model", "model: a string wanted");
    if (!*asked || param_is_model(asked, info)) return 0;
    error_quote(quoted, sizeof(quoted), asked, strlen(asked));
    return api_error_set(e, 404, "model", "model '%s' not found; this server has '%s'", quoted, id);
}

/* ---- options ---- */

/* Those that mean something here, under the name of the table of parameters, and what Ollama takes without them. */
static const struct {
    const char *name, *ours;
    double fallback;
} options[] = {
    {"temperature", "temperature", 0.8},
    {"top_k", "top_k", 40},
    {"top_p", "top_p", 0.9},
    {"min_p", "min_p", 0},
    {"typical_p", "typical_p", 1},
    {"repeat_penalty", "repetition_penalty", 1.1},
    {"repeat_last_n", "repeat_last_n", 64},
    {"presence_penalty", "presence_penalty", 0},
    {"frequency_penalty", "frequency_penalty", 0},
    {"mirostat", "mirostat", 0},
    {"mirostat_tau", "mirostat_tau", 5},
    {"mirostat_eta", "mirostat_eta", 0.1},
};

static json_t *number(double v)
{
    return v >= -0x1p62 && v <= 0x1p62 && v == (double)(json_int_t)v ? json_integer((json_int_t)v) : json_real(v);
}

static int read_options(const json_t *body, json_t *to, struct api_error *e)
{
    const json_t *o = json_object_get(body, "options"), *seed, *predict, *stop;
    bool ok = true;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        json_t *v = json_object_get(o, options[i].name);

        if (v && !json_is_null(v))
            ok &= json_object_set(to, options[i].ours, v) == 0;
        else
            ok &= foreign_set(to, options[i].ours, number(options[i].fallback));
    }
    seed = json_object_get(o, "seed");
    predict = json_object_get(o, "num_predict");
    stop = json_object_get(o, "stop");
    /* seeds below 0 are random; num_predict below 1 has no end but the model's and the context's */
    if (seed && !(json_is_integer(seed) && json_integer_value(seed) < 0))
        ok &= json_object_set(to, "seed", (json_t *)(uintptr_t)seed) == 0;
    if (!predict || json_is_null(predict) || (json_is_integer(predict) && json_integer_value(predict) < 1))
        ok &= foreign_set(to, "max_tokens", json_integer(-1));
    else
        ok &= json_object_set(to, "max_tokens", (json_t *)(uintptr_t)predict) == 0;
    if (stop) ok &= json_object_set(to, "stop", (json_t *)(uintptr_t)stop) == 0;
    return ok ? 0 : foreign_no_memory(e);
}

static int read_format(const json_t *body, json_t *to, struct api_error *e)
{
    json_t *format = json_object_get(body, "format"), *wanted;
    const char *name = json_string_value(format);

    if (!format || json_is_null(format) || (name && !*name)) return 0;
    if (name && strcmp(name, "json") == 0)
        wanted = json_pack("{s:s}", "type", "json_object");
    else if (json_is_object(format))
        wanted =
            json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name", "format", "schema", format);
    else
        return api_error_set(e, 400, "format", "format: \"json\" or a JSON schema wanted");
    return foreign_set(to, "response_format", wanted) ? 0 : foreign_no_memory(e);
}

static int read_think(const json_t *body, json_t *to, struct api_error *e)
{
    json_t *think = json_object_get(body, "think");

    if (!think || json_is_null(think)) return 0;
    if (json_is_boolean(think)) return json_object_set(to, "enable_thinking", think) ? foreign_no_memory(e) : 0;
    return json_object_set(to, "reasoning_effort", think) ? foreign_no_memory(e) : 0;
}

/* Of chat completions a bool and a number, of completions a number alone. */
static int read_logprobs(const json_t *body, bool chat, json_t *to, struct api_error *e)
{
    json_t *top = json_object_get(body, "top_logprobs");
    bool has_top = top && !json_is_null(top), ok = true;

    if (!json_is_true(json_object_get(body, "logprobs"))) return 0;
    if (chat) ok = foreign_set(to, "logprobs", json_true());
    if (ok && has_top)
        ok = json_object_set(to, chat ? "top_logprobs" : "logprobs", top) == 0;
    else if (ok && !chat)
        ok = foreign_set(to, "logprobs", json_integer(0));
    return ok ? 0 : foreign_no_memory(e);
}

/* Everything that both share; *to is a new body. */
static int read_common(const json_t *body, const struct rd_info *info, json_t **to, struct api_error *e)
{
    static const char *const same[] = {"cache_prompt", "replay",        "speculation", "cache_salt",
                                       "cache_name",   "context_shift", "n_keep"};
    bool stream = true, ok;

    *to = NULL;
    if (ollama_check_model(body, info, e) || param_bool(body, "stream", &stream, e)) return -1;
    *to = json_object();
    ok = *to && foreign_set(*to, "stream", json_boolean(stream));
    for (size_t i = 0; ok && i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *v = json_object_get(body, same[i]);

        if (v) ok = json_object_set(*to, same[i], v) == 0;
    }
    if (!ok) return foreign_no_memory(e);
    return read_options(body, *to, e) || read_format(body, *to, e) || read_think(body, *to, e) ? -1 : 0;
}

static bool has_images(const json_t *where)
{
    const json_t *images = json_object_get(where, "images");

    return images && !json_is_null(images) && !(json_is_array(images) && json_array_size(images) == 0);
}

/* Content of a message with images, which Ollama has beside its text: the images, then the text. NULL: no memory, or, with
 * 400 in e, no list of base64. */
static json_t *content_with(const json_t *where, json_t *text, struct api_error *e)
{
    const json_t *images = json_object_get(where, "images"), *image;
    json_t *content = json_array();
    bool ok = content != NULL;
    size_t i;

    if (!json_is_array(images)) {
        api_error_set(e, 400, "images", "images: a list of base64 is wanted");
        json_decref(content);
        return NULL;
    }
    json_array_foreach(images, i, image)
    {
        if (!json_is_string(image)) {
            api_error_set(e, 400, "images", "images[%zu]: base64 is wanted", i);
            json_decref(content);
            return NULL;
        }
        if (ok) ok = foreign_add(content, json_pack("{s:s, s:O}", "type", "image", "data", image));
    }
    if (ok && json_string_length(text) > 0)
        ok = foreign_add(content, json_pack("{s:s, s:O}", "type", "text", "text", text));
    if (ok) return content;
    json_decref(content);
    foreign_no_memory(e);
    return NULL;
}

/* ---- chat ---- */

/* {"function": {name, arguments}} with the type and id that chat completions know. */
static json_t *chat_calls(const json_t *calls)
{
    json_t *out = json_array(), *call;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");

        if (!foreign_add(out, json_pack("{s:s, s:O?}", "type", "function", "function", function))) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static int chat_message(const json_t *m, size_t i, json_t *to, struct api_error *e)
{
    const json_t *calls = json_object_get(m, "tool_calls");
    json_t *out, *name = json_object_get(m, "tool_name"), *thinking = json_object_get(m, "thinking");
    bool ok;

    if (!json_is_object(m)) return api_error_set(e, 400, "messages", "messages: messages[%zu] is not an object", i);
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return api_error_set(e, 400, "messages", "messages: messages[%zu]: tool_calls must be a list", i);
    out = json_copy((json_t *)(uintptr_t)m);
    if (!out) return foreign_no_memory(e);
    json_object_del(out, "images");
    json_object_del(out, "tool_name");
    json_object_del(out, "thinking");
    if (has_images(m)) {
        json_t *content = content_with(m, json_object_get(m, "content"), e);

        if (!content || json_object_set_new(out, "content", content)) {
            json_decref(out);
            return content ? foreign_no_memory(e) : -1;
        }
    }
    ok = !json_is_string(name) || json_object_set(out, "name", name) == 0;
    if (ok && json_is_string(thinking)) ok = json_object_set(out, "reasoning_content", thinking) == 0;
    if (ok && json_is_array(calls)) {
        if (json_array_size(calls) > 0)
            ok = foreign_set(out, "tool_calls", chat_calls(calls));
        else
            json_object_del(out, "tool_calls");
    }
    if (ok) return foreign_add(to, out) ? 0 : foreign_no_memory(e);
    json_decref(out);
    return foreign_no_memory(e);
}

static int chat_messages(const json_t *list, json_t *to, struct api_error *e)
{
    const json_t *m;
    size_t i;

    if (json_array_size(list) > LIMIT_MESSAGES)
        return api_error_set(e, 400, "messages", "messages: at most %u", LIMIT_MESSAGES);
    json_array_foreach(list, i, m) if (chat_message(m, i, to, e)) return -1;
    return 0;
}

int ollama_chat_task(const json_t *body, const struct rd_info *info, struct ollama_task *task, struct api_error *e)
{
    const json_t *list = json_object_get(body, "messages");
    json_t *out, *tools = json_object_get(body, "tools"), *messages;

    memset(task, 0, sizeof(*task));
    if (read_common(body, info, &out, e)) goto fail;
    if (json_array_size(list) == 0) {
        json_decref(out);
        return 0;
    }
    messages = json_array();
    if (!messages || json_object_set_new(out, "messages", messages) ||
        (tools && !json_is_null(tools) && json_object_set(out, "tools", tools))) {
        foreign_no_memory(e);
        goto fail;
    }
    if (chat_messages(list, messages, e) || read_logprobs(body, true, out, e)) goto fail;
    task->body = out;
    task->chat = true;
    return 0;
fail:
    json_decref(out);
    return -1;
}

/* ---- generate ---- */

static int refuse_fields(const json_t *body, struct api_error *e)
{
    if (json_string_length(json_object_get(body, "template")) > 0)
        return api_error_set(e, 400, "template",
                             "template: Go templates are not known here; send raw: true with the text as it shall be");
    if (json_array_size(json_object_get(body, "context")) > 0)
        return api_error_set(e, 400, "context", "context: not known here; send the conversation to /api/chat");
    return 0;
}

int ollama_generate_task(const json_t *body, const struct rd_info *info, struct ollama_task *task, struct api_error *e)
{
    json_t *content, *out = NULL, *prompt = json_object_get(body, "prompt"), *system = json_object_get(body, "system"),
                     *messages;
    const json_t *suffix = json_object_get(body, "suffix");
    bool ok;

    memset(task, 0, sizeof(*task));
    if (refuse_fields(body, e) || read_common(body, info, &out, e)) goto fail;
    if (json_string_length(suffix) > 0) {
        task->suffix = json_string_value(suffix);
        task->n_suffix = json_string_length(suffix);
    }
    if (json_string_length(prompt) == 0 && !task->suffix) {
        json_decref(out);
        return 0;
    }
    task->chat = !task->suffix && !json_is_true(json_object_get(body, "raw"));
    if (read_logprobs(body, task->chat, out, e)) goto fail;
    if (task->chat) {
        messages = json_array();
        ok = messages != NULL && json_object_set_new(out, "messages", messages) == 0;
        if (ok && json_string_length(system) > 0)
            ok = foreign_add(messages, json_pack("{s:s, s:O}", "role", "system", "content", system));
        if (ok && has_images(body)) {
            content = content_with(body, prompt, e);
            if (!content) goto fail;
            ok = foreign_add(messages, json_pack("{s:s, s:o}", "role", "user", "content", content));
        } else if (ok) {
            ok = foreign_add(messages, json_pack("{s:s, s:O}", "role", "user", "content", prompt));
        }
    } else {
        if (has_images(body)) {
            api_error_set(e, 400, "images", "images: only in a chat, not with raw or suffix");
            goto fail;
        }
        /* with a suffix the place of a prompt that is made of both */
        ok = task->suffix ? foreign_set(out, "prompt", json_pack("[i]", 0))
                          : json_object_set(out, "prompt", prompt) == 0;
    }
    if (ok) {
        task->body = out;
        return 0;
    }
    foreign_no_memory(e);
fail:
    json_decref(out);
    return -1;
}

void ollama_error(struct api_error *e)
{
    static const char *const names[][2] = {{"max_tokens", "num_predict"},
                                           {"repetition_penalty", "repeat_penalty"},
                                           {"response_format", "format"},
                                           {"reasoning_effort", "think"}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) foreign_rename(e, names[i][0], names[i][1]);
}
