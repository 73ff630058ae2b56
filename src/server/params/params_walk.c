/* server/params/params_walk.c - the interpreter of the table: finds each row's field, checks it, stores it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/thread.h"
#include "server/params/params.h"

#define MAX_NAME          64u /* of a row, its end included */
#define MAX_IGNORED       16u /* names told in the header */
#define MAX_IGNORED_BYTES 48u /* of one name */

/* ---- kinds ---- */

static unsigned kinds_of(const struct param_spec *s)
{
    switch (s->type) {
    case PARAM_NUMBER:
    case PARAM_REAL:
        return KIND_NUMBER;
    case PARAM_INT:
    case PARAM_WHOLE:
        return KIND_INT;
    case PARAM_BOOL:
        return KIND_BOOL;
    case PARAM_CUSTOM:
        break;
    }
    return s->kinds;
}

static bool is_whole(const json_t *v)
{
    return json_is_integer(v) || (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
}

static bool is_of_kind(const json_t *v, unsigned kinds)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return kinds & KIND_OBJECT;
    case JSON_ARRAY:
        return kinds & KIND_LIST;
    case JSON_STRING:
        return kinds & KIND_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return (kinds & KIND_NUMBER) || ((kinds & KIND_INT) && is_whole(v));
    case JSON_TRUE:
    case JSON_FALSE:
        return kinds & KIND_BOOL;
    case JSON_NULL:
        return kinds & KIND_NULL;
    }
    return false;
}

/* "a string or a list" */
static const char *kinds_text(unsigned kinds, char *to, size_t n)
{
    static const struct {
        unsigned kind;
        const char *text;
    } names[] = {{KIND_NUMBER, "a number"}, {KIND_INT, "an integer"}, {KIND_BOOL, "true or false"},
                 {KIND_STRING, "a string"}, {KIND_LIST, "a list"},    {KIND_OBJECT, "an object"},
                 {KIND_NULL, "null"}};
    size_t at = 0;

    to[0] = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!(kinds & names[i].kind)) continue;
        kinds &= ~names[i].kind;
        at += (size_t)snprintf(to + at, n - at, "%s%s", at == 0 ? "" : kinds ? ", " : " or ", names[i].text);
    }
    return to;
}

static int wrong_kind(const char *name, unsigned kinds, const json_t *v, struct api_error *e)
{
    static const char *const names[] = {"an object", "a list", "a string", "an integer",
                                        "a number",  "true",   "false",    "null"};
    char wanted[96];

    kinds_text(kinds, wanted, sizeof(wanted));
    return api_error_set(e, 400, name, "%s: %s wanted, found %s", name, wanted, names[json_typeof(v)]);
}

/* ---- one field ---- */

static bool is_choice(const char *choices, const char *s)
{
    size_t n = strlen(s);

    for (const char *at = choices; n && *at;) {
        size_t n_at = strcspn(at, "|");

        if (n_at == n && memcmp(at, s, n) == 0) return true;
        at += n_at + (at[n_at] != 0);
    }
    return false;
}

/* The choices as a sentence has them: "auto, none". */
static int no_choice(const struct param_spec *s, const char *name, struct api_error *e)
{
    char list[256];
    size_t n = 0;

    for (const char *c = s->choices; *c && n + 3 < sizeof(list); c++) {
        list[n++] = *c == '|' ? ',' : *c;
        if (*c == '|') list[n++] = ' ';
    }
    list[n] = 0;
    return api_error_set(e, 400, name, "%s: one of %s wanted", name, list);
}

/* What is no text for the model becomes a C string somewhere. */
static bool has_nul(const struct param_spec *s, const json_t *v)
{
    return !s->is_text && json_is_string(v) && !json_plain(v);
}

