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

static void run_llama_server(struct http_conn *c, json_t *body)
{
    struct gen_params p;
    struct api_error e;
    int rc;

    llama_server_init(&p);
    rc = request_fields(c, FOR_COMPLETION, body, &p, &e);
    if (rc == 0) rc = llama_server_finish(body, served_of(c), &p, &e);
    if (rc == 0) rc = llama_server_prompts(body, served_of(c), &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &llama_server_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}

/* its_texts: they are tokenised here. */
static json_t *read_body(struct http_conn *c, bool its_texts)
{
    json_t *body = NULL;
    struct api_error e;

    if ((its_texts && request_reserve_texts(c, &e)) || request_json(c, &body, &e)) http_reply_error(c, &e);
    return body;
}

void route_completions(struct http_conn *c)
{
    json_t *body = read_body(c, false);

    if (body) run_openai(c, body);
}

void route_completion(struct http_conn *c)
{
    json_t *body = read_body(c, true);

    if (body) run_llama_server(c, body);
}

/* Clients of llama-server limit its answers by n_predict, those of OpenAI by max_tokens. */
void route_completions_of_both(struct http_conn *c)
{
    bool may_be_its = route_body_has(c, "\"n_predict\"");
    json_t *body = read_body(c, may_be_its);

    if (!body) return;
    if (may_be_its && json_object_get(body, "n_predict"))
        run_llama_server(c, body);
    else
        run_openai(c, body);
}
