/* tests/test_backend.h - which backend the tests of models run on: the CPU, or what RADISH_TEST_DEVICE names where it
 * is in the build: cuda, mlx.
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
    const char *device = getenv("RADISH_TEST_DEVICE");
    const struct backend_entry *named = device ? backend_find(device) : NULL;

    return named && named->ops ? named->ops : &backend_cpu_ops;
}
