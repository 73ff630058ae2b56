/* text/tool_grammar.c - see the header: markers around names and arguments, style by style. */
#include "text/tool_grammar.h"
#include <string.h>
#include "text/grammar/node_list.h"

#define MAX_PROPERTIES 512u

static const struct schema_options plain = {JSON_SPACES_PLAIN};

bool tool_grammar_knows(enum output_style style)
{
    return style != OUTPUT_NO_CALLS && style != OUTPUT_PYTHONIC;
}

static const json_t *function_of(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");

    return json_is_object(f) ? f : tool;
}

static bool is_strict(const json_t *tool)
{
    return json_is_true(json_object_get(tool, "strict")) || json_is_true(json_object_get(function_of(tool), "strict"));
}

bool tool_grammar_is_strict(const json_t *tools)
{
    const json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool) if (is_strict(tool)) return true;
    return false;
}

/* A marker: the special token of this text, where the vocabulary has one. */
static grammar_node marker(struct grammar_builder *b, const struct tool_grammar *g, const char *s)
{
    int32_t token = g->tokens ? g->tokens->token_of(g->tokens->arg, s, strlen(s)) : -1;

    return token >= 0 ? grammar_token(b, token) : grammar_word(b, s);
}

/* Any text in which `end` does not stand. */
static grammar_node text_without(struct grammar_builder *b, const char *end)
{
    grammar_node any = grammar_repeat(b, grammar_class(b, NULL, 0, true), 0, GRAMMAR_UNBOUNDED);

    return grammar_except(b, any, grammar_three(b, any, grammar_word(b, end), any));
}

/* ---- arguments ---- */

static const json_t *schema_of(const json_t *f)
{
    const json_t *schema = json_object_get(f, "parameters");

    return schema ? schema : json_object_get(f, "input_schema");
}

/* Whether the schema can be a grammar, without harm to the builder that is at work, and within its time. */
static bool is_known(struct grammar_builder *b, const json_t *schema)
{
    const struct grammar_limits left = grammar_limits_left(b);
    struct grammar_builder *probe = NULL;
    bool known = false;

    if (!grammar_has_time(b) || grammar_builder_create(&left, &probe) != RD_OK) return false;
    if (grammar_from_schema(probe, schema, &plain)) known = grammar_status(probe, NULL) == RD_OK;
    if (grammar_worked_out(probe)) grammar_has_time(b); /* nor has b: what is known does not depend on the time */
    grammar_builder_destroy(probe);
    return known;
}

static grammar_node arguments_as(struct grammar_builder *b, const json_t *tool, const struct schema_options *o)
{
    const json_t *schema = schema_of(function_of(tool));

    if (!json_is_object(schema) || json_object_size(schema) == 0) return grammar_json_object(b, o);
    if (!is_strict(tool) && !is_known(b, schema)) return grammar_json_object(b, o);
    return grammar_from_schema(b, schema, o);
}

static grammar_node arguments(struct grammar_builder *b, const json_t *tool)
{
    return arguments_as(b, tool, &plain);
}

/* ---- one call of a tool, by style ---- */

/* The name as JSON. */
static grammar_node quoted(struct grammar_builder *b, const json_t *name)
{
    json_t *schema = json_pack("{s:O}", "const", name);
    grammar_node n = 0;

    if (schema)
        n = grammar_from_schema(b, schema, &plain);
    else
        grammar_fail(b, RD_E_NOMEM, "out of memory");
    json_decref(schema);
    return n;
}

static grammar_node json_call(struct grammar_builder *b, const json_t *tool, const char *key)
{
    const grammar_node parts[] = {grammar_word(b, "{\"name\": "),
                                  quoted(b, json_object_get(function_of(tool), "name")),
                                  grammar_word(b, ", \""),
                                  grammar_word(b, key),
                                  grammar_word(b, "\": "),
                                  arguments(b, tool),
                                  grammar_word(b, "}")};

    return grammar_seq(b, parts, sizeof(parts) / sizeof(parts[0]));
}

static bool is_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");

    return !type || (json_is_string(type) && strcmp(json_string_value(type), "string") == 0);
}

static grammar_node xml_value(struct grammar_builder *b, const json_t *schema, bool strict)
{
    const json_t *choices = json_object_get(schema, "enum");

    if (is_text(schema)) return choices ? grammar_from_choice(b, choices) : text_without(b, "</parameter>");
    return strict || is_known(b, schema) ? grammar_from_schema(b, schema, &plain) : grammar_json_value(b, &plain);
}

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *name;
    size_t i;

    json_array_foreach(json_object_get(schema, "required"), i,
                       name) if (json_is_string(name) && strcmp(json_string_value(name), key) == 0) return true;
    return false;
}

