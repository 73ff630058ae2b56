/* backend/cuda/host/cuda_backend.h - the CUDA backend: one device, one stream, all work in order.
 *
 * Memory
 *   activations   a buffer is f32 memory with a shadow: bf16 for float i of it lies at shadow[i]. Ops whose
 *                 output a matrix product reads write both (norm, attention, glu, copy from the host).
 *   weights       struct weight.data of a matrix or embedding is a struct cuda_weight; of a vector, f32 device memory.
 *                 One tensor of the file is kept once, however often it is loaded (tied heads).
 *   low_rank      struct weight.data is device memory, the values as they are in the file. Loaded and unloaded by any thread,
 *                 while steps run (cuda_weights.c).
 *   metadata      host arrays that ops are given (tokens, positions, block tables ..) go through one pinned buffer to
 *                 the same place of one device buffer; an array that several ops of a step share is sent once. The
 *                 buffer is empty again after sync. While weights are loaded the buffers are their stages.
 * Nothing else is allocated after model_load and pages.create.
 *
 * Fusion  an op whose output is read `once` is held back (struct cuda_held). residual_norm then linear or linear_glu of its
 *         output, linear, or a join, then the residual_norm that adds it, qkv_rope_write then attention, low_rank_rows of gate and
 *         up then glu: one kernel, the same bits. Whatever else follows launches it first.
 *
 * Errors  the first error of the device is logged with its name; from then on every op and sync gives RD_E_DEVICE: a
 *         CUDA context does not recover from a failed kernel. Memory that is refused at load is RD_E_NOMEM and harms
 *         nothing, and a copy of pages that fails is RD_E_IO and harms those (cuda_move.c).
 * Thread  as backend.h.
 */
#pragma once
#include <cuda_runtime_api.h>
#include "backend/backend.h"
#include "backend/cuda/cuda_kernels.h"
#include "backend/pin_map.h"

/* A tensor on the device. */
struct cuda_weight {
    struct cuda_weight *next;
    const void *key; /* the tensor's bytes in the file */
    uint32_t n_holders;
    uint64_t n_bytes;
    void *memory;
    struct cuda_matrix m;
};

struct buffer {
    char *base;
    uint64_t n_bytes;
    uint16_t *shadow;
};
/* Where a span is on the device, and its shadow; NULL: nowhere. */
static inline void *cuda_at(struct span s)
{
    return s.buffer ? s.buffer->base + s.at : NULL;
}
static inline uint16_t *cuda_shadow(struct span s)
{
    return s.buffer ? s.buffer->shadow + s.at / sizeof(float) : NULL;
}

/* A host array that is on the device until the next sync. */
struct cuda_sent {
    const void *host;
    uint64_t n_bytes; /* of runs: n_runs */
    const void *device;
    const uint32_t *tables; /* of runs */
    uint32_t longest, end;
    bool sees_both_ways;
    struct cuda_shared shared; /* of runs */
};
#define CUDA_MAX_SENT   64u
#define CUDA_MARKS      4u /* more than steps under way */
#define CUDA_META_BYTES (64ull << 20)
#define CUDA_MAX_GRAPHS 512u

/* A recorded step. exec NULL: seen once, not recorded yet. */
struct cuda_graph {
    const void *owner;
    uint32_t n_rows, end; /* end: all positions are below */
    uint32_t most_ranks;  /* as graph_step's; 0: no row has an adapter */
    uint32_t kinds;       /* of their adapters (cuda_adapted_kinds) */
    bool shares;          /* some rows begin with the same pages */
    cudaGraphExec_t exec;
};

/* Copies of pages in one direction. */
#define CUDA_LANE_EVENTS 64u
struct cuda_lane {
    cudaStream_t stream; /* NULL: never used */
    cudaEvent_t order, done[CUDA_LANE_EVENTS];
    uint64_t n_begun, n_done; /* tickets; of the first n_done it is known */
};

