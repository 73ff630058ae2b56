/* format/adapter/adapter_peft.c - adapters as PEFT saves them. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/adapter/adapter_parts.h"
#include "format/hub/hf_inside.h"

#define MAX_BYTES ((size_t)4 << 30)

struct peft {
    json_t *config, *alphas; /* alphas: "alpha_pattern" */
    double alpha;
    bool by_root; /* rsLoRA */
};

/* Members that change what is computed, and the values with which they do not. */
static rd_status check_config(const json_t *config, struct rd_error *err)
{
    static const char *const off[] = {"use_dora",          "fan_in_fan_out",          "lora_bias",
                                      "use_qalora",        "modules_to_save",         "layer_replication",
                                      "target_parameters", "alora_invocation_tokens", "trainable_token_indices"};
    const char *type = json_string_value(json_object_get(config, "peft_type")),
               *bias = json_string_value(json_object_get(config, "bias"));
    char quoted[64];

    if (!type || strcmp(type, "LORA") != 0)
        return error_set(err, RD_E_UNSUPPORTED, "adapter_config.json: peft_type %s; adapters of LORA are read",
                         type ? error_quote(quoted, sizeof(quoted), type, strlen(type)) : "is missing");
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        const json_t *v = json_object_get(config, off[i]);

        if (v && !json_is_false(v) && !json_is_null(v) &&
            !((json_is_array(v) || json_is_object(v)) && json_array_size(v) + json_object_size(v) == 0))
            return error_set(err, RD_E_UNSUPPORTED, "adapter_config.json: %s is set, which radish does not compute",
                             off[i]);
    }
    if (bias && strcmp(bias, "none") != 0)
        return error_set(err, RD_E_UNSUPPORTED, "adapter_config.json: bias \"%s\": biases of adapters are not read",
                         error_quote(quoted, sizeof(quoted), bias, strlen(bias)));
    return RD_OK;
}

static rd_status read_config(const char *path, struct peft *p, struct adapter_file *f, struct rd_error *err)
{
    const struct hf_dir place = {.path = path};
    const json_t *alpha;
    const char *base;
    rd_status st = hf_read_json(&place, "adapter_config.json", LIMIT_CONFIG_BYTES, true, &p->config, err);

    if (st != RD_OK) return st;
    if (!json_is_object(p->config)) return error_set(err, RD_E_FORMAT, "adapter_config.json: no object");
    if ((st = check_config(p->config, err)) != RD_OK) return st;
    alpha = json_object_get(p->config, "lora_alpha");
    if (!json_is_number(alpha)) return error_set(err, RD_E_FORMAT, "adapter_config.json: lora_alpha is no number");
    p->alpha = json_number_value(alpha);
    p->by_root = json_is_true(json_object_get(p->config, "use_rslora"));
    p->alphas = json_object_get(p->config, "alpha_pattern");
    base = json_string_value(json_object_get(p->config, "base_model_name_or_path"));
    if (base) error_quote(f->base, sizeof(f->base), base, strlen(base));
    return RD_OK;
}

/* PEFT takes keys for regular expressions that a module's name ends with, from a dot on; nearly all are plain names. */
static rd_status find_alpha(const struct peft *p, const char *module, double *alpha, struct rd_error *err)
{
    const char *key;
    json_t *v;

    *alpha = p->alpha;
    if (!json_is_object(p->alphas)) return RD_OK;
    json_object_foreach(p->alphas, key, v)
    {
        size_t n = strlen(key), of = strlen(module);
        char quoted[96];

        if (strpbrk(key, "\\^$*+?()[]{}|"))
            return error_set(err, RD_E_UNSUPPORTED, "adapter_config.json: alpha_pattern \"%s\" is no plain name",
                             error_quote(quoted, sizeof(quoted), key, n));
        if (n > of || strcmp(module + of - n, key) != 0 || (n < of && module[of - n - 1] != '.')) continue;
        if (!json_is_number(v))
            return error_set(err, RD_E_FORMAT, "adapter_config.json: alpha_pattern holds no number");
        *alpha = json_number_value(v);
        return RD_OK;
    }
    return RD_OK;
}

