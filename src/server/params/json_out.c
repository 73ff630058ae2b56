/* server/params/json_out.c - numbers and strings that are valid JSON whatever comes in. */
#include "server/params/json_out.h"
#include <math.h>
#include <string.h>
#include <time.h>

void json_put_string(struct buf *b, const char *s, size_t n)
{
    buf_putc(b, '"');
    buf_put_json(b, s, n);
    buf_putc(b, '"');
}

void json_put_number(struct buf *b, double v)
{
    if (isnan(v)) v = 0;
    if (isinf(v)) v = v > 0 ? 9999 : -9999;
    buf_printf(b, "%.10g", v);
}

void json_put_field(struct buf *b, const char *name, double v)
{
    buf_printf(b, ",\"%s\":", name);
    json_put_number(b, v);
}

void json_put_time(struct buf *b, int64_t wall_s)
{
    time_t t = (time_t)wall_s;
    struct tm tm;
    char text[64];

    if (!gmtime_r(&t, &tm) || strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm) == 0) text[0] = 0;
    json_put_string(b, text, strlen(text));
}
