/* text/output/tool_prompt.h - tools for a chat template that knows none, and calls that are begun for the model.
 *
 * The tools are explained in the system message, in the form of OUTPUT_HERMES; earlier calls become text of their
 * messages, results become user messages.
 * Thread  any thread.
 * Errors  RD_E_NOMEM.
 */
#pragma once
#include <jansson.h>
#include "base/buf.h"
#include "radish/status.h"
#include "text/output/output_style.h"

/* Changes messages (an array) in place. tools: an array or NULL. */
rd_status tool_prompt_explain(const json_t *tools, json_t *messages);
/* How the model would begin a call of name ("": of any tool): put behind the prompt it makes the answer a call. */
void tool_prompt_begin_call(enum output_style style, const char *template_source, const char *name, struct buf *out);
