/* vision/encoder_inside.h - a transformer over patches, as all families have it, and what a family says about its own.
 *
 *     x = patches(values)                                                  the family's: embedding and positions
 *     per layer:
 *         q, k, v = wq n + bq, wk n + bk, wv n + bv,    n = norm(x)        turned by 2-D RoPE where the family turns
 *         x = x + wo softmax(q k^T / sqrt(head_dim)) v + bo                keys of the row's group: image, frame or window
 *         x = x + down(act(up norm(x) + ..) + ..) + ..                     or down(silu(gate) * up), where there is a gate
 *         deep(x)                                                          of some layers (DeepStack)
 *     rows = tail(x)                                                       the family's: merging or pooling, projection
 *
 * Work is cut into blocks of rows of one of these lines; ops compute each row by itself, so the cut does not show. Attention is
 * by heads: keys and values of ATTEND_HEADS are packed, then rows of these heads computed, as many as there is work for.
 * encoder_open.c loads, encoder.c walks through a run's phases, encoder_layers.c has a layer's ops.
 * Buffers of a run: x and attn [n, hidden], qkv [n, 3 hidden], packed keys and values, and scratch for a block of rows.
 *
 * On a device whose memory is not the host's the buffers are there; what goes there and what comes back goes through `stage`,
 * pinned memory of the encoder's in two halves: one is filled, or read, while the other is on its way.
 */
#pragma once
#include "vision/copiers.h"
#include "vision/encoder.h"

#define VISION_LAYERS  128u
#define VISION_DEEP    16u
#define BLOCK_ROWS     240u       /* on the host: whole groups of 16 rows (AMX), and of 6 (AVX2) */
#define DEVICE_ROWS    16384u     /* on a device: products are then large enough */
#define STAGE_ROWS     2048u      /* that come from the host, or go there, in a half of the stage */
#define ATTEND_HEADS   4u         /* on the host; a device takes all */
#define VISION_PATCHES (1u << 18) /* of one image */

struct vit_layer {
    struct weight ln1, ln1_b, ln2, ln2_b; /* [hidden]; b: LayerNorm */
    struct weight qkv, qkv_b;             /* [3 hidden, hidden]; or, where the file has them apart: */
    struct weight q, q_b, k, k_b, v, v_b;
    struct weight out, out_b;
    struct weight gate, gate_b; /* none: act(up) */
    struct weight up, up_b, down, down_b;
};

/* norm over patches (or, after_merge, over merged ones), fc2 gelu(fc1 x). */
struct vit_merger {
    struct weight norm, norm_b, fc1, fc1_b, fc2, fc2_b;
    bool after_merge;
    uint32_t layer; /* of DeepStack: behind which */
};

/* GUI-Actor's head (pointer.h): attention of patches among themselves, and two MLPs, of the text model's width. */
struct vit_pointer {
    struct weight in, in_b; /* [3 text_hidden, text_hidden]; in.data NULL: there is none */
    struct weight out, out_b, norm, norm_b;
    struct weight enc1, enc1_b, enc2, enc2_b, dec1, dec1_b, dec2, dec2_b;
};

struct vision_family {
    const char *projector; /* clip.projector_type */
    const char *text_arch; /* general.architecture of text models that its rows are for */
    bool rms_norm, gated, turns;
    enum gelu act;
    rd_status (*open)(struct vision_encoder *e, struct rd_error *err);
    /* Rows row0 .. row0 + n - 1 of x. */
    rd_status (*patches)(struct vision_run *r, uint32_t row0, uint32_t n);
    /* Rows of the result that come of patches row0 .. row0 + n - 1, whole units of merge * merge (or, lines: of whole lines). */
    rd_status (*tail)(struct vision_run *r, uint32_t row0, uint32_t n);
    bool pools_lines;
};
extern const struct vision_family vision_gemma3, vision_qwen2, vision_qwen25, vision_qwen3;

struct vision_encoder {
    const struct vision_family *family;
    const struct model_file *g;
    const struct backend_ops *ops;
    struct backend *be;
    struct vision_traits traits;
    uint32_t hidden, n_heads, head_dim, ffn, n_layers, text_hidden;
    uint32_t patch, temporal, merge, n_patch_values; /* values of a patch */
    float eps;
    uint32_t window;          /* patches of a side; 0: none */
    bool full[VISION_LAYERS]; /* layers without windows */
    struct weight patch_w, patch_b;
    float *positions; /* [n_positions, hidden]; NULL: none */
    uint32_t side;    /* n_positions = side * side */
    struct vit_layer *layers;
    struct weight post_ln, post_ln_b;
    struct vit_merger main, deep[VISION_DEEP];
    uint32_t n_deep;
    float *stage;            /* NULL: spans are host memory */
    uint64_t stage_floats;   /* of a half: both are mapped, pinned */
    uint32_t stage_half;     /* which was filled last */
    struct copiers *copiers; /* NULL: this thread copies all */
    struct buffer *spare;    /* on a device: of a run that ended, for the next; or NULL */
    uint64_t spare_floats;
    struct weight soft_norm, project; /* Gemma 3 */
    struct vit_pointer pointer;
    uint64_t n_bytes;
    bool is_local;
};

