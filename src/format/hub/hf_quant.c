/* format/hub/hf_quant.c - what config.json says of quantised matrices: MLX's groups, or 8-bit floats of several makers. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "format/hub/hf_inside.h"

#define FP8_BLOCK 128u /* where nothing is said */
#define MAX_BLOCK (1u << 24)

static const json_t *quantisation_of(const struct hf_dir *dir)
{
    const json_t *q = json_object_get(dir->config, "quantization");

    return json_is_object(q) ? q : json_object_get(dir->config, "quantization_config");
}

void hf_matrix_bits(const struct hf_dir *dir, const char *base, uint32_t *bits, uint32_t *group)
{
    const json_t *one = json_object_get(quantisation_of(dir), base), *v;

    *bits = dir->bits;
    *group = dir->group;
    v = json_object_get(one, "bits");
    if (json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) < 64)
        *bits = (uint32_t)json_integer_value(v);
    v = json_object_get(one, "group_size");
    if (json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) < 65536)
        *group = (uint32_t)json_integer_value(v);
}

static bool text_is(const json_t *v, const char *text)
{
    return json_is_string(v) && !strcmp(json_string_value(v), text);
}

/* What was found where `wanted` was wanted. */
static rd_status refuse(const char *what, const json_t *found, const char *wanted, struct rd_error *err)
{
    char quoted[64] = "absent";

    if (json_is_string(found))
        error_quote(quoted, sizeof(quoted), json_string_value(found), json_string_length(found));
    else if (found)
        snprintf(quoted, sizeof(quoted), "no string");
    return error_set(err, RD_E_UNSUPPORTED, "config.json: %s is \"%s\"; %s", what, quoted, wanted);
}

static rd_status read_mlx(struct hf_dir *dir, const json_t *q, struct rd_error *err)
{
    const json_t *mode = json_object_get(q, "mode"), *bits = json_object_get(q, "bits");
    const json_t *group = json_object_get(q, "group_size");

    if (json_is_string(mode) && !text_is(mode, "affine"))
        return refuse("quantization \"mode\"", mode, "only \"affine\" is known", err);
    if (!json_is_integer(bits) || !json_is_integer(group) || json_integer_value(bits) < 0 ||
        json_integer_value(bits) > 32 || json_integer_value(group) < 0 || json_integer_value(group) > 65536)
        return error_set(err, RD_E_FORMAT, "config.json: \"quantization\" has no \"bits\" and \"group_size\"");
    dir->quantised = true;
    dir->bits = (uint32_t)json_integer_value(bits);
    dir->group = (uint32_t)json_integer_value(group);
    return RD_OK;
}

/* v: [rows, columns], or absent. */
static rd_status read_block(struct hf_dir *dir, const char *key, const json_t *v, struct rd_error *err)
{
    uint32_t *const to[2] = {&dir->block_out, &dir->block_in};

    if (!v || json_is_null(v)) return RD_OK;
    for (size_t i = 0; i < 2; i++) {
        const json_t *n = json_array_get(v, i);

        if (json_array_size(v) != 2 || !json_is_integer(n) || json_integer_value(n) < 1 ||
            json_integer_value(n) > MAX_BLOCK)
            return error_set(err, RD_E_FORMAT, "config.json: \"%s\" is not two numbers from 1 to %u", key, MAX_BLOCK);
        *to[i] = (uint32_t)json_integer_value(n);
    }
    return RD_OK;
}

/* compressed-tensors: every group of matrices must be of 8-bit floats. */
static rd_status read_compressed(struct hf_dir *dir, const json_t *q, struct rd_error *err)
{
    const json_t *format = json_object_get(q, "format"), *groups = json_object_get(q, "config_groups"), *group;
    const json_t *sparse = json_object_get(json_object_get(q, "sparsity_config"), "format");
    const char *name;
    rd_status st = RD_OK;

    if (format && !json_is_null(format) && !text_is(format, "float-quantized") && !text_is(format, "naive-quantized"))
        return refuse("compressed-tensors \"format\"", format, "known are \"float-quantized\" and \"naive-quantized\"",
                      err);
    if (sparse && !text_is(sparse, "dense"))
        return refuse("\"sparsity_config\"", sparse, "only \"dense\" is known", err);
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return error_set(err, RD_E_FORMAT, "config.json: compressed-tensors without \"config_groups\"");
    json_object_foreach((json_t *)groups, name, group)
    {
        const json_t *w = json_object_get(group, "weights"), *bits = json_object_get(w, "num_bits");
        const json_t *type = json_object_get(w, "type");

        if (!text_is(type, "float"))
            return refuse("compressed-tensors weights' \"type\"", type, "only \"float\" is known", err);
        if (!json_is_integer(bits) || json_integer_value(bits) != 8)
            return error_set(err, RD_E_UNSUPPORTED, "config.json: compressed-tensors weights' \"num_bits\" is not 8");
        st = read_block(dir, "block_structure", json_object_get(w, "block_structure"), err);
        if (st != RD_OK) return st;
    }
    return RD_OK;
}

rd_status hf_read_quantisation(struct hf_dir *dir, struct rd_error *err)
{
    const json_t *q = quantisation_of(dir), *method = json_object_get(q, "quant_method"), *algo, *fmt;
    rd_status st = RD_OK;

    if (!json_is_object(q)) return RD_OK;
    if (!json_is_string(method) || text_is(method, "affine")) return read_mlx(dir, q, err);
    dir->block_out = dir->block_in = FP8_BLOCK;
    if (text_is(method, "fp8")) {
        fmt = json_object_get(q, "fmt");
        if (json_is_string(fmt) && !text_is(fmt, "e4m3"))
            return refuse("fp8 \"fmt\"", fmt, "only \"e4m3\" is known", err);
        st = read_block(dir, "weight_block_size", json_object_get(q, "weight_block_size"), err);
    } else if (text_is(method, "modelopt")) {
        algo = json_object_get(q, "quant_algo");
        if (!text_is(algo, "FP8")) return refuse("modelopt's \"quant_algo\"", algo, "only \"FP8\" is known", err);
    } else if (text_is(method, "compressed-tensors")) {
        st = read_compressed(dir, q, err);
    } else if (!text_is(method, "fbgemm_fp8")) {
        return refuse("\"quant_method\"", method,
                      "known are MLX's groups, \"fp8\", \"fbgemm_fp8\", \"modelopt\" "
                      "and \"compressed-tensors\"",
                      err);
    }
    dir->is_fp8 = st == RD_OK;
    return st;
}