static grammar_node xml_call(struct grammar_builder *b, const json_t *tool)
{
    const json_t *f = function_of(tool), *schema = schema_of(f), *property;
    grammar_node parts[MAX_PROPERTIES + 2];
    uint32_t n = 0;
    const char *key;

    parts[n++] = grammar_three(b, grammar_word(b, "<function="),
                               grammar_word(b, json_string_value(json_object_get(f, "name"))), grammar_word(b, ">\n"));
    json_object_foreach((json_t *)(uintptr_t)json_object_get(schema, "properties"), key, property)
    {
        grammar_node open =
            grammar_three(b, grammar_word(b, "<parameter="), grammar_word(b, key), grammar_word(b, ">\n"));
        grammar_node whole =
            grammar_three(b, open, xml_value(b, property, is_strict(tool)), grammar_word(b, "\n</parameter>\n"));

        if (n == MAX_PROPERTIES + 1) {
            grammar_fail(b, RD_E_INVALID, "tools: more than %u properties", MAX_PROPERTIES);
            return 0;
        }
        parts[n++] = is_required(schema, key) ? whole : grammar_maybe(b, whole);
    }
    parts[n++] = grammar_word(b, "</function>");
    return grammar_seq(b, parts, n);
}

static grammar_node one_call(struct grammar_builder *b, const struct tool_grammar *g, const json_t *tool)
{
    const char *name = json_string_value(json_object_get(function_of(tool), "name"));

    switch (g->style) {
    case OUTPUT_QWEN_XML:
        return xml_call(b, tool);
    case OUTPUT_LLAMA_JSON:
        return json_call(b, tool, "parameters");
    case OUTPUT_MISTRAL:
        if (!strstr(g->template_source, "[ARGS]")) return json_call(b, tool, "arguments");
        return grammar_three(b, grammar_word(b, name), marker(b, g, "[ARGS]"), arguments(b, tool));
    case OUTPUT_DEEPSEEK:
        if (!strstr(g->template_source, "```json"))
            return grammar_three(b, grammar_word(b, name), marker(b, g, "<｜tool▁sep｜>"), arguments(b, tool));
        return grammar_three(
            b, grammar_three(b, grammar_word(b, "function"), marker(b, g, "<｜tool▁sep｜>"), grammar_word(b, name)),
            grammar_word(b, "\n```json\n"), grammar_pair(b, arguments(b, tool), grammar_word(b, "\n```")));
    default:
        return json_call(b, tool, "arguments");
    }
}

static bool is_wanted(const struct tool_grammar *g, const json_t *tool)
{
    const char *name = json_string_value(json_object_get(function_of(tool), "name"));

    return name && (!g->name || !*g->name || strcmp(name, g->name) == 0);
}

static grammar_node any_call(struct grammar_builder *b, const struct tool_grammar *g)
{
    grammar_node tools = grammar_nothing(b);
    const json_t *tool;
    size_t i;

    json_array_foreach(g->tools, i, tool)
    {
        if (is_wanted(g, tool)) tools = grammar_either(b, tools, one_call(b, g, tool));
    }
    return tools;
}

/* ---- what stands around calls ---- */

/* first, or first and again whatever times. */
static grammar_node several(struct grammar_builder *b, const struct tool_grammar *g, grammar_node first,
                            grammar_node again)
{
    return g->single ? first : grammar_pair(b, first, grammar_repeat(b, again, 0, GRAMMAR_UNBOUNDED));
}

grammar_node tool_grammar_calls(struct grammar_builder *b, const struct tool_grammar *g)
{
    grammar_node call = any_call(b, g), whole;

    switch (g->style) {
    case OUTPUT_LLAMA_JSON:
        return call;
    case OUTPUT_MISTRAL:
        if (strstr(g->template_source, "[ARGS]")) {
            whole = grammar_pair(b, marker(b, g, "[TOOL_CALLS]"), call);
            return several(b, g, whole, whole);
        }
        call = several(b, g, call, grammar_pair(b, grammar_word(b, ", "), call));
        return grammar_pair(b, marker(b, g, "[TOOL_CALLS]"),
                            grammar_three(b, grammar_word(b, "["), call, grammar_word(b, "]")));
    case OUTPUT_DEEPSEEK:
        whole = grammar_three(b, marker(b, g, "<｜tool▁call▁begin｜>"), call, marker(b, g, "<｜tool▁call▁end｜>"));
        whole = several(b, g, whole, grammar_pair(b, grammar_maybe(b, grammar_word(b, "\n")), whole));
        return grammar_three(b, marker(b, g, "<｜tool▁calls▁begin｜>"), whole, marker(b, g, "<｜tool▁calls▁end｜>"));
    default:
        whole = grammar_three(b, grammar_three(b, marker(b, g, "<tool_call>"), grammar_word(b, "\n"), call),
                              grammar_word(b, "\n"), marker(b, g, "</tool_call>"));
        return several(b, g, whole, grammar_pair(b, grammar_word(b, "\n"), whole));
    }
}

