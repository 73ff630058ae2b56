/* model/model_arch.h - what an architecture file gives to the loader, and what a loaded model is. Internal to
 * src/model/.
 *
 * An architecture archs/NAME.c exports `const struct model_arch model_NAME`; arch_list.h lists it. Nothing else asks which
 * architecture it is: what others need is a field of struct model_config or a column of struct model_arch.
 *
 *     gguf --read_config--> struct model_config --weights table--> checked tensors --weight_load--> struct model
 * --forward--> logits
 *
 * Thread  as model.h.
 */
#pragma once
#include <stddef.h>
#include "format/hub/hub_family.h"
#include "model/model.h"
#include "model/share.h"

/* One layer's weights. Those that the architecture's table does not name stay zeroed (data == NULL). */
struct layer {
    struct weight attn_norm, wq, wk, wv, wo; /* wq [q, hidden], wk, wv [kv, hidden], wo [hidden, q] */
    struct weight bq, bk, bv;                /* [q], [kv], [kv] */
    struct weight q_norm, k_norm;            /* [head_dim] */
    struct weight post_attn_norm, ffn_norm;  /* [hidden] */
    struct weight gate, up, down;            /* [ffn, hidden] twice, [hidden, ffn] */
    struct weight post_ffn_norm;             /* [hidden] */
};

/* The weights outside the layers. */
struct outer_weights {
    struct weight embed;       /* [n_vocab, hidden], rows gathered by token */
    struct weight output_norm; /* [hidden] */
    struct weight output;      /* [n_vocab, hidden]; the embedding's tensor again when tied */
    struct weight rope_freqs;  /* [n_rot / 2] divisors of the RoPE frequencies (Llama 3.1) */
};

/* A width that depends on the config. */
enum tensor_dim { DIM_ONE, DIM_HIDDEN, DIM_FFN, DIM_VOCAB, DIM_Q, DIM_KV, DIM_HEAD, DIM_HALF_ROT };

/* One row of an architecture's weights table. Matrix: file shape [n_in, n_out] (GGUF writes the contiguous one first);
 * vector: [n_in]. */
struct tensor_spec {
    const char *field;  /* name in errors: "wq" */
    const char *suffix; /* "attn_q.weight": the tensor is blk.N.SUFFIX, or SUFFIX itself when outer */
    bool outer, optional;
    enum weight_role role;
    enum tensor_dim n_out, n_in;
    size_t offset; /* of the struct weight, in struct layer or struct outer_weights */
};

struct model_arch {
    const char *names[4]; /* values of general.architecture, NULL-terminated */
    /* Fills what differs from config_read_common()'s result, which is in *c already. */
    rd_status (*read_config)(const struct model_file *g, struct model_config *c, struct rd_error *err);
    const struct tensor_spec *weights;
    uint32_t n_weights;
    rd_status (*forward)(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits);
    /* What the architecture means for others. */
    const char *chat; /* the built-in chat format of a file without a template; NULL: its vocabulary tells */
    bool interleaves; /* GGUF files have the rows of wq and wk in RoPE's pairs, directories of the hub do not */
    const struct hub_family *hub; /* config.json; [n_hub] */
    uint32_t n_hub;
    const struct kv_loss *kv_losses; /* [n_kv_losses], measured; kv_fidelity.c */
    uint32_t n_kv_losses;
};

/* By how many percent keys of these types change perplexity, worst of the files measured. */
struct kv_loss {
    uint32_t head_dim;
    double q4_0, f8_e4m3;
};

/* Activations, allocated once for max_rows rows; blocks.c says who uses which. Heads and ffn are this rank's. */
struct workspace {
    struct buffer *memory;
    uint64_t n_bytes;
    struct span x, norm, delta; /* [max_rows, hidden] */
    struct span q, attn;        /* [max_rows, n_heads * head_dim] */
    struct span k, v;           /* [max_rows, n_kv_heads * head_dim] */
    struct span gate, up;       /* [max_rows, ffn] */
    struct span joined, part;   /* [max_rows, the larger of ffn and q], [max_rows, a rank's hidden]; of several ranks */
    struct span logits;         /* [max_logits, n_vocab] on a device; nowhere: the caller's memory is written */
    struct span choices;        /* [max_logits] struct row_choice; nowhere: the backend does not choose */
    struct span x_last, q_last; /* the same as x, q for the rows that are wanted: last layer */
    struct seq_run *runs_last;  /* [max_rows], host memory */
    uint32_t *rows_last;        /* [max_rows], host memory: which rows those are */
    struct span low_rank;       /* [max_rows, 3 * ADAPTER_MIX_RANKS]: scratch of low_rank, where the backend has it */
    struct low_rank_term *terms;          /* [3 * ADAPTER_MIX_MAX * max_rows], host memory */
    struct adapted_group *adapted_groups; /* [max_rows] */
    uint32_t *adapted_rows;               /* [max_rows] */
    struct padded_step *padded;           /* decode_step.c; NULL: the backend records nothing */
};

