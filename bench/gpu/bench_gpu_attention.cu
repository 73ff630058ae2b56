/* bench/gpu/bench_gpu_attention.cu - paged attention (cuda_attention): right, exact, fast?
 *
 *     bench_gpu_attention check      against double sums; each row's bits as one run, in chunks, token by token, in
 *          batches, together with others that begin with the same pages
 *     bench_gpu_attention decode [NAME [LENGTH ..]]   time and share of the read bandwidth; bits with what comes before
 *          within attention
 *     bench_gpu_attention shared     sequences below one prefix: each by itself, and the prefix read once for all
 *     bench_gpu_attention prefill    time and TFLOP/s, outputs in bf16 alone, as a model has them
 * Exit 1 if a check failed.
 */
#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/host/cuda_sharing.h"
#include "gpu_bench.cuh"
#include "tensor/dtype.h"
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

struct config {
    uint32_t n_heads, n_kv_heads, head_dim, page_tokens, window;
    float softcap;
    int dtype;
};

static bool is_quantised(int dtype)
{
    return dtype == DTYPE_Q8_0 || dtype == DTYPE_Q4_0;
}
static uint32_t row_bytes(const struct config &c)
{
    return c.dtype == DTYPE_Q8_0 ? c.head_dim / 32 * 34 : c.dtype == DTYPE_Q4_0 ? c.head_dim / 32 * 18 : c.head_dim * 2;
}
static const char *type_name(int dtype)
{
    return dtype == DTYPE_F16 ? "f16 " : dtype == DTYPE_BF16 ? "bf16" : dtype == DTYPE_Q8_0 ? "q8_0" : "q4_0";
}

/* Sequences of one length in pages scattered over a pool; queries of all positions. */
struct world {
    struct cuda_launch l;
    struct cuda_attention_args a;
    uint32_t n_seqs, length, width;
    float *q, *out;
    uint32_t *tables;
    struct cuda_run *runs;
    world(const struct config &c, uint32_t n_seqs_, uint32_t length_, uint32_t max_rows, bool pdl = true)
        : n_seqs(n_seqs_), length(length_), width(c.n_heads * c.head_dim)
    {
        uint32_t pages = (length + c.page_tokens - 1) / c.page_tokens, row = row_bytes(c);
        uint64_t half = (uint64_t)c.n_kv_heads * c.page_tokens * row, n_pages = (uint64_t)pages * n_seqs;
        std::vector<uint32_t> table(n_pages);

        memset(&l, 0, sizeof(l)), memset(&a, 0, sizeof(a));
        l.n_sms = 132, l.compute = 90, l.smem_block_max = 227 << 10, l.pdl = pdl, l.scratch_bytes = CUDA_SCRATCH_BYTES;
        l.scratch = gpu_alloc<uint8_t>(CUDA_SCRATCH_BYTES), l.counters = gpu_alloc<uint32_t>(CUDA_N_COUNTERS);
        GPU(cudaMemset(l.counters, 0, CUDA_N_COUNTERS * 4));
        for (uint64_t i = 0; i < n_pages; i++) table[i] = (uint32_t)((i * 7919) % n_pages);
        if (n_pages % 7919 == 0) abort();
        tables = gpu_alloc<uint32_t>(n_pages);
        GPU(cudaMemcpy(tables, table.data(), n_pages * 4, cudaMemcpyHostToDevice));
        a.kv = {gpu_alloc<uint8_t>(n_pages * half * 2), half * 2, 0, half, row, row, c.page_tokens, c.dtype, c.dtype};
        q = gpu_alloc<float>((uint64_t)max_rows * width), out = gpu_alloc<float>((uint64_t)max_rows * width);
        fill_f32<<<1024, 256>>>(q, (uint64_t)max_rows * width, 11, 1.5f);
        runs = gpu_alloc<struct cuda_run>(max_rows);
        a.n_heads = c.n_heads, a.n_kv_heads = c.n_kv_heads, a.head_dim = c.head_dim, a.softcap = c.softcap;
        a.q = q, a.q_stride = a.out_stride = width, a.out = out, a.window = c.window, a.scale = 1 / sqrtf(c.head_dim);
        a.runs = runs, a.tables = tables;
    }
    ~world()
    {
        for (void *p : {(void *)l.scratch, (void *)l.counters, (void *)tables, (void *)a.kv.base, (void *)q,
                        (void *)out, (void *)runs})
            cudaFree(p);
    }
    uint32_t table_of(uint32_t seq) const { return seq * ((length + a.kv.page_tokens - 1) / a.kv.page_tokens); }
    void set_runs(const std::vector<struct cuda_run> &r)
    {
        a.n_runs = (uint32_t)r.size(), a.n_rows = a.longest_run = a.end = 0;
        for (const struct cuda_run &run : r) {
            a.n_rows = std::max(a.n_rows, run.row0 + run.n_rows), a.longest_run = std::max(a.longest_run, run.n_rows);
            a.end = std::max(a.end, run.pos0 + run.n_rows);
        }
        GPU(cudaMemcpy(runs, r.data(), r.size() * sizeof(r[0]), cudaMemcpyHostToDevice));
    }
    std::vector<float> run()
    {
        std::vector<float> got((uint64_t)a.n_rows * width);
        GPU(cudaMemset(out, 0xFF, got.size() * 4));
        int st = cuda_attention(&l, &a, NULL);
        if (st) printf("launch: %s\n", cudaGetErrorString((cudaError_t)st)), exit(1);
        GPU(cudaDeviceSynchronize());
        GPU(cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost));
        return got;
    }
};

