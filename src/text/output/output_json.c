/* text/output/output_json.c - calls written as JSON objects, and the reading of one JSON value byte by byte.
 *
 *     {"name": "f", "arguments": {..}}      keys in any order; "parameters" means "arguments"; other members: no call
 *     {"type": "function", "function": {"name": .., "arguments": ..}}
 *     {{"name": "f", "arguments": {{..}}}}  either pair of braces doubled: never JSON, and often meant as it
 *
 * Arguments written as a string hold JSON text once more: the string's content is delivered.
 */
#include <string.h>
#include "base/hex.h"
#include "base/utf8.h"
#include "text/output/output_impl.h"

#define HOLD_TAGGED 512u  /* bytes of arguments that wait for the call's end, */
#define HOLD_BARE   4096u /* without tags around it */

enum { J_OPEN, J_KEY, J_KEY_TEXT, J_COLON, J_VALUE, J_NAME, J_ARGS, J_SKIP, J_AFTER };

/* ---- one value ---- */

static enum scan_result string_byte(struct json_scan *v, char c)
{
    if (v->escaped)
        v->escaped = false;
    else if (c == '\\')
        v->escaped = true;
    else if (c == '"')
        return SCAN_ENDS;
    return SCAN_GOES_ON;
}

enum scan_result json_scan_byte(struct json_scan *v, char c)
{
    if (v->kind == SCAN_NOTHING) {
        if (c == '"')
            v->kind = SCAN_STRING;
        else if (c == '{' || c == '[')
            v->kind = SCAN_CONTAINER, v->depth = 1;
        else if (c == '}' || c == ']' || c == ',' || c == ':' || c == '<')
            return SCAN_PAST;
        else
            v->kind = SCAN_SCALAR;
        return SCAN_GOES_ON;
    }
    if (v->kind == SCAN_STRING) return string_byte(v, c);
    if (v->kind == SCAN_SCALAR) return output_is_space(c) || strchr(",}]<:\"{[", c) ? SCAN_PAST : SCAN_GOES_ON;
    if (v->in_string) {
        v->in_string = string_byte(v, c) != SCAN_ENDS;
    } else if (c == '"') {
        v->in_string = true;
    } else if (c == '{' || c == '[') {
        v->depth++;
    } else if (c == '}' || c == ']') {
        if (--v->depth == 0) return SCAN_ENDS;
    }
    return SCAN_GOES_ON;
}

/* ---- a value as arguments ---- */

static void put_code_point(struct output_parser *p, uint32_t cp)
{
    char out[UTF8_MAX_BYTES];

    output_args(p, out, (size_t)utf8_encode(cp, out));
}

/* A UTF-16 unit of a string is complete: pairs become one character, halves alone U+FFFD. */
static void put_unit(struct output_parser *p, struct json_scan *v)
{
    uint32_t high = v->high;

    v->high = 0;
    if (v->unit >= 0xDC00 && v->unit < 0xE000 && high) {
        put_code_point(p, 0x10000 + ((high - 0xD800) << 10) + (v->unit - 0xDC00));
        return;
    }
    if (high) put_code_point(p, UTF8_REPLACEMENT);
    if (v->unit >= 0xD800 && v->unit < 0xDC00)
        v->high = v->unit;
    else
        put_code_point(p, v->unit);
}

/* The content of a string, its escapes resolved. scalar[0] remembers that the byte before was a backslash. */
static void put_string_byte(struct output_parser *p, struct json_scan *v, char c)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *at;

    if (v->n_hex) {
        int x = hex_digit(c);

        if (x >= 0) {
            v->unit = v->unit << 4 | (uint32_t)x;
            if (--v->n_hex == 0) put_unit(p, v);
            return;
        }
        v->n_hex = 0;
    }
    if (v->scalar[0]) {
        v->scalar[0] = 0;
        if (c == 'u') {
            v->n_hex = 4;
            v->unit = 0;
            return;
        }
        at = c ? strchr(from, c) : NULL;
        if (at) c = to[at - from];
    } else if (c == '\\') {
        v->scalar[0] = 1;
        return;
    }
    if (v->high) put_code_point(p, UTF8_REPLACEMENT), v->high = 0;
    output_args(p, &c, 1);
}

void output_args_byte(struct output_parser *p, struct json_scan *v, char c)
{
    if (v->kind == SCAN_CONTAINER) {
        output_args(p, &c, 1);
    } else if (v->kind == SCAN_STRING) {
        if (!v->depth)
            v->depth = 1; /* the opening quote */
        else
            put_string_byte(p, v, c);
    } else if (v->n_scalar < 4) { /* null means no arguments */
        v->scalar[v->n_scalar++] = c;
    } else {
        if (v->n_scalar++ == 4) output_args(p, v->scalar, 4);
        output_args(p, &c, 1);
    }
}

