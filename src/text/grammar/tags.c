/* text/grammar/tags.c - XGrammar's structural tags: free text, and in it tags whose inside is held to a grammar.
 *
 *     {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": ["<function="]}
 *     {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers", "tags": [{"begin", "content", "end"}]}}
 *
 * Free text holds no trigger; where one is written, a tag that begins with it must follow. A begin or end that is a special
 * token of the model is that token.
 */
#include <stdio.h>
#include <string.h>
#include "text/grammar/grammar_languages.h"
#include "text/grammar/node_list.h"
#include "text/grammar/regex.h"

#define MAX_DEPTH 64u /* formats within formats */
#define MAX_TAGS  1024u

struct reader {
    struct grammar_builder *b;
    const struct schema_options *o;
    const struct tag_tokens *tokens;
    bool failed;
};

static grammar_node fail(struct reader *r, rd_status st, const char *path, const char *what)
{
    if (!r->failed) grammar_fail(r->b, st, "%s: %s", path, what);
    r->failed = true;
    return 0;
}

static grammar_node any_char(struct reader *r)
{
    return grammar_class(r->b, NULL, 0, true);
}

static grammar_node any_text(struct reader *r)
{
    return grammar_repeat(r->b, any_char(r), 0, GRAMMAR_UNBOUNDED);
}

/* A text of the tag's frame: special tokens in it by their number. "<tool_call>\n{": a token, then text. */
static grammar_node frame(struct reader *r, const char *s, size_t n)
{
    struct node_list row = {0};
    size_t from = 0;

    for (size_t i = 0; r->tokens && r->tokens->token_of && i < n; i++) {
        const char *end = s[i] == '<' || s[i] == '[' ? memchr(s + i, s[i] == '<' ? '>' : ']', n - i) : NULL;
        size_t len = end ? (size_t)(end - s) + 1 - i : 0;
        int32_t id = len ? r->tokens->token_of(r->tokens->arg, s + i, len) : -1;

        if (id < 0) continue;
        if (i > from) node_list_add(r->b, &row, grammar_text(r->b, s + from, i - from));
        node_list_add(r->b, &row, grammar_token(r->b, id));
        from = i + len;
        i = from - 1;
    }
    if (from < n) node_list_add(r->b, &row, grammar_text(r->b, s + from, n - from));
    return node_list_seq(r->b, &row);
}

/* A string, or a list of them. */
static size_t n_strings(const json_t *v)
{
    return json_is_string(v) ? 1 : json_array_size(v);
}

static const json_t *string_at(const json_t *v, size_t i)
{
    return json_is_string(v) ? v : json_array_get(v, i);
}

/* Any text in which none of the strings of three lists stands; a list may be NULL. */
static grammar_node text_without(struct reader *r, const json_t *some, const json_t *others, const json_t *more)
{
    const json_t *const lists[] = {some, others, more};
    struct node_list met = {0};

    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < n_strings(lists[k]); i++) {
            const json_t *s = string_at(lists[k], i);
            size_t n = json_string_length(s);

            if (n == 0) continue;
            node_list_add(r->b, &met,
                          grammar_three(r->b, any_text(r), grammar_text(r->b, json_string_value(s), n), any_text(r)));
        }
    return met.n ? grammar_except(r->b, any_text(r), node_list_alt(r->b, &met)) : any_text(r);
}

static grammar_node format_node(struct reader *r, const json_t *f, const json_t *ends, const char *path,
                                unsigned depth);

static const json_t *strings_of(struct reader *r, const json_t *f, const char *key, const char *path)
{
    const json_t *v = json_object_get(f, key);
    char at[200];

    snprintf(at, sizeof(at), "%s/%s", path, key);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)) || json_string_length(json_array_get(v, i)) == 0) v = NULL;
    if (json_array_size(v) == 0) fail(r, RD_E_INVALID, at, "wanted a list of strings that are not empty");
    return v;
}

