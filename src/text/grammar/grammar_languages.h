/* text/grammar/grammar_languages.h - the languages that describe a grammar, each a function from its text to a node.
 *
 * All of them fail the builder (grammar_build.h) with a text that names what was found and where: a line and column, an
 * offset, or the path within a schema ("#/properties/a/minLength: ..."). What a language has and radish does not know is
 * an error (RD_E_UNSUPPORTED, naming the keyword and its path), never ignored. Recursion on input is bounded.
 * Thread  any.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "text/grammar/grammar_build.h"

/* JSON schema, draft 7 and 2020-12. Properties come in the order of the schema; JSON is written as json.dumps writes it
 * (", " and ": " between) or compactly, see spaces. Members that a schema does not name follow those it names.
 * Source  json-schema.org, draft 2020-12 (core and validation), draft-07. */
enum json_spaces {
    JSON_SPACES_PLAIN,   /* one way: {"a": 1, "b": [2, 3]} */
    JSON_SPACES_COMPACT, /* one way: {"a":1,"b":[2,3]} */
    JSON_SPACES_ANY      /* up to a bounded number of spaces and line ends where JSON allows them */
};
struct schema_options {
    enum json_spaces spaces;
};
grammar_node grammar_from_schema(struct grammar_builder *b, const json_t *schema, const struct schema_options *o);
/* Any JSON object / any JSON value (nesting bounded by nothing). */
grammar_node grammar_json_object(struct grammar_builder *b, const struct schema_options *o);
grammar_node grammar_json_value(struct grammar_builder *b, const struct schema_options *o);

/* A regular expression over the whole text (anchors at both ends are implied; ^ and $ there are allowed). The syntax of
 * ECMA-262 with the u flag, and what Python and PCRE share with it; no back references, no look-around.
 * searched: as JSON schema's `pattern`, which matches anywhere unless anchored. */
grammar_node grammar_from_regex(struct grammar_builder *b, const char *text, size_t n, bool searched);
/* llama.cpp's GBNF; the first rule is `root`. */
grammar_node grammar_from_gbnf(struct grammar_builder *b, const char *text, size_t n);
/* The EBNF that SGLang and vLLM pass to XGrammar (GBNF's syntax, with its extensions) and Lark's as llguidance reads it;
 * told apart by their syntax. */
grammar_node grammar_from_ebnf(struct grammar_builder *b, const char *text, size_t n);
grammar_node grammar_from_choice(struct grammar_builder *b, const json_t *strings);
/* XGrammar's structural tags, both forms: {"type": "structural_tag", "structures": [{begin, schema, end}], "triggers"} and
 * {"type": "structural_tag", "format": {...}}. token_of: the id of a special token by its text, -1: none; may be NULL. */
struct tag_tokens {
    int32_t (*token_of)(void *arg, const char *text, size_t n);
    void *arg;
};
grammar_node grammar_from_tags(struct grammar_builder *b, const json_t *tag, const struct schema_options *o,
                               const struct tag_tokens *t);
