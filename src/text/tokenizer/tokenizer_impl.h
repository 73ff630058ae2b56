/* text/tokenizer/tokenizer_impl.h - the inside of struct tokenizer, shared by the files tokenizer*.c alone.
 *
 *     text -> tokenizer_special.c: fragments between special tokens -> tokenizer_bpe.c: words -> tokenizer_merge.c: ids
 *                                                                   -> tokenizer_spm.c: segments -> tokenizer_merge.c:
 * ids
 *
 * A symbol is what merging works on: a token id, or (BPE) the number of a string that merges name but that is no token.
 * Symbols are the numbers of string_table: 0 .. n_tokens-1 are the tokens in their order, what follows are the extra
 * strings.
 *
 * Thread  struct tokenizer is read-only after create; struct merge_work and struct id_list belong to one call.
 */
#pragma once
#include "base/limits.h"
#include "text/string_table.h"
#include "text/tokenizer/prefix_index.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/text_breaks.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/word_cache.h"

#define SYMBOL_NONE (UINT32_MAX - 1) /* SPM: a character that is no token */
#define SYMBOL_DEAD UINT32_MAX       /* merged into its left neighbour */
#define PRIO_NONE   UINT32_MAX       /* this pair does not merge; else the lowest merges first */

struct merge_pair {
    uint64_t key;
    uint32_t prio, symbol;
}; /* key: left << 32 | right; prio PRIO_NONE: free slot */

/* Special tokens that are looked for in text: first two bytes, and lengths, longest first. */
struct special_set {
    uint64_t *starts;  /* [65536 / 64] bit set of first byte << 8 | second byte */
    uint32_t *lengths; /* [n_lengths] descending */
    uint32_t n_lengths, cap;
};

struct tokenizer {
    enum tokenizer_model model;
    uint32_t n_tokens;
    struct string_table strings; /* vocabulary texts as the file has them */
    uint8_t *types;              /* [n_tokens] enum token_type, as used (see tokenizer_special.c) */
    char *pieces;                /* the bytes tokens stand for, one after the other */
    uint32_t *piece_ends;        /* [n_tokens] */
    uint32_t byte_symbol[256];   /* the token (BPE: or symbol) of a single byte; SPM: unk or SYMBOL_NONE when absent */
    uint32_t max_bytes;          /* longest vocabulary text */
    /* BPE */
    struct pretokenizer_info pre;
    struct merge_pair *pairs; /* [n_pair_slots] open addressing */
    size_t n_pair_slots;
    uint64_t pair_seed;
    /* SPM */
    uint32_t *prios;               /* [n_tokens] from the scores */
    uint64_t *neighbours;          /* bit set, hashed: characters that stand side by side in some token */
    struct special_set special[2]; /* [parse_special] */
    struct prefix_index guarded;   /* names: text/tokenizer/special_marks.h */
    int32_t *ends;                 /* [n_ends] ascending */
    uint32_t n_ends;
    int32_t bos, eos, eot, unk;
    bool add_bos, add_eos, add_space_prefix;
    struct word_cache words;
    struct hub *hub; /* from a tokenizer.json: text/tokenizer/hub.h; NULL: from a spec */
};

/* A stretch of text: a special token, or what lies between two. */
struct fragment {
    uint32_t start, n;
    int32_t id;     /* TOKEN_NONE: text */
    size_t ids_end; /* in the list of ids, once it is encoded */
};

struct id_list {
    int32_t *ids;
    size_t n, cap;
};
static inline void id_list_put(struct id_list *l, int32_t id)
{
    l->ids[l->n++] = id;
} /* room was reserved */
bool id_list_reserve(struct id_list *l, size_t n_more);

