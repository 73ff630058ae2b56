/* text/pattern.c - literals by memmem, expressions by PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"
#include <pcre2.h>
#include <string.h>
#include "base/buf.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"

#define SPACES                                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define MATCH_LIMIT 50000000u

struct pattern {
    char *text;
    size_t n;
    bool is_regex;
    pcre2_code *code;
    pcre2_general_context *memory;
};

static void *take(PCRE2_SIZE n, void *user)
{
    return mem_alloc(1, n);
}
static void give(void *p, void *user)
{
    mem_free(p);
}

/* ---- from Ruby's dialect ---- */

struct rewrite {
    const char *s;
    size_t n, at;
    struct buf out;
    size_t atom; /* where in out the last atom begins */
    size_t groups[64];
    unsigned n_groups;
    bool bad_class;
};

/* An escape outside (or inside) a class. */
static void rewrite_escape(struct rewrite *r, bool in_class)
{
    char c = r->at + 1 < r->n ? r->s[r->at + 1] : 0;
    size_t end = r->at + 2;

    if (!in_class) r->atom = r->out.n;
    if ((c == 'p' || c == 'P' || c == 'x') && end < r->n && r->s[end] == '{') {
        const char *close = memchr(r->s + end, '}', r->n - end);

        end = close ? (size_t)(close - r->s) + 1 : r->n;
    }
    if (c == 's')
        buf_puts(&r->out, in_class ? SPACES : "[" SPACES "]");
    else if (c == 'S' && !in_class)
        buf_puts(&r->out, "[^" SPACES "]");
    else if (c == 'h')
        buf_puts(&r->out, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
    else if (c == 'H' && !in_class)
        buf_puts(&r->out, "[^0-9a-fA-F]");
    else
        buf_append(&r->out, r->s + r->at, (end < r->n ? end : r->n) - r->at);
    r->at = end < r->n ? end : r->n;
}

static void rewrite_class(struct rewrite *r)
{
    bool first = true;

    r->atom = r->out.n;
    buf_putc(&r->out, r->s[r->at++]);
    if (r->at < r->n && r->s[r->at] == '^') buf_putc(&r->out, r->s[r->at++]);
    for (; r->at < r->n; first = false) {
        char c = r->s[r->at];

        if (c == '\\') {
            rewrite_escape(r, true);
            continue;
        }
        if (c == '&' && r->at + 1 < r->n && r->s[r->at + 1] == '&') r->bad_class = true;
        if (c == '[' && !(r->at + 1 < r->n && r->s[r->at + 1] == ':')) r->bad_class = true;
        if (c == '[' && !r->bad_class) { /* [:alpha:] */
            const char *close = memmem(r->s + r->at, r->n - r->at, ":]", 2);
            size_t len = close ? (size_t)(close - r->s) + 2 - r->at : r->n - r->at;

            buf_append(&r->out, r->s + r->at, len);
            r->at += len;
            continue;
        }
        buf_putc(&r->out, c);
        r->at++;
        if (c == ']' && !first) return;
    }
}

/* {n,m} behind an atom; a + behind it repeats the whole. */
static void rewrite_bounds(struct rewrite *r)
{
    const char *close = memchr(r->s + r->at, '}', r->n - r->at);
    size_t len = close ? (size_t)(close - r->s) + 1 - r->at : 1;
    bool again = close && r->at + len < r->n && r->s[r->at + len] == '+';
    struct buf atom = {0};

    if (!again) {
        buf_append(&r->out, r->s + r->at, len);
    } else {
        buf_append(&atom, r->out.data ? r->out.data + r->atom : "", r->out.n - r->atom);
        r->out.n = r->atom;
        buf_puts(&r->out, "(?:");
        buf_append(&r->out, atom.data ? atom.data : "", atom.n);
        buf_append(&r->out, r->s + r->at, len);
        buf_puts(&r->out, ")+");
        r->out.failed |= atom.failed;
        buf_deinit(&atom);
        len++;
    }
    r->at += len;
}

static void rewrite_all(struct rewrite *r)
{
    while (r->at < r->n) {
        char c = r->s[r->at];

        if (c == '\\') {
            rewrite_escape(r, false);
        } else if (c == '[') {
            rewrite_class(r);
        } else if (c == '{' && r->out.n) {
            rewrite_bounds(r);
        } else {
            if (c == '(' && r->n_groups < 64) r->groups[r->n_groups++] = r->out.n;
            if (c == ')' && r->n_groups)
                r->atom = r->groups[--r->n_groups];
            else if (((unsigned char)c & 0xc0) != 0x80 && !strchr("*+?", c))
                r->atom = r->out.n;
            buf_putc(&r->out, c);
            r->at++;
        }
    }
}

static rd_status compile(struct pattern *p, const char *where, struct rd_error *err)
{
    struct rewrite r = {.s = p->text, .n = p->n};
    char quoted[128], why[128];
    PCRE2_SIZE at = 0;
    int code = 0;
    pcre2_compile_context *context;

    error_quote(quoted, sizeof(quoted), p->text, p->n);
    rewrite_all(&r);
    if (r.bad_class && !r.out.failed) {
        buf_deinit(&r.out);
        return error_set(err, RD_E_UNSUPPORTED, "%s: a class inside a class or && in \"%s\"", where, quoted);
    }
    p->memory = pcre2_general_context_create(take, give, NULL);
    context = p->memory ? pcre2_compile_context_create(p->memory) : NULL;
    if (r.out.failed || !context) {
        buf_deinit(&r.out);
        pcre2_compile_context_free(context);
        return error_set(err, RD_E_NOMEM, "%s: out of memory", where);
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)(r.out.data ? r.out.data : ""), r.out.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, context);
    buf_deinit(&r.out);
    pcre2_compile_context_free(context);
    if (!p->code && code == PCRE2_ERROR_HEAP_FAILED) return error_set(err, RD_E_NOMEM, "%s: out of memory", where);
    if (!p->code) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
        return error_set(err, RD_E_FORMAT, "%s: expression \"%s\" breaks near byte %zu: %s", where, quoted, at, why);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without JIT: slower, the same */
    return RD_OK;
}

