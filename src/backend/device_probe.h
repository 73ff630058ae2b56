/* backend/device_probe.h - what a machine has for a backend, whether or not the backend is in this build.
 *
 * A backend NAME exports `const struct backend_about backend_NAME_about` from NAME/NAME_probe.c, which every build has:
 * so `radish doctor` can say that there is a GPU which this build cannot use.
 * Thread  any thread. Nothing stays open.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tensor/dtype.h"

#define PROBE_MAX_DEVICES 16u

struct probed_device {
    char name[128];
    uint64_t memory_bytes;
    char capability[32]; /* "9.0"; "": there is no such number */
    bool is_fit;         /* new enough */
};
struct device_probe {
    bool has_driver;         /* a driver was found, and could be opened */
    uint32_t driver_version; /* of CUDA: 13000 is 13.0 at most; 0: unknown */
    char trouble[256];       /* why there is no usable driver or device; "" otherwise */
    char features[192];      /* of the processor, those that matter to kernels: "avx2 fma"; "": none */
    uint32_t n_devices;
    struct probed_device devices[PROBE_MAX_DEVICES];
    char ranks[16],
        ranks_why
            [320]; /* how ranks on these devices would put their parts together ("host"), and why; "": there are not two */
    bool is_usable;  /* the first device, by a build that has the backend */
    const char *why; /* a sentence, either way */
};

struct backend_about {
    const char *title;   /* "CUDA" */
    const char *version; /* of what it is built with: "CUDA 13.0" */
    const char *needs;   /* to build it: "nvcc 13" */
    const char *least;   /* of a device that is not fit: "8.0 or newer is needed" */
    bool by_name;        /* `auto` passes it over: it is for those who ask for it */
    void (*probe)(struct device_probe *out);
    /* Which kernel computes with weights of a type on the first device that p has: "avx512, 16 outputs at a time". false: the
     * type is not taken there. NULL: nothing is known. */
    bool (*kernel)(const struct device_probe *p, enum dtype t, char *out, size_t cap);
};
