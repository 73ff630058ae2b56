/* cli/completion.h - what may stand where a shell's cursor stands, from the tables that parse the command line.
 *
 * An answer has a line for each candidate: the whole word, then, after a tab, what it means ("" where there is nothing to
 * say). Two lines are for the shell: ":files" and ":folders" let it complete names of files or folders where no candidate
 * fits. The scripts in src/cli/shell/ ask (radish completion --words) and show.
 * Main thread.
 */
#pragma once
#include "base/buf.h"

/* words[0..n): those after "radish" up to the cursor, the last one being typed, "" if it has not begun. */
void completion_answer(const char *const *words, size_t n, struct buf *out);
