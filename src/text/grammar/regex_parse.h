/* text/grammar/regex_parse.h - a regular expression as a tree, before it is a grammar (regex.c alone uses it). */
#pragma once
#include "text/grammar/char_set.h"
#include "text/grammar/regex.h"

enum re_type { RE_SET, RE_SEQ, RE_ALT, RE_REPEAT, RE_BEGIN, RE_END, RE_LOOK };

/* Children hang on `first` and then `next`. has_zero: an anchor or look-ahead in it or below. */
struct re_node {
    uint8_t type;
    bool has_zero, negative, nullable;
    uint32_t first, last, next, min, max;
    struct char_ranges set; /* RE_SET */
};

struct re_tree {
    struct grammar_builder *b;
    const char *text, *where;
    size_t n, at;
    bool ignore_case, dot_all, failed;
    struct re_node *nodes; /* nodes[0]: none */
    size_t n_nodes, cap;
};

/* The tree's root, 0: failed (the builder too). */
uint32_t regex_parse(struct re_tree *t);
void regex_tree_deinit(struct re_tree *t);
/* The builder fails, with the offset. */
void regex_fail(struct re_tree *t, rd_status st, const char *what);
uint32_t regex_add(struct re_tree *t, enum re_type type);
void regex_append(struct re_tree *t, uint32_t parent, uint32_t child);