static grammar_node tag_node(struct reader *r, const json_t *tag, const char *path, unsigned depth)
{
    const json_t *begin = json_object_get(tag, "begin"), *content = json_object_get(tag, "content");
    const json_t *ends = json_object_get(tag, "end");
    struct node_list closing = {0};
    char at[200];
    grammar_node inner;

    if (!json_is_string(begin) || !ends) return fail(r, RD_E_INVALID, path, "a tag has begin, content and end");
    if (content) {
        snprintf(at, sizeof(at), "%s/content", path);
        inner = format_node(r, content, ends, at, depth + 1);
    } else { /* the older form */
        const json_t *schema = json_object_get(tag, "schema");

        inner = schema ? grammar_from_schema(r->b, schema, r->o)
                       : fail(r, RD_E_INVALID, path, "a tag without content or schema");
    }
    for (size_t i = 0; i < n_strings(ends); i++) {
        const json_t *end = string_at(ends, i);

        if (!json_is_string(end))
            fail(r, RD_E_INVALID, path, "end: wanted strings");
        else
            node_list_add(r->b, &closing, frame(r, json_string_value(end), json_string_length(end)));
    }
    if (n_strings(ends) == 0) fail(r, RD_E_INVALID, path, "end: wanted a string");
    return grammar_three(r->b, frame(r, json_string_value(begin), json_string_length(begin)), inner,
                         node_list_alt(r->b, &closing));
}

/* All tags as alternatives. triggers: each tag begins with one of them; NULL: none are asked for. */
static grammar_node tag_nodes(struct reader *r, const json_t *tags, const json_t *triggers, const char *path,
                              unsigned depth)
{
    struct node_list ways = {0};
    size_t n = json_array_size(tags);

    if (n == 0 || n > MAX_TAGS) return fail(r, RD_E_INVALID, path, "wanted a list of 1 to 1024 tags");
    for (size_t i = 0; i < n && !r->failed; i++) {
        const json_t *tag = json_array_get(tags, i), *begin = json_object_get(tag, "begin");
        bool triggered = !triggers;
        char at[200];

        snprintf(at, sizeof(at), "%.150s/%zu", path, i);
        for (size_t k = 0; k < json_array_size(triggers) && json_is_string(begin); k++) {
            const json_t *t = json_array_get(triggers, k);
            size_t len = json_string_length(t);

            triggered |=
                len <= json_string_length(begin) && memcmp(json_string_value(begin), json_string_value(t), len) == 0;
        }
        if (!triggered) fail(r, RD_E_INVALID, at, "begins with none of the triggers");
        node_list_add(r->b, &ways, tag_node(r, tag, at, depth));
    }
    return node_list_alt(r->b, &ways);
}

/* text (tag text)*; the text after it is ended by `ends`, too. */
static grammar_node triggered(struct reader *r, const json_t *tags, const json_t *f, const json_t *ends,
                              const char *path, unsigned depth)
{
    const json_t *triggers = strings_of(r, f, "triggers", path), *excludes = json_object_get(f, "excludes");
    bool one = json_is_true(json_object_get(f, "at_least_one")),
         stop = json_is_true(json_object_get(f, "stop_after_first"));
    grammar_node text, tag, more;

    if (r->failed) return 0;
    text = text_without(r, triggers, ends, excludes);
    tag = tag_nodes(r, tags, triggers, path, depth);
    if (r->failed) return 0;
    if (stop) {
        more = grammar_pair(r->b, text, tag);
        return one ? tag : grammar_either(r->b, more, text);
    }
    more = grammar_repeat(r->b, grammar_pair(r->b, tag, text), one ? 1 : 0, GRAMMAR_UNBOUNDED);
    return one ? more : grammar_pair(r->b, text, more);
}

static grammar_node separated(struct reader *r, const json_t *f, const char *path, unsigned depth)
{
    const json_t *separator = json_object_get(f, "separator");
    bool one = json_is_true(json_object_get(f, "at_least_one")),
         stop = json_is_true(json_object_get(f, "stop_after_first"));
    grammar_node tag = tag_nodes(r, json_object_get(f, "tags"), NULL, path, depth), node;

    if (!json_is_string(separator)) return fail(r, RD_E_INVALID, path, "separator: wanted a string");
    node = stop
               ? tag
               : grammar_pair(
                     r->b, tag,
                     grammar_repeat(
                         r->b,
                         grammar_pair(r->b, frame(r, json_string_value(separator), json_string_length(separator)), tag),
                         0, GRAMMAR_UNBOUNDED));
    return one ? node : grammar_maybe(r->b, node);
}

static grammar_node elements(struct reader *r, const json_t *f, const json_t *ends, const char *path, unsigned depth,
                             bool seq)
{
    const json_t *list = json_object_get(f, "elements");
    struct node_list parts = {0};

    if (json_array_size(list) == 0) return fail(r, RD_E_INVALID, path, "elements: wanted a list of formats");
    for (size_t i = 0; i < json_array_size(list) && !r->failed; i++) {
        bool last = !seq || i + 1 == json_array_size(list);
        char at[200];

        snprintf(at, sizeof(at), "%.150s/elements/%zu", path, i);
        node_list_add(r->b, &parts, format_node(r, json_array_get(list, i), last ? ends : NULL, at, depth + 1));
    }
    return seq ? node_list_seq(r->b, &parts) : node_list_alt(r->b, &parts);
}

