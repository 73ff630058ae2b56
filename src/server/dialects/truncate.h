/* server/dialects/truncate.h - truncation: auto of the Responses API: a conversation that does not fit into the context
 * loses its oldest turns.
 *
 * A turn begins with a user's message and lasts until the next one: what the assistant said, its calls and their results.
 * The system's messages at the beginning (instructions) and the last turn always stay. A conversation that fits is left as
 * it is. Of one that does not as few turns go as leave room for max_tokens, except for half of the context at most, or for an
 * eighth where that is not given; so a conversation that grows does not lose a turn with every message.
 *
 * Thread  any thread: tokens are made, up to log2 of the turns times (routes.h: it leaves the io thread).
 */
#pragma once
#include <jansson.h>
#include "server/dialects/server_state.h"

/* chat: a body of chat completions; its messages may become fewer. -1: *e says why not: it cannot be rendered. That even
 * the last turn does not fit is found when it is submitted. */
int chat_truncate(struct http_conn *c, json_t *chat, struct api_error *e);
