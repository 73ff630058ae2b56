/* backend/mlx/mlx_call.cpp - see mlx_call.h. What it computes lies in host memory, as all that MLX computes does: on a Mac the
 * GPU shares it, and MLX waits for the GPU where an input is of it.
 * Source  MLX's documentation, "Custom Extensions in MLX", as mlx_products.cpp.
 */
#include "backend/mlx/mlx_call.h"
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace mx = mlx::core;

namespace
{

class call : public mx::UnaryPrimitive
{
  public:
    call(mx::Stream s, mlx_function_of fn) : UnaryPrimitive(s), fn_(std::move(fn)) {}

    void eval_cpu(const std::vector<mx::array> &inputs, mx::array &out) override
    {
        std::vector<const void *> in;

        out.set_data(mx::allocator::malloc(out.nbytes()));
        if (out.nbytes() && !out.data<char>()) throw std::bad_alloc();
        for (const mx::array &a : inputs) in.push_back(a.data<char>());
        /* MLX holds the inputs until the stream has done it; the function goes with the task. */
        mx::cpu::get_command_encoder(stream()).dispatch(
            [fn = fn_, in = std::move(in), to = out.data<float>()] { fn(in.data(), to); });
    }

    void eval_gpu(const std::vector<mx::array> &, mx::array &) override
    {
        throw std::runtime_error("a function of the host is for the CPU");
    }

    const char *name() const override { return "call"; }

    bool is_equivalent(const mx::Primitive &) const override { return false; }

  private:
    mlx_function_of fn_;
};

} // namespace

mx::array mlx_called(const mx::Stream &s, const std::vector<int> &shape, const std::vector<mx::array> &inputs,
                     mlx_function_of fn)
{
    std::vector<mx::array> in;

    for (const mx::array &a : inputs) in.push_back(mx::contiguous(a, false, s));
    return mx::array(mx::Shape(shape.begin(), shape.end()), mx::float32, std::make_shared<call>(s, std::move(fn)),
                     std::move(in));
}
