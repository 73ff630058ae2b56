/* base/checked.c - strict number parsing: the whole string is the number, or the answer is false. */
#include "base/checked.h"
#include <locale.h>
#if __has_include(<xlocale.h>) /* where strtod_l is on a Mac */
#include <xlocale.h>
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool parse_u64(const char *s, size_t n, uint64_t *out)
{
    uint64_t v = 0;

    if (n == 0) return false;
    for (size_t i = 0; i < n; i++)
        if (!is_digit(s[i]) || !checked_mul(v, (uint64_t)10, &v) || !checked_add(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    *out = v;
    return true;
}

bool parse_i64(const char *s, size_t n, int64_t *out)
{
    bool minus = n > 0 && s[0] == '-';
    uint64_t v;

    if (!parse_u64(s + minus, n - minus, &v)) return false;
    if (v > (uint64_t)INT64_MAX + minus) return false;
    *out = minus ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

/* [-] digits [. digits] [e [+-] digits], with a digit on at least one side of the point. */
static bool is_decimal(const char *s, size_t n)
{
    size_t i = 0, digits = 0;

    if (i < n && s[i] == '-') i++;
    for (; i < n && is_digit(s[i]); i++) digits++;
    if (i < n && s[i] == '.')
        for (i++; i < n && is_digit(s[i]); i++) digits++;
    if (digits == 0) return false;
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        if (i == n) return false;
        while (i < n && is_digit(s[i])) i++;
    }
    return i == n;
}

double c_double(const char *s)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double v = c ? strtod_l(s, NULL, c) : NAN;

    if (c) freelocale(c);
    return v;
}

bool parse_f64(const char *s, size_t n, double *out)
{
    char copy[512]; /* longer numbers are nobody's honest input */
    double v;

    if (n >= sizeof(copy) || !is_decimal(s, n)) return false;
    memcpy(copy, s, n);
    copy[n] = 0;
    v = c_double(copy);
    if (!isfinite(v)) return false;
    *out = v;
    return true;
}

bool parse_bytes(const char *s, uint64_t *out)
{
    static const char units[] = "kmgt";
    size_t n = strspn(s, "0123456789.");
    const char *suffix = s + n;
    uint64_t unit = 1, whole;
    double v;

    if (*suffix) {
        const char *u = strchr(units, *suffix | 0x20);
        if (u && *u) {
            unit = (uint64_t)1 << (10 * (u - units + 1));
            suffix++;
            if (*suffix == 'i' && suffix[1] == 'B') suffix++;
        }
        if (*suffix == 'B') suffix++;
        if (*suffix) return false;
    }
    if (parse_u64(s, n, &whole)) return checked_mul(whole, unit, out);
    if (!memchr(s, '.', n) || !parse_f64(s, n, &v)) return false;
    v *= (double)unit;
    if (v >= 18446744073709551616.0) return false;
    *out = (uint64_t)v;
    return true;
}
