/* server/routes/ollama_models.c - what Ollama's clients ask about models, and its embeddings: /api/tags, ps, show,
 * version, embed, embeddings; and what a server of one model cannot do. */
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/hash.h"
#include "server/dialects/embedding.h"
#include "server/params/json_out.h"
#include "server/dialects/ollama.h"
#include "server/dialects/request_body.h"
#include "server/routes/model_gate.h"
#include "server/routes/routes.h"

#define API_VERSION "0.13.0"           /* of Ollama's API, which clients compare with what they need */
#define NEVER_S     (INT64_C(1) << 33) /* the model is not unloaded: year 2242 */

static void put_text_field(const char *name, const char *text, struct buf *out)
{
    buf_printf(out, ",\"%s\":", name);
    json_put_string(out, text, strlen(text));
}

/* "1.54B" */
static void put_parameter_size(uint64_t n, struct buf *out)
{
    if (n >= 1000000000)
        buf_printf(out, ",\"parameter_size\":\"%.2fB\"", (double)n / 1e9);
    else
        buf_printf(out, ",\"parameter_size\":\"%.2fM\"", (double)n / 1e6);
}

static void put_details(const struct rd_info *m, struct buf *out)
{
    buf_puts(out, ",\"details\":{\"parent_model\":\"\",\"format\":\"gguf\"");
    put_text_field("family", m->arch, out);
    buf_puts(out, ",\"families\":[");
    json_put_string(out, m->arch, strlen(m->arch));
    buf_puts(out, "]");
    put_parameter_size(m->n_params, out);
    put_text_field("quantization_level", m->quantization[0] ? m->quantization : "unknown", out);
    buf_puts(out, "}");
}

/* 64 digits as a SHA-256 has, of what is known of the file: hashing its bytes would take longer than loading it. */
static void put_digest(const struct rd_info *m, struct buf *out)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "%s|%s|%llu|%llu", m->arch, m->name, (unsigned long long)m->file_bytes,
                     (unsigned long long)m->n_params);

    buf_puts(out, ",\"digest\":\"");
    for (unsigned i = 0; i < 2; i++) {
        struct hash128 h;

        text[n] = (char)('0' + i);
        h = hash128_of(text, (size_t)n + 1);
        buf_printf(out, "%016llx%016llx", (unsigned long long)h.high, (unsigned long long)h.low);
    }
    buf_puts(out, "\"");
}

void ollama_put_model(const struct rd_info *m, struct buf *out)
{
    char name[300];

    snprintf(name, sizeof(name), strchr(m->model_id, ':') ? "%s" : "%s:latest", m->model_id);
    buf_puts(out, "{\"name\":");
    json_put_string(out, name, strlen(name));
    put_text_field("model", name, out);
    buf_puts(out, ",\"modified_at\":");
    json_put_time(out, m->created_s);
    buf_printf(out, ",\"size\":%llu", (unsigned long long)m->file_bytes);
    put_digest(m, out);
    put_details(m, out);
}

/* One of several, or the only one. */
struct model_out {
    struct buf *body;
    size_t n;
    bool only_loaded;
};

static void put_listed(void *arg, const char *id, enum gate_state state, const struct served_model *m)
{
    struct model_out *o = arg;
    struct rd_info bare = {.model_id = ""};

    if (o->only_loaded && state != GATE_LOADED) return;
    snprintf(bare.model_id, sizeof(bare.model_id), "%s", id);
    buf_puts(o->body, o->n++ ? "," : "");
    ollama_put_model(m ? &m->info : &bare, o->body); /* one that was never loaded has only its name */
    if (o->only_loaded) {
        buf_puts(o->body, ",\"expires_at\":");
        json_put_time(o->body, NEVER_S);
        buf_printf(o->body, ",\"size_vram\":0,\"context_length\":%u", m ? m->info.n_ctx : 0);
    }
    buf_puts(o->body, "}");
}

static void reply_list(struct http_conn *c, bool only_loaded)
{
    struct server *s = server_of(c);
    struct buf out = {0};
    struct model_out o = {&out, 0, only_loaded};

    buf_puts(&out, "{\"models\":[");
    if (s->gate)
        model_gate_list(s->gate, put_listed, &o);
    else
        put_listed(&o, s->only.info.model_id, GATE_LOADED, &s->only);
    buf_puts(&out, "]}");
    http_reply_json(c, &out);
    buf_deinit(&out);
}

