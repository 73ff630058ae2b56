/* base/base64.h - RFC 4648 base64, decoded: the alphabet of section 4, with the padding that it asks for, or none; line breaks
 * may stand between characters. Thread  any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that n characters can be at most. */
static inline size_t base64_most(size_t n)
{
    return n / 4 * 3 + 3;
}
/* out: base64_most(n) bytes. false: *n_out is where the first character is that cannot be there. */
bool base64_decode(const char *s, size_t n, uint8_t *out, size_t *n_out);
