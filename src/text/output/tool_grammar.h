/* text/output/tool_grammar.h - the calls that a model may write, as a grammar in its own tool format (output_style.h).
 *
 *     OUTPUT_HERMES   <tool_call>\n{"name": "f", "arguments": {..f's schema..}}\n</tool_call>, separated by newlines
 *
 * A function's arguments follow its schema. Where the schema says what grammars cannot hold, they are any object, unless
 * the function is strict: then that is an error, which names the keyword and its path.
 *
 * Thread  any. Errors  the builder's (grammar_build.h).
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "text/grammar/grammar_languages.h"
#include "text/output/output_style.h"

struct tool_grammar {
    enum output_style style;
    const char *template_source;     /* tells the forms of Mistral and DeepSeek apart */
    const json_t *tools;             /* array as OpenAI's (or of flat functions) */
    const char *name;                /* of this tool alone; NULL, "": of any */
    bool single;                     /* one call at most */
    const struct tag_tokens *tokens; /* markers that are special tokens; NULL: all are text */
};

/* Whether this style can be held to a grammar. */
bool tool_grammar_knows(enum output_style style);
/* One call or several. */
grammar_node tool_grammar_calls(struct grammar_builder *b, const struct tool_grammar *g);
/* The same where the prompt shows calls as text (text/output/taught_calls.h): some text first in which no stop string stands, and
 * then the calls, as above or, on a line of their own, without tags. Where that is not known (another style, many stop
 * strings or long ones): the calls. */
grammar_node tool_grammar_taught(struct grammar_builder *b, const struct tool_grammar *g, const char *const *stop,
                                 uint32_t n_stop);
/* Text, and calls wherever the model begins one, in every form that the parser of outputs (output_parser.h) would find:
 * whatever it finds follows its schema. Nothing comes behind calls. name: not looked at. */
grammar_node tool_grammar_free(struct grammar_builder *b, const struct tool_grammar *g);
/* A function among the tools has "strict": true. */
bool tool_grammar_is_strict(const json_t *tools);
