/* backend/cpu/host/cpu_isa.c - the instruction sets of this architecture: their kernels, and which this machine runs. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "backend/cpu/attention/attn_kernels.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/linear_dense.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/rows/row_kernels.h"
#include "base/error.h"
#include "base/os_machine.h"

#if defined(__x86_64__)
const struct cpu_kernels cpu_kernels[CPU_N_ISA] = {
    [CPU_ISA_REF] = {"ref", &cpu_rows_ref, &cpu_attn_ref, &linear_kernels_ref, NULL, NULL},
    [CPU_ISA_AVX2] = {"avx2", &cpu_rows_avx2, &cpu_attn_avx2, &linear_kernels_avx2, NULL, NULL},
    [CPU_ISA_AVX512] = {"avx512", &cpu_rows_avx512, &cpu_attn_avx512, &linear_kernels_avx512, NULL, NULL},
    [CPU_ISA_AMX] = {"amx", &cpu_rows_avx512, &cpu_attn_avx512, &linear_kernels_avx512, &panel_kernels_amx,
                     &dense_kernels_amx},
};

/* Register state that the operating system saves (XCR0): bits 1-2 SSE and AVX, 5-7 AVX-512, 17-18 AMX. Intel SDM volume
 * 1, chapter 13. */
static uint32_t os_saved_state(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

enum cpu_isa cpu_isa_best(void)
{
    const uint32_t need_1 = bit_FMA | bit_OSXSAVE | bit_AVX | bit_F16C, need_7 = bit_AVX2 | bit_BMI2;
    const uint32_t need_512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    const uint32_t need_amx = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, -TILE, -INT8; compilers differ in names */
    uint32_t a, b, c, d, saved;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need_1) != need_1) return CPU_ISA_REF;
    saved = os_saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & need_7) != need_7 || (saved & 0x06) != 0x06)
        return CPU_ISA_REF;
    if ((b & need_512) != need_512 || !(c & bit_AVX512VNNI) || (saved & 0xe6) != 0xe6) return CPU_ISA_AVX2;
    if ((d & need_amx) != need_amx || (saved & 0x60000) != 0x60000 || !os_allow_amx()) return CPU_ISA_AVX512;
    return CPU_ISA_AMX;
}

/* Appends the names whose bits are set, with blanks between. */
struct feature {
    uint32_t bit;
    const char *name;
};

static void put_features(uint32_t bits, const struct feature *list, char *out, size_t cap)
{
    for (; list->name; list++) {
        size_t n = strlen(out);

        if (bits & list->bit && n + strlen(list->name) + 2 < cap)
            snprintf(out + n, cap - n, "%s%s", n ? " " : "", list->name);
    }
}

void cpu_features(char *out, size_t cap)
{
    static const struct feature of_1[] = {{bit_AVX, "avx"}, {bit_F16C, "f16c"}, {bit_FMA, "fma"}, {0, NULL}};
    static const struct feature of_7b[] = {{bit_AVX2, "avx2"},
                                           {bit_BMI2, "bmi2"},
                                           {bit_AVX512F, "avx512f"},
                                           {bit_AVX512DQ, "avx512dq"},
                                           {bit_AVX512BW, "avx512bw"},
                                           {bit_AVX512VL, "avx512vl"},
                                           {0, NULL}};
    static const struct feature of_7c[] = {{bit_AVX512VNNI, "avx512_vnni"}, {0, NULL}};
    static const struct feature of_7d[] = {
        {1u << 24, "amx_tile"}, {1u << 25, "amx_int8"}, {1u << 22, "amx_bf16"}, {0, NULL}};
    uint32_t a, b, c, d;

    out[0] = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) put_features(c, of_1, out, cap);
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    put_features(b, of_7b, out, cap);
    put_features(c, of_7c, out, cap);
    put_features(d, of_7d, out, cap);
}

