/* bench/gpu/bench_gpu_linear.cu - the matrix product of backend/cuda/linear/linear_hopper.h: right, exact, fast?
 *
 *     bench_gpu_linear check     against double sums, odd shapes and epilogues; every row's bits over all row counts
 *     bench_gpu_linear decode [SHAPE [ROWS ..]]
 *                                time and share of the read bandwidth, 1 .. 256 rows, shapes of real models, or one
 *     bench_gpu_linear prefill [SHAPE [ROWS ..]]
 *                                time and TFLOP/s, 512 .. 8192 rows
 *     bench_gpu_linear cost      what one order of sums for all row counts costs: against the best number of k segments
 *                                for each row count by itself, over a step of Qwen3-8B
 * Exit 1 if a check failed.
 */
#include "backend/cuda/linear/linear_hopper.h"
#include "gpu_bench.cuh"
#include <math.h>
#include <string.h>

struct shape {
    const char *name;
    uint32_t n_in, n_outs, n_out[3];
    bool glu;
};
static const struct shape REAL[] = {
    {"0.6B qkv", 1024, 3, {2048, 1024, 1024}, false},
    {"0.6B o", 2048, 1, {1024}, false},
    {"0.6B gate_up", 1024, 2, {3072, 3072}, true},
    {"0.6B down", 3072, 1, {1024}, false},
    {"8B qkv", 4096, 3, {4096, 1024, 1024}, false},
    {"8B o", 4096, 1, {4096}, false},
    {"8B gate_up", 4096, 2, {12288, 12288}, true},
    {"8B down", 12288, 1, {4096}, false},
    {"14B qkv", 5120, 3, {5120, 1024, 1024}, false},
    {"14B o", 5120, 1, {5120}, false},
    {"14B gate_up", 5120, 2, {17408, 17408}, true},
    {"14B down", 17408, 1, {5120}, false},
    {"8B head", 4096, 1, {151936}, false},
    {"Llama gate_up", 4096, 2, {14336, 14336}, true},
    {"Llama down", 14336, 1, {4096}, false},
};

static __global__ void reference(const __nv_bfloat16 *x, uint32_t x_stride, const __nv_bfloat16 *w, uint32_t n_in,
                                 uint32_t n_out, uint32_t n_rows, const float *bias, float *out)
{
    uint32_t o = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    double sum = 0;

    if (o >= n_out || r >= n_rows) return;
    for (uint32_t k = 0; k < n_in; k++)
        sum += (double)__bfloat162float(x[(uint64_t)r * x_stride + k]) *
               (double)__bfloat162float(w[(uint64_t)o * n_in + k]);
    out[(uint64_t)r * n_out + o] = (float)(sum + (bias ? bias[o] : 0));
}

/* One product with memory of its own. */
struct product {
    struct linear_hopper a;
    uint32_t width; /* of one output row, all outputs */
    float *out;
    __nv_bfloat16 *w[3];
    product(const struct shape &s, const __nv_bfloat16 *x, uint32_t max_rows, enum linear_epilogue e, const float *bias)
    {
        memset(&a, 0, sizeof(a));
        a.x = x, a.n_in = s.n_in, a.x_stride = s.n_in, a.n_outs = s.n_outs, a.epilogue = e;
        width = e >= EPI_SILU_GLU ? s.n_out[0] : s.n_out[0] + s.n_out[1] + s.n_out[2];
        out = gpu_alloc<float>((uint64_t)max_rows * width);
        for (uint32_t i = 0, col = 0; i < s.n_outs; i++) {
            w[i] = gpu_alloc<__nv_bfloat16>((uint64_t)s.n_out[i] * s.n_in);
            fill_bf16<<<1024, 256>>>(w[i], (uint64_t)s.n_out[i] * s.n_in, 77 + i, 1.0f / sqrtf(s.n_in));
            a.outs[i] = {w[i], bias, out + col, s.n_out[i], s.n_in, width};
            col += s.n_out[i];
        }
    }
    ~product()
    {
        cudaFree(out);
        for (uint32_t i = 0; i < a.n_outs; i++) cudaFree(w[i]);
    }
    void run(uint32_t n_rows)
    {
        a.n_rows = n_rows;
        GPU(linear_hopper_launch(&a, 0));
        GPU(cudaDeviceSynchronize());
    }
};

