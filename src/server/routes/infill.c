/* server/routes/infill.c - POST /infill: llama-server's endpoint for editors: what belongs between two texts?
 *
 * {input_prefix, input_suffix, input_extra: [{filename, text}], prompt (the beginning of the answer), ...}: llama_server.h.
 */
#include "server/dialects/llama_server.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

void route_infill(struct http_conn *c)
{
    llama_server_run(c, FOR_INFILL, request_json_or_answer(c, true), llama_server_gap);
}
