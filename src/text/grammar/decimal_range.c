/* text/grammar/decimal_range.c - ranges of digits, by comparing from the first digit on.
 *
 * Whole parts of equal length are compared digit by digit: 3 alternatives per digit, so a range costs nodes in proportion
 * to the digits of its bounds.
 */
#include "text/grammar/decimal_range.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/json_number.h"
#include "text/grammar/json_forms.h"
#include "text/grammar/node_list.h"

bool decimal_from(const json_t *number, struct decimal *out)
{
    char text[1200];
    const char *written = json_number_text(number); /* of a real that was read */
    const char *point, *end, *start = text;
    size_t n_whole, n_fraction;

    memset(out, 0, sizeof(*out));
    if (json_is_integer(number)) {
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(number));
    } else if (written && json_real_value(number) != 0 && json_number_is_whole(written)) { /* beyond 64 bits */
        if (strlen(written) >= sizeof(text)) return false;
        memcpy(text, written, strlen(written) + 1);
    } else {
        char shortest[40];
        double v = json_real_value(number);
        const char *e;
        int precision = 0;

        if (!isfinite(v)) return false;
        json_real_text(v, shortest);
        e = strchr(shortest, 'e');
        if (e) { /* 1.5e-07: its digits lie 1 + 7 behind the point */
            const char *dot = strchr(shortest, '.');
            int exponent = 0, behind = dot ? (int)(e - dot) - 1 : 0;

            sscanf(e + 1, "%d", &exponent);
            precision = exponent < behind ? behind - exponent : 0;
            snprintf(text, sizeof(text), "%.*f", precision, v);
        } else {
            snprintf(text, sizeof(text), "%s", shortest);
        }
    }
    if (*start == '-') start++;
    point = strchr(start, '.');
    end = start + strlen(start);
    n_whole = (size_t)((point ? point : end) - start);
    n_fraction = point ? (size_t)(end - point) - 1 : 0;
    while (n_fraction && point[n_fraction] == '0') n_fraction--;
    if (n_whole > DECIMAL_DIGITS || n_fraction > DECIMAL_DIGITS) return false;
    memcpy(out->whole, start, n_whole);
    if (n_fraction) memcpy(out->fraction, point + 1, n_fraction);
    out->negative = text[0] == '-' && (strcmp(out->whole, "0") != 0 || n_fraction);
    return true;
}

static int compare_whole(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);

    return n != m ? (n < m ? -1 : 1) : strcmp(a, b);
}

int decimal_compare(const struct decimal *a, const struct decimal *b)
{
    int c;

    if (a->negative != b->negative) return a->negative ? -1 : 1;
    c = compare_whole(a->whole, b->whole);
    if (c == 0) c = strcmp(a->fraction, b->fraction); /* no trailing zeros: texts compare as numbers */
    return a->negative ? -c : c;
}

/* |d| + 10^-places; digits are carried. */
static void grow(char *whole, char *fraction, size_t places)
{
    size_t n = strlen(fraction);

    if (n < places) memset(fraction + n, '0', places - n), fraction[places] = 0;
    for (size_t i = places; i-- > 0;) {
        if (fraction[i]++ != '9') goto tidy;
        fraction[i] = '0';
    }
    for (size_t i = strlen(whole); i-- > 0;) {
        if (whole[i]++ != '9') goto tidy;
        whole[i] = '0';
    }
    memmove(whole + 1, whole, strlen(whole) + 1);
    whole[0] = '1';
tidy:
    for (n = strlen(fraction); n && fraction[n - 1] == '0'; n--) fraction[n - 1] = 0;
}

/* |d| - 10^-places; |d| is at least that. */
static void shrink(char *whole, char *fraction, size_t places)
{
    size_t n = strlen(fraction);

    if (n < places) memset(fraction + n, '0', places - n), fraction[places] = 0;
    for (size_t i = places; i-- > 0;) {
        if (fraction[i]-- != '0') goto tidy;
        fraction[i] = '9';
    }
    for (size_t i = strlen(whole); i-- > 0;) {
        if (whole[i]-- != '0') goto tidy;
        whole[i] = '9';
    }
tidy:
    while (whole[0] == '0' && whole[1]) memmove(whole, whole + 1, strlen(whole));
    for (n = strlen(fraction); n && fraction[n - 1] == '0'; n--) fraction[n - 1] = 0;
}

static bool is_zero(const struct decimal *d)
{
    return strcmp(d->whole, "0") == 0 && !d->fraction[0];
}

/* Away from zero or towards it, by one unit of 10^-places. */
static void move(struct decimal *d, bool up, size_t places)
{
    if (is_zero(d)) d->negative = !up;
    if (d->negative != up)
        grow(d->whole, d->fraction, places);
    else
        shrink(d->whole, d->fraction, places);
    if (is_zero(d)) d->negative = false;
}

