/* server/routes/cache.c - POST /v1/cache/explain, GET and DELETE /v1/cache.
 *
 * Bodies may be of any API that generates. What tells them apart:
 *     response_id                                   what the cache did for that answer
 *     input                                         Responses
 *     system, or tools with an input_schema, or blocks tool_use and tool_result        Messages
 *     options, keep_alive, think, format            Ollama's chat, or generate where there is a prompt
 *     messages                                      chat completions
 *     input_prefix, input_suffix; else n_predict    llama-server's /infill and /completion
 *     prompt                                        completions
 */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "server/dialects/foreign.h"
#include "server/dialects/generation.h"
#include "server/http/http_guard.h"
#include "server/params/json_out.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/ollama.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

#define LIST_NODES     200u   /* at most, unless ?limit= says fewer or more, */
#define LIST_NODES_TOP 10000u /* up to here */

static void put_explanation(const struct rd_cache_explanation *x, struct buf *out)
{
    buf_printf(out,
               "{\"object\":\"cache.explanation\",\"prompt_tokens\":%u,\"stored_tokens\":%u,\"computed_tokens\":%u,"
               "\"disk_tokens\":%u,\"lost_tokens\":%u,\"cause\":\"%s\"",
               x->n_prompt, x->n_stored, x->n_ready, x->n_disk,
               x->n_prompt - x->n_stored - (x->n_disk > x->n_ram ? x->n_disk : x->n_ram), rd_miss_cause_name(x->cause));
    if (*x->other_kv_type) buf_printf(out, ",\"stored_kv_type\":\"%s\"", x->other_kv_type);
    if (x->n_ram > 0) buf_printf(out, ",\"ram_tokens\":%u", x->n_ram);
    if (x->n_lossy > 0) buf_printf(out, ",\"lossy_tokens\":%u", x->n_lossy);
    if (x->n_stored == x->n_prompt) {
        buf_puts(out, ",\"difference\":null}");
        return;
    }
    buf_printf(out, ",\"difference\":{\"token\":%u,\"message\":", x->n_stored);
    if (x->message >= 0)
        buf_printf(out, "%d", x->message);
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"part\":\"%s\",\"sent\":", x->part);
    json_put_string(out, x->sent, strlen(x->sent));
    buf_puts(out, ",\"stored\":");
    json_put_string(out, x->stored, strlen(x->stored));
    buf_puts(out, "}}");
}

static bool has(const json_t *in, const char *field)
{
    return json_object_get(in, field) != NULL;
}

static bool is_anthropic(const json_t *in)
{
    const json_t *m, *block;
    size_t i, k;

    if (has(in, "system") && has(in, "messages")) return true;
    json_array_foreach(json_object_get(in, "tools"), i, m) if (has(m, "input_schema")) return true;
    json_array_foreach(json_object_get(in, "messages"), i, m)
        json_array_foreach(json_object_get(m, "content"), k, block)
    {
        const char *type = json_plain(json_object_get(block, "type"));

        if (type && (strcmp(type, "tool_use") == 0 || strcmp(type, "tool_result") == 0)) return true;
    }
    return false;
}

static int read_anthropic(const struct served_model *m, const json_t *in, struct gen_params *p, struct api_error *e)
{
    json_t *chat = NULL;
    int rc = params_read(in, FOR_COUNT, NULL, e);

    if (rc == 0) rc = anthropic_to_chat(in, true, &chat, e);
    if (rc == 0 && gen_params_parse(chat, m, true, p, e)) {
        anthropic_error(e);
        rc = -1;
    }
    json_decref(chat);
    return rc;
}

static int read_responses(struct http_conn *c, const json_t *in, struct gen_params *p, struct api_error *e)
{
    json_t *chat = NULL;
    int rc = params_read(in, FOR_RESPONSES, NULL, e);

    if (rc == 0) rc = responses_chat(c, in, &chat, e);
    if (rc == 0 && gen_params_parse(chat, served_of(c), true, p, e)) {
        responses_error(e);
        rc = -1;
    }
    json_decref(chat);
    return rc;
}

