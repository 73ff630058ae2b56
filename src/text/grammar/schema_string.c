/* text/grammar/schema_string.c - strings: length, patterns, formats, exceptions. */
#include <stdio.h>
#include <string.h>
#include "text/grammar/regex.h"
#include "text/grammar/schema_state.h"

#define YEAR "[1-9][0-9]{3}"
#define LEAP "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"              \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
#define TIME  CLOCK "(?:Z|[-+](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,24}"
#define HOST  LABEL "(?:\\." LABEL "){0,4}" /* 249 characters at most; no "--", which punycode has */
#define BYTE  "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4  BYTE "(?:\\." BYTE "){3}"
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16            \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16      \
    ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16   \
    "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define PCHAR "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define QUERY "(?:" PCHAR "|[/?])*"
#define AUTH  "(?:(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*@)?(?:" HOST "|\\[" IPV6 "\\])(?::[0-9]{1,5})?"
#define URI                                                                                                            \
    "[a-zA-Z][a-zA-Z0-9+.-]*:(?://" AUTH "(?:/" PCHAR "*)*|/?" PCHAR "+(?:/" PCHAR "*)*)(?:\\?" QUERY ")?(?:#" QUERY   \
    ")?"
#define REFER                                                                                                          \
    "(?:" URI "|(?:/" PCHAR "+|(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+|/)?(?:/" PCHAR "*)*(?:\\?" QUERY       \
    ")?(?:#" QUERY ")?)"
#define POINT  "(?:/(?:[^/~\\x00-\\x1f]|~[01])*)*"
#define ATOM   "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define D_TIME "T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)"
#define D_DATE "(?:[0-9]{1,6}D|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,4}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?)"

