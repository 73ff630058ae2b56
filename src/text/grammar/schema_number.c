/* text/grammar/schema_number.c - numbers: bounds, multiples, exceptions. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "text/grammar/decimal_range.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_state.h"

struct bounds {
    struct schema_state *s;
    struct decimal low, high; /* included */
    bool has_low, has_high;
    bool only_integers;
    const json_t *step, *step_schema;
};

/* Takes one bound in, if it is narrower. */
static void narrow(struct bounds *w, const json_t *schema, const char *keyword, const json_t *v, bool is_low,
                   bool strict)
{
    struct decimal d;

    if (!json_is_number(v)) {
        schema_fail(w->s, schema, keyword, RD_E_INVALID, "wanted a number");
        return;
    }
    if (!decimal_from(v, &d)) {
        schema_fail(w->s, schema, keyword, RD_E_UNSUPPORTED, "a number of that many digits");
        return;
    }
    if (w->only_integers) {
        if (is_low)
            decimal_ceil(&d, strict);
        else
            decimal_floor(&d, strict);
    } else if (strict) {
        decimal_step(&d, is_low);
    }
    if (is_low && (!w->has_low || decimal_compare(&d, &w->low) > 0)) w->low = d, w->has_low = true;
    if (!is_low && (!w->has_high || decimal_compare(&d, &w->high) < 0)) w->high = d, w->has_high = true;
}

static void take_format(struct bounds *w, const json_t *schema)
{
    static const struct {
        const char *name;
        json_int_t low, high;
    } known[] = {
        {"int32", INT32_MIN, INT32_MAX}, {"int64", INT64_MIN, INT64_MAX}, {"uint32", 0, UINT32_MAX}, {"uint64", 0, -1}};
    const char *name = json_string_value(json_object_get(schema, "format"));

    for (size_t i = 0; name && i < sizeof(known) / sizeof(*known); i++) {
        json_t *low, *high;

        if (strcmp(name, known[i].name) != 0) continue;
        low = json_integer(known[i].low);
        high = json_integer(known[i].high);
        if (!low || !high)
            schema_no_memory(w->s);
        else
            narrow(w, schema, "format", low, true, false);
        if (low && high && known[i].high > 0) narrow(w, schema, "format", high, false, false);
        json_decref(low);
        json_decref(high);
    }
}

static void take_schema(struct bounds *w, const json_t *schema)
{
    const json_t *low = json_object_get(schema, "minimum"), *high = json_object_get(schema, "maximum");
    const json_t *above = json_object_get(schema, "exclusiveMinimum"),
                 *below = json_object_get(schema, "exclusiveMaximum");
    const json_t *step = json_object_get(schema, "multipleOf");

    if (low) narrow(w, schema, "minimum", low, true, json_is_true(above));
    if (high) narrow(w, schema, "maximum", high, false, json_is_true(below));
    if (above && !json_is_boolean(above)) narrow(w, schema, "exclusiveMinimum", above, true, true);
    if (below && !json_is_boolean(below)) narrow(w, schema, "exclusiveMaximum", below, false, true);
    take_format(w, schema);
    if (!step) return;
    if (!json_is_number(step) || json_number_value(step) <= 0)
        schema_fail(w->s, schema, "multipleOf", RD_E_INVALID, "wanted a number above 0");
    else if (w->step && !schema_equal(w->step, step))
        schema_fail(w->s, schema, "multipleOf", RD_E_UNSUPPORTED, "two different steps for one number");
    w->step = step;
    w->step_schema = schema;
}

/* The texts of a decimal without exponent: 5, 5.0, 5.00. */
static grammar_node spellings(struct schema_state *s, const struct decimal *d)
{
    struct grammar_builder *b = s->b;
    struct grammar_range zero = {'0', '0'};
    grammar_node zeros = grammar_repeat(b, grammar_class(b, &zero, 1, false), 0, GRAMMAR_UNBOUNDED), node;
    bool is_zero = strcmp(d->whole, "0") == 0 && !d->fraction[0];

    if (d->fraction[0]) {
        node = grammar_three(b, grammar_word(b, d->whole),
                             grammar_pair(b, grammar_word(b, "."), grammar_word(b, d->fraction)), zeros);
    } else {
        node = grammar_pair(
            b, grammar_word(b, d->whole),
            grammar_maybe(b, grammar_three(b, grammar_word(b, "."), grammar_class(b, &zero, 1, false), zeros)));
    }
    if (is_zero) return grammar_pair(b, grammar_maybe(b, grammar_word(b, "-")), node);
    return d->negative ? grammar_pair(b, grammar_word(b, "-"), node) : node;
}

static bool any_excluded(const struct conj *leaf)
{
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *values = json_object_get(schema_keywords(&leaf->v[i]), SCHEMA_EXCEPT);

        for (size_t k = 0; k < json_array_size(values); k++)
            if (json_is_number(json_array_get(values, k))) return true;
    }
    return false;
}

