/* server/routes/infill.c - POST /infill: llama-server's endpoint for editors: what belongs between two texts?
 *
 * {input_prefix, input_suffix, input_extra: [{filename, text}], prompt (the beginning of the answer), ...}. What is too long for the context is cut: the front of the prefix, the end of the suffix.
 */
#include "base/mem.h"
#include "server/dialects/fim.h"
#include "server/dialects/foreign.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/routes/routes.h"

#define MARGIN_TOKENS 64u /* marks and names beside the texts */

static struct fim_text text_of(const json_t *body, const char *name)
{
    const json_t *v = json_object_get(body, name);

    return (struct fim_text){json_string_value(v), json_string_length(v)};
}

static int make_prompt(struct http_conn *c, const json_t *body, struct gen_params *p, struct api_error *e)
{
    const struct rd_info *info = &served_of(c)->info;
    uint32_t n_new = p->max_tokens > 0 && p->max_tokens < info->n_ctx ? (uint32_t)p->max_tokens : info->n_ctx / 4;
    struct fim_parts parts = {.before = text_of(body, "input_prefix"),
                              .after = text_of(body, "input_suffix"),
                              .begun = text_of(body, "prompt"),
                              .extra = json_object_get(body, "input_extra")};

    p->prompts = mem_zalloc(1, sizeof(*p->prompts));
    if (!p->prompts) return foreign_no_memory(e);
    p->n_prompts = 1;
    parts.n_keep = info->n_ctx > n_new + 2 * MARGIN_TOKENS ? info->n_ctx - n_new - MARGIN_TOKENS : MARGIN_TOKENS;
    return fim_prompt(served_of(c)->engine, &parts, "input_suffix", &p->prompts[0], e);
}

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
    if (rc == 0) rc = make_prompt(c, body, &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &llama_server_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}
