/* tests/text/grammar/naive_grammar.h - random grammars, and what they mean by the simplest reading: tables of where each
 * node can end and whether it can go on, filled again and again until nothing changes.
 *
 * Built twice from the same draws: as nodes of a builder, and as a tree that is asked. Texts are at most NAIVE_TEXT bytes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "text/grammar/grammar_build.h"

#define NAIVE_TEXT  24u
#define NAIVE_NODES 256u
#define NAIVE_RULES 4u

enum naive_kind {
    NAIVE_NOTHING,
    NAIVE_EMPTY,
    NAIVE_TEXT_OF,
    NAIVE_CLASS,
    NAIVE_SEQ,
    NAIVE_ALT,
    NAIVE_REPEAT,
    NAIVE_RULE,
    NAIVE_BOTH,
    NAIVE_EXCEPT
};
struct naive_node {
    enum naive_kind kind;
    char text[8]; /* characters of a class, one of which; bytes of a text */
    uint32_t n, kids[3], min, max, rule;
};
struct naive {
    struct naive_node nodes[NAIVE_NODES];
    uint32_t n_nodes, n_rules, bodies[NAIVE_RULES];
    bool products; /* both or except occur: can_go_on is not known */
    uint64_t rng;
    uint8_t text[NAIVE_TEXT]; /* what the tables are of */
    uint32_t n_text;
    uint32_t ends[NAIVE_NODES][NAIVE_TEXT + 1]; /* bit j: the node can be text[i .. j) */
    bool goes[NAIVE_NODES][NAIVE_TEXT + 1];     /* some text of the node begins with all from i on */
    bool has_text[NAIVE_NODES];
};

/* A random number below n. */
uint32_t naive_draw(struct naive *g, uint32_t n);
/* Draws a grammar; rule 0 is the text. */
void naive_make(struct naive *g, uint64_t seed);
/* The same in a builder. */
grammar_node naive_build(const struct naive *g, struct grammar_builder *b);
/* Fills the tables. */
void naive_read(struct naive *g, const uint8_t *text, uint32_t n);
/* Of the text read last: it is one of the grammar; one of the grammar begins with it. */
bool naive_is_text(const struct naive *g);
bool naive_is_prefix(const struct naive *g);
