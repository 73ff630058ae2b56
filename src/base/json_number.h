/* base/json_number.h - numbers of a jansson tree that keep the text they were read from.
 *
 * jansson knows integers of 64 bits and doubles. Clients send more: ids of 20 digits, 1e400, 0.10 that must not become
 * 0.10000000000000001. So what base/json_read.c reads is an integer of jansson's where one of 64 bits is written the same
 * way, and a real otherwise, with the nearest double (infinity beyond) and the text itself:
 *
 *     123 -> integer 123        9223372036854775808, -0, 1E5, 0.10, 1e400 -> real, with its text
 *
 * Every real of the process has this form, as jansson has no place for a mark. CMakeLists.txt gives jansson's names these
 * meanings; what else makes reals inside jansson must not be used: json_pack's "f", json_deep_copy, json_load*, json_real_set.
 *
 * Thread  any thread.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/buf.h"

/* A real with a text, which is a number to JSON; value: what json_number_value() says. NULL: out of memory. */
json_t *json_number(const char *text, size_t n, double value);
/* json_real(): without a text. NULL: not finite, or out of memory. */
json_t *json_number_real(double value);
/* The text that a real was read from; NULL: it is no real, or was computed. */
const char *json_number_text(const json_t *v);
/* Is the text an integer's? */
bool json_number_is_whole(const char *text);

/* A real as JSON: its text, or 15 to 17 digits that give the same double. */
void json_number_put(struct buf *out, const json_t *v);
/* The same as digits and an exponent, so that numbers of one value have one form: 0.10 and 1e-1 are 1e-1. */
void json_number_put_plain(struct buf *out, const json_t *v);
