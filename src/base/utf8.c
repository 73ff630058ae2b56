/* base/utf8.c - table 3-7 of the Unicode standard as code: the first byte fixes the length and the second's range. */
#include "base/utf8.h"

/* Length of the sequence that lead begins, and the range of its second byte; 0: begins none. */
static int lead_info(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0; /* a continuation byte, or an overlong form of ASCII */
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;  /* overlong below */
        if (lead == 0xED) *high = 0x9F; /* surrogates above */
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;  /* overlong below */
    if (lead == 0xF4) *high = 0x8F; /* U+10FFFF is the last */
    return 4;
}

/* How many bytes of s[0..n) fit one sequence, of *length; n >= 1. 0: the first byte fits nothing. */
static int match(const unsigned char *s, size_t n, int *length)
{
    unsigned char low, high;
    int have = 1;

    *length = lead_info(s[0], &low, &high);
    if (*length == 0) return 0;
    while (have < *length && (size_t)have < n && s[have] >= low && s[have] <= high) {
        have++;
        low = 0x80;
        high = 0xBF;
    }
    return have;
}

int utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    static const unsigned char lead_mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    const unsigned char *b = (const unsigned char *)s;
    int length, have = match(b, n, &length);
    uint32_t v;

    if (have == 0 || have < length) {
        *cp = UTF8_REPLACEMENT;
        return have ? -have : -1;
    }
    v = b[0] & lead_mask[length];
    for (int i = 1; i < length; i++) v = v << 6 | (b[i] & 0x3F);
    *cp = v;
    return length;
}

int utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) cp = UTF8_REPLACEMENT;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    uint32_t cp;

    while (i < n) {
        int length = utf8_decode(s + i, n - i, &cp);
        if (length < 0) break;
        i += (size_t)length;
    }
    return i;
}

bool utf8_valid(const char *s, size_t n)
{
    return utf8_valid_prefix(s, n) == n;
}

size_t utf8_unfinished_tail(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char *b = (const unsigned char *)s + n - back;
        int length;

        if (b[0] >= 0x80 && b[0] < 0xC0) continue; /* a continuation byte: its lead is further left */
        return (size_t)match(b, back, &length) == back && (size_t)length > back ? back : 0;
    }
    return 0;
}

size_t utf8_length(const char *s, size_t n)
{
    size_t count = 0;
    uint32_t cp;

    for (size_t i = 0; i < n; count++) {
        int length = utf8_decode(s + i, n - i, &cp);
        i += (size_t)(length < 0 ? -length : length);
    }
    return count;
}
