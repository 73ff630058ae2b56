/* text/jinja/jinja_expr.c - expressions: tokens to nodes, by descent through the levels of precedence.
 *
 *     condition > or > and > not > comparison > + - > ~ > * / // % > ** > sign > primary, postfix, filters and tests
 */
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "text/jinja/jinja_ast.h"

const struct jtoken *jparse_next(struct jparse *p)
{
    const struct jtoken *t = jparse_peek(p);

    if (t->kind != T_EOF) p->pos++;
    return t;
}

bool jparse_is(const struct jparse *p, enum jtoken_kind kind)
{
    return jparse_peek(p)->kind == kind;
}

bool jparse_is_name(const struct jparse *p, const char *name)
{
    const struct jtoken *t = jparse_peek(p);

    return t->kind == T_NAME && t->n == strlen(name) && !memcmp(t->s, name, t->n);
}

bool jparse_skip(struct jparse *p, enum jtoken_kind kind)
{
    if (!jparse_is(p, kind)) return false;
    jparse_next(p);
    return true;
}

bool jparse_skip_name(struct jparse *p, const char *name)
{
    if (!jparse_is_name(p, name)) return false;
    jparse_next(p);
    return true;
}

static const char *token_text(const struct jtoken *t, char *buf, size_t cap)
{
    static const char *const names[] = {"the end of the template",
                                        "text",
                                        "{%",
                                        "%}",
                                        "{{",
                                        "}}",
                                        "name",
                                        "a string",
                                        "an integer",
                                        "a float",
                                        "+",
                                        "-",
                                        "/",
                                        "//",
                                        "*",
                                        "%",
                                        "**",
                                        "~",
                                        "[",
                                        "]",
                                        "(",
                                        ")",
                                        "{",
                                        "}",
                                        "==",
                                        "!=",
                                        ">",
                                        ">=",
                                        "<",
                                        "<=",
                                        "=",
                                        ".",
                                        ":",
                                        "|",
                                        ",",
                                        ";",
                                        "in",
                                        "not in"};

    return t->kind == T_NAME ? error_quote(buf, cap, t->s, t->n) : names[t->kind];
}

rd_status jparse_expect(struct jparse *p, enum jtoken_kind kind, const char *what)
{
    char buf[64];

    if (jparse_skip(p, kind)) return RD_OK;
    return jparse_fail(p, jparse_peek(p)->line, "found '%s', expected '%s'",
                       token_text(jparse_peek(p), buf, sizeof(buf)), what);
}

static rd_status make_str(struct jparse *p, const char *s, size_t n, struct jstr **out)
{
    struct jstr *str = arena_alloc(p->arena, 1, sizeof(*str));

    if (!str) return jparse_nomem(p);
    *str = (struct jstr){.s = s, .n = n, .n_chars = SIZE_MAX};
    jstr_hash(str);
    jstr_n_chars(NULL, str);
    *out = str;
    return RD_OK;
}

rd_status jparse_expect_name(struct jparse *p, struct jstr **out)
{
    const struct jtoken *t = jparse_peek(p);
    rd_status st = jparse_expect(p, T_NAME, "a name");

    return st == RD_OK ? make_str(p, t->s, t->n, out) : st;
}

struct jnode *jnode_new(struct jparse *p, enum jnode_kind kind, int line)
{
    struct jnode *n = arena_alloc(p->arena, 1, sizeof(*n));

    if (n) {
        n->kind = kind;
        n->line = line;
    }
    return n;
}

static rd_status add_item(struct jparse *p, struct jnode *list, struct jnode ***tail, struct jnode *item)
{
    if (!item) return jparse_nomem(p);
    if (list->n_items == 0) *tail = &list->items;
    **tail = item;
    *tail = &item->next;
    list->n_items++;
    return RD_OK;
}

static rd_status new_const(struct jparse *p, int line, struct jval v, struct jnode **out)
{
    *out = jnode_new(p, N_CONST, line);
    if (!*out) return jparse_nomem(p);
    (*out)->value = v;
    return RD_OK;
}

