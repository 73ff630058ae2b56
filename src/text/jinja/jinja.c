/* text/jinja/jinja.c - compiling and rendering: the two arenas, the limits, and the way out of an error. */
#include "text/jinja/jinja.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "text/jinja/jinja_run.h"

struct jinja {
    struct arena arena; /* source and nodes */
    struct jnode *body;
    struct jnode *names; /* every variable read, chained by body */
};

/* \r\n and \r become \n; one newline at the end goes. */
static rd_status normalize(struct jparse *p, const char *source, size_t n)
{
    char *s = arena_alloc(p->arena, n + 1, 1);
    size_t o = 0;

    if (!s) return jparse_nomem(p);
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        s[o++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (o && s[o - 1] == '\n') o--;
    s[o] = 0;
    p->src = s;
    p->n = o;
    return RD_OK;
}

rd_status jinja_create(const char *source, size_t n, struct jinja **out, struct rd_error *err)
{
    struct jinja *t;
    struct jparse p = {.err = err};
    rd_status st = RD_E_NOMEM;

    if (n > LIMIT_TEMPLATE_BYTES)
        return error_set(err, RD_E_LIMIT, "template_limit: a template of %zu bytes, at most %u", n,
                         LIMIT_TEMPLATE_BYTES);
    t = mem_zalloc(1, sizeof(*t));
    if (!t) return error_set(err, RD_E_NOMEM, "out of memory while compiling a chat template");
    arena_init(&t->arena, LIMIT_TEMPLATE_MEMORY);
    p.arena = &t->arena;
    if ((st = normalize(&p, source, n)) != RD_OK || (st = jinja_lex(&p)) != RD_OK) goto fail;
    if ((st = jinja_parse(&p, &t->body)) != RD_OK) goto fail;
    t->names = p.names;
    mem_free(p.tokens);
    *out = t;
    return RD_OK;

fail:
    mem_free(p.tokens);
    jinja_destroy(t);
    return st;
}

void jinja_destroy(struct jinja *t)
{
    if (!t) return;
    arena_deinit(&t->arena);
    mem_free(t);
}

bool jinja_mentions(const struct jinja *t, const char *name)
{
    for (const struct jnode *n = t->names; n; n = n->body)
        if (jstr_is(n->name, name)) return true;
    return false;
}

rd_status jrun_fail(struct jrun *r, const char *format, ...)
{
    char text[448];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set(r->err, RD_E_TEMPLATE, "line %d: %s", r->line, text);
}

rd_status jrun_limit(struct jrun *r, const char *what)
{
    return error_set(r->err, RD_E_LIMIT, "template_limit: line %d: %s", r->line, what);
}

rd_status jrun_pay(struct jrun *r, uint64_t steps)
{
    if (steps >= r->fuel) {
        r->fuel = 0;
        return jrun_limit(r, "the template does too much work");
    }
    r->fuel -= steps;
    return RD_OK;
}

rd_status jrun_alloc(struct jrun *r, size_t n, size_t size, void *out)
{
    uint64_t bytes;
    void *p;
    rd_status st;

    if (!checked_mul(n, size, &bytes) || bytes > LIMIT_TEMPLATE_MEMORY)
        return jrun_limit(r, "the template needs too much memory");
    if ((st = jrun_pay(r, bytes / 32 + 1)) != RD_OK) return st;
    p = arena_alloc(&r->arena, n, size);
    if (!p && r->arena.out_of_limit) return jrun_limit(r, "the template needs too much memory");
    if (!p) return error_set(r->err, RD_E_NOMEM, "out of memory while rendering a chat template");
    memcpy(out, &p, sizeof(p));
    return RD_OK;
}

rd_status jrun_enter_call(struct jrun *r)
{
    if (r->calls >= LIMIT_TEMPLATE_DEPTH) return jrun_limit(r, "calls or values are nested too deeply");
    r->calls++;
    return RD_OK;
}

rd_status jrun_write(struct jrun *r, const char *s, size_t n)
{
    rd_status st = jrun_pay(r, n / 16 + 1);

    if (st != RD_OK) return st;
    if (n > LIMIT_TEMPLATE_OUTPUT - r->out->n) return jrun_limit(r, "the template writes too much text");
    buf_append(r->out, s, n);
    return r->out->failed ? error_set(r->err, RD_E_NOMEM, "out of memory while rendering a chat template") : RD_OK;
}

rd_status jrun_take_buf(struct jrun *r, struct buf *b, rd_status st, struct jval *out)
{
    if (st == RD_OK && b->failed) {
        st = b->limit && b->n >= b->limit / 2
                 ? jrun_limit(r, "the template makes too long a text")
                 : error_set(r->err, RD_E_NOMEM, "out of memory while rendering a chat template");
    }
    if (st == RD_OK) st = jval_str(r, b->data ? b->data : "", b->n, out);
    buf_deinit(b);
    return st;
}

rd_status jinja_render(const struct jinja *t, const json_t *vars, int64_t now_s, char **text, size_t *n_bytes,
                       struct rd_error *err)
{
    struct jrun r = {.fuel = LIMIT_TEMPLATE_STEPS, .now_s = now_s, .err = err};
    struct jscope top = {0};
    struct buf out;
    struct jval context;
    size_t n = 0;
    char *bytes = NULL;
    rd_status st;

    arena_init(&r.arena, LIMIT_TEMPLATE_MEMORY);
    buf_init(&out);
    r.out = &out;
    r.scope = &top;
    st = vars ? jval_from_json(&r, vars, &context) : jval_dict(&r, &context);
    if (st == RD_OK && context.kind != J_DICT)
        st = error_set(err, RD_E_INVALID, "the variables of a template must be an object");
    if (st == RD_OK) {
        r.context = context.dict;
        st = jinja_exec(&r, t->body);
    }
    if (st == RD_OK) {
        buf_append(&out, "", 0);
        bytes = out.data ? buf_take(&out, &n) : mem_zalloc(1, 1);
        if (!bytes) st = error_set(err, RD_E_NOMEM, "out of memory while rendering a chat template");
    }
    buf_deinit(&out);
    arena_deinit(&r.arena);
    if (st != RD_OK) return st;
    *text = bytes;
    *n_bytes = n;
    return RD_OK;
}
