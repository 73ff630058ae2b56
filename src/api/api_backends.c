/* api/api_backends.c - what can compute: the rows of backend_registry.h, and shared objects, as people and programs ask. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "backend/backend_registry.h"
#include "backend/shared_object.h"
#include "backend/process/process_backend.h"
#include "base/child_process.h"
#include "base/error.h"

const enum dtype api_weight_types[API_WEIGHT_TYPES] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0,
                                                       DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K,
                                                       DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
static const enum dtype kv_types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_Q8_0, DTYPE_F8_E4M3, DTYPE_Q4_0};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* Those of list in the bits, 0 being all: "f32, q8_0". */
static void put_types(const enum dtype *list, size_t n, uint64_t bits, char *out, size_t cap)
{
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < n && at < cap; i++)
        if (bits == 0 || ((unsigned)list[i] < 64 && (bits >> (unsigned)list[i] & 1)))
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? ", " : "", dtype_name(list[i]));
    for (; *out; out++) *out = (char)tolower((unsigned char)*out);
}

static void put_all_types(struct rd_backend_info *out, uint64_t weights, uint64_t kv)
{
    put_types(api_weight_types, API_WEIGHT_TYPES, weights, out->weight_types, sizeof(out->weight_types));
    put_types(kv_types, COUNT(kv_types), kv, out->kv_types, sizeof(out->kv_types));
}

static void of_entry(const struct backend_entry *e, struct rd_backend_info *out)
{
    struct device_probe p = {0};
    size_t at = 0;

    memset(out, 0, sizeof(*out));
    e->about->probe(&p);
    snprintf(out->name, sizeof(out->name), "%s", e->name);
    snprintf(out->title, sizeof(out->title), "%s", e->about->title);
    out->is_built = e->ops != NULL;
    out->is_available = e->ops && p.is_usable;
    if (e->ops || !p.is_usable)
        snprintf(out->reason, sizeof(out->reason), "%s", p.trouble[0] ? p.trouble : p.why);
    else
        snprintf(out->reason, sizeof(out->reason), "this build is without %s (cmake --preset %s builds it in)",
                 e->about->title, e->name);
    for (uint32_t i = 0; i < p.n_devices && at < sizeof(out->devices); i++)
        at += (size_t)snprintf(out->devices + at, sizeof(out->devices) - at, "%s%s", i ? ", " : "", p.devices[i].name);
    if (!e->ops) return;
    out->exact = !e->ops->traits.is_inexact;
    put_all_types(out, e->ops->traits.weight_types, e->ops->traits.kv_types);
    out->page_copies = e->ops->pages.copy_rows != NULL;
    out->graphs = e->ops->async && e->ops->async->graph_begin;
    out->states = e->ops->memory.read != NULL;
    out->soft_caps = e->ops->op.softcap != NULL;
    out->lora = e->ops->op.low_rank != NULL;
}

/* Whatever the program is: what it can do it says when it has its model. */
static void of_process(struct rd_backend_info *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "process");
    snprintf(out->title, sizeof(out->title), "another program (docs/process-backend.md)");
    snprintf(out->reason, sizeof(out->reason), "process:COMMAND starts a program that has the model");
    out->is_built = out->is_available = true;
}

static rd_status about_process(const char *command, struct rd_backend_info *out, struct rd_error *err)
{
    char path[192];
    rd_status st;

    of_process(out);
    st = child_process_find(command, path, sizeof(path), err);
    out->is_available = st == RD_OK;
    if (st == RD_OK)
        snprintf(out->reason, sizeof(out->reason), "%s is there; what it can do it says when it starts", path);
    return st;
}

static rd_status about_one(const char *name, struct rd_backend_info *out, struct rd_error *err)
{
    const struct backend_entry *e = backend_find(name);
    struct shared_object_about about;
    char quoted[64];
    rd_status st;

    memset(out, 0, sizeof(*out));
    if (e) {
        of_entry(e, out);
        return RD_OK;
    }
    if (api_is_process(name)) return about_process(name + strlen(PROCESS_PREFIX), out, err);
    if (strcmp(name, "process") == 0) {
        of_process(out);
        return RD_OK;
    }
    if (!shared_object_is_path(name))
        return error_set(err, RD_E_NOT_FOUND, "backend \"%s\": unknown",
                         error_quote(quoted, sizeof(quoted), name, strlen(name)));
    st = shared_object_about(name, &about, err);
    if (st != RD_OK) return st;
    snprintf(out->name, sizeof(out->name), "%s", about.name);
    snprintf(out->title, sizeof(out->title), "%s", about.title);
    snprintf(out->reason, sizeof(out->reason), "%s", about.why);
    out->is_built = out->page_copies = out->states = true;
    out->is_available = about.is_usable;
    out->exact = about.exact;
    out->soft_caps = about.has_softcap;
    put_all_types(out, about.weight_types, about.kv_types);
    return RD_OK;
}

rd_status rd_backend_about(const char *name, struct rd_backend_info *out, struct rd_error *err)
{
    struct rd_backend_info all = {.size = sizeof(all)};
    const rd_status st = about_one(name, &all, err);

    api_give(out, &all, sizeof(all), API_FIRST_BACKEND);
    return st;
}

uint32_t rd_backends(struct rd_backend_info *out, uint32_t n_max)
{
    uint32_t n = 0;

    for (; backend_at(n); n++)
        if (n < n_max) {
            of_entry(backend_at(n), &out[n]);
            out[n].size = sizeof(out[n]);
        }
    if (n < n_max) {
        of_process(&out[n]);
        out[n].size = sizeof(out[n]);
    }
    return n + 1;
}