static grammar_node repeated(struct reader *r, const json_t *f, const char *path, unsigned depth, uint32_t min,
                             uint32_t max)
{
    const json_t *content = json_object_get(f, "content");
    grammar_node node = format_node(r, content, NULL, path, depth + 1);

    return r->failed ? 0 : grammar_repeat(r->b, node, min, max);
}

/* ends: the strings that end the text around; free text must not hold them. May be NULL. */
static grammar_node format_node(struct reader *r, const json_t *f, const json_t *ends, const char *path, unsigned depth)
{
    const char *type = json_string_value(json_object_get(f, "type"));
    const json_t *v;
    char where[220];

    if (depth > MAX_DEPTH) return fail(r, RD_E_INVALID, path, "formats nested too deeply");
    if (!type) return fail(r, RD_E_INVALID, path, "wanted an object with a type");
    snprintf(where, sizeof(where), "%s: ", path);
    if (strcmp(type, "const_string") == 0) {
        v = json_object_get(f, "value");
        return json_is_string(v) ? frame(r, json_string_value(v), json_string_length(v))
                                 : fail(r, RD_E_INVALID, path, "value: wanted a string");
    }
    if (strcmp(type, "json_schema") == 0) {
        v = json_object_get(f, "json_schema");
        if (json_object_get(f, "style") &&
            strcmp(json_string_value(json_object_get(f, "style")) ? json_string_value(json_object_get(f, "style")) : "",
                   "json") != 0)
            return fail(r, RD_E_UNSUPPORTED, path, "style: only json");
        return v ? grammar_from_schema(r->b, v, r->o) : fail(r, RD_E_INVALID, path, "json_schema: wanted a schema");
    }
    if (strcmp(type, "regex") == 0) {
        v = json_object_get(f, "pattern");
        if (!json_is_string(v)) return fail(r, RD_E_INVALID, path, "pattern: wanted a string");
        return regex_node(r->b, json_string_value(v), json_string_length(v), REGEX_WHOLE, where);
    }
    if (strcmp(type, "grammar") == 0) {
        v = json_object_get(f, "grammar");
        if (!json_is_string(v)) return fail(r, RD_E_INVALID, path, "grammar: wanted a string");
        return grammar_from_ebnf(r->b, json_string_value(v), json_string_length(v));
    }
    if (strcmp(type, "any_text") == 0) return text_without(r, ends, json_object_get(f, "excludes"), NULL);
    if (strcmp(type, "sequence") == 0) return elements(r, f, ends, path, depth, true);
    if (strcmp(type, "or") == 0) return elements(r, f, ends, path, depth, false);
    if (strcmp(type, "tag") == 0) return tag_node(r, f, path, depth);
    if (strcmp(type, "triggered_tags") == 0) return triggered(r, json_object_get(f, "tags"), f, ends, path, depth);
    if (strcmp(type, "tags_with_separator") == 0) return separated(r, f, path, depth);
    if (strcmp(type, "optional") == 0) return repeated(r, f, path, depth, 0, 1);
    if (strcmp(type, "star") == 0) return repeated(r, f, path, depth, 0, GRAMMAR_UNBOUNDED);
    if (strcmp(type, "plus") == 0) return repeated(r, f, path, depth, 1, GRAMMAR_UNBOUNDED);
    if (!r->failed) grammar_fail(r->b, RD_E_UNSUPPORTED, "%s/type: radish does not know the format %.60s", path, type);
    r->failed = true;
    return 0;
}

grammar_node grammar_from_tags(struct grammar_builder *b, const json_t *tag, const struct schema_options *o,
                               const struct tag_tokens *t)
{
    struct reader r = {.b = b, .o = o, .tokens = t};
    const json_t *format = json_object_get(tag, "format"), *structures = json_object_get(tag, "structures");
    grammar_node node;

    if (format)
        node = format_node(&r, format, NULL, "#/format", 0);
    else if (structures)
        node = triggered(&r, structures, tag, NULL, "#/structures", 0);
    else
        node = fail(&r, RD_E_INVALID, "#",
                    "wanted {\"type\": \"structural_tag\", \"format\": ..} or \"structures\" and \"triggers\"");
    return r.failed ? 0 : node;
}
