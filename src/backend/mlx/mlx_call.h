/* backend/mlx/mlx_call.h - a function of ours as an operation of MLX's graph, for mlx_shim.cpp alone (C++). s: a CPU's stream.
 * inputs: in any form, made one piece each. Gives f32 of this shape. Throws as MLX does. */
#pragma once
#include <functional>
#include <vector>

namespace mlx::core
{
class array;
struct Stream;
} // namespace mlx::core

using mlx_function_of = std::function<void(const void *const *in, float *out)>;

mlx::core::array mlx_called(const mlx::core::Stream &s, const std::vector<int> &shape,
                            const std::vector<mlx::core::array> &inputs, mlx_function_of fn);
