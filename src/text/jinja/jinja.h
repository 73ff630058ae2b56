/* text/jinja/jinja.h - the Jinja language of chat templates: compile once, render often.
 *
 * The language of jinja2 3.1 as transformers configures it for chat templates (ImmutableSandboxedEnvironment, trim_blocks,
 * lstrip_blocks, loop controls, `generation` blocks rendered as they are, `tojson` without HTML escapes, raise_exception,
 * strftime_now), with the same text as result: lists and dicts cannot be changed. Statements that need a loader (include,
 * import, extends) are read, and fail when they are reached. Otherwise than there, map, select and their like compute at
 * once, integers have 64 bits, and `random` draws the same every time.
 *
 *     source -> jinja_lexer -> jinja_parser, jinja_expr -> AST (jinja_ast.h) in the template's arena
 *     context -> values (jinja_value.h) in an arena of the rendering -> jinja_exec, jinja_eval -> text
 *
 * The sandbox: a template sees its context, the functions of jinja_globals.c, filters, tests, and the methods of
 * jinja_methods.c by table; there is nothing else to reach. Steps, depth, output and memory are bounded by
 * base/limits.h.
 *
 * Units   lengths in bytes; positions inside template strings in code points, as in Python. Integers are 64 bits.
 * Thread  a compiled template is read-only: any thread renders.
 * Errors  RD_E_TEMPLATE: "line 3: ..." (syntax, undefined operations, raise_exception).  RD_E_LIMIT: "template_limit:
 * ...".  RD_E_NOMEM. Source  the documentation of jinja2 3.1 (template designer), Python's reference for str, list,
 * dict and number semantics.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct jinja;
/* source is copied. On success *out is freed with jinja_destroy(). */
rd_status jinja_create(const char *source, size_t n, struct jinja **out, struct rd_error *err);
void jinja_destroy(struct jinja *t);
/* True when the template reads a variable of this name anywhere. */
bool jinja_mentions(const struct jinja *t, const char *name);

/* vars: an object whose members are the template's variables; borrowed for the call. now_s: for strftime_now, local
 * time. mem_free *text; it is terminated with a 0 byte beyond n_bytes. */
rd_status jinja_render(const struct jinja *t, const json_t *vars, int64_t now_s, char **text, size_t *n_bytes,
                       struct rd_error *err);
