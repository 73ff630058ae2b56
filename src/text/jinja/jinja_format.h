/* text/jinja/jinja_format.h - one value by a format specification, as Python's format() and its % operator write it.
 *
 *     [[fill]align][sign][z][#][0][width][grouping][.precision][type]
 *
 * Thread  the rendering's.
 * Errors  RD_E_TEMPLATE: what Python refuses.  RD_E_LIMIT: widths and precisions beyond LIMIT_TEMPLATE_WIDTH.
 */
#pragma once
#include "text/jinja/jinja_run.h"

struct jspec {
    uint32_t fill; /* 0: a blank */
    char align;    /* < > ^ = or 0 */
    char sign;     /* + - blank or 0 */
    char group;    /* , _ or 0 */
    char type;     /* 0: none */
    bool alt, zero, no_negative_zero;
    int64_t width, precision; /* -1: not given */
};

/* s[0..n): the text behind the colon of a replacement field. */
rd_status jspec_parse(struct jrun *r, const char *s, size_t n, struct jspec *out);
/* Appends text by width, fill and alignment; fallback: the alignment when none is given. */
rd_status jspec_put_text(struct jrun *r, struct buf *b, const struct jspec *p, struct jstr *s, char fallback);
/* Appends an integer or float by type, sign, grouping, precision, width. */
rd_status jspec_put_number(struct jrun *r, struct buf *b, const struct jspec *p, struct jval v);
/* format(v, spec) */
rd_status jspec_put(struct jrun *r, struct buf *b, const struct jspec *p, struct jval v);
/* repr() with everything beyond ASCII escaped. */
rd_status jval_ascii(struct jrun *r, struct jval v, struct jstr **out);
