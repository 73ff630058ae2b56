/* grad/device.c - which there are. */
#include "grad/device.h"
#include <string.h>

const struct grad_device_ops *grad_device_of(const char *name)
{
#ifdef RADISH_TRAINS_ON_CUDA
    if (strcmp(name, "cuda") == 0) return &grad_device_cuda;
#endif
    return strcmp(name, "cpu") == 0 ? &grad_device_cpu : NULL;
}
