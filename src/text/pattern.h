/* text/pattern.h - the "pattern" of a tokenizer.json component: a string, or a regular expression.
 *
 * The hub's tokenizers run expressions through Oniguruma (Ruby's dialect); here they run through PCRE2 (JIT, UTF, UCP)
 * after what the two read differently is rewritten: \s and \S (White_Space), \h, and {n,m}+, which is no possessive
 * there; ^ and $ are those of lines. Class intersections (&&) are refused.
 * Thread  struct pattern is read-only after create; struct pattern_run belongs to one call.
 * Errors  RD_E_FORMAT with the expression and where it breaks, RD_E_UNSUPPORTED, RD_E_NOMEM; RD_E_LIMIT: matching takes
 * too many steps.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "radish/status.h"

struct pattern;
/* config: {"String": ...} or {"Regex": ...}, or a plain string. where: names the component in errors. */
rd_status pattern_create(const json_t *config, const char *where, struct pattern **out, struct rd_error *err);
rd_status pattern_create_regex(const char *regex, size_t n, const char *where, struct pattern **out,
                               struct rd_error *err);
void pattern_destroy(struct pattern *p);
/* The expression as the file has it, or NULL for a string. */
const char *pattern_regex(const struct pattern *p, size_t *n);

struct pattern_run {
    const struct pattern *p;
    const char *s;
    size_t n, at;
    void *data, *limits;
};
rd_status pattern_begin(struct pattern_run *run, const struct pattern *p, const char *s, size_t n);
/* The next match from left to right, not overlapping; may be empty. *found false: none is left. s is well-formed. */
rd_status pattern_next(struct pattern_run *run, bool *found, size_t *start, size_t *end);
void pattern_end(struct pattern_run *run);
