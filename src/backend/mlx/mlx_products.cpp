/* backend/mlx/mlx_products.cpp - mlx_own_matmul: x times w transposed as one operation of MLX's graph, by loops of ours.
 *
 * MLX's CPU build multiplies one row after the other, and opens every group of weights once for each of them: rows that are
 * computed together gain nothing. Here two rows of w are opened to floats, and multiplied with all rows of x, four at a time:
 * what it takes to open a weight is shared. A row's bits do not depend on the others'.
 *
 * Work    n * n_out * n_in multiplications and additions, and n_out * n_in weights opened. MLX's thread for the stream has it, and
 *         shares it out in tiles of rows of w where it is worth a wake-up; which thread computes a row changes nothing.
 * Memory  two rows of w for every thread.
 * Order   16 sums, of the inputs i, i + 16, i + 32 .., added in pairs in the end.
 * Source  MLX's documentation, "Custom Extensions in MLX": a Primitive, whose eval_cpu hands its work to the stream.
 */
#include "backend/mlx/mlx_products.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace mx = mlx::core;

/* One function for each instruction set, chosen when the program starts: before a sanitizer has begun. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif
#define INLINE __attribute__((always_inline)) inline

namespace
{

constexpr int LANES = 16, X_ROWS = 4, W_ROWS = 2, HALVES = 2;
constexpr int64_t TILE_ROWS = 16;        /* of w; whole W_ROWS */
constexpr int64_t LEAST_WORK = 64 << 10; /* weights: less is done before the others are awake */
using floats = float __attribute__((vector_size(8 * sizeof(float)))); /* AVX2's: gcc takes wider ones apart there */

enum class form { F32, BF16, ROWS, GROUPS };

struct product {
    form w_form;
    uint32_t bits, group, type;
    void (*open)(uint32_t type, const void *row, float *to, uint64_t n);
    int64_t row_bytes; /* ROWS */
    int64_t n, n_in, n_out;
    const float *x;      /* [n, n_in] */
    const void *w;       /* [n_out, n_in], or words of groups [n_out, n_in * bits / 32], or [n_out, row_bytes] */
    const float *scales; /* [n_out, n_in / group] */
    const float *biases; /* likewise */
    float *out;          /* [n, n_out] */
    float *opened;       /* [threads, W_ROWS, n_in] */
};

/* Eight weights. They are beside one another from the low bits up, in `bits` bytes: four come out of the first word of these,
 * four out of the last one, all shifted at once. */
template <uint32_t bits> INLINE void open_eight(const uint8_t *q, float scale, float bias, float *to)
{
    using bytes = uint8_t __attribute__((vector_size(8)));
    using words = uint32_t __attribute__((vector_size(8 * sizeof(uint32_t))));
    using numbers = int32_t __attribute__((vector_size(8 * sizeof(int32_t))));
    numbers eight;

    if constexpr (bits == 8) {
        bytes b;

        std::memcpy(&b, q, sizeof(b));
        eight = __builtin_convertvector(b, numbers);
    } else {
        constexpr uint32_t n = bits < 4 ? bits : 4;                     /* bytes of a word */
        constexpr uint32_t fifth = bits < 4 ? 4 * bits : 32 - 4 * bits; /* the bit where that weight begins in the last one */
        constexpr words shifts = {0,     bits,         2 * bits,         3 * bits,
                                  fifth, fifth + bits, fifth + 2 * bits, fifth + 3 * bits};
        uint32_t first = 0, last = 0;

        std::memcpy(&first, q, n);
        std::memcpy(&last, q + bits - n, n);
        const words both = words{first, first, first, first, last, last, last, last} >> shifts & ((1u << bits) - 1);
        eight = reinterpret_cast<const numbers &>(both);
    }
    const floats f = __builtin_convertvector(eight, floats) * scale + bias;

    std::memcpy(to, &f, sizeof(f));
}

template <uint32_t bits> INLINE void open_groups(const product &p, int64_t row, float *to)
{
    const int64_t n_groups = p.n_in / p.group;
    const uint8_t *q = static_cast<const uint8_t *>(p.w) + row * (p.n_in / 8 * bits);

    for (int64_t g = 0; g < n_groups; g++) {
        const float scale = p.scales[row * n_groups + g], bias = p.biases[row * n_groups + g];

        for (uint32_t i = 0; i < p.group; i += 8, q += bits, to += 8) open_eight<bits>(q, scale, bias, to);
    }
}

/* Row `row` of w in floats: where it lies, or in `to`. */
INLINE const float *open_row(const product &p, int64_t row, float *to)
{
    const uint16_t *half = static_cast<const uint16_t *>(p.w) + row * p.n_in;

    if (p.w_form == form::F32) return static_cast<const float *>(p.w) + row * p.n_in;
    if (p.w_form == form::BF16) {
        for (int64_t i = 0; i < p.n_in; i++) {
            const uint32_t word = static_cast<uint32_t>(half[i]) << 16;

            std::memcpy(&to[i], &word, sizeof(word));
        }
        return to;
    }
    if (p.w_form == form::ROWS) {
        p.open(p.type, static_cast<const uint8_t *>(p.w) + row * p.row_bytes, to, static_cast<uint64_t>(p.n_in));
        return to;
    }
    switch (p.bits) {
    case 2:
        open_groups<2>(p, row, to);
        break;
    case 3:
        open_groups<3>(p, row, to);
        break;
    case 4:
        open_groups<4>(p, row, to);
        break;
    case 5:
        open_groups<5>(p, row, to);
        break;
    case 6:
        open_groups<6>(p, row, to);
        break;
    default:
        open_groups<8>(p, row, to);
    }
    return to;
}

