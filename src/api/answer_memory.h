/* api/answer_memory.h - what this process answered lately, so that it comes back to the model as it was sampled.
 *
 * A client sends an answer back as text, or as tool calls that its JSON library wrote anew. Tokenised again that is
 * often not what was sampled, and everything behind the first difference would be computed again:
 *
 *     sampled      {"path" : "a.c"}   ->  12 tokens in the tree
 *     sent back    {"path":"a.c"}     ->  9 other tokens: a miss
 *
 * restore   before the template: an assistant message whose calls are known (by id, or all of it by content) becomes
 *           the text that the model wrote.
 * replay    after the tokenizer: where a kept sequence has the bytes of the prompt, its tokens take the prompt's place,
 *           up to the last place where both have a token boundary.
 *
 * The bytes of the prompt stay what they are in replay; restore changes a call's spelling only to the model's own.
 * Requests with different salts never see each other's answers. The oldest go when the bytes exceed their limit.
 * Thread  any thread.  Errors  no memory: nothing is kept or replaced, the request goes on.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/hash.h"
#include "text/tokenizer.h"

struct answer_memory;
struct answer_owner { bool salted; struct hash128 salt; };
static inline bool answer_owner_equal(const struct answer_owner *a, const struct answer_owner *b)
{
    return a->salted == b->salted && (!a->salted || hash128_equal(a->salt, b->salt));
}

/* Something kept, in the form that the memory's load takes: for a file (memory_file.h). */
typedef void (*memory_record_fn)(void *arg, const void *record, size_t n);

/* What the client got of an answer, and what the model wrote for it. */
struct answer_parts {
    const char *raw;                     /* control tokens included */
    size_t n_raw, n_thinking;            /* raw[0 .. n_thinking): the thinking, its tags and the space behind it */
    const char *content, *reasoning;     /* 0-terminated; "" : none */
    json_t *calls;                       /* [{"id", "name", "arguments": a string}]; borrowed; NULL: none */
};

rd_status answer_memory_create(const struct tokenizer *t, size_t max_bytes, struct answer_memory **out);
void answer_memory_destroy(struct answer_memory *m);

/* ids[0..n): the prompt and the answer behind it, as they are in the tree. a NULL: only they are kept. */
void answer_memory_keep(struct answer_memory *m, struct answer_owner owner, const uint32_t *ids, uint32_t n,
                        const struct answer_parts *a);
/* The messages (an array) with those assistant messages restored whose calls are known, as a new array that shares the
 * others; NULL: none is. */
json_t *answer_memory_restore(struct answer_memory *m, struct answer_owner owner, const json_t *messages);
/* *ids (mem_alloc'ed, may be replaced by another block) and *n. Returns how many of the ids are another's now. */
uint32_t answer_memory_replay(struct answer_memory *m, struct answer_owner owner, int32_t **ids, uint32_t *n);
void answer_memory_clear(struct answer_memory *m);
/* What is kept from now on is told to fn. */
void answer_memory_tell(struct answer_memory *m, memory_record_fn fn, void *arg);
/* false: not a record of answers. */
bool answer_memory_load(struct answer_memory *m, const void *record, size_t n);
/* Tells fn everything, the oldest first. */
void answer_memory_dump(struct answer_memory *m, memory_record_fn fn, void *arg);
