/* model/blocks.h - the pieces that layers are made of, as steps over one batch.
 *
 * A struct pass carries the residual stream x and the last block's output d ("delta"), which is added to x at the start
 * of the next norm, as backend ops fuse them:
 *
 *     pass_begin        x = embed_scale * embedding[tokens], or the encoder's rows
 *     pass_norm         x += d, or x += rmsnorm(d) * post_norm;  n = rmsnorm(x) * norm
 *     pass_attention    d = wo attention(rope(wq n), cache with rope(wk n), wv n)
 *     pass_deep         x += what the encoder gives for this layer (DeepStack), right before pass_mlp
 *     pass_mlp          d = down(act(gate n) * (up n))
 *     pass_logits       logits = cap(output s), s = rmsnorm(x + d): the state
 *
 * In the last layer nothing but the keys and values of rows without wanted logits or states is ever read again, so
 * pass_attention goes on with the wanted rows alone after writing those: first the logit rows, then the hidden rows
 * (rows do not depend on each other: the bits stay the same).
 *
 * After a failure every call does nothing: the forward pass checks once, in pass_logits' result.
 * Thread  engine thread only.
 */
#pragma once
#include "model/adapter_inside.h"
#include "model/model_arch.h"

struct pass {
    struct model *m;
    struct kv_storage *kv;
    const struct model_batch *b;
    rd_status st;
    uint32_t n_rows;  /* rows still computed; 0 when nothing more is wanted */
    struct span x, q; /* of those rows */
    uint32_t n_runs;
    const struct seq_run *runs;  /* of those rows */
    bool has_delta;              /* the block before left one */
    struct adapted_rows adapted; /* those of these rows that have adapters */
};

/* What one layer's attention needs to know beyond the weights. */
struct attention_kind {
    const struct weight *inv_freq; /* [n_rot / 2] */
    float mscale;
    uint32_t window; /* 0 = all earlier tokens */
};

struct pass pass_begin(struct model *m, struct kv_storage *kv, const struct model_batch *b);
/* post_norm NULL: d is added as it is. */
void pass_norm(struct pass *p, const struct weight *post_norm, const struct weight *norm);
/* Adds the biases and q, k norms that the layer has (those loaded). */
void pass_attention(struct pass *p, uint32_t layer, const struct attention_kind *kind);
void pass_deep(struct pass *p, uint32_t layer);
void pass_mlp(struct pass *p, uint32_t layer);
rd_status pass_logits(struct pass *p, const struct weight *post_norm, float *logits);
/* What a pass with m->is_launching left on the device, to b's arrays and the caller's logits; deliver waits for it. */
rd_status pass_send(struct model *m, const struct model_batch *b, float *logits);
rd_status pass_deliver(struct model *m, const struct model_batch *b, float *logits);
/* Whether nothing is wanted of the rows of logits but their choices, and the device makes those without the rows: a step
 * of other kernels. */
bool pass_only_chooses(const struct model *m, const struct model_batch *b);
/* On a device: a row of the pass before, whose states are still there, whether its logits were computed then or not. */
rd_status pass_read_logits(struct model *m, uint32_t row, float *logits);
/* Logits of states that an earlier pass_logits gave. */
rd_status pass_head(struct model *m, uint32_t n, const float *const *states, float *logits);
/* Of those that the pass before gave, left where the backend computes them. */
rd_status pass_head_of_pass(struct model *m, uint32_t first, uint32_t n, float *host, struct span *out);

/* Every layer global, RoPE as configured. */
struct attention_kind attention_global(const struct model *m);
/* Every window_pattern-th layer global, the others within the window. */
bool layer_is_global(const struct model_config *c, uint32_t layer);

/* Sizes and takes the activations for m->max_rows rows; the reverse. */
rd_status workspace_init(struct model *m);
void workspace_deinit(struct model *m);

/* Rows of a weights table, and those that every architecture here has. */
/* clang-format off */
#define OUTER_WEIGHT(field, suffix, optional, role, n_out, n_in) \
    {#field, suffix, true, optional, role, n_out, n_in, offsetof(struct outer_weights, field)}
#define LAYER_WEIGHT(field, suffix, optional, role, n_out, n_in) \
    {#field, suffix, false, optional, role, n_out, n_in, offsetof(struct layer, field)}
#define LAYER_MATRIX(field, suffix, n_out, n_in)     LAYER_WEIGHT(field, suffix, false, WEIGHT_MATRIX, n_out, n_in)
#define LAYER_VECTOR(field, suffix, width)           LAYER_WEIGHT(field, suffix, false, WEIGHT_VECTOR, DIM_ONE, width)
#define LAYER_VECTOR_OPTIONAL(field, suffix, width)  LAYER_WEIGHT(field, suffix, true, WEIGHT_VECTOR, DIM_ONE, width)

#define COMMON_WEIGHTS                                                                               \
    OUTER_WEIGHT(embed, "token_embd.weight", false, WEIGHT_EMBED, DIM_VOCAB, DIM_HIDDEN),            \
    OUTER_WEIGHT(output_norm, "output_norm.weight", false, WEIGHT_VECTOR, DIM_ONE, DIM_HIDDEN),      \
    OUTER_WEIGHT(output, "output.weight", true, WEIGHT_MATRIX, DIM_VOCAB, DIM_HIDDEN),               \
    LAYER_VECTOR(attn_norm, "attn_norm.weight", DIM_HIDDEN),                                         \
    LAYER_MATRIX(wq, "attn_q.weight", DIM_Q, DIM_HIDDEN),                                            \
    LAYER_MATRIX(wk, "attn_k.weight", DIM_KV, DIM_HIDDEN),                                           \
    LAYER_MATRIX(wv, "attn_v.weight", DIM_KV, DIM_HIDDEN),                                           \
    LAYER_MATRIX(wo, "attn_output.weight", DIM_HIDDEN, DIM_Q),                                       \
    LAYER_VECTOR(ffn_norm, "ffn_norm.weight", DIM_HIDDEN),                                           \
    LAYER_MATRIX(gate, "ffn_gate.weight", DIM_FFN, DIM_HIDDEN),                                      \
    LAYER_MATRIX(up, "ffn_up.weight", DIM_FFN, DIM_HIDDEN),                                          \
    LAYER_MATRIX(down, "ffn_down.weight", DIM_HIDDEN, DIM_FFN)
/* clang-format on */