void output_args_scalar_end(struct output_parser *p, struct json_scan *v)
{
    if (v->n_scalar > 4) return;
    if (v->n_scalar == 4 && memcmp(v->scalar, "null", 4) == 0)
        output_args(p, "{}", 2);
    else
        output_args(p, v->scalar, v->n_scalar);
}

/* Reads the byte at cur as the next of the arguments; delivers it when the call is announced. */
static enum scan_result args_byte(struct output_parser *p)
{
    struct json_scan *v = &p->call.scan;
    char c = output_held(p)[p->cur];
    enum scan_result r = json_scan_byte(v, c);

    if (r == SCAN_PAST) {
        if (p->announced && v->kind == SCAN_SCALAR) output_args_scalar_end(p, v);
        return r;
    }
    p->cur++;
    if (p->announced && !(r == SCAN_ENDS && v->kind == SCAN_STRING)) output_args_byte(p, v, c);
    return r;
}

enum output_step output_args_step(struct output_parser *p)
{
    struct json_scan *v = &p->call.scan;

    if (p->cur >= output_n_held(p)) return STEP_MORE;
    if (output_held(p)[p->cur] == '<' && v->kind == SCAN_CONTAINER && !v->in_string) {
        enum output_match m = output_at_tail(p); /* brackets are missing: the call ends as it is */

        if (m == MATCH_FULL) return STEP_FAIL;
        if (m == MATCH_PART) return STEP_MORE;
    }
    if (v->kind == SCAN_NOTHING && output_is_space(output_held(p)[p->cur])) {
        p->cur++;
        return STEP_ON;
    }
    if (args_byte(p) == SCAN_GOES_ON) return STEP_ON;
    if (v->kind == SCAN_NOTHING) return STEP_FAIL;
    return STEP_DONE;
}

/* ---- the object around it ---- */

/* Announces the call and delivers what was read of its arguments. */
static void announce(struct output_parser *p)
{
    struct output_call *c = &p->call;
    size_t end = c->args_done ? c->args_to : p->cur;
    struct json_scan v = {0};

    output_announce(p);
    for (size_t i = c->args_from; c->has_args && i < end; i++) {
        char b = output_held(p)[i];
        enum scan_result r = json_scan_byte(&v, b);

        if (!(r == SCAN_ENDS && v.kind == SCAN_STRING)) output_args_byte(p, &v, b);
    }
    if (c->args_done && v.kind == SCAN_SCALAR) output_args_scalar_end(p, &v);
    c->scan = v;
}

bool output_json_rescue(struct output_parser *p)
{
    const struct output_call *c = &p->call;

    if ((p->head != HEAD_TAG && p->head != HEAD_JSON) || !c->has_name || !c->has_args || c->extra) return false;
    announce(p);
    return true;
}

static enum output_step name_ends(struct output_parser *p)
{
    struct output_call *c = &p->call;

    if (!output_name_known(p)) return STEP_FAIL;
    c->has_name = true;
    c->at = J_AFTER;
    if (p->o.forced && !p->keep) announce(p);
    return STEP_ON;
}

static bool key_is(const struct output_call *c, const char *name)
{
    return c->n_key == strlen(name) && memcmp(c->key, name, c->n_key) == 0;
}

/* The value of a member that is not the name and not the arguments. */
static enum output_step other_begins(struct output_parser *p)
{
    static const char function[] = "\"function\"";
    struct output_call *c = &p->call;
    enum output_match m = key_is(c, "type") ? output_match(p, p->cur, function) : MATCH_NO;

    if (m == MATCH_PART) return STEP_MORE;
    if (m == MATCH_FULL) {
        p->cur += strlen(function);
        c->at = J_AFTER;
        return STEP_ON;
    }
    c->extra = !(p->o.forced || p->announced || (key_is(c, "id") && !p->strict));
    if (c->extra) return STEP_FAIL;
    memset(&c->scan, 0, sizeof(c->scan));
    c->at = J_SKIP;
    return STEP_ON;
}

/* The first byte of a value, which is at cur. */
static enum output_step value_begins(struct output_parser *p, char b)
{
    struct output_call *c = &p->call;
    enum output_match m;

    if (!c->has_name && b == '"' && (key_is(c, "name") || key_is(c, "function"))) {
        p->cur++;
        p->n_name = 0;
        c->at = J_NAME;
        return STEP_ON;
    }
    if (key_is(c, "function") && b == '{' && !c->nest) {
        p->cur++;
        c->nest++;
        c->at = J_KEY;
        return STEP_ON;
    }
    if (c->has_args || !(key_is(c, "arguments") || key_is(c, "parameters"))) return other_begins(p);
    if (strchr("}],:<", b)) return STEP_FAIL;
    m = output_match(p, p->cur, "{{");
    if (m == MATCH_PART) return STEP_MORE;
    c->args_doubled = m == MATCH_FULL;
    p->cur += c->args_doubled;
    memset(&c->scan, 0, sizeof(c->scan));
    c->has_args = true;
    c->at = J_ARGS;
    c->args_from = p->cur;
    return STEP_ON;
}

