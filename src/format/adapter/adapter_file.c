/* format/adapter/adapter_file.c - what is at a path, and whether its pairs are whole. */
#include "format/adapter/adapter_parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"

#define MAX_TENSORS (LIMIT_N_LAYERS * 16u)

struct adapter_tensor *adapter_add(struct adapter_file *f, uint32_t layer, const char *matrix, const char *name)
{
    struct adapter_tensor *t;

    for (uint32_t i = f->n; i-- > 0;)
        if (f->tensors[i].layer == layer && !strcmp(f->tensors[i].matrix, matrix)) return &f->tensors[i];
    if (f->n == MAX_TENSORS) return NULL;
    if ((f->n & (f->n - 1)) == 0) { /* room for twice as many */
        t = mem_realloc(f->tensors, f->n ? 2 * (size_t)f->n : 1, sizeof(*t));
        if (!t) return NULL;
        f->tensors = t;
    }
    t = &f->tensors[f->n++];
    *t = (struct adapter_tensor){.layer = layer, .scale = NAN};
    snprintf(t->matrix, sizeof(t->matrix), "%s", matrix);
    error_quote(t->name, sizeof(t->name), name, strlen(name));
    return t;
}

rd_status adapter_set(struct adapter_tensor *t, bool is_b, enum dtype dtype, uint64_t rows, uint64_t row,
                      const uint8_t *data, struct rd_error *err)
{
    struct adapter_half *half = is_b ? &t->b : &t->a;
    uint64_t rank = is_b ? row : rows, width = is_b ? rows : row;

    if (half->data) return error_set(err, RD_E_FORMAT, "%s: there twice", t->name);
    if (dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16 && dtype != DTYPE_Q8_0)
        return error_set(err, RD_E_UNSUPPORTED, "%s: type %s; adapters of F32, F16, BF16 and Q8_0 are read", t->name,
                         dtype_name(dtype));
    if (rank == 0 || width == 0 || width > LIMIT_FFN)
        return error_set(err, RD_E_FORMAT, "%s: %llu rows of %llu cannot be", t->name, (unsigned long long)rows,
                         (unsigned long long)row);
    if (rank > ADAPTER_MAX_RANK)
        return error_set(err, RD_E_LIMIT, "%s: rank %llu, at most %u", t->name, (unsigned long long)rank,
                         ADAPTER_MAX_RANK);
    if (t->rank && t->rank != rank)
        return error_set(err, RD_E_FORMAT, "%s: its two matrices have ranks %u and %llu", t->name, t->rank,
                         (unsigned long long)rank);
    *half = (struct adapter_half){dtype, data};
    t->rank = (uint32_t)rank;
    if (is_b)
        t->n_out = (uint32_t)width;
    else
        t->n_in = (uint32_t)width;
    return RD_OK;
}

/* One value after the other: a half is never aligned in a file. */
static bool is_finite(const struct adapter_half *h, uint64_t n)
{
    float v[256];
    uint32_t bytes = dtype_block_bytes(h->dtype), per_block = dtype_block_weights(h->dtype);

    for (uint64_t i = 0; i < n; i += 256) {
        uint64_t part = u64_min(256, n - i);

        dtype_to_float(h->dtype, h->data + i / per_block * bytes, v, part);
        for (uint64_t k = 0; k < part; k++)
            if (!isfinite(v[k])) return false;
    }
    return true;
}

static rd_status check(const struct adapter_file *f, struct rd_error *err)
{
    if (f->n == 0) return error_set(err, RD_E_FORMAT, "no matrices of an adapter are in it");
    for (uint32_t i = 0; i < f->n; i++) {
        const struct adapter_tensor *t = &f->tensors[i];

        if (!t->a.data || !t->b.data)
            return error_set(err, RD_E_FORMAT, "%s: matrix %s is missing", t->name, t->a.data ? "B" : "A");
        if (!isfinite(t->scale)) return error_set(err, RD_E_FORMAT, "%s: alpha / rank is no number", t->name);
        if (!is_finite(&t->a, (uint64_t)t->rank * t->n_in) || !is_finite(&t->b, (uint64_t)t->rank * t->n_out))
            return error_set(err, RD_E_FORMAT, "%s: holds values that are no numbers", t->name);
    }
    return RD_OK;
}

rd_status adapter_file_open(const char *path, struct adapter_file *out, struct rd_error *err)
{
    struct stat s;
    rd_status st;

    memset(out, 0, sizeof(*out));
    if (stat(path, &s) != 0) return error_set(err, RD_E_NOT_FOUND, "no adapter at this path");
    st = S_ISDIR(s.st_mode) ? adapter_open_peft(path, out, err) : adapter_open_gguf(path, out, err);
    if (st == RD_OK) st = check(out, err);
    if (st != RD_OK) adapter_file_close(out);
    return st;
}

void adapter_file_close(struct adapter_file *f)
{
    if (f->own) adapter_close_gguf(f);
    mem_free(f->bytes);
    mem_free(f->tensors);
    memset(f, 0, sizeof(*f));
}
