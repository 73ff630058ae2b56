/* text/output/tool_grammar.c - see the header: markers around names and arguments, style by style. */
#include "text/output/tool_grammar.h"
#include <stdio.h>
#include <string.h>
#include "text/grammar/node_list.h"
#include "text/output/output_openers.h"

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

static uint32_t count_of(const json_t *schema, const char *keyword, uint32_t otherwise)
{
    const json_int_t n = json_integer_value(json_object_get(schema, keyword));

    if (!json_is_integer(json_object_get(schema, keyword)) || n < 0) return otherwise;
    return n < GRAMMAR_UNBOUNDED ? (uint32_t)n : GRAMMAR_UNBOUNDED - 1;
}

/* A string as it stands between tags, without quotes. */
static grammar_node xml_text(struct grammar_builder *b, const json_t *schema)
{
    const json_t *value = json_object_get(schema, "const"), *pattern = json_object_get(schema, "pattern");
    const uint32_t min = count_of(schema, "minLength", 0), max = count_of(schema, "maxLength", GRAMMAR_UNBOUNDED);
    grammar_node text = text_without(b, "</parameter>");

    if (json_object_get(schema, "enum")) return grammar_from_choice(b, json_object_get(schema, "enum"));
    if (json_is_string(value)) return grammar_text(b, json_string_value(value), json_string_length(value));
    if (json_is_string(pattern))
        text =
            grammar_both(b, text, grammar_from_regex(b, json_string_value(pattern), json_string_length(pattern), true));
    if (min || max != GRAMMAR_UNBOUNDED)
        text = grammar_both(b, text, grammar_repeat(b, grammar_class(b, NULL, 0, true), min, max));
    return text;
}