static rd_status create(const char *s, size_t n, bool is_regex, const char *where, struct pattern **out,
                        struct rd_error *err)
{
    struct pattern *p = mem_zalloc(1, sizeof(*p));
    rd_status st = RD_OK;

    if (n > LIMIT_TOKEN_BYTES) {
        mem_free(p);
        return error_set(err, RD_E_LIMIT, "%s: a pattern of %zu bytes, at most %u", where, n, LIMIT_TOKEN_BYTES);
    }
    if (p) p->text = mem_memdup(s, n);
    if (!p || !p->text) {
        mem_free(p);
        return error_set(err, RD_E_NOMEM, "%s: out of memory", where);
    }
    p->n = n;
    p->is_regex = is_regex;
    if (is_regex) st = compile(p, where, err);
    if (st == RD_OK)
        *out = p;
    else
        pattern_destroy(p);
    return st;
}

rd_status pattern_create_regex(const char *regex, size_t n, const char *where, struct pattern **out,
                               struct rd_error *err)
{
    return create(regex, n, true, where, out, err);
}

rd_status pattern_create(const json_t *config, const char *where, struct pattern **out, struct rd_error *err)
{
    const json_t *text = json_is_string(config) ? config : json_object_get(config, "String");
    const json_t *regex = json_object_get(config, "Regex");

    if (json_is_string(text)) return create(json_string_value(text), json_string_length(text), false, where, out, err);
    if (json_is_string(regex))
        return create(json_string_value(regex), json_string_length(regex), true, where, out, err);
    return error_set(err, RD_E_FORMAT, "%s: the pattern must be {\"String\": ...} or {\"Regex\": ...}", where);
}

void pattern_destroy(struct pattern *p)
{
    if (!p) return;
    pcre2_code_free(p->code);
    pcre2_general_context_free(p->memory);
    mem_free(p->text);
    mem_free(p);
}

const char *pattern_regex(const struct pattern *p, size_t *n)
{
    *n = p->n;
    return p->is_regex ? p->text : NULL;
}

rd_status pattern_begin(struct pattern_run *run, const struct pattern *p, const char *s, size_t n)
{
    *run = (struct pattern_run){p, s, n, 0, NULL, NULL};
    if (!p->is_regex) return RD_OK;
    run->data = pcre2_match_data_create(1, p->memory);
    run->limits = pcre2_match_context_create(p->memory);
    if (run->data && run->limits) {
        pcre2_set_match_limit(run->limits, MATCH_LIMIT);
        return RD_OK;
    }
    pattern_end(run);
    return RD_E_NOMEM;
}

void pattern_end(struct pattern_run *run)
{
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->limits);
    run->data = run->limits = NULL;
}

static size_t char_bytes(unsigned char c)
{
    return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

static rd_status match(struct pattern_run *run, bool *found, size_t *start, size_t *end)
{
    uint32_t options = PCRE2_NO_UTF_CHECK;
    PCRE2_SIZE *ends = pcre2_get_ovector_pointer(run->data);
    int rc = pcre2_match(run->p->code, (PCRE2_SPTR)run->s, run->n, run->at, options, run->data, run->limits);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(run->p->code, (PCRE2_SPTR)run->s, run->n, run->at, options | PCRE2_NO_JIT, run->data,
                         run->limits);
    if (rc == PCRE2_ERROR_NOMATCH) return RD_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return RD_E_NOMEM;
    if (rc < 0 || ends[1] < ends[0]) return RD_E_LIMIT;
    *found = true;
    *start = ends[0];
    *end = ends[1];
    return RD_OK;
}

rd_status pattern_next(struct pattern_run *run, bool *found, size_t *start, size_t *end)
{
    const struct pattern *p = run->p;
    rd_status st = RD_OK;

    *found = false;
    if (run->at > run->n) return RD_OK;
    if (p->is_regex) {
        st = match(run, found, start, end);
    } else if (p->n && run->n - run->at >= p->n) {
        const char *hit = memmem(run->s + run->at, run->n - run->at, p->text, p->n);

        *found = hit != NULL;
        if (hit) *start = (size_t)(hit - run->s), *end = *start + p->n;
    }
    if (*found) run->at = *end;
    if (*found && *end == *start) run->at += *end < run->n ? char_bytes((unsigned char)run->s[*end]) : 1;
    return st;
}
