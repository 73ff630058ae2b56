/* base/utf8.h - strict UTF-8: what is well-formed, and what stands where it is not.
 *
 * Well-formed is table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
 * Ill-formed bytes are cut as the standard recommends (section 3.9, "maximal subpart"): the longest start of a
 * well-formed sequence counts as one unit, else one byte; a reader puts one U+FFFD in the place of each unit.
 * Units   bytes. Lengths are explicit; a 0 byte is the character U+0000.
 * Thread  any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT 0xFFFDu
#define UTF8_MAX_BYTES   4

/* The first code point of s[0..n), n >= 1. Well-formed: its length, 1 to 4, and *cp. Ill-formed: minus the length of
 * the unit to skip, 1 to 3, and *cp = U+FFFD. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);

/* Writes cp, returns 1 to 4. A surrogate or a value above U+10FFFF is written as U+FFFD. Not terminated. */
int utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES]);

bool utf8_valid(const char *s, size_t n);
/* How many leading bytes are well-formed. */
size_t utf8_valid_prefix(const char *s, size_t n);
/* 0 to 3: bytes at the end that begin a sequence which more bytes could still complete. A stream holds them back. */
size_t utf8_unfinished_tail(const char *s, size_t n);
/* Code points, each ill-formed unit counting as one. */
size_t utf8_length(const char *s, size_t n);
