/* server/routes/infill.c - POST /infill: llama-server's endpoint for editors: what belongs between two texts?
 *
 * {input_prefix, input_suffix, input_extra: [{filename, text}], prompt (the beginning of the answer), ...}: llama_server.h.
 */
#include "server/dialects/llama_server.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/routes/routes.h"

void route_infill(struct http_conn *c)
{
    struct gen_params p;
    json_t *body = NULL;
    struct api_error e;
    int rc;

    llama_server_init(&p);
    rc = request_reserve_texts(c, &e);
    if (rc == 0) rc = request_body(c, route_of(c)->params, &p, &body, &e);
    if (rc == 0) rc = llama_server_finish(body, served_of(c), &p, &e);
    if (rc == 0) rc = llama_server_gap(body, served_of(c), &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &llama_server_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}
