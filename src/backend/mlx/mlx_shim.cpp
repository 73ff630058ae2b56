/* backend/mlx/mlx_shim.cpp - mlx_shim.h over mlx::core. Every call into MLX is inside `guarded`: nothing thrown leaves. */
#include "backend/mlx/mlx_shim.h"
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>
#include "backend/mlx/mlx_call.h"
#include "backend/mlx/mlx_products.h"
#include "mlx/mlx.h"

namespace mx = mlx::core;

struct mlx_value {
    mx::array a;
};

struct mlx_context {
    mx::Stream stream, host; /* host: a CPU's, the same one where there is no GPU */
    std::vector<std::unique_ptr<mlx_value>> alive; /* until mlx_end */
    mlx_threads threads = {1, nullptr, nullptr};
    rd_status failed = RD_OK;
    char why[256] = "";

    mlx_context(mx::Stream s, mx::Stream h) : stream(s), host(h) {}
};

namespace
{

bool is_memory(const char *what)
{
    return std::strstr(what, "alloc") || std::strstr(what, "memory") || std::strstr(what, "Memory");
}

void note(mlx_context *g, rd_status st, const char *what) noexcept
{
    if (g->failed != RD_OK) return;
    g->failed = st;
    std::snprintf(g->why, sizeof(g->why), "%s", what);
}

/* What f gives; otherwise if it throws. */
template <typename T, typename F> T guarded(mlx_context *g, T otherwise, F f) noexcept
{
    try {
        return f();
    } catch (const std::bad_alloc &) {
        note(g, RD_E_NOMEM, "out of memory");
    } catch (const std::exception &e) {
        note(g, is_memory(e.what()) ? RD_E_NOMEM : RD_E_DEVICE, e.what());
    } catch (...) {
        note(g, RD_E_DEVICE, "MLX threw what is no exception");
    }
    return otherwise;
}

/* A value that lives until mlx_end. */
template <typename F> mlx_ref made(mlx_context *g, F f) noexcept
{
    return guarded<mlx_ref>(g, nullptr, [&]() -> mlx_ref {
        g->alive.push_back(std::make_unique<mlx_value>(mlx_value{f()}));
        return g->alive.back().get();
    });
}

mx::Dtype type_of(mlx_type t)
{
    switch (t) {
    case MLX_F16:
        return mx::float16;
    case MLX_BF16:
        return mx::bfloat16;
    case MLX_I32:
        return mx::int32;
    case MLX_U32:
        return mx::uint32;
    case MLX_U8:
        return mx::uint8;
    case MLX_F32:
        break;
    }
    return mx::float32;
}

mx::Shape shape_from(const mlx_shape &s)
{
    return mx::Shape(s.dims, s.dims + s.n);
}

std::vector<mx::array> list_of(uint32_t n, const mlx_ref *a)
{
    std::vector<mx::array> all;

    all.reserve(n);
    for (uint32_t i = 0; i < n; i++) all.push_back(a[i]->a);
    return all;
}

bool all_there(uint32_t n, const mlx_ref *a)
{
    for (uint32_t i = 0; i < n; i++)
        if (!a[i]) return false;
    return true;
}

/* MLX's CPU build does not look at what malloc gives it, and would write to NULL. What is asked for here is asked of the system
 * first, where it is large; what an operation takes between is not seen. */
void check_room(uint64_t n_bytes)
{
    constexpr uint64_t large = 16u << 20;

    if (n_bytes < large) return;
    void *p = ::operator new(n_bytes, std::nothrow);
    ::operator delete(p);
    if (!p) throw std::bad_alloc();
}

void check_room(const std::vector<mx::array> &all)
{
    for (const mx::array &a : all)
        if (a.status() == mx::array::Status::unscheduled) check_room(a.nbytes());
}

/* MLX's attention with the scores capped, which its fused one cannot. */
mx::array capped_attention(const mx::Stream &s, const mlx_attention &a)
{
    const mx::array &q = a.q->a, &k = a.k->a, &v = a.v->a;
    const int heads = q.shape(1), kv_heads = k.shape(1), n_q = q.shape(2), n_k = k.shape(2), dim = q.shape(3);
    const mx::Shape grouped{q.shape(0), kv_heads, heads / kv_heads, n_q, dim};
    mx::array scores = mx::matmul(mx::reshape(mx::multiply(q, mx::array(a.scale), s), grouped, s),
                                  mx::swapaxes(mx::expand_dims(k, 2, s), -1, -2, s), s);

    scores = mx::multiply(mx::tanh(mx::multiply(scores, mx::array(1 / a.softcap), s), s), mx::array(a.softcap), s);
    if (a.mask) {
        scores = mx::add(scores, mx::expand_dims(a.mask->a, 2, s), s);
    } else if (a.causal) {
        const mx::array at = mx::expand_dims(mx::arange(n_k - n_q, n_k, mx::int32, s), 1, s);
        const mx::array seen = mx::less_equal(mx::arange(0, n_k, mx::int32, s), at, s);

        scores = mx::where(seen, scores, mx::array(-INFINITY), s);
    }
    return mx::reshape(mx::matmul(mx::softmax(scores, -1, true, s), mx::expand_dims(v, 2, s), s), q.shape(), s);
}

} // namespace

