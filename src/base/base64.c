/* base/base64.c - six bits a character. */
#include "base/base64.h"

/* 0 .. 63; 64: no such character. */
static uint32_t value_of(char c)
{
    if (c >= 'A' && c <= 'Z') return (uint32_t)(c - 'A');
    if (c >= 'a' && c <= 'z') return (uint32_t)(c - 'a') + 26;
    if (c >= '0' && c <= '9') return (uint32_t)(c - '0') + 52;
    return c == '+' ? 62 : c == '/' ? 63 : 64;
}

bool base64_decode(const char *s, size_t n, uint8_t *out, size_t *n_out)
{
    uint32_t bits = 0, n_bits = 0, n_pad = 0, n_chars = 0;
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t v = value_of(s[i]);

        if (s[i] == '\n' || s[i] == '\r') continue;
        if (s[i] == '=' && n_chars % 4 + n_pad >= 2 && n_pad < 2 && n_chars % 4 != 0) {
            n_pad++;
            continue;
        }
        if (v > 63 || n_pad > 0) {
            *n_out = i;
            return false;
        }
        bits = bits << 6 | v;
        n_bits += 6;
        n_chars++;
        if (n_bits >= 8) {
            n_bits -= 8;
            out[at++] = (uint8_t)(bits >> n_bits);
        }
    }
    *n_out = at;
    if (n_chars % 4 != 1 && (n_pad == 0 || (n_chars + n_pad) % 4 == 0)) return true;
    *n_out = n;
    return false;
}

void base64_encode(const uint8_t *s, size_t n, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        const uint32_t bits =
            (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) | (i + 2 < n ? s[i + 2] : 0);

        *out++ = digits[bits >> 18];
        *out++ = digits[bits >> 12 & 63];
        *out++ = i + 1 < n ? digits[bits >> 6 & 63] : '=';
        *out++ = i + 2 < n ? digits[bits & 63] : '=';
    }
}
