/* backend/cuda/host/cuda_sharing.h - which runs of a step begin with the same pages: on the host, as tables are sent.
 *
 *     run A   pages 1 2 3 4 5 | 6        a group of A, B, D: what all of them have in common, in whole segments of 128
 *     run B   pages 1 2 3 4 5 | 7 8      positions that lie before every one of their new rows
 *     run C   pages 9                    takes no part
 *     run D   pages 1 2 3 4 5 | 6 7
 *
 * One level: a run is in one group at most, the one that saves most below the first of its runs. Costs n_runs
 * comparisons for each run that is in no group, as long as what they have in common.
 * Bits of results do not depend on it: attention_prefix.cu.
 * Thread  any thread.
 */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Segments times KV heads that need not be read: with fewer, what is saved is less than what it takes. */
#define CUDA_SHARING_LEAST 3072u

/* Memory for what n_runs runs may share; 16-byte aligned. */
uint64_t cuda_sharing_bytes(uint32_t n_runs);
/* The parts of that memory, or of its copy on the device. */
struct cuda_shared cuda_sharing_view(const void *memory, uint32_t n_runs);
/* Fills it. runs and tables as kernels will read them, in host memory. Only runs of few rows take part. The number of
 * segments of 128 keys that need not be read. */
uint64_t cuda_sharing_make(const struct cuda_run *runs, uint32_t n_runs, const uint32_t *tables, uint32_t page_tokens,
                           void *memory);

#ifdef __cplusplus
}
#endif
