/* server/routes/infill.c - POST /infill: llama-server's endpoint for editors: what belongs between two texts?
 *
 * {input_prefix, input_suffix, input_extra: [{filename, text}], prompt (the beginning of the answer), ...}; the fields of
 * /v1/completions work too. What is too long for the context is cut: the front of the prefix, the end of the suffix.
 */
#include "base/mem.h"
#include "server/dialects/fim.h"
#include "server/dialects/foreign.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/routes/routes.h"

#define MARGIN_TOKENS 64u /* marks and names beside the texts */

/* What only this endpoint has; the rest is checked as in /v1/completions. */
static int check_parts(const json_t *body, struct api_error *e)
{
    static const char *const texts[] = {"input_prefix", "input_suffix", "prompt"};
    const json_t *extra = json_object_get(body, "input_extra");

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const json_t *v = json_object_get(body, texts[i]);

        if (v && !json_is_null(v) && !json_is_string(v))
            return api_error_set(e, 400, texts[i], "%s: a string wanted", texts[i]);
    }
    if (extra && !json_is_null(extra) && !json_is_array(extra))
        return api_error_set(e, 400, "input_extra", "input_extra: a list of {filename, text} wanted");
    return 0;
}

/* The body as one of /v1/completions, with a place for the prompt that is made of its parts. */
static int read_body(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e)
{
    static const char *const drop[] = {"prompt", "suffix", "n", "best_of", "echo"};
    json_t *text;
    bool ok;
    int rc = -1;

    if (check_parts(body, e)) return -1;
    text = json_copy((json_t *)(uintptr_t)body);
    for (size_t i = 0; text && i < sizeof(drop) / sizeof(drop[0]); i++) json_object_del(text, drop[i]);
    ok = text && foreign_set(text, "prompt", json_pack("[i]", 0));
    if (ok && !json_object_get(body, "n_predict") && !json_object_get(body, "max_tokens"))
        ok = foreign_set(text, "max_tokens", json_integer(-1));
    if (!ok)
        foreign_no_memory(e);
    else
        rc = gen_params_parse(text, m, false, p, e);
    json_decref(text);
    return rc;
}

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

    parts.n_keep = info->n_ctx > n_new + 2 * MARGIN_TOKENS ? info->n_ctx - n_new - MARGIN_TOKENS : MARGIN_TOKENS;
    return fim_prompt(served_of(c)->engine, &parts, "input_suffix", &p->prompts[0], e);
}

void route_infill(struct http_conn *c)
{
    struct infill_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    json_t *body = NULL;
    struct api_error e;
    int rc = s ? request_reserve_texts(c, &e) : foreign_no_memory(&e);

    if (rc == 0) rc = request_json(c, &body, &e);
    if (rc == 0) rc = read_body(body, served_of(c), &p, &e);
    if (rc == 0) rc = make_prompt(c, body, &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &infill_shape, &p, s);
        return;
    }
    gen_params_deinit(&p);
    infill_state_destroy(s);
    http_reply_error(c, &e);
}
