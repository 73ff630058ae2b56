/* engine/think_budget.h - thinking that has a limit in tokens: past it the closing tag takes the place of what was
 * sampled, token by token, as if the model had written it.
 *
 * The tags are followed in token ids, so that the outcome depends on the sequence alone (never on how soon a reader
 * looks). The counting begins with the opening tag, or at once where the prompt opened it.
 * Thread  engine thread only.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct think_budget {
    /* given; the arrays are borrowed and live as long as the engine */
    const int32_t *open, *close;        /* how the tags begin, in tokens */
    const int32_t *forced;              /* what ends the thinking: text around the closing tag */
    uint32_t n_open, n_close, n_forced; /* n_forced 0: no budget */
    uint32_t limit;                     /* tokens */
    bool thinks;                        /* now: the prompt ended inside */
    /* state */
    uint32_t n_thought, n_matched, at; /* at: the next of forced, 0: not forcing */
};

/* The token that takes the place of the sampled one; mostly it itself. */
int32_t think_budget_next(struct think_budget *b, int32_t sampled);
