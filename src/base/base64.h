/* base/base64.h - RFC 4648 base64, the alphabet of section 4: written with the padding that it asks for, read with that or none;
 * line breaks may stand between characters then. Thread  any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that n characters can be at most. */
static inline size_t base64_most(size_t n)
{
    return n / 4 * 3 + 3;
}
/* Characters that n bytes become. */
static inline size_t base64_length(size_t n)
{
    return (n + 2) / 3 * 4;
}
/* out: base64_length(n) characters, and no 0 behind them. */
void base64_encode(const uint8_t *s, size_t n, char *out);
/* out: base64_most(n) bytes. false: *n_out is where the first character is that cannot be there. */
bool base64_decode(const char *s, size_t n, uint8_t *out, size_t *n_out);
