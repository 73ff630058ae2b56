/* backend/cuda/nccl_probe.c - see the header. */
#include "backend/cuda/nccl_probe.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
#define OLDEST  2400 /* 2.4.0 */

/* dlsym gives an object pointer where a function pointer is wanted; POSIX says that they are alike. */
static bool find(const struct nccl_library *l, const char *name, void *function, const char **missing)
{
    void *p = dlsym(l->handle, name);

    memcpy(function, &p, sizeof(p));
    if (!p && !*missing) *missing = name;
    return p != NULL;
}

static const char *find_all(struct nccl_library *l)
{
    const char *missing = NULL;

    find(l, "ncclGetVersion", &l->get_version, &missing);
    find(l, "ncclGetUniqueId", &l->get_unique_id, &missing);
    find(l, "ncclCommInitRank", &l->comm_init_rank, &missing);
    find(l, "ncclCommDestroy", &l->comm_destroy, &missing);
    find(l, "ncclCommAbort", &l->comm_abort, &missing);
    find(l, "ncclAllGather", &l->all_gather, &missing);
    find(l, "ncclGetErrorString", &l->error_string, &missing);
    return missing;
}

void nccl_version_text(int version, char *out, size_t cap)
{
    if (version < 10000) /* 2.8 and older: 2804 */
        snprintf(out, cap, "%d.%d.%d", version / 1000, version % 1000 / 100, version % 100);
    else
        snprintf(out, cap, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

rd_status nccl_library_open(struct nccl_library *out, char *why, size_t cap)
{
    const char *set = getenv("RADISH_NCCL"), *path = set && *set ? set : LIBRARY, *missing;

    *out = (struct nccl_library){.handle = NULL};
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    out->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!out->handle) {
        const char *error = dlerror();

        snprintf(why, cap, "there is no NCCL (%s)", error ? error : path);
        return RD_E_UNSUPPORTED;
    }
    missing = find_all(out);
    if (!missing && (out->get_version(&out->version) != 0 || out->version < OLDEST)) missing = "version 2.4";
    if (!missing) return RD_OK;
    snprintf(why, cap, "%s is not the NCCL that is wanted: it lacks %s", path, missing);
    nccl_library_close(out);
    return RD_E_UNSUPPORTED;
}

void nccl_library_close(struct nccl_library *l)
{
    if (l->handle) dlclose(l->handle);
    *l = (struct nccl_library){.handle = NULL};
}
