/* server/dialects/token_list.h - a prompt that is put together of token ids and texts.
 * Owns    its ids (mem_free), which may be given away.
 * Thread  its owner.
 */
#pragma once
#include "radish/radish.h"

struct token_list {
    int32_t *ids;
    uint32_t n, cap;
}; /* zeroed: empty */

/* RD_E_NOMEM; RD_E_LIMIT: more than a context can have. Nothing was added then. */
rd_status token_list_add(struct token_list *to, const int32_t *ids, uint32_t n);
/* An id below 0 is none. */
rd_status token_list_add_one(struct token_list *to, int32_t id);
