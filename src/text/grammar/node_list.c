/* text/grammar/node_list.c - lists of nodes. */
#include "text/grammar/node_list.h"
#include <string.h>
#include "base/mem.h"

void node_list_add(struct grammar_builder *b, struct node_list *l, grammar_node node)
{
    if (!mem_grow((void **)&l->v, &l->cap, l->n + 1, sizeof(*l->v))) {
        grammar_fail(b, RD_E_NOMEM, "out of memory");
        return;
    }
    l->v[l->n++] = node;
}

static void forget(struct node_list *l)
{
    mem_free(l->v);
    memset(l, 0, sizeof(*l));
}

grammar_node node_list_seq(struct grammar_builder *b, struct node_list *l)
{
    grammar_node node = l->n == 1 ? l->v[0] : grammar_seq(b, l->v, (uint32_t)l->n);

    forget(l);
    return node;
}

grammar_node node_list_alt(struct grammar_builder *b, struct node_list *l)
{
    grammar_node node = l->n == 1 ? l->v[0] : grammar_alt(b, l->v, (uint32_t)l->n);

    forget(l);
    return node;
}

grammar_node grammar_word(struct grammar_builder *b, const char *text)
{
    return grammar_text(b, text, strlen(text));
}

grammar_node grammar_pair(struct grammar_builder *b, grammar_node first, grammar_node second)
{
    grammar_node parts[2] = {first, second};

    return grammar_seq(b, parts, 2);
}

grammar_node grammar_three(struct grammar_builder *b, grammar_node first, grammar_node second, grammar_node third)
{
    grammar_node parts[3] = {first, second, third};

    return grammar_seq(b, parts, 3);
}

grammar_node grammar_either(struct grammar_builder *b, grammar_node one, grammar_node other)
{
    grammar_node parts[2] = {one, other};

    return grammar_alt(b, parts, 2);
}

grammar_node grammar_maybe(struct grammar_builder *b, grammar_node node)
{
    return grammar_repeat(b, node, 0, 1);
}
