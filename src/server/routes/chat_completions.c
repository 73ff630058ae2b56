/* server/routes/chat_completions.c - POST /v1/chat/completions; .../input_tokens counts a prompt, as llama-server. */
#include "server/dialects/prompt_only.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/routes/routes.h"

void route_chat_completions(struct http_conn *c)
{
    struct gen_params p;
    struct api_error e;
    json_t *body = NULL;
    int rc;

    gen_params_init(&p, true);
    rc = request_body(c, route_of(c)->params, &p, &body, &e);
    if (rc == 0) rc = gen_params_finish(body, served_of(c), &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &chat_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}

void route_chat_count(struct http_conn *c)
{
    struct gen_params p;
    struct api_error e;
    json_t *body = NULL;

    gen_params_init(&p, true);
    if (request_reserve_texts(c, &e) || request_body(c, route_of(c)->params, &p, &body, &e) ||
        gen_params_finish(body, served_of(c), &p, &e))
        http_reply_error(c, &e);
    else
        prompt_only_reply_count(c, &p, "response.input_tokens");
    gen_params_deinit(&p);
    json_decref(body);
}