static enum output_step object_ends(struct output_parser *p)
{
    struct output_call *c = &p->call;

    p->cur++;
    if (c->args_done && c->args_doubled) {
        c->args_doubled = false;
        return STEP_ON;
    }
    if (c->nest) {
        c->nest--;
        c->at = J_AFTER;
        return STEP_ON;
    }
    if (!p->announced) {
        if (!c->has_name || (p->strict && !c->has_args)) return STEP_FAIL;
        announce(p);
    }
    if (!c->has_args) output_args(p, "{}", 2);
    return STEP_DONE;
}

static enum output_step structure_byte(struct output_parser *p, char b)
{
    struct output_call *c = &p->call;

    if (c->at == J_VALUE) return value_begins(p, b);
    if (b == '}' && (c->at == J_KEY || c->at == J_AFTER)) return object_ends(p);
    if (c->at == J_OPEN && b == '{')
        c->at = J_KEY;
    else if (c->at == J_KEY && b == '"')
        c->at = J_KEY_TEXT, c->n_key = 0;
    else if (c->at == J_COLON && b == ':')
        c->at = J_VALUE;
    else if (c->at == J_AFTER && b == ',')
        c->at = J_KEY;
    else
        return STEP_FAIL;
    p->cur++;
    return STEP_ON;
}

static enum output_step object_step(struct output_parser *p)
{
    struct output_call *c = &p->call;
    enum output_step s;
    char b;

    if (c->at == J_ARGS) {
        s = output_args_step(p);
        if (s == STEP_ON && c->has_name && !p->announced &&
            p->cur - c->args_from > (p->strict ? HOLD_BARE : HOLD_TAGGED)) {
            p->keep = false;
            announce(p);
        }
        if (s != STEP_DONE) return s;
        c->args_to = p->cur;
        c->args_done = true;
        c->at = J_AFTER;
        return STEP_ON;
    }
    if (p->cur >= output_n_held(p)) return STEP_MORE;
    b = output_held(p)[p->cur];
    switch (c->at) {
    case J_KEY_TEXT:
        p->cur++;
        if (b == '"')
            c->at = J_COLON;
        else if (b == '\n' || b == '\\')
            return STEP_FAIL;
        else if (c->n_key < sizeof(c->key))
            c->key[c->n_key++] = b;
        return STEP_ON;
    case J_NAME:
        p->cur++;
        if (b == '"') return name_ends(p);
        if (b == '\\' || b == '\n' || p->n_name == LIMIT_TOOL_NAME_BYTES) return STEP_FAIL;
        p->name[p->n_name++] = b;
        p->name[p->n_name] = 0;
        return STEP_ON;
    case J_SKIP: {
        enum scan_result r = json_scan_byte(&c->scan, b);

        if (r == SCAN_PAST && c->scan.kind == SCAN_NOTHING) return STEP_FAIL;
        if (r != SCAN_PAST) p->cur++;
        if (r != SCAN_GOES_ON) c->at = J_AFTER;
        return STEP_ON;
    }
    default:
        break;
    }
    if (!output_is_space(b)) return structure_byte(p, b);
    p->cur++;
    return STEP_ON;
}

enum output_step output_json_step(struct output_parser *p)
{
    struct output_call *c = &p->call;
    enum output_match m;
    char b;

    if (c->at != J_OPEN) return object_step(p);
    if (p->cur >= output_n_held(p)) return STEP_MORE;
    b = output_held(p)[p->cur];
    if (b == '[' && !p->container && (p->head == HEAD_TAG || p->opener_n <= p->cur)) {
        p->container = '[';
        p->cur++;
        return STEP_ON;
    }
    if (b == '{' && !c->doubled) {
        m = output_match(p, p->cur, "{{");
        if (m == MATCH_PART) return STEP_MORE;
        c->doubled = m == MATCH_FULL;
        p->cur += c->doubled;
    }
    if (p->head == HEAD_TAG && b == '<') {
        m = output_match(p, p->cur, "<function=");

        if (m == MATCH_PART) return STEP_MORE;
        if (m == MATCH_NO) return STEP_FAIL;
        p->cur += strlen("<function=");
        p->head = HEAD_XML;
        c->from = p->cur;
        return STEP_ON;
    }
    return object_step(p);
}
