/* text/grammar/node_list.h - a growing list of nodes, and sequences and alternatives of a few.
 *
 * Errors  without memory the builder fails with RD_E_NOMEM and the list stays as it is.
 * Thread  its owner.
 */
#pragma once
#include "text/grammar/grammar_build.h"

struct node_list {
    grammar_node *v;
    size_t n, cap;
};

void node_list_add(struct grammar_builder *b, struct node_list *l, grammar_node node);
/* One node of all of them; the list is emptied and its memory freed. */
grammar_node node_list_seq(struct grammar_builder *b, struct node_list *l);
grammar_node node_list_alt(struct grammar_builder *b, struct node_list *l);

grammar_node grammar_word(struct grammar_builder *b, const char *text); /* a terminated text */
grammar_node grammar_pair(struct grammar_builder *b, grammar_node first, grammar_node second);
grammar_node grammar_three(struct grammar_builder *b, grammar_node first, grammar_node second, grammar_node third);
grammar_node grammar_either(struct grammar_builder *b, grammar_node one, grammar_node other);
grammar_node grammar_maybe(struct grammar_builder *b, grammar_node node);
