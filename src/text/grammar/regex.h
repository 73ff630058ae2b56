/* text/grammar/regex.h - regular expressions as nodes, also of the inside of a JSON string.
 *
 * The syntax of ECMA-262 with the u flag, and what Python and PCRE share with it: classes, groups (named too), counted and
 * lazy repeats, \d \w \s \p{..}, (?i) (?s), anchors, look-ahead that reaches to the end of the expression. Where dialects
 * differ, what matches is what all of them accept (char_set.h).
 *
 * Errors  the builder fails: RD_E_INVALID a mistake, RD_E_UNSUPPORTED back references, look-behind, word boundaries ..;
 *         the text begins with `where` (a path) and names the offset.
 * Thread  any.
 */
#pragma once
#include "text/grammar/grammar_build.h"

#define REGEX_MAX_DEPTH 200u /* groups within groups */
#define REGEX_MAX_NODES 20000u
#define REGEX_MAX_LINES 2000u /* alternatives, where those with an anchor inside are told apart */

enum regex_kind {
    REGEX_WHOLE = 0,    /* matches the whole text */
    REGEX_SEARCHED = 1, /* matches anywhere in it */
    REGEX_JSON = 2      /* flag: the text is the inside of a JSON string, escaped canonically */
};

grammar_node regex_node(struct grammar_builder *b, const char *text, size_t n, int kind, const char *where);

/* flags of a /regex/flags literal: i, s are known; others are an error. */
grammar_node regex_node_flags(struct grammar_builder *b, const char *text, size_t n, const char *flags, size_t n_flags,
                              int kind, const char *where);
