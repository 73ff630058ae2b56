/* text/jinja/jinja_parser.c - statements: tokens to the chains of nodes that jinja_exec.c runs. */
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "text/jinja/jinja_ast.h"

static rd_status parse_body(struct jparse *p, const char *const *ends, struct jnode **out);

static rd_status new_node(struct jparse *p, enum jnode_kind kind, int line, struct jnode **out)
{
    *out = jnode_new(p, kind, line);
    return *out ? RD_OK : jparse_nomem(p);
}

static rd_status block_end(struct jparse *p)
{
    return jparse_expect(p, T_BLOCK_END, "%}");
}

/* The body of a statement and its end tag `name`, with the %} of both. */
static rd_status parse_block(struct jparse *p, const char *name, struct jnode **body)
{
    const char *ends[] = {name, NULL};
    rd_status st = block_end(p);

    if (st != RD_OK || (st = parse_body(p, ends, body)) != RD_OK) return st;
    jparse_next(p);
    return block_end(p);
}

/* What an assignment may stand for: a name, names in a tuple, and for `set` ns.attribute. */
static rd_status parse_target(struct jparse *p, bool with_attr, struct jnode **out)
{
    struct jnode *tuple = NULL, **tail = NULL, *item;
    int line = jparse_peek(p)->line;
    rd_status st;

    for (;;) {
        bool paren = jparse_is(p, T_LPAREN);
        if (paren) {
            jparse_next(p);
            if ((st = jparse_enter(p)) != RD_OK || (st = parse_target(p, false, &item)) != RD_OK) return st;
            p->depth--;
            if ((st = jparse_expect(p, T_RPAREN, ")")) != RD_OK) return st;
        } else {
            if ((st = new_node(p, N_NAME, jparse_peek(p)->line, &item)) != RD_OK) return st;
            if ((st = jparse_expect_name(p, &item->name)) != RD_OK) return st;
            if (jstr_is(item->name, "true") || jstr_is(item->name, "false") || jstr_is(item->name, "none") ||
                jstr_is(item->name, "True") || jstr_is(item->name, "False") || jstr_is(item->name, "None"))
                return jparse_fail(p, line, "can't assign to '%.*s'", (int)item->name->n, item->name->s);
            if (with_attr && jparse_skip(p, T_DOT)) {
                item->kind = N_ATTR;
                if ((st = new_node(p, N_NAME, line, &item->a)) != RD_OK) return st;
                item->a->name = item->name;
                if ((st = jparse_expect_name(p, &item->name)) != RD_OK) return st;
            }
        }
        if (!tuple && !jparse_is(p, T_COMMA)) {
            *out = item;
            return RD_OK;
        }
        if (!tuple) {
            if ((st = new_node(p, N_TUPLE, line, &tuple)) != RD_OK) return st;
            tail = &tuple->items;
        }
        *tail = item;
        tail = &item->next;
        tuple->n_items++;
        *out = tuple;
        if (!jparse_skip(p, T_COMMA) || !(jparse_is(p, T_NAME) || jparse_is(p, T_LPAREN)) || jparse_is_name(p, "in"))
            return RD_OK;
    }
}

static rd_status parse_for(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    rd_status st = parse_target(p, false, &n->a);

    if (st != RD_OK) return st;
    if (!jparse_skip_name(p, "in")) return jparse_fail(p, n->line, "expected 'in' after the names of a for");
    if ((st = jparse_tuple(p, false, &n->b)) != RD_OK) return st;
    if (jparse_skip_name(p, "if") && (st = jparse_expr(p, true, &n->c)) != RD_OK) return st;
    n->flag = jparse_skip_name(p, "recursive");
    if ((st = block_end(p)) != RD_OK) return st;
    p->n_loops++;
    st = parse_body(p, ends, &n->body);
    p->n_loops--;
    if (st != RD_OK) return st;
    if (jparse_skip_name(p, "else")) return parse_block(p, "endfor", &n->orelse);
    jparse_next(p);
    return block_end(p);
}

