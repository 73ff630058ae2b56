/* text/output/output_openers.h - with which texts a call begins and ends in each style: what output_style.c knows of them and the
 * parser (output_impl.h) looks for. Thread  any thread: constant tables.
 */
#pragma once
#include <stdbool.h>
#include "text/output/output_style.h"

#define DEEPSEEK_CALLS     "<｜tool▁calls▁begin｜>"
#define DEEPSEEK_CALLS_END "<｜tool▁calls▁end｜>"
#define DEEPSEEK_CALL      "<｜tool▁call▁begin｜>"
#define DEEPSEEK_CALL_END  "<｜tool▁call▁end｜>"
#define DEEPSEEK_SEP       "<｜tool▁sep｜>"

enum output_head {
    HEAD_TAG, /* JSON, a list of it, or <function= */
    HEAD_JSON,
    HEAD_XML, /* after <function= */
    HEAD_PY_LIST,
    HEAD_PY_CODE,
    HEAD_MISTRAL,
    HEAD_DEEPSEEK,
    HEAD_DEEPSEEK_CALL
};

enum output_place { ANYWHERE, AT_LINE, AT_START }; /* AT_LINE: behind a line's end; AT_START: before any content */

struct output_opener {
    const char *text; /* a bracket at its end is read again: it is part of the call */
    enum output_head head;
    enum output_place place;
    bool strict; /* the opener alone says little: no call without arguments, or with an id */
};

/* The list of a style's openers, ended by one without a text; and of its closing tags, ended by NULL. */
const struct output_opener *output_style_openers(enum output_style style);
const char *const *output_style_tails(enum output_style style);

static inline bool output_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