static grammar_node without_excluded(struct schema_state *s, const struct conj *leaf, grammar_node node)
{
    struct node_list out = {0};
    struct decimal d;

    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *values = json_object_get(schema_keywords(&leaf->v[i]), SCHEMA_EXCEPT);

        for (size_t k = 0; k < json_array_size(values); k++) {
            const json_t *v = json_array_get(values, k);

            if (json_is_number(v) && decimal_from(v, &d)) node_list_add(s->b, &out, spellings(s, &d));
        }
    }
    return out.n ? grammar_except(s->b, node, node_list_alt(s->b, &out)) : node;
}

/* multipleOf as step / 10^scale; false: not so. */
static bool step_of(const json_t *v, uint32_t *step, uint32_t *scale)
{
    struct decimal d;
    char digits[32];
    unsigned long value = 0;

    if (!decimal_from(v, &d)) return false;
    *scale = (uint32_t)strlen(d.fraction);
    if (*scale > 9 || strlen(d.whole) + *scale > 18) return false;
    snprintf(digits, sizeof(digits), "%.18s%.9s", d.whole, d.fraction);
    if (sscanf(digits, "%lu", &value) != 1 || value == 0 || value > DECIMAL_MAX_STEP) return false;
    *step = (uint32_t)value;
    return true;
}

static grammar_node multiples(struct schema_state *s, const struct bounds *w, unsigned types)
{
    const struct decimal *low = w->has_low ? &w->low : NULL, *high = w->has_high ? &w->high : NULL;
    uint32_t step, scale;
    char form[64];

    if (!step_of(w->step, &step, &scale))
        return schema_fail(s, w->step_schema, "multipleOf", RD_E_UNSUPPORTED,
                           "at most %u units of the last of 9 decimals", DECIMAL_MAX_STEP);
    if (types == TYPE_FRACTION)
        return schema_fail(s, w->step_schema, "multipleOf", RD_E_UNSUPPORTED, "of numbers that are no integers");
    if (scale && types == TYPE_INTEGER) { /* integers among the multiples of 0.5: all of them */
        uint32_t power = 1;

        for (uint32_t i = 0; i < scale; i++) power *= 10;
        if (power % step == 0) return decimal_integers(s->b, low, high);
        return schema_fail(s, w->step_schema, "multipleOf", RD_E_UNSUPPORTED, "a fraction, of integers");
    }
    if (scale && step == 1) {
        grammar_node node;

        snprintf(form, sizeof(form), "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]{1,%u})?", (unsigned)scale);
        node = regex_node(s->b, form, strlen(form), REGEX_WHOLE, "");
        return low || high ? grammar_both(s->b, node, decimal_numbers(s->b, low, high)) : node;
    }
    if (scale && (low || high))
        return schema_fail(s, w->step_schema, "multipleOf", RD_E_UNSUPPORTED, "a fraction together with bounds");
    return decimal_multiples(s->b, step, scale, low, high);
}

grammar_node schema_number(struct schema_state *s, const struct conj *leaf, unsigned types)
{
    struct bounds w = {.s = s};
    bool excluded = any_excluded(leaf);
    grammar_node node;

    for (size_t i = 0; i < leaf->n; i++) { /* a step that is whole makes integers of all */
        const json_t *step = json_object_get(schema_keywords(&leaf->v[i]), "multipleOf");
        double v = json_number_value(step);

        if (step && v >= 1 && v == floor(v)) types &= ~(unsigned)TYPE_FRACTION;
    }
    if (!(types & TYPE_NUMBER)) return grammar_nothing(s->b);
    types &= TYPE_NUMBER;
    w.only_integers = types == TYPE_INTEGER;
    for (size_t i = 0; i < leaf->n; i++)
        if (schema_keywords(&leaf->v[i])) take_schema(&w, schema_keywords(&leaf->v[i]));
    if (s->failed) return 0;
    if (w.step) {
        node = multiples(s, &w, types);
        if (excluded)
            return schema_fail(s, w.step_schema, "multipleOf", RD_E_UNSUPPORTED, "together with excluded numbers");
        return node;
    }
    if (types == TYPE_FRACTION) {
        node = json_form_fraction(&s->forms);
        if (w.has_low || w.has_high)
            node =
                grammar_both(s->b, node, decimal_numbers(s->b, w.has_low ? &w.low : NULL, w.has_high ? &w.high : NULL));
    } else if (!w.has_low && !w.has_high && !excluded) {
        return types == TYPE_INTEGER ? json_form_integer(&s->forms) : json_form_number(&s->forms);
    } else if (types == TYPE_INTEGER) {
        node = decimal_integers(s->b, w.has_low ? &w.low : NULL, w.has_high ? &w.high : NULL);
    } else {
        node = decimal_numbers(s->b, w.has_low ? &w.low : NULL, w.has_high ? &w.high : NULL);
    }
    return without_excluded(s, leaf, node);
}
