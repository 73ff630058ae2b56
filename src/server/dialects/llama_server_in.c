/* server/dialects/llama_server_in.c - defaults, the many forms of a prompt, and gaps. */
#include "base/limits.h"
#include "base/mem.h"
#include "server/dialects/fim.h"
#include "server/dialects/foreign.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/dialects/token_list.h"

#define MARGIN_TOKENS 64u /* of a gap: marks and names beside the texts */

void llama_server_init(struct gen_params *p)
{
    gen_params_init(p, false);
    p->max_tokens = -1;
    p->has_max_tokens = true;
}

int llama_server_finish(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e)
{
    if (gen_params_finish(body, m, p, e)) return -1;
    p->return_token_ids |= p->stream;
    return 0;
}

void llama_server_run(struct http_conn *c, unsigned endpoint, json_t *body, llama_server_prompt_fn *prompts)
{
    struct gen_params p;
    struct api_error e;
    int rc;

    if (!body) return;
    llama_server_init(&p);
    rc = request_fields(c, endpoint, body, &p, &e);
    if (rc == 0) rc = llama_server_finish(body, served_of(c), &p, &e);
    if (rc == 0) rc = prompts(body, served_of(c), &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &llama_server_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}

/* ---- one prompt ---- */

static int take_text(const json_t *v, struct prompt *to, struct api_error *e)
{
    if (json_string_length(v) == 0) return api_error_set(e, 400, "prompt", "prompt: empty");
    to->n_text = json_string_length(v);
    to->text = mem_memdup(json_string_value(v), to->n_text);
    return to->text ? 0 : foreign_no_memory(e);
}

static rd_status add_text(const rd_engine *engine, const json_t *v, bool is_first, struct token_list *to)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    rd_status st = rd_tokenize(engine, json_string_value(v), json_string_length(v), is_first, true, &ids, &n, NULL);

    if (st == RD_OK) st = token_list_add(to, ids, n);
    rd_free(ids);
    return st;
}

static int take_mixed(const rd_engine *engine, const json_t *v, struct prompt *to, struct api_error *e)
{
    struct token_list list = {0};
    size_t i, n_bytes = 0;
    rd_status st = RD_OK;
    json_t *part;

    json_array_foreach((json_t *)(uintptr_t)v, i, part)
    {
        json_int_t id = json_integer_value(part);

        n_bytes += json_string_length(part);
        if (json_is_string(part) && n_bytes <= LIMIT_FIM_BYTES)
            st = add_text(engine, part, i == 0, &list);
        else if (json_is_integer(part) && id >= 0 && id <= INT32_MAX)
            st = token_list_add_one(&list, (int32_t)id);
        else
            break;
        if (st != RD_OK) break;
    }
    *to = (struct prompt){.tokens = list.ids, .n_tokens = list.n};
    if (st == RD_E_NOMEM) return foreign_no_memory(e);
    if (st != RD_OK) return api_error_set(e, 400, "prompt", "prompt: element %zu: %s", i, rd_status_text(st));
    if (i < json_array_size(v) && n_bytes > LIMIT_FIM_BYTES)
        return api_error_set(e, 400, "prompt", "prompt: texts beside token ids: at most %u bytes", LIMIT_FIM_BYTES);
    if (i < json_array_size(v))
        return api_error_set(e, 400, "prompt", "prompt: element %zu is neither a token id nor a string", i);
    if (list.n == 0) return api_error_set(e, 400, "prompt", "prompt: empty");
    return 0;
}

static int take_prompt(const rd_engine *engine, const json_t *v, struct prompt *to, struct api_error *e)
{
    const json_t *media = json_object_get(v, "multimodal_data"), *text = json_object_get(v, "prompt_string");

    if (media && !json_is_null(media) && !(json_is_array(media) && json_array_size(media) == 0))
        return api_error_set(e, 400, "prompt", "prompt: no multimodal_data here; images are parts of messages");
    if (json_is_object(v)) v = text;
    if (json_is_string(v)) return take_text(v, to, e);
    if (json_is_array(v)) return take_mixed(engine, v, to, e);
    return api_error_set(e, 400, "prompt",
                         "prompt: wanted a string, token ids, both in one list, or {prompt_string} of these");
}

/* ---- all of them ---- */

/* A list of prompts; else it is one. */
static bool is_list(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (json_is_number(json_array_get(v, i))) return false;
    return json_is_array(v);
}

int llama_server_prompts(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e)
{
    const json_t *v = json_object_get(body, "prompt");
    bool many = is_list(v);
    size_t n = many ? json_array_size(v) : 1;

    if (n * (uint64_t)p->n > LIMIT_PROMPTS)
        return api_error_set(e, 400, "prompt", "prompt: prompts times n_cmpl must be at most %u", LIMIT_PROMPTS);
    p->prompts = mem_zalloc(n, sizeof(*p->prompts));
    if (!p->prompts) return foreign_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        p->n_prompts++;
        if (take_prompt(m->engine, many ? json_array_get(v, i) : v, &p->prompts[i], e)) return -1;
    }
    return 0;
}

/* ---- a gap ---- */

static struct fim_text text_of(const json_t *body, const char *name)
{
    const json_t *v = json_object_get(body, name);

    return (struct fim_text){json_string_value(v), json_string_length(v)};
}

int llama_server_gap(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e)
{
    uint32_t n_ctx = m->info.n_ctx;
    uint32_t n_new = p->max_tokens > 0 && p->max_tokens < n_ctx ? (uint32_t)p->max_tokens : n_ctx / 4;
    struct fim_parts parts = {.before = text_of(body, "input_prefix"),
                              .after = text_of(body, "input_suffix"),
                              .begun = text_of(body, "prompt"),
                              .extra = json_object_get(body, "input_extra")};

    p->prompts = mem_zalloc(1, sizeof(*p->prompts));
    if (!p->prompts) return foreign_no_memory(e);
    p->n_prompts = 1;
    parts.n_keep = n_ctx > n_new + 2 * MARGIN_TOKENS ? n_ctx - n_new - MARGIN_TOKENS : MARGIN_TOKENS;
    return fim_prompt(m->engine, &parts, "input_suffix", &p->prompts[0], e);
}
