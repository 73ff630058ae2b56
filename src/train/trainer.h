/* train/trainer.h - a model, an adapter that learns, and its optimiser: one step after the other, on a CPU or a GPU.
 *
 * The forward pass is the one that serves (grad/record.h): of the same tokens, log-probabilities have the same bits. A sample is a
 * sequence of its own: samples share a pass, none sees another. The result of a step depends on its samples and options alone,
 * not on threads, nor on how many layers are computed again to save memory.
 *
 * The loss is the mean of -log p over the targets of all the step's samples.
 *
 * Thread  one.
 * Errors  RD_E_NOMEM; RD_E_INVALID: options; RD_E_MODEL_OUTPUT: loss or gradient is no number, and nothing has changed. What opening
 *         a model gives.
 */
#pragma once
#include "model/adapter_params.h"
#include "tensor/dtype.h"
#include "grad/adamw.h"

struct trainer_options {
    const char *device; /* as backend_open's, but NULL: cpu; which train: record_create */
    uint32_t n_threads;
    const char *isa;
    enum dtype kv_type;    /* F32, F16, BF16: as served */
    uint32_t max_rows;     /* tokens of a pass; a sample is no longer */
    uint64_t memory_bytes; /* what the tape may take; 0: a quarter of the host's memory, on a GPU what is free */
    struct adapter_shape shape;
    bool bf16;      /* A and B are computed with as BF16; what is updated is kept in F32 */
    double dropout; /* 0 .. <1 */
    uint64_t dropout_seed;
    double clip;        /* the gradient's norm at most; 0: as it is */
    struct adamw adamw; /* lr and step are set by each step */
};

struct train_sample {
    const int32_t *tokens; /* [n], n >= 2 */
    const bool *targets;   /* [n]: the token is to be said, given those before; the first never is */
    uint32_t n;
};

struct train_result {
    double loss; /* mean over targets */
    double norm; /* of the gradient, before clipping */
    uint64_t n_targets, n_tokens;
    uint64_t tape_bytes;
};

struct trainer;
rd_status trainer_open(const char *model, const struct trainer_options *o, struct trainer **out, struct rd_error *err);
void trainer_close(struct trainer *t); /* NULL is fine */

rd_status trainer_step(struct trainer *t, const struct train_sample *samples, uint32_t n, double lr,
                       struct train_result *out, struct rd_error *err);
/* The loss alone, without dropout. log_p: of every target, in order; or NULL. */
rd_status trainer_loss(struct trainer *t, const struct train_sample *samples, uint32_t n, float *log_p,
                       struct train_result *out, struct rd_error *err);
/* What a step would change the numbers by: gradients of the mean, A then B (its transposed) of every pair. */
rd_status trainer_gradient(struct trainer *t, const struct train_sample *samples, uint32_t n, struct train_result *out,
                           struct rd_error *err);
/* To out, [n_params]. */
rd_status trainer_gradients_get(struct trainer *t, float *out);

struct model;
struct model *trainer_model(struct trainer *t);
struct adapter *trainer_adapter(struct trainer *t);
uint64_t trainer_n_params(const struct trainer *t);
uint64_t trainer_n_steps(const struct trainer *t); /* that were made */
bool trainer_has_matrix_unit(
    const struct trainer *t); /* its gradients have a matrix unit's bits (grad/matrix_unit.h) */

/* All that the next step depends on: steps made, numbers, moments. n floats: 3 * n_params. RD_E_DEVICE alone. */
rd_status trainer_state_get(struct trainer *t, float *out);
rd_status trainer_state_set(struct trainer *t, uint64_t n_steps, const float *in);

/* What is computed with, as a file (adapter_save). */
rd_status trainer_save(struct trainer *t, const char *path, const struct adapter_save *s, struct rd_error *err);
