/* backend/cuda/nccl_probe.h - NVIDIA's collective communication library, opened when it is wanted: radish is neither built nor
 * linked with it. The functions and constants that are used, as NCCL's user guide documents them (2.x; since 2.4).
 *
 * Found as libnccl.so.2 by the dynamic linker's search, or where $RADISH_NCCL says.
 * Every build has this, so that `radish doctor` can say whether it is there.
 * Thread  open, close: one at a time. The functions: as NCCL's.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_BYTES 0 /* ncclInt8 */

struct nccl_id {
    char internal[128];
};

/* Every one gives 0 for success. comm: ncclComm_t; stream: cudaStream_t. */
struct nccl_library {
    void *handle;
    int version; /* 22809 is 2.28.9 */
    int (*get_version)(int *out);
    int (*get_unique_id)(struct nccl_id *out);
    int (*comm_init_rank)(void **comm, int n_ranks, struct nccl_id id, int rank);
    int (*comm_destroy)(void *comm);
    int (*comm_abort)(void *comm);
    int (*all_gather)(const void *from, void *to, size_t n, int type, void *comm, void *stream);
    const char *(*error_string)(int error);
};

/* RD_E_UNSUPPORTED: why [cap], a part of a sentence: no file, or one that lacks functions. NVLink multicast is left off, unless
 * $NCCL_NVLS_ENABLE says something. */
rd_status nccl_library_open(struct nccl_library *out, char *why, size_t cap);
void nccl_library_close(struct nccl_library *l); /* one of zeros is fine */
/* "2.28.9" */
void nccl_version_text(int version, char *out, size_t cap);

#ifdef __cplusplus
}
#endif
