/* api/api_adapters.c - the adapters of an engine, by name, and what requests make of them: radish/adapter.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

struct api_adapter {
    struct rd_adapter info;
    struct adapter *adapter; /* a reference; NULL: it left memory, and its file is read again when a request names it */
    struct hash128 digest;
    char *path;
    uint64_t used; /* api_adapters.clock when a request named it last */
};

struct api_adapters {
    struct mutex loading; /* one that left is brought back by one thread at a time; taken before lock */
    struct mutex lock;    /* all below */
    struct api_adapter *list;
    uint32_t n, next_id;
    uint64_t n_bytes, max_bytes, clock; /* n_bytes: of those in memory */
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

static bool may_leave(const struct api_adapter *a)
{
    return a->adapter && !adapter_is_used(a->adapter);
}

/* Lock held. The longest unused leave until n_bytes more fit; false: they would not, and all stay. */
static bool make_room(struct api_adapters *x, uint64_t n_bytes)
{
    uint64_t may_go = 0;

    for (uint32_t i = 0; i < x->n; i++)
        if (may_leave(&x->list[i])) may_go += x->list[i].info.n_bytes;
    if (n_bytes > x->max_bytes - u64_min(x->n_bytes - may_go, x->max_bytes)) return false;
    while (n_bytes > x->max_bytes - u64_min(x->n_bytes, x->max_bytes)) {
        struct api_adapter *oldest = NULL;

        for (uint32_t i = 0; i < x->n; i++)
            if (may_leave(&x->list[i]) && (!oldest || x->list[i].used < oldest->used)) oldest = &x->list[i];
        if (!oldest) return false;
        log_debug("adapter \"%s\" leaves memory", oldest->info.name);
        adapter_unref(oldest->adapter);
        oldest->adapter = NULL;
        x->n_bytes -= oldest->info.n_bytes;
    }
    return true;
}

/* Lock held. The adapter's reference, and file, are the list's now. */
static rd_status add(struct api_adapters *x, struct adapter *a, const char *name, char *file, double scale,
                     struct rd_error *err)
{
    const struct adapter_info *info = adapter_info(a);
    struct api_adapter *list;

    if (find(x, name) < x->n) return error_set(err, RD_E_INVALID, "an adapter \"%s\" is loaded already", name);
    if (x->n == LIMIT_ADAPTERS) return error_set(err, RD_E_LIMIT, "%u adapters are loaded, and no more can be", x->n);
    list = mem_realloc(x->list, (size_t)x->n + 1, sizeof(*list));
    if (!list) return error_set(err, RD_E_NOMEM, "out of memory");
    x->list = list;
    if (info->n_bytes > x->max_bytes)
        return error_set(err, RD_E_LIMIT,
                         "the adapter takes %.1f MiB, more than the %.1f MiB that adapters may take (--lora-bytes)",
                         (double)info->n_bytes / 0x1p20, (double)x->max_bytes / 0x1p20);
    if (!make_room(x, info->n_bytes))
        return error_set(
            err, RD_E_LIMIT,
            "the adapter takes %.1f MiB, and of the %.1f MiB that adapters may take those that requests run with take "
            "the rest: wait, or allow more (--lora-bytes)",
            (double)info->n_bytes / 0x1p20, (double)x->max_bytes / 0x1p20);
    list += x->n++;
    *list = (struct api_adapter){.adapter = a, .digest = info->digest, .path = file, .used = ++x->clock};
    snprintf(list->info.name, sizeof(list->info.name), "%s", name);
    error_quote(list->info.path, sizeof(list->info.path), file, strlen(file));
    snprintf(list->info.base, sizeof(list->info.base), "%s", info->base);
    list->info.id = x->next_id++;
    list->info.n_matrices = info->n_matrices;
    list->info.rank = info->max_rank;
    list->info.n_bytes = info->n_bytes;
    list->info.scale = scale;
    x->n_bytes += info->n_bytes;
    return RD_OK;
}

static rd_status read_file(const rd_engine *e, const char *name, const char *path, struct adapter **out,
                           struct rd_error *err)
{
    struct rd_error why = {RD_OK, ""};
    rd_status st = e->executor->adapter_load(e->executor->self, path, out, &why);

