/* server/params/odd_fields.h - what of a body is taken and then says nothing: told in X-Radish-Ignored-Fields beside unknown
 * fields, never refused, because clients send it every day.
 *
 *     tools.strict               a schema that should be enforced, where the model writes calls in a form that cannot be
 *     messages[3].role           a role that chat templates leave out
 *     messages[3].tool_call_id   a tool's result without a call of that id before it; likewise
 *     messages[3].content[0].tool_use_id, input[3].call_id
 *
 * Thread  any thread.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/buf.h"

/* After params_read. holds_calls: strict functions are enforced. Appends names to out, ", " before each where something
 * stands there. */
void odd_fields(const json_t *body, unsigned endpoint, bool holds_calls, struct buf *out);