/* ---- life ---- */

mlx_context *mlx_open(bool gpu, char *text, uint64_t n_text)
{
    const char *why = "MLX cannot be started";

    try {
        const mx::Device device(gpu ? mx::Device::gpu : mx::Device::cpu);

        if (mx::is_available(device)) {
            const mx::Stream s = mx::new_thread_unsafe_stream(device);

            return new mlx_context(s, gpu ? mx::new_thread_unsafe_stream(mx::Device(mx::Device::cpu)) : s);
        }
        why = gpu ? "MLX finds no GPU" : "MLX finds no CPU";
    } catch (const std::exception &e) {
        std::snprintf(text, n_text, "%s", e.what());
        return nullptr;
    } catch (...) {
    }
    std::snprintf(text, n_text, "%s", why);
    return nullptr;
}

mlx_context *mlx_open_beside(const mlx_context *g)
{
    return new (std::nothrow) mlx_context(g->stream, g->host);
}

void mlx_close(mlx_context *g)
{
    if (!g) return;
    guarded<bool>(g, false, [&] {
        g->alive.clear();
        mx::synchronize(g->stream);
        mx::clear_cache();
        return true;
    });
    delete g;
}

void mlx_use_threads(mlx_context *g, const mlx_threads *t)
{
    g->threads = *t;
}

bool mlx_has_gpu(void)
{
    try {
        return mx::is_available(mx::Device(mx::Device::gpu));
    } catch (...) {
        return false;
    }
}

const char *mlx_version(void)
{
    try {
        return mx::version();
    } catch (...) {
        return "";
    }
}

rd_status mlx_failure(mlx_context *g, char *text, uint64_t n_text)
{
    const rd_status st = g->failed;

    if (n_text) std::snprintf(text, n_text, "%s", g->why);
    g->failed = RD_OK;
    g->why[0] = 0;
    return st;
}

void mlx_end(mlx_context *g)
{
    guarded<bool>(g, false, [&] {
        g->alive.clear();
        return true;
    });
}

mlx_ref mlx_keep(mlx_context *g, mlx_ref a)
{
    if (!a) return nullptr;
    return guarded<mlx_ref>(g, nullptr, [&] { return new mlx_value{a->a}; });
}

void mlx_drop(mlx_ref a)
{
    delete a;
}

void mlx_memory_read(mlx_memory *out)
{
    *out = {0, 0, 0, 0};
    try {
        *out = {mx::get_memory_limit(), mx::get_active_memory(), mx::get_peak_memory(), mx::get_cache_memory()};
    } catch (...) {
    }
}

bool mlx_memory_cache_limit(mlx_context *g, uint64_t n_bytes)
{
    return guarded<bool>(g, false, [&] {
        mx::set_cache_limit(n_bytes);
        return true;
    });
}

bool mlx_memory_clear(mlx_context *g)
{
    return guarded<bool>(g, false, [&] {
        mx::clear_cache();
        return true;
    });
}

/* ---- values ---- */

mlx_ref mlx_from(mlx_context *g, mlx_type t, mlx_shape s, const void *data)
{
    return made(g, [&] {
        const mx::Dtype type = type_of(t);
        uint64_t n = mx::size_of(type);

        for (uint32_t i = 0; i < s.n; i++) n *= static_cast<uint64_t>(s.dims[i]);
        mx::allocator::Data to = mx::allocator::malloc(n);

        if (n && !to.buffer().raw_ptr()) throw std::bad_alloc();
        std::memcpy(to.buffer().raw_ptr(), data, n);
        return mx::array(std::move(to), shape_from(s), type);
    });
}

mlx_ref mlx_zeros(mlx_context *g, mlx_type t, mlx_shape s)
{
    return made(g, [&] { return mx::zeros(shape_from(s), type_of(t), g->stream); });
}

mlx_shape mlx_shape_of(mlx_ref a)
{
    mlx_shape s = {0, {0}};

    for (int32_t d : a->a.shape())
        if (s.n < MLX_MAX_DIMS) s.dims[s.n++] = d;
    return s;
}

uint64_t mlx_bytes_of(mlx_ref a)
{
    return a->a.nbytes();
}

const void *mlx_address_of(mlx_ref a)
{
    return a->a.data<char>();
}