static rd_status parse_if(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jnode **tail = &n->items;
    rd_status st;

    for (;;) {
        struct jnode *branch;
        if ((st = new_node(p, N_BRANCH, jparse_peek(p)->line, &branch)) != RD_OK) return st;
        *tail = branch;
        tail = &branch->next;
        n->n_items++;
        if ((st = jparse_tuple(p, false, &branch->a)) != RD_OK || (st = block_end(p)) != RD_OK) return st;
        if ((st = parse_body(p, ends, &branch->body)) != RD_OK) return st;
        if (jparse_skip_name(p, "elif")) continue;
        if (jparse_skip_name(p, "else")) return parse_block(p, "endif", &n->orelse);
        jparse_next(p);
        return block_end(p);
    }
}

static rd_status parse_set(struct jparse *p, struct jnode *n)
{
    rd_status st = parse_target(p, true, &n->a);

    if (st != RD_OK) return st;
    if (jparse_skip(p, T_ASSIGN)) {
        if ((st = jparse_tuple(p, true, &n->b)) != RD_OK) return st;
        return block_end(p);
    }
    n->kind = N_SET_BLOCK;
    if (jparse_is(p, T_PIPE) && (st = jparse_filters(p, NULL, false, &n->b)) != RD_OK) return st;
    return parse_block(p, "endset", &n->body);
}

/* (a, b=1) of a macro or call block. */
static rd_status parse_params(struct jparse *p, struct jnode *n)
{
    struct jnode **tail = &n->items, *param;
    bool defaults = false;
    rd_status st = jparse_expect(p, T_LPAREN, "(");

    if (st != RD_OK) return st;
    while (!jparse_skip(p, T_RPAREN)) {
        if (n->n_items && (st = jparse_expect(p, T_COMMA, ",")) != RD_OK) return st;
        if (jparse_skip(p, T_RPAREN)) break;
        if ((st = new_node(p, N_PARAM, jparse_peek(p)->line, &param)) != RD_OK) return st;
        if ((st = jparse_expect_name(p, &param->name)) != RD_OK) return st;
        if (jparse_skip(p, T_ASSIGN)) {
            defaults = true;
            if ((st = jparse_expr(p, true, &param->a)) != RD_OK) return st;
        } else if (defaults) {
            return jparse_fail(p, n->line, "a parameter without default follows one with a default");
        }
        for (const struct jnode *k = n->items; k; k = k->next)
            if (k->name->n == param->name->n && !memcmp(k->name->s, param->name->s, param->name->n))
                return jparse_fail(p, n->line, "duplicate argument '%.*s'", (int)k->name->n, k->name->s);
        *tail = param;
        tail = &param->next;
        n->n_items++;
    }
    return RD_OK;
}

static rd_status parse_macro_body(struct jparse *p, const char *end, struct jnode *macro)
{
    int uses = p->macro_uses;
    uint32_t loops = p->n_loops;
    rd_status st;

    p->macro_uses = 0;
    p->n_loops = 0;
    st = parse_block(p, end, &macro->body);
    macro->op = p->macro_uses;
    p->macro_uses |= uses; /* jinja2 looks into what is nested, too */
    p->n_loops = loops;
    return st;
}

static rd_status parse_macro(struct jparse *p, struct jnode *n)
{
    rd_status st = jparse_expect_name(p, &n->name);

    if (st != RD_OK || (st = parse_params(p, n)) != RD_OK) return st;
    return parse_macro_body(p, "endmacro", n);
}

static rd_status parse_call_block(struct jparse *p, struct jnode *n)
{
    rd_status st = new_node(p, N_MACRO, n->line, &n->b);

    if (st != RD_OK) return st;
    if (jparse_is(p, T_LPAREN) && (st = parse_params(p, n->b)) != RD_OK) return st;
    if ((st = jparse_expr(p, true, &n->a)) != RD_OK) return st;
    if (n->a->kind != N_CALL) return jparse_fail(p, n->line, "a call block needs a call");
    return parse_macro_body(p, "endcall", n->b);
}

/* print a, b */
static rd_status parse_print(struct jparse *p, struct jnode *n)
{
    struct jnode **tail = &n->items, *item;
    rd_status st;

    while (!jparse_is(p, T_BLOCK_END)) {
        if (n->n_items && (st = jparse_expect(p, T_COMMA, ",")) != RD_OK) return st;
        if ((st = jparse_expr(p, true, &item)) != RD_OK) return st;
        *tail = item;
        tail = &item->next;
        n->n_items++;
    }
    return block_end(p);
}