static double glu_host(enum linear_epilogue e, double g, double u)
{
    if (e == EPI_SILU_GLU) return g / (1 + exp(-g)) * u;
    return 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
}

/* The largest |difference| from the reference over all outputs of n_rows rows. */
static double worst_error(product &p, const struct shape &s, uint32_t n_rows, enum linear_epilogue e, const float *bias)
{
    std::vector<float> got((uint64_t)n_rows * p.width), want[3];
    double worst = 0;

    GPU(cudaMemcpy(got.data(), p.out, got.size() * 4, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < s.n_outs; i++) {
        float *ref = gpu_alloc<float>((uint64_t)n_rows * s.n_out[i]);
        reference<<<dim3((s.n_out[i] + 127) / 128, n_rows), 128>>>((const __nv_bfloat16 *)p.a.x, p.a.x_stride, p.w[i],
                                                                   s.n_in, s.n_out[i], n_rows, bias, ref);
        want[i].resize((uint64_t)n_rows * s.n_out[i]);
        GPU(cudaMemcpy(want[i].data(), ref, want[i].size() * 4, cudaMemcpyDeviceToHost));
        cudaFree(ref);
    }
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0, col = 0; i < (e >= EPI_SILU_GLU ? 1 : s.n_outs); col += s.n_out[i++])
            for (uint32_t o = 0; o < s.n_out[i]; o++) {
                uint64_t at = (uint64_t)r * s.n_out[i] + o;
                double v = want[i][at], g = got[(uint64_t)r * p.width + col + o];
                if (e >= EPI_SILU_GLU) v = glu_host(e, v, want[1][at]);
                if (e == EPI_ADD) v += 1.0;
                double d = fabs(g - v);
                worst = d > worst || d != d ? (d != d ? 1e30 : d) : worst;
            }
    return worst;
}

static __global__ void set_f32(float *p, uint64_t n, float v)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = v;
}

/* All row counts against the most: each row's bytes, of f32 outputs, and of bf16 after a GLU. */
static int check_bits(const struct shape &s, const __nv_bfloat16 *x, enum linear_epilogue e, uint32_t most)
{
    static const uint32_t counts[] = {1,   2,   7,   8,   9,   16,  17,  32,  33,  64,  65,  96,
                                      100, 128, 129, 160, 192, 200, 224, 225, 256, 257, 384, 1000};
    product p(s, x, most, e, NULL);
    int n_bad = 0;

    for (uint32_t bytes = 4; bytes >= (e >= EPI_SILU_GLU ? 2u : 4u); bytes -= 2) {
        std::vector<uint8_t> want((uint64_t)most * p.width * bytes), got(want.size());

        p.a.out_bf16 = bytes == 2;
        set_f32<<<1024, 256>>>(p.out, (uint64_t)most * p.width, e == EPI_ADD ? 1.0f : NAN);
        p.run(most);
        GPU(cudaMemcpy(want.data(), p.out, want.size(), cudaMemcpyDeviceToHost));
        for (uint32_t n : counts) {
            if (n > most) continue;
            set_f32<<<1024, 256>>>(p.out, (uint64_t)most * p.width, e == EPI_ADD ? 1.0f : NAN);
            p.run(n);
            GPU(cudaMemcpy(got.data(), p.out, (uint64_t)n * p.width * bytes, cudaMemcpyDeviceToHost));
            if (memcmp(got.data(), want.data(), (uint64_t)n * p.width * bytes)) {
                uint64_t diff = 0;
                for (uint64_t i = 0; i < (uint64_t)n * p.width; i++)
                    diff += memcmp(&got[i * bytes], &want[i * bytes], bytes) != 0;
                printf("FAIL %s: %u rows differ from %u rows in %llu values of %u bytes\n", s.name, n, most,
                       (unsigned long long)diff, bytes);
                n_bad++;
            }
        }
    }
    uint32_t seg, n_segs = linear_segments(s.n_out[0] + s.n_out[1] + s.n_out[2], s.n_in, &seg);
    printf("bits %-14s%s %u segments of %u: %s\n", s.name, e == EPI_ADD ? ", added" : "", n_segs, seg * 64,
           n_bad ? "FAIL" : "equal for all row counts");
    return n_bad;
}

