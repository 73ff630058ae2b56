/* backend/gpu_probe.c - the few driver calls that tell what is there. Types as the CUDA driver API documents them. */
#include "backend/gpu_probe.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define ATTRIBUTE_MAJOR 75 /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR */
#define ATTRIBUTE_MINOR 76

struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *out);
    int (*count)(int *out);
    int (*get)(int *device, int ordinal);
    int (*name)(char *out, int n, int device);
    int (*memory)(size_t *out, int device);
    int (*attribute)(int *out, int attribute, int device);
    int (*error_text)(int error, const char **text);
};

/* dlsym gives an object pointer where a function pointer is wanted; POSIX says that they are alike. */
static bool find(void *library, const char *name, void *function)
{
    void *p = dlsym(library, name);

    memcpy(function, &p, sizeof(p));
    return p != NULL;
}

static bool find_all(void *library, struct driver *d)
{
    return find(library, "cuInit", &d->init) && find(library, "cuDriverGetVersion", &d->version) &&
           find(library, "cuDeviceGetCount", &d->count) && find(library, "cuDeviceGet", &d->get) &&
           find(library, "cuDeviceGetName", &d->name) && find(library, "cuDeviceTotalMem_v2", &d->memory) &&
           find(library, "cuDeviceGetAttribute", &d->attribute) &&
           find(library, "cuGetErrorString", &d->error_text);
}

static bool works(struct gpu_probe *out, const struct driver *d, const char *call, int error)
{
    const char *text = NULL;

    if (error == 0) return true;
    d->error_text(error, &text);
    snprintf(out->trouble, sizeof(out->trouble), "%s: %s (CUDA error %d)", call, text ? text : "unknown", error);
    return false;
}

static void ask(struct gpu_probe *out, const struct driver *d)
{
    int version = 0, n = 0;

    if (d->version(&version) == 0 && version > 0) out->driver_version = (uint32_t)version;
    if (!works(out, d, "cuInit", d->init(0)) || !works(out, d, "cuDeviceGetCount", d->count(&n))) return;
    for (int i = 0; i < n && out->n_gpus < GPU_PROBE_MAX; i++) {
        struct gpu_info *g = &out->gpus[out->n_gpus];
        int device = 0, major = 0, minor = 0;
        size_t bytes = 0;

        if (!works(out, d, "cuDeviceGet", d->get(&device, i))) return;
        if (d->name(g->name, (int)sizeof(g->name), device) != 0) snprintf(g->name, sizeof(g->name), "GPU %d", i);
        if (d->memory(&bytes, device) == 0) g->memory_bytes = bytes;
        if (d->attribute(&major, ATTRIBUTE_MAJOR, device) == 0) g->major = (uint32_t)major;
        if (d->attribute(&minor, ATTRIBUTE_MINOR, device) == 0) g->minor = (uint32_t)minor;
        out->n_gpus++;
    }
    if (out->n_gpus == 0) snprintf(out->trouble, sizeof(out->trouble), "the driver sees no GPU");
}

void gpu_probe(struct gpu_probe *out)
{
    struct driver d;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    memset(out, 0, sizeof(*out));
    if (!library) {
        const char *why = dlerror();

        snprintf(out->trouble, sizeof(out->trouble), "no NVIDIA driver: %s", why ? why : "libcuda.so.1 was not found");
        return;
    }
    out->has_driver = true;
    if (find_all(library, &d)) ask(out, &d);
    else snprintf(out->trouble, sizeof(out->trouble), "libcuda.so.1 lacks functions of the driver API: is it a stub?");
    dlclose(library);
}