static rd_status parse_autoescape(struct jparse *p, struct jnode *n)
{
    rd_status st = jparse_expr(p, true, &n->a);

    return st == RD_OK ? parse_block(p, "endautoescape", &n->body) : st;
}

/* block name [scoped] [required] ... endblock [name]. Nothing can override it here. */
static rd_status parse_named_block(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endblock", NULL};
    rd_status st = jparse_expect_name(p, &n->name);

    if (st != RD_OK) return st;
    for (const struct jnode *b = p->blocks; b; b = b->b)
        if (b->name->n == n->name->n && !memcmp(b->name->s, n->name->s, b->name->n))
            return jparse_fail(p, n->line, "block '%.*s' defined twice", (int)n->name->n, n->name->s);
    n->b = p->blocks;
    p->blocks = n;
    n->flag = jparse_skip_name(p, "scoped");
    if (jparse_skip_name(p, "required"))
        return jparse_fail(p, n->line,
                           "required blocks are not available here: there is no template to extend this one");
    if ((st = block_end(p)) != RD_OK || (st = parse_body(p, ends, &n->body)) != RD_OK) return st;
    jparse_next(p);
    if (jparse_is(p, T_NAME) && jparse_peek(p)->n == n->name->n && !memcmp(jparse_peek(p)->s, n->name->s, n->name->n))
        jparse_next(p);
    return block_end(p);
}

/* with context, without context */
static void skip_context(struct jparse *p)
{
    const struct jtoken *t = jparse_peek(p);

    if ((jparse_is_name(p, "with") || jparse_is_name(p, "without")) && t[1].kind == T_NAME && t[1].n == 7 &&
        !memcmp(t[1].s, "context", 7)) {
        jparse_next(p);
        jparse_next(p);
    }
}

/* The names of from ... import a, b as c. */
static rd_status parse_imports(struct jparse *p, struct jnode *n)
{
    struct jstr *name;
    rd_status st;

    if (!jparse_skip_name(p, "import")) return jparse_fail(p, n->line, "expected 'import'");
    do {
        if ((jparse_is_name(p, "with") || jparse_is_name(p, "without")) || !jparse_is(p, T_NAME)) break;
        if ((st = jparse_expect_name(p, &name)) != RD_OK) return st;
        if (jparse_skip_name(p, "as") && (st = jparse_expect_name(p, &name)) != RD_OK) return st;
    } while (jparse_skip(p, T_COMMA));
    return RD_OK;
}

/* include, import, from, extends: read as jinja2 reads them, so that one that is never reached does no harm. */
static rd_status parse_absent(struct jparse *p, struct jnode *n)
{
    const struct jtoken *keyword = jparse_peek(p) - 1;
    struct jstr *name;
    rd_status st;

    n->name = arena_alloc(p->arena, 1, sizeof(*n->name));
    if (!n->name) return jparse_nomem(p);
    *n->name = (struct jstr){.s = keyword->s, .n = keyword->n};
    if ((st = jparse_expr(p, true, &n->a)) != RD_OK) return st;
    if (jstr_is(n->name, "include") && jparse_skip_name(p, "ignore") && !jparse_skip_name(p, "missing"))
        return jparse_fail(p, n->line, "expected 'missing'");
    if (jstr_is(n->name, "import")) {
        if (!jparse_skip_name(p, "as")) return jparse_fail(p, n->line, "expected 'as'");
        if ((st = jparse_expect_name(p, &name)) != RD_OK) return st;
    }
    if (jstr_is(n->name, "from") && (st = parse_imports(p, n)) != RD_OK) return st;
    if (!jstr_is(n->name, "extends")) skip_context(p);
    return block_end(p);
}

static rd_status parse_with(struct jparse *p, struct jnode *n)
{
    struct jnode **tail = &n->items, *set;
    rd_status st;

    while (!jparse_is(p, T_BLOCK_END)) {
        if (n->n_items && (st = jparse_expect(p, T_COMMA, ",")) != RD_OK) return st;
        if ((st = new_node(p, N_SET, jparse_peek(p)->line, &set)) != RD_OK) return st;
        if ((st = new_node(p, N_NAME, set->line, &set->a)) != RD_OK) return st;
        if ((st = jparse_expect_name(p, &set->a->name)) != RD_OK || (st = jparse_expect(p, T_ASSIGN, "=")) != RD_OK ||
            (st = jparse_expr(p, true, &set->b)) != RD_OK)
            return st;
        *tail = set;
        tail = &set->next;
        n->n_items++;
    }
    return parse_block(p, "endwith", &n->body);
}

