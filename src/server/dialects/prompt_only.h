/* server/dialects/prompt_only.h - the prompt of a body and nothing else: its tokens, its text, how many there are. As the same tenant's
 * request would have it: with the answers that are put back for it, and images that take memory of its share alone.
 *
 * Thread  a worker, or the io thread that owns the connection.
 * Errors  0, or -1 with *e.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "server/http/http_conn.h"
#include "server/params/params.h"

/* Whether a part of the messages is no text, an image: the first is messages[*message].content[*part]. */
bool prompt_only_finds_image(const json_t *messages, size_t *message, size_t *part);
/* Of a chat, parsed. *ids: rd_free. */
int prompt_only_tokens(const struct http_conn *c, const struct gen_params *p, int32_t **ids, uint32_t *n,
                       struct api_error *e);
/* Likewise of prompt i of a body without messages. */
int prompt_only_tokens_of(const struct http_conn *c, const struct gen_params *p, uint32_t i, int32_t **ids, uint32_t *n,
                          struct api_error *e);
/* What the template writes of a chat. *text: rd_free. */
int prompt_only_text(const struct http_conn *c, const struct gen_params *p, char **text, size_t *n,
                     struct api_error *e);
/* Answers {"input_tokens": n}, the sum of what usage says of the prompt's tokens when the same body is run; with object,
 * if that is not NULL. p: of a chat, parsed. Nothing is computed or stored. */
void prompt_only_reply_count(struct http_conn *c, const struct gen_params *p, const char *object);
