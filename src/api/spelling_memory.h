/* api/spelling_memory.h - JSON that comes back with its keys in another order is rendered as it was the first time.
 *
 * Many clients build tools and arguments from hash tables: every request of one conversation spells the same value
 * anew, and a template writes it into the prompt as it came. Everything behind the first difference would be computed
 * again:
 *
 *     {"name": "look", "strict": true}     first: the prompt has this spelling
 *     {"strict": true, "name": "look"}     equal as JSON: rendered like the first
 *
 * The first spelling keeps the order of its client. Values with different owners never meet. The oldest go when the
 * bytes exceed their limit.
 * Thread  any thread.  Errors  no memory: nothing is kept or replaced, the request goes on.
 */
#pragma once
#include <jansson.h>
#include "api/answer_memory.h"

struct spelling_memory;

rd_status spelling_memory_create(size_t max_bytes, struct spelling_memory **out);
void spelling_memory_destroy(struct spelling_memory *m);    /* NULL is fine */
void spelling_memory_clear(struct spelling_memory *m);
/* What is kept from now on is told to fn, as a record that spelling_memory_load takes. */
void spelling_memory_tell(struct spelling_memory *m, memory_record_fn fn, void *arg);
bool spelling_memory_load(struct spelling_memory *m, const void *record, size_t n);
/* Tells fn everything, the oldest first. */
void spelling_memory_dump(struct spelling_memory *m, memory_record_fn fn, void *arg);

/* The value in its first spelling, a new reference; NULL: it is spelled so, or was never seen before. Here and below,
 * keep: what was not is remembered from now on. */
json_t *spelling_memory_recall(struct spelling_memory *m, struct answer_owner owner, const json_t *value, bool keep);
/* The arguments of the calls in an array of messages; true: some have their first spelling now. */
bool spelling_memory_recall_calls(struct spelling_memory *m, struct answer_owner owner, json_t *messages,
                                  bool keep);