/* The op held back, until the next shows whether one kernel does both; its arguments are a copy. */
struct cuda_held {
    enum cuda_held_op {
        CUDA_HELD_NONE,
        CUDA_HELD_NORM,
        CUDA_HELD_LINEAR,
        CUDA_HELD_QKV,
        CUDA_HELD_JOIN,
        CUDA_HELD_ADAPTED
    } op;
    union {
        struct residual_norm_args norm; /* without delta */
        struct linear_args linear;      /* one matrix */
        struct qkv_args qkv;
        struct join_args join;                  /* small: cuda_join_adds */
        struct cuda_low_rank_rows_args adapted; /* of two outs, t is made */
    };
};
#define CUDA_HELD_ROWS 256u /* larger batches are not held: the kernels that do both are for few rows */

struct backend {
    struct cuda_launch l;
    int device;
    char name[256];
    uint64_t memory_bytes;
    bool is_dead;
    struct cuda_weight *weights;
    struct cuda_held held;
    /* beside the ops of a graph: t of adapters, from fork to join */
    struct cuda_branch {
        void *stream; /* cudaStream_t */
        cudaEvent_t fork, join;
        bool has_t; /* of the low_rank_rows that follows */
    } branch;
    /* metadata */
    char *meta_hosts[2], *meta_host; /* graph steps take them in turn: the one before may not be sent yet */
    char *meta_device;
    uint64_t n_meta;
    struct cuda_sent sent[CUDA_MAX_SENT];
    uint32_t n_sent;
    /* graphs */
    bool no_graphs;
    struct cuda_graph *graphs;
    size_t n_graphs, recording; /* graphs: [CUDA_MAX_GRAPHS]; recording: index */
    /* how busy the device was in replayed steps: logged at the end (debug) */
    struct cuda_timing {
        cudaEvent_t begin, end;
        bool is_on;
    } timings[CUDA_MARKS]; /* [n_begun % CUDA_MARKS] */
    uint64_t n_timed, n_gaps;
    double busy_ms, idle_ms; /* idle: between replayed steps that follow each other */
    cudaEvent_t last_end;    /* of the step read last, if it was replayed and nothing else came; or NULL */
    /* steps begun and not waited for: [n_waited, n_begun) */
    cudaEvent_t marks[CUDA_MARKS];
    uint64_t n_begun, n_waited;
    struct cuda_loader *loader; /* while weights are loaded (cuda_weights.c), else NULL */
    struct cuda_lane lanes[2];  /* to the device, to the host */
    struct pin_map pins;        /* what cuda_pin pinned */
    enum join_way join_way;     /* that was asked for */
    struct cuda_joins *joins;   /* of ranks (cuda_join.c), else NULL */
    uint64_t n_copy_errors;     /* of the lanes, that did not stay */
};

/* cuda_backend.c: RD_OK for 0; else the device is dead, which is logged. */
rd_status cuda_check(struct backend *be, int error, const char *what);
/* A layer's part of the pages, as kernels have it. */
struct cuda_kv cuda_layer_kv(const struct kv_storage *kv, uint32_t layer);
/* From now on this thread's calls are for this device. */
rd_status cuda_here(struct backend *be);

/* cuda_join.c */
rd_status cuda_connect(struct backend *be, struct rank_group *group, uint32_t rank, uint32_t n_ranks,
                       struct rd_error *err);
rd_status cuda_op_join(struct backend *be, const struct join_args *a);
/* add_to: as cuda_join_args'. */
rd_status cuda_launch_join(struct backend *be, const struct join_args *a, float *add_to);
/* A join (or NULL) whose columns are about to be computed may begin with them where it has a place for them (the same on all
 * ranks), else NULL. begin: they go there, *stride values a row, and to *copies, if it says *begun: if `can`, that this rank's
 * kernel does that, is true of all ranks. op.join of it then waits for the others'. */
