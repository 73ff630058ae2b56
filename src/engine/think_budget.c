/* engine/think_budget.c - a tag matcher and a counter. */
#include "engine/think_budget.h"

/* True when token ends the tag. */
static bool follow(struct think_budget *b, const int32_t *tag, uint32_t n, int32_t token)
{
    if (b->n_matched < n && token == tag[b->n_matched])
        b->n_matched++;
    else
        b->n_matched = n && token == tag[0];
    if (n == 0 || b->n_matched < n) return false;
    b->n_matched = 0;
    return true;
}

int32_t think_budget_next(struct think_budget *b, int32_t sampled)
{
    if (b->n_forced == 0) return sampled;
    if (!b->thinks) {
        b->thinks = follow(b, b->open, b->n_open, sampled);
        return sampled;
    }
    if (b->at == 0) {
        if (follow(b, b->close, b->n_close, sampled)) {
            b->thinks = false;
            b->n_thought = 0;
            return sampled;
        }
        if (b->n_matched > 0 || b->n_thought++ < b->limit) return sampled; /* a closing tag has begun by itself */
    }
    sampled = b->forced[b->at++];
    if (b->at == b->n_forced) {
        b->thinks = false;
        b->at = b->n_matched = b->n_thought = 0;
    }
    return sampled;
}
