/* radish/adapter.h - low-rank adapters (LoRA): small matrices beside the model's, W x + scale * B (A x).
 *
 * An engine has any number of them, by name; each request says which it is computed with. Requests with different adapters, and
 * with none, share a batch; none sees the others. What is stored is found by requests with the same adapters and scales alone,
 * and stays when an adapter is unloaded: with the same one loaded again, whatever its name, it is found.
 *
 * All together take rd_options.adapter_bytes at most (while one is loaded, that much more): where another needs the room, the
 * one that was used longest ago leaves memory, if no request runs with it. A request that names it reads its file again,
 * which must hold the same numbers: RD_E_FORMAT if not, RD_E_FULL while others that are in use leave no room.
 *
 * Read are PEFT's directories (adapter_config.json, adapter_model.safetensors) and llama.cpp's GGUF files, of the layers' seven
 * matrices. On a CPU and CUDA; RD_E_UNSUPPORTED elsewhere.
 * Source  arXiv:2106.09685.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RD_ADAPTER_NAME_BYTES 129u
#define RD_REQUEST_ADAPTERS   8u /* in one request */

/* One that rd_open loads: as by rd_adapter_load. */
struct rd_adapter_file {
    const char *name, *path;
    double scale;
    double applied; /* not 0: as rd_adapter_apply with it */
};

/* One of a request. */
struct rd_adapter_use {
    const char *name;
    double scale; /* NaN: as it was loaded */
};

struct rd_adapter {
    char name[RD_ADAPTER_NAME_BYTES];
    char path[512]; /* cut where it is longer */
    char base[256]; /* what the file says of its model; "" */
    uint32_t id;    /* in the order of loading, from 0; never given twice */
    uint32_t n_matrices, rank;
    uint64_t n_bytes;
    uint32_t in_memory; /* 0: left for others that were used later; a request that names it brings it back */
    double scale;       /* of requests that name it without one; beside what the file itself says (alpha / rank) */
    double applied;     /* of requests that say nothing of adapters: 0, or as rd_adapter_apply said */
};

#ifdef __cplusplus
}
#endif
