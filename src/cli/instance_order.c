/* cli/instance_order.c - ranks of names, then a copy. */
#include "cli/instance_order.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json_number.h"

#define MAX_DEPTH 200

/* Adds the names of objects among given values (const, enum). */
static void rank_given(const json_t *v, json_t *ranks, int depth)
{
    if (depth > MAX_DEPTH) return;
    for (void *i = json_object_iter((json_t *)v); i; i = json_object_iter_next((json_t *)v, i)) {
        const char *name = json_object_iter_key(i);

        if (!json_object_get(ranks, name))
            json_object_set_new(ranks, name, json_integer((json_int_t)json_object_size(ranks)));
        rank_given(json_object_iter_value(i), ranks, depth + 1);
    }
    for (size_t i = 0; i < json_array_size(v); i++) rank_given(json_array_get(v, i), ranks, depth + 1);
}

/* Adds the names of every "properties" in the schema, in its order, to ranks (an object: name -> its rank). */
static void rank_names(const json_t *schema, json_t *ranks, int depth)
{
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");

    if (depth > MAX_DEPTH) return;
    for (void *i = json_object_iter((json_t *)properties); i; i = json_object_iter_next((json_t *)properties, i)) {
        const char *name = json_object_iter_key(i);

        if (!json_object_get(ranks, name))
            json_object_set_new(ranks, name, json_integer((json_int_t)json_object_size(ranks)));
    }
    rank_given(json_object_get(schema, "const"), ranks, depth);
    rank_given(json_object_get(schema, "enum"), ranks, depth);
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));

        if (name && !json_object_get(ranks, name) && !properties)
            json_object_set_new(ranks, name, json_integer((json_int_t)json_object_size(ranks)));
    }
    for (void *i = json_object_iter((json_t *)schema); i; i = json_object_iter_next((json_t *)schema, i))
        rank_names(json_object_iter_value(i), ranks, depth + 1);
    for (size_t i = 0; i < json_array_size(schema); i++) rank_names(json_array_get(schema, i), ranks, depth + 1);
}

static json_t *ordered(const json_t *ranks, const json_t *v, int depth);

/* Members by rank: each round takes the lowest rank that is left, which for the few members of a value is quick. */
static json_t *ordered_object(const json_t *ranks, const json_t *v, int depth)
{
    json_t *out = json_object();
    json_int_t last = -1;

    while (out) {
        const char *next = NULL;
        json_int_t best = 0;

        for (void *i = json_object_iter((json_t *)v); i; i = json_object_iter_next((json_t *)v, i)) {
            const json_t *rank = json_object_get(ranks, json_object_iter_key(i));

            if (!rank || json_integer_value(rank) <= last) continue;
            if (next && json_integer_value(rank) >= best) continue;
            next = json_object_iter_key(i);
            best = json_integer_value(rank);
        }
        if (!next) break;
        last = best;
        if (json_object_set_new(out, next, ordered(ranks, json_object_get(v, next), depth + 1)) != 0) goto fail;
    }
    for (void *i = out ? json_object_iter((json_t *)v) : NULL; i; i = json_object_iter_next((json_t *)v, i)) {
        const char *name = json_object_iter_key(i);

        if (json_object_get(ranks, name)) continue;
        if (json_object_set_new(out, name, ordered(ranks, json_object_iter_value(i), depth + 1)) != 0) goto fail;
    }
    return out;

fail:
    json_decref(out);
    return NULL;
}

static json_t *ordered(const json_t *ranks, const json_t *v, int depth)
{
    json_t *out;

    if (depth > MAX_DEPTH) return NULL;
    if (json_is_object(v)) return ordered_object(ranks, v, depth);
    if (json_is_real(v)) {
        double x = json_real_value(v);

        return x == floor(x) && fabs(x) <= 9007199254740992.0 ? json_integer((json_int_t)x) : json_incref((json_t *)v);
    }
    if (!json_is_array(v)) return json_incref((json_t *)v);
    out = json_array();
    for (size_t i = 0; out && i < json_array_size(v); i++) {
        if (json_array_append_new(out, ordered(ranks, json_array_get(v, i), depth + 1)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static void put_real(const json_t *number, struct buf *out)
{
    const char *written = json_number_text(number);
    double v = json_real_value(number);
    char text[40];

    if (written && json_number_is_whole(written)) { /* beyond 64 bits */
        buf_puts(out, written);
        return;
    }

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_puts(out, text);
    if (!strpbrk(text, ".en")) buf_puts(out, ".0");
}

/* As json.dumps: what must be escaped in its one way, else as it stands. */
static void put_string(const char *s, size_t n, struct buf *out)
{
    static const char named[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";

    buf_putc(out, '"');
    for (size_t i = 0; i < n; i++) {
        const char *at = s[i] ? strchr(named, s[i]) : NULL;

        if (at)
            buf_printf(out, "\\%c", letters[at - named]);
        else if ((unsigned char)s[i] < 0x20)
            buf_printf(out, "\\u%04x", (unsigned)s[i]);
        else
            buf_putc(out, s[i]);
    }
    buf_putc(out, '"');
}

static int append(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return 0;
}

static void put(const json_t *v, struct buf *out, int depth)
{
    bool first = true;

    if (depth > MAX_DEPTH) {
        out->failed = true;
    } else if (json_is_real(v)) {
        put_real(v, out);
    } else if (json_is_string(v)) {
        put_string(json_string_value(v), json_string_length(v), out);
    } else if (json_is_object(v)) {
        buf_putc(out, '{');
        for (void *i = json_object_iter((json_t *)v); i; i = json_object_iter_next((json_t *)v, i)) {
            if (!first) buf_puts(out, ", ");
            first = false;
            put_string(json_object_iter_key(i), json_object_iter_key_len(i), out);
            buf_puts(out, ": ");
            put(json_object_iter_value(i), out, depth + 1);
        }
        buf_putc(out, '}');
    } else if (json_is_array(v)) {
        buf_putc(out, '[');
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (i) buf_puts(out, ", ");
            put(json_array_get(v, i), out, depth + 1);
        }
        buf_putc(out, ']');
    } else {
        json_dump_callback(v, append, out, JSON_ENCODE_ANY);
    }
}

void instance_text(const json_t *v, struct buf *out)
{
    put(v, out, 0);
}

json_t *instance_ordered(const json_t *schema, const json_t *value)
{
    json_t *ranks = json_object(), *out;

    if (!ranks) return NULL;
    rank_names(schema, ranks, 0);
    out = ordered(ranks, value, 0);
    json_decref(ranks);
    return out;
}