static grammar_node xml_value(struct grammar_builder *b, const json_t *schema, bool strict)
{
    if (is_text(schema)) return xml_text(b, schema);
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

#define LEAD_MAX  200u /* characters before a call */
#define STOPS_MAX 8u   /* stop strings that are kept out of them, */
#define STOP_MAX  64u  /* and bytes of each */

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

/* ---- calls where the model begins one ---- */

static grammar_node any_text(struct grammar_builder *b)
{
    return grammar_repeat(b, grammar_class(b, NULL, 0, true), 0, GRAMMAR_UNBOUNDED);
}

static grammar_node spaces(struct grammar_builder *b)
{
    const struct grammar_range blanks[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};

    return grammar_repeat(b, grammar_class(b, blanks, 3, false), 0, GRAMMAR_UNBOUNDED);
}

/* "key": or "other":, and space behind it. */
static grammar_node key(struct grammar_builder *b, const char *one, const char *other, grammar_node space)
{
    const grammar_node name = grammar_either(b, grammar_word(b, one), grammar_word(b, other));
    const grammar_node parts[] = {grammar_word(b, "\""), name, grammar_word(b, "\""), space,
                                  grammar_word(b, ":"),  space};

    return grammar_seq(b, parts, sizeof(parts) / sizeof(parts[0]));
}

/* "type": "function", which may stand before the name. */
static grammar_node type_member(struct grammar_builder *b, grammar_node space)
{
    const grammar_node parts[] = {key(b, "type", "type", space), grammar_word(b, "\"function\""), space,
                                  grammar_word(b, ","), space};

    return grammar_seq(b, parts, sizeof(parts) / sizeof(parts[0]));
}

static grammar_node braced(struct grammar_builder *b, const char *open, grammar_node inside, const char *close)
{
    const grammar_node parts[] = {grammar_word(b, open), gap(b), inside, gap(b), grammar_word(b, close)};

    return grammar_seq(b, parts, sizeof(parts) / sizeof(parts[0]));
}

/* The call as an object, in all the ways that output_json.c reads: members in any order and under all their names, in a
 * member "function" or not, either pair of braces doubled. */
static grammar_node loose_call(struct grammar_builder *b, const json_t *tool)
{
    const grammar_node object = arguments_as(b, tool, &loose);
    const grammar_node name =
        grammar_pair(b, key(b, "name", "function", gap(b)), quoted(b, json_object_get(function_of(tool), "name")));
    const grammar_node arguments =
        grammar_pair(b, key(b, "arguments", "parameters", gap(b)),
                     grammar_either(b, object, grammar_three(b, grammar_word(b, "{"), object, grammar_word(b, "}"))));
    const grammar_node comma = grammar_three(b, gap(b), grammar_word(b, ","), gap(b));
    const grammar_node members =
        grammar_either(b, grammar_three(b, name, comma, arguments), grammar_three(b, arguments, comma, name));
    const grammar_node nested = grammar_pair(b, key(b, "function", "function", gap(b)), braced(b, "{", members, "}"));
    const grammar_node inside =
        grammar_pair(b, grammar_maybe(b, type_member(b, gap(b))), grammar_either(b, members, nested));

    return grammar_either(b, braced(b, "{", inside, "}"), braced(b, "{{", inside, "}}"));
}

/* Calls as they stand behind a line's end: bare, or in a fence. */
static grammar_node line_calls(struct grammar_builder *b, const struct tool_grammar *g)
{
    grammar_node call = grammar_nothing(b), calls, list, fenced, close;
    const json_t *tool;
    size_t i;

    json_array_foreach(g->tools, i, tool) if (is_wanted(g, tool)) call = grammar_either(b, call, loose_call(b, tool));
    calls = several(b, g, call, grammar_three(b, grammar_word(b, "\n"), gap(b), call));
    list = several(b, g, call, grammar_three(b, gap(b), grammar_word(b, ","), grammar_pair(b, gap(b), call)));
    close = grammar_maybe(b, grammar_pair(b, gap(b), grammar_word(b, "```")));
    fenced = grammar_either(
        b, grammar_three(b, grammar_word(b, "```json"), gap(b), grammar_either(b, calls, braced(b, "[", list, "]"))),
        grammar_three(b, grammar_word(b, "```\n"), gap(b), calls));
    return grammar_either(b, calls, grammar_pair(b, fenced, close));
}

static grammar_node names(struct grammar_builder *b, const struct tool_grammar *g)
{
    grammar_node all = grammar_nothing(b);
    const json_t *tool;
    size_t i;

    json_array_foreach(g->tools, i, tool)
    {
        const char *name = json_string_value(json_object_get(function_of(tool), "name"));

        if (name) all = grammar_either(b, all, grammar_word(b, name));
    }
    return all;
}

/* What an object begins with that is read as a call: the name of a tool, or arguments. */
static grammar_node call_head(struct grammar_builder *b, const struct tool_grammar *g)
{
    const grammar_node space = spaces(b);
    const grammar_node name = grammar_three(b, key(b, "name", "function", space), grammar_word(b, "\""),
                                            grammar_pair(b, names(b, g), grammar_word(b, "\"")));
    const grammar_node nest = grammar_three(b, key(b, "function", "function", space), grammar_word(b, "{"), space);
    const grammar_node parts[] = {grammar_word(b, "{"),
                                  grammar_maybe(b, grammar_word(b, "{")),
                                  space,
                                  grammar_repeat(b, type_member(b, space), 0, GRAMMAR_UNBOUNDED),
                                  grammar_maybe(b, nest),
                                  grammar_either(b, name, key(b, "arguments", "parameters", space))};

    return grammar_seq(b, parts, sizeof(parts) / sizeof(parts[0]));
}

/* [name( as Python has it. */
static grammar_node python_head(struct grammar_builder *b, const struct tool_grammar *g)
{
    const grammar_node parts[] = {grammar_word(b, "["), spaces(b), names(b, g), spaces(b), grammar_word(b, "(")};

    return grammar_seq(b, parts, sizeof(parts) / sizeof(parts[0]));
}

static bool has_opener(enum output_style style, enum output_head head, enum output_place place)
{
    const struct output_opener *o = output_style_openers(style);

    while (o->text && (o->head != head || o->place != place)) o++;
    return o->text != NULL;
}

/* Where openers may stand that are none in the middle of a line. */
static grammar_node line_begin(struct grammar_builder *b)
{
    return grammar_either(b, spaces(b), grammar_three(b, any_text(b), grammar_word(b, "\n"), spaces(b)));
}

/* Text in which the parser of outputs finds no call. */
static grammar_node text_without_calls(struct grammar_builder *b, const struct tool_grammar *g)
{
    grammar_node any = any_text(b), bad = grammar_nothing(b), fence;

    for (const struct output_opener *o = output_style_openers(g->style); o->text; o++)
        if (o->place == ANYWHERE) bad = grammar_either(b, bad, grammar_pair(b, any, grammar_word(b, o->text)));
    if (has_opener(g->style, HEAD_JSON, AT_LINE)) {
        fence = grammar_three(b, grammar_word(b, "```json"), spaces(b),
                              grammar_maybe(b, grammar_pair(b, grammar_word(b, "["), spaces(b))));
        bad = grammar_either(b, bad, grammar_three(b, line_begin(b), grammar_maybe(b, fence), call_head(b, g)));
    }
    if (has_opener(g->style, HEAD_PY_LIST, AT_START))
        bad = grammar_either(b, bad, grammar_pair(b, spaces(b), python_head(b, g)));
    return grammar_except(b, any, grammar_pair(b, bad, any));
}

/* Between the tags of any name that the parser knows. */
static grammar_node tagged_calls(struct grammar_builder *b, const struct tool_grammar *g)
{
    grammar_node call = any_call(b, g), whole = grammar_nothing(b);

    if (has_opener(g->style, HEAD_XML, ANYWHERE)) whole = call;
    for (const struct output_opener *o = output_style_openers(g->style); o->text; o++) {
        char close[32];

        if (o->head != HEAD_TAG) continue;
        snprintf(close, sizeof(close), "</%s", o->text + 1);
        whole = grammar_either(b, whole,
                               grammar_three(b, marker(b, g, o->text),
                                             grammar_three(b, grammar_word(b, "\n"), call, grammar_word(b, "\n")),
                                             marker(b, g, close)));
    }
    return several(b, g, whole, grammar_pair(b, grammar_word(b, "\n"), whole));
}

grammar_node tool_grammar_free(struct grammar_builder *b, const struct tool_grammar *g)
{
    struct tool_grammar all = *g;
    grammar_node text, ways;

    all.name = NULL;
    text = text_without_calls(b, &all);
    ways = grammar_pair(b, text,
                        grammar_maybe(b, has_opener(g->style, HEAD_TAG, ANYWHERE) ? tagged_calls(b, &all)
                                                                                  : tool_grammar_calls(b, &all)));
    if (has_opener(g->style, HEAD_JSON, AT_LINE))
        ways = grammar_either(b, ways, grammar_pair(b, grammar_both(b, text, line_begin(b)), line_calls(b, &all)));
    return ways;
}
