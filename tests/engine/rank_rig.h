/* tests/engine/rank_rig.h - a model that several ranks compute, through the front door, and an engine above it. */
#pragma once
#include "engine/executor.h"
#include "exact_rig.h"

#define PAGE_TOKENS  8u
#define RANK_N_PAGES 128u

extern const uint32_t rank_numbers[5]; /* of ranks, to be compared: 1 first */

/* Two threads; on a machine with GPUs ($RADISH_TEST_DEVICE=cuda) as many of them as $RADISH_TEST_GPUS says, 1, in turns. Ranks
 * that share one need $CUDA_MODULE_LOADING=EAGER, as no kernel can be loaded while one waits, and
 * $CUDA_DEVICE_MAX_CONNECTIONS=32. $RADISH_TEST_REDUCE: how they join (backend/join_way.h). */
struct executor_options rank_options(const struct model_file *f, uint32_t n_ranks, struct kv_types kv);

/* $RADISH_TEST_MOST_RANKS: more are not tested (as NCCL wants a GPU for each). */
bool rank_number_fits(uint32_t n_ranks);

const char *rank_devices(uint32_t n_ranks); /* until it is called again */

struct ranked {
    struct rig g;
    struct executor *x;
    struct executor_traits t;
};

/* model: a name, or a file below the tree. false: the test has failed and says why. */
bool open_ranked(struct ranked *r, const char *model, uint32_t n_ranks, struct kv_types kv);
void close_ranked(struct ranked *r);
