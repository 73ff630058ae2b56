/* backend/cuda/rows/join_ranks.h - launching what puts ranks' columns together (op.join in backend.h). Errors, threads as in
 * cuda_kernels.h.
 *
 * Values of 2 or 4 bytes: every rank sends its own to all, and waits until the others' are in its out. All ranks launch the same
 * sequence of shapes. Where all ends are multiples of 16 bytes, outs, own and its stride are, too.
 *
 *     cuda_join          into the others' outs, over peer memory (join_ranks.cu)
 *     cuda_join_staged   through host memory, for devices that do not reach each other's (join_staged.cu)
 *     cuda_join_pack, _unpack   before and after another's all-gather (join_gathered.cu)
 */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_JOIN_RANKS     8u
#define CUDA_JOIN_BLOCKS    128u
#define CUDA_LETTER_BLOCKS  16u
#define CUDA_JOIN_LETTERS   131072u /* bytes of a rank's columns, at most, that go as letters */
#define CUDA_STAGED_LETTERS 32768u  /* the same through host memory: they are twice the bytes, of a slower link */
#define CUDA_JOIN_BOX_BYTES (2u * CUDA_JOIN_RANKS * 2u * CUDA_JOIN_LETTERS)
#define CUDA_STAGED_BLOCKS  32u
#define CUDA_STAGED_BYTES   65536u /* that a block puts there at once */

/* A rank's memory that others write to: flags and boxes; all zero at first. Of the device, or of the host, mapped for all. */
struct cuda_joint {
    uint32_t flags[CUDA_JOIN_RANKS * CUDA_JOIN_BLOCKS];
    uint64_t boxes[CUDA_JOIN_BOX_BYTES / sizeof(uint64_t)];
};

/* What a rank counts for itself, on its device; all zero at first. */
struct cuda_join_counts {
    uint32_t rounds[CUDA_JOIN_BLOCKS], turns[CUDA_LETTER_BLOCKS];
};

/* What a rank shows to the others, in host memory that is mapped for all. */
struct cuda_join_stage {
    uint8_t bytes[CUDA_STAGED_BLOCKS][2][CUDA_STAGED_BYTES];
};

/* words: struct rank_words, mapped: where stop is set, or somebody is waited for in vain for patience_ns, the kernel ends and
 * out is not to be read. */
struct cuda_join_args {
    uint32_t rank, n_ranks, n_rows, width; /* width: of out */
    uint32_t ends[CUDA_JOIN_RANKS];        /* of the ranks' columns */
    uint32_t first, n, most;               /* this rank's columns; the most that a rank has */
    uint32_t value_bytes;
    uint32_t most_blocks;  /* the same for all; that all ranks of a device have room for */
    uint32_t letter_bytes; /* up to these letters are sent, <= CUDA_JOIN_LETTERS; the same for all */
    const void *own;
    uint64_t own_stride;         /* values */
    void *outs[CUDA_JOIN_RANKS]; /* of cuda_join; the others know outs[rank] */
    float *add_to; /* f32 [n_rows, width], of cuda_join_adds: instead of out, which is not written; or NULL */
    struct cuda_joint *joints[CUDA_JOIN_RANKS];
    struct cuda_join_counts *counts;
    const struct cuda_join_stage *stages[CUDA_JOIN_RANKS]; /* of cuda_join_staged */
    uint32_t *words;
    uint64_t patience_ns;
};
int cuda_join(const struct cuda_launch *l, const struct cuda_join_args *a);
int cuda_join_staged(const struct cuda_launch *l, const struct cuda_join_args *a);
/* The rest of a join whose columns kernels before it wrote to all outs: the others' are there after it. own, outs are not read. */
int cuda_join_flags(const struct cuda_launch *l, const struct cuda_join_args *a);
/* The same of f32, in the kernel of the norm that follows it, whose delta is outs[rank]: a block for each row, at most
 * most_blocks. Where this says so: by shapes and alignment, which are the same for all ranks. */
bool cuda_norm_joins(const struct cuda_norm_args *norm);
int cuda_join_flags_norm(const struct cuda_launch *l, const struct cuda_join_args *a,
                         const struct cuda_norm_args *norm);
int cuda_join_norm_load(void);
/* Whether it goes as letters. */
bool cuda_join_is_small(const struct cuda_join_args *a);
/* Whether it may be given something to add to. */
bool cuda_join_adds(const struct cuda_join_args *a);
/* Its kernels to this thread's device, before one of them may have to wait. */
int cuda_join_load(void);

/* Rows [row0, row0 + n_rows) of own to `to`, one behind the other; and all ranks' such pieces, which begin part_bytes apart at
 * `from`, to outs[rank], or add_to. */
int cuda_join_pack(const struct cuda_launch *l, const struct cuda_join_args *a, uint32_t row0, uint32_t n_rows,
                   void *to);
int cuda_join_unpack(const struct cuda_launch *l, const struct cuda_join_args *a, uint32_t row0, uint32_t n_rows,
                     const void *from, uint64_t part_bytes);

#ifdef __cplusplus
}
#endif
