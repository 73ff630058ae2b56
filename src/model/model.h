/* model/model.h - a model: its config, its weights on a backend, and its forward pass.
 *
 * An architecture is one file, archs/NAME.c, that exports a struct model_arch; arch_list.h lists them. The loader reads the
 * config, checks every tensor's name, type and shape against the architecture's table, and loads the weights.
 *
 * Thread  load: any one thread; then read-only, except for the workspace, which the engine thread owns.
 * Errors  RD_E_FORMAT "layer 3 wq (blk.3.attn_q.weight): shape [4096,512], expected [4096,1024]"; RD_E_UNSUPPORTED
 *         names the architecture, scaling, backend op or left-over tensor.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "backend/backend.h"
#include "format/model_file.h"
#include "model/model_batch.h"
#include "radish/status.h"

struct model_config {
    char arch[32], name[128];
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, hidden, ffn, n_vocab, n_ctx_train;
    float norm_eps;
    /* RoPE */
    uint32_t n_rot;
    enum rope_layout rope_layout;
    float rope_base, rope_base_local; /* local: sliding-window layers (Gemma 3); else equal */
    float rope_linear_factor;         /* positions / factor, on global layers; 1 = none */
    /* attention */
    float attn_scale;                  /* 1/sqrt(head_dim) normally */
    float attn_softcap, final_softcap; /* 0 = none */
    uint32_t window;                   /* sliding window of local layers; 0 = none */
    uint32_t window_pattern;           /* every such layer is global: i with (i + 1) % window_pattern == 0 */
    float embed_scale;
    enum activation act;
    bool tied_head, post_norms, qk_norms, qkv_bias;
    /* Llama 3.1 scaling given as keys (rope.scaling.type llama3): factor 0 = none. As a tensor: rope_freqs.weight. */
    float rope_llama3_factor, rope_llama3_low, rope_llama3_high;
    uint32_t rope_n_ctx_orig;
    /* YaRN, when rope.scaling.type is yarn: factor 0 = none */
    float yarn_factor, yarn_beta_fast, yarn_beta_slow, yarn_mscale;
    uint32_t yarn_n_ctx_orig;
    /* M-RoPE: pairs of the sections time, height, width; 0, 0, 0: none. interleaved: pair i is of axis i % 3 as long as that
     * axis has pairs, then of time; else section after section. */
    uint32_t rope_sections[3];
    bool rope_sections_interleaved;
    uint32_t n_deep; /* layers behind which rows of an image have something added (DeepStack); < n_layers */
};

struct model;
/* fn and cancelled may be NULL; cancelled says true: loading ends with RD_E_CANCELLED. */
struct model_progress {
    void (*fn)(void *arg, double fraction);
    void *arg;
    bool (*cancelled)(void *arg);
};

/* g and ops are borrowed and must outlive the model; the backend is the caller's. max_rows and max_logits bound every
 * batch (workspace). */
rd_status model_load(const struct model_file *g, const struct backend_ops *ops, struct backend *be, uint32_t max_rows,
                     uint32_t max_logits, const struct model_progress *progress, struct model **out,
                     struct rd_error *err);
/* The same, with weights from a packed file of an earlier start where there is one (format/packed_file.h); otherwise
 * one is written in the background, at the lowest priority, from the weights in memory. packed NULL: neither. */