static int check_size(const struct param_spec *s, const char *name, const json_t *v, struct api_error *e)
{
    bool list = json_is_array(v);
    size_t n = list ? json_array_size(v) : json_object_size(v);
    const char *things = list ? "elements" : "members";

    if (s->n_max && n > s->n_max) return api_error_set(e, 400, name, "%s: at most %u %s", name, s->n_max, things);
    if (n < s->n_min && n == 0) return api_error_set(e, 400, name, "%s: empty", name);
    if (n < s->n_min) return api_error_set(e, 400, name, "%s: at least %u %s", name, s->n_min, things);
    for (size_t i = 0; list && s->items && i < n; i++) {
        const json_t *item = json_array_get(v, i);
        char wanted[96];

        if (has_nul(s, item)) return api_error_set(e, 400, name, "%s: element %zu holds a NUL character", name, i);
        if (is_of_kind(item, s->items)) continue;
        return api_error_set(e, 400, name, "%s: element %zu: %s wanted", name, i,
                             kinds_text(s->items, wanted, sizeof(wanted)));
    }
    return 0;
}

/* Kind, range, choices, sizes. */
static int check(const struct param_spec *s, const char *name, const json_t *v, struct api_error *e)
{
    if (!is_of_kind(v, kinds_of(s))) return wrong_kind(name, kinds_of(s), v, e);
    if (json_is_number(v)) {
        double x = json_number_value(v);

        /* an integer beyond 64 bits is a real number here, and 2^63 as one is no less than a bound of 2^63 */
        if (!isfinite(x)) return api_error_set(e, 400, name, "%s: a number beyond what a double holds", name);
        if (!(x >= s->min && x <= s->max) || (s->type == PARAM_INT && json_is_real(v) && x >= 0x1p63))
            return api_error_set(e, 400, name, "%s: must be within %.16g and %.16g", name, s->min, s->max);
    }
    if (has_nul(s, v)) return api_error_set(e, 400, name, "%s: holds a NUL character", name);
    if (json_is_string(v) && s->choices && !is_choice(s->choices, json_string_value(v))) return no_choice(s, name, e);
    if (json_is_array(v) || json_is_object(v)) return check_size(s, name, v, e);
    return 0;
}

static void store(const struct param_spec *s, const json_t *v, struct gen_params *p)
{
    char *at = (char *)p + s->offset;
    bool given = true, b = json_is_true(v);
    double x = json_number_value(v);
    int64_t i = json_is_integer(v) ? (int64_t)json_integer_value(v) : x < 0x1p63 ? (int64_t)x : INT64_MAX;

    switch (s->type) {
    case PARAM_NUMBER:
        memcpy(at, &x, sizeof(x));
        break;
    case PARAM_INT:
        memcpy(at, &i, sizeof(i));
        break;
    case PARAM_REAL:
        memcpy(at, &(float){(float)x}, sizeof(float));
        break;
    case PARAM_WHOLE:
        memcpy(at, &(int32_t){(int32_t)i}, sizeof(int32_t));
        break;
    case PARAM_BOOL:
        memcpy(at, &b, sizeof(b));
        break;
    case PARAM_CUSTOM:
        break;
    }
    if (s->has_offset) memcpy((char *)p + s->has_offset, &given, sizeof(given));
}

/* ---- the walk ---- */

/* Member "a.b": b of the object a; NULL: absent. */
static const json_t *member(const json_t *body, const char *name)
{
    const char *dot = strchr(name, '.');

    if (!dot) return json_object_get(body, name);
    return json_object_get(json_object_getn(body, name, (size_t)(dot - name)), dot + 1);
}

/* The row's names one after the other: copies the next to name; *at starts as NULL. */
static bool next_name(const struct param_spec *s, const char **at, char name[MAX_NAME])
{
    const char *from = *at ? *at : s->name;
    size_t n = from ? strcspn(from, " ") : 0;

    if (n == 0) return false;
    snprintf(name, MAX_NAME, "%.*s", (int)n, from);
    if (!*at)
        *at = s->alias ? s->alias : "";
    else
        *at = from + n + (from[n] == ' ');
    return true;
}

/* Of one row, under each of its names. */
static int read_row(const struct param_spec *s, const json_t *body, unsigned endpoint, struct gen_params *p,
                    struct api_error *e)
{
    char name[MAX_NAME];
    const char *at = NULL;
    bool found = false;