/* out[r, o] by mma.sync m16n8k16, one warp for 16 rows of w and 8 of x: segments of seg k, added left to right. */
static __global__ void by_mma_sync(const __nv_bfloat16 *x, const __nv_bfloat16 *w, uint32_t n_in, uint32_t n_out,
                                   uint32_t n_rows, uint32_t seg, float *out)
{
    const uint32_t lane = threadIdx.x, o = blockIdx.x * 16 + lane / 4, r = blockIdx.y * 8 + lane / 4, c = lane % 4 * 2;
    float total[4], d[4];

    for (uint32_t first = 0; first < n_in; first += seg) {
        d[0] = d[1] = d[2] = d[3] = 0;
        for (uint32_t k = first; k < min(first + seg, n_in); k += 16) {
            const uint32_t *w0 = (const uint32_t *)(w + (uint64_t)o * n_in + k + c), *w8 = w0 + 8 * n_in / 2;
            const uint32_t *x0 = (const uint32_t *)(x + (uint64_t)r * n_in + k + c);
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
                         " {%0,%1,%2,%3};"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                         : "r"(w0[0]), "r"(w8[0]), "r"(w0[4]), "r"(w8[4]), "r"(x0[0]), "r"(x0[4]));
        }
        for (int i = 0; i < 4; i++) total[i] = first ? total[i] + d[i] : d[i];
    }
    for (int i = 0; i < 4; i++) out[(uint64_t)(blockIdx.y * 8 + c + i % 2) * n_out + o + i / 2 * 8] = total[i];
}

/* wgmma against mma.sync, and with tokens and weights exchanged (one segment both ways): equal bits. */
static int check_orders(const __nv_bfloat16 *x)
{
    static const struct shape shapes[] = {
        {"o", 4096, 1, {1024}, false}, {"down", 3072, 1, {512}, false}, {"short", 192, 1, {512}, false}};
    const uint32_t n_rows = 512;
    int n_bad = 0;

    for (const struct shape &s : shapes) {
        uint32_t seg, n_segs = linear_segments(s.n_out[0], s.n_in, &seg);
        product p(s, x, n_rows, EPI_STORE, NULL);
        std::vector<float> got((uint64_t)n_rows * p.width), want(got.size());
        float *out = gpu_alloc<float>(want.size());

        p.run(n_rows);
        GPU(cudaMemcpy(got.data(), p.out, got.size() * 4, cudaMemcpyDeviceToHost));
        by_mma_sync<<<dim3(p.width / 16, n_rows / 8), 32>>>(x, p.w[0], s.n_in, p.width, n_rows, seg * 64, out);
        GPU(cudaMemcpy(want.data(), out, want.size() * 4, cudaMemcpyDeviceToHost));
        bool same = !memcmp(got.data(), want.data(), got.size() * 4);
        printf("mma.sync and wgmma, %s, %u segments: %s\n", s.name, n_segs, same ? "equal bits" : "FAIL");
        n_bad += !same;
        if (n_segs == 1) {
            p.a.x = p.w[0], p.a.outs[0].w = x, p.a.outs[0].n_out = p.a.outs[0].stride = n_rows;
            p.run(s.n_out[0]);
            GPU(cudaMemcpy(want.data(), p.out, want.size() * 4, cudaMemcpyDeviceToHost));
            for (uint64_t i = 0; i < got.size() && same; i++)
                same = !memcmp(&got[i], &want[i % p.width * n_rows + i / p.width], 4);
            printf("weights and tokens exchanged: %s\n", same ? "equal bits" : "FAIL");
            n_bad += !same;
        }
        cudaFree(out);
    }
    return n_bad;
}

