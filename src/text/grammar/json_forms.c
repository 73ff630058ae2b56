/* text/grammar/json_forms.c - JSON's own grammar, and texts of given values. */
#include "text/grammar/json_forms.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/json_number.h"
#include "base/utf8.h"
#include "text/grammar/char_set.h"
#include "text/grammar/node_list.h"
#include "text/grammar/regex.h"

#define MAX_SPACES 24u /* in one place, with JSON_SPACES_ANY */

enum {
    SPACE,
    COMMA,
    COLON,
    FREE_CHAR,
    PLAIN_CHAR,
    NAME_CHAR,
    STRING,
    INTEGER,
    NUMBER,
    FRACTION,
    OBJECT,
    ARRAY,
    VALUE,
    MEMBER
};

void json_forms_init(struct json_forms *f, struct grammar_builder *b, const struct schema_options *o)
{
    memset(f, 0, sizeof(*f));
    f->b = b;
    f->spaces = o ? o->spaces : JSON_SPACES_PLAIN;
}

static grammar_node regex(struct json_forms *f, const char *text)
{
    return regex_node(f->b, text, strlen(text), REGEX_WHOLE, "");
}

/* The node as a rule of its own: it is used in many places. */
static grammar_node named(struct json_forms *f, const char *name, grammar_node body)
{
    grammar_node rule = grammar_rule(f->b, name, strlen(name));

    grammar_define(f->b, rule, body);
    return rule;
}

grammar_node json_form_space(struct json_forms *f)
{
    static const struct grammar_range spaces[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};

    if (f->made[SPACE]) return f->made[SPACE];
    if (f->spaces != JSON_SPACES_ANY) return f->made[SPACE] = grammar_empty(f->b);
    return f->made[SPACE] =
               named(f, "space", grammar_repeat(f->b, grammar_class(f->b, spaces, 3, false), 0, MAX_SPACES));
}

static grammar_node spaced(struct json_forms *f, int which, const char *sign)
{
    if (f->made[which]) return f->made[which];
    if (f->spaces == JSON_SPACES_ANY) {
        return f->made[which] = grammar_three(f->b, json_form_space(f), grammar_word(f->b, sign), json_form_space(f));
    }
    f->made[which] = grammar_word(f->b, sign);
    if (f->spaces == JSON_SPACES_PLAIN) f->made[which] = grammar_pair(f->b, f->made[which], grammar_word(f->b, " "));
    return f->made[which];
}

grammar_node json_form_comma(struct json_forms *f)
{
    return spaced(f, COMMA, ",");
}

grammar_node json_form_colon(struct json_forms *f)
{
    return spaced(f, COLON, ":");
}

static grammar_node enclosed(struct json_forms *f, const char *open, grammar_node inner, const char *close)
{
    if (f->spaces == JSON_SPACES_ANY) inner = grammar_three(f->b, json_form_space(f), inner, json_form_space(f));
    return grammar_three(f->b, grammar_word(f->b, open), inner, grammar_word(f->b, close));
}

grammar_node json_form_braces(struct json_forms *f, grammar_node inner)
{
    return enclosed(f, "{", inner, "}");
}

grammar_node json_form_brackets(struct json_forms *f, grammar_node inner)
{
    return enclosed(f, "[", inner, "]");
}

grammar_node json_form_quotes(struct json_forms *f, grammar_node inner)
{
    return grammar_three(f->b, grammar_word(f->b, "\""), inner, grammar_word(f->b, "\""));
}

#define SURROGATES "\\\\u[dD][89aAbB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2}"

grammar_node json_form_free_char(struct json_forms *f)
{
    if (!f->made[FREE_CHAR]) {
        f->made[FREE_CHAR] = regex(f, "[^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\/bfnrt]|"
                                      "\\\\u(?:[0-9a-cA-CeEfF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})|" SURROGATES);
    }
    return f->made[FREE_CHAR];
}

grammar_node json_form_plain_char(struct json_forms *f)
{
    if (!f->made[PLAIN_CHAR]) f->made[PLAIN_CHAR] = regex_node(f->b, "(?s).", 5, REGEX_WHOLE | REGEX_JSON, "");
    return f->made[PLAIN_CHAR];
}

