/* radish/backend.h - a backend in a shared object: `--backend /path/to/libradish-NAME.so` (rd_options.device) computes with it.
 *
 * The object exports one thing, RD_BACKEND_SYMBOL: who it is, what it can do, and the table of its functions. radish looks at
 * `magic`, `abi` and the sizes before it calls anything, and calls nothing of an object that does not fit. A complete one is
 * examples/plain_backend.c; build/tests/test_conformance checks yours (docs/backends.md).
 *
 * All activations are f32, row-major [n_rows, width], in the backend's own memory; rows are tokens of any number of sequences.
 * A place in that memory is a struct rd_backend_span: what `alloc` gave, and a byte offset. radish adds offsets to it and never
 * looks behind it: what it reads, it reads by `read`.
 *
 * EXACT, if `exact` says so: every function computes a row of its output from that row's inputs, in an order fixed by shapes
 * and types alone. It does not depend on n_rows, on the row's place, on threads, or on how a prompt was cut: then what a cache
 * gives back is bit for bit what would be computed. A backend that is not exact works as well; radish says so (rd_info.exact,
 * GET /props) and does not verify its cache.
 *
 * Thread  one backend object belongs to one thread at a time: first the one that loads, then the engine's.
 * Errors  RD_E_DEVICE from what computes: the step's requests end with it. RD_E_NOMEM. No C++ exception may leave, nothing may
 *         exit. A message goes into err, where there is one (never NULL).
 * Version RD_BACKEND_ABI changes when what is here changes its meaning or place. What is added goes to the ends of structs:
 *         `size` says how far one reaches, and what lies beyond is not there.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RD_BACKEND_MAGIC  0x52414449u /* "RADI" */
#define RD_BACKEND_ABI    1u
#define RD_BACKEND_SYMBOL "rd_backend_library"

/* Types of weights, keys and values; numbers and layouts as in GGUF files. */
enum rd_backend_type {
    RD_TYPE_F32 = 0,
    RD_TYPE_F16 = 1,
    RD_TYPE_Q4_0 = 2,
    RD_TYPE_Q4_1 = 3,
    RD_TYPE_Q5_0 = 6,
    RD_TYPE_Q5_1 = 7,
    RD_TYPE_Q8_0 = 8,
    RD_TYPE_Q2_K = 10,
    RD_TYPE_Q3_K = 11,
    RD_TYPE_Q4_K = 12,
    RD_TYPE_Q5_K = 13,
    RD_TYPE_Q6_K = 14,
    RD_TYPE_BF16 = 30
};
#define RD_TYPE_BIT(t) (UINT64_C(1) << (t))

/* What radish does for a backend. Lives as long as the process; any thread. */
struct rd_backend_host {
    uint32_t abi, size;
    /* n values (a multiple of the type's block) to f32. */
    void (*to_float)(uint32_t type, const void *from, float *to, uint64_t n);
    /* F32, F16, BF16 alone; to nearest even. */
    void (*from_float)(uint32_t type, const float *from, void *to, uint64_t n);
    /* Bytes of n values. */
    uint64_t (*type_bytes)(uint32_t type, uint64_t n);
    /* A line to radish's log; level as enum rd_log_level. */
    void (*log)(int level, const char *line);
};

/* All are the backend's own; radish passes them on. */
typedef struct rd_backend rd_backend;
typedef struct rd_backend_weight rd_backend_weight;
typedef struct rd_backend_pages rd_backend_pages;

struct rd_backend_span {
    void *buffer; /* NULL: nowhere */
    uint64_t at;  /* bytes */
};

struct rd_backend_create {
    uint32_t size;
    uint32_t n_threads; /* to compute with, the calling one included; 0: all cores that the process may use */
    const struct rd_backend_host *host;
};

enum rd_backend_role {
    RD_WEIGHT_MATRIX, /* for linear */
    RD_WEIGHT_EMBED,  /* for embed */
    RD_WEIGHT_VECTOR  /* norms, biases, factors: always F32 */
};
struct rd_backend_tensor {
    uint32_t size;
    uint32_t role, type;  /* type: of rd_backend_library.weight_types; radish opens others to F32 */
    uint32_t n_out, n_in; /* [n_out rows, n_in contiguous]; a vector has n_out 1 */
    const char *name;     /* for messages */
    const void *data;     /* during the call */
};

