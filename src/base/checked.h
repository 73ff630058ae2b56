/* base/checked.h - arithmetic that says when it overflowed; digits-only number parsing. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* true: ok, *out holds the result. false: overflow, *out undefined. */
#define checked_add(a, b, out) (!__builtin_add_overflow((a), (b), (out)))
#define checked_sub(a, b, out) (!__builtin_sub_overflow((a), (b), (out)))
#define checked_mul(a, b, out) (!__builtin_mul_overflow((a), (b), (out)))

/* Rounds up to a multiple of a power of two. false: overflow or align not a power of two. */
static inline bool checked_align(uint64_t v, uint64_t align, uint64_t *out)
{
    if (align == 0 || (align & (align - 1))) return false;
    if (!checked_add(v, align - 1, out)) return false;
    *out &= ~(align - 1);
    return true;
}

/* Decimal digits only, the whole string, no sign, no blanks; false on overflow or anything else. */
bool parse_u64(const char *s, size_t n, uint64_t *out);
/* The same with an optional leading '-'. */
bool parse_i64(const char *s, size_t n, int64_t *out);
/* A finite decimal number, the whole string, independent of the locale. */
bool parse_f64(const char *s, size_t n, double *out);
/* strtod() in the C locale, whatever the program has set; NAN: out of memory. */
double c_double(const char *s);
/* "512", "64k", "8M", "2GiB", "1.5G": bytes, powers of 1024. */
bool parse_bytes(const char *s, uint64_t *out);

static inline uint32_t u32_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline uint32_t u32_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static inline uint64_t u64_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t u64_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
static inline uint32_t u32_ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}