/* "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight": module is what stands before .lora_A. */
static bool parse(const char *name, char *module, size_t cap, uint32_t *layer, const char **matrix, bool *is_b)
{
    const char *prefix = "base_model.model.", *end = strstr(name, ".lora_"), *at, *dot;
    uint64_t n;

    if (strncmp(name, prefix, strlen(prefix)) == 0) name += strlen(prefix);
    if (!end || end < name || (strcmp(end, ".lora_A.weight") != 0 && strcmp(end, ".lora_B.weight") != 0)) return false;
    *is_b = end[6] == 'B';
    if ((size_t)(end - name) >= cap) return false;
    snprintf(module, cap, "%.*s", (int)(end - name), name);
    at = strstr(module, "layers.");
    if (!at || (at > module && at[-1] != '.') || strstr(module, "vision") || strstr(module, "audio")) return false;
    at += 7;
    dot = strchr(at, '.');
    if (!dot || !parse_u64(at, (size_t)(dot - at), &n) || n >= UINT32_MAX) return false;
    *layer = (uint32_t)n;
    *matrix = hf_gguf_matrix(dot + 1);
    return *matrix != NULL;
}

static enum dtype dtype_of(enum st_type t)
{
    return t == ST_F32 ? DTYPE_F32 : t == ST_F16 ? DTYPE_F16 : t == ST_BF16 ? DTYPE_BF16 : DTYPE_NONE;
}

static rd_status read_tensor(struct adapter_file *f, const struct peft *p, const struct st_tensor *s,
                             struct rd_error *err)
{
    char name[160], module[160];
    const char *matrix;
    struct adapter_tensor *t;
    uint32_t layer;
    double alpha;
    bool is_b;
    rd_status st;

    error_quote(name, sizeof(name), s->name, s->n_name);
    if (!parse(s->name, module, sizeof(module), &layer, &matrix, &is_b))
        return error_set(err, RD_E_UNSUPPORTED, "%s: only adapters of the layers' matrices are read", name);
    if (s->n_dims != 2) return error_set(err, RD_E_FORMAT, "%s: %u dimensions, expected 2", name, s->n_dims);
    if (dtype_of(s->type) == DTYPE_NONE)
        return error_set(err, RD_E_UNSUPPORTED, "%s: type %s; adapters of F32, F16 and BF16 are read", name,
                         st_type_name(s->type));
    if ((st = find_alpha(p, module, &alpha, err)) != RD_OK) return st;
    t = adapter_add(f, layer, matrix, module);
    if (!t) return error_set(err, RD_E_NOMEM, "out of memory");
    st = adapter_set(t, is_b, dtype_of(s->type), s->dims[0], s->dims[1], (const uint8_t *)f->bytes + s->offset, err);
    if (st == RD_OK) t->scale = (float)(alpha / (p->by_root ? sqrt(t->rank) : (double)t->rank));
    return st;
}

static rd_status read_tensors(const char *path, struct adapter_file *f, const struct peft *p, struct rd_error *err)
{
    char *const files[] = {(char[]){"adapter_model.safetensors"}};
    struct st_table table = {0};
    size_t n = 0;
    uint64_t n_header = 0;
    const struct hf_dir place = {.path = path};
    char file[LIMIT_PATH_BYTES];
    rd_status st = hf_path(&place, files[0], file, sizeof(file), err);

    if (st == RD_OK) st = file_read_all(file, MAX_BYTES, &f->bytes, &n, err);
    if (st != RD_OK) return st;
    if (n < 8) return error_set(err, RD_E_FORMAT, "%s: %zu bytes are no safetensors file", files[0], n);
    st = safetensors_header_bytes(files[0], (const uint8_t *)f->bytes, n, &n_header, err);
    if (st == RD_OK) st = safetensors_read(files[0], 0, (const uint8_t *)f->bytes, n_header, n, &table, err);
    if (st == RD_OK) st = safetensors_sort(&table, files, err);
    for (size_t i = 0; st == RD_OK && i < table.n; i++) st = read_tensor(f, p, &table.tensors[i], err);
    safetensors_deinit(&table);
    return st;
}

rd_status adapter_open_peft(const char *path, struct adapter_file *f, struct rd_error *err)
{
    struct peft p = {0};
    rd_status st = read_config(path, &p, f, err);

    if (st == RD_OK) st = read_tensors(path, f, &p, err);
    json_decref(p.config);
    return st;
}
