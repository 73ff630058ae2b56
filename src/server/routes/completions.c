/* server/routes/completions.c - POST /v1/completions: prompts as text or token ids; POST /completion, which is llama-server's own.
 *
 * POST /completions is either: llama-server has its own API there, and a base URL without /v1 leads OpenAI's clients to it.
 */
#include "server/dialects/fim.h"
#include "server/dialects/llama_server.h"
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

/* Answers. Takes the body. */
static void run_openai(struct http_conn *c, json_t *body)
{
    struct gen_params p;
    struct api_error e;
    int rc;

    gen_params_init(&p, false);
    rc = request_fields(c, FOR_TEXT, body, &p, &e);
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

void route_completions(struct http_conn *c)
{
    json_t *body = request_json_or_answer(c, false);

    if (body) run_openai(c, body);
}

void route_completion(struct http_conn *c)
{
    llama_server_run(c, FOR_COMPLETION, request_json_or_answer(c, true), llama_server_prompts);
}

/* Clients of llama-server limit its answers by n_predict, those of OpenAI by max_tokens. */
void route_completions_of_both(struct http_conn *c)
{
    bool may_be_its = route_body_has(c, "\"n_predict\"");
    json_t *body = request_json_or_answer(c, may_be_its);

    if (!body) return;
    if (may_be_its && json_object_get(body, "n_predict"))
        llama_server_run(c, FOR_COMPLETION, body, llama_server_prompts);
    else
        run_openai(c, body);
}
