/* server/routes/worker.c - what routers in front of several servers ask each of them, in the words of SGLang and vLLM: what it
 * serves, and how much it has to do. (The tokens of a prompt: render.c.)
 *
 *     /model_info, /get_model_info     SGLang: the model and its kind
 *     /server_info, /get_server_info   SGLang: name, sizes and limits. No model_path: its router would fetch a tokenizer
 *                                      of that name from a hub
 *     /get_load                        SGLang: [{num_reqs, num_waiting_reqs, num_tokens}]; its router weighs num_tokens
 *     /v1/loads                        SGLang's newer form of the same
 *     /load, /version                  vLLM
 *
 * /health_generate is /health: that says whether the engine gets on. /flush_cache is DELETE /v1/cache.
 * Source  sglang/srt/entrypoints/http_server.py, vllm/entrypoints; as of 2026.
 */
#include <string.h>
#include "server/params/json_out.h"
#include "server/routes/routes.h"

static void reply(struct http_conn *c, struct buf *body)
{
    http_reply_json(c, body);
    buf_deinit(body);
}

static void put_text(const char *before, const char *s, struct buf *out)
{
    buf_puts(out, before);
    json_put_string(out, s, strlen(s));
}

void route_model_info(struct http_conn *c)
{
    const struct rd_info *m = &served_of(c)->info;
    struct buf body = {0};

    put_text("{\"model_path\":", m->model_id, &body);
    put_text(",\"tokenizer_path\":", m->model_id, &body);
    buf_puts(&body, ",\"is_generation\":true,\"preferred_sampling_params\":null,\"weight_version\":\"default\"");
    put_text(",\"model_type\":", m->arch, &body);
    buf_puts(&body, "}");
    reply(c, &body);
}

void route_server_info(struct http_conn *c)
{
    const struct rd_info *m = &served_of(c)->info;
    struct buf body = {0};

    put_text("{\"model_id\":", m->model_id, &body);
    put_text(",\"served_model_name\":", m->model_id, &body);
    put_text(",\"version\":", rd_version(), &body);
    put_text(",\"kv_cache_dtype\":", m->kv_type, &body);
    buf_printf(&body,
               ",\"dp_size\":1,\"tp_size\":1,\"page_size\":%u,\"context_length\":%u,\"max_total_tokens\":%llu,"
               "\"max_total_num_tokens\":%llu,\"max_running_requests\":%u,\"max_num_reqs\":%u}",
               m->page_tokens, m->n_ctx, (unsigned long long)m->kv_tokens, (unsigned long long)m->kv_tokens,
               m->max_running, m->max_running);
    reply(c, &body);
}

/* What a server has to do. */
struct load {
    uint64_t running, waiting, tokens, total_tokens;
};

static struct load load_of(const struct http_conn *c)
{
    struct rd_stats s = {.size = sizeof(s)};

    rd_get_stats(served_of(c)->engine, &s);
    return (struct load){s.n_waiting + s.n_prefill + s.n_decode, s.n_preparing + s.n_queued + s.n_loading,
                         (s.pages_total - s.pages_free - s.pages_ready) * s.page_tokens, s.pages_total * s.page_tokens};
}

void route_get_load(struct http_conn *c)
{
    struct load l = load_of(c);
    struct buf body = {0};

    buf_printf(&body, "[{\"dp_rank\":0,\"num_reqs\":%llu,\"num_waiting_reqs\":%llu,\"num_tokens\":%llu}]",
               (unsigned long long)(l.running + l.waiting), (unsigned long long)l.waiting,
               (unsigned long long)l.tokens);
    reply(c, &body);
}

void route_loads(struct http_conn *c)
{
    struct load l = load_of(c);
    struct buf body = {0};

    put_text("{\"version\":", rd_version(), &body);
    buf_printf(&body,
               ",\"dp_rank_count\":1,\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":%llu,\"num_waiting_reqs\":%llu,"
               "\"num_total_reqs\":%llu,\"num_used_tokens\":%llu,\"max_total_num_tokens\":%llu,\"token_usage\":",
               (unsigned long long)l.running, (unsigned long long)l.waiting,
               (unsigned long long)(l.running + l.waiting), (unsigned long long)l.tokens,
               (unsigned long long)l.total_tokens);
    json_put_number(&body, l.total_tokens ? (double)l.tokens / (double)l.total_tokens : 0);
    buf_printf(&body,
               ",\"max_running_requests\":%u}],\"aggregate\":{\"total_running_reqs\":%llu,\"total_waiting_reqs\":%llu,"
               "\"total_reqs\":%llu}}",
               served_of(c)->info.max_running, (unsigned long long)l.running, (unsigned long long)l.waiting,
               (unsigned long long)(l.running + l.waiting));
    reply(c, &body);
}

void route_load(struct http_conn *c)
{
    struct load l = load_of(c);
    struct buf body = {0};

    buf_printf(&body, "{\"server_load\":%llu}", (unsigned long long)(l.running + l.waiting));
    reply(c, &body);
}

void route_version(struct http_conn *c)
{
    struct buf body = {0};

    put_text("{\"version\":", rd_version(), &body);
    buf_puts(&body, "}");
    reply(c, &body);
}
