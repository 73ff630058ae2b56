/* server/params/prom_out.c - lines of metrics. */
#include "server/params/prom_out.h"
#include <math.h>
#include <string.h>
#include "base/utf8.h"

static void put_escaped(struct buf *out, const char *s, bool quotes)
{
    size_t n = strlen(s);

    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);

        if (len <= 0)
            buf_puts(out, "\xEF\xBF\xBD");
        else if (s[i] == '\n')
            buf_puts(out, "\\n");
        else if (s[i] == '\\')
            buf_puts(out, "\\\\");
        else if (s[i] == '"' && quotes)
            buf_puts(out, "\\\"");
        else
            buf_append(out, s + i, (size_t)len);
        i += (size_t)(len > 0 ? len : -len);
    }
}

void prom_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s ", name);
    put_escaped(out, help, false);
    buf_printf(out, "\n# TYPE %s %s\n", name, type);
}

void prom_label(struct buf *labels, const char *name, const char *value)
{
    buf_printf(labels, "%s%s=\"", labels->n ? "," : "", name);
    put_escaped(labels, value, true);
    buf_putc(labels, '"');
}

static void put_name(struct buf *out, const char *name, const char *labels)
{
    buf_puts(out, name);
    if (*labels) buf_printf(out, "{%s}", labels);
    buf_putc(out, ' ');
}

void prom_count(struct buf *out, const char *name, const char *labels, uint64_t value)
{
    put_name(out, name, labels);
    buf_printf(out, "%llu\n", (unsigned long long)value);
}

void prom_value(struct buf *out, const char *name, const char *labels, double value)
{
    put_name(out, name, labels);
    if (isfinite(value))
        buf_printf(out, "%.15g\n", value);
    else
        buf_puts(out, isnan(value) ? "NaN\n" : value > 0 ? "+Inf\n" : "-Inf\n");
}

void prom_histogram(struct buf *out, const char *name, const char *labels, const struct rd_histogram *h)
{
    const char *comma = *labels ? "," : "";
    uint64_t n = 0;

    for (uint32_t i = 0; i <= h->n_bounds; i++) {
        n += h->counts[i];
        buf_printf(out, "%s_bucket{%s%sle=\"", name, labels, comma);
        if (i < h->n_bounds)
            buf_printf(out, "%.10g", h->bounds[i]);
        else
            buf_puts(out, "+Inf");
        buf_printf(out, "\"} %llu\n", (unsigned long long)n);
    }
    buf_printf(out, "%s_sum", name);
    prom_value(out, "", labels, h->sum);
    buf_printf(out, "%s_count", name);
    prom_count(out, "", labels, h->count);
}