bool cpu_asks_l2(void)
{
    uint32_t a, b, c, d;
    char vendor[12];

    if (!__get_cpuid(0, &a, &b, &c, &d)) return false;
    memcpy(vendor, &b, 4);
    memcpy(vendor + 4, &d, 4);
    memcpy(vendor + 8, &c, 4);
    return memcmp(vendor, "AuthenticAMD", 12) == 0 || memcmp(vendor, "HygonGenuine", 12) == 0;
}
#elif defined(__aarch64__)
const struct cpu_kernels cpu_kernels[CPU_N_ISA] = {
    [CPU_ISA_REF] = {"ref", &cpu_rows_ref, &cpu_attn_ref, &linear_kernels_ref, NULL, NULL},
    [CPU_ISA_NEON] = {"neon", &cpu_rows_neon, &cpu_attn_neon, &linear_kernels_neon, NULL, NULL},
    [CPU_ISA_DOTPROD] = {"neon-dotprod", &cpu_rows_neon, &cpu_attn_neon, &linear_kernels_dotprod, NULL, NULL},
    [CPU_ISA_I8MM] = {"neon-i8mm", &cpu_rows_neon, &cpu_attn_neon, &linear_kernels_i8mm, NULL, NULL},
};

enum cpu_isa cpu_isa_best(void)
{
    const uint32_t has = os_arm_features();

    if (!(has & OS_ARM_ASIMD)) return CPU_ISA_REF;
    if (!(has & OS_ARM_DOTPROD)) return CPU_ISA_NEON;
    return has & OS_ARM_I8MM ? CPU_ISA_I8MM : CPU_ISA_DOTPROD;
}

void cpu_features(char *out, size_t cap)
{
    const uint32_t has = os_arm_features();

    snprintf(out, cap, "%s%s%s", has & OS_ARM_ASIMD ? "asimd" : "", has & OS_ARM_DOTPROD ? " asimddp" : "",
             has & OS_ARM_I8MM ? " i8mm" : "");
}
#else
void cpu_features(char *out, size_t cap)
{
    if (cap) out[0] = 0;
}

const struct cpu_kernels cpu_kernels[CPU_N_ISA] = {
    [CPU_ISA_REF] = {"ref", &cpu_rows_ref, &cpu_attn_ref, &linear_kernels_ref, NULL, NULL},
};

enum cpu_isa cpu_isa_best(void)
{
    return CPU_ISA_REF;
}
#endif

#if !defined(__x86_64__)
bool cpu_asks_l2(void)
{
    return false;
}
#endif

const char *cpu_isa_name(enum cpu_isa isa)
{
    assert(isa < CPU_N_ISA);
    return cpu_kernels[isa].name;
}

/* As cpu_linear.c chooses. */
bool cpu_kernel_of(enum dtype t, char *out, size_t cap)
{
    const struct cpu_kernels *k = &cpu_kernels[cpu_isa_best()];
    const struct linear_form *form = linear_form_of(t);
    const struct cpu_panel_kernels *panels = form && linear_is_k(form) && k->panels ? k->panels->k : k->panels;
    const char *lines = k->lin == &linear_kernels_ref ? "ref" : k->name;

    if (!form) return false;
    if (form->bits == 0)
        snprintf(out, cap, "%s: float products", panels ? cpu_kernels[cpu_isa_best() - 1].name : lines);
    else if (panels)
        snprintf(out, cap, "%s: 8-bit dot products, scales per %u; %s from %u rows on",
                 cpu_kernels[cpu_isa_best() - 1].name, form->unit_k, k->name, panels->min_rows);
    else
        snprintf(out, cap, "%s: 8-bit dot products, scales per %u", lines, form->unit_k);
    return true;
}

/* "ref, avx2, ..": what can be asked for here. */
static const char *known_names(char *buf, size_t n)
{
    buf[0] = 0;
    for (int i = 0; i < CPU_N_ISA; i++) {
        if (i > 0) strncat(buf, ", ", n - strlen(buf) - 1);
        strncat(buf, cpu_kernels[i].name, n - strlen(buf) - 1);
    }
    return buf;
}

rd_status cpu_isa_parse(const char *name, enum cpu_isa *out, struct rd_error *err)
{
    const char *best = cpu_isa_name(cpu_isa_best());
    char quoted[64], known[64];

    for (int i = 0; i < CPU_N_ISA; i++) {
        if (strcmp(name, cpu_kernels[i].name)) continue;
        if ((enum cpu_isa)i > cpu_isa_best())
            return error_set(err, RD_E_UNSUPPORTED, "instruction set %s: this CPU and system have %s", name, best);
        *out = (enum cpu_isa)i;
        return RD_OK;
    }
    return error_set(err, RD_E_UNSUPPORTED, "instruction set \"%s\": known are %s; this CPU and system have %s",
                     error_quote(quoted, sizeof(quoted), name, strlen(name)), known_names(known, sizeof(known)), best);
}