/* Keys and values of page_tokens consecutive tokens, in every layer. As pages_read and pages_write know a page:
 *     [n_layers][K, V][n_kv_heads][page_tokens][head_dim] of its type, contiguous */
struct rd_backend_layout {
    uint32_t size;
    uint32_t n_layers, n_kv_heads, head_dim, page_tokens;
    uint32_t type_k, type_v; /* of rd_backend_library.kv_types */
};

/* x += delta', out = rmsnorm(x) * norm. delta' = delta, or rmsnorm(delta) * delta_norm where there is one. delta nowhere: x
 * stays. norm NULL: no out. rmsnorm(v) = v / sqrt(mean(v^2) + eps). All [n_rows, width]. out overlaps nothing. */
struct rd_backend_residual_norm {
    uint32_t size, n_rows, width;
    float eps;
    struct rd_backend_span x, delta, out;
    const rd_backend_weight *delta_norm, *norm;
};

/* out[r, o] = sum_i x[r, i] * w[o, i] (+ bias[o]) */
struct rd_backend_linear {
    uint32_t size, n_rows, x_stride, out_stride; /* strides in floats */
    struct rd_backend_span x, out;
    const rd_backend_weight *w, *bias; /* bias: NULL, or a vector */
};

/* A row's q and k heads are rms-normed (where there is a norm), then rotated: pair i of n_rot / 2 by the angle
 * position * inv_freq[i], its cos and sin times rope_mscale. interleaved: pairs (2i, 2i+1); else (i, i + n_rot/2). Then k and v
 * are converted to the pages' types and written to row row_slot[r] of page row_page[r]. q stays, in place. */
struct rd_backend_qkv {
    uint32_t size, n_rows, layer, n_heads, n_kv_heads, head_dim;
    struct rd_backend_span q, k, v; /* [n_rows, heads * head_dim]; k is scratch afterwards */
    uint32_t q_stride, k_stride, v_stride, n_rot;
    const rd_backend_weight *q_norm, *k_norm, *inv_freq; /* the norms may be NULL */
    float norm_eps, rope_mscale;
    bool interleaved;
    const uint32_t *positions, *row_page, *row_slot; /* [n_rows], host memory, until sync */
    rd_backend_pages *pages;
};

/* Rows row0 .. row0+n_rows-1 are positions pos0 .. of one sequence; position t is in page table[t / page_tokens]. */
struct rd_backend_run {
    uint32_t row0, n_rows, pos0;
    const uint32_t *table;
};
/* out[r, h] = sum_t softmax_t(cap(scale * q[r,h] . k[t, h / (n_heads/n_kv_heads)])) v[t], t = max(0, pos-window+1) .. pos, or
 * from 0 on without a window. cap(s) = softcap * tanh(s / softcap) with softcap > 0. Keys and values are the pages'. */
struct rd_backend_attention {
    uint32_t size, n_rows, layer, n_heads, n_kv_heads, head_dim;
    struct rd_backend_span q, out;
    uint32_t q_stride, out_stride, window, n_runs;
    float scale, softcap;
    const struct rd_backend_run *runs; /* host memory, until sync */
    const rd_backend_pages *pages;
};

