/* backend/backend_registry.c - finds and opens backends by the rows of backend_list.h. */
#include "backend/backend_registry.h"
#include <string.h>
#include "backend/ranks.h"
#include "backend/shared_object.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"

#define MAX_DEVICE 1023u

/* RADISH_HAS_name, 0 or 1, is CMake's. */
#define OPS_OF_0(name)       NULL
#define OPS_OF_1(name)       &backend_##name##_ops
#define OPS_WHERE(has, name) OPS_OF_##has(name)
#define OPS_IF(has, name)    OPS_WHERE(has, name)

#define BACKEND(name, count)                                                                                           \
    extern const struct backend_ops backend_##name##_ops;                                                              \
    extern const struct backend_about backend_##name##_about;
#include "backend/backend_list.h"
#undef BACKEND

#define ONE                  false
#define MANY                 true
#define BACKEND(name, count) {#name, count, OPS_IF(RADISH_HAS_##name, name), &backend_##name##_about},
static const struct backend_entry entries[] = {
#include "backend/backend_list.h"
};
#undef BACKEND
#undef ONE
#undef MANY

#define ONE(name)
#define MANY(name)           " or " #name ":N"
#define BACKEND(name, count) ", " #name count(name)
static const char devices[] = "auto"
#include "backend/backend_list.h"
    ;
#undef BACKEND

#define N_ENTRIES (sizeof(entries) / sizeof(entries[0]))
_Static_assert(N_ENTRIES <= BACKEND_MAX, "backend_choice's probes");

const struct backend_entry *backend_at(uint32_t i)
{
    return i < N_ENTRIES ? &entries[i] : NULL;
}

const struct backend_entry *backend_find(const char *name)
{
    for (size_t i = 0; i < N_ENTRIES; i++)
        if (strcmp(entries[i].name, name) == 0) return &entries[i];
    return NULL;
}

struct library_memory backend_library_memory(void)
{
    struct library_memory sum = {0}, one;

    for (size_t i = 0; i < N_ENTRIES; i++) {
        if (!entries[i].ops || !entries[i].ops->memory.library) continue;
        entries[i].ops->memory.library(&one);
        sum.limit_bytes += one.limit_bytes;
        sum.active_bytes += one.active_bytes;
        sum.peak_bytes += one.peak_bytes;
        sum.cache_bytes += one.cache_bytes;
    }
    return sum;
}

const char *backend_devices(void)
{
    return devices;
}

const struct backend_entry *backend_choice(struct device_probe *probes, const char **why)
{
    const struct backend_entry *found = NULL;

    *why = NULL;
    for (size_t i = N_ENTRIES; i-- > 0;) {
        struct device_probe *p = &probes[i];
        const char *reason;

        memset(p, 0, sizeof(*p));
        entries[i].about->probe(p);
        if (entries[i].about->by_name) continue;
        reason = p->n_devices > 0 && !entries[i].ops ? "there is a GPU, but this build cannot use it" : p->why;
        if (!found && p->is_usable && entries[i].ops) {
            found = &entries[i];
            if (!*why) *why = reason;
        } else if (!found) {
            *why = reason; /* why it is not one of those before */
        }
    }
    return found;
}

static rd_status open_entry(const struct backend_entry *e, const struct backend_options *o,
                            const struct backend_ops **ops, struct backend **out, struct rd_error *err)
{
    rd_status st;

    if (!e->ops)
        return error_set(err, RD_E_UNSUPPORTED,
                         "device %s: this radish was built without %s; build one with `cmake --preset %s && cmake "
                         "--build --preset %s` (needs %s)",
                         e->name, e->about->title, e->name, e->name, e->about->needs);
    st = e->ops->life.create(o, out, err);
    if (st == RD_OK) *ops = e->ops;
    return st;
}

/* "1", "0,2,5": numbers[] of the first RANKS_MAX; how many there are, 0: that is no such list. */
static uint32_t parse_numbers(const char *list, uint32_t numbers[RANKS_MAX])
{
    uint32_t n = 0;

    for (const char *end;; list = end + 1) {
        uint64_t number = 0;

        end = strchr(list, ',');
        if (!parse_u64(list, end ? (size_t)(end - list) : strlen(list), &number) || number > MAX_DEVICE ||
            n == RANKS_MAX)
            return 0;
        numbers[n++] = (uint32_t)number;
        if (!end) return n;
    }
}

/* "cuda", "cuda:1", "cuda:0,1": a number for each rank. NULL: no such; err says more where it is a list of another length. */
static const struct backend_entry *parse_device(const char *device, struct backend_options *o, struct rd_error *err)
{
    const uint32_t n_ranks = u32_max(1, o->n_ranks);

    for (size_t i = 0; i < N_ENTRIES; i++) {
        const size_t n = strlen(entries[i].name);
        uint32_t numbers[RANKS_MAX], n_numbers;

        if (strncmp(device, entries[i].name, n) != 0) continue;
        o->device = entries[i].has_numbers ? o->rank : 0;
        if (device[n] == 0) return &entries[i];
        if (!entries[i].has_numbers || device[n] != ':') continue;
        n_numbers = parse_numbers(device + n + 1, numbers);
        if (n_numbers == 0) return NULL;
        if (n_numbers != n_ranks) {
            error_set(err, RD_E_INVALID, "device %.40s names %u, and --tp has %u: one for each rank", device, n_numbers,
                      n_ranks);
            return NULL;
        }
        o->device = numbers[o->rank];
        return &entries[i];
    }
    return NULL;
}

static rd_status open_best(const struct backend_options *o, const struct backend_ops **ops, struct backend **out,
                           struct rd_error *err)
{
    rd_status st = RD_E_UNSUPPORTED;

    for (size_t i = N_ENTRIES; i-- > 0;) {
        struct rd_error why = {RD_OK, ""};

        if (!entries[i].ops || entries[i].about->by_name) continue;
        st = open_entry(&entries[i], o, ops, out, i ? &why : err);
        if (st == RD_OK) return st;
        if (i) log_info("%s; it does not compute", why.text);
    }
    return st;
}

rd_status backend_open(const char *device, const struct backend_options *o, const struct backend_ops **ops,
                       struct backend **out, struct rd_error *err)
{
    struct backend_options here = *o;
    const struct backend_entry *e;
    struct rd_error why = {RD_OK, ""};
    char quoted[64];

    here.device = o->rank;
    if (!device || strcmp(device, "auto") == 0) return open_best(&here, ops, out, err);
    if (shared_object_is_path(device)) return shared_object_open(device, &here, ops, out, err);
    e = parse_device(device, &here, &why);
    if (e) return open_entry(e, &here, ops, out, err);
    if (why.text[0]) return error_set(err, why.status, "%s", why.text);
    return error_set(err, RD_E_INVALID, "device \"%s\": expected %s, or the path of a shared object",
                     error_quote(quoted, sizeof(quoted), device, strlen(device)), devices);
}