    return st == RD_OK
               ? st
               : error_set(err, st, "adapter \"%s\": %.400s", name, why.text[0] ? why.text : rd_status_text(st));
}

/* As the server's bodies have it: beyond, products of floats run over, and every answer is an error. */
static rd_status check_scale(const char *name, double scale, struct rd_error *err)
{
    if (fabs(scale) <= 1000) return RD_OK; /* NaN is not */
    return error_set(err, RD_E_INVALID, "adapter \"%s\": its scale is %g, wanted is a number within -1000 and 1000",
                     name, scale);
}

rd_status rd_adapter_load(rd_engine *engine, const char *name, const char *path, double scale, struct rd_error *err)
{
    struct api_adapters *x = engine->adapters;
    struct adapter *a = NULL;
    char *file;
    bool is_taken;
    rd_status st = check_name(name, err);

    if (st != RD_OK) return st;
    if (!path) return error_set(err, RD_E_INVALID, "adapter \"%s\": no path given", name);
    if (strcmp(name, engine->info.model_id) == 0)
        return error_set(err, RD_E_INVALID, "an adapter cannot be called \"%s\": the model itself is", name);
    if ((st = check_scale(name, scale, err)) != RD_OK) return st;
    if (!x) return error_set(err, RD_E_UNSUPPORTED, "this handle has a tokenizer only, no model");
    if (!engine->executor->adapter_load)
        return error_set(err, RD_E_UNSUPPORTED, "adapters are not computed on %s", engine->info.backend);
    mutex_lock(&x->lock); /* once before its file is read, and again when it is known what it takes */
    is_taken = find(x, name) < x->n;
    mutex_unlock(&x->lock);
    if (is_taken) return error_set(err, RD_E_INVALID, "an adapter \"%s\" is loaded already", name);
    file = mem_strdup(path);
    st = file ? read_file(engine, name, path, &a, err) : error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK) {
        mutex_lock(&x->lock);
        st = add(x, a, name, file, scale, err);
        if (st == RD_OK) adapter_ref(a); /* for the log: others may unload it */
        mutex_unlock(&x->lock);
    }
    if (st != RD_OK) {
        adapter_unref(a);
        mem_free(file);
        return st;
    }
    log_info("adapter \"%s\": %u matrices of rank %u, %.1f MiB", name, adapter_info(a)->n_matrices,
             adapter_info(a)->max_rank, (double)adapter_info(a)->n_bytes / 0x1p20);
    adapter_unref(a);
    return RD_OK;
}

rd_status rd_adapter_unload(rd_engine *engine, const char *name, struct rd_error *err)
{
    struct api_adapters *x = engine->adapters;
    struct adapter *a = NULL;
    uint32_t i;
    bool found;
    rd_status st = check_name(name, err);

    if (st != RD_OK) return st;
    if (!x) return not_found(name, err);
    mutex_lock(&x->lock);
    i = find(x, name);
    found = i < x->n;
    if (found) {
        a = x->list[i].adapter;
        if (a) x->n_bytes -= x->list[i].info.n_bytes;
        mem_free(x->list[i].path);
        memmove(&x->list[i], &x->list[i + 1], (x->n - i - 1) * sizeof(*x->list));
        x->n--;
    }
    mutex_unlock(&x->lock);
    adapter_unref(a);
    return found ? RD_OK : not_found(name, err);
}

