/* bench/gpu/bench_gpu_quant.cu - matrix products with quantised weights (cuda_linear): right, exact, fast?
 *
 *     bench_gpu_quant check      against linear_plain; every row's bits over all row counts
 *     bench_gpu_quant decode     time and share of the read bandwidth
 *     bench_gpu_quant prefill    time and TFLOP/s
 * Exit 1 if a check failed.
 */
#include "backend/cuda/linear/linear_paths.h"
#include "gpu_bench.cuh"
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

struct form {
    const char *name;
    uint32_t format, group;
    bool has_offset;
};
static const struct form FORMS[] = {{"int4 g32", CUDA_INT4, 32, false},  {"int4 g32 +", CUDA_INT4, 32, true},
                                    {"int4 g16 +", CUDA_INT4, 16, true}, {"int8 g32", CUDA_INT8, 32, false},
                                    {"int8 g16", CUDA_INT8, 16, false},  {"int8 g32 +", CUDA_INT8, 32, true},
                                    {"int8 g64 +", CUDA_INT8, 64, true}, {"e4m3 g128", CUDA_E4M3, 128, false}};

static __global__ void fill_bytes(uint32_t *p, uint64_t n, uint64_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = hash_u32(seed * 0x9E3779B97F4A7C15ull + i);
}
/* Bytes of e4m3 without NaN. */
static __global__ void clear_bit(uint32_t *p, uint64_t n)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] &= 0xFDFDFDFDu;
}
static __global__ void fill_scales(__half *p, uint64_t n, uint64_t seed, float scale, bool pairs)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        float v = scale * (1.0f + 0.3f * hash_normal(seed, i));
        p[i] = __float2half_rn(pairs && i % 2 ? -8.0f * v : v);
    }
}
/* Halves as two bf16 whose sum they are, times `times`. */
static __global__ void fill_bf16_pairs(__nv_bfloat162 *p, uint64_t n, uint64_t seed, float scale, float times)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        float v = times * __half2float(__float2half_rn(scale * (1.0f + 0.3f * hash_normal(seed, i))));
        __nv_bfloat16 high = __float2bfloat16_rn(v);
        p[i] = __halves2bfloat162(high, __float2bfloat16_rn(v - __bfloat162float(high)));
    }
}

static struct cuda_matrix make_matrix(const struct form &f, uint32_t n_out, uint32_t n_in, uint64_t seed)
{
    struct cuda_matrix m = {f.format, n_out, n_in, 0, 0, f.group, f.has_offset, false, NULL, NULL};
    m.row_stride = (n_in + cuda_row_align(&m) - 1) / cuda_row_align(&m) * cuda_row_align(&m);
    uint64_t n = (uint64_t)n_out * m.row_stride, words = n / (f.format == CUDA_INT4 ? 8 : 4);
    uint64_t n_scales = n / f.group * cuda_scale_numbers(&m);
    uint32_t *values = gpu_alloc<uint32_t>(words);
    __half *scales = gpu_alloc<__half>(n_scales);

    fill_bytes<<<1024, 256>>>(values, words, seed);
    float scale = (f.format == CUDA_INT4 ? 0.2f : 0.014f) / sqrtf(n_in);
    if (f.format == CUDA_E4M3) {
        clear_bit<<<1024, 256>>>(values, words);
        fill_bf16_pairs<<<1024, 256>>>((__nv_bfloat162 *)scales, n_scales / 2, seed + 1, 1.0f / 160 / sqrtf(n_in),
                                       0x1p120f);
    } else if (f.format == CUDA_INT4 && !f.has_offset)
        fill_bf16_pairs<<<1024, 256>>>((__nv_bfloat162 *)scales, n_scales / 2, seed + 1, scale, 1.0f);
    else
        fill_scales<<<1024, 256>>>(scales, n_scales, seed + 1, scale, f.has_offset);
    m.values = values, m.scales = scales;
    return m;
}
static void free_matrix(const struct cuda_matrix &m)
{
    cudaFree((void *)m.values);
    cudaFree((void *)m.scales);
}

