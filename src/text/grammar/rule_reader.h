/* text/grammar/rule_reader.h - what GBNF and Lark have in common: a text from left to right, and rules with names, which
 * may be used before they are defined.
 *
 * Once it has failed nothing is read any more: reader_peek is 0 and reader_pass false, so that a parser needs no other
 * check to come to its end.
 *
 * Thread  any.
 * Errors  the builder's (grammar_build.h), with line and column of the place; the first one counts.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "text/grammar/grammar_build.h"
#include "text/string_table.h"

struct named_rule {
    grammar_node node;
    bool defined;
    size_t used_at; /* first, in the text */
};
struct rule_reader {
    struct grammar_builder *b;
    const char *text;
    size_t n, at;
    struct string_table names;
    struct named_rule *rules; /* [names.n] */
    size_t cap_rules;
    bool failed;
};

/* Of text[0..n), which is borrowed. false: failed; there is nothing to free. */
bool reader_init(struct rule_reader *r, struct grammar_builder *b, const char *text, size_t n);
/* The rule named so, or 0 where anything failed or a rule that was used is not defined; and frees what r holds. */
grammar_node reader_finish(struct rule_reader *r, const char *root);

void reader_fail(struct rule_reader *r, rd_status st, size_t at, const char *what);
void reader_wrong(struct rule_reader *r, const char *what); /* RD_E_INVALID, here */

char reader_peek(const struct rule_reader *r); /* 0: the end */
bool reader_pass(struct rule_reader *r, const char *word);
uint32_t reader_hex(struct rule_reader *r, int n_digits);
uint32_t reader_number(struct rule_reader *r); /* below GRAMMAR_UNBOUNDED */

/* Until the next call. NULL: failed. */
struct named_rule *reader_rule(struct rule_reader *r, const char *name, size_t n);
/* The same, of a name within the text, as one that is being defined; it must not be yet. */
grammar_node reader_define(struct rule_reader *r, const char *name, size_t n);
