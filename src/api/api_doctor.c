/* api/api_doctor.c - `radish doctor`: what this machine has, and what radish would choose on it. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include "api/api_state.h"
#include "backend/backend_registry.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os_memory.h"
#include "base/sysinfo.h"

struct report {
    json_t *root;
    struct buf text;
    bool failed;
};

/* Takes value over; what cannot be put is remembered. */
static void put(struct report *r, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) r->failed = true;
}

static void add_cpu(struct report *r, const struct device_probe *p)
{
    const char *isa = p->devices[0].name;
    char huge[256];
    uint64_t memory = sysinfo_memory(), memory_free = sysinfo_memory_free();
    json_t *cpu = json_pack("{s:s, s:i, s:i, s:I}", "instruction_set", isa, "cores", (int)thread_n_cores(),
                            "physical_cores", (int)thread_n_physical_cores(), "memory_bytes", (json_int_t)memory);

    os_huge_pages(huge, sizeof(huge));
    put(r, cpu, "features", json_string(p->features));
    put(r, cpu, "memory_free_bytes", memory_free ? json_integer((json_int_t)memory_free) : json_null());
    put(r, cpu, "huge_pages", *huge ? json_string(huge) : json_null());
    put(r, r->root, "cpu", cpu);
    buf_printf(&r->text,
               "cpu\n  instruction set   %s is used, of: %s\n"
               "  cores             %u (%u physical), used by this process at most\n"
               "  memory            %.1f GiB, %.1f GiB of it free\n  huge pages        %s%s\n",
               isa, *p->features ? p->features : "nothing that has kernels", thread_n_cores(),
               thread_n_physical_cores(), (double)memory / (1u << 30), (double)memory_free / (1u << 30),
               *huge ? huge : "not known", strcmp(huge, "never") == 0 ? ": models run slower; set it to madvise" : "");
}

/* The folder, or the nearest one above it that exists: what is free there. */
static bool free_room(const char *dir, uint64_t *bytes)
{
    char path[LIMIT_PATH_BYTES], *slash;
    struct statvfs v;

    snprintf(path, sizeof(path), "%s", dir);
    while (statvfs(path, &v) != 0) {
        slash = strrchr(path, '/');
        if (!slash || slash == path) return false;
        *slash = 0;
    }
    *bytes = (uint64_t)v.f_bavail * v.f_frsize;
    return true;
}

static void add_folder(struct report *r, json_t *folders, const char *what, const char *dir)
{
    uint64_t bytes = 0;
    bool known = dir && *dir && free_room(dir, &bytes);

    put(r, folders, what, json_pack("{s:s?}", "path", dir && *dir ? dir : NULL));
    put(r, json_object_get(folders, what), "free_bytes", known ? json_integer((json_int_t)bytes) : json_null());
    if (!dir || !*dir)
        buf_printf(&r->text, "  %-17s none\n", what);
    else if (known)
        buf_printf(&r->text, "  %-17s %s (%.1f GiB free)\n", what, dir, (double)bytes / (1u << 30));
    else
        buf_printf(&r->text, "  %-17s %s\n", what, dir);
}

/* How ranks on its devices would put their parts together. */
static void add_ranks(struct report *r, json_t *part, const struct device_probe *p)
{
    if (!*p->ranks) return;
    put(r, part, "ranks", json_pack("{s:s, s:s}", "reduce", p->ranks, "why", p->ranks_why));
    buf_printf(&r->text, "  --tp %-12u --reduce %s: %s\n", p->n_devices < 8 ? p->n_devices : 8, p->ranks, p->ranks_why);
}

/* A backend with devices of its own. */
static void add_devices(struct report *r, const struct backend_entry *e, const struct device_probe *p)
{
    char driver[32];
    json_t *part, *devices;

    snprintf(driver, sizeof(driver), "driver_%s", e->name);
    part = json_pack("{s:b, s:b, s:i, s:s?, s:[]}", "built_in", e->ops != NULL, "driver", p->has_driver, driver,
                     (int)p->driver_version, "trouble", *p->trouble ? p->trouble : NULL, "gpus");
    devices = json_object_get(part, "gpus");
    put(r, r->root, e->name, part);
    if (e->ops)
        buf_printf(&r->text, "%s\n  this build        with %s\n", e->name, e->about->version);
    else
        buf_printf(&r->text, "%s\n  this build        without %s (cmake --preset %s builds it in)\n", e->name,
                   e->about->title, e->name);
    if (p->driver_version)
        buf_printf(&r->text, "  driver            for %s up to %u.%u\n", e->about->title, p->driver_version / 1000,
                   p->driver_version % 1000 / 10);
    if (*p->trouble) buf_printf(&r->text, "  trouble           %s\n", p->trouble);
    for (uint32_t i = 0; i < p->n_devices; i++) {
        const struct probed_device *d = &p->devices[i];
        char name[32];

        if (json_array_append_new(devices, json_pack("{s:s, s:I, s:s, s:b}", "name", d->name, "memory_bytes",
                                                     (json_int_t)d->memory_bytes, "compute_capability", d->capability,
                                                     "usable", d->is_fit)) != 0)
            r->failed = true;
        snprintf(name, sizeof(name), "%s:%u", e->name, i);
        buf_printf(&r->text, "  %-17s %s, %.0f GiB, compute capability %s%s%s\n", name, d->name,
                   (double)d->memory_bytes / (1u << 30), d->capability, d->is_fit ? "" : ": ",
                   d->is_fit ? "" : e->about->least);
    }
    add_ranks(r, part, p);
}

