/* model/kv_fidelity.c - the models whose text q4_0 or f8_e4m3 keys are known to ruin.
 *
 * Measured by bench/kv-types (`radish perplexity FILE --kv-type q4_0/f16 --kv-force` against f16; f8_e4m3 for both); keys
 * are refused where perplexity changes by more than 5 %. They suffer where some dimensions are much larger than the
 * others, because those take the whole block's scale; four bits of e4m3 are too few for large keys. Values are averaged
 * and stand both everywhere. The figures: docs/kv-types.md.
 */
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "model/model.h"

#define MOST_PERCENT 5.0

static const struct {
    const char *arch;
    uint32_t head_dim;
    double q4_0, f8_e4m3;           /* percent by which perplexity changes, worst of the files measured */
} measured[] = {
    {"llama", 64, 3.3, 0.4},
    {"gemma3", 256, 9, 0.1},
    {"qwen2", 64, 31, 3.7},
    {"qwen2", 128, 14000, 126},
};

rd_status model_check_kv_types(const struct model_config *c, enum dtype keys, struct rd_error *err)
{
    const char *name = keys == DTYPE_Q4_0 ? "q4_0" : "f8_e4m3";

    if (keys != DTYPE_Q4_0 && keys != DTYPE_F8_E4M3) return RD_OK;
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
        const double percent = keys == DTYPE_Q4_0 ? measured[i].q4_0 : measured[i].f8_e4m3;

        if (strcmp(c->arch, measured[i].arch) || c->head_dim != measured[i].head_dim) continue;
        if (percent <= MOST_PERCENT) return RD_OK;
        return error_set(
            err, RD_E_INVALID,
            "%s keys change the perplexity of %s with heads of %u by %.0f %%: take q8_0 or q8_0/%s, or "
            "force it (--kv-force)",
            name, c->arch, c->head_dim, percent, name);
    }
    log_warn("%s keys are not measured for %s with heads of %u: q8_0/%s is safe everywhere (docs/kv-types.md)", name,
             c->arch, c->head_dim, name);
    return RD_OK;
}
