/* radish/flat.h - a model as three functions on plain values: tokens go in, logits and a handle come out; a handle is sliced; a
 * handle is freed.
 *
 *     struct rd_options o;
 *     rd_flat *f;
 *     rd_handle prompt, a, b, part;
 *
 *     rd_options_default(&o);
 *     o.model = "model.gguf";
 *     if (rd_flat_open(&o, &f, &err) != RD_OK) ...
 *     rd_flat_forward(f, RD_EMPTY, tokens, n, logits, &prompt, &err);      logits [n_vocab] behind the last token
 *     rd_flat_forward(f, prompt, &yes, 1, logits, &a, &err);
 *     rd_flat_forward(f, prompt, &no, 1, logits, &b, &err);                a fork: prompt stays what it is
 *     rd_flat_slice(f, prompt, 12, &part, &err);                           its first 12 tokens; nothing is copied
 *     rd_flat_free(f, prompt);                                             a, b and part go on
 *     rd_flat_close(f);
 *
 * There is no scheduler below it, no cache that decides what stays, no tokenizer (rd_open_tokenizer) and no thread of its own:
 * what a handle stands for stays until the handle is freed, and what is not held is computed again. For searches in trees, for
 * programs with a scheduler of their own, for experiments. radish.h's rd_forward is the same beside an engine's requests, with
 * its cache. Every backend that radish computes with works (rd_options.device), but for "process:", which has no such thing.
 *
 * Handles     numbers, given once in a process. One that was freed, is another rd_flat's, or never was: RD_E_NOT_FOUND, and
 *             rd_flat_free does nothing. RD_EMPTY, 0, is the sequence without tokens. At most RD_FLAT_HANDLES at once.
 * Exactness   where rd_flat_info.exact: logits depend on the tokens before and on nothing else, bit by bit: not on how they came
 *             there (at once, in pieces, behind a slice or a fork), nor on what is computed beside. Else (MLX) in their last
 *             digits on that, too.
 * Memory      keys and values are in pages of page_tokens tokens, n_pages of them, reserved by rd_flat_open
 *             (rd_options.kv_bytes, kv_tokens, kv_type). Handles share pages; one costs 4 bytes for each page and some 50
 *             more. A fork inside a page copies that page's rows, page_tokens - 1 at most.
 * Thread      any; calls on one rd_flat wait for each other. None may be under way when rd_flat_close is called, nor come later.
 * Errors      a call that fails changes nothing, and gives no handle. RD_E_INVALID: a token the vocabulary does not have, no
 *             tokens. RD_E_CONTEXT: longer than n_ctx. RD_E_NO_PAGES: too few pages are free: free some handles. RD_E_LIMIT: as
 *             many handles as there may be. RD_E_NOMEM. RD_E_DEVICE: the computation failed.
 */
#pragma once
#include "radish/radish.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rd_flat rd_flat;
typedef uint64_t rd_handle;
#define RD_EMPTY        UINT64_C(0)
#define RD_FLAT_HANDLES 65536u

/* Of o matter: model, device, no_graphs, n_threads, n_ranks, n_ctx, kv_bytes, kv_tokens, page_tokens, kv_type, kv_force,
 * max_running (sequences in one pass), max_chunk (tokens in one pass), packed_dir, no_packed_cache, packed_bytes, progress,
 * cancelled. Errors as rd_open's. *out is rd_flat_close's. */
RD_API rd_status rd_flat_open(const struct rd_options *o, rd_flat **out, struct rd_error *err);
/* Frees all handles, too. NULL is fine. */
RD_API void rd_flat_close(rd_flat *f);

struct rd_flat_info {
    size_t size; /* of this struct, set before the call: radish.h */
    uint32_t n_vocab, n_ctx, page_tokens;
    uint32_t n_pages, n_pages_free, n_handles; /* free and handles: now */
    uint64_t kv_bytes;                         /* of all pages */
    bool exact;
    char kv_type[32], backend[64];
};
RD_API void rd_flat_get_info(rd_flat *f, struct rd_flat_info *out);

/* Computes tokens[0..n), n >= 1, behind base, which stays what it is. logits: [n_vocab] of the last one, or NULL. *out, on base +
 * tokens; out NULL: not wanted. */
RD_API rd_status rd_flat_forward(rd_flat *f, rd_handle base, const int32_t *tokens, uint32_t n, float *logits,
                                 rd_handle *out, struct rd_error *err);
/* One of several sequences that are computed together. */
struct rd_flat_run {
    rd_handle base;
    const int32_t *tokens;
    uint32_t n;
    uint32_t n_logits; /* of so many of its last tokens, 0 .. n */
    float *logits;     /* [n_logits, n_vocab] */
    rd_handle *out;    /* or NULL: not wanted */
};
/* All of them, in as few passes as there is room for; or none: err names the one. Each gets what it would get alone; bases may be
 * the same. */
RD_API rd_status rd_flat_forward_many(rd_flat *f, const struct rd_flat_run *runs, uint32_t n_runs,
                                      struct rd_error *err);
/* *out: the first keep tokens of base, keep <= its length; 0: RD_EMPTY. */
RD_API rd_status rd_flat_slice(rd_flat *f, rd_handle base, uint32_t keep, rd_handle *out, struct rd_error *err);
/* Tokens; 0, too, for what is no handle. */
RD_API uint32_t rd_flat_length(rd_flat *f, rd_handle handle);
RD_API void rd_flat_free(rd_flat *f, rd_handle handle);

#ifdef __cplusplus
}
#endif
