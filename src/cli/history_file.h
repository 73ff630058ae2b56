/* cli/history_file.h - what was typed in earlier chats: one JSON string a line, newest last, for the user's eyes only.
 *
 * $XDG_STATE_HOME/radish/chat_history, else ~/.local/state/radish/chat_history; mode 0600. A line is appended with one
 * write, so several chats may share the file; it is cut to its newest lines when it has twice as many as are wanted.
 * Thread  main thread.
 * Errors  without a folder that can be written there is no file, and nothing is kept.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { HISTORY_LINE_BYTES = 8192 }; /* longer ones are not kept */

struct history_file {
    int fd;
}; /* fd < 0: none; zeroed memory must be opened first */

/* Every kept line goes to fn, the oldest first, n_max of them at most. */
void history_file_open(struct history_file *h, uint32_t n_max, void (*fn)(void *user, const char *text, size_t n),
                       void *user);
void history_file_add(struct history_file *h, const char *text, size_t n);
void history_file_close(struct history_file *h);