static int check_form(const struct cuda_launch &l, const struct form &f, const uint16_t *x, uint32_t n_in,
                      uint32_t n_out0, uint32_t n_out1)
{
    static const uint32_t counts[] = {1, 5, 8, 9, 16, 31, 33, 64, 65, 127, 129, 300, 1000};
    const uint32_t most = 1400, width = n_out0 + n_out1, glu_width = n_out0 == n_out1 ? n_out0 : 0;
    struct cuda_matrix m[2] = {make_matrix(f, n_out0, n_in, 3), make_matrix(f, n_out1, n_in, 4)};
    float *out = gpu_alloc<float>((uint64_t)most * width), *bias = gpu_alloc<float>(width);
    uint16_t *glu = gpu_alloc<uint16_t>((uint64_t)most * (glu_width + 1));
    std::vector<float> want((uint64_t)most * width), got(want.size()), plain(want.size());
    std::vector<uint16_t> glu_want((uint64_t)most * glu_width), glu_got(glu_want.size());
    struct cuda_linear_args a = {most, x, n_in, 2, {{&m[0], bias, out, width}, {&m[1], NULL, out + n_out0, width}}};
    struct cuda_linear_glu_args g = {most, x, n_in, &m[0], &m[1], CUDA_SILU, glu, NULL, NULL};
    int n_bad = 0;
    double worst = 0;

    fill_f32<<<64, 256>>>(bias, width, 9, 1.0f);
    GPU((cudaError_t)linear_plain_launch(&l, &a));
    GPU(cudaMemcpy(plain.data(), out, plain.size() * 4, cudaMemcpyDeviceToHost));
    for (int i = -1; i < (int)(sizeof(counts) / sizeof(counts[0])); i++) {
        uint32_t n = a.n_rows = g.n_rows = i < 0 ? most : counts[i];
        GPU(cudaMemset(out, 0xFF, (uint64_t)most * width * 4));
        GPU((cudaError_t)cuda_linear(&l, &a));
        GPU(cudaMemcpy(got.data(), out, (uint64_t)n * width * 4, cudaMemcpyDeviceToHost));
        if (glu_width) {
            GPU((cudaError_t)cuda_linear_glu(&l, &g));
            GPU(cudaMemcpy(glu_got.data(), glu, (uint64_t)n * glu_width * 2, cudaMemcpyDeviceToHost));
        }
        if (i < 0) want = got, glu_want = glu_got;
        if (memcmp(want.data(), got.data(), (uint64_t)n * width * 4) ||
            memcmp(glu_want.data(), glu_got.data(), (uint64_t)n * glu_width * 2))
            printf("FAIL %s: %u rows differ\n", f.name, n), n_bad++;
    }
    for (size_t i = 0; i < want.size(); i++) {
        double d = fabs((double)want[i] - (double)plain[i]);
        worst = d > worst || d != d ? (d != d ? 1e30 : d) : worst;
    }
    n_bad += worst > 2e-3;
    printf("%-11s [%u + %u, %u]: error %.2g, %s\n", f.name, n_out0, n_out1, n_in, worst, n_bad ? "FAIL" : "equal bits");
    free_matrix(m[0]), free_matrix(m[1]);
    cudaFree(out), cudaFree(bias), cudaFree(glu);
    return n_bad;
}

static void time_forms(struct cuda_launch l, const uint16_t *x, bool decode)
{
    static const struct {
        const char *name;
        uint32_t n_out, n_in;
        bool glu;
    } shapes[] = {{"8B qkv", 6144, 4096, false},
                  {"8B o", 4096, 4096, false},
                  {"8B gate_up", 12288, 4096, true},
                  {"8B down", 4096, 12288, false},
                  {"8B head", 151936, 4096, false}};
    std::vector<uint32_t> rows =
        decode ? std::vector<uint32_t>{1, 8, 16, 32, 64, 128} : std::vector<uint32_t>{512, 2048};
    float *out = gpu_alloc<float>(2048ull * 24576 + 128ull * 151936);
    uint64_t room = 2ull << 30;
    void *big = gpu_alloc<uint8_t>(room);
    double gbs = (fill_f32<<<1024, 256>>>((float *)big, room / 4, 3, 1), read_bandwidth(big, room));

    cudaFree(big);
    printf("read bandwidth %.0f GB/s\n%-22s", gbs, "rows");
    for (uint32_t n : rows) printf("%16u", n);
    printf("\n");
    for (const struct form &f : {FORMS[0], FORMS[1], FORMS[3], FORMS[4], FORMS[6], FORMS[7]})
        for (const auto &s : shapes) {
            if (!decode && s.n_out > 100000) continue;
            uint64_t weights = (uint64_t)s.n_out * s.n_in * (s.glu ? 2 : 1);
            bool two = f.has_offset || f.format != CUDA_INT8;
            double bytes = weights * ((f.format == CUDA_INT4 ? 0.5 : 1.0) + (two ? 4.0 : 2.0) / f.group);
            uint32_t sets = decode ? (uint32_t)(300e6 / bytes) + 1 : 1;
            std::vector<struct cuda_matrix> m;
            for (uint32_t i = 0; i < sets * (s.glu ? 2 : 1); i++) m.push_back(make_matrix(f, s.n_out, s.n_in, i));
            printf("%-10s %-11s", f.name, s.name);
            for (uint32_t n : rows) {
                double us = time_us(decode ? (int)std::max(sets, 8u) : 4, 9, [&](int i, cudaStream_t stream) {
                    l.stream = stream;
                    i %= (int)sets;
                    struct cuda_linear_args a = {n, x, s.n_in, 1, {{&m[i], NULL, out, s.n_out}}};
                    struct cuda_linear_glu_args g = {
                        n,    x,   s.n_in, &m[2 * i % m.size()], &m[(2 * i + 1) % m.size()], CUDA_SILU, (uint16_t *)out,
                        NULL, NULL};
                    GPU((cudaError_t)(s.glu ? cuda_linear_glu(&l, &g) : cuda_linear(&l, &a)));
                });
                if (decode)
                    printf("%8.1f us %3.0f %%", us, 100.0 * bytes / us / 1e3 / gbs);
                else
                    printf("%9.0f us %4.0f", us, 2.0 * weights * n / us / 1e6);
            }
            printf("\n");
            for (const struct cuda_matrix &w : m) free_matrix(w);
        }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    struct cuda_launch l = {};
    uint16_t *x = gpu_alloc<uint16_t>(2048ull * 12288);
    int n_bad = 0;

    l.n_sms = 132, l.compute = 90, l.pdl = true;
    fill_bf16<<<1024, 256>>>((__nv_bfloat16 *)x, 2048ull * 12288, 5, 1.0f);
    if (strcmp(what, "check")) {
        time_forms(l, x, !strcmp(what, "decode"));
        return 0;
    }
    for (const struct form &f : FORMS) {
        n_bad += check_form(l, f, x, 576, 192, 130);
        n_bad += check_form(l, f, x, 896, 500, 500);
        n_bad += check_form(l, f, x, 4096, 1024, 1024);
    }
    return n_bad > 0;
}
