/* api/api_adapters.c - the adapters of an engine, by name, and what requests make of them: radish/adapter.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"

struct api_adapter {
    struct rd_adapter info;
    struct adapter *adapter; /* a reference */
};

struct api_adapters {
    struct mutex lock; /* all below */
    struct api_adapter *list;
    uint32_t n, next_id;
    uint64_t n_bytes, max_bytes;
};

/* Lock held; n: there is none. */
static uint32_t find(const struct api_adapters *x, const char *name)
{
    uint32_t i = 0;

    while (i < x->n && strcmp(x->list[i].info.name, name) != 0) i++;
    return i;
}

static rd_status not_found(const char *name, struct rd_error *err)
{
    char quoted[160];

    return error_set(err, RD_E_NOT_FOUND, "there is no adapter \"%s\"",
                     error_quote(quoted, sizeof(quoted), name, strlen(name)));
}

static rd_status check_name(const char *name, struct rd_error *err)
{
    size_t n = name ? strlen(name) : 0;

    if (n == 0 || n >= RD_ADAPTER_NAME_BYTES)
        return error_set(err, RD_E_INVALID, "the name of an adapter has 1 to %u bytes", RD_ADAPTER_NAME_BYTES - 1);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return error_set(err, RD_E_INVALID, "the name of an adapter has no control characters");
    return RD_OK;
}

/* Lock held. The adapter's reference is the list's now. */
static rd_status add(struct api_adapters *x, struct adapter *a, const char *name, const char *path, double scale,
                     struct rd_error *err)
{
    const struct adapter_info *info = adapter_info(a);
    struct api_adapter *list;

    if (find(x, name) < x->n) return error_set(err, RD_E_INVALID, "an adapter \"%s\" is loaded already", name);
    if (x->n == LIMIT_ADAPTERS) return error_set(err, RD_E_LIMIT, "%u adapters are loaded, and no more can be", x->n);
    if (info->n_bytes > x->max_bytes - u64_min(x->n_bytes, x->max_bytes))
        return error_set(
            err, RD_E_LIMIT,
            "the adapter takes %.1f MiB, and of the %.1f MiB that adapters may take %.1f MiB are taken: unload "
            "one, or allow more (--lora-bytes)",
            (double)info->n_bytes / 0x1p20, (double)x->max_bytes / 0x1p20, (double)x->n_bytes / 0x1p20);
    list = mem_realloc(x->list, (size_t)x->n + 1, sizeof(*list));
    if (!list) return error_set(err, RD_E_NOMEM, "out of memory");
    x->list = list;
    list += x->n++;
    *list = (struct api_adapter){.adapter = a};
    snprintf(list->info.name, sizeof(list->info.name), "%s", name);
    error_quote(list->info.path, sizeof(list->info.path), path, strlen(path));
    snprintf(list->info.base, sizeof(list->info.base), "%s", info->base);
    list->info.id = x->next_id++;
    list->info.n_matrices = info->n_matrices;
    list->info.rank = info->max_rank;
    list->info.n_bytes = info->n_bytes;
    list->info.scale = scale;
    x->n_bytes += info->n_bytes;
    return RD_OK;
}

rd_status rd_adapter_load(rd_engine *engine, const char *name, const char *path, double scale, struct rd_error *err)
{
    struct api_adapters *x = engine->adapters;
    struct adapter *a = NULL;
    struct rd_error why = {RD_OK, ""};
    bool is_taken;
    rd_status st = check_name(name, err);

    if (st != RD_OK) return st;
    if (!isfinite(scale)) return error_set(err, RD_E_INVALID, "the scale of an adapter is no number");
    if (!x) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    if (!engine->executor->adapter_load)
        return error_set(err, RD_E_UNSUPPORTED, "adapters are not computed on %s", engine->info.backend);
    mutex_lock(&x->lock); /* once before its file is read, and again when it is known what it takes */
    is_taken = find(x, name) < x->n;
    mutex_unlock(&x->lock);
    if (is_taken) return error_set(err, RD_E_INVALID, "an adapter \"%s\" is loaded already", name);
    st = engine->executor->adapter_load(engine->executor->self, path, &a, &why);
    if (st != RD_OK)
        return error_set(err, st, "adapter \"%s\": %.400s", name, why.text[0] ? why.text : rd_status_text(st));
    mutex_lock(&x->lock);
    st = add(x, a, name, path, scale, err);
    mutex_unlock(&x->lock);
    if (st != RD_OK) {
        adapter_unref(a);
        return st;
    }
    log_info("adapter \"%s\": %u matrices of rank %u, %.1f MiB", name, adapter_info(a)->n_matrices,
             adapter_info(a)->max_rank, (double)adapter_info(a)->n_bytes / 0x1p20);
    return RD_OK;
}

