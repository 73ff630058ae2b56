/* server/params/prom_out.h - metrics as Prometheus's text format 0.0.4 has them. Appends to a buf.
 *
 *     # HELP name what it is
 *     # TYPE name counter
 *     name{label="value"} 12
 *
 * Source  prometheus.io/docs/instrumenting/exposition_formats
 */
#pragma once
#include "base/buf.h"
#include "radish/inspect.h"

#define PROM_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* type: "counter", "gauge" or "histogram". Once per name, before its samples. */
void prom_head(struct buf *out, const char *name, const char *type, const char *help);
/* ,name="value" with the value escaped; bytes that are no UTF-8 become U+FFFD. No comma where out is empty. */
void prom_label(struct buf *labels, const char *name, const char *value);
/* labels: what prom_label made, or "". */
void prom_count(struct buf *out, const char *name, const char *labels, uint64_t value);
void prom_value(struct buf *out, const char *name, const char *labels, double value);
/* name_bucket lines, each counting all values up to its bound, name_sum, name_count. */
void prom_histogram(struct buf *out, const char *name, const char *labels, const struct rd_histogram *h);
