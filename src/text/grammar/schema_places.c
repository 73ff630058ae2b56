/* text/grammar/schema_places.c - every object of a schema with its path and base URI; what $ref refers to.
 *
 * One walk over the document in the order of its levels; no recursion. Below const, enum, default and examples are values,
 * not schemas: no $id counts there.
 */
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/grammar/schema_state.h"

static bool is_word(const char *key, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(key, *words) == 0) return true;
    return false;
}

static const char *const value_words[] = {"const", "enum", "default", "examples", "example", NULL};
static const char *const map_words[] = {"properties",       "patternProperties", "$defs", "definitions",
                                        "dependentSchemas", "dependencies",      NULL};

static uint32_t place_at(const struct schema_state *s, const json_t *v)
{
    uint32_t id = v ? string_table_find(&s->by_pointer, (const char *)&v, sizeof(v)) : STRING_NONE;

    return id == STRING_NONE ? STRING_NONE : s->place_of[id];
}

/* Remembers that key (a new one) means value; false: it was there, or no memory. */
static bool keep(struct schema_state *s, struct string_table *t, uint32_t **values, size_t *cap, const char *key,
                 size_t n, uint32_t value)
{
    uint32_t id;
    bool is_new;

    if (string_table_add(t, key, n, &id, &is_new) != RD_OK ||
        !mem_grow((void **)values, cap, id + 1, sizeof(**values))) {
        schema_no_memory(s);
        return false;
    }
    if (is_new) (*values)[id] = value;
    return is_new;
}

void schema_alias(struct schema_state *s, const json_t *rewritten, const json_t *source)
{
    uint32_t place = place_at(s, source);

    if (place != STRING_NONE)
        keep(s, &s->by_pointer, &s->place_of, &s->place_of_cap, (const char *)&rewritten, sizeof(rewritten), place);
}

void schema_path(const struct schema_state *s, const json_t *v, char *out, size_t cap)
{
    uint32_t chain[SCHEMA_MAX_DEPTH + 2], n = 0, at = place_at(s, v);
    size_t used;

    for (; at != STRING_NONE && at != 0 && n < SCHEMA_MAX_DEPTH + 1; at = s->places[at].parent) chain[n++] = at;
    used = (size_t)snprintf(out, cap, "#");
    while (n-- > 0 && used + 4 < cap) {
        const struct place *p = &s->places[chain[n]];
        char quoted[80];
        int k;

        if (p->key)
            k = snprintf(out + used, cap - used, "/%s", error_quote(quoted, sizeof(quoted), p->key, strlen(p->key)));
        else
            k = snprintf(out + used, cap - used, "/%u", (unsigned)p->index);
        used += (size_t)k < cap - used ? (size_t)k : cap - used - 1;
    }
}

/* --- URIs --------------------------------------------------------------------------------------------------------- */