/* One string of adjacent literals. */
static rd_status parse_string(struct jparse *p, struct jnode **out)
{
    const struct jtoken *t = jparse_next(p);
    size_t n = t->n, from = p->pos;
    const char *s = t->s;
    struct jval v = {.kind = J_STR};
    char *joined;
    rd_status st;

    while (jparse_is(p, T_STRING)) n += jparse_next(p)->n;
    if (p->pos > from) {
        joined = arena_alloc(p->arena, n + 1, 1);
        if (!joined) return jparse_nomem(p);
        memcpy(joined, t->s, t->n);
        n = t->n;
        for (size_t i = from; i < p->pos; i++) {
            memcpy(joined + n, p->tokens[i].s, p->tokens[i].n);
            n += p->tokens[i].n;
        }
        s = joined;
    }
    if ((st = make_str(p, s, n, &v.s)) != RD_OK) return st;
    return new_const(p, t->line, v, out);
}

/* Comma-separated expressions up to close, which is read too; dict: key: value pairs. */
static rd_status parse_items(struct jparse *p, enum jnode_kind kind, enum jtoken_kind close, struct jnode **out)
{
    struct jnode *list = jnode_new(p, kind, jparse_peek(p)->line), **tail = NULL, *item;
    rd_status st;

    if (!list) return jparse_nomem(p);
    while (!jparse_skip(p, close)) {
        if (list->n_items && (st = jparse_expect(p, T_COMMA, ",")) != RD_OK) return st;
        if (jparse_skip(p, close)) break;
        if ((st = jparse_expr(p, true, &item)) != RD_OK || (st = add_item(p, list, &tail, item)) != RD_OK) return st;
        if (kind != N_DICT) continue;
        if ((st = jparse_expect(p, T_COLON, ":")) != RD_OK || (st = jparse_expr(p, true, &item)) != RD_OK ||
            (st = add_item(p, list, &tail, item)) != RD_OK)
            return st;
    }
    *out = list;
    return RD_OK;
}

/* ( ... ): a tuple, or the expression inside. */
static rd_status parse_paren(struct jparse *p, struct jnode **out)
{
    rd_status st;
    int line = jparse_next(p)->line;

    if (jparse_skip(p, T_RPAREN)) {
        *out = jnode_new(p, N_TUPLE, line);
        return *out ? RD_OK : jparse_nomem(p);
    }
    if ((st = jparse_tuple(p, true, out)) != RD_OK) return st;
    return jparse_expect(p, T_RPAREN, ")");
}

static rd_status parse_name(struct jparse *p, struct jnode **out)
{
    const struct jtoken *t = jparse_next(p);
    struct jstr *name = NULL;
    rd_status st = make_str(p, t->s, t->n, &name);

    if (st != RD_OK) return st;
    if (jstr_is(name, "true") || jstr_is(name, "True")) return new_const(p, t->line, jval_bool(true), out);
    if (jstr_is(name, "false") || jstr_is(name, "False")) return new_const(p, t->line, jval_bool(false), out);
    if (jstr_is(name, "none") || jstr_is(name, "None")) return new_const(p, t->line, jval_none(), out);
    if (jstr_is(name, "varargs")) p->macro_uses |= MACRO_VARARGS;
    if (jstr_is(name, "kwargs")) p->macro_uses |= MACRO_KWARGS;
    if (jstr_is(name, "caller")) p->macro_uses |= MACRO_CALLER;
    *out = jnode_new(p, N_NAME, t->line);
    if (!*out) return jparse_nomem(p);
    (*out)->name = name;
    (*out)->body = p->names;
    p->names = *out;
    return RD_OK;
}

