/* memory/answer_memory.h - what this process answered lately, so that it comes back to the model as it was sampled.
 *
 * A client sends an answer back as text, or as tool calls that its JSON library wrote anew. Tokenised again that is
 * often not what was sampled, and everything behind the first difference would be computed again:
 *
 *     sampled      {"path" : "a.c"}   ->  12 tokens in the tree
 *     sent back    {"path":"a.c"}     ->  9 other tokens: a miss
 *
 * restore   before the template: an assistant message with calls becomes the text that the model wrote, where that answer
 *           was generated behind the same tokens, as the same message of its conversation. A known id decides alone: with
 *           it no other answer is looked at, and nothing is restored when its calls were changed or its prefix is another.
 *           Without a known id content and calls must be those delivered; of several equal ones the oldest is taken, so
 *           that a request has one prompt whenever it is sent.
 * replay    after the tokenizer: where a kept sequence has the bytes of the prompt, its tokens take the prompt's place,
 *           up to the last place where both have a token boundary; of several the one that replaces least.
 *
 * The bytes of the prompt stay what they are in replay; restore changes a call's spelling only to that which the model
 * wrote in this conversation. The tokens that must be the same are those up to the last control token of the prompt that
 * the answer was generated from: behind it a template may write the beginning of an answer as it will not write it again
 * (a thinking block).
 * Requests of different namespaces (kv/kv_space.h) never see each other's answers. The oldest go when the bytes exceed
 * their limit.
 * Thread  any thread.  Errors  no memory: nothing is kept or replaced, the request goes on.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/hash.h"
#include "kv/kv_space.h"
#include "text/tokenizer/tokenizer.h"

struct answer_memory;

/* Something kept, in the form that the memory's load takes: for a file (memory_file.h). */
typedef void (*memory_record_fn)(void *arg, const void *record, size_t n);

/* What the client got of an answer, and what the model wrote for it. */
struct answer_parts {
    const char *raw;                 /* control tokens included */
    size_t n_raw, n_thinking;        /* raw[0 .. n_thinking): the thinking, its tags and the space behind it */
    const char *content, *reasoning; /* 0-terminated; "" : none */
    json_t *calls;                   /* [{"id", "name", "arguments": a string}]; borrowed; NULL: none */
    uint32_t n_messages;             /* that the prompt had: the answer is message n_messages of its conversation */
    uint32_t n_prefix;               /* of the ids: those that must stand before it again */
};

rd_status answer_memory_create(const struct tokenizer *t, size_t max_bytes, struct answer_memory **out);
void answer_memory_destroy(struct answer_memory *m);

/* ids[0..n): the prompt and the answer behind it, as they are in the tree. a NULL: only they are kept. */
void answer_memory_keep(struct answer_memory *m, struct kv_space owner, const uint32_t *ids, uint32_t n,
                        const struct answer_parts *a);
/* One kept answer that may be what message `message` of a conversation was: see api_restore.c. serial 0: none. */
struct answer_pick {
    uint64_t serial;
    uint32_t n_prefix;
    struct hash128 prefix;
};
/* The first candidate for messages[i] behind the one with serial `after` (0: from the oldest on) whose prefix ids begin
 * with; ids NULL: any. */
struct answer_pick answer_memory_pick(struct answer_memory *m, struct kv_space owner, const json_t *messages, size_t i,
                                      uint64_t after, const int32_t *ids, uint32_t n_ids);
/* Whether the ids begin with what the answer was generated behind. */
bool answer_pick_fits(const struct answer_pick *p, const int32_t *ids, uint32_t n_ids);
/* The messages (an array) with those restored that have a pick (an array of as many), as a new array that shares the
 * others. A pick that is not kept any more becomes none. NULL: none is left, or no memory. */
json_t *answer_memory_restore(struct answer_memory *m, const json_t *messages, struct answer_pick *picks);
/* *ids (mem_alloc'ed, may be replaced by another block) and *n. Returns how many of the ids are another's now. */
uint32_t answer_memory_replay(struct answer_memory *m, struct kv_space owner, int32_t **ids, uint32_t *n);
void answer_memory_clear(struct answer_memory *m);
/* What is kept from now on is told to fn. */
void answer_memory_tell(struct answer_memory *m, memory_record_fn fn, void *arg);
/* false: not a record of answers. */
bool answer_memory_load(struct answer_memory *m, const void *record, size_t n);
/* Tells fn everything, the oldest first. */
void answer_memory_dump(struct answer_memory *m, memory_record_fn fn, void *arg);