static rd_status parse_filter_block(struct jparse *p, struct jnode *n)
{
    rd_status st = jparse_filters(p, NULL, true, &n->b);

    return st == RD_OK ? parse_block(p, "endfilter", &n->body) : st;
}

/* transformers marks the assistant's text with it; the text itself is rendered as it is. */
static rd_status parse_generation(struct jparse *p, struct jnode *n)
{
    return parse_block(p, "endgeneration", &n->body);
}

static rd_status parse_jump(struct jparse *p, struct jnode *n)
{
    if (p->n_loops == 0)
        return jparse_fail(p, n->line, "'%s' outside of a loop", n->kind == N_BREAK ? "break" : "continue");
    return block_end(p);
}

/* The statement after {%. */
static rd_status parse_statement(struct jparse *p, struct jnode **out)
{
    static const struct {
        const char *name;
        enum jnode_kind kind;
        rd_status (*parse)(struct jparse *, struct jnode *);
    } table[] = {
        {"for", N_FOR, parse_for},
        {"if", N_IF, parse_if},
        {"set", N_SET, parse_set},
        {"macro", N_MACRO, parse_macro},
        {"call", N_CALL_BLOCK, parse_call_block},
        {"filter", N_FILTER_BLOCK, parse_filter_block},
        {"with", N_WITH, parse_with},
        {"generation", N_WITH, parse_generation},
        {"print", N_PRINT, parse_print},
        {"autoescape", N_AUTOESCAPE, parse_autoescape},
        {"block", N_BLOCK, parse_named_block},
        {"include", N_ABSENT, parse_absent},
        {"import", N_ABSENT, parse_absent},
        {"from", N_ABSENT, parse_absent},
        {"extends", N_ABSENT, parse_absent},
        {"break", N_BREAK, parse_jump},
        {"continue", N_CONTINUE, parse_jump},
    };
    const struct jtoken *t = jparse_peek(p);
    char buf[64];
    rd_status st;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (!jparse_skip_name(p, table[i].name)) continue;
        if ((st = jparse_enter(p)) != RD_OK || (st = new_node(p, table[i].kind, t->line, out)) != RD_OK) return st;
        st = table[i].parse(p, *out);
        p->depth--;
        return st;
    }
    if (t->kind != T_NAME) return jparse_fail(p, t->line, "expected the name of a statement");
    return jparse_fail(p, t->line, "unknown or misplaced statement '%s'", error_quote(buf, sizeof(buf), t->s, t->n));
}

static bool is_end(const struct jparse *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jparse_is_name(p, *ends)) return true;
    return false;
}

/* Up to {% and one of the names in ends, which stays to be read; NULL: up to the template's end. */
static rd_status parse_body(struct jparse *p, const char *const *ends, struct jnode **out)
{
    struct jnode **tail = out, *n;
    rd_status st = RD_OK;

    for (; st == RD_OK; tail = &n->next) {
        const struct jtoken *t = jparse_next(p);
        n = NULL;
        switch (t->kind) {
        case T_TEXT:
            if ((st = new_node(p, N_TEXT, t->line, &n)) != RD_OK) return st;
            n->name = arena_alloc(p->arena, 1, sizeof(*n->name));
            if (!n->name) return jparse_nomem(p);
            *n->name = (struct jstr){.s = t->s, .n = t->n};
            break;
        case T_VAR_BEGIN:
            if ((st = new_node(p, N_OUTPUT, t->line, &n)) != RD_OK || (st = jparse_tuple(p, true, &n->a)) != RD_OK)
                return st;
            st = jparse_expect(p, T_VAR_END, "}}");
            break;
        case T_BLOCK_BEGIN:
            if (is_end(p, ends)) return RD_OK;
            st = parse_statement(p, &n);
            break;
        default:
            return ends ? jparse_fail(p, t->line, "the template ends where '%s' was expected", ends[0]) : RD_OK;
        }
        if (st != RD_OK) return st;
        *tail = n;
    }
    return st;
}

rd_status jinja_parse(struct jparse *p, struct jnode **out)
{
    *out = NULL;
    return parse_body(p, NULL, out);
}
