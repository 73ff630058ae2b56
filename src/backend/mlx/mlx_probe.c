/* backend/mlx/mlx_probe.c - MLX, which is a library: it is in the build, or it is not. What it finds on the machine it says
 * when it is opened. */
#include "backend/device_probe.h"

static void probe(struct device_probe *out)
{
    out->has_driver = true; /* it needs none */
    out->is_usable = true;  /* by a build that has it: on the CPU if there is no GPU that it knows */
    out->why = "MLX computes on any machine; on a CPU radish's own kernels are faster";
}

const struct backend_about backend_mlx_about = {.title = "MLX",
                                                .version = "MLX",
                                                .needs = "a C++20 compiler and the Python package mlx",
                                                .least = "",
                                                .by_name = true,
                                                .probe = probe};
