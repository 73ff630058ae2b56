/* api/api_convert.c - `radish convert`. */
#include <math.h>
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "base/error.h"
#include "base/mem.h"
#include "format/model_file.h"
#include "model/model_convert.h"

void rd_convert_options_default(struct rd_convert_options *o)
{
    *o = (struct rd_convert_options){.size = sizeof(*o), .merge_scale = 1};
}

rd_status rd_convert(const char *model, const char *out_path, const struct rd_convert_options *o, struct rd_error *err)
{
    struct model_progress progress;
    struct convert_options co;
    const char *type;
    struct model_file *g = NULL;
    rd_status st;

    if (api_check_size(o->size, sizeof(*o), "rd_convert_options_default", err) != RD_OK) return RD_E_INVALID;
    progress = (struct model_progress){o->progress, o->progress_user, o->cancelled};
    co = (struct convert_options){.pre = o->pre,
                                  .n_threads = o->n_threads,
                                  .progress = &progress,
                                  .lora = o->merge_lora,
                                  .lora_scale = o->merge_scale};
    type = o->type ? o->type : "f16";
    if (!model || !out_path) return error_set(err, RD_E_INVALID, "a model and a path for the output must be given");
    if (!isfinite(o->merge_scale)) return error_set(err, RD_E_INVALID, "the scale of an adapter is no number");
    json_set_alloc_funcs(api_json_alloc, mem_free);
    if (!convert_type_find(type, &co.type))
        return error_set(err, RD_E_INVALID, "type \"%.32s\" is unknown; known: f16, bf16, q8_0, q4_k_m", type);
    st = model_file_open(model, model_hub_families(), &g, err);
    if (st == RD_OK) st = model_convert(g, out_path, &co, err);
    model_file_close(g);
    return st;
}
