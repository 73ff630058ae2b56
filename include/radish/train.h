/* radish/train.h - training of low-rank adapters (LoRA) over a model: W x + scale * B (A x), A and B learn.
 *
 * The forward pass is the one that serves: log-probabilities under training have the bits of those that are served. The result
 * depends on data, options and seed alone, not on threads (nor on the processor, but for AMX: docs/lora.md), and a training that was interrupted and resumed ends with the bytes
 * of one that was not. The model may be quantised; its weights stay as they are. On a CPU.
 *
 * rd_train is the whole of it: a file of data to an adapter on disk, as `radish train` does. rd_trainer is a step at a time, of
 * tokens that the caller has. docs/lora.md.
 *
 * Options begin with their size, as in radish/radish.h.
 * Thread  one at a time.
 * Source  arXiv:2106.09685, arXiv:1711.05101.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rd_trainer_options {
    size_t size;                            /* of this struct, set by rd_trainer_options_default */
    const char *model;                      /* a GGUF file, or a directory of safetensors */
    uint32_t rank;                          /* 16 */
    double alpha;                           /* 32: scale = alpha / rank */
    bool rslora;                            /* scale = alpha / sqrt(rank) */
    double dropout;                         /* of what A reads; 0 */
    const char *targets;                    /* "all" (NULL), or names: "q_proj,v_proj" */
    double beta1, beta2, eps, weight_decay; /* AdamW: 0.9, 0.999, 1e-8, 0 */
    double clip;                            /* the gradient's norm at most; 1; 0: as it is */
    uint64_t seed;                          /* of A's first numbers and of dropout */
    uint32_t pass_tokens;                   /* in one pass at most, and of one sample; 1024 */
    uint64_t
        memory_bytes;    /* of activations that are kept; beyond it layers are computed again. 0: a quarter of memory */
    const char *kv_type; /* "f16" (NULL), "bf16", "f32": as it will be served */
    uint32_t n_threads;  /* 0: all cores */
    const char *isa;     /* as rd_options.isa */
    bool bf16;           /* A and B are BF16 in every pass, and saved so; the optimiser keeps them as F32 */
    const char *device;  /* "cpu" (NULL), "cuda", "cuda:1"; another is RD_E_UNSUPPORTED */
};
RD_API void rd_trainer_options_default(struct rd_trainer_options *o);

typedef struct rd_trainer rd_trainer;
RD_API rd_status rd_trainer_open(const struct rd_trainer_options *o, rd_trainer **out, struct rd_error *err);
RD_API void rd_trainer_close(rd_trainer *t); /* NULL is fine */

struct rd_train_sample {
    const int32_t *tokens; /* [n], 2 .. pass_tokens */
    const bool *targets;   /* [n]: this token is learned, given those before; the first never is */
    uint32_t n;
};
struct rd_train_result {
    double loss; /* mean of -log p over the targets */
    double norm; /* of the gradient, before clipping; 0 without one */
    uint64_t n_targets, n_tokens;
    uint64_t tape_bytes; /* most that activations took */
};
/* A step of AdamW on the mean loss of these samples. RD_E_MODEL_OUTPUT: loss or gradient is no number; nothing has changed. */
RD_API rd_status rd_trainer_step(rd_trainer *t, const struct rd_train_sample *samples, uint32_t n, double lr,
                                 struct rd_train_result *out, struct rd_error *err);
/* The loss alone. log_p: of every target, in order, or NULL. */
RD_API rd_status rd_trainer_loss(rd_trainer *t, const struct rd_train_sample *samples, uint32_t n, float *log_p,
                                 struct rd_train_result *out, struct rd_error *err);
/* PEFT's directory, which is made; gguf: a file as llama.cpp's. rd_adapter_load reads both. */
RD_API rd_status rd_trainer_save(rd_trainer *t, const char *path, bool gguf, struct rd_error *err);
/* Numbers, moments and steps: resuming goes on to the same bits. A whole file or none. */
RD_API rd_status rd_trainer_checkpoint(rd_trainer *t, const char *path, struct rd_error *err);
/* RD_E_INVALID: of other options or another model; RD_E_FORMAT: damaged. */
RD_API rd_status rd_trainer_resume(rd_trainer *t, const char *path, struct rd_error *err);
RD_API uint64_t rd_trainer_n_steps(const rd_trainer *t);
RD_API uint64_t rd_trainer_n_params(const rd_trainer *t);

/* ---- from a file of data to an adapter ---- */

struct rd_train_progress {
    uint64_t step, n_steps;
    double loss, lr, norm;
    double eval_loss;    /* NaN: none of this step */
    uint64_t n_tokens;   /* of this step */
    double tokens_per_s; /* since the start */
    double seconds, seconds_left;
};

struct rd_train_options {
    size_t size; /* of this struct, set by rd_train_options_default */
    struct rd_trainer_options trainer;
    const char *data;      /* JSONL: {"messages": [..], "tools": [..]}, {"prompt", "completion"} or {"text"} a line */
    const char *eval_data; /* the same, to be evaluated; NULL: eval_share of data */
    double eval_share;     /* 0 */
    const char *out;       /* a folder: adapter, checkpoint, log.jsonl, loss.svg */
    bool gguf;             /* adapter.gguf, too */
    bool all_tokens;       /* loss on prompts, too, not on what the assistant says alone */
    uint32_t batch;        /* samples of a step; 8 */
    double epochs;         /* 3 */
    uint32_t n_steps;      /* in place of epochs; 0 */
    double lr;             /* 2e-4 */
    const char *schedule;  /* "cosine" (NULL), "linear", "constant" */
    double warm_up;        /* share of the steps over which lr rises; 0.05 */
    uint32_t save_every, eval_every; /* steps; 50 */
    uint32_t patience;               /* evaluations without a better one, then it ends; 0: it does not */
    uint64_t seed;                   /* of the samples' order, of A's first numbers and of dropout */
    bool resume;                     /* goes on from out's checkpoint, where there is one */
    /* After every step; anything but 0: a checkpoint is written, and rd_train returns RD_E_CANCELLED. */
    int (*progress)(void *user, const struct rd_train_progress *p);
    void *progress_user;
};
RD_API void rd_train_options_default(struct rd_train_options *o);

struct rd_train_summary {
    size_t size; /* as in radish/radish.h: set it to that of your struct */
    uint64_t n_steps, n_samples, n_eval, n_cut,
        n_dropped; /* cut: longer than max_tokens; dropped: nothing to learn in them */
    uint64_t n_params;
    double loss, best_eval; /* of the last step; NaN without evaluation */
    bool stopped_early;
    uint32_t max_tokens; /* at which samples were cut: pass_tokens, or the model's context if that is shorter */
};
/* RD_E_INVALID "data.jsonl, line 17: ...": a line that is no sample, or another training writes into the folder; RD_E_IO: among
 * others, a full disk: what was saved before is whole. With evaluation the adapter is that of the best one, else the last. */
RD_API rd_status rd_train(const struct rd_train_options *o, struct rd_train_summary *out, struct rd_error *err);

#ifdef __cplusplus
}
#endif
