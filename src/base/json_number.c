/* base/json_number.c - jansson's real with a text behind it: jansson reads the value and frees the block, both as its own. */
#include "base/json_number.h"
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EXPONENT_DIGITS 15u /* a number with more of them has no other form than its text */

/* jansson's json_real_t, and more; its own functions look at the first two alone. */
struct number {
    json_t json;
    double value;
    char text[]; /* "": computed */
};

static json_t *make(const char *text, size_t n, double value)
{
    json_malloc_t alloc;
    struct number *v;

    json_get_alloc_funcs(&alloc, NULL);
    v = alloc(sizeof(*v) + n + 1);
    if (!v) return NULL;
    v->json.type = JSON_REAL;
    v->json.refcount = 1;
    v->value = value;
    memcpy(v->text, text, n);
    v->text[n] = 0;
    return &v->json;
}

json_t *json_number(const char *text, size_t n, double value)
{
    return make(text, n, value);
}

json_t *json_number_real(double value)
{
    return isfinite(value) ? make("", 0, value) : NULL;
}

const char *json_number_text(const json_t *v)
{
    const char *text = json_is_real(v) ? (const char *)v + offsetof(struct number, text) : "";

    return *text ? text : NULL;
}

bool json_number_is_whole(const char *text)
{
    return !strpbrk(text, ".eE");
}

/* 15 digits, or as many more as the same double takes; whatever the locale has for a point becomes one. */
static void put_computed(struct buf *out, double x)
{
    char text[40];
    bool point = false;

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    for (const char *c = text; *c; c++) {
        bool known = strchr("+-0123456789e", *c) != NULL;

        if (known)
            buf_putc(out, *c);
        else if (!point)
            buf_putc(out, '.');
        point |= !known || *c == 'e';
    }
    if (!point) buf_puts(out, ".0");
}

void json_number_put(struct buf *out, const json_t *v)
{
    const char *text = json_number_text(v);

    if (text)
        buf_puts(out, text);
    else
        put_computed(out, json_real_value(v));
}

/* Of a JSON number. */
static void put_plain(struct buf *out, const char *text)
{
    const char *exponent = strpbrk(text, "eE"), *point = strchr(text, '.'),
               *end = exponent ? exponent : text + strlen(text);
    const char *digits = exponent ? exponent + 1 + strspn(exponent + 1, "+-") : "", *first, *last;
    int64_t e = 0;

    digits += strspn(digits, "0");
    if (strlen(digits) > MAX_EXPONENT_DIGITS) {
        buf_puts(out, text);
        return;
    }
    if (exponent) e = strtoll(exponent + 1, NULL, 10);
    for (first = text + (*text == '-'); first < end && (*first == '0' || *first == '.');) first++;
    for (last = end; last > first && (last[-1] == '0' || last[-1] == '.');) last--;
    if (*text == '-') buf_putc(out, '-');
    if (first == last) {
        buf_puts(out, "0e0");
        return;
    }
    for (const char *c = first; c < last; c++)
        if (c != point) buf_putc(out, *c);
    if (!point)
        e += end - last;
    else
        e += last <= point ? point - last : point + 1 - last;
    buf_printf(out, "e%lld", (long long)e);
}

void json_number_put_plain(struct buf *out, const json_t *v)
{
    struct buf computed = {0};
    const char *text = json_number_text(v);

    if (!text) {
        put_computed(&computed, json_real_value(v));
        text = computed.failed ? "" : computed.data;
        out->failed |= computed.failed;
    }
    put_plain(out, text);
    buf_deinit(&computed);
}
