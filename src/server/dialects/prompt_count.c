/* server/dialects/prompt_count.c - the prompt is made as for a request, and its tokens are counted. */
#include "server/dialects/prompt_count.h"
#include "server/dialects/generation.h"
#include "server/params/json_out.h"
#include "server/dialects/server_state.h"

void prompt_count_reply(struct http_conn *c, const struct gen_params *p, const char *object)
{
    struct rd_error err = {RD_OK, ""};
    struct rd_request_options o;
    struct api_error e;
    struct buf body = {0};
    int32_t *ids = NULL;
    uint32_t n = 0;
    rd_status st;

    rd_request_options_default(&o);
    generation_chat_options(p, &o);
    st = rd_prompt_tokens(served_of(c)->engine, &o, &ids, &n, &err);
    rd_free(ids);
    if (st != RD_OK) {
        api_error_from_status(&e, st, err.text);
        http_reply_error(c, &e);
        return;
    }
    buf_printf(&body, "{\"input_tokens\":%u", n);
    if (object) buf_printf(&body, ",\"object\":\"%s\"", object);
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}