const char *schema_format(const char *name, bool *no_string)
{
    static const struct {
        const char *name, *regex;
    } known[] = {{"date", DATE},
                 {"time", TIME},
                 {"date-time", DATE "T" TIME},
                 {"email", ATOM "(?:\\." ATOM ")*@" HOST},
                 {"idn-email", ATOM "(?:\\." ATOM ")*@" HOST},
                 {"hostname", HOST},
                 {"idn-hostname", HOST},
                 {"ipv4", IPV4},
                 {"ipv6", IPV6},
                 {"uuid", "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"},
                 {"uri", URI},
                 {"iri", URI},
                 {"url", "https?://" HOST "(?::[0-9]{1,5})?(?:/" PCHAR "*)*(?:\\?" QUERY ")?(?:#" QUERY ")?"},
                 {"uri-reference", REFER},
                 {"iri-reference", REFER},
                 {"duration", "P(?:" D_DATE "(?:" D_TIME ")?|" D_TIME "|[0-9]{1,6}W)"},
                 {"json-pointer", POINT},
                 {"relative-json-pointer", "(?:0|[1-9][0-9]{0,8})(?:#|" POINT ")"},
                 {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"}};
    static const char *const of_others[] = {"int32",   "int64",    "uint32", "uint64",   "float",      "double",
                                            "decimal", "password", "binary", "textarea", "color-text", NULL};

    *no_string = false;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (strcmp(name, known[i].name) == 0) return known[i].regex;
    for (size_t i = 0; of_others[i]; i++) *no_string |= strcmp(name, of_others[i]) == 0;
    return NULL;
}

struct wanted {
    struct schema_state *s;
    uint32_t min, max;
    grammar_node text; /* 0: any characters so far; canonical and regular */
};

static void narrow(struct wanted *w, grammar_node node)
{
    w->text = w->text ? grammar_both(w->s->b, w->text, node) : node;
}

static grammar_node any_plain(struct schema_state *s, uint32_t min, uint32_t max)
{
    return grammar_repeat(s->b, json_form_plain_char(&s->forms), min, max);
}

static void except(struct wanted *w, grammar_node node)
{
    if (!w->text) w->text = any_plain(w->s, 0, GRAMMAR_UNBOUNDED);
    w->text = grammar_except(w->s->b, w->text, node);
}

static grammar_node pattern_of(struct schema_state *s, const json_t *schema, const char *keyword, const json_t *pattern)
{
    char path[300], where[400];

    if (!json_is_string(pattern)) return schema_fail(s, schema, keyword, RD_E_INVALID, "wanted a regular expression");
    schema_path(s, schema, path, sizeof(path));
    snprintf(where, sizeof(where), "%s/%s: ", path, keyword);
    return regex_node(s->b, json_string_value(pattern), json_string_length(pattern), REGEX_SEARCHED | REGEX_JSON,
                      where);
}

static void take_format(struct wanted *w, const json_t *schema, const json_t *format)
{
    const char *name = json_string_value(format), *regex;
    unsigned types = schema_own_types(w->s, schema);
    bool no_string;

    if (!name) {
        schema_fail(w->s, schema, "format", RD_E_INVALID, "wanted a string");
        return;
    }
    regex = schema_format(name, &no_string);
    if (regex)
        narrow(w, regex_node(w->s->b, regex, strlen(regex), REGEX_WHOLE | REGEX_JSON, "format: "));
    else if (!no_string && (types & TYPE_STRING))
        schema_fail(w->s, schema, "format", RD_E_UNSUPPORTED, "a format that radish does not know: %.60s", name);
}

static void take_schema(struct wanted *w, const json_t *schema)
{
    struct schema_state *s = w->s;
    const json_t *v, *values = json_object_get(schema, SCHEMA_EXCEPT);
    struct node_list others = {0};
    uint32_t n;

    if (schema_count(s, schema, "minLength", &n) && n > w->min) w->min = n;
    if (schema_count(s, schema, "maxLength", &n) && n < w->max) w->max = n;
    if ((v = json_object_get(schema, "pattern"))) narrow(w, pattern_of(s, schema, "pattern", v));
    if ((v = json_object_get(schema, "format"))) take_format(w, schema, v);
    if ((v = json_object_get(schema, SCHEMA_NO_MATCH)))
        except(w, pattern_of(s, schema, "not/pattern", json_array_get(v, 0)));
    for (size_t i = 0; i < json_array_size(values); i++) {
        v = json_array_get(values, i);
        if (json_is_string(v))
            node_list_add(s->b, &others,
                          json_form_canonical_text(&s->forms, json_string_value(v), json_string_length(v)));
    }
    if (others.n) except(w, node_list_alt(s->b, &others));
}

/* The inside of the leaf's strings; canonical: also where nothing needs it. */
static grammar_node inside(struct schema_state *s, const struct conj *leaf, bool canonical)
{
    struct wanted w = {.s = s, .max = GRAMMAR_UNBOUNDED};

    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]);

        if (schema) take_schema(&w, schema);
    }
    if (w.min > w.max) return grammar_nothing(s->b);
    if (!w.text)
        return canonical ? any_plain(s, w.min, w.max)
                         : grammar_repeat(s->b, json_form_free_char(&s->forms), w.min, w.max);
    if (w.min > 0 || w.max != GRAMMAR_UNBOUNDED) narrow(&w, any_plain(s, w.min, w.max));
    return w.text;
}

grammar_node schema_string(struct schema_state *s, const struct conj *leaf)
{
    static const char *const words[] = {"minLength", "maxLength", "pattern", "format", SCHEMA_NO_MATCH, SCHEMA_EXCEPT};
    bool limited = false;

    for (size_t i = 0; i < leaf->n; i++)
        for (size_t k = 0; k < sizeof(words) / sizeof(*words); k++)
            limited |= json_object_get(schema_keywords(&leaf->v[i]), words[k]) != NULL;
    return limited ? json_form_quotes(&s->forms, inside(s, leaf, false)) : json_form_string(&s->forms);
}

struct names {
    struct schema_state *s;
    struct node_list nodes;
};

static bool add_names(void *arg, const struct conj *leaf)
{
    struct names *n = arg;
    struct schema_state *s = n->s;
    json_t *listed = schema_listed(s, leaf);

    for (size_t i = 0; i < json_array_size(listed); i++) {
        const json_t *v = json_array_get(listed, i);

        if (json_is_string(v))
            node_list_add(s->b, &n->nodes,
                          json_form_canonical_text(&s->forms, json_string_value(v), json_string_length(v)));
    }
    if (!listed && (schema_types(s, leaf) & TYPE_STRING)) node_list_add(s->b, &n->nodes, inside(s, leaf, true));
    json_decref(listed);
    return !s->failed;
}

grammar_node schema_names(struct schema_state *s, const struct conj *c)
{
    struct names n = {.s = s};

    schema_expand(s, c, add_names, &n);
    return node_list_alt(s->b, &n.nodes);
}
