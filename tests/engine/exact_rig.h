/* tests/engine/exact_rig.h - a real model, its engine, and a disk cache in a folder of its own, for the tests of promise 1. */
#pragma once
#include "base/checked.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/engine_state.h"
#include "engine/executors/model_executor.h"
#include "sanitized.h"
#include "sim_store.h"
#include "test.h"
#include "test_backend.h"

#define MAX_ROWS 128u

#define N_PROMPT    (IS_SANITIZED ? 64u : 300u)
#define N_STRANGERS (IS_SANITIZED ? 2u : 8u)

struct rig {
    struct model_file *gguf;
    struct backend *backend;
    struct model *model;
    struct model_executor x;
    struct engine *e;
    struct engine_options o;
    struct sim_store store;
    uint32_t n_vocab;
    struct adapter_mix *mix;        /* of what is submitted; NULL: none */
    uint32_t n_prompt, n_strangers; /* of test_exact */
};

struct kv_types {
    enum dtype k, v;
};

/* Rows of a step, sequences at once, tokens that the pages hold; windows beside them, 0: pages hold all layers. */
struct rig_size {
    uint32_t max_rows, max_running, n_tokens, n_windows;
};

/* model: a name, or a file below the tree. false: the test has failed and says why. */
bool rig_open_sized(struct rig *g, const char *model, struct kv_types kv, uint32_t n_threads, const char *isa,
                    uint32_t page_tokens, struct rig_size size);
/* MAX_ROWS rows, 16 sequences, 6,000 tokens. */
bool rig_open(struct rig *g, const char *model, struct kv_types kv, uint32_t n_threads, const char *isa,
              uint32_t page_tokens);
void rig_close(struct rig *g);
void make_tokens(const struct rig *g, int32_t *tokens, uint32_t n, uint64_t seed);
struct request *submit(struct rig *g, const int32_t *tokens, uint32_t n, bool cached, uint32_t max_tokens,
                       float *logits);
/* Logits after the prompt; n_cached: prompt tokens that came from the tree. */
bool run(struct rig *g, const int32_t *tokens, uint32_t n, bool cached, float *logits, uint32_t *n_cached);
/* The engine begins anew, with the folder as it is (sim_store_init). */
bool restart(struct rig *g);
