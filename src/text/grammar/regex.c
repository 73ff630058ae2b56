/* text/grammar/regex.c - from a regular expression's tree to nodes.
 *
 * Without anchors a tree is a node as it stands. With them (only where they are not repeated) it is first spread into
 * lines: sequences of items in which an anchor or a look-ahead stands by itself. Then, from a line's end to its begin:
 *
 *     ^ at i     what stands before must be empty, and nothing may stand before the match
 *     $ at i     what follows must be empty, and nothing may follow the match
 *     (?=X) tail     texts of tail that are also texts of X and anything;     (?!X) tail: those that are not
 */
#include "text/grammar/regex.h"
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_languages.h"
#include "text/grammar/node_list.h"
#include "text/grammar/regex_parse.h"

struct line {
    uint32_t *items;
    size_t n, cap;
};
struct spreader {
    struct re_tree *t;
    bool json;
    struct line *lines; /* of one spread, done and waiting */
    size_t n, cap;
};

static grammar_node emit(struct re_tree *t, uint32_t id, bool json)
{
    struct grammar_builder *b = t->b;
    struct re_node *node = &t->nodes[id];
    struct node_list parts = {0};

    switch (node->type) {
    case RE_SET:
        return char_ranges_node(b, &node->set, json);
    case RE_REPEAT:
        return grammar_repeat(b, emit(t, node->first, json), node->min, node->max);
    case RE_SEQ:
    case RE_ALT:
        for (uint32_t child = node->first; child; child = t->nodes[child].next)
            node_list_add(b, &parts, emit(t, child, json));
        return node->type == RE_SEQ ? node_list_seq(b, &parts) : node_list_alt(b, &parts);
    default:
        return grammar_empty(b); /* zero width: not below emit */
    }
}

static grammar_node any_text(struct re_tree *t, bool json)
{
    struct char_ranges all = {0};
    grammar_node node;

    char_ranges_negate(t->b, &all);
    node = char_ranges_node(t->b, &all, json);
    mem_free(all.v);
    return grammar_repeat(t->b, node, 0, GRAMMAR_UNBOUNDED);
}

static bool put(struct spreader *s, struct line *l, uint32_t item)
{
    if (!mem_grow((void **)&l->items, &l->cap, l->n + 1, sizeof(*l->items))) {
        regex_fail(s->t, RD_E_NOMEM, "out of memory");
        return false;
    }
    l->items[l->n++] = item;
    return true;
}

static struct line *new_line(struct spreader *s)
{
    if (s->n >= REGEX_MAX_LINES) {
        regex_fail(s->t, RD_E_INVALID, "too many alternatives with anchors");
        return NULL;
    }
    if (!mem_grow((void **)&s->lines, &s->cap, s->n + 1, sizeof(*s->lines))) {
        regex_fail(s->t, RD_E_NOMEM, "out of memory");
        return NULL;
    }
    memset(&s->lines[s->n], 0, sizeof(*s->lines));
    return &s->lines[s->n++];
}

/* Replaces item i of line `at` by the children of one alternative or sequence. */
static void splice(struct spreader *s, size_t at, size_t i, uint32_t seq, size_t to)
{
    struct line l = {0};

    for (size_t k = 0; k < i; k++) put(s, &l, s->lines[at].items[k]);
    for (uint32_t child = s->t->nodes[seq].first; child; child = s->t->nodes[child].next) put(s, &l, child);
    for (size_t k = i + 1; k < s->lines[at].n; k++) put(s, &l, s->lines[at].items[k]);
    mem_free(s->lines[to].items);
    s->lines[to] = l;
}

/* Spreads line `at` until anchors stand by themselves in it. */
static void spread(struct spreader *s, size_t at)
{
    for (size_t i = 0; !s->t->failed && i < s->lines[at].n;) {
        uint32_t id = s->lines[at].items[i];
        const struct re_node *node = &s->t->nodes[id];

        if (!node->has_zero || (node->type != RE_SEQ && node->type != RE_ALT && node->type != RE_REPEAT)) {
            i++;
        } else if (node->type == RE_REPEAT) {
            regex_fail(s->t, RD_E_UNSUPPORTED, "an anchor or look-ahead that is repeated");
        } else if (node->type == RE_SEQ) {
            splice(s, at, i, id, at);
        } else {
            for (uint32_t child = s->t->nodes[node->first].next; child; child = s->t->nodes[child].next) {
                if (!new_line(s)) return;
                splice(s, at, i, child, s->n - 1);
            }
            splice(s, at, i, s->t->nodes[id].first, at);
        }
    }
}