rd_status jparse_primary(struct jparse *p, struct jnode **out)
{
    const struct jtoken *t = jparse_peek(p);
    char buf[64];

    switch (t->kind) {
    case T_NAME:
        return parse_name(p, out);
    case T_STRING:
        return parse_string(p, out);
    case T_INT:
        jparse_next(p);
        return new_const(p, t->line, jval_int(t->i), out);
    case T_FLOAT:
        jparse_next(p);
        return new_const(p, t->line, jval_float(t->f), out);
    case T_LPAREN:
        return parse_paren(p, out);
    case T_LBRACKET:
        jparse_next(p);
        return parse_items(p, N_LIST, T_RBRACKET, out);
    case T_LBRACE:
        jparse_next(p);
        return parse_items(p, N_DICT, T_RBRACE, out);
    default:
        return jparse_fail(p, t->line, "found '%s', expected an expression", token_text(t, buf, sizeof(buf)));
    }
}

/* One index or a:b:c. */
static rd_status parse_subscript(struct jparse *p, struct jnode **out)
{
    struct jnode *parts[3] = {0}, *slice;
    int n = 0;
    rd_status st;

    if (!jparse_is(p, T_COLON)) {
        if ((st = jparse_expr(p, true, &parts[0])) != RD_OK) return st;
        if (!jparse_is(p, T_COLON)) {
            *out = parts[0];
            return RD_OK;
        }
    }
    while (n < 2 && jparse_skip(p, T_COLON)) {
        n++;
        if (jparse_is(p, T_COLON) || jparse_is(p, T_RBRACKET) || jparse_is(p, T_COMMA)) continue;
        if ((st = jparse_expr(p, true, &parts[n])) != RD_OK) return st;
    }
    slice = jnode_new(p, N_SLICE, jparse_peek(p)->line);
    if (!slice) return jparse_nomem(p);
    slice->a = parts[0];
    slice->b = parts[1];
    slice->c = parts[2];
    *out = slice;
    return RD_OK;
}

static rd_status parse_bracket(struct jparse *p, struct jnode *of, struct jnode **out)
{
    struct jnode *n = jnode_new(p, N_ITEM, jparse_next(p)->line), *tuple, **tail = NULL, *item;
    rd_status st;

    if (!n) return jparse_nomem(p);
    n->a = of;
    if ((st = parse_subscript(p, &n->b)) != RD_OK) return st;
    if (jparse_is(p, T_COMMA)) {
        tuple = jnode_new(p, N_TUPLE, n->line);
        if (!tuple) return jparse_nomem(p);
        if ((st = add_item(p, tuple, &tail, n->b)) != RD_OK) return st;
        while (jparse_skip(p, T_COMMA))
            if ((st = jparse_expr(p, true, &item)) != RD_OK || (st = add_item(p, tuple, &tail, item)) != RD_OK)
                return st;
        n->b = tuple;
    }
    *out = n;
    return jparse_expect(p, T_RBRACKET, "]");
}

static rd_status parse_dot(struct jparse *p, struct jnode *of, struct jnode **out)
{
    int line = jparse_next(p)->line;
    struct jnode *n = jnode_new(p, jparse_is(p, T_INT) ? N_ITEM : N_ATTR, line);

    if (!n) return jparse_nomem(p);
    n->a = of;
    *out = n;
    if (n->kind == N_ITEM) return new_const(p, line, jval_int(jparse_next(p)->i), &n->b);
    return jparse_expect_name(p, &n->name);
}

rd_status jparse_call_args(struct jparse *p, struct jnode *call)
{
    struct jnode **tail = NULL, *arg;
    rd_status st = jparse_expect(p, T_LPAREN, "(");
    bool named = false;

    if (st != RD_OK) return st;
    while (!jparse_skip(p, T_RPAREN)) {
        enum jnode_kind kind = N_KWARG;
        int line = jparse_peek(p)->line;

        if (call->n_items && (st = jparse_expect(p, T_COMMA, ",")) != RD_OK) return st;
        if (jparse_skip(p, T_RPAREN)) break;
        if (jparse_skip(p, T_MUL))
            kind = N_STAR;
        else if (jparse_skip(p, T_POW))
            kind = N_STAR2;
        else if (!(jparse_is(p, T_NAME) && p->tokens[p->pos + 1].kind == T_ASSIGN)) {
            if (named) return jparse_fail(p, line, "a positional argument follows named ones");
            if ((st = jparse_expr(p, true, &arg)) != RD_OK || (st = add_item(p, call, &tail, arg)) != RD_OK) return st;
            continue;
        }
        arg = jnode_new(p, kind, line);
        if ((st = add_item(p, call, &tail, arg)) != RD_OK) return st;
        named |= kind != N_STAR;
        if (kind == N_KWARG &&
            ((st = jparse_expect_name(p, &arg->name)) != RD_OK || (st = jparse_expect(p, T_ASSIGN, "=")) != RD_OK))
            return st;
        if ((st = jparse_expr(p, true, &arg->a)) != RD_OK) return st;
    }
    return RD_OK;
}

