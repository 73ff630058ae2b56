/* backend/shared_object.h - a backend of somebody else's, in a shared object: what radish/backend.h says, as backend_ops.
 *
 * The file is looked at before it is loaded (a plain file that only its owner's side may change), the object before it is used
 * (magic, ABI, sizes, every function that must be there). What it is called stays loaded until the process ends: it may have
 * threads.
 *
 * Thread  any thread.
 * Errors  RD_E_NOT_FOUND, RD_E_IO: the file. RD_E_UNSUPPORTED: no object of this machine and ABI, or its probe says why not.
 */
#pragma once
#include "backend/backend.h"

struct shared_object_about {
    char name[32], title[128];
    bool exact, has_softcap, is_usable;
    uint64_t weight_types, kv_types; /* bits of enum dtype */
    char why[256];                   /* what its probe says */
};

/* A path, not a name: it has a slash, and no colon before that. */
bool shared_object_is_path(const char *device);
/* Loads, checks, probes. */
rd_status shared_object_about(const char *path, struct shared_object_about *out, struct rd_error *err);
/* *ops lives as long as *out. */
rd_status shared_object_open(const char *path, const struct backend_options *o, const struct backend_ops **ops,
                             struct backend **out, struct rd_error *err);