    while (next_name(s, &at, name)) {
        const json_t *v = member(body, name);

        if (!v || json_is_null(v)) continue;
        found = true;
        if (check(s, name, v, e)) return -1;
        if (p && s->offset) store(s, v, p);
        if (p && s->custom && s->custom(name, v, p, e)) return -1;
    }
    if (!found && (s->required & endpoint)) return api_error_set(e, 400, s->name, "%s: missing", s->name);
    return 0;
}

int params_read(const json_t *body, unsigned endpoint, struct gen_params *p, struct api_error *e)
{
    size_t n;
    const struct param_spec *rows = param_table(&n);

    for (size_t i = 0; i < n; i++)
        if ((rows[i].endpoints & endpoint) && read_row(&rows[i], body, endpoint, p, e)) return -1;
    return 0;
}

/* ---- which fields have rows ---- */

/* Names of rows, those of members left out, by their hash: a body has as many fields as its client likes. Built once,
 * read-only afterwards. */
#define NAME_SLOTS 1024u /* a power of two, several times the names */

static struct named {
    const char *s;
    size_t n;
    const struct param_spec *row;
} names[NAME_SLOTS];
static struct once names_once = ONCE_INIT;

static uint32_t name_hash(const char *s, size_t n)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ^ h >> 15;
}

static void add_name(const char *s, size_t n, const struct param_spec *row)
{
    uint32_t at = name_hash(s, n) % NAME_SLOTS;

    if (memchr(s, '.', n)) return;
    while (names[at].s) at = (at + 1) % NAME_SLOTS;
    names[at] = (struct named){s, n, row};
}

static void build_names(void)
{
    size_t n;
    const struct param_spec *rows = param_table(&n);

    for (size_t i = 0; i < n; i++) {
        const char *more = rows[i].alias ? rows[i].alias : "";

        add_name(rows[i].name, strlen(rows[i].name), &rows[i]);
        for (size_t len; *more; more += len + (more[len] == ' ')) {
            len = strcspn(more, " ");
            add_name(more, len, &rows[i]);
        }
    }
}

/* Has a row of the endpoint this name? Those of members do not count. */
static const struct param_spec *row_of(const char *field, unsigned endpoint)
{
    size_t n = strlen(field);

    if (n >= MAX_NAME) return NULL;
    once_run(&names_once, build_names);
    for (uint32_t at = name_hash(field, n) % NAME_SLOTS; names[at].s; at = (at + 1) % NAME_SLOTS)
        if (names[at].n == n && (names[at].row->endpoints & endpoint) && memcmp(names[at].s, field, n) == 0)
            return names[at].row;
    return NULL;
}

/* Letters, digits, '_', '.' and '-' as they are; everything else as '%' and two digits, so that a name can be no more
 * than a name. */
static void put_name(const char *s, struct buf *out)
{
    size_t n = strlen(s), n_told = n < MAX_IGNORED_BYTES ? n : MAX_IGNORED_BYTES;

    for (size_t i = 0; i < n_told; i++) {
        unsigned char c = (unsigned char)s[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                     c == '.' || c == '-';

        if (plain)
            buf_putc(out, (char)c);
        else
            buf_printf(out, "%%%02X", c);
    }
    if (n_told < n) buf_puts(out, "...");
}

void params_ignored(const json_t *body, unsigned endpoint, struct buf *out)
{
    const char *key;
    json_t *v;
    size_t n = 0;

    json_object_foreach((json_t *)(uintptr_t)body, key, v)
    {
        if (row_of(key, endpoint)) continue;
        if (n++ >= MAX_IGNORED) continue;
        if (n > 1) buf_puts(out, ", ");
        put_name(key, out);
    }
    if (n > MAX_IGNORED) buf_printf(out, ", and %zu more", n - MAX_IGNORED);
}

json_t *params_shared(const json_t *body, unsigned from, unsigned to)
{
    json_t *copy = json_object(), *v;
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)body, key, v)
    {
        const struct param_spec *s = row_of(key, from);

        if (!s || !(s->endpoints & to)) continue;
        if (json_object_set(copy, key, v)) {
            json_decref(copy);
            return NULL;
        }
    }
    return copy;
}
