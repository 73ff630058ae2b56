/* text/grammar/grammar_build.h - a grammar over bytes, put together by the languages that describe one (JSON schema,
 * regular expressions, GBNF, EBNF, structural tags, lists of choices), and compiled (grammar.h).
 *
 * A node is a language: literal bytes, a class of characters, a sequence, alternatives, a repeat, a rule. Rules have
 * names (for messages) and may be used before they are defined and within themselves, on the left, on the right and in
 * the middle. All other nodes are trees: a node may be used several times; what it holds is never changed.
 *
 * Texts are UTF-8 and classes hold code points, so a language of characters is one of whole, valid characters. Bytes
 * that are no UTF-8 are never needed and never accepted; byte 0xFF, which UTF-8 does not have, begins a special token:
 * 0xFF, then the token's id in 3 bytes, the highest first (grammar_token).
 *
 * Errors  the first is kept in the builder: all later calls return 0 and do nothing, and grammar_compile tells it. So
 *         callers look at nothing in between. Beyond its limits RD_E_INVALID, which names the limit.
 * Owns    its nodes; texts are copied.
 * Thread  any, one at a time.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"
#include "text/grammar/grammar_limits.h"

/* From create to compile on one thread: when any of its allocations fails meanwhile, jansson's included, which does not tell
 * all, the compile is RD_E_NOMEM, whatever else it led to. */
struct grammar_builder;
rd_status grammar_builder_create(const struct grammar_limits *l, struct grammar_builder **out);
void grammar_builder_destroy(struct grammar_builder *b); /* NULL is fine */
/* Looks at the clock: false when the time of the limits is over, or something else has failed. For those that work long
 * without asking for nodes. */
bool grammar_has_time(struct grammar_builder *b);
/* It failed because the thread's own time was over: with more it may not. */
bool grammar_worked_out(const struct grammar_builder *b);
/* The limits for another builder within the work of this one: the time is what is left. */
struct grammar_limits grammar_limits_left(const struct grammar_builder *b);
/* The first failure, with its text; RD_OK: none. A language above fails the builder with a text of its own. */
rd_status grammar_status(const struct grammar_builder *b, struct rd_error *err);
void grammar_fail(struct grammar_builder *b, rd_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

grammar_node grammar_empty(struct grammar_builder *b);   /* the empty text */
grammar_node grammar_nothing(struct grammar_builder *b); /* no text at all */
grammar_node grammar_text(struct grammar_builder *b, const char *text, size_t n);
/* Surrogates are left out. n 0 and negated: any character. */
grammar_node grammar_class(struct grammar_builder *b, const struct grammar_range *ranges, uint32_t n, bool negated);
grammar_node grammar_token(struct grammar_builder *b, int32_t token);
grammar_node grammar_seq(struct grammar_builder *b, const grammar_node *parts, uint32_t n); /* n 0: empty */
grammar_node grammar_alt(struct grammar_builder *b, const grammar_node *parts, uint32_t n); /* n 0: nothing */
/* min .. max times; max GRAMMAR_UNBOUNDED. Large counts cost states only where the node is regular and must be. */
grammar_node grammar_repeat(struct grammar_builder *b, grammar_node node, uint32_t min, uint32_t max);
/* A new rule without a body; name is for messages. */
grammar_node grammar_rule(struct grammar_builder *b, const char *name, size_t n);
void grammar_define(struct grammar_builder *b, grammar_node rule, grammar_node body); /* once per rule */
/* Of two regular nodes (no recursion below them): texts of both; texts of `a` that `minus` has not. */
grammar_node grammar_both(struct grammar_builder *b, grammar_node a, grammar_node also);
grammar_node grammar_except(struct grammar_builder *b, grammar_node a, grammar_node minus);
/* Whether the language of a regular node is empty: -1 unknown (recursive), 0 no, 1 yes. */
int grammar_is_nothing(struct grammar_builder *b, grammar_node node);