static int read_ollama(const struct served_model *m, const json_t *in, struct gen_params *p, struct api_error *e)
{
    struct ollama_task task = {0};
    bool chat = has(in, "messages");
    int rc = params_read(in, chat ? FOR_OLLAMA_CHAT : FOR_OLLAMA_GENERATE, NULL, e);

    if (rc == 0) rc = chat ? ollama_chat_task(in, &m->info, &task, e) : ollama_generate_task(in, &m->info, &task, e);
    if (rc == 0 && (!task.body || task.suffix))
        rc =
            api_error_set(e, 400, chat ? "messages" : "prompt", "%s: there is no prompt", chat ? "messages" : "prompt");
    if (rc == 0 && gen_params_parse(task.body, m, task.chat, p, e)) {
        ollama_error(e);
        rc = -1;
    }
    json_decref(task.body);
    return rc;
}

static int read_llama_server(const struct served_model *m, const json_t *in, bool is_gap, struct gen_params *p,
                             struct api_error *e)
{
    llama_server_init(p);
    if (params_read(in, is_gap ? FOR_INFILL : FOR_COMPLETION, p, e) || llama_server_finish(in, m, p, e)) return -1;
    return is_gap ? llama_server_gap(in, m, p, e) : llama_server_prompts(in, m, p, e);
}

int cache_read_any(struct http_conn *c, const json_t *in, struct gen_params *p, struct api_error *e)
{
    const struct served_model *m = served_of(c);
    bool is_gap = has(in, "input_prefix") || has(in, "input_suffix");

    if (has(in, "input")) return read_responses(c, in, p, e);
    if (is_anthropic(in)) return read_anthropic(m, in, p, e);
    if (has(in, "options") || has(in, "keep_alive") || has(in, "think") || has(in, "format"))
        return read_ollama(m, in, p, e);
    if (!has(in, "messages") && (is_gap || has(in, "n_predict"))) return read_llama_server(m, in, is_gap, p, e);
    return gen_params_parse(in, m, has(in, "messages"), p, e);
}

/* After the fact. */
static int explain_answer(struct http_conn *c, const json_t *id, struct buf *out, struct api_error *e)
{
    const char *text = json_plain(id);
    struct cache_record r;

    if (!text || !prompt_prints_find(server_of(c)->prints, c->tenant, text, &r))
        return api_error_set(e, 404, "response_id", "response_id: there is no such answer among the latest");
    buf_puts(out, "{\"object\":\"cache.explanation\",\"response_id\":");
    json_put_string(out, text, strlen(text));
    buf_printf(out,
               ",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"joined_tokens\":%u,\"ram_tokens\":%u,"
               "\"disk_tokens\":%u,\"lossy_tokens\":%u,\"lost_tokens\":%u,\"cause\":\"%s\"}",
               r.n_prompt, r.n_cached, r.n_joined, r.n_ram, r.n_disk, r.n_lossy, r.n_prompt - r.n_cached,
               rd_miss_cause_name((enum rd_miss_cause)r.miss));
    return 0;
}

/* The prompt of a request; of several the first. salt: filled, o refers to it and to p. */
static int read_prompt(struct http_conn *c, const json_t *in, struct gen_params *p, struct buf *salt,
                       struct rd_request_options *o, struct api_error *e)
{
    if (cache_read_any(c, in, p, e)) return -1;
    rd_request_options_default(o);
    if (p->chat) {
        generation_chat_options(p, o);
    } else {
        o->adapters = p->adapters;
        o->n_adapters = p->n_adapters;
        o->prompt = p->prompts[0].text;
        o->prompt_bytes = p->prompts[0].n_text;
        o->tokens = p->prompts[0].tokens;
        o->n_tokens = p->prompts[0].n_tokens;
    }
    http_tenant_salt(c, p->cache_salt, salt);
    o->cache_salt = salt->data;
    o->fairness_key = c->tenant;
    return salt->failed ? api_error_set(e, 503, NULL, "out of memory") : 0;
}

/* 0, or *e says what st is. */
static int told(rd_status st, const struct rd_error *err, struct api_error *e)
{
    if (st == RD_OK) return 0;
    api_error_from_status(e, st, err->text[0] ? err->text : NULL);
    return -1;
}

