/* text/output/taught_calls.h - whether a conversation's own instructions show tool calls as plain text.
 *
 * Some clients explain tools twice: as `tools`, which the chat template renders in the model's own form, and in a system
 * message of theirs, with examples of calls as bare or fenced JSON (smolagents: "Action:" and {"name": .., "arguments": ..}).
 * The model then writes the form it was shown last; the client reads its calls, and shows them to it again in the next
 * turn, from the content. Such a request is answered in that form: see output_options.keep_bare and tool_grammar.shown.
 *
 * Thread  any.
 * Errors  none: without memory the answer is no.
 */
#pragma once
#include <stdbool.h>
#include "text/output/output_style.h"

/* messages_json: the messages as an array. A system or developer message shows a call of any name, without tags. The
 * first 64 KiB of them count. Only a style whose own calls stand between tags can tell (OUTPUT_HERMES). */
bool taught_calls(enum output_style style, const char *messages_json);