enum vit_phase { VIT_PATCHES, VIT_QKV, VIT_ATTEND, VIT_MIX, VIT_DEEP, VIT_TAIL, VIT_DONE };

struct vision_run {
    struct vision_encoder *e;
    struct vision_image *image;
    uint32_t n; /* patches */
    enum vit_phase phase;
    uint32_t layer, row, head, deep; /* of the next block; head: the first of those that are attended together */
    bool packed;                     /* their keys and values are */
    bool filled;                     /* by attend_fill, with their rows' q, k and v */
    uint32_t block;                  /* rows of a block, at most */
    float *memory;                   /* mapped */
    uint64_t n_bytes;
    struct buffer *buffer; /* on a device: what the spans are in, */
    uint64_t buffer_floats;
    struct span x, qkv, norm, delta, attn, up, gate; /* norm .. gate: of a block */
    float *rows;                                     /* [n_rows, n_floats] */
    struct span pack;
    struct span cosines, sines; /* [n, head_dim / 2] */
    float *angles;              /* of all lines and columns: fill_table */
    uint32_t *means;            /* [n / (merge * merge), merge * merge] rows of pooled ones */
    uint32_t *unit_of;          /* [n / (merge * merge)] which unit of the image stands there; NULL: itself */
    uint32_t *frames, *windows; /* ends of groups, */
    uint32_t *frame_blocks, *window_blocks; /* and blocks of keys before them */
    uint32_t n_frames, n_windows;
};

/* Weights by name; shape as wanted or RD_E_FORMAT. optional: out stays zeroed where the tensor is not there. */
rd_status vision_matrix(struct vision_encoder *e, const char *name, uint32_t n_out, uint32_t n_in, struct weight *out,
                        struct rd_error *err);
rd_status vision_vector(struct vision_encoder *e, const char *name, uint32_t n, bool optional, struct weight *out,
                        struct rd_error *err);
/* A tensor's n weights as floats, mem_free. */
rd_status vision_floats(struct vision_encoder *e, const char *name, uint64_t n, float **out, struct rd_error *err);
/* A matrix of floats that are made here. */
rd_status vision_make_matrix(struct vision_encoder *e, const char *name, const float *values, uint32_t n_out,
                             uint32_t n_in, struct weight *out, struct rd_error *err);
rd_status vision_u32(const struct vision_encoder *e, const char *key, bool needed, uint32_t min, uint32_t max,
                     uint32_t *out, struct rd_error *err);
/* out = x w + b; _once: it is read by what follows alone, which is vision_add_delta or vision_gelu of it. */
rd_status vision_linear(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                        struct span x, struct span out);
rd_status vision_linear_once(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                             struct span x, struct span out);
/* x = gelu(x), [n, width], for vision_linear alone. */
rd_status vision_gelu(const struct vision_encoder *e, enum gelu kind, uint32_t n, uint32_t width, struct span x);
/* for_linear: out is for vision_linear alone. */
rd_status vision_norm(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                      struct span x, struct span out, bool for_linear);
/* x += delta, of n rows of a run. */
rd_status vision_add_delta(const struct vision_run *r, struct span x, uint32_t n);
/* Heads that are attended together: at most; from r->head on. */
uint32_t vision_most_heads(const struct vision_encoder *e);
uint32_t vision_some_heads(const struct vision_run *r);
/* Rows row .. row + n - 1 of the present layer: x to q, k and v; attention of these heads, packing before it; what follows it. */
rd_status vision_qkv(struct vision_run *r, uint32_t row, uint32_t n);
rd_status vision_attend(struct vision_run *r, uint32_t row, uint32_t n);
rd_status vision_mix(struct vision_run *r, uint32_t row, uint32_t n);
/* n floats of a run's memory, *at behind them then. */
struct span vision_take_part(struct span *at, uint64_t n);
/* fn(arg, from, to) for all of 0 .. n - 1, in slices: where a device waits for the host's copies threads share them. */
void vision_share(const struct vision_encoder *e, uint32_t n, void (*fn)(void *arg, uint32_t from, uint32_t to),
                  void *arg);
/* Where the host writes n floats that vision_put then puts at `to`: in the half of the stage that is free now, or (at > 0) `at`
 * floats behind the first of that one. Other rooms of it, in that order, all before the next whose at is 0. */
float *vision_room(struct vision_encoder *e, struct span to, uint64_t at);
rd_status vision_put(struct vision_encoder *e, struct span to, uint64_t at, uint64_t n);
/* n floats, which stay until the next of these and those. */
rd_status vision_get(struct vision_encoder *e, struct span from, uint64_t n, const float **out);
/* n rows of `width`: fn(arg, values, first, some) for all of them in order, the next ones on their way meanwhile. */
rd_status vision_get_rows(struct vision_encoder *e, struct span from, uint32_t n, uint32_t width,
                          void (*fn)(void *arg, const float *values, uint32_t first, uint32_t some), void *arg);
/* Cosines and sines of rows row .. row + n - 1 of a run. */
void vision_copy_angles(const struct vision_run *r, uint32_t row, uint32_t n, float *cosines, float *sines);
/* pointer.c: the head's weights, where the file has them; unloaded with the encoder's. */
rd_status vision_pointer_open(struct vision_encoder *e, struct rd_error *err);
