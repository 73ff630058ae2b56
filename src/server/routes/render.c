/* server/routes/render.c - POST /v1/chat/completions/render, /v1/completions/render: the token ids of a body's prompt, as vLLM
 * tells them to routers that look them up among the blocks of KV events. Nothing is computed or stored.
 *
 * {request_id, model, token_ids}; of completions a list of these, one a prompt.
 */
#include <string.h>
#include "server/dialects/prompt_only.h"
#include "server/dialects/request_body.h"
#include "server/params/json_out.h"
#include "server/routes/routes.h"

#define ID_BYTES 16u /* of an id, and where it is written */

/* {"request_id":..,"token_ids":[..],"model":..} of prompt i, or of the chat. */
static int put_prompt(struct http_conn *c, const struct gen_params *p, uint32_t i, struct buf *out, struct api_error *e)
{
    const struct served_model *s = served_of(c);
    int32_t *ids = NULL;
    uint32_t n = 0;

    if (p->chat ? prompt_only_tokens(c, p, &ids, &n, e) : prompt_only_tokens_of(c, p, i, &ids, &n, e)) return -1;
    if (request_reserve(c, (uint64_t)n * ID_BYTES, e)) {
        rd_free(ids);
        return -1;
    }
    buf_puts(out, "{\"request_id\":");
    json_put_string(out, http_request_id(c), strlen(http_request_id(c)));
    buf_puts(out, ",\"model\":");
    json_put_string(out, s->info.model_id, strlen(s->info.model_id));
    buf_puts(out, ",\"token_ids\":[");
    for (uint32_t k = 0; k < n; k++) buf_printf(out, k ? ",%d" : "%d", ids[k]);
    buf_puts(out, "]}");
    rd_free(ids);
    return 0;
}

static void render(struct http_conn *c, bool chat)
{
    struct gen_params p;
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    int rc = request_reserve_texts(c, &e) || request_json(c, &in, &e) ? -1 : 0;

    gen_params_init(&p, chat);
    if (rc == 0) {
        gen_params_deinit(&p);
        rc = gen_params_parse(in, served_of(c), chat, &p, &e);
    }
    if (rc == 0 && chat) rc = put_prompt(c, &p, 0, &body, &e);
    if (rc == 0 && !chat) {
        buf_puts(&body, "[");
        for (uint32_t i = 0; i < p.n_prompts && rc == 0; i++) {
            buf_puts(&body, i ? "," : "");
            rc = put_prompt(c, &p, i, &body, &e);
        }
        buf_puts(&body, "]");
    }
    if (rc == 0)
        http_reply_json(c, &body);
    else
        http_reply_error(c, &e);
    gen_params_deinit(&p);
    buf_deinit(&body);
    json_decref(in);
}

void route_render_chat(struct http_conn *c)
{
    render(c, true);
}

void route_render_text(struct http_conn *c)
{
    render(c, false);
}
