/* text/tokenizer/tokenizer.h - text to token ids and back: byte-level BPE and SentencePiece-style BPE and unigram.
 *
 * Built from a plain description (struct tokenizer_spec) so that text/ knows no file format: model/ fills it from GGUF
 * metadata. tokenizer_from_json() reads the hub's format itself: its parts name each other freely.
 *
 * Equal to llama.cpp's ids for the same GGUF file. Linear (n log n) time on hostile input. Special tokens in the text
 * are text unless parse_special. Any bytes can be encoded; invalid UTF-8 is handled as llama.cpp does for the model
 * kind: BPE reads each wrong byte as U+FFFD; SPM keeps the bytes, but a broken first byte takes what follows with it,
 * so that a space behind one comes back as U+2581.
 *
 * Thread  read-only after create: any thread may encode and decode at once; struct token_decoder belongs to its user.
 * Errors  RD_E_FORMAT (vocabulary does not add up, names what), RD_E_UNSUPPORTED (unknown model or pre-tokenizer, lists
 * the known ones), RD_E_NOMEM, RD_E_LIMIT. Source  BPE: Sennrich et al., arXiv:1508.07909; SentencePiece: Kudo and
 * Richardson, arXiv:1808.06226.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"
#include "text/text_span.h"

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};
enum tokenizer_model { TOKENIZER_BPE, TOKENIZER_SPM }; /* tokenizer.ggml.model: "gpt2", "llama" (and Gemma's) */
#define TOKEN_NONE (-1)

/* All borrowed for the call of tokenizer_create(); copied there. */
struct tokenizer_spec {
    enum tokenizer_model model;
    const char *pre; /* BPE: one of tokenizer_known_pre(); aliases are accepted */
    uint32_t n_tokens;
    const struct text_span *tokens; /* [n_tokens] */
    const float *scores;            /* [n_tokens] or NULL (SPM needs them) */
    const int32_t *types;           /* [n_tokens] enum token_type, or NULL: all normal */
    uint32_t n_merges;
    const struct text_span *merges;                             /* [n_merges] "left right" (BPE) */
    int32_t bos, eos, eot, unk, pad, fim_pre, fim_suf, fim_mid; /* TOKEN_NONE when absent */
    bool add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

struct tokenizer;
rd_status tokenizer_create(const struct tokenizer_spec *spec, struct tokenizer **out, struct rd_error *err);
/* The files of a model on the hub; borrowed for the call. config: tokenizer_config.json (which token begins and which
 * ends a text), or NULL. Ids and decoded text are equal to the `tokenizers` package's; add_special is what the
 * post-processor does. "truncation" and "padding" are not done. RD_E_UNSUPPORTED names a component that is not known.
 */
struct tokenizer_files {
    const char *json;
    size_t n_json;
    const char *config;
    size_t n_config;
    uint32_t n_rows; /* of the model's embedding: unused tokens fill up to it, and added tokens
                                            beyond it are none; 0: as many tokens as the file has */
    const int32_t *ends;
    uint32_t n_ends; /* more tokens that end a text (generation_config.json) */
};
rd_status tokenizer_from_json(const struct tokenizer_files *files, struct tokenizer **out, struct rd_error *err);
void tokenizer_destroy(struct tokenizer *t);
/* Comma-separated names of the known pre-tokenizers, for --help and errors. */
const char *tokenizer_known_pre(void);

/* add_special: BOS / EOS as the model wants. parse_special: control and user-defined tokens written in the text become
 * those tokens. On success *ids is the caller's (mem_free), *n its length (0 is possible, *ids still valid to free). */
rd_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                           bool parse_special, int32_t **ids, uint32_t *n, struct rd_error *err);

/* tokenizer_encode() with parse_special, of a text with marks (text/tokenizer/special_marks.h). */
rd_status tokenizer_encode_marked(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                                  int32_t **ids, uint32_t *n, struct rd_error *err);

/* The bytes that a token stands for (a view, no trailing 0; may be part of a UTF-8 sequence). Control tokens: their
 * name when special, else nothing. Ids out of range: nothing. */
struct text_span tokenizer_piece(const struct tokenizer *t, int32_t id, bool special);
/* Whole ids to text as llama.cpp's detokenize does (SPM: the space prefix of the first token is removed when the model
 * adds one), without its clean-up of spaces before punctuation, which a stream cannot do and which loses text. Invalid
 * UTF-8 stays as bytes. mem_free *text. */
rd_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, uint32_t n, bool special, char **text,
                           size_t *n_bytes);

uint32_t tokenizer_n_tokens(const struct tokenizer *t);
enum token_type tokenizer_type(const struct tokenizer *t, int32_t id);
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);
int32_t tokenizer_find(const struct tokenizer *t, const char *text,
                       size_t n); /* exact vocabulary entry, or TOKEN_NONE */
/* Every token that ends a turn or a text: eos, eot, and the well-known names (<|im_end|>, <|eot_id|>, <end_of_turn>,
 * <|endoftext|>, ...) where they are control tokens of this vocabulary. Ascending, unique; a view. */
const int32_t *tokenizer_end_tokens(const struct tokenizer *t, uint32_t *n);
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);

/* Streaming decode: feed pieces, take what is complete UTF-8. Never emits half a sequence; invalid bytes become U+FFFD
 * exactly where a whole-text decode of the same bytes would put them (one per maximal invalid part, as Unicode 15
 * section 3.9 advises). */
struct token_decoder {
    char pending[4];
    uint32_t n_pending;
    bool first, strip_first_space;
};
void token_decoder_init(struct token_decoder *d, const struct tokenizer *t, bool at_text_start);
/* Appends to out (capacity at least piece.n * 3 + 12): returns the bytes written. */
size_t token_decoder_feed(struct token_decoder *d, struct text_span piece, char *out);
/* The end of the text: an unfinished sequence becomes U+FFFD. out: at least 12 bytes. */
size_t token_decoder_flush(struct token_decoder *d, char *out);