static rd_status parse_call(struct jparse *p, struct jnode *of, struct jnode **out)
{
    struct jnode *n = jnode_new(p, N_CALL, jparse_peek(p)->line);

    if (!n) return jparse_nomem(p);
    n->a = of;
    *out = n;
    return jparse_call_args(p, n);
}

rd_status jparse_postfix(struct jparse *p, struct jnode **node)
{
    rd_status st = RD_OK;

    while (st == RD_OK) {
        if (jparse_is(p, T_DOT))
            st = parse_dot(p, *node, node);
        else if (jparse_is(p, T_LBRACKET))
            st = parse_bracket(p, *node, node);
        else if (jparse_is(p, T_LPAREN))
            st = parse_call(p, *node, node);
        else
            break;
    }
    return st;
}

/* The name of a filter or test, which may have dots. */
static rd_status parse_dotted(struct jparse *p, struct jstr **out)
{
    struct jstr *more = NULL;
    rd_status st = jparse_expect_name(p, out);

    while (st == RD_OK && jparse_skip(p, T_DOT)) {
        char *joined;
        if ((st = jparse_expect_name(p, &more)) != RD_OK) return st;
        joined = arena_alloc(p->arena, (*out)->n + more->n + 1, 1);
        if (!joined) return jparse_nomem(p);
        memcpy(joined, (*out)->s, (*out)->n);
        joined[(*out)->n] = '.';
        memcpy(joined + (*out)->n + 1, more->s, more->n);
        st = make_str(p, joined, (*out)->n + more->n + 1, out);
    }
    return st;
}

rd_status jparse_filters(struct jparse *p, struct jnode *node, bool first, struct jnode **out)
{
    rd_status st;

    while (first || jparse_skip(p, T_PIPE)) {
        struct jnode *n = jnode_new(p, N_FILTER, jparse_peek(p)->line);
        if (!n) return jparse_nomem(p);
        n->a = node;
        if ((st = parse_dotted(p, &n->name)) != RD_OK) return st;
        if (jparse_is(p, T_LPAREN) && (st = jparse_call_args(p, n)) != RD_OK) return st;
        node = n;
        first = false;
    }
    *out = node;
    return RD_OK;
}

static bool starts_test_argument(const struct jparse *p)
{
    switch (jparse_peek(p)->kind) {
    case T_STRING:
    case T_INT:
    case T_FLOAT:
    case T_LPAREN:
    case T_LBRACKET:
    case T_LBRACE:
        return true;
    case T_NAME:
        return !jparse_is_name(p, "else") && !jparse_is_name(p, "or") && !jparse_is_name(p, "and");
    default:
        return false;
    }
}

