/* cli/warm_file.h - the files of `radish serve --warm` and --shared-prefix: prompts that are computed in advance.
 *
 * A line each, as JSON: the fields that make the prompt of a chat or completion request, others are ignored.
 *
 *     {"messages": [{"role": "system", "content": "..."}], "tools": [...], "chat_template_kwargs": {...}}
 *     {"prompt": "Once upon a time", "cache_salt": "team-a"}
 *
 * Thread  the loading thread.  Errors  name the line: RD_E_NOT_FOUND, RD_E_FORMAT, RD_E_FULL (more lines than half of the
 * queue holds).
 */
#pragma once
#include "radish/radish.h"

/* Every prompt is handed to rd_warm, or, shared, to rd_share_prefix; nothing waits for them. */
rd_status warm_file(rd_engine *engine, const char *path, bool shared, struct rd_error *err);
