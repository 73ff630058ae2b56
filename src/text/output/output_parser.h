/* text/output/output_parser.h - generated text, as it comes, into content, thinking and tool calls.
 *
 *     "<think>\nhm\n</think>\n\nLet me look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>"
 *      REASONING "hm"          CONTENT "Let me look."    CALL_BEGIN 0 "f", CALL_ARGS 0 "{"a": 1}", CALL_END 0
 *
 * Invariants (tests/text/test_output_random.c):
 *   - the texts of all CONTENT, REASONING, SOURCE and CALL_TEXT events, in order, are exactly what was fed: nothing is lost
 *     or doubled. SOURCE is what belongs to a call or is a tag: its meaning is in the CALL events; most readers skip it.
 *   - the events do not depend on how the text was cut into pieces, except for the cuts of equal events that follow
 *     each other.
 *   - a call is announced when its name is complete and is one of the tools; what turns out to be none before that is
 *     content. After that broken arguments are delivered as they are (CALL_END says complete = false).
 *   - a call in JSON has a name, arguments (or parameters), a type "function" and, between tags, an id. JSON with other
 *     members is content, whole: to see them, calls wait for their end, up to 512 bytes of arguments between tags and
 *     4 KiB without; what stands behind longer arguments is SOURCE. Forced calls do not wait, their further members are
 *     SOURCE. Braces may be doubled.
 *   - at most LIMIT_TOOL_HEAD_BYTES are held back, usually the length of a tag.
 *   - with keep_bare, calls without tags (bare or in a fence) are also content: such a call waits for its end, forced or
 *     not, and its text comes as CALL_TEXT before it. Beyond 4 KiB of arguments it is as without keep_bare.
 * White space around tags and calls is SOURCE; content is otherwise delivered byte by byte.
 *
 * Arguments are pieces of JSON text: as the model wrote it, or converted (XML, Python) with types from the schema.
 * Thread  its owner.
 * Errors  RD_E_NOMEM, for good: the text after it is lost.
 */
#pragma once
#include <jansson.h>
#include "radish/status.h"
#include "text/output/output_style.h"

enum output_event_type {
    OUTPUT_CONTENT,
    OUTPUT_REASONING,
    OUTPUT_CALL_BEGIN, /* text: the name */
    OUTPUT_CALL_ARGS,  /* text: the next piece of the arguments */
    OUTPUT_CALL_END,
    OUTPUT_SOURCE,
    OUTPUT_CALL_TEXT /* keep_bare: what was written of a call without tags, before its CALL_BEGIN */
};

struct output_event {
    enum output_event_type type;
    uint32_t index;   /* CALL_*: 0, 1, 2 .. */
    const char *text; /* valid during the call */
    size_t n;
    bool complete; /* CALL_END: the call was written to its end */
};
typedef void (*output_sink)(void *user, const struct output_event *ev);

struct output_options {
    enum output_style style;        /* OUTPUT_NO_CALLS: no tools */
    const struct think_tags *think; /* NULL: no thinking */
    bool in_thinking;               /* the prompt ended inside a thinking block */
    bool forced;                    /* a call is wanted: see above */
    bool keep_bare;                 /* calls without tags stay in the content: see above */
    const json_t *tools;            /* array as OpenAI's (or of flat functions), borrowed; NULL: any name is a tool */
    output_sink sink;
    void *user;
};

struct output_parser;
rd_status output_parser_create(const struct output_options *o, struct output_parser **out);
/* NULL is fine. */
void output_parser_destroy(struct output_parser *p);
/* special: the text of a control token. It is seen as a marker, but never becomes content or reasoning. */
rd_status output_parser_feed(struct output_parser *p, const char *s, size_t n, bool special);
/* The end of the text: whatever is held back is decided. */
rd_status output_parser_finish(struct output_parser *p);
/* A call that a tag opened has ended, and its closing tag has not come yet: the call's text is not whole without it. */
bool output_parser_awaits_tail(const struct output_parser *p);
/* Inside a thinking block, after what was fed. */
bool output_parser_thinks(const struct output_parser *p);