grammar_node json_form_name_char(struct json_forms *f)
{
    if (!f->made[NAME_CHAR]) {
        f->made[NAME_CHAR] = grammar_either(
            f->b, json_form_plain_char(f),
            regex(f, "\\\\u(?:00[89a-fA-F][0-9a-fA-F]|0[1-9a-fA-F][0-9a-fA-F]{2}|[1-9a-cA-CeEfF][0-9a-fA-F]{3}|"
                     "[dD][0-7][0-9a-fA-F]{2})|" SURROGATES));
    }
    return f->made[NAME_CHAR];
}

grammar_node json_form_string(struct json_forms *f)
{
    if (!f->made[STRING]) {
        grammar_node text = grammar_repeat(f->b, json_form_free_char(f), 0, GRAMMAR_UNBOUNDED);

        f->made[STRING] = named(f, "string", json_form_quotes(f, text));
    }
    return f->made[STRING];
}

grammar_node json_form_integer(struct json_forms *f)
{
    if (!f->made[INTEGER]) f->made[INTEGER] = named(f, "integer", regex(f, "-?(?:0|[1-9][0-9]*)"));
    return f->made[INTEGER];
}

grammar_node json_form_number(struct json_forms *f)
{
    if (!f->made[NUMBER]) {
        f->made[NUMBER] = named(f, "number",
                                regex(f, "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2}|"
                                         "[eE][-+]?[12][0-9]{2})?"));
    }
    return f->made[NUMBER];
}

#define FRACTION_DIGITS 15

/* What no double rounds to an integer: up to 15 digits, the last not 0, or more of which those behind the point within the
 * first 15 are neither all 0 nor all 9. */
grammar_node json_form_fraction(struct json_forms *f)
{
    grammar_node ways[2 * FRACTION_DIGITS] = {0};
    char text[64];

    if (f->made[FRACTION]) return f->made[FRACTION];
    for (int n = 0; n < FRACTION_DIGITS - 1; n++) { /* 1 + n digits before the point, at most `left` behind it */
        const int left = FRACTION_DIGITS - 1 - n;
        grammar_node whole;

        snprintf(text, sizeof(text), n ? "-?[1-9][0-9]{%d}\\." : "-?[0-9]\\.", n);
        whole = regex(f, text);
        snprintf(text, sizeof(text), "[0-9]{0,%d}[1-9]", left - 1);
        ways[2 * n] = grammar_pair(f->b, whole, regex(f, text));
        snprintf(text, sizeof(text), "0{%d}|9{%d}", left, left);
        ways[2 * n + 1] = regex(f, text);
        snprintf(text, sizeof(text), "[0-9]{%d}", left);
        ways[2 * n + 1] =
            grammar_three(f->b, whole, grammar_except(f->b, regex(f, text), ways[2 * n + 1]), regex(f, "[0-9]{0,16}"));
    }
    f->made[FRACTION] = named(f, "fraction", grammar_alt(f->b, ways, 2 * (FRACTION_DIGITS - 1)));
    return f->made[FRACTION];
}

/* (item (comma item)*)? */
static grammar_node listed(struct json_forms *f, grammar_node item)
{
    grammar_node others = grammar_repeat(f->b, grammar_pair(f->b, json_form_comma(f), item), 0, GRAMMAR_UNBOUNDED);

    return grammar_maybe(f->b, grammar_pair(f->b, item, others));
}

grammar_node json_form_value(struct json_forms *f)
{
    grammar_node options[7];

    if (f->made[VALUE]) return f->made[VALUE];
    f->made[VALUE] = grammar_rule(f->b, "value", 5);
    if (!f->made[VALUE]) return 0; /* the builder has failed: nothing is remembered */
    options[0] = json_form_object(f);
    options[1] = json_form_array(f);
    options[2] = json_form_string(f);
    options[3] = json_form_number(f);
    options[4] = grammar_word(f->b, "true");
    options[5] = grammar_word(f->b, "false");
    options[6] = grammar_word(f->b, "null");
    grammar_define(f->b, f->made[VALUE], grammar_alt(f->b, options, 7));
    return f->made[VALUE];
}