static void round_to(struct decimal *d, bool up, bool strict)
{
    bool cut = d->fraction[0], away = d->negative != up;

    d->fraction[0] = 0;
    if (is_zero(d) && !cut) d->negative = false;
    if (cut ? away : strict) {
        if (cut)
            grow(d->whole, d->fraction, 0);
        else
            move(d, up, 0);
    }
    if (is_zero(d)) d->negative = false;
}

void decimal_ceil(struct decimal *d, bool strict)
{
    round_to(d, true, strict);
}

void decimal_floor(struct decimal *d, bool strict)
{
    round_to(d, false, strict);
}

void decimal_step(struct decimal *d, bool up)
{
    size_t n = strlen(d->whole), places = n < 15 ? 15 - n : 0;

    if (is_zero(d)) {
        places = 20;
    } else if (strcmp(d->whole, "0") == 0) { /* 15 digits from the first that is not 0 */
        places = 14 + strspn(d->fraction, "0");
    }
    move(d, up, places < DECIMAL_DIGITS ? places : DECIMAL_DIGITS);
}

/* --- digits ------------------------------------------------------------------------------------------------------- */

static grammar_node digit(struct grammar_builder *b, int low, int high)
{
    struct grammar_range r = {(uint32_t)('0' + low), (uint32_t)('0' + high)};

    return low > high ? grammar_nothing(b) : grammar_class(b, &r, 1, false);
}

static grammar_node digits(struct grammar_builder *b, size_t min, uint32_t max)
{
    return grammar_repeat(b, digit(b, 0, 9), (uint32_t)min, max);
}

/* Texts of strlen(s) digits that are at least (or at most) s. */
static grammar_node same_length(struct grammar_builder *b, const char *s, bool at_least)
{
    size_t n = strlen(s);
    grammar_node node = grammar_empty(b);

    for (size_t i = n; i-- > 0;) {
        int d = s[i] - '0';
        grammar_node other = at_least ? digit(b, d + 1, 9) : digit(b, 0, d - 1);

        node = grammar_either(b, grammar_pair(b, digit(b, d, d), node),
                              grammar_pair(b, other, digits(b, n - 1 - i, (uint32_t)(n - 1 - i))));
    }
    return node;
}

/* Texts of n digits between low and high, both of n digits. */
static grammar_node between(struct grammar_builder *b, const char *low, const char *high)
{
    size_t n = strlen(low), same = 0;
    struct node_list options = {0};
    uint32_t rest;

    while (same < n && low[same] == high[same]) same++;
    if (same == n) return grammar_text(b, low, n);
    rest = (uint32_t)(n - same - 1);
    node_list_add(b, &options,
                  grammar_pair(b, digit(b, low[same] - '0', low[same] - '0'), same_length(b, low + same + 1, true)));
    node_list_add(b, &options,
                  grammar_pair(b, digit(b, low[same] - '0' + 1, high[same] - '0' - 1), digits(b, rest, rest)));
    node_list_add(
        b, &options,
        grammar_pair(b, digit(b, high[same] - '0', high[same] - '0'), same_length(b, high + same + 1, false)));
    return grammar_pair(b, grammar_text(b, low, same), node_list_alt(b, &options));
}

/* Whole parts of n digits, no leading zero. */
static grammar_node of_length(struct grammar_builder *b, size_t min, uint32_t max)
{
    return grammar_pair(b, digit(b, 1, 9), digits(b, min - 1, max == GRAMMAR_UNBOUNDED ? max : max - 1));
}

/* Whole parts from low to high (NULL: any above); low <= high. */
static grammar_node wholes(struct grammar_builder *b, const char *low, const char *high)
{
    char top[DECIMAL_DIGITS + 4], bottom[DECIMAL_DIGITS + 4];
    size_t n = strlen(low), m = high ? strlen(high) : 0;
    struct node_list options = {0};

    if (high && n == m) return between(b, low, high);
    memset(top, '9', n);
    top[n] = 0;
    if (strcmp(low, "0") == 0)
        node_list_add(b, &options, digit(b, 0, 9));
    else
        node_list_add(b, &options, between(b, low, top));
    if (!high) {
        node_list_add(b, &options, of_length(b, n + 1, GRAMMAR_UNBOUNDED));
    } else {
        if (m > n + 1) node_list_add(b, &options, of_length(b, n + 1, (uint32_t)m - 1));
        memset(bottom, '0', m);
        bottom[0] = '1';
        bottom[m] = 0;
        node_list_add(b, &options, between(b, bottom, high));
    }
    return node_list_alt(b, &options);
}

