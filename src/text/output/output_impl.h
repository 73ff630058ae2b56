/* text/output/output_impl.h - the output parser inside: the bytes that are not decided yet, and the machines that read them.
 *
 *     held: [ white space | opener | read by the call's machine | not read ]
 *           0             .        .                             cur       n
 *            <- opener_n ------->
 *
 * A machine's step reads at cur and says what came of it. Until the call is announced nothing leaves `held`; if the
 * head fails, opener_n bytes are released as content and the rest is read again as content. Once announced, what was
 * read leaves as SOURCE after each step. Every decision depends on the bytes alone, never on where a piece ended: a
 * step that would need more bytes returns STEP_MORE and changes nothing.
 */
#pragma once
#include "base/buf.h"
#include "base/limits.h"
#include "text/output/output_openers.h"
#include "text/output/output_parser.h"

enum output_step { STEP_MORE, STEP_ON, STEP_FAIL, STEP_DONE };
enum output_match { MATCH_NO, MATCH_PART, MATCH_FULL };
enum output_state { IN_CONTENT, IN_THINK_LEAD, IN_THINKING, IN_THINK_TAIL, IN_CALL, IN_TAIL };

/* One JSON value, byte by byte. */
struct json_scan {
    enum { SCAN_NOTHING, SCAN_CONTAINER, SCAN_STRING, SCAN_SCALAR } kind;
    bool in_string, escaped;
    uint32_t depth;
    /* a string's escapes, and a scalar's first bytes */
    uint32_t n_hex, unit, high;
    char scalar[8];
    uint32_t n_scalar;
};

/* A call being read; zeroed for each. */
struct output_call {
    int at;        /* the machine's own state */
    uint32_t nest; /* JSON: inside {"function": { */
    char key[24];
    uint32_t n_key;
    bool has_name, has_args, args_done, first_param, wrapped;
    bool doubled, args_doubled; /* JSON: {{..}}, as Qwen2.5-Coder's template teaches by mistake */
    bool extra;                 /* JSON: a member that no call has */
    struct json_scan scan;
    size_t args_from, args_to; /* arguments before the name: where in held */
    size_t from;               /* XML, Python, DeepSeek: where the part being read begins in held */
    unsigned types;            /* XML: of the parameter */
    char quote;                /* Python */
    bool triple;
    uint32_t depth;
};

struct output_parser {
    struct output_options o;
    enum output_state state;
    bool at_end, content_begun, announced, strict, fence, tagged, closed, leading[256];
    bool keep;                /* the call's text is wanted, too: there are no tags around it */
    struct buf held, special; /* bytes, and for each: of a control token */
    size_t from;              /* held before this was released */
    size_t cur, opener_n;     /* relative to from */
    enum output_head head;
    char container;   /* '[': a JSON list, 'p': a Python list, 'c': code; 0 */
    uint32_t n_calls; /* announced so far */
    char name[LIMIT_TOOL_NAME_BYTES + 1];
    uint32_t n_name;
    struct output_call call;
    struct buf text, source, value; /* not delivered yet; value: a parameter being read */
    enum output_event_type text_type;
};

/* output_parser.c: for the machines */
size_t output_n_held(const struct output_parser *p);
const char *output_held(const struct output_parser *p);
enum output_match output_match(const struct output_parser *p, size_t at, const char *text);
void output_args(struct output_parser *p, const char *s, size_t n);
/* A tool's name in p->name: known? */
bool output_name_known(const struct output_parser *p);
/* CALL_BEGIN with p->name; before it, CALL_TEXT of what was read where that is kept. */
void output_announce(struct output_parser *p);
/* Starts a machine: the next byte it reads is at cur. */
void output_begin(struct output_parser *p, enum output_head head, size_t opener_n, size_t cur);
/* The closing tag of the style stands at cur? */
enum output_match output_at_tail(const struct output_parser *p);

/* output_json.c */
enum output_step output_json_step(struct output_parser *p);
/* The machine failed or the text ended before the call was announced: announces it if name and arguments were read. */
bool output_json_rescue(struct output_parser *p);
/* One more byte of a value. SCAN_PAST: the value ended before this byte. */
enum scan_result { SCAN_GOES_ON, SCAN_ENDS, SCAN_PAST };
enum scan_result json_scan_byte(struct json_scan *v, char c);
/* Delivers a byte that json_scan_byte has taken (or, with past, the end of a scalar) as arguments. */
void output_args_byte(struct output_parser *p, struct json_scan *v, char c);
void output_args_scalar_end(struct output_parser *p, struct json_scan *v);
/* The arguments are the JSON value from cur on: one step of reading and delivering it. */
enum output_step output_args_step(struct output_parser *p);

/* output_xml.c, output_python.c, output_named.c */
enum output_step output_xml_step(struct output_parser *p);
/* The text ended inside: the part of a value that waits for its type is delivered as it is. */
void output_xml_cut(struct output_parser *p);
enum output_step output_python_step(struct output_parser *p);
enum output_step output_mistral_step(struct output_parser *p);
enum output_step output_deepseek_step(struct output_parser *p);
/* A Python literal at s[*at..n) as JSON into out; false: it is none. */
bool output_python_value(const char *s, size_t n, size_t *at, uint32_t depth, struct buf *out);

/* output_tools.c: the schema of p->name's parameters */
enum {
    TYPE_STRING = 1,
    TYPE_NUMBER = 2,
    TYPE_INTEGER = 4,
    TYPE_BOOLEAN = 8,
    TYPE_OBJECT = 16,
    TYPE_ARRAY = 32,
    TYPE_NULL = 64
};
const json_t *output_tool(const struct output_parser *p);
/* 0: the schema does not say. */
unsigned output_param_types(const struct output_parser *p, const char *key, size_t n);
/* The name of parameter i in the schema's order, or NULL. */
const char *output_param_name(const struct output_parser *p, uint32_t i);
/* A written value as JSON of one of the types; false: it is none of them and should be a string. */
bool output_typed_value(const char *s, size_t n, unsigned types, struct buf *out);