static __global__ void fill_kv(uint8_t *base, uint64_t n, int dtype)
{
    const uint64_t block = dtype == DTYPE_Q8_0 ? 17 : 9; /* pairs of bytes */

    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        float v = hash_normal(13, i);
        if (dtype == DTYPE_F16)
            ((__half *)base)[i] = __float2half_rn(v);
        else if (dtype == DTYPE_BF16)
            ((__nv_bfloat16 *)base)[i] = __float2bfloat16_rn(v);
        else if (i % block)
            ((uint16_t *)base)[i] = (uint16_t)hash_u32(i);
        else
            ((__half *)base)[i] = __float2half_rn((2 + v) * (dtype == DTYPE_Q8_0 ? 0.006f : 0.1f));
    }
}
static __device__ double kv_at(const struct cuda_kv &kv, const uint32_t *table, uint32_t h, uint32_t t, uint32_t d,
                               bool v)
{
    const uint8_t *row = kv.base + table[t / kv.page_tokens] * kv.page_bytes + (v ? kv.v_offset : kv.k_offset) +
                         ((uint64_t)h * kv.page_tokens + t % kv.page_tokens) * kv.k_row_bytes;
    const uint8_t *block = row + d / 32 * (kv.dtype_k == DTYPE_Q8_0 ? 34 : 18);

    if (kv.dtype_k == DTYPE_F16) return (double)__half2float(((const __half *)row)[d]);
    if (kv.dtype_k == DTYPE_BF16) return (double)__bfloat162float(((const __nv_bfloat16 *)row)[d]);
    double scale = (double)__half2float(*(const __half *)block);
    if (kv.dtype_k == DTYPE_Q8_0) return scale * (int8_t)block[2 + d % 32];
    return scale * ((block[2 + d % 16] >> (d % 32 < 16 ? 0 : 4) & 15) - 8);
}
/* One thread per row, head and dim; run 0 only, double. */
static __global__ void reference(struct cuda_attention_args a, float *out)
{
    uint32_t r = blockIdx.x, h = blockIdx.y, d = threadIdx.x, kv_head = h / (a.n_heads / a.n_kv_heads);
    uint32_t pos = a.runs[0].pos0 + r, first = a.window && pos + 1 > a.window ? pos + 1 - a.window : 0;
    const uint32_t *table = a.tables + a.runs[0].table;
    const float *q = a.q + (uint64_t)r * a.q_stride + h * a.head_dim;
    double top = -1e300, sum = 0, acc = 0;

    for (uint32_t t = first; t <= pos; t++) {
        double s = 0;
        for (uint32_t i = 0; i < a.head_dim; i++) s += (double)q[i] * kv_at(a.kv, table, kv_head, t, i, false);
        s *= (double)a.scale;
        if (a.softcap > 0) s = (double)a.softcap * tanh(s / (double)a.softcap);
        double m = fmax(top, s), c = exp(top - m), p = exp(s - m);
        sum = sum * c + p, acc = acc * c + p * kv_at(a.kv, table, kv_head, t, d, true), top = m;
    }
    out[(uint64_t)r * a.out_stride + h * a.head_dim + d] = (float)(acc / sum);
}

