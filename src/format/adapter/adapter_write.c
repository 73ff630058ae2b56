/* format/adapter/adapter_write.c - see the header. */
#include "format/adapter/adapter_write.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/error.h"
#include "base/file_out.h"
#include "base/limits.h"
#include "format/gguf/gguf_write.h"
#include "format/hub/hf_names.h"
#include "tensor/dtype.h"

#define ALIGNMENT 32u

static uint64_t half_bytes(const struct adapter_out *o, const struct adapter_out_pair *p, bool is_b)
{
    return (uint64_t)o->rank * (is_b ? p->n_out : p->n_in) * (o->bf16 ? sizeof(uint16_t) : sizeof(float));
}

static rd_status write_values(const struct adapter_out *o, struct file_out *f, const float *values, uint64_t n_bytes,
                              struct rd_error *err)
{
    uint16_t part[512];
    rd_status st = RD_OK;

    if (!o->bf16) return file_out_write(f, values, n_bytes, err);
    for (uint64_t n = n_bytes / sizeof(*part), i = 0, k; i < n && st == RD_OK; i += k) {
        for (k = 0; k < 512 && i + k < n; k++) part[k] = float_to_bf16(values[i + k]);
        st = file_out_write(f, part, k * sizeof(*part), err);
    }
    return st;
}

/* Every half of every pair, A before B. */
static rd_status write_halves(const struct adapter_out *o, struct file_out *f, bool aligned, struct rd_error *err)
{
    static const char zeros[ALIGNMENT];
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < 2 * o->n && st == RD_OK; i++) {
        const struct adapter_out_pair *p = &o->pairs[i / 2];
        uint64_t n = half_bytes(o, p, i % 2);

        st = write_values(o, f, i % 2 ? p->b : p->a, n, err);
        if (st == RD_OK && aligned && n % ALIGNMENT) st = file_out_write(f, zeros, ALIGNMENT - n % ALIGNMENT, err);
    }
    return st;
}

/* The header, then the halves, under the file's name at once. */
static rd_status write_file(const char *path, const struct buf *header, const struct adapter_out *o, bool aligned,
                            struct rd_error *err)
{
    struct file_out f;
    rd_status st;

    if (header->failed) return error_set(err, RD_E_NOMEM, "out of memory");
    if ((st = file_out_open(path, &f, err)) != RD_OK) return st;
    st = file_out_write(&f, header->data, header->n, err);
    if (st == RD_OK) st = write_halves(o, &f, aligned, err);
    if (st == RD_OK) return file_out_commit(&f, err);
    file_out_abandon(&f);
    return st;
}

static void put_safetensors_header(const struct adapter_out *o, struct buf *out)
{
    struct buf json = {0};
    uint64_t at = 0, n;

    buf_puts(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < 2 * o->n; i++) {
        const struct adapter_out_pair *p = &o->pairs[i / 2];

        n = half_bytes(o, p, i % 2);
        buf_printf(&json,
                   ",\"base_model.model.model.layers.%u.%s.lora_%s.weight\":{\"dtype\":\"%s\",\"shape\":[%u,%u],",
                   p->layer, hf_module(p->matrix), i % 2 ? "B" : "A", o->bf16 ? "BF16" : "F32",
                   i % 2 ? p->n_out : o->rank, i % 2 ? o->rank : p->n_in);
        buf_printf(&json, "\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + n));
        at += n;
    }
    buf_putc(&json, '}');
    while (json.n % 8 && !json.failed) buf_putc(&json, ' ');
    n = json.n;
    buf_append(out, &n, sizeof(n));
    buf_append(out, json.data, json.n);
    out->failed |= json.failed;
    buf_deinit(&json);
}

static bool is_first_of_its_name(const struct adapter_out *o, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(o->pairs[k].matrix, o->pairs[i].matrix) == 0) return false;
    return true;
}

static void put_config(const struct adapter_out *o, struct buf *out)
{
    buf_puts(out, "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"base_model_name_or_path\": \"");
    buf_put_json(out, o->base, strlen(o->base));
    buf_printf(out, "\",\n  \"r\": %u,\n  \"lora_alpha\": %.17g,\n  \"lora_dropout\": %.9g,\n  \"use_rslora\": %s,\n",
               o->rank, o->alpha, o->dropout, o->by_root ? "true" : "false");
    buf_puts(out, "  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n"
                  "  \"target_modules\": [");
    for (uint32_t i = 0; i < o->n; i++)
        if (is_first_of_its_name(o, i)) buf_printf(out, "%s\"%s\"", i ? ", " : "", hf_module_name(o->pairs[i].matrix));
    buf_puts(out, "]\n}\n");
}

rd_status adapter_write_peft(const char *dir, const struct adapter_out *o, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct buf header = {0};
    rd_status st;

    if (snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir) >= (int)sizeof(path))
        return error_set(err, RD_E_LIMIT, "the path is too long");
    put_safetensors_header(o, &header);
    st = write_file(path, &header, o, false, err);
    buf_deinit(&header);
    if (st != RD_OK) return st;
    snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
    put_config(o, &header);
    st = header.failed ? error_set(err, RD_E_NOMEM, "out of memory") : file_out_all(path, header.data, header.n, err);
    buf_deinit(&header);
    return st;
}

static void put_infos(const struct adapter_out *o, struct buf *out)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < 2 * o->n; i++) {
        const struct adapter_out_pair *p = &o->pairs[i / 2];
        const uint64_t dims[2] = {i % 2 ? o->rank : p->n_in, i % 2 ? p->n_out : o->rank};
        const uint32_t n_dims = 2, type = o->bf16 ? DTYPE_BF16 : DTYPE_F32;
        char name[96];
        uint64_t n =
            (uint64_t)snprintf(name, sizeof(name), "blk.%u.%s.weight.lora_%s", p->layer, p->matrix, i % 2 ? "b" : "a");

        buf_append(out, &n, sizeof(n));
        buf_append(out, name, n);
        buf_append(out, &n_dims, sizeof(n_dims));
        buf_append(out, dims, sizeof(dims));
        buf_append(out, &type, sizeof(type));
        buf_append(out, &at, sizeof(at));
        at += (half_bytes(o, p, i % 2) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    while (out->n % ALIGNMENT && !out->failed) buf_putc(out, 0);
}

rd_status adapter_write_gguf(const char *path, const struct adapter_out *o, struct rd_error *err)
{
    struct gguf_writer w = {0};
    struct buf header = {0};
    rd_status st;

    gguf_add_str(&w, "general.architecture", o->arch, strlen(o->arch));
    gguf_add_str(&w, "general.type", "adapter", 7);
    gguf_add_str(&w, "adapter.type", "lora", 4);
    gguf_add_f32(&w, "adapter.lora.alpha", o->by_root ? o->alpha * sqrt(o->rank) : o->alpha);
    gguf_write_header(&w, 2 * (uint64_t)o->n, &header);
    put_infos(o, &header);
    gguf_writer_deinit(&w);
    st = write_file(path, &header, o, true, err);
    buf_deinit(&header);
    return st;
}
