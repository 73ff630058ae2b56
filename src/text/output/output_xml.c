/* text/output/output_xml.c - <function=name> with <parameter=key>value</parameter> elements (Qwen3-Coder), or with one JSON
 * object (Llama 3.1's custom format). The arguments are written here as JSON: text for parameters that the schema calls
 * strings or says nothing about, else the value itself where it is one of the named types.
 */
#include <string.h>
#include "text/output/output_impl.h"

enum { X_NAME, X_BODY, X_KEY, X_LEAD, X_VALUE, X_JSON, X_CLOSE };

/* A string's byte inside JSON quotes. Bytes of UTF-8 pass. */
static void put_escaped(struct output_parser *p, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        char c = s[i], out[6] = {'\\', 'u', '0', '0', 0, 0};

        if (c == '"' || c == '\\') {
            out[1] = c;
            output_args(p, out, 2);
        } else if (c == '\n' || c == '\t' || c == '\r') {
            out[1] = c == '\n' ? 'n' : c == '\t' ? 't' : 'r';
            output_args(p, out, 2);
        } else if ((unsigned char)c < 0x20) {
            out[4] = hex[c >> 4];
            out[5] = hex[c & 15];
            output_args(p, out, 6);
        } else {
            output_args(p, &c, 1);
        }
    }
}

static bool is_text(const struct output_call *c)
{
    return (c->types & ~(unsigned)TYPE_STRING) == 0;
}

static enum output_step name_byte(struct output_parser *p, char b)
{
    p->cur++;
    if (b == '>') {
        if (!output_name_known(p)) return STEP_FAIL;
        output_announce(p);
        p->call.at = X_BODY;
        return STEP_ON;
    }
    if (b == '\n' || b == '<' || p->n_name == LIMIT_TOOL_NAME_BYTES) return STEP_FAIL;
    p->name[p->n_name++] = b;
    p->name[p->n_name] = 0;
    return STEP_ON;
}

static enum output_step key_byte(struct output_parser *p, char b)
{
    struct output_call *c = &p->call;

    p->cur++;
    if (b == '\n' || b == '<' || p->value.n > LIMIT_TOOL_NAME_BYTES) return STEP_FAIL;
    if (b != '>') {
        buf_putc(&p->value, b);
        return STEP_ON;
    }
    c->types = output_param_types(p, p->value.n ? p->value.data : "", p->value.n);
    output_args(p, c->first_param ? ", \"" : "{\"", c->first_param ? 3 : 2);
    put_escaped(p, p->value.data, p->value.n);
    output_args(p, "\": ", 3);
    if (is_text(c)) output_args(p, "\"", 1);
    buf_clear(&p->value);
    c->first_param = true;
    c->at = X_LEAD;
    return STEP_ON;
}

/* Between parameters. */
static enum output_step body_step(struct output_parser *p, char b)
{
    struct output_call *c = &p->call;
    enum output_match m;

    if (output_is_space(b)) {
        p->cur++;
        return STEP_ON;
    }
    if (b == '{' && !c->first_param) {
        c->at = X_JSON;
        return STEP_ON;
    }
    m = output_match(p, p->cur, "<parameter=");
    if (m == MATCH_FULL) {
        p->cur += strlen("<parameter=");
        c->at = X_KEY;
        buf_clear(&p->value);
        return STEP_ON;
    }
    if (m == MATCH_PART) return STEP_MORE;
    m = output_match(p, p->cur, "</function>");
    if (m != MATCH_FULL) return m == MATCH_PART ? STEP_MORE : STEP_FAIL;
    p->cur += strlen("</function>");
    if (c->first_param)
        output_args(p, "}", 1);
    else
        output_args(p, "{}", 2);
    return STEP_DONE;
}

/* The value is text after all. */
static void become_text(struct output_parser *p)
{
    p->call.types = TYPE_STRING;
    output_args(p, "\"", 1);
    put_escaped(p, p->value.data, p->value.n);
    buf_clear(&p->value);
}

static void value_ends(struct output_parser *p)
{
    struct output_call *c = &p->call;
    struct buf typed = {0};

    c->at = X_BODY;
    if (!is_text(c)) {
        if (output_typed_value(p->value.n ? p->value.data : "", p->value.n, c->types, &typed)) {
            if (typed.failed) p->value.failed = true;
            output_args(p, typed.data, typed.n);
            buf_deinit(&typed);
            return;
        }
        buf_deinit(&typed);
        become_text(p);
    }
    output_args(p, "\"", 1);
}

static enum output_step value_step(struct output_parser *p, char b)
{
    const char *close = b == '\n' ? "\n</parameter>" : "</parameter>";
    enum output_match m = b == '\n' || b == '<' ? output_match(p, p->cur, close) : MATCH_NO;

    if (m == MATCH_PART) return STEP_MORE;
    if (m == MATCH_FULL) {
        p->cur += strlen(close);
        value_ends(p);
        return STEP_ON;
    }
    p->cur++;
    if (is_text(&p->call))
        put_escaped(p, &b, 1);
    else
        buf_putc(&p->value, b);
    if (p->value.n > LIMIT_TOOL_HEAD_BYTES) become_text(p);
    return STEP_ON;
}

void output_xml_cut(struct output_parser *p)
{
    if (p->call.at == X_VALUE && p->value.n) output_args(p, p->value.data, p->value.n);
}

enum output_step output_xml_step(struct output_parser *p)
{
    struct output_call *c = &p->call;
    enum output_step s;
    enum output_match m;
    char b;

    if (c->at == X_JSON) {
        s = output_args_step(p);
        if (s == STEP_DONE) c->args_done = true, c->at = X_CLOSE, s = STEP_ON;
        return s;
    }
    if (p->cur >= output_n_held(p)) return STEP_MORE;
    b = output_held(p)[p->cur];
    switch (c->at) {
    case X_NAME:
        return name_byte(p, b);
    case X_BODY:
        return body_step(p, b);
    case X_KEY:
        return key_byte(p, b);
    case X_LEAD:
        c->at = X_VALUE;
        if (b != '\n') return STEP_ON;
        m = output_match(p, p->cur, "\n</parameter>"); /* an empty value has one line end only */
        if (m == MATCH_PART) {
            c->at = X_LEAD;
            return STEP_MORE;
        }
        if (m == MATCH_NO) p->cur++;
        return STEP_ON;
    case X_VALUE:
        return value_step(p, b);
    default:
        break;
    }
    if (output_is_space(b)) { /* X_CLOSE */
        p->cur++;
        return STEP_ON;
    }
    m = output_match(p, p->cur, "</function>");
    if (m == MATCH_PART) return STEP_MORE;
    if (m == MATCH_FULL) p->cur += strlen("</function>");
    return STEP_DONE;
}