static bool same(const std::vector<float> &want, uint32_t at, const std::vector<float> &got, uint32_t from, uint32_t n,
                 uint32_t width)
{
    return !memcmp(&want[(uint64_t)at * width], &got[(uint64_t)from * width], (uint64_t)n * width * 4);
}

/* All rows of a sequence as one run; then in chunks and one by one: equal bytes. */
static int check_one(const struct config &c)
{
    const uint32_t length = 700;
    world w(c, 3, length, length);
    std::vector<float> want, ref((uint64_t)length * w.width);
    int n_bad = 0;
    double worst = 0;

    fill_kv<<<1024, 256>>>(w.a.kv.base, w.a.kv.page_bytes / 2 * (w.table_of(3)), c.dtype);
    w.set_runs({{0, length, 0, w.table_of(1)}});
    want = w.run();
    float *ref_gpu = gpu_alloc<float>(ref.size());
    reference<<<dim3(length, c.n_heads), c.head_dim>>>(w.a, ref_gpu);
    GPU(cudaMemcpy(ref.data(), ref_gpu, ref.size() * 4, cudaMemcpyDeviceToHost));
    cudaFree(ref_gpu);
    for (size_t i = 0; i < ref.size(); i++) {
        double d = fabs((double)want[i] - (double)ref[i]);
        worst = d > worst || d != d ? (d != d ? 1e30 : d) : worst;
    }
    n_bad += worst > (c.dtype == DTYPE_BF16 ? 4e-2 : 6e-3);

    const float *q = w.a.q;
    for (uint32_t at = 0, i = 0; at < length; i++) { /* chunks of odd sizes */
        uint32_t n = std::min(length - at, hash_u32(i) % 90 + 1);
        w.a.q = q + (uint64_t)at * w.width;
        w.set_runs({{0, n, at, w.table_of(1)}});
        std::vector<float> got = w.run();
        if (!same(want, at, got, 0, n, w.width)) n_bad++;
        at += n;
    }
    for (uint32_t batch : {1u, 65u, length}) { /* rows as runs of their own: alone, 65, all of them */
        for (uint32_t at = 0; at < length; at += batch == 1 ? 37 : batch) {
            uint32_t n = std::min(batch, length - at);
            std::vector<struct cuda_run> runs;
            w.a.q = q + (uint64_t)at * w.width;
            for (uint32_t i = 0; i < n; i++) runs.push_back({i, 1, at + i, w.table_of(1)});
            w.set_runs(runs);
            if (!same(want, at, w.run(), 0, n, w.width)) n_bad++;
        }
    }
    { /* long and short runs together, rows 100 .. */
        std::vector<struct cuda_run> runs;
        uint32_t row = 0;
        w.a.q = q + 100ull * w.width;
        for (uint32_t i = 0; row < 500; i++) {
            uint32_t n = i % 3 ? 1 : 40 + i;
            runs.push_back({row, n, 100 + row, w.table_of(1)});
            row += n;
        }
        w.set_runs(runs);
        if (!same(want, 100, w.run(), 0, row, w.width)) n_bad++;
    }
    w.a.q = q;
    printf("attention %s %2u/%u x %3u, pages of %u, window %u, cap %.0f: error %.2g, %s\n", type_name(c.dtype),
           c.n_heads, c.n_kv_heads, c.head_dim, c.page_tokens, c.window, c.softcap, worst,
           n_bad ? "FAIL" : "equal bits in runs, chunks, batches");
    return n_bad;
}