static rd_status parse_test(struct jparse *p, struct jnode *of, struct jnode **out)
{
    int line = jparse_next(p)->line;
    bool negated = jparse_skip_name(p, "not");
    struct jnode *n = jnode_new(p, N_TEST, line), *outer;
    rd_status st;

    if (!n) return jparse_nomem(p);
    n->a = of;
    if ((st = parse_dotted(p, &n->name)) != RD_OK) return st;
    if (jparse_is(p, T_LPAREN)) {
        if ((st = jparse_call_args(p, n)) != RD_OK) return st;
    } else if (starts_test_argument(p)) {
        if (jparse_is_name(p, "is")) return jparse_fail(p, line, "tests with `is` cannot be chained");
        if ((st = jparse_enter(p)) != RD_OK) return st;
        if ((st = jparse_primary(p, &n->items)) != RD_OK || (st = jparse_postfix(p, &n->items)) != RD_OK) return st;
        p->depth--;
        n->n_items = 1;
    }
    *out = n;
    if (!negated) return RD_OK;
    outer = jnode_new(p, N_NOT, line);
    if (!outer) return jparse_nomem(p);
    outer->a = n;
    *out = outer;
    return RD_OK;
}

static rd_status parse_unary(struct jparse *p, bool with_filter, struct jnode **out)
{
    int line = jparse_peek(p)->line;
    struct jnode *node = NULL;
    rd_status st = jparse_enter(p);

    if (st != RD_OK) return st;
    if (jparse_is(p, T_SUB) || jparse_is(p, T_ADD)) {
        node = jnode_new(p, jparse_next(p)->kind == T_SUB ? N_NEG : N_POS, line);
        if (!node) return jparse_nomem(p);
        st = parse_unary(p, false, &node->a);
    } else {
        st = jparse_primary(p, &node);
    }
    if (st == RD_OK) st = jparse_postfix(p, &node);
    while (st == RD_OK && with_filter) {
        if (jparse_is(p, T_PIPE))
            st = jparse_filters(p, node, false, &node);
        else if (jparse_is_name(p, "is"))
            st = parse_test(p, node, &node);
        else if (jparse_is(p, T_LPAREN))
            st = parse_call(p, node, &node);
        else
            break;
    }
    p->depth--;
    *out = node;
    return st;
}

/* The left-leaning levels, loosest first. ~ makes one flat node. */
enum level { LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static bool is_operator(enum level level, enum jtoken_kind kind)
{
    switch (level) {
    case LEVEL_SUM:
        return kind == T_ADD || kind == T_SUB;
    case LEVEL_CONCAT:
        return kind == T_TILDE;
    case LEVEL_PRODUCT:
        return kind == T_MUL || kind == T_DIV || kind == T_FLOORDIV || kind == T_MOD;
    case LEVEL_POWER:
        return kind == T_POW;
    default:
        return false;
    }
}

static rd_status parse_math(struct jparse *p, enum level level, struct jnode **out)
{
    struct jnode *left, *node, **tail = NULL;
    rd_status st;

    if (level == LEVEL_UNARY) return parse_unary(p, true, out);
    if ((st = parse_math(p, level + 1, &left)) != RD_OK) return st;
    while (is_operator(level, jparse_peek(p)->kind)) {
        const struct jtoken *t = jparse_next(p);
        struct jnode *right;

        if ((st = parse_math(p, level + 1, &right)) != RD_OK) return st;
        if (level == LEVEL_CONCAT && tail) {
            if ((st = add_item(p, left, &tail, right)) != RD_OK) return st;
            continue;
        }
        node = jnode_new(p, level == LEVEL_CONCAT ? N_CONCAT : N_BINARY, t->line);
        if (!node) return jparse_nomem(p);
        node->op = t->kind;
        if (level == LEVEL_CONCAT) {
            if ((st = add_item(p, node, &tail, left)) != RD_OK || (st = add_item(p, node, &tail, right)) != RD_OK)
                return st;
        } else {
            node->a = left;
            node->b = right;
        }
        left = node;
    }
    *out = left;
    return RD_OK;
}

/* The comparison operator that comes next, read; T_EOF when there is none. */
static enum jtoken_kind take_comparison(struct jparse *p)
{
    enum jtoken_kind kind = jparse_peek(p)->kind;

