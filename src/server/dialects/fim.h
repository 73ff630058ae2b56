/* server/dialects/fim.h - filling in the middle: text before and after a gap to the tokens that ask the model for what is in it.
 *
 *     [bos]  [repository "myproject\n"  (file NAME "\n" TEXT)...  file "filename\n"]  prefix A suffix B middle
 *
 * in the tokens of rd_info; what the client wrote is plain text, special tokens in it are not recognised.
 * Thread  any thread. Errors  -1 with *e filled.
 */
#pragma once
#include <jansson.h>
#include "server/params/params.h"

struct fim_text {
    const char *s;
    size_t n;
};

struct fim_parts {
    struct fim_text before, after, begun; /* begun: the beginning of the answer, behind everything */
    const json_t *extra;                  /* [{filename, text}] or NULL */
    uint32_t n_keep;                      /* tokens of before, after and extra together at most; 0: no limit */
};

/* *to is a prompt of tokens then. 400 for a model without the tokens; param: of the field named by the client. */
int fim_prompt(const rd_engine *engine, const struct fim_parts *parts, const char *param, struct prompt *to,
               struct api_error *e);