void route_ollama_tags(struct http_conn *c)
{
    reply_list(c, false);
}

void route_ollama_ps(struct http_conn *c)
{
    reply_list(c, true);
}

static void put_show(const struct rd_info *m, struct buf *out)
{
    buf_puts(out, "{\"license\":\"\",\"parameters\":\"\",\"template\":\"\",\"modelfile\":\"\",\"modified_at\":");
    json_put_time(out, m->created_s);
    put_details(m, out);
    buf_puts(out, ",\"model_info\":{\"general.architecture\":");
    json_put_string(out, m->arch, strlen(m->arch));
    put_text_field("general.basename", m->name, out);
    buf_printf(out, ",\"general.parameter_count\":%llu", (unsigned long long)m->n_params);
    /* what one request can have here, which is what clients use it for */
    buf_printf(out, ",\"%s.context_length\":%u,\"%s.embedding_length\":%u,\"%s.block_count\":%u,\"%s.vocab_size\":%u}",
               m->arch, m->n_ctx, m->arch, m->hidden, m->arch, m->n_layers, m->arch, m->n_vocab);
    buf_puts(out, ",\"capabilities\":[\"completion\",\"tools\"");
    if (m->fim_middle >= 0) buf_puts(out, ",\"insert\"");
    if (m->thinks) buf_puts(out, ",\"thinking\"");
    buf_puts(out, ",\"embedding\"]}");
}

void route_ollama_show(struct http_conn *c)
{
    const struct rd_info *m = &served_of(c)->info;
    struct buf out = {0};
    json_t *body = NULL;
    struct api_error e;

    if (request_body(c, route_of(c)->params, NULL, &body, &e) || ollama_check_model(body, m, &e)) {
        http_reply_error(c, &e);
    } else {
        put_show(m, &out);
        http_reply_json(c, &out);
    }
    json_decref(body);
    buf_deinit(&out);
}

void route_ollama_version(struct http_conn *c)
{
    struct buf out = {0};

    buf_printf(&out, "{\"version\":\"%s\",\"radish\":\"%s\"}", API_VERSION, rd_version());
    http_reply_json(c, &out);
    buf_deinit(&out);
}

/* The model that is here needs no pulling. */
void route_ollama_pull(struct http_conn *c)
{
    struct buf out = {0};
    json_t *body = NULL;
    struct api_error e;

    if (json_body_parse(&c->body, &body, &e)) {
        http_reply_error(c, &e);
    } else if (ollama_check_model(body, &served_of(c)->info, &e)) {
        api_error_set(
            &e, 501, "model",
            "this server has the model '%s' and pulls no others here: start it with the one you want, or POST "
            "/v1/downloads",
            served_of(c)->info.model_id);
        http_reply_error(c, &e);
    } else {
        buf_puts(&out, "{\"status\":\"success\"}\n");
        http_reply(c, 200, "application/x-ndjson", "", &out);
    }
    json_decref(body);
    buf_deinit(&out);
}

void route_ollama_refuse(struct http_conn *c)
{
    struct api_error e;

    api_error_set(&e, 501, NULL,
                  "%s: this server has the model '%s' and neither makes, copies, sends nor deletes models",
                  c->head.path, served_of(c)->info.model_id);
    http_reply_error(c, &e);
}

/* field: of the inputs. */
static void embed(struct http_conn *c, const char *field, enum embedding_shape shape)
{
    const struct rd_info *info = &served_of(c)->info;
    json_t *body = NULL;
    struct api_error e;
    int rc = shape == EMBEDDING_OLLAMA ? request_body(c, route_of(c)->params, NULL, &body, &e)
                                       : json_body_parse(&c->body, &body, &e);

    if (rc == 0) rc = ollama_check_model(body, info, &e);
    if (rc == 0) {
        json_object_del(body, "model");
        embedding_start(c, body, field, shape);
    } else {
        http_reply_error(c, &e);
    }
    json_decref(body);
}

void route_ollama_embed(struct http_conn *c)
{
    embed(c, "input", EMBEDDING_OLLAMA);
}

void route_ollama_embeddings(struct http_conn *c)
{
    embed(c, "prompt", EMBEDDING_OLLAMA_OLD);
}