    if (kind >= T_EQ && kind <= T_LE) {
        jparse_next(p);
        return kind;
    }
    if (jparse_skip_name(p, "in")) return T_IN;
    if (jparse_is_name(p, "not") && p->tokens[p->pos + 1].kind == T_NAME) {
        p->pos++;
        if (jparse_skip_name(p, "in")) return T_NOT_IN;
        p->pos--;
    }
    return T_EOF;
}

static rd_status parse_compare(struct jparse *p, struct jnode **out)
{
    struct jnode *first, *node = NULL, *operand, **tail = NULL;
    enum jtoken_kind op;
    int line = jparse_peek(p)->line;
    rd_status st = parse_math(p, LEVEL_SUM, &first);

    while (st == RD_OK && (op = take_comparison(p)) != T_EOF) {
        if (!node) {
            node = jnode_new(p, N_COMPARE, line);
            if (!node) return jparse_nomem(p);
            node->a = first;
        }
        operand = jnode_new(p, N_OPERAND, line);
        if ((st = add_item(p, node, &tail, operand)) != RD_OK) return st;
        operand->op = op;
        st = parse_math(p, LEVEL_SUM, &operand->a);
    }
    *out = node ? node : first;
    return st;
}

static rd_status parse_not(struct jparse *p, struct jnode **out)
{
    struct jnode **at = out;
    rd_status st = RD_OK;
    uint32_t n = 0;

    while (st == RD_OK && jparse_is_name(p, "not")) {
        *at = jnode_new(p, N_NOT, jparse_next(p)->line);
        if (!*at) return jparse_nomem(p);
        at = &(*at)->a;
        if (++n > LIMIT_TEMPLATE_DEPTH) st = jparse_enter(p);
    }
    return st == RD_OK ? parse_compare(p, at) : st;
}

/* or, and: left-leaning too. */
static rd_status parse_logic(struct jparse *p, enum jnode_kind kind, struct jnode **out)
{
    rd_status st = kind == N_OR ? parse_logic(p, N_AND, out) : parse_not(p, out);

    while (st == RD_OK && jparse_is_name(p, kind == N_OR ? "or" : "and")) {
        struct jnode *node = jnode_new(p, kind, jparse_next(p)->line);
        if (!node) return jparse_nomem(p);
        node->a = *out;
        st = kind == N_OR ? parse_logic(p, N_AND, &node->b) : parse_not(p, &node->b);
        *out = node;
    }
    return st;
}

rd_status jparse_expr(struct jparse *p, bool with_cond, struct jnode **out)
{
    struct jnode *node;
    rd_status st = jparse_enter(p);

    if (st != RD_OK) return st;
    if ((st = parse_logic(p, N_OR, out)) != RD_OK) return st;
    while (with_cond && jparse_is_name(p, "if")) {
        node = jnode_new(p, N_COND, jparse_next(p)->line);
        if (!node) return jparse_nomem(p);
        node->b = *out;
        if ((st = parse_logic(p, N_OR, &node->a)) != RD_OK) return st;
        if (jparse_skip_name(p, "else") && (st = jparse_expr(p, true, &node->c)) != RD_OK) return st;
        *out = node;
    }
    p->depth--;
    return RD_OK;
}

rd_status jparse_tuple(struct jparse *p, bool with_cond, struct jnode **out)
{
    struct jnode *item, *tuple, **tail = NULL;
    int line = jparse_peek(p)->line;
    rd_status st = jparse_expr(p, with_cond, &item);

    if (st != RD_OK || !jparse_is(p, T_COMMA)) {
        *out = item;
        return st;
    }
    tuple = jnode_new(p, N_TUPLE, line);
    if (!tuple) return jparse_nomem(p);
    if ((st = add_item(p, tuple, &tail, item)) != RD_OK) return st;
    while (jparse_skip(p, T_COMMA)) {
        enum jtoken_kind k = jparse_peek(p)->kind;
        if (k == T_RPAREN || k == T_BLOCK_END || k == T_VAR_END) break;
        if ((st = jparse_expr(p, with_cond, &item)) != RD_OK || (st = add_item(p, tuple, &tail, item)) != RD_OK)
            return st;
    }
    *out = tuple;
    return RD_OK;
}
