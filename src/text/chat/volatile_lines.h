/* text/chat/volatile_lines.h - lines of system prompts that mean nothing to a model, but are new in every request.
 *
 * Some agents write a billing header or a request id into the system prompt. Everything behind it would have to be
 * computed again in every turn. A small table of exact rules recognises such lines, and they are left out before the
 * template is rendered:
 *
 *     x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;      Claude Code
 *     X-Request-ID: 7f1c24ac-1d6e-4f0c-9b1e-1f0a53b0f3aa                                      and its like: see the table
 *
 * A rule matches a whole line: a known name and a value of nothing but such an id. Only system and developer messages
 * are looked at; dates, paths and the text of users are never touched.
 *
 * Thread  any thread.
 * Source  what Claude Code sends, as described in github.com/anthropics/claude-code/issues/68900.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/buf.h"
#include "radish/status.h"

/* Is this line (without its end) volatile? */
bool volatile_line_is(const char *line, size_t n);

/* Takes volatile lines out of the system and developer messages, with the parts and messages that nothing is left of.
 * What was left out goes to report, a line each. RD_E_NOMEM: messages are as they were or partly done. */
rd_status volatile_lines_leave_out(json_t *messages, struct buf *report);
