/* cli/cli_lines.h - a command that answers lines of JSON on standard input, one line each.
 *
 * Thread  main thread.
 */
#pragma once
#include <jansson.h>

/* Every line that is not empty goes to answer, which prints one line; what is not JSON, or longer than a request body
 * may be, gets {"error": ...} here. Returns an exit status. */
int cli_answer_lines(void (*answer)(void *user, const json_t *line), void *user);

/* {"error": "text"} as a line on standard output. */
void cli_answer_error(const char *text);