void *cuda_join_place(const struct backend *be, const struct join_args *a, uint32_t *stride);
rd_status cuda_join_begin(struct backend *be, const struct join_args *a, bool can, struct cuda_copies *copies,
                          bool *begun);
bool cuda_join_has_begun(const struct backend *be);
/* The rest of a begun join of f32, and the norm that reads it as its delta: in one kernel where that can be. */
rd_status cuda_join_norm(struct backend *be, const struct join_args *a, const struct cuda_norm_args *norm);
void cuda_joins_free(struct backend *be);
/* Waits for the other ranks; RD_OK where there are none. */
rd_status cuda_joins_ready(struct backend *be);
/* Before a step is replayed: the same, where its kernels want it. */
rd_status cuda_joins_replay(struct backend *be);

/* cuda_nccl.c: until the ops' stream, or a cudaEvent_t, is done. NCCL's kernels are not waited for in vain. */
rd_status cuda_wait_all(struct backend *be, const char *what);
rd_status cuda_wait_event(struct backend *be, void *event, const char *what);

/* cuda_graph.c */
rd_status cuda_graph_begin(struct backend *be, const struct graph_step *s, enum graph_action *out);
rd_status cuda_graph_end(struct backend *be);
void cuda_timing_end(struct backend *be); /* before and after the step's sync: */
void cuda_timing_read(struct backend *be, uint64_t step);
bool cuda_can_mark(const struct backend *be);
rd_status cuda_mark(struct backend *be);
rd_status cuda_wait_mark(struct backend *be);
void cuda_graphs_free(struct backend *be);

/* cuda_move.c */
rd_status cuda_move_begin(struct backend *be, const struct kv_storage *kv, bool out, uint32_t n, const kv_page *ids,
                          void *const *host, uint64_t *ticket);
rd_status cuda_move_end(struct backend *be, bool out, uint64_t ticket, bool wait);
void cuda_lanes_free(struct backend *be);

/* cuda_memory.c */
uint64_t cuda_free_bytes(struct backend *be);
rd_status cuda_alloc(struct backend *be, uint64_t n_bytes, struct buffer **out);
void cuda_free(struct backend *be, struct buffer *b);
/* cudaMalloc; a refusal is RD_E_NOMEM and leaves no error behind. */
rd_status cuda_device_alloc(struct backend *be, uint64_t n_bytes, void **out);
rd_status cuda_kv_create(struct backend *be, const struct kv_layout *layout, uint32_t n_pages, struct kv_storage *out);
void cuda_kv_destroy(struct backend *be, struct kv_storage *kv);
rd_status cuda_read(struct backend *be, void *to, struct span from, uint64_t n_bytes);
rd_status cuda_write(struct backend *be, struct span to, const void *from, uint64_t n_bytes);
rd_status cuda_kv_read(struct backend *be, const struct kv_storage *kv, void *to, kv_page from);
rd_status cuda_kv_write(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from);
void cuda_pin(struct backend *be, void *p, uint64_t n_bytes, bool on);

/* cuda_weights.c */
bool cuda_weight_takes(const struct backend *be, enum dtype t);
rd_status cuda_weight_load(struct backend *be, const struct host_tensor *t, enum weight_role role, struct weight *out,
                           struct rd_error *err);
rd_status cuda_weights_done(struct backend *be, struct rd_error *err);
void cuda_weight_unload(struct backend *be, struct weight *w);
rd_status cuda_load_pairs(struct backend *be, const struct low_rank_pair *pairs, uint32_t n, struct weight *out,
                          struct rd_error *err);
/* Weights are under way: the metadata's buffers are in use. */
bool cuda_is_loading(const struct backend *be);
/* Ends the loader's threads; the next weight_load starts others. */
void cuda_loader_free(struct backend *be);

