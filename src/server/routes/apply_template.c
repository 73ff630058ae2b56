/* server/routes/apply_template.c - POST /apply-template: what a chat completion says of its prompt -> {prompt}. */
#include "base/mem.h"
#include "server/params/json_out.h"
#include "server/dialects/prompt_only.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

void route_apply_template(struct http_conn *c)
{
    char *text = NULL;
    struct gen_params p;
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    size_t n = 0;
    int rc;

    gen_params_init(&p, true);
    rc = request_reserve_texts(c, &e);
    if (rc == 0) rc = request_body(c, route_of(c)->params, &p, &in, &e);
    if (rc == 0) rc = gen_params_rendering(in, &p, &e);
    if (rc == 0) rc = prompt_only_text(c, &p, &text, &n, &e);
    if (rc == 0) {
        buf_puts(&body, "{\"prompt\":");
        json_put_string(&body, text, n);
        buf_puts(&body, "}");
        http_reply_json(c, &body);
    } else {
        http_reply_error(c, &e);
    }
    rd_free(text);
    gen_params_deinit(&p);
    buf_deinit(&body);
    json_decref(in);
}
