/* backend/cpu/cpu_backend.h - inside of the CPU backend: its state, and the kernel table that an instruction set fills.
 *
 * The folder itself holds what its rooms share: this state, cpu_pool.c (threads), weight_memory.c (where packed weights lie),
 * the scalar functions of cpu_math.h, and sixteen floats (v16_avx2.h, v16_avx512.h, v16_neon.h, math_v16.h).
 *
 * rows/       cpu_encode.c rows of encoders; norm, rope, glu, softcap, KV rounding of one row (row_kernels.h): rows_ref.c, rows_avx2.c, rows_avx512.c,
 *             rows_neon.c, all but the first from rows_v16.h
 * linear/     cpu_linear.c quantises activations and splits tiles, cpu_pack.c repacks weights; linear_ref.c, linear_avx2.c,
 *             linear_avx512.c compute tiles, linear_amx.c panels of many rows, linear_k_avx2.c, linear_k_avx512.c,
 *             linear_k_amx.c those of K types; linear_neon.c, linear_dotprod.c, linear_i8mm.c (linear_a64.h) tiles on
 *             AArch64; cpu_low_rank.c adapters
 * attention/  cpu_attn.c qkv_rope_write and tiles, attn_shared.c tiles of several runs (attn_tiles.h), cpu_attend.c encoders; attn_ref.c, attn_avx2.c,
 *             attn_avx512.c, attn_neon.c (attn_kernels.h), all but the first from attn_v16.h
 * host/       cpu_backend.c the table of ops: create, memory, KV storage, embed, gather; splits ops into tiles for the pool.
 *             cpu_join.c the columns of several ranks
 *             cpu_isa.c the instruction sets of this architecture, and which this machine has
 *
 * Every variant gives the reference's bits (backend.h).
 */
#pragma once
#include "backend/backend.h"
#include "backend/cpu_pool.h"
#include "backend/cpu/weight_memory.h"

/* From the least to the most: a machine that has one has those before it, too. */
#if defined(__x86_64__)
enum cpu_isa { CPU_ISA_REF, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_AMX, CPU_N_ISA };
#elif defined(__aarch64__)
enum cpu_isa { CPU_ISA_REF, CPU_ISA_NEON, CPU_ISA_DOTPROD, CPU_ISA_I8MM, CPU_N_ISA };
#else
enum cpu_isa { CPU_ISA_REF, CPU_N_ISA };
#endif

struct cpu_kernels {  /* of an instruction set */
    const char *name; /* as in --cpu-isa */
    const struct cpu_row_kernels *rows;
    const struct cpu_attn_kernels *attn;
    const struct cpu_linear_kernels *lin;
    const struct cpu_panel_kernels *panels; /* NULL without a matrix unit */
    const struct cpu_dense_kernels *dense;  /* of WEIGHT_DENSE; NULL: it is as WEIGHT_MATRIX */
};
extern const struct cpu_kernels cpu_kernels[CPU_N_ISA];

struct buffer {
    void *base;
    size_t n_bytes;
};
/* The floats of a span. */
static inline float *cpu_at(struct span s)
{
    return (float *)((s.buffer ? (uintptr_t)s.buffer->base : 0) + (uintptr_t)s.at);
}

struct backend { /* the CPU's */
    const struct backend_ops *ops;
    struct cpu_pool *pool;
    enum cpu_isa isa;
    bool ask_l2; /* cpu_asks_l2() */
    const struct cpu_row_kernels *rows;
    const struct cpu_attn_kernels *attn;
    const struct cpu_linear_kernels *lin;
    const struct cpu_panel_kernels *panels;  /* linear of many rows; NULL without a matrix unit */
    const struct cpu_dense_kernels *dense;   /* of WEIGHT_DENSE; or NULL */
    struct cpu_linear_state *linear;         /* activation scratch of linear, owned by cpu_linear.c */
    struct cpu_attn_state *attn_state;       /* per-thread scratch of attention, owned by cpu_attn.c */
    struct weight_memory weights;            /* packed matrices */
    const struct low_rank_term *began_terms; /* of the low_rank whose t the last linear has computed; or NULL */
    struct span began_t;
    const struct low_rank_job *began; /* how it is cut: linear's state */
};

/* What this CPU and operating system can run. "amx" is AVX-512 and, for matrix products of many rows, AMX-INT8; the
 * first call asks the kernel for AMX's register state, for the whole process. On AArch64: "neon", "neon-dotprod"
 * (ARMv8.2 dot products), "neon-i8mm" (ARMv8.6 8-bit matrix products, and dot products). */
enum cpu_isa cpu_isa_best(void);
rd_status cpu_isa_parse(const char *name, enum cpu_isa *out, struct rd_error *err);
const char *cpu_isa_name(enum cpu_isa isa);
/* What the processor has of that which kernels ask for, as Linux spells it: "fma avx2". Not all of it needs to be of use: a set is
 * used when the system saves its registers, too. */
void cpu_features(char *out, size_t cap);
/* Which kernel computes with weights of a type here, in words; false: the type is not taken. */
bool cpu_kernel_of(enum dtype t, char *out, size_t cap);
/* Whether weights to come are better asked for into the L2 cache than into the L1: on AMD (linear_prefetch.h). */
bool cpu_asks_l2(void);

/* cpu_linear.c and cpu_pack.c (one helper), cpu_attn.c and the rest (another) */
rd_status cpu_linear_create(struct backend *be); /* fills be->lin, panels, linear */
void cpu_linear_destroy(struct backend *be);
rd_status cpu_linear(struct backend *be, const struct linear_args *a);
rd_status cpu_pack_matrix(struct backend *be, const struct host_tensor *t, struct weight *out, struct rd_error *err);
rd_status cpu_adopt_matrix(struct backend *be, const struct host_tensor *t, uint32_t format, const void *data,
                           uint64_t n_bytes, struct weight *out);
/* cpu_dense.c. acts: cpu_dense_acts_bytes(), 64-byte aligned. */
#define CPU_DENSE 1u /* weight.format */
rd_status cpu_pack_dense(struct backend *be, const struct host_tensor *t, struct weight *out, struct rd_error *err);
uint64_t cpu_dense_acts_bytes(const struct linear_args *a);
rd_status cpu_dense(struct backend *be, const struct linear_args *a, uint8_t *acts);
void cpu_unpack_matrix(struct backend *be, struct weight *w); /* frees what is not adopted */
rd_status cpu_low_rank(struct backend *be, const struct low_rank_args *a);
rd_status cpu_attn_create(struct backend *be); /* fills be->attn, be->rows, be->attn_state */
void cpu_attn_destroy(struct backend *be);
rd_status cpu_qkv_rope_write(struct backend *be, const struct qkv_args *a);
rd_status cpu_attention(struct backend *be, const struct attention_args *a);
/* cpu_join.c */
rd_status cpu_join(struct backend *be, const struct join_args *a);
/* cpu_attend.c; cpu_encode.c */
rd_status cpu_attend_pack(struct backend *be, const struct attend_args *a);
rd_status cpu_attend(struct backend *be, const struct attend_args *a);
rd_status cpu_layer_norm(struct backend *be, const struct layer_norm_args *a);
rd_status cpu_gelu_all(struct backend *be, const struct gelu_args *a);
rd_status cpu_turn(struct backend *be, const struct turn_args *a);
rd_status cpu_mean_rows(struct backend *be, const struct mean_args *a);