static int check(const __nv_bfloat16 *x, const float *bias)
{
    static const struct shape odd[] = {
        {"tiny", 64, 1, {64}, false},
        {"odd", 576, 3, {576, 192, 192}, false},
        {"odd n_out", 1024, 2, {129, 130}, false},
        {"k tail", 200, 1, {300}, false},
        {"glu odd", 640, 2, {1000, 1000}, true},
        {"long k", 8200, 1, {256}, false},
        {"one segment", 512, 1, {8192}, false},
        {"two segments", 1992, 2, {2056, 1024}, false},
        {"two, odd", 1992, 2, {2049, 1030}, false},
        {"two, of 96", 1992, 3, {3008, 1104, 1104}, false},
        {"of 96, odd", 1992, 3, {3001, 1100, 1098}, false},
        {"of 48, alone", 1024, 3, {3001, 1100, 1000}, false},
        {"glu of 176", 256, 2, {17400, 17400}, true},
        {"glu of 192", 256, 2, {12664, 12664}, true},
        {"glu of 256", 192, 2, {14312, 14312}, true},
    };
    static const uint32_t rows[] = {1, 5, 8, 13, 31, 64, 77, 128, 150, 256, 300, 515};
    int n_bad = 0;

    for (const struct shape &s : odd)
        for (int e = s.glu ? EPI_SILU_GLU : EPI_STORE; e <= (s.glu ? EPI_GELU_GLU : EPI_ADD); e++)
            for (uint32_t n : rows) {
                product p(s, x, n, (enum linear_epilogue)e, bias);
                set_f32<<<64, 256>>>(p.out, (uint64_t)n * p.width, e == EPI_ADD ? 1.0f : NAN);
                p.run(n);
                double d = worst_error(p, s, n, (enum linear_epilogue)e, s.glu ? NULL : bias);
                if (d > 2e-4 && ++n_bad) printf("FAIL %s epilogue %d rows %u: error %g\n", s.name, e, n, d);
            }
    printf("reference: %s\n", n_bad ? "FAIL" : "all shapes within 2e-4");
    n_bad += check_orders(x);
    for (const struct shape &s : odd) n_bad += check_bits(s, x, s.glu ? EPI_SILU_GLU : EPI_STORE, 1500);
    for (const struct shape &s : REAL)
        if (s.n_out[0] < 100000) n_bad += check_bits(s, x, s.glu ? EPI_SILU_GLU : EPI_STORE, 1500);
    for (const struct shape &s : REAL)
        if (s.n_out[0] < 100000 && s.n_outs == 1) n_bad += check_bits(s, x, EPI_ADD, 1500);
    return n_bad;
}

/* Times with `copies` sets of weights in turn (more bytes than the L2 holds), outputs f32, bf16 after a GLU. */
static double time_shape(const struct shape &s, const __nv_bfloat16 *x, const __nv_bfloat16 *weights, uint64_t room,
                         uint32_t n_rows, void *out, uint32_t n_segs)
{
    uint64_t n_w = (uint64_t)(s.n_out[0] + s.n_out[1] + s.n_out[2]) * s.n_in;
    int sets = (int)std::max<uint64_t>(1, std::min<uint64_t>(room / (2 * n_w), 400000000 / (2 * n_w) + 1));
    uint32_t width = s.glu ? s.n_out[0] : s.n_out[0] + s.n_out[1] + s.n_out[2];
    int launches = n_rows > 256 ? 4 : std::max(sets, 8);

    return time_us(launches, 9, [&](int i, cudaStream_t stream) {
        struct linear_hopper a;
        memset(&a, 0, sizeof(a));
        a.x = x, a.n_in = a.x_stride = s.n_in, a.n_rows = n_rows, a.n_outs = s.n_outs, a.chained = true;
        a.n_segs = n_segs;
        a.epilogue = s.glu ? EPI_SILU_GLU : EPI_STORE, a.out_bf16 = s.glu;
        const __nv_bfloat16 *w = weights + (i % sets) * n_w;
        for (uint32_t k = 0, col = 0; k < s.n_outs; w += (uint64_t)s.n_out[k] * s.n_in, col += s.n_out[k++])
            a.outs[k] = {w, NULL, (float *)out + col, s.n_out[k], s.n_in, width};
        GPU(linear_hopper_launch(&a, stream));
    });
}