bool mlx_eval(mlx_context *g, uint32_t n, const mlx_ref *a)
{
    if (!all_there(n, a)) return false;
    return guarded<bool>(g, false, [&] {
        std::vector<mx::array> all = list_of(n, a);

        check_room(all);
        mx::eval(std::move(all));
        return true;
    });
}

bool mlx_eval_async(mlx_context *g, uint32_t n, const mlx_ref *a)
{
    if (!all_there(n, a)) return false;
    return guarded<bool>(g, false, [&] {
        std::vector<mx::array> all = list_of(n, a);

        check_room(all);
        mx::async_eval(std::move(all));
        return true;
    });
}

bool mlx_copy_out(mlx_context *g, mlx_ref a, void *to, uint64_t n_bytes)
{
    if (!a) return false;
    return guarded<bool>(g, false, [&] {
        a->a.eval();
        std::memcpy(to, a->a.data<char>(), std::min<uint64_t>(n_bytes, a->a.nbytes()));
        return true;
    });
}

mlx_ref mlx_call(mlx_context *g, mlx_shape s, uint32_t n_in, const mlx_ref *in, mlx_function fn, void *arg,
                 void (*let_go)(void *))
{
    return guarded<mlx_ref>(g, nullptr, [&]() -> mlx_ref {
        const std::shared_ptr<void> held(arg, let_go);

        if (!all_there(n_in, in)) return nullptr;
        return made(g, [&] {
            return mlx_called(g->host, {s.dims, s.dims + s.n}, list_of(n_in, in),
                              [held, fn](const void *const *from, float *to) { fn(held.get(), from, to); });
        });
    });
}

bool mlx_get(mlx_context *g, mlx_ref a, void *to, uint64_t n_bytes)
{
    if (!a) return false;
    return guarded<bool>(g, false, [&] {
        mx::array whole = mx::contiguous(a->a, false, g->stream);

        whole.eval();
        std::memcpy(to, whole.data<char>(), std::min<uint64_t>(n_bytes, whole.nbytes()));
        return true;
    });
}

/* ---- shapes ---- */

mlx_ref mlx_as(mlx_context *g, mlx_ref a, mlx_type t)
{
    if (!a || a->a.dtype() == type_of(t)) return a;
    return made(g, [&] { return mx::astype(a->a, type_of(t), g->stream); });
}

mlx_ref mlx_as_of(mlx_context *g, mlx_ref a, mlx_ref b)
{
    if (!a || !b) return nullptr;
    if (a->a.dtype() == b->a.dtype()) return a;
    return made(g, [&] { return mx::astype(a->a, b->a.dtype(), g->stream); });
}

mlx_ref mlx_reshape(mlx_context *g, mlx_ref a, mlx_shape s)
{
    if (!a || a->a.shape() == shape_from(s)) return a;
    return made(g, [&] { return mx::reshape(a->a, shape_from(s), g->stream); });
}

mlx_ref mlx_slice(mlx_context *g, mlx_ref a, uint32_t axis, int32_t from, int32_t to)
{
    if (!a) return a;
    return made(g, [&] {
        mx::Shape start(a->a.ndim(), 0), stop = a->a.shape();

        start.at(axis) = from;
        stop.at(axis) = to;
        return mx::slice(a->a, start, stop, g->stream);
    });
}

mlx_ref mlx_swap(mlx_context *g, mlx_ref a, uint32_t axis, uint32_t other)
{
    if (!a) return a;
    return made(g, [&] { return mx::swapaxes(a->a, static_cast<int>(axis), static_cast<int>(other), g->stream); });
}

mlx_ref mlx_in_one_piece(mlx_context *g, mlx_ref a)
{
    if (!a) return a;
    return made(g, [&] { return mx::contiguous(a->a, false, g->stream); });
}

mlx_ref mlx_concat(mlx_context *g, uint32_t n, const mlx_ref *a, uint32_t axis)
{
    if (!all_there(n, a)) return nullptr;
    return made(g, [&] { return mx::concatenate(list_of(n, a), static_cast<int>(axis), g->stream); });
}

mlx_ref mlx_replace(mlx_context *g, mlx_ref a, mlx_ref b, uint32_t axis, int32_t from)
{
    if (!a || !b) return nullptr;
    return made(g, [&] {
        mx::Shape start(a->a.ndim(), 0), stop = a->a.shape();

        start.at(axis) = from;
        stop.at(axis) = from + b->a.shape(static_cast<int>(axis));
        return mx::slice_update(a->a, b->a, start, stop, g->stream);
    });
}

mlx_ref mlx_take(mlx_context *g, mlx_ref a, mlx_ref rows)
{
    if (!a || !rows) return nullptr;
    return made(g, [&] { return mx::take(a->a, rows->a, 0, g->stream); });
}

