/* base/json_read.h - JSON text to a jansson tree, and copies of trees, where jansson's own cannot be trusted without memory.
 *
 * jansson 2.14 does not look whether the buffer of the string that it reads could grow: without memory it loses bytes of it,
 * and goes on to an assertion or beyond the buffer's end; and its copies lack what there was no memory for. Here an
 * allocation that fails is an error and nothing else, and nesting takes no stack.
 *
 * CMakeLists.txt gives jansson's names json_loadb, json_loads, json_load_file and json_copy these meanings: who includes
 * jansson.h and calls them calls these.
 *
 * flags and errors are jansson's: JSON_REJECT_DUPLICATES, JSON_DECODE_ANY, JSON_DECODE_INT_AS_REAL, JSON_ALLOW_NUL. What is
 * JSON to jansson is JSON here, with the same tree (tests/base/test_json_read.c compares the two); numbers beyond 64 bits
 * and doubles are JSON, too, and real numbers keep their text (base/json_number.h).
 * Thread  any thread.
 * Errors  NULL; why (may be NULL) says where and what, json_error_code() as jansson's: json_error_out_of_memory ...
 */
#pragma once
#include <jansson.h>
#include <stddef.h>

#define JSON_READ_DEPTH 2048u /* as jansson's */

json_t *json_read(const char *s, size_t n, size_t flags, json_error_t *why);
/* Of a terminated text. */
json_t *json_read_text(const char *s, size_t flags, json_error_t *why);
/* Of a file of at most 64 MiB. */
json_t *json_read_file(const char *path, size_t flags, json_error_t *why);
/* A shallow copy: a new array or object with the same values; of a string a new one, of others the same. NULL: out of
 * memory. */
json_t *json_copied(json_t *v);