static void add_backend(struct report *r, json_t *list, const struct rd_backend_info *b)
{
    const char *state = b->is_available ? "" : "not here: ";

    if (json_array_append_new(
            list, json_pack("{s:s, s:s, s:b, s:b, s:s, s:b, s:s, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:b}", "name",
                            b->name, "title", b->title, "built_in", b->is_built, "available", b->is_available, "reason",
                            b->reason, "exact", b->exact, "devices", b->devices, "weight_types", b->weight_types,
                            "kv_types", b->kv_types, "page_copies", b->page_copies, "graphs", b->graphs, "states",
                            b->states, "soft_caps", b->soft_caps, "lora", b->lora, "images", b->images)) != 0)
        r->failed = true;
    buf_printf(&r->text, "  %-17s %s%s\n", b->name, state, b->reason);
    if (!b->is_built || !b->kv_types[0]) return;
    buf_printf(&r->text, "  %-17s %s%s%s; keys and values %s\n", "", b->exact ? "exact" : "not exact",
               b->graphs ? ", graphs" : "", b->soft_caps ? "" : ", no soft caps", b->kv_types);
}

/* Those of the build, and the shared object that was asked about. */
static void add_backends(struct report *r, const char *path)
{
    struct rd_backend_info list[BACKEND_MAX + 1], own = {.size = sizeof(own)};
    struct rd_error err = {RD_OK, ""};
    const uint32_t n = rd_backends(list, BACKEND_MAX + 1);
    json_t *array = json_array();

    buf_puts(&r->text, "backends\n");
    for (uint32_t i = 0; i < n; i++) add_backend(r, array, &list[i]);
    if (path) {
        if (rd_backend_about(path, &own, &err) != RD_OK) {
            snprintf(own.name, sizeof(own.name), "%.31s", path);
            snprintf(own.reason, sizeof(own.reason), "%.255s", err.text);
        }
        add_backend(r, array, &own);
    }
    put(r, r->root, "backends", array);
}

/* What --device auto will compute each type of weights with. */
static void add_kernels(struct report *r, const struct backend_entry *choice, const struct device_probe *p)
{
    json_t *kernels = json_object();
    char what[160], before[160] = "";

    buf_printf(&r->text, "kernels for weights, on %s", choice->name);
    for (size_t i = 0; i < API_WEIGHT_TYPES; i++) {
        bool known = choice->about->kernel && choice->about->kernel(p, api_weight_types[i], what, sizeof(what));

        put(r, kernels, dtype_name(api_weight_types[i]), known ? json_string(what) : json_null());
        if (!known) continue;
        if (strcmp(what, before) == 0) /* several types, one line */
            buf_printf(&r->text, ", %s", dtype_name(api_weight_types[i]));
        else
            buf_printf(&r->text, "\n  %s\n                    %s", what, dtype_name(api_weight_types[i]));
        snprintf(before, sizeof(before), "%s", what);
    }
    buf_puts(&r->text, "\n");
    put(r, r->root, "kernels", kernels);
}

static void add_choice(struct report *r, const struct backend_entry *choice, const char *why)
{
    put(r, r->root, "choice", json_pack("{s:s, s:s}", "device", choice->name, "why", why));
    buf_printf(&r->text, "choice\n  --device auto     %s: %s\n", choice->name, why);
}

rd_status rd_doctor(const struct rd_doctor_paths *paths, bool json, char **text, struct rd_error *err)
{
    struct report r = {0};
    struct device_probe probes[BACKEND_MAX];
    const struct backend_entry *choice, *entry;
    const char *why;
    json_t *folders;
    char *dump = NULL;

    *text = NULL;
    json_set_alloc_funcs(api_json_alloc, mem_free);
    choice = backend_choice(probes, &why);
    r.root = json_pack("{s:s}", "version", RADISH_VERSION);
    buf_printf(&r.text, "radish %s\n", RADISH_VERSION);
    add_cpu(&r, &probes[0]);
    folders = json_object();
    buf_puts(&r.text, "folders\n");
    add_folder(&r, folders, "models", paths->models);
    add_folder(&r, folders, "packed", paths->packed);
    add_folder(&r, folders, "cache", paths->cache);
    put(&r, r.root, "folders", folders);
    for (uint32_t i = 1; (entry = backend_at(i)); i++) add_devices(&r, entry, &probes[i]);
    add_backends(&r, paths->backend);
    add_choice(&r, choice, why);
    for (uint32_t i = 0; (entry = backend_at(i)); i++)
        if (entry == choice) add_kernels(&r, choice, &probes[i]);
    if (json && !r.failed)
        dump = json_dumps(r.root, JSON_INDENT(2));
    else if (!json && !r.text.failed)
        dump = buf_take(&r.text, NULL);
    json_decref(r.root);
    buf_deinit(&r.text);
    *text = dump;
    return dump ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory");
}
