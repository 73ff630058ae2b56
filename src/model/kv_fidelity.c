/* model/kv_fidelity.c - refuses q4_0 and f8_e4m3 keys for models whose text they are known to ruin.
 *
 * A column of each architecture, measured by bench/kv-types (`radish perplexity FILE --kv-type q4_0/f16 --kv-force` against f16; f8_e4m3 for both); keys
 * are refused where perplexity changes by more than 5 %. They suffer where some dimensions are much larger than the
 * others, because those take the whole block's scale; four bits of e4m3 are too few for large keys. Values are averaged
 * and stand both everywhere. The figures: docs/kv-types.md.
 */
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "model/model_arch.h"

#define MOST_PERCENT 5.0

rd_status model_check_kv_types(const struct model_config *c, enum dtype keys, struct rd_error *err)
{
    const char *name = keys == DTYPE_Q4_0 ? "q4_0" : "f8_e4m3";
    const struct model_arch *arch = model_arch_find(c->arch, strlen(c->arch));

    if (keys != DTYPE_Q4_0 && keys != DTYPE_F8_E4M3) return RD_OK;
    for (uint32_t i = 0; arch && i < arch->n_kv_losses; i++) {
        const struct kv_loss *loss = &arch->kv_losses[i];
        const double percent = keys == DTYPE_Q4_0 ? loss->q4_0 : loss->f8_e4m3;

        if (c->head_dim != loss->head_dim) continue;
        if (percent <= MOST_PERCENT) return RD_OK;
        return error_set(err, RD_E_INVALID,
                         "%s keys change the perplexity of %s with heads of %u by %.0f %%: take q8_0 or q8_0/%s, or "
                         "force it (--kv-force)",
                         name, c->arch, c->head_dim, percent, name);
    }
    log_warn("%s keys are not measured for %s with heads of %u: q8_0/%s is safe everywhere (docs/kv-types.md)", name,
             c->arch, c->head_dim, name);
    return RD_OK;
}