/* cuda_encode.c */
rd_status cuda_op_layer_norm(struct backend *be, const struct layer_norm_args *a);
int cuda_gelu_form(enum gelu kind);
rd_status cuda_op_gelu(struct backend *be, const struct gelu_args *a);
rd_status cuda_op_turn(struct backend *be, const struct turn_args *a);
rd_status cuda_op_mean_rows(struct backend *be, const struct mean_args *a);
rd_status cuda_op_attend_pack(struct backend *be, const struct attend_args *a);
rd_status cuda_op_attend(struct backend *be, const struct attend_args *a);
rd_status cuda_op_attend_fill(struct backend *be, const struct attend_args *a, const struct turn_args *turn);

/* cuda_ops.c */
/* *device: the host array's copy there, sent once between two syncs. */
rd_status cuda_send(struct backend *be, const void *host, uint64_t n_bytes, const void **device);
/* The pages of a run of such keys and values to `to`, n of them: the padding's page for those that its rows do not see and its
 * table need not name. */
void cuda_put_table(uint32_t *to, const struct seq_run *run, uint32_t n, const struct kv_storage *kv);
/* Launches what is held back; before all that is not an op of that file, too. */
rd_status cuda_let_go(struct backend *be);
/* Finds what runs share whose positions are below end, for what lies at `memory` of be->meta_host; out: its place on the
 * device, or none. */
struct cuda_shared cuda_share_runs(struct backend *be, const struct cuda_run *runs, uint32_t n_runs, uint32_t end,
                                   const uint32_t *tables, const struct kv_storage *kv, void *memory);
rd_status cuda_op_embed(struct backend *be, const struct weight *w, uint32_t n_rows, const int32_t *tokens, float scale,
                        struct span out);
rd_status cuda_op_residual_norm(struct backend *be, const struct residual_norm_args *a);
rd_status cuda_op_linear(struct backend *be, const struct linear_args *a);
/* The product that is held back and gelu of it at once; RD_E_UNSUPPORTED: none is, or no kernel does that, and what was held
 * still is. */
rd_status cuda_gelu_of_held(struct backend *be, const struct gelu_args *a);
/* The same of attend_fill: the product that is held back makes its q, k and v. */
struct cuda_attend_fill_args;
rd_status cuda_heads_of_held(struct backend *be, const struct attend_args *a, const struct cuda_attend_fill_args *fill);
rd_status cuda_op_linear_glu(struct backend *be, const struct linear_glu_args *a);
rd_status cuda_op_qkv_rope_write(struct backend *be, const struct qkv_args *a);
rd_status cuda_op_attention(struct backend *be, const struct attention_args *a);
rd_status cuda_op_glu(struct backend *be, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                      struct span up, struct span out);
rd_status cuda_op_low_rank(struct backend *be, const struct low_rank_args *a);
/* Of two WEIGHT_LOW_RANK. */
struct cuda_low_rank_pair cuda_pair_of(const struct weight *a, const struct weight *b, float scale);
/* out [n]: the rows as low_rank_rows' kernel reads them, those of the same adapters together. */
void cuda_adapted_tiles(const struct low_rank_row *rows, uint32_t n, struct cuda_low_rank_tile *out);
/* CUDA_LOW_RANK_HALVES ..: of all that they use. */
uint32_t cuda_adapted_kinds(const struct low_rank_row *rows, uint32_t n);
rd_status cuda_op_low_rank_rows(struct backend *be, const struct low_rank_rows_args *a);
rd_status cuda_op_gather(struct backend *be, uint32_t n, uint32_t width, struct span x, const uint32_t *rows,
                         struct span out);
rd_status cuda_op_softcap(struct backend *be, struct span x, uint64_t n, float cap);
rd_status cuda_op_choose(struct backend *be, uint32_t n_rows, uint32_t n_vocab, struct span logits,
                         const struct row_draw *draws, struct span choices);
rd_status cuda_op_linear_choose(struct backend *be, const struct linear_args *a, const struct row_draw *draws,
                                struct span choices);
rd_status cuda_op_kv_copy_rows(struct backend *be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n_rows);
