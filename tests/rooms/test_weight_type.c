/* tests/rooms/test_weight_type.c - docs/architecture.md, "What it takes to add something": a type of weights is four files. The
 * build adds a row to copies of tensor/dtype.h and cpu/linear_forms.h, a conversion to one of dtype.c and open_toy() to one of
 * cpu_pack.c, and compiles tensor/ and the CPU backend with them: every instruction set computes with it.
 *
 *     TOY     32 weights in 18 bytes: qs[16], d half; the low nibble of qs[i] is weight 2 i, the high one 2 i + 1.  w = d (q - 8)
 */
#include <stdlib.h>
#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

enum { N_OUT = 37, N_IN = 288, N_ROWS = 21, N_BLOCKS = N_OUT * N_IN / 32 };

/* The same weights as Q4_0, whose nibbles lie otherwise. */
static void fill(struct random *r, uint8_t *toy, uint8_t *q4_0)
{
    for (int b = 0; b < N_BLOCKS; b++, toy += 18, q4_0 += 18) {
        uint16_t d = float_to_half((float)(random_unit(r) * 0.02 - 0.01));
        uint8_t q[32];

        for (int i = 0; i < 32; i++) q[i] = (uint8_t)random_below(r, 16);
        for (int i = 0; i < 16; i++) {
            toy[i] = (uint8_t)(q[2 * i] | q[2 * i + 1] << 4);
            q4_0[2 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
        }
        memcpy(toy + 16, &d, 2);
        memcpy(q4_0, &d, 2);
    }
}

static void compute(enum cpu_isa isa, enum dtype type, const uint8_t *data, const float *x, float *out)
{
    struct backend_options o = {.n_threads = 2, .isa = cpu_isa_name(isa)};
    struct host_tensor t = {"test", type, N_OUT, N_IN, data, false, NULL, 0};
    struct linear_args a = {.n_rows = N_ROWS, .x = span_of_host((float *)(uintptr_t)x), .x_stride = N_IN, .n_outs = 1};
    struct backend *be = NULL;
    struct weight w = {0};

    CHECK_OK(backend_cpu_ops.life.create(&o, &be, NULL));
    CHECK_OK(backend_cpu_ops.weights.load(be, &t, WEIGHT_MATRIX, &w, NULL));
    a.outs[0] = (struct linear_out){&w, NULL, span_of_host(out), N_OUT};
    CHECK_OK(backend_cpu_ops.op.linear(be, &a));
    backend_cpu_ops.weights.unload(be, &w);
    backend_cpu_ops.life.destroy(be);
}

TEST(a_type_of_weights_is_four_files)
{
    static uint8_t toy[N_BLOCKS * 18], q4_0[N_BLOCKS * 18];
    static float x[N_ROWS * N_IN], want[N_ROWS * N_OUT], got[N_ROWS * N_OUT], a[N_OUT * N_IN], b[N_OUT * N_IN];
    struct random r;
    uint64_t bytes = 0;

    CHECK_EQ(dtype_from_gguf(42), DTYPE_TOY);
    CHECK_STR(dtype_name(DTYPE_TOY), "TOY");
    CHECK(dtype_row_bytes(DTYPE_TOY, N_IN, &bytes) && bytes == N_IN / 32 * 18);
    random_init(&r, test_seed());
    fill(&r, toy, q4_0);
    dtype_to_float(DTYPE_TOY, toy, a, N_OUT * N_IN);
    dtype_to_float(DTYPE_Q4_0, q4_0, b, N_OUT * N_IN);
    CHECK(memcmp(a, b, sizeof(a)) == 0);
    for (int i = 0; i < N_ROWS * N_IN; i++) x[i] = (float)(random_unit(&r) * 2 - 1);
    compute(CPU_ISA_REF, DTYPE_Q4_0, q4_0, x, want);
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        memset(got, 0, sizeof(got));
        compute((enum cpu_isa)isa, DTYPE_TOY, toy, x, got);
        if (memcmp(want, got, sizeof(got)) != 0)
            test_fail(__FILE__, __LINE__, "%s has other bits", cpu_isa_name((enum cpu_isa)isa));
    }
    test_note("up to %s", cpu_isa_name(cpu_isa_best()));
}
