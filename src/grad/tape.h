/* grad/tape.h - inside of record.h: the ops of a pass, what they kept, and the backend's state. */
#pragma once
#include "base/arena.h"
#include "grad/device.h"
#include "grad/record.h"

/* The values of a place at some time: shared by the steps that read it then. */
struct kept {
    uint32_t refs;
    enum dtype type;
    uint64_t n;
    void *x; /* [n], of the device */
};

enum step_kind { STEP_NORM, STEP_LINEAR, STEP_LOW_RANK, STEP_QKV, STEP_ATTENTION, STEP_GLU, STEP_GATHER, STEP_EMBED };
struct glu_step {
    enum activation act;
    uint32_t n_rows, width;
    struct span gate, up, out;
};
struct gather_step {
    uint32_t n, width;
    struct span x, out;
    const uint32_t *rows;
};
struct step {
    enum step_kind kind;
    union { /* arrays of the pass are the arena's */
        struct residual_norm_args norm;
        struct linear_args linear;
        struct low_rank_args low_rank;
        struct qkv_args qkv;
        struct attention_args attention;
        struct glu_step glu;
        struct gather_step gather;
    } u;
    struct kept *
        kept[2]; /* norm: x + delta, delta; low_rank: x, t; qkv: q, k before their norms; attention: q; glu: gate, up */
};

struct segment {
    uint32_t step; /* its first */
    bool recomputed;
    struct kept *x, *delta; /* what lives there, where it is recomputed */
};

/* The gradient of what a place holds, at the step that is gone back through: floats, or out (device.h) of what linear gave. */
struct adjoint {
    struct span at;
    uint64_t n;
    void *g; /* NULL: the entry is free */
};
#define MAX_ADJOINTS 24u

struct backend { /* the recording one */
    const struct backend_ops *ops;
    struct backend *inner;
    const struct grad_device_ops *dev;
    struct grad_device *device;
    struct record_pair *pairs;
    size_t n_pairs, cap_pairs;

    bool recording, replaying; /* replaying: steps are there already, they keep again */
    struct record_pass pass;
    struct arena arena;
    struct step *steps;
    size_t n_steps, cap_steps;
    struct segment *segments;
    size_t n_segments, cap_segments;
    uint32_t n_norms, n_rows, at;     /* rows of the pass; the step that is replayed */
    uint32_t first_low_rank;          /* step before which nothing is trained */
    struct adjoint now[MAX_ADJOINTS]; /* recording: g is the kept's x */
    struct kept *held[MAX_ADJOINTS];  /* kept values that are still what a place holds */
    struct adjoint adjoints[MAX_ADJOINTS];
    float *dk, *dv;   /* [n_rows, kv width] of the layer that is gone back through */
    uint32_t *row_of; /* [n_pages * page_tokens] row that wrote there */
    size_t cap_row_of;
    uint64_t n_bytes, most_bytes;
};

/* ---- tape.c ---- */
/* NULL: no memory. */
struct kept *tape_keep(struct backend *be, struct span s, uint64_t n, enum dtype type);
void tape_drop(struct backend *be, struct kept *k);
void tape_wrote(struct backend *be, struct span s); /* what is kept of s is not what it holds any more */
void tape_forget(struct backend *be);               /* of all places */
/* A gradient's floats, zeroed where it is new. NULL: no memory. */
float *tape_adjoint(struct backend *be, struct span s, uint64_t n);
/* The same, uninitialised where it is new. */
float *tape_adjoint_raw(struct backend *be, struct span s, uint64_t n, bool *is_new);
void *tape_find(struct backend *be, struct span s);
/* Takes it out; the caller gives it back to the device. NULL: nothing reads the value. */
void *tape_take(struct backend *be, struct span s);
/* g is the device's, and given back there where there is no room for it, or NULL. */
bool tape_put(struct backend *be, struct span s, uint64_t n, void *g);
void tape_clear(struct backend *be);
const struct record_pair *tape_pair(const struct backend *be, const struct low_rank_term *t);
/* Of a term's pair, in this pass; no dropout where it has none. */
struct grad_mask tape_mask(const struct backend *be, const struct low_rank_term *t);

/* ---- back.c ---- */
rd_status step_back(struct backend *be, uint32_t i);
