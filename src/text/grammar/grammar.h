/* text/grammar/grammar.h - a compiled grammar, and its matcher, which follows a text token by token.
 *
 * Compiled: each rule is a deterministic automaton over bytes and calls of rules (a recursive transition network);
 * what can never reach an end is cut away, so from every state that a text can reach there is a way to an end.
 *
 * Followed as Earley does, with sets that are interned: a set holds items (state, set in which the item's rule began).
 * The same items make the same set, whatever was read before, so (set, byte) -> set is a deterministic automaton that is
 * made as it is walked, and everything known of a set is known for all requests that share the grammar: its mask, its
 * shortest way to an end, what is forced. In a string of JSON, say, each byte leads back to the set it came from.
 *
 *     {"a": [1, 2          set of items:  number . ,          began in  set of `[`  began in  set of `{"a": ` ...
 *
 * A mask has a bit per token: set where the token's bytes can follow. Of a state alone (whatever called its rule) most
 * tokens are decided; that part is computed once per state and vocabulary (and shared by equal automata of other
 * grammars), the others (those that leave the rule) are walked when a set's mask is first asked for.
 *
 * Memory  sets and masks of a grammar take at most `space`: beyond it what no text stands on goes, then masks. Where all
 *         grammars share a budget, each has what it was promised and gets more while there is some. A text that alone
 *         needs more than its share of a grammar's space (deep nesting, ambiguity) is RD_E_LIMIT, for its own request.
 * Thread  what follows a text (accept, mask ..) is called by one thread at a time for all matchers of a grammar: the
 *         engine's. compile, vocabulary, references: any thread; matcher_create and matcher_destroy: any thread, also
 *         while another follows a text of the same grammar.
 * Work    one accept looks at 256 Ki items at most (some milliseconds), a mask at 2 Mi, warming at 32 Mi (1 Mi quickly): a grammar that is
 *         ambiguous beyond that, or has more than 65,536 items in one set, is RD_E_LIMIT there, for its own request.
 * Errors  RD_E_INVALID: a limit (named), an undefined rule, a language without any text. RD_E_NOMEM: nothing changed.
 * Source  Earley, CACM 13(2), 1970; persistent stacks and context-independent tokens: XGrammar, arXiv:2411.15100.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "text/grammar/grammar_build.h"

/* The tokens of a model as a trie of bytes. Token i has bytes[offsets[i]] .. bytes[offsets[i + 1]]; empty: it is never
 * in a mask. special: [n] tokens that are followed only where a grammar names them (grammar_token); may be NULL. */
struct grammar_vocab;
rd_status grammar_vocab_create(uint32_t n_tokens, const uint8_t *bytes, const uint64_t *offsets, const bool *special,
                               struct grammar_vocab **out);
void grammar_vocab_unref(struct grammar_vocab *v); /* NULL is fine */
struct grammar_vocab *grammar_vocab_ref(struct grammar_vocab *v);

struct grammar;
/* Takes the builder's first failure, if it has one. The builder may be destroyed afterwards. vocab is retained; NULL: a
 * grammar of bytes alone (grammar_accept_bytes). space: the most bytes of sets and masks; 0: 32 MiB. */
rd_status grammar_compile(struct grammar_builder *b, grammar_node root, struct grammar_vocab *vocab, size_t space,
                          struct grammar **out, struct rd_error *err);
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g);
/* There is another reference. False stays false until the one who has it shares it. */
bool grammar_is_shared(const struct grammar *g);

/* Bytes that grammars share; outlives them. Any thread. */
struct grammar_budget {
    uint64_t limit;
    atomic_ullong used; /* a count: nothing is published through it */
};
#define GRAMMAR_BUDGET_SHARE 8u /* the part of it that one grammar may be promised */
bool grammar_budget_take(struct grammar_budget *b, uint64_t n);
void grammar_budget_give(struct grammar_budget *b, uint64_t n);
/* Once, before it is warmed: its automata, and `least` for sets and masks, are taken from the budget; more is when it is
 * needed, up to the grammar's space. RD_E_FULL: there is too little now, nothing changed. RD_E_LIMIT: it is too big. */
rd_status grammar_charge(struct grammar *g, struct grammar_budget *budget, size_t least);
/* Computes what first tokens will need (masks of states and of the first set); any thread, before the first matcher. */
rd_status grammar_warm(struct grammar *g);
/* As much of it as takes some milliseconds. RD_E_AGAIN: there is more to do. */
rd_status grammar_warm_quickly(struct grammar *g);
struct grammar_counts {
    uint32_t n_rules, n_states, n_sets, n_masks;
    size_t bytes;
    uint64_t n_mask_hits, n_mask_misses;
};
struct grammar_counts grammar_counts(const struct grammar *g);

/* --- following a text --------------------------------------------------------------------------------------------- */
struct grammar_matcher;
/* n_back: the most steps that are rolled back; the text may be of any length. Retains g. Nothing below allocates anything
 * else than sets and masks of g. */
rd_status grammar_matcher_create(struct grammar *g, uint32_t n_back, struct grammar_matcher **out);
void grammar_matcher_destroy(struct grammar_matcher *m);
/* RD_E_INVALID: the text cannot go on so (nothing changed). Both count as one step of rollback. */
rd_status grammar_accept(struct grammar_matcher *m, int32_t token);
rd_status grammar_accept_bytes(struct grammar_matcher *m, const uint8_t *bytes, size_t n);
/* Back to the text before the last n steps. */
void grammar_rollback(struct grammar_matcher *m, uint32_t n);
bool grammar_can_end(const struct grammar_matcher *m);  /* the text is whole */
bool grammar_must_end(const struct grammar_matcher *m); /* and nothing can follow */
/* The bits of tokens that can follow: [(n_tokens + 31) / 32], borrowed until the next call on any matcher of g. End
 * tokens are not among them: they may follow where grammar_can_end. n_left: how many tokens may come at most, this one
 * included (UINT32_MAX: any number); where the text could no longer be ended within them, only tokens on a shortest way
 * to an end are set. At least one bit is set unless the text can end here. */
rd_status grammar_mask(struct grammar_matcher *m, uint32_t n_left, const uint32_t **bits);
/* The bytes that must follow, whatever is chosen (ends included): at most cap; 0 where there is a choice. A special
 * token counts as its 4 bytes and is never cut. */
uint32_t grammar_forced(struct grammar_matcher *m, uint8_t *bytes, uint32_t cap);
/* A shortest text to an end, cut at cap; its whole length. UINT64_MAX: too ambiguous to be followed so far, or not within
 * the grammar's space and the time (NULL: any); then what bytes hold is of no use. */
uint64_t grammar_shortest(struct grammar_matcher *m, uint8_t *bytes, uint32_t cap, const struct clock_limit *time);
