/* radish/grammar.h - forms that an output can be held to, by themselves: compiled, explained, matched. No model needed.
 *
 * A request is held to one by rd_request_options.grammar (radish.h); these functions are for looking at it: does it
 * compile, what does it accept, what is the shortest example.
 *
 * Thread  any; one rd_grammar by one thread at a time.
 * Errors  rd_status and a text that names the keyword and its path, or line and column.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, how clients call it, its text */
#define RD_GRAMMAR_LIST(X)                                                                                             \
    X(RD_GRAMMAR_NONE, "none", "any text")                                                                             \
    X(RD_GRAMMAR_JSON_SCHEMA, "json_schema", "a JSON schema, draft 7 or 2020-12")                                      \
    X(RD_GRAMMAR_JSON_OBJECT, "json_object", "any JSON object; the text is not looked at")                             \
    X(RD_GRAMMAR_REGEX, "regex", "a regular expression over the whole output")                                         \
    X(RD_GRAMMAR_CHOICE, "choice", "a JSON array of strings, one of which is the output")                              \
    X(RD_GRAMMAR_GBNF, "gbnf", "llama.cpp's GBNF; the first rule is root")                                             \
    X(RD_GRAMMAR_EBNF, "ebnf", "XGrammar's EBNF, or Lark's syntax as llguidance reads it")                             \
    X(RD_GRAMMAR_TAGS, "structural_tag", "XGrammar's structural tags, as JSON")
#define RD_GRAMMAR_ENUM(name, text, note) name,
enum rd_grammar_kind { RD_GRAMMAR_LIST(RD_GRAMMAR_ENUM) RD_GRAMMAR_N_KINDS };
#undef RD_GRAMMAR_ENUM

typedef struct rd_grammar rd_grammar;

/* RD_E_INVALID: malformed, or beyond a limit; RD_E_UNSUPPORTED: names the keyword and its path. */
RD_API rd_status rd_grammar_compile(enum rd_grammar_kind kind, const char *text, size_t n, rd_grammar **out,
                                    struct rd_error *err);
RD_API void rd_grammar_free(rd_grammar *g); /* NULL is fine */
/* Whether the text is one of the grammar's; *n_good (may be NULL): bytes that could be the beginning of one. */
RD_API rd_status rd_grammar_match(rd_grammar *g, const char *text, size_t n, bool *accepts, size_t *n_good);
/* A shortest text; the caller's (rd_free). RD_E_LIMIT: too long, or too ambiguous to be followed to its end, or it takes as
 * long as a grammar may take to compile. */
RD_API rd_status rd_grammar_example(rd_grammar *g, char **text, size_t *n);
struct rd_grammar_info {
    unsigned n_rules, n_states;
    size_t bytes;
    double compile_ms;
};
RD_API void rd_grammar_get_info(const rd_grammar *g, struct rd_grammar_info *out);

#ifdef __cplusplus
}
#endif