static grammar_node emit_whole(struct re_tree *t, uint32_t root, bool json, bool any_before, bool any_after,
                               uint32_t depth);

static grammar_node emit_line(struct re_tree *t, const struct line *l, bool json, bool before, bool after,
                              uint32_t depth)
{
    struct grammar_builder *b = t->b;
    size_t from = 0, to = l->n;
    grammar_node tail;

    for (size_t i = 0; i < l->n; i++) { /* the last ^ and the first $ count */
        if (t->nodes[l->items[i]].type == RE_BEGIN) {
            for (size_t k = from; k < i; k++)
                if (!t->nodes[l->items[k]].nullable) return grammar_nothing(b);
            for (size_t k = from; k < i; k++)
                if (t->nodes[l->items[k]].type == RE_LOOK) regex_fail(t, RD_E_UNSUPPORTED, "look-ahead before ^");
            from = i + 1;
            before = false;
        }
    }
    for (size_t i = l->n; i-- > 0;) {
        if (t->nodes[l->items[i]].type == RE_END) {
            for (size_t k = i; k < to; k++) {
                if (!t->nodes[l->items[k]].nullable) return grammar_nothing(b);
                if (t->nodes[l->items[k]].type == RE_LOOK) regex_fail(t, RD_E_UNSUPPORTED, "look-ahead behind $");
            }
            to = i;
            after = false;
        }
    }
    tail = after ? any_text(t, json) : grammar_empty(b);
    if (from > to) { /* `$^`: the empty text, if nothing needs more */
        for (size_t k = to; k < from; k++)
            if (!t->nodes[l->items[k]].nullable) return grammar_nothing(b);
        return tail;
    }
    for (size_t i = to; i-- > from;) {
        const struct re_node *node = &t->nodes[l->items[i]];

        if (node->type == RE_LOOK) {
            bool negative = node->negative;
            grammar_node seen = emit_whole(t, node->first, json, false, true, depth + 1);

            tail = negative ? grammar_except(b, tail, seen) : grammar_both(b, tail, seen);
        } else {
            tail = grammar_pair(b, emit(t, l->items[i], json), tail);
        }
    }
    return before ? grammar_pair(b, any_text(t, json), tail) : tail;
}

static grammar_node emit_whole(struct re_tree *t, uint32_t root, bool json, bool any_before, bool any_after,
                               uint32_t depth)
{
    struct spreader s = {.t = t, .json = json};
    struct node_list parts = {0};
    struct line *first = depth < 8 ? new_line(&s) : NULL;

    if (depth >= 8) regex_fail(t, RD_E_INVALID, "look-ahead nested too deeply");
    if (first && put(&s, first, root)) {
        for (size_t i = 0; i < s.n && !t->failed; i++) {
            spread(&s, i);
            if (!t->failed) node_list_add(t->b, &parts, emit_line(t, &s.lines[i], json, any_before, any_after, depth));
        }
    }
    for (size_t i = 0; i < s.n; i++) mem_free(s.lines[i].items);
    mem_free(s.lines);
    return node_list_alt(t->b, &parts);
}

grammar_node regex_node_flags(struct grammar_builder *b, const char *text, size_t n, const char *flags, size_t n_flags,
                              int kind, const char *where)
{
    struct re_tree t = {.b = b, .text = text, .n = n, .where = where};
    bool searched = kind & REGEX_SEARCHED;
    grammar_node node = 0;
    uint32_t root;

    for (size_t i = 0; i < n_flags; i++) {
        if (flags[i] == 'i')
            t.ignore_case = true;
        else if (flags[i] == 's')
            t.dot_all = true;
        else if (flags[i] != 'u')
            regex_fail(&t, RD_E_UNSUPPORTED, "a flag other than i, s, u");
    }
    root = t.failed ? 0 : regex_parse(&t);
    if (root) node = emit_whole(&t, root, kind & REGEX_JSON, searched, searched, 0);
    regex_tree_deinit(&t);
    return t.failed ? 0 : node;
}

grammar_node regex_node(struct grammar_builder *b, const char *text, size_t n, int kind, const char *where)
{
    return regex_node_flags(b, text, n, "", 0, kind, where);
}

grammar_node grammar_from_regex(struct grammar_builder *b, const char *text, size_t n, bool searched)
{
    return regex_node(b, text, n, searched ? REGEX_SEARCHED : REGEX_WHOLE, "");
}
