/* engine/constraint.h - an output that is held to a grammar (text/grammar/grammar.h).
 *
 *     BEGIN --------> ACTIVE ----------------> the grammar's end: the request ends, no end token is asked for
 *       \ <think>      ^
 *        +-> THINKING -+ </think>              the thinking is free, only that no end token comes in it
 *
 * Tokens come from the grammar's mask; end tokens only where the text is whole. Where the grammar leaves no choice, its
 * bytes are appended as the tokenizer would write them, without asking the model: they are the draft of the next step
 * that is certain to be right (speculate.c), many at a time. The outcome depends on the sequence alone.
 *
 * Owns    matcher and queue; the grammar is the request's reference.
 * Thread  create and destroy any thread, the rest the engine's. Errors  RD_E_NOMEM.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "sample/sampler.h"
#include "text/grammar/grammar.h"

#define CONSTRAINT_MAX_FORCED 128u

enum constraint_state { CONSTRAINT_NONE, CONSTRAINT_BEGIN, CONSTRAINT_OPENING, CONSTRAINT_THINKING, CONSTRAINT_ACTIVE };

/* Where text that must come stands: first: the output begins with it; whole: nothing comes behind it. */
struct constraint_place {
    bool first, whole;
};
/* Its tokens in tokens[cap]: those that no continuation would change. Returns how many; 0: none is sure. */
typedef uint32_t (*constraint_tokenise)(void *arg, const uint8_t *bytes, uint32_t n, struct constraint_place place,
                                        int32_t *tokens, uint32_t cap);

struct constraint_params {
    struct grammar *grammar; /* NULL: none */
    /* Tags of thinking in tokens, borrowed for as long as the engine lives; n 0: the model does not think. */
    const int32_t *open, *close;
    uint32_t n_open, n_close;
    bool thinks;                  /* the prompt ended inside thinking */
    constraint_tokenise tokenise; /* NULL: nothing is appended without asking the model */
    void *arg;
};

struct constraint {
    struct constraint_params p;
    enum constraint_state state;
    struct grammar_matcher *matcher;
    uint32_t n_matched; /* of the tag that is looked for */
    int32_t forced[CONSTRAINT_MAX_FORCED];
    uint32_t n_forced, at; /* the next is forced[at] */
    bool has_begun;        /* what is forced was looked for once */
};

/* Retains the grammar. With no grammar: state NONE, all below does nothing. */
rd_status constraint_init(struct constraint *c, const struct constraint_params *p);
void constraint_deinit(struct constraint *c);

/* What may come next is put into b, whose banned tokens are ends[n_banned] already. n_left: tokens that may come, this
 * one included. */
rd_status constraint_bound(struct constraint *c, uint32_t n_left, const int32_t *ends, uint32_t n_ends,
                           struct sampler_bounds *b);
/* The next token, where there is no choice. */
bool constraint_forced(struct constraint *c, int32_t *token);
/* The tokens that come next for certain: 0 where there is a choice. */
uint32_t constraint_ahead(const struct constraint *c, const int32_t **tokens);
/* How many of the n tokens of a draft, at most CONSTRAINT_MAX_FORCED, may follow each other. */
uint32_t constraint_agree(struct constraint *c, const uint32_t *keys, uint32_t n);
/* A token came. RD_E_INVALID: the grammar does not let it follow. */
rd_status constraint_accept(struct constraint *c, int32_t token);
/* The text is whole and nothing can follow. */
bool constraint_has_ended(const struct constraint *c);
