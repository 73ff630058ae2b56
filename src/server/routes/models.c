/* server/routes/models.c - GET /v1/models, /v1/models/{id}, and llama-server's /props.
 *
 * A model has the fields of OpenAI's, vLLM's and llama-server's list, and those of Anthropic's (type, display_name,
 * created_at), whose path is the same.
 */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "server/params/json_out.h"
#include "server/params/params.h"
#include "server/routes/model_gate.h"
#include "server/routes/routes.h"

static void put_id(const char *before, const struct rd_info *m, struct buf *out)
{
    buf_puts(out, before);
    json_put_string(out, m->model_id, strlen(m->model_id));
}

static void put_model(const struct rd_info *m, struct buf *out)
{
    put_id("{\"id\":", m, out);
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"radish\"", (long long)m->created_s);
    put_id(",\"root\":", m, out);
    buf_printf(out,
               ",\"parent\":null,\"max_model_len\":%u,\"meta\":{\"n_vocab\":%u,\"n_ctx_train\":%u,\"n_embd\":%u,\"n_"
               "params\":%llu,\"size\":%llu",
               m->n_ctx, m->n_vocab, m->n_ctx_train, m->hidden, (unsigned long long)m->n_params,
               (unsigned long long)m->file_bytes);
    buf_puts(out, ",\"arch\":");
    json_put_string(out, m->arch, strlen(m->arch));
    buf_puts(out, ",\"name\":");
    json_put_string(out, m->name, strlen(m->name));
    buf_puts(out, ",\"backend\":");
    json_put_string(out, m->backend, strlen(m->backend));
    put_id("},\"type\":\"model\",\"lifecycle\":\"active\",\"display_name\":", m, out);
    buf_puts(out, ",\"created_at\":");
    json_put_time(out, m->created_s);
    buf_printf(out, ",\"max_input_tokens\":%u,\"max_tokens\":%u,\"capabilities\":[\"completion\"%s]}", m->n_ctx,
               m->n_ctx, m->thinks ? ",\"thinking\"" : "");
}

/* The model's adapters, as vLLM lists them: each with its parent. only: that one, NULL: all. */
static void put_adapters(const struct served_model *m, const char *only, struct buf *out)
{
    uint32_t n;
    struct rd_adapter *list = served_adapters(m->engine, &n);

    if (!list) out->failed = true;
    for (uint32_t i = 0; i < n; i++) {
        const char *file = served_adapter_file(&list[i]);

        if (only && strcmp(only, list[i].name) != 0) continue;
        buf_puts(out, out->n && out->data[out->n - 1] == '}' ? ",{\"id\":" : "{\"id\":");
        json_put_string(out, list[i].name, strlen(list[i].name));
        buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"radish\",\"root\":",
                   (long long)m->info.created_s);
        json_put_string(out, file, strlen(file));
        put_id(",\"parent\":", &m->info, out);
        buf_printf(out, ",\"max_model_len\":%u,\"type\":\"model\",\"display_name\":", m->info.n_ctx);
        json_put_string(out, list[i].name, strlen(list[i].name));
        buf_puts(out, ",\"created_at\":");
        json_put_time(out, m->info.created_s);
        buf_puts(out, ",\"status\":{\"value\":\"loaded\"}}");
    }
    mem_free(list);
}

/* One of several, in the list, or the one that is looked for. */
struct model_out {
    struct buf *body;
    const char *id; /* NULL: all */
    size_t n;
    char first[256], last[256];
};

/* A model that was never loaded has only its name; llama-server's router tells states the same way. */
static void put_one(void *arg, const char *id, enum gate_state state, const struct served_model *m)
{
    struct model_out *out = arg;
    const struct rd_info *info = m ? &m->info : NULL;
    struct rd_info bare = {.model_id = ""};

    snprintf(bare.model_id, sizeof(bare.model_id), "%s", id);
    if (out->id && !param_is_model(out->id, &bare)) {
        if (m && !out->n) put_adapters(m, out->id, out->body);
        return;
    }
    buf_puts(out->body, out->n++ ? "," : "");
    if (out->n == 1) snprintf(out->first, sizeof(out->first), "%s", bare.model_id);
    snprintf(out->last, sizeof(out->last), "%s", bare.model_id);
    if (info) {
        put_model(info, out->body);
        out->body->n -= out->body->n > 0; /* its last brace */
    } else {
        put_id("{\"id\":", &bare, out->body);
        buf_puts(out->body, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"radish\",\"type\":\"model\"");
        put_id(",\"display_name\":", &bare, out->body);
    }
    buf_printf(out->body, ",\"status\":{\"value\":\"%s\"}}", gate_state_name(state));
    if (m && !out->id) put_adapters(m, NULL, out->body);
}

