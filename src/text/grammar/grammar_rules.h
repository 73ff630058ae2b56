/* text/grammar/grammar_rules.h - what has to be known of the rules of a grammar before automata are made of them.
 *
 * Private to the module; memory counts against the builder's limits, whose failure is kept there.
 */
#pragma once
#include "text/grammar/grammar_fa.h"
#include "text/grammar/grammar_impl.h"

/* Gives rules of their own to parts that are worth it: a loop over many characters with what ends it (the body of a
 * string with its quote, whose masks are then shared by all strings), and large parts of counted repeats. */
bool grammar_outline(struct grammar_builder *b);
/* facts: [n_rules] of those that can be reached from `start`, by grammar_room with cap. vocab: NULL: not
 * known. Fails for undefined rules, and tokens that are no special ones of it. */
bool grammar_learn(struct grammar_builder *b, uint32_t start, const struct grammar_vocab *vocab,
                   struct rule_facts **facts, uint32_t *cap);
