/* backend/cuda/rows/join_ranks.h - launching what puts ranks' columns together (op.join in backend.h). Errors, threads as in
 * cuda_kernels.h.
 *
 * Values of 2 or 4 bytes: every rank sends its own to all outs, and waits until the others' are in its own. All ranks launch
 * the same sequence of shapes. Where all ends are multiples of 16 bytes, outs, own and its stride are, too.
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
#define CUDA_JOIN_BOX_BYTES (2u * CUDA_JOIN_RANKS * 2u * CUDA_JOIN_LETTERS)

/* A rank's memory that others write to: flags, boxes; and its own counts. All zero at first. */
struct cuda_joint {
    uint32_t flags[CUDA_JOIN_RANKS * CUDA_JOIN_BLOCKS];
    uint64_t boxes[CUDA_JOIN_BOX_BYTES / sizeof(uint64_t)];
    uint32_t rounds[CUDA_JOIN_BLOCKS], turns[CUDA_LETTER_BLOCKS];
};

/* words: struct rank_words, mapped: where stop is set, or somebody is waited for in vain for patience_ns, the kernel ends and
 * out is not to be read. */
struct cuda_join_args {
    uint32_t rank, n_ranks, n_rows, width; /* width: of out */
    uint32_t ends[CUDA_JOIN_RANKS];        /* of the ranks' columns */
    uint32_t first, n, most;               /* this rank's columns; the most that a rank has */
    uint32_t value_bytes;
    uint32_t most_blocks; /* the same for all; that all ranks of a device have room for */
    const void *own;
    uint64_t own_stride; /* values */
    void *outs[CUDA_JOIN_RANKS];
    float *add_to; /* f32 [n_rows, width], of cuda_join_adds: instead of out, which is not written; or NULL */
    struct cuda_joint *joints[CUDA_JOIN_RANKS];
    uint32_t *words;
    uint64_t patience_ns;
};
int cuda_join(const struct cuda_launch *l, const struct cuda_join_args *a);
/* Whether it may be given something to add to. */
bool cuda_join_adds(const struct cuda_join_args *a);
/* Its kernels to this thread's device, before one of them may have to wait. */
int cuda_join_load(void);

#ifdef __cplusplus
}
#endif