/* All must be there, except what is marked (optional), which may be NULL. */
struct rd_backend_ops {
    uint32_t size;
    /* life */
    rd_status (*create)(const struct rd_backend_create *o, rd_backend **out, struct rd_error *err);
    void (*destroy)(rd_backend *be);
    void (*describe)(const rd_backend *be, char *text,
                     size_t n);            /* "mine, 4 cores", in the log and in rd_info.backend */
    bool (*is_dead)(const rd_backend *be); /* (optional) it failed for good: every function gives RD_E_DEVICE */
    /* memory; read, write and what computes may be asynchronous, in the order of the calls, until sync returns */
    uint64_t (*free_bytes)(
        rd_backend *be); /* (optional) what alloc and pages_create can still give; NULL: host memory */
    rd_status (*alloc)(rd_backend *be, uint64_t n_bytes, void **buffer);
    void (*free)(rd_backend *be, void *buffer); /* NULL is fine */
    rd_status (*read)(rd_backend *be, void *to, struct rd_backend_span from, uint64_t n_bytes);
    rd_status (*write)(rd_backend *be, struct rd_backend_span to, const void *from, uint64_t n_bytes);
    rd_status (*sync)(rd_backend *be);
    /* weights; *n_bytes: memory that it took */
    rd_status (*weight_load)(rd_backend *be, const struct rd_backend_tensor *t, rd_backend_weight **out,
                             uint64_t *n_bytes, struct rd_error *err);
    void (*weight_free)(rd_backend *be, rd_backend_weight *w);
    /* pages */
    rd_status (*pages_create)(rd_backend *be, const struct rd_backend_layout *layout, uint32_t n_pages,
                              rd_backend_pages **out);
    void (*pages_destroy)(rd_backend *be, rd_backend_pages *pages);
    /* rows 0 .. n_rows-1 of every layer, K and V */
    rd_status (*pages_copy_rows)(rd_backend *be, rd_backend_pages *pages, uint32_t to, uint32_t from, uint32_t n_rows);
    rd_status (*pages_read)(rd_backend *be, const rd_backend_pages *pages, void *to, uint32_t from);
    rd_status (*pages_write)(rd_backend *be, rd_backend_pages *pages, uint32_t to, const void *from);
    /* ops */
    /* out[r] = scale * row tokens[r] of w: [n_rows, n_in]; tokens: host memory, until sync, each below n_out */
    rd_status (*embed)(rd_backend *be, const rd_backend_weight *w, uint32_t n_rows, const int32_t *tokens, float scale,
                       struct rd_backend_span out);
    rd_status (*residual_norm)(rd_backend *be, const struct rd_backend_residual_norm *a);
    rd_status (*linear)(rd_backend *be, const struct rd_backend_linear *a);
    rd_status (*qkv_rope_write)(rd_backend *be, const struct rd_backend_qkv *a);
    rd_status (*attention)(rd_backend *be, const struct rd_backend_attention *a);
    /* out[i] = act(gate[i]) * up[i], n values; gelu: its tanh form, else silu. out may be gate */
    rd_status (*glu)(rd_backend *be, bool gelu, uint64_t n, struct rd_backend_span gate, struct rd_backend_span up,
                     struct rd_backend_span out);
    /* out[i] = x[rows[i]], [n, width]; rows: host memory, until sync */
    rd_status (*gather)(rd_backend *be, uint32_t n, uint32_t width, struct rd_backend_span x, const uint32_t *rows,
                        struct rd_backend_span out);
    /* (optional: models with soft caps need it) x = cap * tanh(x / cap), n values, in place */
    rd_status (*softcap)(rd_backend *be, struct rd_backend_span x, uint64_t n, float cap);
};

struct rd_backend_library {
    uint32_t magic, abi, size; /* RD_BACKEND_MAGIC, RD_BACKEND_ABI, sizeof(struct rd_backend_library) */
    const char *name;          /* "mine": small letters, digits, - and _ */
    const char *title;         /* for people */
    bool exact;
    bool slow_prompts;               /* a long prompt keeps others waiting: it is cut by time, as on a CPU */
    uint64_t weight_types, kv_types; /* RD_TYPE_BIT()s; F32 is in weight_types; kv_types: of F32, F16, BF16 */
    /* Whether this machine has what it needs; false: why not, a sentence. Nothing stays open. */
    bool (*probe)(char *why, size_t n);
    const struct rd_backend_ops *ops;
};

#if defined(__GNUC__)
#define RD_BACKEND_EXPORT __attribute__((visibility("default")))
#else
#define RD_BACKEND_EXPORT
#endif

#ifdef __cplusplus
}
#endif
