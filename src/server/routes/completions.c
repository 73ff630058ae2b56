/* server/routes/completions.c - POST /v1/completions: prompts as text or token ids. */
#include "server/dialects/fim.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/routes/routes.h"

/* Prompts with a suffix become the tokens that ask for what is between the two. */
static int put_suffix(const rd_engine *engine, struct gen_params *p, struct api_error *e)
{
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        struct prompt *prompt = &p->prompts[i];
        const struct fim_parts parts = {.before = {prompt->text, prompt->n_text}, .after = {p->suffix, p->n_suffix}};

        if (!prompt->text) return api_error_set(e, 400, "suffix", "suffix: the prompt must be text");
        if (p->echo) return api_error_set(e, 400, "echo", "echo: not together with suffix");
        if (fim_prompt(engine, &parts, "suffix", prompt, e)) return -1;
    }
    return 0;
}

void route_completions(struct http_conn *c)
{
    struct gen_params p;
    struct api_error e;
    json_t *body = NULL;
    int rc;

    gen_params_init(&p, false);
    rc = request_body(c, route_of(c)->params, &p, &body, &e);
    if (rc == 0) rc = gen_params_finish(body, served_of(c), &p, &e);
    json_decref(body);
    if (rc == 0 && p.suffix) rc = put_suffix(served_of(c)->engine, &p, &e);
    if (rc == 0) {
        generation_start(c, &text_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}
