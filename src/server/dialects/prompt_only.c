/* server/dialects/prompt_only.c - the prompt is made as for a request, and never submitted. */
#include "server/dialects/prompt_only.h"
#include "server/dialects/generation.h"
#include "server/dialects/server_state.h"
#include "server/http/http_guard.h"
#include "server/params/json_out.h"

bool prompt_only_finds_image(const json_t *messages, size_t *message, size_t *part)
{
    const json_t *m, *p;
    size_t i, k;

    json_array_foreach(messages, i, m)
    {
        json_array_foreach(json_object_get(m, "content"), k, p)
        {
            if (json_object_get(p, "text")) continue;
            *message = i;
            *part = k;
            return true;
        }
    }
    return false;
}

/* What says whose o is: the rest is the body's. */
static int tokens_of(const struct http_conn *c, const struct gen_params *p, struct rd_request_options *o, int32_t **ids,
                     uint32_t *n, struct api_error *e)
{
    struct rd_error err = {RD_OK, ""};
    struct buf salt = {0};
    rd_status st;

    http_tenant_salt(c, p->cache_salt, &salt);
    o->cache_salt = salt.data;
    o->fairness_key = c->tenant;
    o->cache_prompt = p->cache_prompt;
    o->replay = p->replay;
    st = salt.failed ? RD_E_NOMEM : rd_prompt_tokens(served_of(c)->engine, o, ids, n, &err);
    buf_deinit(&salt);
    if (st == RD_OK) return 0;
    api_error_from_status(e, st, err.text);
    return -1;
}

int prompt_only_tokens(const struct http_conn *c, const struct gen_params *p, int32_t **ids, uint32_t *n,
                       struct api_error *e)
{
    struct rd_request_options o;

    rd_request_options_default(&o);
    generation_chat_options(p, &o);
    return tokens_of(c, p, &o, ids, n, e);
}

int prompt_only_tokens_of(const struct http_conn *c, const struct gen_params *p, uint32_t i, int32_t **ids, uint32_t *n,
                          struct api_error *e)
{
    struct rd_request_options o;

    rd_request_options_default(&o);
    o.prompt = p->prompts[i].text;
    o.prompt_bytes = p->prompts[i].n_text;
    o.tokens = p->prompts[i].tokens;
    o.n_tokens = p->prompts[i].n_tokens;
    return tokens_of(c, p, &o, ids, n, e);
}

int prompt_only_text(const struct http_conn *c, const struct gen_params *p, char **text, size_t *n, struct api_error *e)
{
    struct rd_error err = {RD_OK, ""};
    struct rd_request_options o;
    rd_status st;

    rd_request_options_default(&o);
    generation_chat_options(p, &o);
    o.fairness_key = c->tenant;
    st = rd_prompt_text(served_of(c)->engine, &o, text, n, &err);
    if (st == RD_OK) return 0;
    api_error_from_status(e, st, err.text);
    return -1;
}

void prompt_only_reply_count(struct http_conn *c, const struct gen_params *p, const char *object)
{
    struct buf body = {0};
    struct api_error e;
    int32_t *ids = NULL;
    uint32_t n = 0;

    if (prompt_only_tokens(c, p, &ids, &n, &e)) {
        http_reply_error(c, &e);
        return;
    }
    rd_free(ids);
    buf_printf(&body, "{\"input_tokens\":%u", n);
    if (object) buf_printf(&body, ",\"object\":\"%s\"", object);
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}