INLINE void load(const float *from, floats *v)
{
    std::memcpy(v, from, sizeof(*v));
}

INLINE float sum(const floats v[HALVES])
{
    float half[LANES];

    std::memcpy(half, v, sizeof(half));
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) half[i] += half[i + n];
    return half[0];
}

/* out[r][o]: x_rows rows of x with w_rows rows of w. */
template <int x_rows, int w_rows> INLINE void tile(const product &p, const float *const *w, int64_t r, int64_t o)
{
    const float *x = p.x + r * p.n_in;
    floats sums[x_rows][w_rows][HALVES] = {};
    int64_t i = 0;

    for (; i + LANES <= p.n_in; i += LANES)
        for (int h = 0; h < HALVES; h++)
            for (int b = 0; b < w_rows; b++) {
                floats weights, in;

                load(w[b] + i + 8 * h, &weights);
                for (int a = 0; a < x_rows; a++) {
                    load(x + a * p.n_in + i + 8 * h, &in);
                    sums[a][b][h] += in * weights;
                }
            }
    for (int a = 0; a < x_rows; a++)
        for (int b = 0; b < w_rows; b++) {
            float s = sum(sums[a][b]);

            for (int64_t k = i; k < p.n_in; k++) s += x[a * p.n_in + k] * w[b][k];
            p.out[(r + a) * p.n_out + o + b] = s;
        }
}

template <int w_rows> INLINE void all_rows(const product &p, int64_t o)
{
    const float *w[w_rows];
    int64_t r = 0;

    for (int b = 0; b < w_rows; b++) w[b] = open_row(p, o + b, p.opened + b * p.n_in);
    for (; r + X_ROWS <= p.n; r += X_ROWS) tile<X_ROWS, w_rows>(p, w, r, o);
    for (; r < p.n; r++) tile<1, w_rows>(p, w, r, o);
}

/* Rows o .. end - 1 of w. */
FOR_EACH_CPU void multiply(const product &p, int64_t o, int64_t end)
{
    for (; o + W_ROWS <= end; o += W_ROWS) all_rows<W_ROWS>(p, o);
    for (; o < end; o++) all_rows<1>(p, o);
}

void multiply_tile(void *arg, uint32_t tile, uint32_t thread)
{
    product p = *static_cast<const product *>(arg);
    const int64_t first = tile * TILE_ROWS;

    p.opened += thread * W_ROWS * p.n_in;
    multiply(p, first, std::min(first + TILE_ROWS, p.n_out));
}

void multiply_all(product p, const mlx_threads &threads)
{
    if (threads.n > 1)
        threads.run(threads.pool, multiply_tile, &p, static_cast<uint32_t>((p.n_out + TILE_ROWS - 1) / TILE_ROWS));
    else
        multiply(p, 0, p.n_out);
}

/* inputs: x, w [, scales, biases], each in one piece. */
class own_matmul : public mx::UnaryPrimitive
{
  public:
    own_matmul(mx::Stream s, const mlx_groups &of, const mlx_threads &threads)
        : UnaryPrimitive(s), of_(of), threads_(threads)
    {
    }

    void eval_cpu(const std::vector<mx::array> &inputs, mx::array &out) override
    {
        product p = {};

        p.w_form = inputs.size() > 2                   ? form::GROUPS
                   : of_.open                          ? form::ROWS
                   : inputs[1].dtype() == mx::bfloat16 ? form::BF16
                                                       : form::F32;
        p.bits = of_.bits;
        p.group = of_.group;
        p.type = of_.type;
        p.open = of_.open;
        p.row_bytes = inputs[1].shape(1);
        p.n_in = inputs[0].shape(1);
        p.n = inputs[0].shape(0);
        p.n_out = inputs[1].shape(0);
        out.set_data(mx::allocator::malloc(out.nbytes()));
        if (out.nbytes() && !out.data<char>()) throw std::bad_alloc();
        p.x = inputs[0].data<float>();
        p.w = inputs[1].data<char>();
        p.scales = inputs.size() > 2 ? inputs[2].data<float>() : nullptr;
        p.biases = inputs.size() > 2 ? inputs[3].data<float>() : nullptr;
        p.out = out.data<float>();
        /* MLX holds the inputs until the stream has done it; what is opened goes with the task. */
        const mlx_threads threads = p.n_out * p.n_in < LEAST_WORK ? mlx_threads{1, nullptr, nullptr} : threads_;
        const std::shared_ptr<float[]> opened(new float[static_cast<size_t>(threads.n * W_ROWS * p.n_in)]);
        p.opened = opened.get();
        mx::cpu::get_command_encoder(stream()).dispatch([p, opened, threads] { multiply_all(p, threads); });
    }

    void eval_gpu(const std::vector<mx::array> &, mx::array &) override
    {
        throw std::runtime_error("own_matmul is for the CPU");
    }

    const char *name() const override { return "own_matmul"; }

    bool is_equivalent(const mx::Primitive &other) const override
    {
        const own_matmul &o = static_cast<const own_matmul &>(other);

        return of_.bits == o.of_.bits && of_.group == o.of_.group && of_.open == o.of_.open && of_.type == o.of_.type;
    }

  private:
    mlx_groups of_; /* its form: the arrays are inputs */
    mlx_threads threads_;
};

} // namespace

mx::array mlx_own_product(const mx::Stream &s, const mx::array &x, const std::vector<mx::array> &w, const mlx_groups &form,
                          const mlx_threads &threads)
{
    std::vector<mx::array> inputs = {mx::contiguous(x, false, s)};

    inputs.insert(inputs.end(), w.begin(), w.end());
    return mx::array({x.shape(0), w[0].shape(0)}, mx::float32, std::make_shared<own_matmul>(s, form, threads),
                     std::move(inputs));
}
