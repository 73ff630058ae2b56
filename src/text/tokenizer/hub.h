/* text/tokenizer/hub.h - the inside of a tokenizer that came from a tokenizer.json, beside struct tokenizer.
 *
 *     text -> hub_encode.c: added tokens (raw) -> normalizer -> added tokens (normalised) -> splitter -> pieces
 *          -> hub_model.c: BPE, Unigram, WordPiece, WordLevel -> ids, and those of the post-processor around them
 *
 * Names and behaviour are those of the `tokenizers` package; text/tokenizer/tokenizer_impl.h has what both kinds share: the
 * vocabulary (token id = number of the string), merges, the cache of words.
 * Thread  read-only after create.
 */
#pragma once
#include "text/tokenizer/hub_decode.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/prefix_index.h"
#include "text/tokenizer/splitter.h"
#include "text/tokenizer/tokenizer_impl.h"

enum hub_model { HUB_BPE, HUB_UNIGRAM, HUB_WORD_PIECE, HUB_WORD_LEVEL };

/* Of a token id. */
#define HUB_IN_MODEL    1u /* an entry of the model's vocabulary; else an added token alone */
#define HUB_ADDED       2u
#define HUB_SPECIAL     4u
#define HUB_LSTRIP      8u
#define HUB_RSTRIP      16u
#define HUB_SINGLE_WORD 32u
#define HUB_NORMALIZED  64u

struct hub {
    enum hub_model model;
    struct normalizer *normalizer;
    struct splitter *splitter;
    struct hub_decoder *decoder;
    uint8_t *flags;               /* [n_tokens] HUB_ */
    struct prefix_index added[2]; /* to look for in the text as given; in the normalised text */
    int32_t *before, *after;      /* the post-processor's ids */
    size_t n_before, n_after;
    bool works_on_bytes; /* BPE over bytes: no character of the alphabet is ever written */
    bool scans;          /* pieces are words of `scanner` */
    enum pretokenizer scanner;

    /* BPE */
    bool byte_fallback, fuse_unk, ignore_merges;
    bool cuts;              /* a piece may be cut where no merge can join: junctions */
    uint64_t *junctions;    /* bit set: last character of a merge's left, first of its right */
    uint32_t byte_ids[256]; /* of "<0x00>" .. "<0xFF>", or SYMBOL_NONE */
    char *prefix, *suffix;  /* continuing_subword_prefix (also WordPiece), end_of_word_suffix */
    size_t n_prefix, n_suffix;
    /* Unigram */
    double *scores, unk_score; /* [n_tokens] */
    struct prefix_index pieces;
    /* WordPiece */
    size_t max_chars;
};

/* What one encoding works with. */
struct hub_work {
    struct merge_work merge;
    struct normal_work normal;
    struct split_work split;
    struct hub_best *best; /* Unigram */
    size_t best_cap;
    struct buf text;
};

void hub_destroy(struct hub *h);
/* hub_config.c: the post-processor's part of tokenizer.json, and tokenizer_config.json; json NULL: absent. */
rd_status hub_read_processor(struct tokenizer *t, const char *json, size_t n, struct rd_error *err);
rd_status hub_read_config(struct tokenizer *t, const char *json, size_t n, struct rd_error *err);
/* Appends the ids of a piece. n_readable: bytes that may be read from s on. */
rd_status hub_encode_piece(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n, size_t n_readable,
                           struct id_list *out);
/* Ids of a model vocabulary's text, or SYMBOL_NONE. */
uint32_t hub_find(const struct tokenizer *t, const char *s, size_t n);
/* Fills in what the vocabulary and the merges give: byte ids, junctions, unigram's pieces. */
rd_status hub_model_build(struct tokenizer *t, struct rd_error *err);
void hub_note_junction(struct hub *h, const char *left, size_t n_left, const char *right, size_t n_right);

/* Added tokens of the text as given, and what lies between them, in order; no token covers a break. mem_free the array. */
rd_status hub_find_fragments(const struct tokenizer *t, const char *s, size_t n, bool parse_special,
                             const struct text_breaks *breaks, struct fragment **out, size_t *n_out);
/* Appends the ids of the text between added tokens text[f.start .. + f.n). breaks: of the whole text. */
rd_status hub_encode_fragment(const struct tokenizer *t, struct hub_work *w, const char *text, struct fragment f,
                              bool parse_special, const struct text_breaks *breaks, struct id_list *out);
/* *out: the text with U+FFFD for what is ill-formed, or NULL when all of it is well-formed. */
rd_status hub_repair(const char *s, size_t n, char **out, size_t *n_out);
rd_status hub_decode(const struct tokenizer *t, const int32_t *ids, uint32_t n, bool special, struct buf *out);
void hub_work_deinit(struct hub_work *w);
