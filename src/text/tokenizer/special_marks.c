/* text/tokenizer/special_marks.c - see the header. */
#include "text/tokenizer/special_marks.h"
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_impl.h"

bool special_marks_guard(const struct tokenizer *t, int32_t id)
{
    enum token_type type = tokenizer_type(t, id);
    struct text_span name;

    if (type != TOKEN_CONTROL && type != TOKEN_UNKNOWN && type != TOKEN_USER_DEFINED) return false;
    name.s = string_table_at(&t->strings, (uint32_t)id, &name.n);
    if (type != TOKEN_USER_DEFINED) return name.n > 1;
    return name.n > 4 && !memcmp(name.s, "<|", 2) && !memcmp(name.s + name.n - 2, "|>", 2);
}

rd_status special_marks_build(struct tokenizer *t)
{
    struct prefix_entry *list = mem_alloc(t->n_tokens, sizeof(*list));
    size_t n = 0;
    rd_status st;

    if (!list) return RD_E_NOMEM;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        struct prefix_entry e = {.value = id};

        if (!special_marks_guard(t, (int32_t)id)) continue;
        e.s = string_table_at(&t->strings, id, &e.n);
        if (e.n > LIMIT_SEARCHED_TOKEN_BYTES)
            e.n = LIMIT_SEARCHED_TOKEN_BYTES; /* broken at its beginning all the same */
        list[n++] = e;
    }
    st = n ? prefix_index_init(&t->guarded, list, n) : RD_OK;
    mem_free(list);
    return st;
}

static size_t char_bytes(const char *s, size_t n)
{
    uint32_t cp;
    int len = utf8_decode(s, n, &cp);

    return (size_t)(len > 0 ? len : -len);
}

static bool is_allowed(const char *const *allowed, const char *s, size_t n)
{
    for (; allowed && *allowed; allowed++)
        if (strlen(*allowed) == n && !memcmp(*allowed, s, n)) return true;
    return false;
}

/* Bytes behind which a name that s begins with is to be broken; 0: it begins with none. */
static size_t break_in(const struct tokenizer *t, const char *s, size_t n, const char *const *allowed)
{
    struct prefix_walk walk = prefix_walk_begin(&t->guarded, s, n);
    size_t first = char_bytes(s, n);

    while (prefix_walk_next(&walk))
        if (walk.length > first && !is_allowed(allowed, s, walk.length)) return first;
    return 0;
}

bool special_marks_put(const struct tokenizer *t, const char *s, size_t n, const char *const *allowed, struct buf *out)
{
    size_t from = 0; /* s[0 .. from) is written */
    bool changed = false, is_open = false;

    for (size_t at = 0; at < n; at++) {
        const bool is_mark = text_mark_is(s + at, n - at);
        size_t len = 0;

        if (!is_mark && !(t->guarded.n && prefix_may_start(&t->guarded, s + at, n - at)) && at + 1 < n) continue;
        if (!is_mark) len = break_in(t, s + at, n - at, allowed);
        is_open |= prefix_index_extends(&t->guarded, s + at, n - at);
        if (!is_mark && len == 0) continue;
        buf_append(out, s + from, at + len - from);
        text_marks_write(out);
        from = at + len;
        changed = true;
    }
    buf_append(out, s + from, n - from);
    if (is_open) text_marks_write(out); /* what follows might complete a name */
    return changed || is_open;
}