grammar_node json_form_object(struct json_forms *f)
{
    grammar_node member;

    if (f->made[OBJECT]) return f->made[OBJECT];
    f->made[OBJECT] = grammar_rule(f->b, "object", 6);
    if (!f->made[OBJECT]) return 0; /* the builder has failed: nothing is remembered */
    member = grammar_three(f->b, json_form_string(f), json_form_colon(f), json_form_value(f));
    grammar_define(f->b, f->made[OBJECT], json_form_braces(f, listed(f, member)));
    return f->made[OBJECT];
}

grammar_node json_form_array(struct json_forms *f)
{
    if (f->made[ARRAY]) return f->made[ARRAY];
    f->made[ARRAY] = grammar_rule(f->b, "array", 5);
    if (!f->made[ARRAY]) return 0; /* the builder has failed: nothing is remembered */
    grammar_define(f->b, f->made[ARRAY], json_form_brackets(f, listed(f, json_form_value(f))));
    return f->made[ARRAY];
}

/* --- given values ------------------------------------------------------------------------------------------------- */

static bool escape_text(struct buf *out, const char *s, size_t n, bool ascii)
{
    bool beyond = false;

    for (size_t i = 0; i < n;) {
        char escaped[8];
        uint32_t c;
        int len = utf8_decode(s + i, n - i, &c), k = json_escaped_char(c, escaped);

        if (k)
            buf_append(out, escaped, (size_t)k);
        else if (c < 0x80 || !ascii)
            buf_append(out, s + i, (size_t)abs(len));
        else if (c < 0x10000)
            buf_printf(out, "\\u%04x", (unsigned)c);
        else
            buf_printf(out, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (c >> 10)), (unsigned)(0xdc00 | (c & 0x3ff)));
        beyond |= c >= 0x80;
        i += (size_t)abs(len);
    }
    return beyond;
}

static grammar_node text_of(struct json_forms *f, struct buf *text)
{
    grammar_node node = grammar_text(f->b, text->data ? text->data : "", text->n);

    if (text->failed) grammar_fail(f->b, RD_E_NOMEM, "out of memory");
    buf_deinit(text);
    return node;
}

grammar_node json_form_canonical_text(struct json_forms *f, const char *s, size_t n)
{
    struct buf text = {0};

    escape_text(&text, s, n, false);
    return text_of(f, &text);
}

grammar_node json_form_text(struct json_forms *f, const char *s, size_t n)
{
    struct buf raw = {0}, ascii = {0};
    bool beyond = escape_text(&raw, s, n, false);
    grammar_node node = text_of(f, &raw);

    if (!beyond) return node;
    escape_text(&ascii, s, n, true);
    return grammar_either(f->b, node, text_of(f, &ascii));
}

void json_real_text(double v, char out[40])
{
    char digits[40], *e;
    int exponent, precision = 1;

    do snprintf(digits, sizeof(digits), "%.*e", precision - 1, v);
    while (strtod(digits, NULL) != v && ++precision <= 17);
    e = strchr(digits, 'e');
    exponent = e ? atoi(e + 1) : 0;
    if (exponent < -4 || exponent >= 16) { /* 1e+16, 1.5e-07 */
        snprintf(out, 40, "%s", digits);
        return;
    }
    snprintf(out, 40, "%.*f", precision - 1 - exponent > 0 ? precision - 1 - exponent : 1, v);
}

static grammar_node real_node(struct json_forms *f, const json_t *number)
{
    const char *written = json_number_text(number);
    double v = json_real_value(number);
    char text[40], whole[40];

    if (written && v != 0 && json_number_is_whole(written)) return grammar_word(f->b, written); /* beyond 64 bits */
    if (!isfinite(v)) return grammar_nothing(f->b);
    json_real_text(v, text);
    if (v != floor(v) || fabs(v) >= 1e22) return grammar_word(f->b, text);
    snprintf(whole, sizeof(whole), "%.0f", v == 0 ? 0 : v); /* -0.0 is the number 0 */
    return grammar_either(f->b, grammar_word(f->b, text), grammar_word(f->b, whole));
}

