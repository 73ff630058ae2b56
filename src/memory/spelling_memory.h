/* memory/spelling_memory.h - JSON that comes back with its keys in another order is rendered as its own conversation had it.
 *
 * Many clients build tools and arguments from hash tables: every request of one conversation spells the same value
 * anew, and a template writes it into the prompt as it came. Everything behind the first difference would be computed
 * again:
 *
 *     {"name": "look", "strict": true}     first turn: the prompt has this spelling
 *     {"strict": true, "name": "look"}     next turn, equal as JSON: rendered like the first
 *
 * A spelling is kept under what the conversation had said by then (memory/conversation.h), and recalled only for a request
 * that continues it:
 *
 *     tools      under a request that was rendered, and under its answer. A request takes the spelling of the longest
 *                conversation that it begins with; one that is no longer than that, and has no answer in it, none: it
 *                begins a conversation, maybe another client's. Where two were spelled differently that said the same,
 *                there is no telling which it goes on from, and it is rendered as it came.
 *     arguments  of a call in the history: as they were first sent, or delivered.
 *
 * Owners never meet. The oldest go when the bytes or the entries exceed their limit.
 * Thread  any thread.  Errors  no memory: nothing is kept or recalled, the request goes on.
 */
#pragma once
#include <jansson.h>
#include "memory/answer_memory.h"
#include "memory/conversation.h"

struct spelling_memory;

rd_status spelling_memory_create(size_t max_bytes, struct spelling_memory **out);
void spelling_memory_destroy(struct spelling_memory *m); /* NULL is fine */
void spelling_memory_clear(struct spelling_memory *m);
/* What is kept from now on is told to fn, as a record that spelling_memory_load takes. */
void spelling_memory_tell(struct spelling_memory *m, memory_record_fn fn, void *arg);
bool spelling_memory_load(struct spelling_memory *m, const void *record, size_t n);
/* Tells fn everything, the oldest first. */
void spelling_memory_dump(struct spelling_memory *m, memory_record_fn fn, void *arg);

/* A request as it was rendered: what its conversation says, and the spelling of its tools (a reference, or NULL). */
struct kept_text;
struct spelled {
    struct conversation said;
    struct kept_text *tools;
};

/* Tools, and the arguments of the calls in messages, get the spelling of their conversation, in place. tools: NULL for
 * none. keep: how the request is spelled now is remembered and given (spelling_memory_release); NULL: it is not. */
void spelling_memory_recall(struct spelling_memory *m, struct kv_space owner, json_t *tools, json_t *messages,
                            struct spelled *keep);
/* The answer to c was delivered: whoever goes on from it finds tools and calls as they were there. calls: as in struct
 * answer_parts. */
void spelling_memory_answer(struct spelling_memory *m, struct kv_space owner, const struct spelled *c,
                            const char *content, size_t n, const json_t *calls);
/* Its tools as they were rendered, JSON text; NULL: none, or no memory. Until c is released. */
const char *spelling_memory_tools(const struct spelled *c);
/* Lets go of c's reference; any number of times. */
void spelling_memory_release(struct spelling_memory *m, struct spelled *c);
