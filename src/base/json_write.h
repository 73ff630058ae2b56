/* base/json_write.h - a jansson tree as text, numbers as they were read (base/json_number.h); nesting takes no stack.
 *
 * CMakeLists.txt gives jansson's names json_dumps, json_dump_callback and json_equal these meanings. The text is the one
 * that jansson writes, reals apart (tests/base/test_json_write.c compares the two); of its flags there are
 * JSON_INDENT(n), JSON_COMPACT, JSON_SORT_KEYS and JSON_ENCODE_ANY.
 *
 * Thread  any thread; the tree must not change meanwhile.
 * Errors  NULL, -1, false: no JSON (a string that is no UTF-8, a scalar without JSON_ENCODE_ANY), or out of memory.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>

/* Numbers of one value get one form: for digests and comparisons. */
#define JSON_WRITE_PLAIN ((size_t)1 << 30)

/* Through jansson's allocator. */
char *json_written(const json_t *v, size_t flags);
/* In pieces; put returns 0 to go on. */
int json_write(const json_t *v, json_dump_callback_t put, void *arg, size_t flags);
/* Of one meaning: members in any order, reals of one decimal value; an integer is no real. NULL equals nothing. */
int json_same(const json_t *a, const json_t *b);