/* The products of a step of Qwen3-8B: 36 layers, and the head of up to 256 rows. */
static void cost(const __nv_bfloat16 *x, const __nv_bfloat16 *w, uint64_t room, void *out)
{
    for (uint32_t n : {1, 8, 16, 32, 64, 128, 192, 256, 1024, 8192}) {
        double fixed = 0, best = 0;

        printf("%5u rows:", n);
        for (const struct shape &s : REAL) {
            const bool head = s.n_out[0] > 100000;
            if (strncmp(s.name, "8B", 2) || (head && n > 256)) continue;
            uint32_t best_segs = 0;
            double us = time_shape(s, x, w, room, n, out, 0), least = us;
            for (uint32_t segs : {1, 2, 3, 4, 6, 8}) {
                if (head && segs > 2) break;
                double t = time_shape(s, x, w, room, n, out, segs);
                if (t < least) least = t, best_segs = segs;
            }
            fixed += us * (head ? 1 : 36), best += least * (head ? 1 : 36);
            printf("  %s %.1f, best %.1f (%u)", s.name + 3, us, least, best_segs);
        }
        printf("  step %.2f ms, best %.2f ms: %.1f %%\n", fixed / 1e3, best / 1e3, 100 * (fixed / best - 1));
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    uint64_t room = 4ull << 30;
    __nv_bfloat16 *x = gpu_alloc<__nv_bfloat16>(8192ull * 17408), *w;
    float *bias = gpu_alloc<float>(200000);

    fill_bf16<<<1024, 256>>>(x, 8192ull * 17408, 5, 1.0f);
    fill_f32<<<1024, 256>>>(bias, 200000, 6, 1.0f);
    if (!strcmp(what, "check")) return check(x, bias) > 0;

    w = gpu_alloc<__nv_bfloat16>(room / 2);
    fill_bf16<<<1024, 256>>>(w, room / 2, 7, 0.02f);
    void *out = gpu_alloc<float>(8192ull * 28672);
    bool decode = !strcmp(what, "decode");
    if (!strcmp(what, "cost")) {
        cost(x, w, room, out);
        return 0;
    }
    double gbs = read_bandwidth(w, room);
    printf("read bandwidth %.0f GB/s\n%-14s", gbs, "rows");
    std::vector<uint32_t> rows =
        decode ? std::vector<uint32_t>{1, 8, 16, 32, 64, 128, 192, 256} : std::vector<uint32_t>{512, 1024, 2048, 8192};
    if (argc > 3) rows.clear();
    for (int i = 3; i < argc; i++) rows.push_back((uint32_t)atoi(argv[i]));
    for (uint32_t n : rows) printf("%16u", n);
    printf("\n");
    for (const struct shape &s : REAL) {
        if ((!decode && s.n_out[0] > 100000) || (argc > 2 && strcmp(argv[2], s.name))) continue;
        uint64_t n_w = (uint64_t)(s.n_out[0] + s.n_out[1] + s.n_out[2]) * s.n_in;
        printf("%-14s", s.name);
        for (uint32_t n : rows) {
            double us = time_shape(s, x, w, room, n, out, 0);
            if (decode)
                printf("%8.1f us %3.0f %%", us, 100.0 * 2 * n_w / us / 1e3 / gbs);
            else
                printf("%9.0f us %4.0f", us, 2.0 * n_w * n / us / 1e6);
            fflush(stdout);
        }
        printf("\n");
    }
    return 0;
}