void route_models(struct http_conn *c)
{
    struct server *s = server_of(c);
    struct buf body = {0};
    struct model_out out = {.body = &body};

    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    if (s->gate) {
        model_gate_list(s->gate, put_one, &out);
        buf_puts(&body, "],\"models\":[],\"has_more\":false,\"first_id\":");
        json_put_string(&body, out.first, strlen(out.first));
        buf_puts(&body, ",\"last_id\":");
        json_put_string(&body, out.last, strlen(out.last));
        buf_puts(&body, "}");
        http_reply_json(c, &body);
        buf_deinit(&body);
        return;
    }
    put_model(&s->only.info, &body);
    put_adapters(&s->only, NULL, &body);
    /* Codex wants this list, of entries that would replace its own instructions for the model: empty it is content */
    put_id("],\"models\":[],\"has_more\":false,\"first_id\":", &s->only.info, &body);
    put_id(",\"last_id\":", &s->only.info, &body);
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}

void route_model(struct http_conn *c)
{
    struct server *s = server_of(c);
    struct buf body = {0};
    struct model_out out = {.body = &body, .id = route_rest(c)};
    struct api_error e;
    char quoted[160];

    if (s->gate)
        model_gate_list(s->gate, put_one, &out);
    else if (param_is_model(out.id, &s->only.info))
        put_model(&s->only.info, &body);
    else
        put_adapters(&s->only, out.id, &body);
    if (body.n || body.failed) {
        http_reply_json(c, &body);
    } else {
        error_quote(quoted, sizeof(quoted), out.id, strlen(out.id));
        if (s->gate)
            api_error_set(&e, 404, "model", "The model `%s` does not exist; GET /v1/models lists those here", quoted);
        else
            api_error_set(&e, 404, "model", "The model `%s` does not exist; this server has `%s`", quoted,
                          s->only.info.model_id);
        e.code = "model_not_found";
        http_reply_error(c, &e);
    }
    buf_deinit(&body);
}

static void put_token(const rd_engine *engine, const char *name, int32_t id, struct buf *out)
{
    size_t n = 0;
    const char *s = id >= 0 ? rd_token_bytes(engine, id, &n) : "";

    buf_printf(out, ",\"%s\":", name);
    json_put_string(out, s, n);
}

void route_props(struct http_conn *c)
{
    const struct served_model *s = served_of(c);
    const struct rd_info *m = &s->info;
    struct buf body = {0};

    buf_printf(&body,
               "{\"default_generation_settings\":{\"n_ctx\":%u,\"params\":{\"temperature\":1,\"top_k\":0,\"top_p\":1,"
               "\"min_p\":0,\"n_predict\":-1}},\"total_slots\":%u,\"model_alias\":",
               m->n_ctx, m->max_running);
    json_put_string(&body, m->model_id, strlen(m->model_id));
    buf_puts(&body, ",\"model_path\":");
    json_put_string(&body, m->model_id, strlen(m->model_id));
    put_token(s->engine, "bos_token", m->bos, &body);
    put_token(s->engine, "eos_token", m->eos, &body);
    buf_puts(&body, ",\"backend\":");
    json_put_string(&body, m->backend, strlen(m->backend));
    buf_printf(&body, ",\"exact\":%s", m->exact ? "true" : "false");
    buf_printf(&body, ",\"modalities\":{\"vision\":false,\"audio\":false},\"build_info\":\"radish-%s\"}", rd_version());
    http_reply_json(c, &body);
    buf_deinit(&body);
}
