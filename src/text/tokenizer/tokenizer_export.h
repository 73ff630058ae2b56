/* text/tokenizer/tokenizer_export.h - what a GGUF file's tokenizer.ggml keys need to know of a tokenizer from a tokenizer.json.
 *
 * Byte-level BPE becomes "gpt2" with the name of its pre-tokenizer, BPE over characters with byte tokens becomes "llama"
 * (SentencePiece's way), whose scores are the ranks of the merges that make a token, negative. Other models have no
 * equal there: RD_E_UNSUPPORTED.
 *
 * Thread  any. Spans are views into the tokenizer.
 */
#pragma once
#include "text/tokenizer/tokenizer.h"

struct merge_pair;
struct tokenizer_export {
    enum tokenizer_model model;
    const char *pre;           /* BPE */
    struct merge_pair *merges; /* BPE: [n_merges] by rank; tokenizer_export_merge() */
    uint32_t n_merges;
    float *scores; /* SPM: [n_tokens] */
    int32_t bos, eos, unk;
    bool add_bos, add_eos, add_space_prefix;
};

/* pre: a name to use instead of the one found (one of tokenizer_known_pre()), or NULL. */
rd_status tokenizer_export(const struct tokenizer *t, const char *pre, struct tokenizer_export *out,
                           struct rd_error *err);
void tokenizer_export_deinit(struct tokenizer_export *e);
/* The texts of merge i. */
void tokenizer_export_merge(const struct tokenizer *t, const struct tokenizer_export *e, uint32_t i,
                            struct text_span *left, struct text_span *right);
/* A token as the vocabulary writes it (n 0: no token has this id), and its type. t is from a tokenizer.json. */
struct text_span tokenizer_export_token(const struct tokenizer *t, uint32_t id, enum token_type *type);
