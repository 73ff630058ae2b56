/* api/api_kv_type.c - the types of keys and values: their names, which a model can have, and which others there are. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/error.h"

static const enum dtype known[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_Q8_0, DTYPE_F8_E4M3, DTYPE_Q4_0};

#define N_KNOWN ((uint32_t)(sizeof(known) / sizeof(*known)))

static void put_name(enum dtype t, char *out, size_t n)
{
    snprintf(out, n, "%s", dtype_name(t));
    for (; *out; out++) *out = (char)tolower((unsigned char)*out);
}

void api_kv_type_name(const struct kv_layout *l, char *out, size_t n)
{
    char k[16], v[16];

    put_name(l->dtype_k, k, sizeof(k));
    put_name(l->dtype_v, v, sizeof(v));
    if (l->dtype_k == l->dtype_v)
        snprintf(out, n, "%s", k);
    else
        snprintf(out, n, "%s/%s", k, v);
}

static rd_status parse_one(const char *name, size_t n, enum dtype *out, struct rd_error *err)
{
    char one[16];

    for (uint32_t i = 0; i < N_KNOWN; i++) {
        put_name(known[i], one, sizeof(one));
        if (n == strlen(one) && memcmp(name, one, n) == 0) {
            *out = known[i];
            return RD_OK;
        }
    }
    return error_set(err, RD_E_INVALID,
                     "KV type \"%.*s\" is unknown; known: f16, bf16, f32, q8_0, f8_e4m3, q4_0, or two of them as "
                     "KEYS/VALUES",
                     (int)(n < 32 ? n : 32), name);
}

rd_status api_kv_type_parse(const char *name, struct kv_layout *l, struct rd_error *err)
{
    const char *slash = name ? strchr(name, '/') : NULL;
    rd_status st;

    l->dtype_k = l->dtype_v = DTYPE_F16;
    if (!name) return RD_OK;
    st = parse_one(name, slash ? (size_t)(slash - name) : strlen(name), &l->dtype_k, err);
    l->dtype_v = l->dtype_k;
    if (st == RD_OK && slash) st = parse_one(slash + 1, strlen(slash + 1), &l->dtype_v, err);
    return st;
}

rd_status api_kv_type_check(const struct model_config *c, const struct rd_options *o, const struct kv_layout *l,
                            struct rd_error *err)
{
    if (!kv_type_fits(l->dtype_k, c->head_dim) || !kv_type_fits(l->dtype_v, c->head_dim))
        return error_set(err, RD_E_INVALID,
                         "KV type \"%.32s\" needs heads of a multiple of 32 values; this model's have %u: take f16",
                         o->kv_type, c->head_dim);
    return o->kv_force ? RD_OK : model_check_kv_types(c, l->dtype_k, err);
}

bool api_kv_type_other(const struct kv_layout *l, uint32_t i, struct kv_layout *out)
{
    *out = *l;
    out->dtype_k = known[i / N_KNOWN % N_KNOWN];
    out->dtype_v = known[i % N_KNOWN];
    return (out->dtype_k != l->dtype_k || out->dtype_v != l->dtype_v) && kv_type_fits(out->dtype_k, l->head_dim) &&
           kv_type_fits(out->dtype_v, l->head_dim);
}

uint32_t api_kv_type_n_others(void)
{
    return N_KNOWN * N_KNOWN;
}