/* What runs share, on the device. */
struct shared_runs {
    uint8_t *memory;
    struct cuda_shared view;
    uint64_t saved;
    shared_runs(const struct cuda_run *runs, uint32_t n_runs, const std::vector<uint32_t> &tables, uint32_t page_tokens)
    {
        uint64_t n = cuda_sharing_bytes(n_runs);
        std::vector<uint64_t> host((n + 7) / 8);

        saved = cuda_sharing_make(runs, n_runs, tables.data(), page_tokens, host.data());
        memory = gpu_alloc<uint8_t>(n);
        GPU(cudaMemcpy(memory, host.data(), n, cudaMemcpyHostToDevice));
        view = cuda_sharing_view(memory, n_runs);
    }
    ~shared_runs() { cudaFree(memory); }
};

/* Sequences of random lengths, each beginning with some pages of an earlier one or none; short runs, a few long ones:
 * the same bytes with what they share found, and without. */
static int check_shared(const struct config &c, uint32_t n_seqs, uint32_t length, uint32_t seed)
{
    const uint32_t pages = (length + c.page_tokens - 1) / c.page_tokens;
    world w(c, n_seqs, length, n_seqs * 4 + 200);
    std::vector<uint32_t> table(n_seqs * pages);
    std::vector<struct cuda_run> runs;
    uint32_t row = 0;

    fill_kv<<<1024, 256>>>(w.a.kv.base, w.a.kv.page_bytes / 2 * (w.table_of(n_seqs)), c.dtype);
    for (uint32_t i = 0; i < n_seqs; i++) {
        const uint32_t r = hash_u32(seed * 1000 + i), n_rows = r % 16 ? 1 : r / 16 % 4 ? r / 64 % 5 + 1 : 40;
        const uint32_t shared = i && r / 1024 % 8 ? hash_u32(r) % (pages + 1) : 0, from = i ? hash_u32(r + 1) % i : 0;

        for (uint32_t k = 0; k < pages; k++)
            table[i * pages + k] = k < shared ? table[from * pages + k] : hash_u32(r + 2 + k) % (n_seqs * pages);
        const uint32_t pos0 = r / 8192 % 5 ? length - n_rows - r / 65536 % 150 : hash_u32(r + 3) % (length - n_rows);

        runs.push_back({row, n_rows, pos0, i * pages});
        row += n_rows;
        if (row > n_seqs * 4 + 150) break;
    }
    GPU(cudaMemcpy(w.tables, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
    w.set_runs(runs);
    std::vector<float> want = w.run();
    shared_runs shared(runs.data(), (uint32_t)runs.size(), table, c.page_tokens);
    w.a.shared = shared.view;
    int n_bad = 0;
    for (int i = 0; i < 3; i++) n_bad += !same(want, 0, w.run(), 0, w.a.n_rows, w.width);
    for (float v : want) n_bad += v != v;
    printf("shared    %s %2u/%u x %3u, pages of %2u, window %3u, cap %2.0f: %3u runs below %4u, %5llu segments not"
           " read, %s\n",
           type_name(c.dtype), c.n_heads, c.n_kv_heads, c.head_dim, c.page_tokens, c.window, c.softcap, w.a.n_runs,
           length, (unsigned long long)shared.saved, n_bad ? "FAIL" : "equal bits");
    return n_bad;
}

static int check_all_shared(void)
{
    static const struct config configs[] = {
        {32, 8, 128, 16, 0, 0, DTYPE_F16},  {16, 8, 128, 16, 0, 0, DTYPE_BF16}, {9, 3, 64, 16, 0, 0, DTYPE_F16},
        {14, 2, 64, 32, 0, 0, DTYPE_BF16},  {4, 4, 64, 64, 0, 30, DTYPE_BF16},  {32, 2, 128, 8, 5000, 50, DTYPE_F16},
        {12, 2, 128, 128, 0, 0, DTYPE_F16}, {8, 2, 128, 16, 300, 0, DTYPE_F16}, {4, 1, 256, 16, 0, 0, DTYPE_F16},
        {8, 2, 128, 16, 0, 0, DTYPE_Q8_0},
    };
    int n_bad = 0;

    for (const struct config &c : configs) {
        for (uint32_t i = 0; i < 6; i++)
            n_bad +=
                check_shared(c, 2 + hash_u32(i * 77 + c.n_heads) % 40, 200 + hash_u32(i) % 2000, i * 10 + c.n_heads);
        n_bad += check_shared(c, 150, 1000, c.n_heads);
    }
    n_bad += check_shared(configs[0], 16, 20000, 3);
    return n_bad;
}

static int check(void)
{
    static const struct config configs[] = {
        {8, 2, 128, 16, 0, 0, DTYPE_F16},    {16, 8, 128, 16, 0, 0, DTYPE_BF16}, {9, 3, 64, 16, 0, 0, DTYPE_F16},
        {14, 2, 64, 32, 0, 0, DTYPE_BF16},   {4, 1, 256, 16, 100, 0, DTYPE_F16}, {4, 4, 256, 64, 0, 30, DTYPE_BF16},
        {32, 2, 128, 8, 300, 50, DTYPE_F16}, {3, 3, 64, 16, 1, 0, DTYPE_F16},    {8, 2, 128, 16, 0, 0, DTYPE_Q8_0},
        {9, 3, 64, 16, 100, 0, DTYPE_Q8_0},  {4, 1, 256, 16, 0, 0, DTYPE_Q8_0},  {32, 2, 128, 32, 0, 50, DTYPE_Q4_0},
        {3, 3, 64, 8, 0, 0, DTYPE_Q4_0},     {8, 2, 64, 1, 0, 0, DTYPE_Q8_0},    {4, 2, 128, 4, 0, 0, DTYPE_Q4_0},
    };
    int n_bad = 0;

    for (const struct config &c : configs) n_bad += check_one(c);
    return n_bad + check_all_shared();
}

struct timing {
    const char *name;
    struct config c;
    uint32_t n_seqs, length, shortest;
};

/* What qkv_rope_write has for the last rows of sequences. */
struct fresh_rows {
    struct cuda_qkv_args f;
    fresh_rows(const world &w, const std::vector<struct cuda_run> &runs) : f()
    {
        uint32_t n = (uint32_t)runs.size(), tokens = w.a.kv.page_tokens, kv_width = w.a.n_kv_heads * w.a.head_dim;
        std::vector<uint32_t> all(w.table_of(w.n_seqs)), positions(n), pages(n), slots(n);

        GPU(cudaMemcpy(all.data(), w.tables, all.size() * 4, cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < n; i++)
            positions[i] = runs[i].pos0, pages[i] = all[runs[i].table + runs[i].pos0 / tokens],
            slots[i] = runs[i].pos0 % tokens;
        f.n_heads = w.a.n_heads, f.n_kv_heads = w.a.n_kv_heads, f.head_dim = f.n_rot = w.a.head_dim;
        f.q = w.q, f.q_stride = w.width, f.k_stride = f.v_stride = kv_width;
        f.k = gpu_alloc<float>((uint64_t)n * kv_width), f.v = f.k;
        fill_f32<<<1024, 256>>>(f.k, (uint64_t)n * kv_width, 17, 1);
        float *ones = gpu_alloc<float>(f.head_dim);
        fill_f32<<<1, 256>>>(ones, f.head_dim, 19, 0.01f);
        f.q_norm = f.k_norm = f.inv_freq = ones, f.norm_eps = 1e-6f, f.mscale = 1, f.half_split = true, f.kv = w.a.kv;
        f.positions = sent(positions), f.row_page = sent(pages), f.row_slot = sent(slots);
    }
    static const uint32_t *sent(const std::vector<uint32_t> &v)
    {
        uint32_t *p = gpu_alloc<uint32_t>(v.size());
        GPU(cudaMemcpy(p, v.data(), v.size() * 4, cudaMemcpyHostToDevice));
        return p;
    }
    ~fresh_rows()
    {
        for (const void *p : {(const void *)f.k, (const void *)f.q_norm, (const void *)f.positions,
                              (const void *)f.row_page, (const void *)f.row_slot})
            cudaFree((void *)p);
    }
    struct cuda_qkv_args at(uint32_t row, uint32_t n) const
    {
        struct cuda_qkv_args g = f;
        g.n_rows = n, g.positions += row, g.row_page += row, g.row_slot += row;
        return g;
    }
};

/* Norm, RoPE and KV write within attention, and before it: equal bytes? The pages hold something else until then. */
static bool fused_is_same(world &w, const struct cuda_qkv_args &first)
{
    struct cuda_qkv_args before = first;
    const float *q = w.a.q;
    uint64_t n = (uint64_t)w.a.n_rows * w.width;
    std::vector<float> within(n), after;

    GPU(cudaMemset(w.out, 0xFF, n * 4));
    GPU((cudaError_t)cuda_attention(&w.l, &w.a, &first));
    GPU(cudaDeviceSynchronize());
    GPU(cudaMemcpy(within.data(), w.out, n * 4, cudaMemcpyDeviceToHost));
    before.q = gpu_alloc<float>(n);
    GPU(cudaMemcpy(before.q, q, n * 4, cudaMemcpyDeviceToDevice));
    GPU((cudaError_t)cuda_qkv_rope_write(&w.l, &before));
    w.a.q = before.q;
    after = w.run();
    w.a.q = q;
    cudaFree(before.q);
    return !memcmp(within.data(), after.data(), n * 4);
}

static bool time_one(const struct timing &t, double gbs)
{
    uint64_t bytes = 0, token = 2ull * t.c.n_kv_heads * row_bytes(t.c);
    uint32_t mean = t.shortest ? (t.length + t.shortest) / 2 : t.length;
    uint32_t sets = (uint32_t)std::min<uint64_t>(64, 300000000 / (token * mean * t.n_seqs) + 1);
    world w(t.c, t.n_seqs * sets, t.length, t.n_seqs * sets);
    std::vector<struct cuda_run> runs;
    double us[2];

    fill_kv<<<1024, 256>>>(w.a.kv.base, w.a.kv.page_bytes / 2 * (uint64_t)w.table_of(w.n_seqs), t.c.dtype);
    for (uint32_t s = 0; s < sets; s++)
        for (uint32_t i = 0; i < t.n_seqs; i++) {
            uint32_t n = t.shortest ? t.shortest + hash_u32(i) % (t.length - t.shortest) : t.length;
            runs.push_back({i, 1, n - 1, w.table_of(s * t.n_seqs + i)});
            bytes += s ? 0 : token * n;
        }
    w.set_runs(runs);
    w.a.n_runs = w.a.n_rows = t.n_seqs;
    fresh_rows fresh(w, runs);
    const bool ok = is_quantised(t.c.dtype) || fused_is_same(w, fresh.at(0, t.n_seqs));
    for (int fused = 0; fused < 2; fused++)
        us[fused] = time_us((int)std::max(sets, 8u), 9, [&](int i, cudaStream_t stream) {
            struct cuda_attention_args a = w.a;
            struct cuda_qkv_args f = fresh.at((uint32_t)i % sets * t.n_seqs, t.n_seqs);
            w.l.stream = stream, a.runs = w.runs + (uint32_t)i % sets * t.n_seqs;
            GPU((cudaError_t)cuda_attention(&w.l, &a, fused ? &f : NULL));
        });
    printf("decode  %-15s %7.1f us %4.0f %% of bandwidth; with norm, RoPE, KV write %7.1f us %4.0f %%, %s\n", t.name,
           us[0], 100.0 * bytes / us[0] / 1e3 / gbs, us[1], 100.0 * bytes / us[1] / 1e3 / gbs,
           ok ? "equal bits" : "FAIL");
    return ok;
}

static double measured_bandwidth(void)
{
    uint64_t room = 2ull << 30;
    uint8_t *big = gpu_alloc<uint8_t>(room);

    fill_f32<<<1024, 256>>>((float *)big, room / 4, 3, 1);
    double gbs = read_bandwidth(big, room);
    cudaFree(big);
    printf("read bandwidth %.0f GB/s\n", gbs);
    return gbs;
}

static bool time_decode(const char *only, char **lengths)
{
    static const struct config q8 = {32, 8, 128, 16, 0, 0, DTYPE_F16}, q06 = {16, 8, 128, 16, 0, 0, DTYPE_BF16};
    static const struct config q8_0 = {32, 8, 128, 16, 0, 0, DTYPE_Q8_0};
    static const struct config l1 = {32, 8, 64, 16, 0, 0, DTYPE_F16};
    static const struct timing all[] = {
        {"8B B1 512", q8, 1, 512, 0},        {"8B B1 8192", q8, 1, 8192, 0},
        {"8B B8 512", q8, 8, 512, 0},        {"8B B16 512", q8, 16, 512, 0},
        {"8B B32 512", q8, 32, 512, 0},      {"8B B64 512", q8, 64, 512, 0},
        {"8B B96 512", q8, 96, 512, 0},      {"8B B256 512", q8, 256, 512, 0},
        {"8B B32 4096", q8, 32, 4096, 0},    {"8B B64 100-2000", q8, 64, 2000, 100},
        {"0.6B B1 512", q06, 1, 512, 0},     {"0.6B B64 512", q06, 64, 512, 0},
        {"0.6B B256 512", q06, 256, 512, 0}, {"1B B64 512", l1, 64, 512, 0},
        {"8B q8_0 B1 512", q8_0, 1, 512, 0}, {"8B q8_0 B64", q8_0, 64, 512, 0},
        {"8B q8_0 B256", q8_0, 256, 512, 0},
    };
    const double gbs = measured_bandwidth();
    bool ok = true;

    for (struct timing t : all) {
        if (only && strcmp(only, t.name)) continue;
        if (!only || !*lengths) ok = time_one(t, gbs) && ok;
        for (char **at = lengths; only && *at; at++) {
            t.name = *at, t.length = (uint32_t)atoi(*at);
            ok = time_one(t, gbs) && ok;
        }
    }
    return ok;
}

struct shared_timing {
    const char *name;
    struct config c;
    uint32_t n_seqs, prefix, own;
};

/* Norm, RoPE and KV write included. */
static bool time_one_shared(const struct shared_timing &t, double gbs)
{
    const uint64_t token = 2ull * t.c.n_kv_heads * row_bytes(t.c);
    const uint64_t once = token * (t.prefix + (uint64_t)t.own * t.n_seqs);
    const uint32_t length = t.prefix + t.own, sets = (uint32_t)std::min<uint64_t>(16, 200000000 / once + 2);
    world w(t.c, t.n_seqs * sets, length, t.n_seqs * sets);
    const uint32_t pages = w.table_of(1);
    std::vector<uint32_t> table(w.table_of(w.n_seqs));
    std::vector<struct cuda_run> runs;
    std::vector<shared_runs *> shared;
    std::vector<float> out[2];
    double us[2];

    fill_kv<<<1024, 256>>>(w.a.kv.base, w.a.kv.page_bytes / 2 * table.size(), t.c.dtype);
    GPU(cudaMemcpy(table.data(), w.tables, table.size() * 4, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < w.n_seqs; i++) {
        for (uint32_t k = 0; k < t.prefix / t.c.page_tokens; k++)
            table[i * pages + k] = table[i / t.n_seqs * t.n_seqs * pages + k];
        runs.push_back({i % t.n_seqs, 1, length - 1, i * pages});
    }
    GPU(cudaMemcpy(w.tables, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
    w.set_runs(runs);
    w.a.n_runs = w.a.n_rows = t.n_seqs;
    fresh_rows fresh(w, runs);
    for (uint32_t i = 0; i < sets; i++)
        shared.push_back(new shared_runs(runs.data() + i * t.n_seqs, t.n_seqs, table, t.c.page_tokens));
    for (int together = 0; together < 2; together++) { /* before the timings, which write keys and values */
        w.a.shared = together ? shared[0]->view : cuda_shared{};
        out[together] = w.run();
    }
    w.a.shared = {};
    for (int together = 0; together < 2; together++) {
        us[together] = time_us((int)std::max(sets, 8u), 7, [&](int i, cudaStream_t stream) {
            struct cuda_attention_args a = w.a;
            struct cuda_qkv_args f = fresh.at((uint32_t)i % sets * t.n_seqs, t.n_seqs);

            w.l.stream = stream, a.runs = w.runs + (uint32_t)i % sets * t.n_seqs;
            if (together) a.shared = shared[(uint32_t)i % sets]->view;
            GPU((cudaError_t)cuda_attention(&w.l, &a, &f));
        });
    }
    for (shared_runs *s : shared) delete s;
    const bool ok = same(out[0], 0, out[1], 0, t.n_seqs, w.width);
    printf("shared  %-22s alone %7.1f us, %3.0f %% of bandwidth; prefix once %7.1f us, %3.0f %%; %.1f x, %s\n", t.name,
           us[0], 100.0 * (double)(token * length * t.n_seqs) / us[0] / 1e3 / gbs, us[1],
           100.0 * (double)once / us[1] / 1e3 / gbs, us[0] / us[1], ok ? "equal bits" : "FAIL");
    return ok;
}

static bool time_shared(double gbs)
{
    static const struct config q8 = {32, 8, 128, 16, 0, 0, DTYPE_F16}, q06 = {16, 8, 128, 16, 0, 0, DTYPE_BF16};
    static const struct config l1 = {32, 8, 64, 16, 0, 0, DTYPE_F16};
    static const struct shared_timing all[] = {
        {"8B 16 x 4096 + 128", q8, 16, 4096, 128},    {"8B 64 x 4096 + 128", q8, 64, 4096, 128},
        {"8B 256 x 4096 + 128", q8, 256, 4096, 128},  {"8B 64 x 1024 + 128", q8, 64, 1024, 128},
        {"8B 64 x 512 + 512", q8, 64, 512, 512},      {"8B 2 x 8192 + 128", q8, 2, 8192, 128},
        {"8B 4 x 2048 + 128", q8, 4, 2048, 128},      {"8B 9 x 1024 + 128", q8, 9, 1024, 128},
        {"8B 64 x 128 + 128", q8, 64, 128, 128},      {"8B 16 x 32768 + 128", q8, 16, 32768, 128},
        {"0.6B 64 x 4096 + 128", q06, 64, 4096, 128}, {"1B 64 x 4096 + 128", l1, 64, 4096, 128},
    };
    bool ok = true;

    for (const struct shared_timing &t : all) ok = time_one_shared(t, gbs) && ok;
    return ok;
}

static void time_prefill(void)
{
    static const struct config q8_0 = {32, 8, 128, 16, 0, 0, DTYPE_Q8_0};
    static const struct config q8 = {32, 8, 128, 16, 0, 0, DTYPE_F16}, g4 = {8, 4, 256, 16, 0, 0, DTYPE_BF16};
    static const struct config q06 = {16, 8, 128, 16, 0, 0, DTYPE_F16};
    static const struct timing all[] = {{"0.6B 1024", q06, 1, 1024},   {"8B 1024", q8, 1, 1024},
                                        {"8B 4096", q8, 1, 4096},      {"8B 8192", q8, 1, 8192},
                                        {"8B 16 x 512", q8, 16, 512},  {"8B q8_0 8192", q8_0, 1, 8192},
                                        {"256 dims 4096", g4, 1, 4096}};

    for (const struct timing &t : all) {
        world w(t.c, t.n_seqs, t.length, t.n_seqs * t.length);
        std::vector<struct cuda_run> runs;
        double flops = 4.0 * t.c.n_heads * t.c.head_dim * (double)t.length * t.length / 2 * t.n_seqs;

        fill_kv<<<1024, 256>>>(w.a.kv.base, w.a.kv.page_bytes / 2 * (uint64_t)w.table_of(w.n_seqs),
                               t.c.dtype == DTYPE_F16);
        for (uint32_t i = 0; i < t.n_seqs; i++) runs.push_back({i * t.length, t.length, 0, w.table_of(i)});
        w.set_runs(runs);
        w.a.out16 = (uint16_t *)w.out, w.a.out = NULL;
        double us = time_us(2, 7, [&](int, cudaStream_t stream) {
            w.l.stream = stream;
            GPU((cudaError_t)cuda_attention(&w.l, &w.a, NULL));
        });
        printf("prefill %-14s %8.0f us %5.0f TFLOP/s\n", t.name, us, flops / us / 1e6);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";

    if (!strcmp(what, "decode")) return !time_decode(argc > 2 ? argv[2] : NULL, argv + (argc > 3 ? 3 : argc));
    if (!strcmp(what, "shared")) return !time_shared(measured_bandwidth());
    if (strcmp(what, "prefill")) return check() > 0;
    time_prefill();
    return 0;
}