/* One character, or what has been merged so far, of the text being merged. */
struct merge_node {
    uint32_t start;     /* offset in the text; it ends where the next one starts */
    int32_t prev, next; /* -1: none */
    uint32_t symbol;
    uint32_t pair_prio, pair_symbol; /* of merging with next */
};
struct merge_kept {
    uint32_t start, symbol;
}; /* of the long word: a symbol's first byte; a result's first symbol */
struct merge_work {
    struct merge_node *nodes;
    uint64_t *heap; /* prio << 32 | index of the left node; stale entries are recognised when popped */
    size_t n_nodes, nodes_cap, n_heap, heap_cap;
    struct merge_kept *base, *kept; /* words of many symbols */
    size_t base_cap, n_kept, kept_cap;
};
void merge_work_deinit(struct merge_work *w);
/* Appends a node to the chain; nodes are given in the order of the text. false: out of memory. */
bool merge_add(struct merge_work *w, uint32_t start, uint32_t symbol);
/* Merges the chain over text[0..n) and appends its ids to out; the chain is empty then. */
rd_status merge_run(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n, struct id_list *out);

/* The priority of merging two neighbours, and what they become. text[0..n): what both cover. */
uint32_t bpe_pair(const struct tokenizer *t, uint32_t left, uint32_t right, uint32_t *symbol);
uint32_t spm_pair(const struct tokenizer *t, const char *text, size_t n, uint32_t *symbol);

rd_status bpe_build(struct tokenizer *t, const struct tokenizer_spec *spec, struct rd_error *err);
rd_status bpe_encode(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n,
                     struct id_list *out);
/* One word, through the cache. n_readable: bytes that may be read from word on, at least n. */
rd_status bpe_encode_word(const struct tokenizer *t, struct merge_work *w, const char *word, uint32_t n,
                          size_t n_readable, struct id_list *out);
/* Text cut into words by a scanner. */
rd_status bpe_encode_words(const struct tokenizer *t, struct merge_work *w, enum pretokenizer scanner, const char *text,
                           uint32_t n, struct id_list *out);
/* The table of merges: room for n; replace: the last of equal ones counts, else the first. */
rd_status bpe_pairs_init(struct tokenizer *t, size_t n, struct rd_error *err);
void bpe_pair_put(struct tokenizer *t, uint32_t left, uint32_t right, uint32_t prio, uint32_t symbol, bool replace);
/* The bytes of a token's text in the byte-level alphabet; out has room for n. Characters outside it stand for their
 * UTF-8 bytes. */
size_t bpe_piece(const char *text, size_t n, char *out);

rd_status spm_build(struct tokenizer *t, const struct tokenizer_spec *spec, struct rd_error *err);
rd_status spm_encode(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n, bool space_prefix,
                     struct id_list *out);
size_t spm_piece(const char *text, size_t n, char *out);

/* Types as llama.cpp corrects them, the end tokens, the sets of special tokens. */
rd_status special_build(struct tokenizer *t);
/* Only the end tokens: t->ends. more: ids beside those that are known by name; those that are no token are left out. */
rd_status special_find_ends(struct tokenizer *t, const int32_t *more, uint32_t n_more);
void special_deinit(struct tokenizer *t);
rd_status special_marks_build(struct tokenizer *t); /* t->guarded; after the types are known */
/* Where special tokens stand in a text, in order; none covers a break. mem_free the array. */
struct special_match {
    uint32_t at, n;
    int32_t id;
};
rd_status special_find(const struct tokenizer *t, const char *text, uint32_t n, bool parse_special,
                       const struct text_breaks *breaks, struct special_match **out, size_t *n_out);
/* A text as the tokenizer takes it: without marks, and well-formed where it is a tokenizer.json's. Zeroed before; deinit. */
struct unmarked {
    const char *text;
    size_t n;
    struct text_breaks breaks;
    char *repaired, *plain; /* what it owns */
};
rd_status unmarked_init(const struct tokenizer *t, const char *text, size_t n_bytes, struct unmarked *u,
                        struct rd_error *err);
void unmarked_deinit(struct unmarked *u);
/* tokenizer_encode() of a text with breaks (or NULL); of a tokenizer.json's: what hub_repair() gave. */
rd_status encode_with_breaks(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                             bool parse_special, const struct text_breaks *breaks, int32_t **ids, uint32_t *n,
                             struct rd_error *err);
