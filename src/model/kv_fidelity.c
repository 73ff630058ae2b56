/* model/kv_fidelity.c - the models whose text q4_0 keys are known to ruin.
 *
 * Measured with `radish perplexity FILE --kv-type q4_0/f16 --kv-force` against f16; a row stands here when perplexity
 * changes by more than 5 %. Keys suffer where some dimensions are much larger than the others (the biases of Qwen 2's
 * keys): they take the whole block's scale. Values are averaged and stand q4_0 everywhere. The figures, and the text
 * that they are of: docs/kv-types.md.
 */
#include <string.h>
#include "base/error.h"
#include "model/model.h"

static const struct {
    const char *arch;
    uint32_t head_dim;
    double change_percent;          /* of perplexity, worst of the files measured */
} ruined_by_q4_keys[] = {
    {"gemma3", 256, 9},
    {"qwen2", 64, 31},
    {"qwen2", 128, 14000},
};

rd_status model_check_kv_types(const struct model_config *c, enum dtype keys, struct rd_error *err)
{
    if (keys != DTYPE_Q4_0) return RD_OK;
    for (size_t i = 0; i < sizeof(ruined_by_q4_keys) / sizeof(ruined_by_q4_keys[0]); i++) {
        if (strcmp(c->arch, ruined_by_q4_keys[i].arch) || c->head_dim != ruined_by_q4_keys[i].head_dim) continue;
        return error_set(
            err, RD_E_INVALID,
            "q4_0 keys change the perplexity of %s with heads of %u by %.0f %%: take q8_0 or q8_0/q4_0, or "
            "force it (--kv-force)",
            c->arch, c->head_dim, ruined_by_q4_keys[i].change_percent);
    }
    return RD_OK;
}
