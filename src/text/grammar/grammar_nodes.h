/* text/grammar/grammar_nodes.h - inside a builder: nodes, rules, and what counts against its limits. Private to the
 * module.
 *
 * Nodes are kept once: the same content is the same node, so equal parts of a grammar become equal automata. A node
 * stands behind the nodes that it holds (rules excepted), so one pass in the order of ids sees children first. No tree
 * is deeper than NODE_DEPTH (deeper ones are cut by a rule of their own): recursion over a tree is bounded.
 */
#pragma once
#include <stdbool.h>
#include "radish/status.h"
#include "text/grammar/grammar_limits.h"

#define NODE_DEPTH 128u /* of a tree of nodes */
#define NONE       UINT32_MAX

enum node_kind {
    NODE_EMPTY = 1,
    NODE_NOTHING,
    NODE_TEXT,  /* a: its place in bytes, n bytes */
    NODE_CLASS, /* a: its place in ranges, n of them, sorted, no neighbours */
    NODE_TOKEN, /* a: id */
    NODE_SEQ,
    NODE_ALT,    /* a: its place in kids, n of them */
    NODE_REPEAT, /* a: node, min, max */
    NODE_RULE,   /* a: rule */
    NODE_BOTH,
    NODE_EXCEPT /* a, n: nodes */
};
struct node {
    uint8_t kind;
    uint16_t depth;
    uint32_t a, n, min, max;
    uint32_t next;  /* in its chain of the hash table */
    uint32_t memo;  /* 1 + its place in dags (class) or fas (others) */
    uint32_t rule;  /* node of a rule with this one as its body, 0: none */
    uint32_t stamp; /* of a walk over nodes */
};
struct rule {
    uint32_t name, n_name;   /* in bytes */
    grammar_node body, self; /* body 0: not defined */
    bool is_open, is_called; /* walks are inside; never put in place of its call */
};
/* A class as automaton of UTF-8 bytes: nodes of one class, the first is its start. to: NONE is the end. */
struct dag_edge {
    uint32_t to;
    uint8_t low, high;
};
struct dag {
    uint32_t n_nodes, *first;
    struct dag_edge *edges;
};
struct fa;

struct grammar_builder {
    struct grammar_limits limits;
    struct rd_error err; /* status RD_OK: none */
    struct clock_limit time;
    bool worked_out; /* and that is the failure */
    uint32_t n_ticks;
    size_t n_bytes;    /* counted against max_bytes */
    uint32_t n_states; /* counted against max_states */
    struct node *nodes;
    uint32_t n_nodes, cap_nodes; /* [0] is unused */
    uint32_t *table;
    uint32_t n_table, cap_table; /* by hash: first of a chain of nodes */
    uint8_t *bytes;
    uint32_t n_text, cap_text;
    struct grammar_range *ranges;
    uint32_t n_ranges, cap_ranges;
    grammar_node *kids;
    uint32_t n_kids, cap_kids;
    struct rule *rules;
    uint32_t n_rules, cap_rules;
    struct dag *dags;
    uint32_t n_dags, cap_dags;
    struct fa **fas;
    uint32_t n_fas, cap_fas;
    uint32_t stamp;
};

/* Makes *items (of size bytes, *cap of them) hold want, within max_bytes. false: the builder failed. */
bool grammar_room(struct grammar_builder *b, void **items, uint32_t *cap, uint64_t want, size_t size);
/* Frees what grammar_room made. */
void grammar_unroom(struct grammar_builder *b, void **items, uint32_t *cap, size_t size);
/* A unit of work; false when the time is over or the builder has failed. */
bool grammar_tick(struct grammar_builder *b);
bool grammar_count_states(struct grammar_builder *b, uint32_t n);
static inline bool grammar_ok(const struct grammar_builder *b)
{
    return b->err.status == RD_OK;
}

/* The automaton of bytes of a class (grammar_class.c), kept; NULL: failed. */
const struct dag *grammar_class_dag(struct grammar_builder *b, grammar_node node);
/* That rule, made when there is none: always called, never put in place. 0: failed. */
grammar_node grammar_rule_with(struct grammar_builder *b, grammar_node body, const char *name);
/* Whether rules or undefined ones below a node make it no regular one: false when a rule contains itself. */
bool grammar_is_regular(struct grammar_builder *b, grammar_node node);
