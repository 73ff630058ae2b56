/* text/grammar/grammar_fa.h - finite automata over bytes and calls of rules: from a node by way of a non-deterministic
 * one, made deterministic and minimal; products of two. Private to the module.
 *
 * All memory counts against the builder's limits; a failure is kept in the builder (NULL or false here).
 * Source  subsets: Rabin and Scott, 1959; minimal: see grammar_minimal.c.
 */
#pragma once
#include "text/grammar/grammar_nodes.h"

/* Deterministic, minimal, without dead states; state 0 is the start, states in the order of a breadth-first walk. Edges
 * of a state: those of bytes first, ascending, then calls, by rule. rule NONE: an edge of bytes. */
struct fa_edge {
    uint32_t to, rule;
    uint8_t low, high;
};
struct fa {
    uint32_t n_states, n_edges;
    uint32_t *first; /* [n_states + 1] */
    struct fa_edge *edges;
    uint8_t *accepts;
};
void fa_destroy(struct fa *f);
bool fa_is_nothing(const struct fa *f);

/* Edges over states 0 .. n_states - 1 (0 is the start), deterministic, to a minimal automaton: state by state, those of bytes
 * ascending, then calls by rule. */
struct raw_edge {
    uint32_t from, to, rule;
    uint8_t low, high;
};
struct raw_fa {
    uint32_t n_states, cap_accepts;
    uint8_t *accepts;
    struct raw_edge *edges;
    uint32_t n_edges, cap_edges;
};
bool raw_edge(struct grammar_builder *b, struct raw_fa *r, struct raw_edge e);
bool raw_state(struct grammar_builder *b, struct raw_fa *r, bool accepts);
void raw_deinit(struct grammar_builder *b, struct raw_fa *r);
struct fa *fa_minimal(struct grammar_builder *b, const struct raw_fa *r);

/* Non-deterministic: state 0 is the start, state 1 the end. */
struct nfa_edge {
    uint32_t next, to, label;
};
#define LABEL_BYTES(low, high) ((uint32_t)(low) | (uint32_t)(high) << 8)
#define LABEL_EMPTY            0x10000u
#define LABEL_CALL             0x80000000u /* | rule */
struct nfa {
    struct grammar_builder *b;
    uint32_t *first, n_states, cap_states; /* an edge of the state, NONE: no edge */
    struct nfa_edge *edges;
    uint32_t n_edges, cap_edges;
};
struct fa *fa_of_nfa(const struct nfa *n);

/* What a compile knows of rules (grammar_rules.c). */
struct rule_facts {
    uint32_t component;
    bool nullable, inlined, recursive;
};
/* The automaton of a rule's body. facts [n_rules]. */
struct fa *fa_of_rule(struct grammar_builder *b, uint32_t rule, const struct rule_facts *facts);
/* Of a regular node (grammar_is_regular), kept by the builder; rules are put in place of their calls. */
const struct fa *fa_of_node(struct grammar_builder *b, grammar_node node);
/* Of a repeat of some bytes, and such with what ends it (grammar_counted.c). NULL: it is no such node, or the builder has
 * failed. */
struct fa *fa_counted(struct grammar_builder *b, grammar_node node);
/* grammar_both and grammar_except. */
struct fa *fa_both(struct grammar_builder *b, const struct fa *x, const struct fa *y);
struct fa *fa_except(struct grammar_builder *b, const struct fa *x, const struct fa *y);