struct packed_options;
struct model_source {
    const struct model_file *g;
    const struct backend_ops *ops;
    struct backend *be;
    uint32_t max_rows, max_logits;
    const struct model_progress *progress;
    const struct packed_options *packed; /* copied, except for dir, which must outlive the model */
    /* A rank's part of it (share.h), whose passes are those of all ranks at the same time; n_ranks 0 or 1: all of it. The ranks'
     * batches say the same; they write their columns of the same logits. packed NULL. */
    uint32_t rank, n_ranks;
    struct rank_group *group; /* borrowed */
};
rd_status model_load_packed(const struct model_source *s, struct model **out, struct rd_error *err);
/* Waits for a packed file that is being written, MODEL_SAVE_WAIT_NS at most. */
void model_destroy(struct model *m);
#define MODEL_SAVE_WAIT_NS 5000000000u
/* Reads and checks the config alone (inspect, memory need). */
rd_status model_read_config(const struct model_file *g, struct model_config *out, struct rd_error *err);
/* How many of the first n layers see everything before them; the others see the window. */
uint32_t model_n_global(const struct model_config *c, uint32_t n);
/* The config and every tensor's name, type and shape, without loading any. */
rd_status model_check_tensors(const struct model_file *g, struct rd_error *err);
const struct model_config *model_config(const struct model *m);
/* What the head multiplies states with. */
const struct weight *model_head_weight(const struct model *m);
/* Refuses KV types that are known to ruin the model's text, and says what to take instead (kv_fidelity.c). */
rd_status model_check_kv_types(const struct model_config *c, enum dtype keys, struct rd_error *err);
/* Anonymous or device bytes taken by weights, bytes of weights in a mapped packed file (shared with other processes),
 * and bytes of the workspace. */
uint64_t model_weight_bytes(const struct model *m);
uint64_t model_packed_bytes(const struct model *m);
uint64_t model_workspace_bytes(const struct model *m);
/* The built-in chat format (text/chat/chat_builtins.h) of an architecture's files without a template; NULL: unknown here, or its
 * vocabulary tells. */
const char *model_chat_format(const char *arch);
/* For model_file_open: every architecture's rows. */
const struct hub_families *model_hub_families(void);
/* Comma-separated architecture names. */
const char *model_known_archs(void);

/* The model file or the packed file was cut short, or its disk failed: every pass fails from then on. */
bool model_is_broken(const struct model *m);
/* logits: [n_logits, n_vocab] f32, host memory. The KV of all rows is written to kv. Waits for the device. RD_E_DEVICE,
 * then and ever after: model_is_broken. RD_E_UNSUPPORTED: rope_axes
 * of a model without M-RoPE; a span, or axes, that the backend does not know; embeds of another width than
 * hidden * (1 + n_deep). */
rd_status model_forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits);
/* A pass in which every sequence has one row, all of them unread, that is not waited for. from[i]: the row of the pass
 * begun before whose choice is row i's token, read on the device; MODEL_OWN_TOKEN, or from NULL: tokens[i]. At most two
 * are under way. b's arrays for results stay until model_end, which waits for the one begun first. model_can_begin: these
 * work here. */
#define MODEL_OWN_TOKEN UINT32_MAX
bool model_can_begin(const struct model *m);
bool model_begins_adapted(const struct model *m); /* rows with adapters, too */
rd_status model_begin(struct model *m, struct kv_storage *kv, const struct model_batch *b, const uint32_t *from);
rd_status model_end(struct model *m);
/* A step's time of work on the decode steps' graphs, so that no request waits for them to be made: most rows first, all
 * lengths that kv could hold for them. windows: as a batch's, or NULL. Nothing may be under way. Of ranks all take the same steps.
 * RD_E_AGAIN: there is more; RD_OK: none is left, or none is recorded here; else it failed, and there is no more. */
rd_status model_warm_up(struct model *m, struct kv_storage *kv, struct kv_storage *windows);
/* Whether choices and unread above do anything: on a device. */
bool model_gives_choices(const struct model *m);
/* Whether best above does. */
bool model_gives_best(const struct model *m);
/* A row of the last forward pass that was unread after all: computed from its state, with the same bits. */
rd_status model_read_logits(struct model *m, uint32_t row, float *logits);
/* The head alone, on states of earlier passes ([hidden] each, host memory), n in 1 .. max_logits: the bits that the
 * pass gave. */
rd_status model_head(struct model *m, uint32_t n, const float *const *states, float *logits);
/* The head on states first .. first + n - 1 of those that the last pass gave (hidden rows; it wanted no logits), n in 1 ..
 * max_logits: the same bits. *out: [n, n_vocab] in the backend's memory until the next pass; host: where that is, on a
 * backend that shares the host's. */
rd_status model_head_of_pass(struct model *m, uint32_t first, uint32_t n, float *host, struct span *out);