static int explain(struct http_conn *c, const json_t *in, struct gen_params *p, struct rd_cache_explanation *out,
                   struct api_error *e)
{
    struct rd_error err = {RD_OK, ""};
    struct rd_request_options o;
    struct buf salt = {0};
    int rc = read_prompt(c, in, p, &salt, &o, e);

    if (rc == 0) rc = told(rd_cache_explain(served_of(c)->engine, &o, out, &err), &err, e);
    buf_deinit(&salt);
    return rc;
}

/* With a body: the end of its prompt and what is behind. Everybody may do that to what is stored under their own key. */
static int clear_behind(struct http_conn *c, uint64_t *n_pages, uint64_t *n_disk, struct api_error *e)
{
    struct rd_error err = {RD_OK, ""};
    struct rd_request_options o;
    struct gen_params p;
    struct buf salt = {0};
    json_t *in = NULL;
    int rc = request_reserve_texts(c, e) || request_json(c, &in, e) ? -1 : 0;

    gen_params_init(&p, false);
    if (rc == 0) {
        gen_params_deinit(&p);
        rc = read_prompt(c, in, &p, &salt, &o, e);
    }
    if (rc == 0) rc = told(rd_cache_clear_behind(served_of(c)->engine, &o, n_pages, n_disk, &err), &err, e);
    gen_params_deinit(&p);
    buf_deinit(&salt);
    json_decref(in);
    return rc;
}

void route_cache_explain(struct http_conn *c)
{
    struct rd_cache_explanation x = {.size = sizeof(x)};
    struct gen_params p;
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    int rc = request_reserve_texts(c, &e) || request_json(c, &in, &e) ? -1 : 0;

    gen_params_init(&p, false);
    if (rc == 0 && has(in, "response_id")) {
        rc = explain_answer(c, json_object_get(in, "response_id"), &body, &e);
    } else if (rc == 0) {
        gen_params_deinit(&p);
        rc = explain(c, in, &p, &x, &e);
        if (rc == 0) put_explanation(&x, &body);
    }
    if (rc == 0) {
        http_reply_json(c, &body);
    } else {
        http_reply_error(c, &e);
    }
    gen_params_deinit(&p);
    buf_deinit(&body);
    json_decref(in);
}

/* The admin is shown all, a tenant its own: of no cache_salt. */
void route_cache_list(struct http_conn *c)
{
    const char *limit = c->head.query ? strstr(c->head.query, "limit=") : NULL;
    unsigned long n = limit ? strtoul(limit + 6, NULL, 10) : LIST_NODES;
    struct buf body = {0};
    struct buf salt = {0};
    uint32_t n_max = n > LIST_NODES_TOP ? LIST_NODES_TOP : (uint32_t)n;
    char *list = NULL;

    http_tenant_salt(c, NULL, &salt);
    if (!salt.failed)
        list = c->is_admin ? rd_cache_list(served_of(c)->engine, n_max)
                           : rd_cache_list_of(served_of(c)->engine, salt.n ? salt.data : NULL, n_max);
    if (list)
        buf_puts(&body, list);
    else
        body.failed = true;
    http_reply_json(c, &body);
    rd_free(list);
    buf_deinit(&salt);
    buf_deinit(&body);
}

void route_cache_clear(struct http_conn *c)
{
    uint64_t n_pages = 0, n_disk = 0;
    struct api_error e;
    struct buf body = {0};
    bool behind = c->body.n > 0;

    if (!behind && http_refuse_tenant(c, "the cache")) return;
    if (behind && clear_behind(c, &n_pages, &n_disk, &e)) {
        http_reply_error(c, &e);
        return;
    }
    if (!behind) n_pages = rd_cache_clear(served_of(c)->engine);
    buf_printf(&body, "{\"object\":\"cache.cleared\",\"pages\":%llu", (unsigned long long)n_pages);
    if (behind) buf_printf(&body, ",\"disk_entries\":%llu", (unsigned long long)n_disk);
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}
