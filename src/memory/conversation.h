/* memory/conversation.h - what a conversation says, whatever its JSON looks like: one digest for tools and messages.
 *
 * Two requests have one digest after k messages when their tools are equal as JSON and their first k messages say the
 * same: keys in any order, a call's arguments as an object or as a text of any spelling. Of an assistant message its
 * content and its calls count (ids, names, arguments), of every other message all members.
 *
 *     begin(tools) -> add(message 0) -> add(message 1) -> ...
 *
 * Two clients that really say the same have one digest: it tells what is said, not who says it.
 * Thread  any thread.  Errors  no memory: the digest is `failed`, and so is all that follows from it.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/hash.h"

struct conversation {
    struct hash128 said;
    bool failed;
};

/* tools: an array or NULL. */
struct conversation conversation_begin(const json_t *tools);
struct conversation conversation_add(struct conversation before, const json_t *message);
/* An assistant message as it was delivered: calls as in answer_memory.h, or NULL. */
struct conversation conversation_add_answer(struct conversation before, const char *content, size_t n,
                                            const json_t *calls);
/* Are two calls' arguments one to JSON? Each is a value, or a text that spells one; a text that
 * spells none equals itself alone. */
bool conversation_same_arguments(const json_t *a, const json_t *b);
