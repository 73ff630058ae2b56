/* text/jinja/jinja_ast.h - tokens and the syntax tree of a template, in the template's arena.
 *
 * One node type for all: what the fields mean stands beside each kind. Lists of nodes are chained by `next`.
 * Nesting is bounded while parsing (LIMIT_TEMPLATE_DEPTH); long chains such as a + b + ... lean left and are bounded
 * when they run. Thread  read-only once compiled.
 */
#pragma once
#include "base/arena.h"
#include "text/jinja/jinja_value.h"

enum jtoken_kind {
    T_EOF,
    T_TEXT,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VAR_BEGIN,
    T_VAR_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_DIV,
    T_FLOORDIV,
    T_MUL,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_IN,
    T_NOT_IN /* operators of N_OPERAND only */
};

struct jtoken {
    enum jtoken_kind kind;
    int line;
    const char *s;
    size_t n;
    int64_t i;
    double f;
};

enum jnode_kind {
    /* expressions */
    N_CONST, /* value */
    N_NAME,  /* name */
    N_LIST,
    N_TUPLE, /* items */
    N_DICT,  /* items: key, value, key, value ... */
    N_COND,  /* a if b else c; c may be NULL */
    N_AND,
    N_OR, /* a, b */
    N_NOT,
    N_NEG,
    N_POS,     /* a */
    N_BINARY,  /* a op b */
    N_CONCAT,  /* items joined by ~ */
    N_COMPARE, /* a, then items: N_OPERAND op a */
    N_OPERAND,
    N_ATTR,  /* a.name */
    N_ITEM,  /* a[b] */
    N_SLICE, /* a:b:c, each may be NULL; only as b of N_ITEM */
    N_CALL,  /* a(items); items may be N_KWARG (name, a), N_STAR (a), N_STAR2 (a) */
    N_KWARG,
    N_STAR,
    N_STAR2,
    N_FILTER, /* a | name(items); a NULL: the text of the block around it */
    N_TEST,   /* a is name(items) */
    /* statements */
    N_TEXT,   /* name */
    N_OUTPUT, /* a */
    N_IF,     /* items: N_BRANCH (a, body); orelse */
    N_BRANCH,
    N_FOR,       /* for a in b if c: body, orelse; flag: recursive */
    N_SET,       /* a = b */
    N_SET_BLOCK, /* a = body through the filters b (may be NULL) */
    N_MACRO,     /* name(items: N_PARAM name, a = default or NULL): body; uses of varargs, kwargs, caller in op */
    N_PARAM,
    N_CALL_BLOCK,   /* call(items) a: body; b: the N_MACRO of the body */
    N_FILTER_BLOCK, /* b: filters; body */
    N_WITH,         /* items: N_SET; body, in a scope of its own */
    N_PRINT,        /* items, each written */
    N_AUTOESCAPE,   /* a: whether body escapes what it writes */
    N_BLOCK,        /* name: body, in a scope beside the top one (flag: inside the one around it) */
    N_ABSENT,       /* name: a statement that needs a loader; fails when it is reached */
    N_BREAK,
    N_CONTINUE
};
enum { MACRO_VARARGS = 1, MACRO_KWARGS = 2, MACRO_CALLER = 4 };

struct jnode {
    enum jnode_kind kind;
    int line;
    int op; /* enum jtoken_kind, or MACRO_ bits */
    bool flag;
    uint32_t n_items;
    struct jstr *name;
    struct jval value;
    struct jnode *a, *b, *c;
    struct jnode *items, *body, *orelse;
    struct jnode *next;
};

/* What is known while compiling. The lexer fills tokens; the parsers read them one after the other. */
struct jparse {
    struct arena *arena;
    const char *src; /* newlines are \n, no trailing one */
    size_t n;
    struct jtoken *tokens; /* ends with T_EOF */
    size_t n_tokens, cap_tokens, pos;
    uint32_t depth;
    uint32_t n_loops;     /* break and continue need one */
    int macro_uses;       /* MACRO_ bits seen in the macro being parsed */
    struct jnode *names;  /* every N_NAME read, chained by `body`: for jinja_mentions() */
    struct jnode *blocks; /* every N_BLOCK, chained by `b` */
    struct rd_error *err;
};

rd_status jparse_fail(struct jparse *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
rd_status jparse_nomem(struct jparse *p);
/* One more level of nesting; undone with p->depth--. */
rd_status jparse_enter(struct jparse *p);

/* jinja_lexer.c: p->src to p->tokens (mem_free them). */
rd_status jinja_lex(struct jparse *p);

/* jinja_expr.c */
static inline const struct jtoken *jparse_peek(const struct jparse *p)
{
    return &p->tokens[p->pos];
}
const struct jtoken *jparse_next(struct jparse *p);
bool jparse_is(const struct jparse *p, enum jtoken_kind kind);
bool jparse_is_name(const struct jparse *p, const char *name);
bool jparse_skip(struct jparse *p, enum jtoken_kind kind);
bool jparse_skip_name(struct jparse *p, const char *name);
rd_status jparse_expect(struct jparse *p, enum jtoken_kind kind, const char *what);
rd_status jparse_expect_name(struct jparse *p, struct jstr **out);
struct jnode *jnode_new(struct jparse *p, enum jnode_kind kind, int line);
rd_status jparse_expr(struct jparse *p, bool with_cond, struct jnode **out);
/* a, b, c as a tuple, or the one expression. */
rd_status jparse_tuple(struct jparse *p, bool with_cond, struct jnode **out);
rd_status jparse_primary(struct jparse *p, struct jnode **out);
rd_status jparse_postfix(struct jparse *p, struct jnode **node);
rd_status jparse_call_args(struct jparse *p, struct jnode *call);
/* | name(args) | ... applied to node, which may be NULL. first: the leading | was read. */
rd_status jparse_filters(struct jparse *p, struct jnode *node, bool first, struct jnode **out);

/* jinja_parser.c: tokens to a chain of statements. */
rd_status jinja_parse(struct jparse *p, struct jnode **out);
