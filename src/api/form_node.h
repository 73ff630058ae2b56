/* api/form_node.h - a form by its kind and text (radish/grammar.h) as a grammar's node: for requests, and for those who
 * compile without a model.
 *
 * Errors  the builder's (grammar_build.h): RD_E_INVALID, RD_E_UNSUPPORTED say what is wrong, RD_E_NOMEM. Thread  any.
 */
#pragma once
#include <jansson.h>
#include "radish/grammar.h"
#include "text/grammar/grammar_languages.h"

/* What a form may take to compile: docs/faults.md, F29. Built with a sanitizer, its times are CLOCK_SLOWDOWN times as long. */
extern const struct grammar_limits form_limits;

/* RD_GRAMMAR_NONE: any text. tokens: which texts of structural tags are special tokens of the model; NULL: none. */
grammar_node form_node(struct grammar_builder *b, enum rd_grammar_kind kind, const char *text, size_t n,
                       const struct tag_tokens *tokens);
/* JSON that is the text of a form, or its tools; NULL: the builder has failed. */
json_t *form_json(struct grammar_builder *b, const char *text, size_t n);
