/* server/dialects/foreign.h - requests of Anthropic's Messages API and OpenAI's Responses API as bodies of chat completions.
 *
 * A body is first checked against its own endpoint's rows of the table (params_read, without which nothing here may be
 * called), then translated, and goes through gen_params_parse() like any other: what the rows of both endpoints share
 * is passed on, so that the sampling parameters of chat completions work in every API. Every message begins with the
 * field as the client wrote it, because Anthropic's errors have no other place for its name.
 *
 * Thread  any thread.
 * Errors  -1 with *e filled; then *chat is NULL.
 * Source  docs.anthropic.com/en/api/messages, platform.openai.com/docs/api-reference/responses.
 */
#pragma once
#include <jansson.h>
#include "server/params/params.h"

/* POST /v1/messages; count: of /v1/messages/count_tokens, where max_tokens may be missing. The new body is the
 * caller's. */
int anthropic_to_chat(const json_t *body, bool count, json_t **chat, struct api_error *e);
/* After gen_params_parse() failed: field names of the chat body become those of the client. */
void anthropic_error(struct api_error *e);

/* POST /v1/responses. items: the whole conversation as responses_items() gives it, after what went before. */
int responses_to_chat(const json_t *body, const json_t *items, json_t **chat, struct api_error *e);
void responses_error(struct api_error *e);
/* input as a new list of items, each with type, id and status; a message's content is a list of parts. */
int responses_items(const json_t *body, json_t **items, struct api_error *e);

/* ---- shared ---- */

/* 503 out of memory. */
int foreign_no_memory(struct api_error *e);
/* Takes value; false: out of memory (a NULL value included). */
bool foreign_set(json_t *object, const char *name, json_t *value);
bool foreign_add(json_t *list, json_t *value);
/* A complaint about field from is one about field to. */
void foreign_rename(struct api_error *e, const char *from, const char *to);
/* {"type":"function","function":{name,description,parameters,strict}} from a flat tool whose schema is under schema. */
json_t *foreign_tool(const json_t *tool, const char *schema);
