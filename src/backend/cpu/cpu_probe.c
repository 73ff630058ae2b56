/* backend/cpu/cpu_probe.c - the CPU, which is always there: its instruction set and memory. */
#include <stdio.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/device_probe.h"
#include "base/sysinfo.h"

static void probe(struct device_probe *out)
{
    out->has_driver = out->is_usable = true;
    out->why = "the CPU can always be used";
    out->n_devices = 1;
    out->devices[0] = (struct probed_device){.memory_bytes = sysinfo_memory(), .is_fit = true};
    snprintf(out->devices[0].name, sizeof(out->devices[0].name), "%s", cpu_isa_name(cpu_isa_best()));
    cpu_features(out->features, sizeof(out->features));
}

static bool kernel(const struct device_probe *p, enum dtype t, char *out, size_t cap)
{
    (void)p;
    return cpu_kernel_of(t, out, cap);
}

const struct backend_about backend_cpu_about = {
    .title = "CPU", .version = "", .needs = "nothing", .least = "", .probe = probe, .kernel = kernel};
