/* text/chat/chat_builtins.h - templates for the formats that models without one of their own speak, and for
 * --chat-template NAME. They write what a family's model card shows; tools where the family has a format for them.
 *
 * Thread  any thread: constants.
 */
#pragma once
#include <stddef.h>

/* NULL: there is none of that name. */
const char *chat_builtin_source(const char *name);
/* "chatml, qwen, ..." in the order of the table. */
const char *chat_builtin_names(void);
