/* text/grammar/char_set.h - sets of code points, as a regular expression's classes describe them.
 *
 * Dialects differ in what \w, \d, \s and a ignored case hold beyond ASCII. A set is therefore kept twice: `sure`, which
 * every dialect has, and `most`, which one of them has. A negated class is all but `most`: what a grammar accepts is then
 * accepted by all of them.
 *
 * Errors  without memory the builder fails.
 * Thread  its owner.
 */
#pragma once
#include "text/grammar/grammar_build.h"

struct char_ranges {
    struct grammar_range *v;
    size_t n, cap;
};

struct char_set {
    struct char_ranges sure, most;
};

void char_set_deinit(struct char_set *s);
/* Surrogates are dropped. */
void char_set_add(struct grammar_builder *b, struct char_set *s, uint32_t low, uint32_t high);
/* 'd', 'w', 's' and their capitals. */
void char_set_add_escape(struct grammar_builder *b, struct char_set *s, char letter);
/* The characters whose category is among these (text/char_class.h), or is not. */
void char_set_add_categories(struct grammar_builder *b, struct char_set *s, uint32_t categories, bool negated);
/* ASCII letters of the other case too. */
void char_set_ignore_case(struct grammar_builder *b, struct char_set *s);
void char_set_negate(struct grammar_builder *b, struct char_set *s);

/* Sorted, without overlaps; all but r. */
void char_ranges_tidy(struct char_ranges *r);
void char_ranges_negate(struct grammar_builder *b, struct char_ranges *r);
bool char_ranges_have(const struct char_ranges *r, uint32_t c); /* of tidy ones */

/* The class as a node: of raw text, or of the inside of a JSON string, where `"`, `\` and controls are escaped in the one
 * way that json.dumps writes them. Tidies r. */
grammar_node char_ranges_node(struct grammar_builder *b, struct char_ranges *r, bool json);
/* How JSON writes c, if it must be escaped: its length; 0: it stands for itself. */
int json_escaped_char(uint32_t c, char out[8]);