rd_status rd_adapter_apply(rd_engine *engine, const char *name, double scale, struct rd_error *err)
{
    struct api_adapters *x = engine->adapters;
    uint32_t i;
    bool found;
    rd_status st = check_name(name, err);

    if (st == RD_OK) st = check_scale(name, scale, err);
    if (st != RD_OK) return st;
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
    for (uint32_t i = 0; i < x->n && i < n_max; i++) {
        out[i] = x->list[i].info;
        out[i].in_memory = x->list[i].adapter != NULL;
    }
    n = x->n;
    mutex_unlock(&x->lock);
    return n;
}

/* ---- of a request ---- */

/* Lock held. One more; *away: its name if it is not in memory. */
static void use(struct api_adapters *x, uint32_t i, double scale, struct adapter_use *out, char *away)
{
    struct api_adapter *a = &x->list[i];

    a->used = ++x->clock;
    *out = (struct adapter_use){a->adapter, (float)scale};
    if (!a->adapter) memcpy(away, a->info.name, sizeof(a->info.name));
}

/* Lock held. The adapters that a request names; they stay as long as the lock is held. away: [RD_ADAPTER_NAME_BYTES] the name
 * of one that is not in memory, or "". */
static rd_status gather(struct api_adapters *x, const struct rd_request_options *o, struct adapter_use *uses,
                        uint32_t *n, char *away, struct rd_error *err)
{
    *n = 0;
    *away = 0;
    if (o->n_adapters > RD_REQUEST_ADAPTERS)
        return error_set(err, RD_E_INVALID, "%u adapters in one request, at most %u", o->n_adapters,
                         RD_REQUEST_ADAPTERS);
    for (uint32_t k = 0; k < o->n_adapters; k++) {
        uint32_t i = find(x, o->adapters[k].name);
        double scale = o->adapters[k].scale;

        if (i == x->n) return not_found(o->adapters[k].name, err);
        for (uint32_t j = 0; j < k; j++)
            if (strcmp(o->adapters[j].name, o->adapters[k].name) == 0)
                return error_set(err, RD_E_INVALID, "the adapter \"%s\" is named twice", x->list[i].info.name);
        use(x, i, isnan(scale) ? x->list[i].info.scale : scale, &uses[(*n)++], away);
    }
    if (o->adapters) return RD_OK;
    for (uint32_t i = 0; i < x->n; i++) {
        if (x->list[i].info.applied == 0) continue;
        if (*n == RD_REQUEST_ADAPTERS)
            return error_set(err, RD_E_INVALID, "more than %u adapters are applied to every request",
                             RD_REQUEST_ADAPTERS);
        use(x, i, x->list[i].info.applied, &uses[(*n)++], away);
    }
    return RD_OK;
}

/* Lock held. a, read again, becomes that of the entry of this number. */
static rd_status put_back(struct api_adapters *x, struct adapter *a, uint32_t id, const char *name,
                          struct rd_error *err)
{
    const uint32_t i = find(x, name);

    if (i == x->n || x->list[i].info.id != id) return not_found(name, err);
    if (!hash128_equal(adapter_info(a)->digest, x->list[i].digest))
        return error_set(err, RD_E_FORMAT,
                         "adapter \"%s\": its file has changed since it was loaded: unload it and load it again", name);
    if (!make_room(x, adapter_info(a)->n_bytes))
        return error_set(err, RD_E_FULL,
                         "adapter \"%s\": those that requests run with leave no room for it (--lora-bytes); try again",
                         name);
    adapter_ref(a);
    x->list[i].adapter = a;
    x->n_bytes += adapter_info(a)->n_bytes;
    return RD_OK;
}

/* A request that has just ended is let go by the engine's thread a moment later. */
static rd_status put_back_soon(struct api_adapters *x, struct adapter *a, uint32_t id, const char *name,
                               struct rd_error *err)
{
    rd_status st = RD_E_FULL;

    for (uint32_t i = 0; st == RD_E_FULL && i < 50; i++) {
        if (i) clock_sleep_ns(1000000);
        mutex_lock(&x->lock);
        st = put_back(x, a, id, name, err);
        mutex_unlock(&x->lock);
    }
    return st;
}

