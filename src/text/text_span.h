/* text/text_span.h - some bytes of a text: a view, without a 0 at its end. */
#pragma once
#include <stddef.h>

struct text_span {
    const char *s;
    size_t n;
};