mlx_ref mlx_put(mlx_context *g, mlx_ref a, mlx_ref rows, mlx_ref new_rows)
{
    if (!a || !rows || !new_rows) return nullptr;
    return made(g,
                [&] { return mx::scatter(a->a, rows->a, mx::expand_dims(new_rows->a, 1, g->stream), 0, g->stream); });
}

/* ---- arithmetic ---- */

mlx_ref mlx_add(mlx_context *g, mlx_ref a, mlx_ref b)
{
    if (!a || !b) return nullptr;
    return made(g, [&] { return mx::add(a->a, b->a, g->stream); });
}

mlx_ref mlx_multiply(mlx_context *g, mlx_ref a, mlx_ref b)
{
    if (!a || !b) return nullptr;
    return made(g, [&] { return mx::multiply(a->a, b->a, g->stream); });
}

mlx_ref mlx_scale(mlx_context *g, mlx_ref a, float by)
{
    if (!a || by == 1) return a;
    return made(g, [&] { return mx::multiply(a->a, mx::array(by), g->stream); });
}

mlx_ref mlx_reciprocal(mlx_context *g, mlx_ref a)
{
    if (!a) return a;
    return made(g, [&] { return mx::reciprocal(a->a, g->stream); });
}

mlx_ref mlx_tanh(mlx_context *g, mlx_ref a)
{
    if (!a) return a;
    return made(g, [&] { return mx::tanh(a->a, g->stream); });
}

mlx_ref mlx_silu(mlx_context *g, mlx_ref a)
{
    if (!a) return a;
    return made(g, [&] { return mx::multiply(a->a, mx::sigmoid(a->a, g->stream), g->stream); });
}

mlx_ref mlx_gelu_tanh(mlx_context *g, mlx_ref a)
{
    if (!a) return a;
    return made(g, [&] {
        const mx::Stream &s = g->stream;
        const mx::array &x = a->a;
        const mx::array cube = mx::multiply(mx::multiply(x, x, s), x, s);
        const mx::array inner = mx::add(x, mx::multiply(cube, mx::array(0.044715f), s), s);
        const mx::array half = mx::multiply(x, mx::array(0.5f), s);

        return mx::multiply(
            half, mx::add(mx::tanh(mx::multiply(inner, mx::array(0.79788456080286536f), s), s), mx::array(1.0f), s), s);
    });
}

mlx_ref mlx_matmul(mlx_context *g, mlx_ref x, mlx_ref w)
{
    if (!x || !w) return nullptr;
    return made(g, [&] { return mx::matmul(x->a, mx::swapaxes(w->a, 0, 1, g->stream), g->stream); });
}

mlx_ref mlx_quantized_matmul(mlx_context *g, mlx_ref x, const mlx_groups *w)
{
    if (!x || !w->w || !w->scales || !w->biases) return nullptr;
    return made(g, [&] {
        return mx::quantized_matmul(x->a, w->w->a, w->scales->a, w->biases->a, true, static_cast<int>(w->group),
                                    static_cast<int>(w->bits), "affine", g->stream);
    });
}

mlx_ref mlx_own_matmul(mlx_context *g, mlx_ref x, const mlx_groups *w)
{
    if (!x || !w->w || (w->bits && (!w->scales || !w->biases))) return nullptr;
    return made(g, [&] {
        std::vector<mx::array> all = {w->w->a};

        if (w->bits) all.insert(all.end(), {w->scales->a, w->biases->a});
        return mlx_own_product(g->stream, x->a, all, *w, g->threads);
    });
}

mlx_ref mlx_rms_norm(mlx_context *g, mlx_ref x, mlx_ref weight, float eps)
{
    if (!x || !weight) return nullptr;
    return made(g, [&] { return mx::fast::rms_norm(x->a, weight->a, eps, g->stream); });
}

mlx_ref mlx_rope(mlx_context *g, mlx_ref x, uint32_t n_rot, bool interleaved, mlx_ref positions, mlx_ref periods)
{
    if (!x || !positions || !periods) return nullptr;
    return made(g, [&] {
        return mx::fast::rope(x->a, static_cast<int>(n_rot), interleaved, std::nullopt, 1.0f, positions->a, periods->a,
                              g->stream);
    });
}

mlx_ref mlx_attend(mlx_context *g, const mlx_attention *a)
{
    if (!a->q || !a->k || !a->v) return nullptr;
    return made(g, [&] {
        if (a->softcap > 0) return capped_attention(g->stream, *a);
        return mx::fast::scaled_dot_product_attention(
            a->q->a, a->k->a, a->v->a, a->scale, a->causal && !a->mask ? "causal" : "",
            a->mask ? std::optional<mx::array>(a->mask->a) : std::nullopt, std::nullopt, false, g->stream);
    });
}
