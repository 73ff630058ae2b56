/* cli/line_editor.h - a line of the terminal, edited with libedit: arrows, history, Ctrl-R, pasted text.
 *
 * What is pasted (bracketed paste) is one piece of text, newlines included; a long one is shown as "[paste 1: 120
 * lines]" and stands whole in the message. Alt-Enter begins a new line, Tab completes commands.
 *
 * History: $XDG_STATE_HOME/radish/chat_history, else ~/.local/state/radish/chat_history, mode 0600: one JSON string a
 * line. Lines are appended as they are entered, so several chats may share it.
 * Thread  main thread.
 * Errors  without a folder for the history, or memory, there is no history.
 */
#pragma once
#include "base/buf.h"

enum line { LINE_END, LINE_TEXT, LINE_INTERRUPTED };

struct line_editor;

/* NULL: no terminal that can be edited on, or a build without libedit; lines are then read as they come. commands: what
 * Tab completes, ended by NULL; they outlive the editor. */
struct line_editor *line_editor_create(const char *const *commands);
void line_editor_destroy(struct line_editor *e);

/* One message, without its last newline. LINE_INTERRUPTED: Ctrl-C threw it away. */
enum line line_editor_read(struct line_editor *e, const char *prompt, struct buf *message);

/* Up and Ctrl-R find it from now on, in later chats too. */
void line_editor_remember(struct line_editor *e, const char *text, size_t n);