rd_status rd_adapter_unload(rd_engine *engine, const char *name, struct rd_error *err)
{
    struct api_adapters *x = engine->adapters;
    struct adapter *a = NULL;
    uint32_t i;

    if (!x) return not_found(name, err);
    mutex_lock(&x->lock);
    i = find(x, name);
    if (i < x->n) {
        a = x->list[i].adapter;
        x->n_bytes -= x->list[i].info.n_bytes;
        memmove(&x->list[i], &x->list[i + 1], (x->n - i - 1) * sizeof(*x->list));
        x->n--;
    }
    mutex_unlock(&x->lock);
    adapter_unref(a);
    return a ? RD_OK : not_found(name, err);
}

rd_status rd_adapter_apply(rd_engine *engine, const char *name, double scale, struct rd_error *err)
{
    struct api_adapters *x = engine->adapters;
    uint32_t i;
    bool found;

    if (!isfinite(scale)) return error_set(err, RD_E_INVALID, "the scale of an adapter is no number");
    if (!x) return not_found(name, err);
    mutex_lock(&x->lock);
    i = find(x, name);
    found = i < x->n;
    if (found) x->list[i].info.applied = scale;
    mutex_unlock(&x->lock);
    return found ? RD_OK : not_found(name, err);
}

uint32_t rd_adapters(const rd_engine *engine, struct rd_adapter *out, uint32_t n_max)
{
    struct api_adapters *x = engine->adapters;
    uint32_t n;

    if (!x) return 0;
    mutex_lock(&x->lock);
    for (uint32_t i = 0; i < x->n && i < n_max; i++) out[i] = x->list[i].info;
    n = x->n;
    mutex_unlock(&x->lock);
    return n;
}

/* ---- of a request ---- */

/* Lock held. The adapters that a request names; they stay as long as the lock is held. */
static rd_status gather(const struct api_adapters *x, const struct rd_request_options *o, struct adapter_use *uses,
                        uint32_t *n, struct rd_error *err)
{
    *n = 0;
    if (o->n_adapters > RD_REQUEST_ADAPTERS)
        return error_set(err, RD_E_INVALID, "%u adapters in one request, at most %u", o->n_adapters,
                         RD_REQUEST_ADAPTERS);
    for (uint32_t k = 0; k < o->n_adapters; k++) {
        uint32_t i = find(x, o->adapters[k].name);
        double scale = o->adapters[k].scale;

        if (i == x->n) return not_found(o->adapters[k].name, err);
        for (uint32_t j = 0; j < *n; j++)
            if (uses[j].adapter == x->list[i].adapter)
                return error_set(err, RD_E_INVALID, "the adapter \"%s\" is named twice", x->list[i].info.name);
        uses[(*n)++] = (struct adapter_use){x->list[i].adapter, (float)(isnan(scale) ? x->list[i].info.scale : scale)};
    }
    if (o->adapters) return RD_OK;
    for (uint32_t i = 0; i < x->n; i++) {
        if (x->list[i].info.applied == 0) continue;
        if (*n == RD_REQUEST_ADAPTERS)
            return error_set(err, RD_E_INVALID, "more than %u adapters are applied to every request",
                             RD_REQUEST_ADAPTERS);
        uses[(*n)++] = (struct adapter_use){x->list[i].adapter, (float)x->list[i].info.applied};
    }
    return RD_OK;
}

rd_status api_adapters_mix(const rd_engine *e, const struct rd_request_options *o, struct adapter_mix **mix,
                           struct rd_error *err)
{
    struct adapter_use uses[RD_REQUEST_ADAPTERS];
    struct api_adapters *x = e->adapters;
    uint32_t n;
    rd_status st;

    *mix = NULL;
    if (!x) return o->n_adapters ? not_found(o->adapters[0].name, err) : RD_OK;
    mutex_lock(&x->lock);
    st = gather(x, o, uses, &n, err);
    if (st == RD_OK && n > 0) st = adapter_mix_create(uses, n, mix, err);
    mutex_unlock(&x->lock);
    return st;
}

/* ---- life ---- */

rd_status api_adapters_open(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    rd_status st = RD_OK;

    e->adapters = mem_zalloc(1, sizeof(*e->adapters));
    if (!e->adapters) return error_set(err, RD_E_NOMEM, "out of memory");
    mutex_init(&e->adapters->lock);
    e->adapters->max_bytes = o->adapter_bytes ? o->adapter_bytes : sysinfo_memory() / 4;
    for (uint32_t i = 0; i < o->n_adapters && st == RD_OK; i++) {
        const struct rd_adapter_file *f = &o->adapters[i];

        st = rd_adapter_load(e, f->name, f->path, f->scale, err);
        if (st == RD_OK && f->applied != 0) st = rd_adapter_apply(e, f->name, f->applied, err);
    }
    return st;
}

void api_adapters_close(rd_engine *e)
{
    struct api_adapters *x = e->adapters;

    if (!x) return;
    for (uint32_t i = 0; i < x->n; i++) adapter_unref(x->list[i].adapter);
    mem_free(x->list);
    mutex_deinit(&x->lock);
    mem_free(x);
}