/* ---- calls as the prompt shows them ---- */

#define LEAD_MAX  200u                   /* characters before a call */
#define STOPS_MAX 8u                     /* stop strings that are kept out of them, */
#define STOP_MAX  64u                    /* and bytes of each */

static const struct schema_options loose = {JSON_SPACES_ANY};

static grammar_node gap(struct grammar_builder *b)
{
    const struct grammar_range blanks[] = {{' ', ' '}, {'\n', '\n'}};

    return grammar_repeat(b, grammar_class(b, blanks, 2, false), 0, 12);
}

/* {"name": "f", "arguments": {..}}, laid out as the model likes. */
static grammar_node bare_call(struct grammar_builder *b, const json_t *tool)
{
    const grammar_node parts[] = {grammar_word(b, "{"),
                                  gap(b),
                                  grammar_word(b, "\"name\":"),
                                  gap(b),
                                  quoted(b, json_object_get(function_of(tool), "name")),
                                  grammar_word(b, ","),
                                  gap(b),
                                  grammar_word(b, "\"arguments\":"),
                                  gap(b),
                                  arguments_as(b, tool, &loose),
                                  gap(b),
                                  grammar_word(b, "}")};

    return grammar_seq(b, parts, sizeof(parts) / sizeof(parts[0]));
}

/* Nothing in it may begin a call: neither a tag nor a fence nor a brace. */
static grammar_node lead(struct grammar_builder *b, const char *const *stop, uint32_t n_stop)
{
    const struct grammar_range openers[] = {{'<', '<'}, {'`', '`'}, {'{', '{'}};
    grammar_node any = grammar_repeat(b, grammar_class(b, NULL, 0, true), 0, GRAMMAR_UNBOUNDED);
    grammar_node text = grammar_repeat(b, grammar_class(b, openers, 3, true), 0, LEAD_MAX);

    for (uint32_t i = 0; i < n_stop; i++)
        text = grammar_except(b, text, grammar_three(b, any, grammar_word(b, stop[i]), any));
    return text;
}

static bool stops_are_few(const char *const *stop, uint32_t n_stop)
{
    for (uint32_t i = 0; i < n_stop; i++)
        if (strlen(stop[i]) > STOP_MAX) return false;
    return n_stop <= STOPS_MAX;
}

grammar_node tool_grammar_taught(struct grammar_builder *b, const struct tool_grammar *g, const char *const *stop,
                                 uint32_t n_stop)
{
    grammar_node calls = tool_grammar_calls(b, g), bare = grammar_nothing(b), text, begin;
    const json_t *tool;
    size_t i;

    if (g->style != OUTPUT_HERMES || !stops_are_few(stop, n_stop)) return calls;
    json_array_foreach(g->tools, i, tool) if (is_wanted(g, tool)) bare = grammar_either(b, bare, bare_call(b, tool));
    bare = several(b, g, bare, grammar_three(b, grammar_word(b, "\n"), gap(b), bare));
    text = lead(b, stop, n_stop);
    begin = grammar_maybe(b, grammar_pair(b, text, grammar_word(b, "\n")));
    return grammar_either(b, grammar_pair(b, text, calls), grammar_pair(b, begin, bare));
}

grammar_node tool_grammar_free(struct grammar_builder *b, const struct tool_grammar *g)
{
    struct tool_grammar all = *g;
    grammar_node calls;
    const char *begin;

    all.name = NULL;
    calls = tool_grammar_calls(b, &all);
    if (g->style == OUTPUT_LLAMA_JSON) { /* a call is the whole answer, and begins with its brace */
        const struct grammar_range brace = {'{', '{'};
        grammar_node any = grammar_repeat(b, grammar_class(b, NULL, 0, true), 0, GRAMMAR_UNBOUNDED);
        const grammar_node ways[] = {calls, grammar_pair(b, grammar_class(b, &brace, 1, true), any), grammar_empty(b)};

        return grammar_alt(b, ways, 3);
    }
    begin = g->style == OUTPUT_MISTRAL    ? "[TOOL_CALLS]"
            : g->style == OUTPUT_DEEPSEEK ? "<｜tool▁calls▁begin｜>"
                                          : "<tool_call>";
    return grammar_pair(b, text_without(b, begin), grammar_maybe(b, calls));
}
