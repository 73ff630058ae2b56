/* model/kv_fidelity.c - the models whose text q4_0 keys are known to ruin.
 *
 * Measured by bench/kv-types (`radish perplexity FILE --kv-type q4_0/f16 --kv-force` against f16); keys are refused
 * where perplexity changes by more than 5 %. They suffer where some dimensions are much larger than the others, because
 * those take the whole block's scale. Values are averaged and stand q4_0 everywhere. The figures: docs/kv-types.md.
 */
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "model/model.h"

#define MOST_PERCENT 5.0

static const struct {
    const char *arch;
    uint32_t head_dim;
    double change_percent;          /* of perplexity, worst of the files measured */
} measured[] = {
    {"llama", 64, 3.3},
    {"gemma3", 256, 9},
    {"qwen2", 64, 31},
    {"qwen2", 128, 14000},
};

rd_status model_check_kv_types(const struct model_config *c, enum dtype keys, struct rd_error *err)
{
    if (keys != DTYPE_Q4_0) return RD_OK;
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
        if (strcmp(c->arch, measured[i].arch) || c->head_dim != measured[i].head_dim) continue;
        if (measured[i].change_percent <= MOST_PERCENT) return RD_OK;
        return error_set(
            err, RD_E_INVALID,
            "q4_0 keys change the perplexity of %s with heads of %u by %.0f %%: take q8_0 or q8_0/q4_0, or "
            "force it (--kv-force)",
            c->arch, c->head_dim, measured[i].change_percent);
    }
    log_warn("q4_0 keys are not measured for %s with heads of %u: q8_0/q4_0 is safe everywhere (docs/kv-types.md)",
             c->arch, c->head_dim);
    return RD_OK;
}
