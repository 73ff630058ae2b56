/* bench/kernels/peak_amx.c - the most that AMX multiplies: tiles of 16 x 64 bytes, six sums from two inputs that stay
 * in tiles 6 and 7. The instructions are written out, for gcc 12's intrinsics do not declare the memory that they read.
 */
#include <string.h>
#include "bench_kernels.h"

struct tile_config { /* Intel SDM volume 1, section 18.3: palette 1 */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

static void tiles_begin(void)
{
    static const uint8_t zeros[16 * 64] __attribute__((aligned(64)));
    struct tile_config c __attribute__((aligned(64)));

    memset(&c, 0, sizeof(c));
    c.palette = 1;
    for (int i = 0; i < 8; i++) c.row_bytes[i] = 64, c.n_rows[i] = 16;
    __asm__ volatile("ldtilecfg %0" : : "m"(c) : "memory");
    __asm__ volatile("tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n tilezero %%tmm4\n"
                     "tilezero %%tmm5\n tileloadd (%0,%1,1), %%tmm6\n tileloadd (%0,%1,1), %%tmm7"
                     :
                     : "r"(zeros), "r"((long)64)
                     : "memory");
}

static void tiles_end(void)
{
    __asm__ volatile("tilerelease");
}

static double int8_rounds(uint64_t n)
{
    tiles_begin();
    for (uint64_t k = 0; k < n / 16; k++)
        __asm__ volatile("tdpbusd %tmm7, %tmm6, %tmm0\n tdpbusd %tmm7, %tmm6, %tmm1\n tdpbusd %tmm7, %tmm6, %tmm2\n"
                         "tdpbusd %tmm7, %tmm6, %tmm3\n tdpbusd %tmm7, %tmm6, %tmm4\n tdpbusd %tmm7, %tmm6, %tmm5");
    tiles_end();
    return (double)(n / 16) * 6 * 16 * 16 * 64 * 2;
}

static double bf16_rounds(uint64_t n)
{
    tiles_begin();
    for (uint64_t k = 0; k < n / 16; k++)
        __asm__ volatile(
            "tdpbf16ps %tmm7, %tmm6, %tmm0\n tdpbf16ps %tmm7, %tmm6, %tmm1\n tdpbf16ps %tmm7, %tmm6, %tmm2\n"
            "tdpbf16ps %tmm7, %tmm6, %tmm3\n tdpbf16ps %tmm7, %tmm6, %tmm4\n tdpbf16ps %tmm7, %tmm6, %tmm5");
    tiles_end();
    return (double)(n / 16) * 6 * 16 * 16 * 32 * 2;
}

const struct peak peaks_amx[2] = {{"AMX int8", UNIT_AMX_INT8, CPU_ISA_AMX, int8_rounds},
                                  {"AMX bf16", UNIT_AMX_BF16, CPU_ISA_AMX, bf16_rounds}};
