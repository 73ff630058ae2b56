/* backend/cuda/cuda_probe.c - which NVIDIA driver and GPUs a machine has, in any build: asks libcuda.so.1, if it is there.
 * Types as the CUDA driver API documents them. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "backend/device_probe.h"
#include "backend/join_way.h"

#define ATTRIBUTE_MAJOR 75 /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR */
#define ATTRIBUTE_MINOR 76
#define LEAST_COMPUTE   8     /* capability 8.0 */
#define BUILT_WITH      13000 /* the CUDA runtime that is linked in */

struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *out);
    int (*count)(int *out);
    int (*get)(int *device, int ordinal);
    int (*name)(char *out, int n, int device);
    int (*memory)(size_t *out, int device);
    int (*attribute)(int *out, int attribute, int device);
    int (*error_text)(int error, const char **text);
    int (*can_access)(int *out, int device, int other);
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
           find(library, "cuDeviceGetAttribute", &d->attribute) && find(library, "cuGetErrorString", &d->error_text) &&
           find(library, "cuDeviceCanAccessPeer", &d->can_access);
}

static bool works(struct device_probe *out, const struct driver *d, const char *call, int error)
{
    const char *text = NULL;

    if (error == 0) return true;
    d->error_text(error, &text);
    snprintf(out->trouble, sizeof(out->trouble), "%s: %s (CUDA error %d)", call, text ? text : "unknown", error);
    return false;
}

static void ask(struct device_probe *out, const struct driver *d)
{
    int version = 0, n = 0;

    if (d->version(&version) == 0 && version > 0) out->driver_version = (uint32_t)version;
    if (!works(out, d, "cuInit", d->init(0)) || !works(out, d, "cuDeviceGetCount", d->count(&n))) return;
    for (int i = 0; i < n && out->n_devices < PROBE_MAX_DEVICES; i++) {
        struct probed_device *g = &out->devices[out->n_devices];
        int device = 0, major = 0, minor = 0;
        size_t bytes = 0;

        if (!works(out, d, "cuDeviceGet", d->get(&device, i))) return;
        if (d->name(g->name, (int)sizeof(g->name), device) != 0) snprintf(g->name, sizeof(g->name), "GPU %d", i);
        if (d->memory(&bytes, device) == 0) g->memory_bytes = bytes;
        if (d->attribute(&major, ATTRIBUTE_MAJOR, device) != 0) major = 0;
        if (d->attribute(&minor, ATTRIBUTE_MINOR, device) != 0) minor = 0;
        snprintf(g->capability, sizeof(g->capability), "%d.%d", major, minor);
        g->is_fit = major >= LEAST_COMPUTE;
        out->n_devices++;
    }
    if (out->n_devices == 0) snprintf(out->trouble, sizeof(out->trouble), "the driver sees no GPU");
}

/* Of --tp on all of them: as cuda_join.c chooses. */
static void ask_ranks(struct device_probe *out, const struct driver *d)
{
    char apart[200] = "";
    struct join_facts facts = {apart, "", ""};
    enum join_way way;

    for (uint32_t i = 0; i < out->n_devices; i++)
        for (uint32_t k = 0; k < out->n_devices; k++) {
            int can = 0;

            if (i == k || *apart || (d->can_access(&can, (int)i, (int)k) == 0 && can)) continue;
            snprintf(apart, sizeof(apart), "GPU %u cannot write to the memory of GPU %u: no peer access", i, k);
        }
    if (out->n_devices < 2) return;
    join_way_choose(JOIN_AUTO, &facts, &way, out->ranks_why, sizeof(out->ranks_why), NULL);
    snprintf(out->ranks, sizeof(out->ranks), "%s", join_way_name(way));
}

static void ask_library(struct device_probe *out)
{
    struct driver d;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        const char *why = dlerror();

        snprintf(out->trouble, sizeof(out->trouble), "no NVIDIA driver: %s", why ? why : "libcuda.so.1 was not found");
        return;
    }
    out->has_driver = true;
    if (find_all(library, &d)) {
        ask(out, &d);
        ask_ranks(out, &d);
    } else {
        snprintf(out->trouble, sizeof(out->trouble), "libcuda.so.1 lacks functions of the driver API: is it a stub?");
    }
    dlclose(library);
}

static void probe(struct device_probe *out)
{
    ask_library(out);
    if (out->n_devices == 0)
        out->why = "there is no GPU that a driver knows";
    else if (out->driver_version < BUILT_WITH)
        out->why = "the NVIDIA driver is too old: it must be for CUDA 13.0 or newer";
    else if (!out->devices[0].is_fit)
        out->why = "the first GPU is too old: compute capability 8.0 is needed";
    else
        out->why = "the first GPU can be used", out->is_usable = true;
}

/* As cuda_matrix_form (convert_rows.cu) keeps a type, and linear_dispatch.cu computes with it. */
static bool kernel(const struct device_probe *p, enum dtype t, char *out, size_t cap)
{
    bool is_hopper = p->n_devices && strcmp(p->devices[0].capability, "9.0") == 0;
    const char *kept;

    switch (t) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        kept = "bf16";
        break;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        kept = "4-bit";
        break;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_Q8_0:
        kept = "8-bit";
        break;
    default:
        return false;
    }
    snprintf(out, cap, "tensor cores (%s): kept as %s, products in bf16", is_hopper ? "wgmma" : "mma", kept);
    return true;
}

const struct backend_about backend_cuda_about = {.title = "CUDA",
                                                 .version = "CUDA 13.0",
                                                 .needs = "nvcc 13",
                                                 .least = "8.0 or newer is needed",
                                                 .probe = probe,
                                                 .kernel = kernel};
