/* server/dialects/prompt_count.h - how many tokens the prompt of a chat would have: what counting endpoints of three APIs answer.
 * Thread  io thread that owns the connection. */
#pragma once
#include "server/http/http_conn.h"
#include "server/params/params.h"

/* Answers {"input_tokens": n}, the sum of what usage says of the prompt's tokens when the same body is run; with object,
 * if that is not NULL. p: of a chat, parsed. Nothing is computed or stored. */
void prompt_count_reply(struct http_conn *c, const struct gen_params *p, const char *object);
