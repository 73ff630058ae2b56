/* text/output/tool_prompt.c - see tool_prompt.h. */
#include "text/output/tool_prompt.h"
#include <string.h>

static const json_t *function_of(const json_t *call)
{
    const json_t *f = json_object_get(call, "function");

    return json_is_object(f) ? f : call;
}

static void put_json(const json_t *v, struct buf *out)
{
    json_free_t release;
    char *text = json_dumps(v, JSON_ENCODE_ANY);

    json_get_alloc_funcs(NULL, &release);
    if (text)
        buf_puts(out, text);
    else
        out->failed = true;
    if (text) release(text);
}

/* Content as text: a string, or its text parts. */
static void put_content(const json_t *content, struct buf *out)
{
    size_t i;
    const json_t *part;

    if (json_is_string(content)) buf_append(out, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part) put_content(json_object_get(part, "text"), out);
}

static void explain_tools(const json_t *tools, struct buf *out)
{
    size_t i;
    const json_t *tool;

    buf_puts(out, "# Tools\n\nThese functions can be called when they help to answer:\n<tools>\n");
    json_array_foreach(tools, i, tool)
    {
        put_json(tool, out);
        buf_putc(out, '\n');
    }
    buf_puts(out,
             "</tools>\n\nTo call a function, write its name and its arguments as a JSON object between these tags, "
             "one pair of tags for each call:\n<tool_call>\n{\"name\": \"function-name\", \"arguments\": "
             "{\"argument-name\": value}}\n</tool_call>\nThe result comes back between <tool_response> and "
             "</tool_response>. Without need of a function, answer directly.");
}

static bool set_content(json_t *m, const char *role, struct buf *text)
{
    json_t *content = text->failed ? NULL : json_stringn(text->n ? text->data : "", text->n);
    bool ok = content && json_object_set_new(m, "content", content) == 0;

    if (ok && role) ok = json_object_set_new(m, "role", json_string(role)) == 0;
    buf_deinit(text);
    return ok;
}

static bool add_system(const json_t *tools, json_t *messages)
{
    json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    struct buf text = {0};

    if (role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)) {
        put_content(json_object_get(first, "content"), &text);
        buf_puts(&text, "\n\n");
    } else {
        first = json_object();
        if (!first || json_array_insert_new(messages, 0, first)) return false;
        if (json_object_set_new(first, "role", json_string("system"))) return false;
    }
    explain_tools(tools, &text);
    return set_content(first, NULL, &text);
}

static bool write_calls(json_t *m, const json_t *calls)
{
    struct buf text = {0};
    size_t i;
    const json_t *call;

    put_content(json_object_get(m, "content"), &text);
    json_array_foreach(calls, i, call)
    {
        const json_t *f = function_of(call), *args = json_object_get(f, "arguments");

        buf_puts(&text, text.n ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        put_json(json_object_get(f, "name"), &text);
        buf_puts(&text, ", \"arguments\": ");
        if (json_is_string(args))
            buf_append(&text, json_string_value(args), json_string_length(args));
        else if (args)
            put_json(args, &text);
        else
            buf_puts(&text, "{}");
        buf_puts(&text, "}\n</tool_call>");
    }
    if (!set_content(m, NULL, &text)) return false;
    json_object_del(m, "tool_calls");
    return true;
}

/* Results that follow each other share one user message: templates want the roles to alternate. */
static bool write_results(json_t *messages, size_t i)
{
    json_t *m = json_array_get(messages, i), *next;
    struct buf text = {0};

    for (next = m; next;) {
        const char *role = json_string_value(json_object_get(next, "role"));

        if (next != m && !(role && strcmp(role, "tool") == 0)) break;
        buf_puts(&text, text.n ? "\n<tool_response>\n" : "<tool_response>\n");
        put_content(json_object_get(next, "content"), &text);
        buf_puts(&text, "\n</tool_response>");
        if (next != m) json_array_remove(messages, i + 1);
        next = json_array_get(messages, i + 1);
    }
    return set_content(m, "user", &text);
}

static bool write_as_text(const json_t *tools, json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *calls = json_object_get(m, "tool_calls");
        const char *role = json_string_value(json_object_get(m, "role"));

        if (json_array_size(calls) && !write_calls(m, calls)) return false;
        if (role && strcmp(role, "tool") == 0 && !write_results(messages, i)) return false;
    }
    return json_array_size(tools) == 0 || add_system(tools, messages);
}

rd_status tool_prompt_explain(const json_t *tools, json_t *messages)
{
    return write_as_text(tools, messages) ? RD_OK : RD_E_NOMEM;
}

/* ---- a call that is begun for the model ---- */

void tool_prompt_begin_call(enum output_style style, const char *template_source, const char *name, struct buf *out)
{
    const char *before = "<tool_call>\n{\"name\": \"", *after = "\", \"arguments\": {";

    switch (style) {
    case OUTPUT_QWEN_XML:
        before = "<tool_call>\n<function=";
        after = ">\n";
        break;
    case OUTPUT_LLAMA_JSON:
        before = "{\"name\": \"";
        after = "\", \"parameters\": {";
        break;
    case OUTPUT_PYTHONIC:
        before = "[";
        after = "(";
        break;
    case OUTPUT_MISTRAL:
        before = strstr(template_source, "[ARGS]") ? "[TOOL_CALLS]" : "[TOOL_CALLS][{\"name\": \"";
        after = strstr(template_source, "[ARGS]") ? "[ARGS]{" : "\", \"arguments\": {";
        break;
    case OUTPUT_DEEPSEEK:
        before = strstr(template_source, "```json")
                     ? "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
                     : "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
        after = strstr(template_source, "```json") ? "\n```json\n{" : "<｜tool▁sep｜>{";
        break;
    default:
        break;
    }
    buf_puts(out, before);
    buf_puts(out, name);
    if (*name) buf_puts(out, after);
}
