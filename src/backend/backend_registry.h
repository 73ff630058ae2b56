/* backend/backend_registry.h - which backends there are (backend_list.h), and opening one by the name that --device gives.
 * Thread  any thread; backend_open: the loading thread.
 */
#pragma once
#include "backend/backend.h"
#include "backend/device_probe.h"

struct backend_entry {
    const char *name;
    bool has_numbers;              /* NAME:N is a device, too */
    const struct backend_ops *ops; /* NULL: not in this build */
    const struct backend_about *about;
};

/* Row i of the list; NULL: there are no more. */
const struct backend_entry *backend_at(uint32_t i);
/* NULL: unknown. */
const struct backend_entry *backend_find(const char *name);
/* The row whose device `auto` would open here, and why, with the probes of all rows [BACKEND_MAX]. */
#define BACKEND_MAX 8u
const struct backend_entry *backend_choice(struct device_probe *probes, const char **why);
/* What the libraries of all backends in this build hold. Any thread. */
struct library_memory backend_library_memory(void);
/* "auto, cpu, mlx, cuda or cuda:N" */
const char *backend_devices(void);

/* device: NULL or "auto"; NAME; NAME:N, or NAME:N,M,.. with a number for each of o->n_ranks; or the path of a shared object
 * (shared_object.h). o->device is set by N, else it is o->rank. RD_E_INVALID: no such name; RD_E_UNSUPPORTED says what is
 * missing in this build or machine; RD_E_NOMEM, RD_E_DEVICE of create. */
rd_status backend_open(const char *device, const struct backend_options *o, const struct backend_ops **ops,
                       struct backend **out, struct rd_error *err);