static grammar_node simple_node(struct json_forms *f, const json_t *v)
{
    char text[32];

    switch (json_typeof(v)) {
    case JSON_STRING:
        return json_form_quotes(f, json_form_text(f, json_string_value(v), json_string_length(v)));
    case JSON_INTEGER:
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(v));
        return grammar_word(f->b, text);
    case JSON_REAL:
        return real_node(f, v);
    case JSON_TRUE:
        return grammar_word(f->b, "true");
    case JSON_FALSE:
        return grammar_word(f->b, "false");
    default:
        return grammar_word(f->b, "null");
    }
}

/* A value is taken apart with a stack of its own: frames are the arrays and objects that are open. */
struct open_value {
    const json_t *v;
    void *iter;
    size_t i;
    struct node_list parts;
};

#define MAX_GIVEN_DEPTH 200u

static const json_t *next_child(struct json_forms *f, struct open_value *o)
{
    const json_t *child;

    if (json_is_array(o->v)) {
        if (o->i == json_array_size(o->v)) return NULL;
        if (o->i) node_list_add(f->b, &o->parts, json_form_comma(f));
        return json_array_get(o->v, o->i++);
    }
    o->iter = o->i == 0 ? json_object_iter((json_t *)o->v) : json_object_iter_next((json_t *)o->v, o->iter);
    if (!o->iter) return NULL;
    if (o->i++) node_list_add(f->b, &o->parts, json_form_comma(f));
    node_list_add(
        f->b, &o->parts,
        json_form_quotes(f, json_form_text(f, json_object_iter_key(o->iter), json_object_iter_key_len(o->iter))));
    node_list_add(f->b, &o->parts, json_form_colon(f));
    child = json_object_iter_value(o->iter);
    return child;
}

grammar_node json_form_of(struct json_forms *f, const json_t *value)
{
    struct open_value stack[MAX_GIVEN_DEPTH];
    const json_t *v = value;
    grammar_node done = 0;
    size_t depth = 0;

    for (;;) {
        if (v && (json_is_array(v) || json_is_object(v))) {
            if (depth == MAX_GIVEN_DEPTH) {
                grammar_fail(f->b, RD_E_INVALID, "a value nested more than %u deep", MAX_GIVEN_DEPTH);
                while (depth) {
                    struct node_list *left = &stack[--depth].parts;

                    node_list_seq(f->b, left);
                }
                return 0;
            }
            stack[depth++] = (struct open_value){.v = v};
        } else {
            done = v ? simple_node(f, v) : done;
            if (depth == 0) return done;
            node_list_add(f->b, &stack[depth - 1].parts, done);
        }
        while (!(v = next_child(f, &stack[depth - 1]))) {
            const json_t *closed = stack[--depth].v;
            grammar_node inner = node_list_seq(f->b, &stack[depth].parts);

            done = json_is_array(closed) ? json_form_brackets(f, inner) : json_form_braces(f, inner);
            if (depth == 0) return done;
            node_list_add(f->b, &stack[depth - 1].parts, done);
        }
    }
}

grammar_node grammar_json_object(struct grammar_builder *b, const struct schema_options *o)
{
    struct json_forms f;

    json_forms_init(&f, b, o);
    return json_form_object(&f);
}

grammar_node grammar_json_value(struct grammar_builder *b, const struct schema_options *o)
{
    struct json_forms f;

    json_forms_init(&f, b, o);
    return json_form_value(&f);
}

grammar_node grammar_from_choice(struct grammar_builder *b, const json_t *strings)
{
    struct node_list options = {0};

    if (!json_is_array(strings) || json_array_size(strings) == 0) {
        grammar_fail(b, RD_E_INVALID, "choice: wanted an array of at least one string");
        return 0;
    }
    for (size_t i = 0; i < json_array_size(strings); i++) {
        const json_t *s = json_array_get(strings, i);

        if (!json_is_string(s))
            grammar_fail(b, RD_E_INVALID, "choice[%zu]: wanted a string", i);
        else
            node_list_add(b, &options, grammar_text(b, json_string_value(s), json_string_length(s)));
    }
    return node_list_alt(b, &options);
}
