/* backend/gpu_probe.h - which NVIDIA driver and GPUs a machine has, in any build: asks libcuda.so.1, if it is there.
 * Thread  any thread. Nothing stays open.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define GPU_PROBE_MAX 16u

struct gpu_info { char name[128]; uint64_t memory_bytes; uint32_t major, minor; /* compute capability */ };
struct gpu_probe {
    bool has_driver;                    /* libcuda.so.1 was found and could be opened */
    uint32_t driver_version;            /* 13000: CUDA 13.0 at most; 0: unknown */
    char trouble[256];                  /* why there is no usable driver or GPU; "" otherwise */
    uint32_t n_gpus;
    struct gpu_info gpus[GPU_PROBE_MAX];
};
void gpu_probe(struct gpu_probe *out);
