/* api/grammar_store.h - the grammars of an engine: compiled once per form and vocabulary, shared by requests.
 *
 * A form is what a request asks its output to be (radish.h: grammar, strict and forced tools), put together here: content
 * in that form, or calls in the model's own tool format, behind white space where thinking may come first. The form's
 * whole text is the key. All grammars that are alive are in the store's list, with every mask that was computed for them;
 * those not in use go when others need their memory, the one used longest ago first.
 *
 * Memory  automata, sets, masks and keys of all together stay within a budget. A grammar that finds no room beside those
 *         in use is RD_E_FULL (HTTP: 429), one that is bigger than an eighth of the budget RD_E_LIMIT. Not in it: the
 *         vocabulary's trie and the masks of states that grammars share (at most 64 MiB), and what compiling takes for a
 *         moment (form_limits, once per thread that compiles).
 * Thread  any (locks itself); compiling happens outside of the lock, on the caller's thread.
 * Errors  RD_E_INVALID, RD_E_UNSUPPORTED: what is wrong with the form; RD_E_FULL, RD_E_LIMIT; RD_E_NOMEM.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "engine/constraint.h"
#include "radish/grammar.h"
#include "text/grammar/grammar.h"
#include "text/output/output_style.h"
#include "text/tokenizer/tokenizer.h"

struct output_form {
    enum rd_grammar_kind kind;
    const char *text; /* of kind */
    size_t n_text;
    const char *tools;       /* JSON array; NULL: no calls */
    const char *forced_tool; /* "": a call of any tool, a name: of that; NULL: as the model likes */
    bool strict_tools;       /* calls follow their schemas also where none is forced */
    bool single;             /* one call at most */
    bool thinks;             /* thinking may come before */
    bool taught;             /* a forced call may come without tags, behind some text in which no stop string stands */
    const char *const *stop; /* n_stop of them */
    uint32_t n_stop;
    enum output_style style;
    const char *template_source;
};

/* The form says anything: there is a grammar to compile. */
bool output_form_binds(const struct output_form *f);

struct grammar_store;
/* The tokenizer outlives the store. limit: bytes; 0: 512 MiB, or a sixteenth of this machine's memory where that is less;
 * at least 64 MiB. */
rd_status grammar_store_create(const struct tokenizer *t, uint64_t limit, struct grammar_store **out);
/* Its grammars must not be in use any more. NULL is fine. */
void grammar_store_destroy(struct grammar_store *s);
/* *out: a reference for the caller. quickly: what is not known and takes more than some milliseconds is RD_E_AGAIN, and the
 * caller asks once more, not quickly, where nobody waits for his thread. */
rd_status grammar_store_get(struct grammar_store *s, const struct output_form *f, bool quickly, struct grammar **out,
                            struct rd_error *err);
/* Compiling is timed by another clock: for tests, before anything is compiled. */
void grammar_store_set_clock(struct grammar_store *s, const struct clock *c);
/* constraint_tokenise (engine/constraint.h); arg: the store. */
uint32_t grammar_store_tokenise(void *arg, const uint8_t *bytes, uint32_t n, struct constraint_place place,
                                int32_t *tokens, uint32_t cap);
struct grammar_store_counts {
    uint64_t limit, used;
    uint32_t n_grammars;
};
struct grammar_store_counts grammar_store_counts(struct grammar_store *s);
