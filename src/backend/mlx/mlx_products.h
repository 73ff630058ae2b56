/* backend/mlx/mlx_products.h - products for MLX's CPU build, for mlx_shim.cpp alone (C++).
 *
 *   x  [n, n_in] f32
 *   w  {w [n_out, n_in] f32 or bf16}; or {rows u8 [n_out, bytes of one]}, which form.open opens; or {words, scales, biases} of
 *      groups: scales and biases f32; form.bits 2 to 6 or 8, groups of 32, 64 or 128: as mlx.core.quantize makes them
 *
 * Gives [n, n_out] f32, which is computed when it is asked for, on the stream s, of a CPU, by that thread and the others of
 * threads. Each array of w must be in one piece and computed already. Throws as MLX does.
 */
#pragma once
#include <cstdint>
#include <vector>
#include "backend/mlx/mlx_shim.h"

namespace mlx::core
{
class array;
struct Stream;
} // namespace mlx::core

mlx::core::array mlx_own_product(const mlx::core::Stream &s, const mlx::core::array &x,
                                 const std::vector<mlx::core::array> &w, const mlx_groups &form,
                                 const mlx_threads &threads);
