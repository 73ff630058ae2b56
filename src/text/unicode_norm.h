/* text/unicode_norm.h - Unicode normal forms of well-formed UTF-8, in linear time.
 *
 * utf8proc gives the properties; the order of combining marks is made here, by counting, since a long run of marks
 * must not take quadratic time. A text that is in its form already (most are) is recognised without writing it.
 * Thread  any thread. Errors  RD_E_NOMEM. Source  Unicode Standard Annex 15.
 */
#pragma once
#include <stdbool.h>
#include "base/buf.h"
#include "radish/status.h"

enum unicode_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD };

/* *changed false: s is in the form, out is untouched. Else out, cleared before, has the normalised text. */
rd_status unicode_normalize(enum unicode_form form, const char *s, size_t n, struct buf *out, bool *changed);
/* Where a text may be cut so that normalising the parts gives the parts of the normalised whole: does a starter that
 * nothing before it can combine with stand at the front of s? */
bool unicode_starts_clean(const char *s, size_t n);
/* Small letters, one character at a time as Rust's to_lowercase: U+0130 becomes two characters. Written to out. */
size_t unicode_lower(uint32_t cp, char out[8]);
