/* tests/test_backend.h - which backend the tests of models run on: the CPU, or in the CUDA build with
 * RADISH_TEST_DEVICE=cuda the GPU.
 */
#pragma once
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "backend/backend_registry.h"

static inline bool test_on_gpu(void)
{
    const char *device = getenv("RADISH_TEST_DEVICE");

    return device && strcmp(device, "cuda") == 0;
}

static inline const struct backend_ops *test_backend_ops(void)
{
    const struct backend_entry *cuda = test_on_gpu() ? backend_find("cuda") : NULL;

    return cuda && cuda->ops ? cuda->ops : &backend_cpu_ops;
}
