/* server/dialects/token_list.c - see the header. */
#include "server/dialects/token_list.h"
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"

rd_status token_list_add(struct token_list *to, const int32_t *ids, uint32_t n)
{
    if (n > LIMIT_CONTEXT - to->n) return RD_E_LIMIT;
    if (to->n + n > to->cap) {
        uint32_t cap = (to->n + n) * 2;
        int32_t *grown = mem_realloc(to->ids, cap, sizeof(*grown));

        if (!grown) return RD_E_NOMEM;
        to->ids = grown;
        to->cap = cap;
    }
    if (n) memcpy(to->ids + to->n, ids, n * sizeof(*ids));
    to->n += n;
    return RD_OK;
}

rd_status token_list_add_one(struct token_list *to, int32_t id)
{
    return id < 0 ? RD_OK : token_list_add(to, &id, 1);
}