static size_t scheme_length(const char *u)
{
    size_t n = strspn(u, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");

    return n > 1 && u[n] == ':' ? n + 1 : 0;
}

/* Where the path of an absolute URI begins. */
static size_t path_start(const char *u)
{
    size_t at = scheme_length(u);

    if (strncmp(u + at, "//", 2) == 0) at += 2 + strcspn(u + at + 2, "/?#");
    return at;
}

/* Takes "." and ".." out of the path, in place. */
static void remove_dots(char *path)
{
    char *out = path, *in = path;

    while (*in) {
        size_t n = strcspn(in + 1, "/") + 1; /* with the slash before it */

        if (*in != '/') n = strcspn(in, "/");
        if (n == 2 && memcmp(in, "/.", 2) == 0) {
            if (!in[2]) *out++ = '/';
        } else if (n == 3 && memcmp(in, "/..", 3) == 0) {
            while (out > path && *--out != '/') {}
            if (!in[3]) *out++ = '/';
        } else {
            memmove(out, in, n);
            out += n;
        }
        in += n;
    }
    *out = 0;
}

/* ref against base, without its fragment (RFC 3986, section 5.2). */
static void resolve_uri(struct buf *out, const char *base, const char *ref)
{
    size_t n = strcspn(ref, "#"), start = path_start(base), keep_to = strcspn(base, "#?");
    size_t path_at;

    if (scheme_length(ref) || n == 0) {
        buf_append(out, scheme_length(ref) ? ref : base, scheme_length(ref) ? n : strcspn(base, "#"));
        return;
    }
    if (strncmp(ref, "//", 2) == 0) {
        buf_append(out, base, scheme_length(base));
        buf_append(out, ref, n);
        return;
    }
    buf_append(out, base, start);
    path_at = out->n;
    if (ref[0] != '/') {
        size_t slash = keep_to;

        while (slash > start && base[slash - 1] != '/') slash--;
        buf_append(out, base + start, slash - start);
    }
    buf_append(out, ref, n);
    if (out->failed || !out->data) return;
    remove_dots(out->data + path_at);
    out->n = strlen(out->data);
}

static uint32_t uri_id(struct schema_state *s, const char *uri, size_t n, uint32_t place, bool *is_new)
{
    *is_new = keep(s, &s->uris, &s->uri_place, &s->uri_place_cap, uri, n, place);
    return string_table_find(&s->uris, uri, n);
}

static const char *base_of(const struct schema_state *s, uint32_t place, char *out, size_t cap)
{
    size_t n;
    const char *u = string_table_at(&s->uris, s->places[place].base, &n);

    snprintf(out, cap, "%.*s", (int)n, u);
    return out;
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

static void add_anchor(struct schema_state *s, uint32_t place, const char *base, const char *anchor)
{
    struct buf uri = {0};
    bool is_new;

    buf_printf(&uri, "%s#%s", base, anchor);
    if (uri.failed)
        schema_no_memory(s);
    else
        uri_id(s, uri.data, uri.n, place, &is_new);
    buf_deinit(&uri);
}

static void note_ids(struct schema_state *s, uint32_t at)
{
    const json_t *v = s->places[at].v, *id = json_object_get(v, "$id"), *anchor;
    bool hidden = s->draft7 && json_object_get(v, "$ref");
    char base[2048];
    bool is_new;

    if (json_is_string(id) && !hidden) {
        struct buf uri = {0};

        base_of(s, at, base, sizeof(base));
        if (json_string_value(id)[0] == '#') {
            add_anchor(s, at, base, json_string_value(id) + 1);
        } else {
            resolve_uri(&uri, base, json_string_value(id));
            if (uri.failed || !uri.data) {
                schema_no_memory(s);
            } else {
                uint32_t known = uri_id(s, uri.data, uri.n, at, &is_new);

                if (known != STRING_NONE) s->places[at].base = known;
                if (!is_new && at) schema_fail(s, v, "$id", RD_E_INVALID, "the same $id as another schema's");
            }
            buf_deinit(&uri);
        }
    }
    for (int i = 0; i < 2; i++) {
        anchor = json_object_get(v, i ? "$dynamicAnchor" : "$anchor");
        if (json_is_string(anchor)) add_anchor(s, at, base_of(s, at, base, sizeof(base)), json_string_value(anchor));
    }
}

static void add_place(struct schema_state *s, const json_t *v, const char *key, uint32_t index, uint32_t parent,
                      bool is_map)
{
    struct place *p;

    if (s->failed || !(json_is_object(v) || json_is_array(v))) return;
    if (s->n_places >= SCHEMA_MAX_PLACES) {
        schema_fail(s, NULL, NULL, RD_E_INVALID, "a schema of more than %u objects and arrays", SCHEMA_MAX_PLACES);
        return;
    }
    if (!mem_grow((void **)&s->places, &s->places_cap, s->n_places + 1, sizeof(*s->places))) {
        schema_no_memory(s);
        return;
    }
    p = &s->places[s->n_places];
    *p = (struct place){.v = v, .key = key, .index = index, .parent = parent, .is_map = is_map};
    if (s->n_places) {
        p->depth = s->places[parent].depth + 1;
        p->base = s->places[parent].base;
    }
    keep(s, &s->by_pointer, &s->place_of, &s->place_of_cap, (const char *)&v, sizeof(v), (uint32_t)s->n_places++);
    if (p->depth > SCHEMA_MAX_DEPTH) {
        schema_fail(s, NULL, NULL, RD_E_INVALID, "a schema nested more than %u deep", SCHEMA_MAX_DEPTH);
    }
}

void schema_find_places(struct schema_state *s)
{
    bool is_new;

    uri_id(s, "", 0, 0, &is_new);
    add_place(s, s->root, NULL, 0, 0, false);
    for (uint32_t at = 0; at < s->n_places && !s->failed; at++) {
        const json_t *v = s->places[at].v;
        bool is_map = s->places[at].is_map;

        if (json_is_array(v)) {
            for (size_t i = 0; i < json_array_size(v); i++)
                add_place(s, json_array_get(v, i), NULL, (uint32_t)i, at, false);
            continue;
        }
        if (!is_map) note_ids(s, at);
        for (void *i = json_object_iter((json_t *)v); i; i = json_object_iter_next((json_t *)v, i)) {
            const char *key = json_object_iter_key(i);

            if (key[0] == '\001')
                schema_fail(s, v, NULL, RD_E_INVALID, "a keyword that begins with a control character");
            if (!is_map && is_word(key, value_words)) continue;
            add_place(s, json_object_iter_value(i), key, 0, at, !is_map && is_word(key, map_words));
        }
    }
}

/* --- $ref --------------------------------------------------------------------------------------------------------- */

/* One step of a JSON pointer: [from, to), escapes taken back. */
static const json_t *pointer_step(const json_t *v, const char *from, size_t n)
{
    char key[512];
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned c = (unsigned char)from[i], hex;

        if (k + 1 >= sizeof(key)) return NULL;
        if (c == '%' && i + 2 < n && sscanf(from + i + 1, "%2x", &hex) == 1) {
            c = hex;
            i += 2;
        }
        key[k++] = (char)c;
    }
    key[k] = 0;
    for (size_t i = 0, o = 0; i <= k; i++, o++) { /* ~1 and ~0 */
        bool escaped = key[i] == '~' && (key[i + 1] == '0' || key[i + 1] == '1');

        key[o] = escaped ? (key[i + 1] == '0' ? '~' : '/') : key[i];
        i += escaped;
    }
    if (json_is_array(v)) {
        unsigned index;
        int used = 0;

        return sscanf(key, "%9u%n", &index, &used) == 1 && !key[used] ? json_array_get(v, index) : NULL;
    }
    return json_object_get(v, key);
}

static const json_t *follow_pointer(const json_t *v, const char *pointer)
{
    while (v && *pointer == '/') {
        size_t n = strcspn(pointer + 1, "/");

        v = pointer_step(v, pointer + 1, n);
        pointer += n + 1;
    }
    return *pointer ? NULL : v;
}

const json_t *schema_resolve(struct schema_state *s, const json_t *schema, const char *ref)
{
    const char *fragment = strchr(ref, '#');
    uint32_t at = place_at(s, schema), id;
    const json_t *v = NULL;
    struct buf uri = {0};
    char base[2048], quoted[160];

    base_of(s, at == STRING_NONE ? 0 : at, base, sizeof(base));
    resolve_uri(&uri, base, ref);
    buf_puts(&uri, "");
    if (uri.failed) {
        schema_no_memory(s);
        buf_deinit(&uri);
        return NULL;
    }
    if (fragment && fragment[1] && fragment[1] != '/') buf_puts(&uri, fragment);
    id = string_table_find(&s->uris, uri.data ? uri.data : "", uri.n);
    if (id != STRING_NONE) v = s->places[s->uri_place[id]].v;
    buf_deinit(&uri);
    if (v && fragment && fragment[1] == '/') v = follow_pointer(v, fragment + 1);
    error_quote(quoted, sizeof(quoted), ref, strlen(ref));
    if (id == STRING_NONE && !(fragment == ref)) {
        schema_fail(s, schema, "$ref", RD_E_UNSUPPORTED, "%s is not in this schema: radish loads none", quoted);
    } else if (!v || !schema_is_one(v)) {
        schema_fail(s, schema, "$ref", RD_E_INVALID, "%s refers to nothing", quoted);
        v = NULL;
    } else if (json_is_object(v) && place_at(s, v) == STRING_NONE) {
        schema_fail(s, schema, "$ref", RD_E_UNSUPPORTED, "%s refers to a value, not a schema", quoted);
        v = NULL;
    }
    return v;
}
