/* text/json_scan.h - walks over JSON text without building a tree: for vocabularies of megabytes.
 *
 *     struct json_scan sc = {s, n, 0};
 *     if (json_scan_enter(&sc, '{'))
 *         while (json_scan_member(&sc, &key)) ... json_scan_skip(&sc) or json_scan_string(&sc, &text) ...
 *     if (sc.failed) ...
 *
 * What json_scan_skip() passes over is only balanced, not checked: whoever needs it reads it with jansson.
 * Thread  its owner. Errors  `failed` stays set; every call fails then.
 */
#pragma once
#include "base/buf.h"

struct json_scan {
    const char *s;
    size_t n, at;
    bool failed;
};

/* Past white space: the next byte, or 0 at the end. */
char json_scan_peek(struct json_scan *sc);
/* Passes the opening '{' or '['. */
bool json_scan_enter(struct json_scan *sc, char open);
/* The next member of an object (its key is appended to the cleared key, the scan stands at its value), or element of an
 * array. false: the closing bracket was passed, or an error. */
bool json_scan_member(struct json_scan *sc, struct buf *key);
bool json_scan_element(struct json_scan *sc);
/* Appends the string's bytes. */
bool json_scan_string(struct json_scan *sc, struct buf *out);
/* Digits only. */
bool json_scan_uint(struct json_scan *sc, uint64_t *out);
bool json_scan_number(struct json_scan *sc, double *out);
/* One value of any kind; *start, *n_value: where it stands (may be NULL). */
bool json_scan_skip(struct json_scan *sc, const char **start, size_t *n_value);