struct model {
    struct model_config config;
    struct model_share share; /* the whole of it, where n_ranks is 1; else: */
    struct rank_group *group;
    const struct model_arch *arch;
    const struct backend_ops *ops;
    struct backend *be;
    uint32_t max_rows, max_logits;
    struct outer_weights outer;
    struct layer *layers;                   /* [n_layers] */
    float *inv_freq_host;                   /* [2][n_rot / 2]: global, local; must outlive the two weights below */
    struct weight inv_freq, inv_freq_local; /* [n_rot / 2] */
    float rope_mscale;
    uint8_t *rope_axis_of; /* [n_rot / 2] time, height, width; NULL: no M-RoPE */
    struct workspace ws;
    struct tensor_bytes embed; /* the embedding's rows, where they are not the file's own */
    uint64_t weight_bytes, packed_bytes;
    bool is_launching; /* the pass ends with the head's launch: results are delivered later */
    const struct model_file *g;
    struct packed_weights *packed; /* NULL: none wanted */
};

#define MODEL_PAD_ROWS 8u
/* ---- decode_step.c: a forward pass, as a recorded graph where the backend has them ---- */
rd_status padded_step_create(struct model *m);
void padded_step_destroy(struct model *m);
/* model_begin's. */
rd_status decode_step_begin(struct model *m, struct kv_storage *kv, const struct model_batch *b, const uint32_t *from);
/* model_warm_up's. */
rd_status decode_step_warm_up(struct model *m, struct kv_storage *kv, struct kv_storage *windows);
rd_status decode_step_forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits);

/* ---- registry.c ---- */
/* NULL: unknown. */
const struct model_arch *model_arch_find(const char *name, size_t n);

/* ---- model_config.c: reading keys named ARCH.suffix, ARCH being c->arch ---- */
/* ARCH.SUFFIX is there and true. */
bool config_flag(const struct model_file *g, const struct model_config *c, const char *suffix);
/* The value must be there and in min .. max: RD_E_FORMAT names the key and the range. */
rd_status config_u32(const struct model_file *g, const struct model_config *c, const char *suffix, uint32_t min,
                     uint32_t max, uint32_t *out, struct rd_error *err);
rd_status config_f32(const struct model_file *g, const struct model_config *c, const char *suffix, double min,
                     double max, float *out, struct rd_error *err);
/* The same, but *out stays as it is when the key is absent. */
rd_status config_u32_optional(const struct model_file *g, const struct model_config *c, const char *suffix,
                              uint32_t min, uint32_t max, uint32_t *out, struct rd_error *err);
rd_status config_f32_optional(const struct model_file *g, const struct model_config *c, const char *suffix, double min,
                              double max, float *out, struct rd_error *err);

/* rope.dimension_sections, which must be there: M-RoPE. */
rd_status config_rope_sections(const struct model_file *g, struct model_config *c, struct rd_error *err);

/* ---- rope_freqs.c ---- */
/* out[i] = frequency of pair i, i < n_rot / 2. factors: the divisors of rope_freqs.weight, or NULL. *mscale: what cos
 * and sin are multiplied by. */
void rope_global_freqs(const struct model_config *c, const float *factors, float *out, float *mscale);
/* What Llama 3.1's scaling divides each frequency by, as rope_freqs.weight has it. */
void rope_llama3_divisors(const struct model_config *c, float *out);
/* Which axis each pair turns by, of a config with sections. */
void rope_axes_of_pairs(const struct model_config *c, uint8_t *out);
/* Sliding-window layers: base rope_base_local, no scaling. */
void rope_local_freqs(const struct model_config *c, float *out);

/* ---- model_load.c ---- */
uint32_t tensor_dim_size(const struct model_config *c, enum tensor_dim d);
/* Which rows of a matrix with that many outputs this rank has: a width is that of heads, of ffn, of hidden, of the vocabulary. */
struct cut model_rows_cut(const struct model *m, enum tensor_dim out);