/* What may follow a whole part: nothing, or a point and digits. */
static grammar_node any_fraction(struct grammar_builder *b)
{
    return grammar_maybe(b, grammar_pair(b, grammar_word(b, "."), digits(b, 1, GRAMMAR_UNBOUNDED)));
}

/* Digits behind a point that are at least s (no trailing zeros), at least one digit. */
static grammar_node fraction_from(struct grammar_builder *b, const char *s)
{
    grammar_node node = digits(b, 0, GRAMMAR_UNBOUNDED);

    for (size_t i = strlen(s); i-- > 0;) {
        int d = s[i] - '0';

        node = grammar_either(b, grammar_pair(b, digit(b, d, d), node),
                              grammar_pair(b, digit(b, d + 1, 9), digits(b, 0, GRAMMAR_UNBOUNDED)));
    }
    return node;
}

/* Digits that are at most s, none included. */
static grammar_node fraction_to(struct grammar_builder *b, const char *s)
{
    grammar_node node = grammar_repeat(b, digit(b, 0, 0), 0, GRAMMAR_UNBOUNDED);

    for (size_t i = strlen(s); i-- > 0;) {
        int d = s[i] - '0';

        node = grammar_maybe(b, grammar_either(b, grammar_pair(b, digit(b, d, d), node),
                                               grammar_pair(b, digit(b, 0, d - 1), digits(b, 0, GRAMMAR_UNBOUNDED))));
    }
    return node;
}

/* ".digits" or nothing, with the value of the digits between low and high ("" as low: 0; NULL as high: any). */
static grammar_node fractions(struct grammar_builder *b, const char *low, const char *high)
{
    grammar_node some = digits(b, 1, GRAMMAR_UNBOUNDED), node;

    if (!low[0] && !high) return any_fraction(b);
    if (low[0]) some = grammar_both(b, some, fraction_from(b, low));
    if (high) some = grammar_both(b, some, fraction_to(b, high));
    node = grammar_pair(b, grammar_word(b, "."), some);
    return low[0] ? node : grammar_maybe(b, node);
}

/* 0 <= low <= high. */
static grammar_node positives(struct grammar_builder *b, const struct decimal *low, const struct decimal *high)
{
    char next[DECIMAL_DIGITS + 4], last[DECIMAL_DIGITS + 4], none[] = "", zero[] = "";
    struct node_list options = {0};

    if (high && strcmp(low->whole, high->whole) == 0)
        return grammar_pair(b, grammar_word(b, low->whole), fractions(b, low->fraction, high->fraction));
    node_list_add(b, &options, grammar_pair(b, grammar_word(b, low->whole), fractions(b, low->fraction, NULL)));
    snprintf(next, sizeof(next), "%s", low->whole);
    grow(next, none, 0);
    if (high) {
        node_list_add(b, &options, grammar_pair(b, grammar_word(b, high->whole), fractions(b, "", high->fraction)));
        snprintf(last, sizeof(last), "%s", high->whole);
        shrink(last, zero, 0);
        if (compare_whole(next, last) <= 0)
            node_list_add(b, &options, grammar_pair(b, wholes(b, next, last), any_fraction(b)));
    } else {
        node_list_add(b, &options, grammar_pair(b, wholes(b, next, NULL), any_fraction(b)));
    }
    return node_list_alt(b, &options);
}

static grammar_node positive_integers(struct grammar_builder *b, const struct decimal *low, const struct decimal *high)
{
    return wholes(b, low->whole, high ? high->whole : NULL);
}

/* Splits a range at 0; below it the bounds change sides. */
static grammar_node split(struct grammar_builder *b, const struct decimal *low, const struct decimal *high,
                          grammar_node (*part)(struct grammar_builder *, const struct decimal *,
                                               const struct decimal *))
{
    struct decimal zero = {.whole = "0"}, from, to;
    struct node_list options = {0};

    if (low && high && decimal_compare(low, high) > 0) return grammar_nothing(b);
    if (!high || !high->negative) {
        from = low && !low->negative ? *low : zero;
        node_list_add(b, &options, part(b, &from, high));
    }
    if (!low || low->negative) {
        from = high && high->negative ? *high : zero;
        from.negative = false;
        if (low) {
            to = *low;
            to.negative = false;
        }
        node_list_add(b, &options, grammar_pair(b, grammar_word(b, "-"), part(b, &from, low ? &to : NULL)));
    }
    return node_list_alt(b, &options);
}

grammar_node decimal_integers(struct grammar_builder *b, const struct decimal *low, const struct decimal *high)
{
    return split(b, low, high, positive_integers);
}

grammar_node decimal_numbers(struct grammar_builder *b, const struct decimal *low, const struct decimal *high)
{
    return split(b, low, high, positives);
}