/* x->loading held. Reads the file of one that left. *out: a reference, so that it stays. */
static rd_status bring_back(const rd_engine *e, const char *name, struct adapter **out, struct rd_error *err)
{
    struct api_adapters *x = e->adapters;
    char *path = NULL;
    uint32_t i, id = 0;
    rd_status st = RD_OK;

    *out = NULL;
    mutex_lock(&x->lock);
    i = find(x, name);
    if (i == x->n) {
        st = not_found(name, err);
    } else if (x->list[i].adapter) { /* another thread did */
        *out = x->list[i].adapter;
        adapter_ref(*out);
    } else {
        id = x->list[i].info.id;
        path = mem_strdup(x->list[i].path);
        if (!path) st = error_set(err, RD_E_NOMEM, "out of memory");
    }
    mutex_unlock(&x->lock);
    if (!path) return st;
    st = read_file(e, name, path, out, err);
    mem_free(path);
    if (st != RD_OK) return st;
    st = put_back_soon(x, *out, id, name, err);
    if (st == RD_OK) return st;
    adapter_unref(*out);
    *out = NULL;
    return st;
}

rd_status api_adapters_mix(const rd_engine *e, const struct rd_request_options *o, struct adapter_mix **mix,
                           struct rd_error *err)
{
    struct adapter_use uses[RD_REQUEST_ADAPTERS];
    struct adapter *back[RD_REQUEST_ADAPTERS];
    struct api_adapters *x = e->adapters;
    char away[RD_ADAPTER_NAME_BYTES];
    uint32_t n, n_back = 0;
    rd_status st;

    *mix = NULL;
    if (!x) return o->n_adapters ? not_found(o->adapters[0].name, err) : RD_OK;
    for (;;) {
        mutex_lock(&x->lock);
        st = gather(x, o, uses, &n, away, err);
        if (st == RD_OK && !*away && n > 0) st = adapter_mix_create(uses, n, mix, err);
        mutex_unlock(&x->lock);
        if (st != RD_OK || !*away) break;
        /* each that is back stays: only others that come and go meanwhile make more than these */
        st = n_back < RD_REQUEST_ADAPTERS
                 ? RD_OK
                 : error_set(err, RD_E_FULL, "adapter \"%s\" is being replaced; try again", away);
        if (st != RD_OK) break;
        mutex_lock(&x->loading);
        st = bring_back(e, away, &back[n_back], err);
        mutex_unlock(&x->loading);
        if (st != RD_OK) break;
        n_back++;
    }
    while (n_back > 0) adapter_unref(back[--n_back]);
    return st;
}

/* ---- life ---- */

rd_status api_adapters_open(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    rd_status st = RD_OK;

    e->adapters = mem_zalloc(1, sizeof(*e->adapters));
    if (!e->adapters) return error_set(err, RD_E_NOMEM, "out of memory");
    mutex_init(&e->adapters->loading);
    mutex_init(&e->adapters->lock);
    e->adapters->max_bytes = o->adapter_bytes ? o->adapter_bytes : e->traits.adapter_bytes;
    for (uint32_t i = 0; i < o->n_adapters && st == RD_OK; i++) {
        const struct rd_adapter_file *f = &o->adapters[i];

        st = rd_adapter_load(e, f->name, f->path, f->scale, err);
        if (st == RD_E_NOT_FOUND) error_set(err, st, "adapter \"%s\": there is no %s", f->name, f->path);
        if (st == RD_OK && f->applied != 0) st = rd_adapter_apply(e, f->name, f->applied, err);
    }
    return st;
}

void api_adapters_close(rd_engine *e)
{
    struct api_adapters *x = e->adapters;

    if (!x) return;
    for (uint32_t i = 0; i < x->n; i++) {
        adapter_unref(x->list[i].adapter);
        mem_free(x->list[i].path);
    }
    mem_free(x->list);
    mutex_deinit(&x->lock);
    mutex_deinit(&x->loading);
    mem_free(x);
}
