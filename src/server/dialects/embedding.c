/* server/dialects/embedding.c - one vector per input. */
#include "server/dialects/embedding.h"
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "server/dialects/foreign.h"
#include "server/params/json_out.h"

struct embedding_state {
    enum embedding_shape shape;
    bool base64, truncate;
    uint32_t dimensions;
    float *vector; /* [dimensions], of the choice that ended last */
};

static void state_destroy(void *state)
{
    struct embedding_state *s = state;

    if (!s) return;
    mem_free(s->vector);
    mem_free(s);
}

bool embedding_take(const struct choice *c, float *to, uint32_t n)
{
    uint32_t width = 0;
    const float *v = rd_request_embedding(c->request, &width);
    double square = 0, scale;

    if (!v || n > width) return false;
    if (n == width) {
        memcpy(to, v, n * sizeof(*to));
        return true;
    }
    for (uint32_t i = 0; i < n; i++) square += (double)v[i] * (double)v[i];
    scale = square > 0 ? 1 / sqrt(square) : 0;
    for (uint32_t i = 0; i < n; i++) to[i] = (float)((double)v[i] * scale);
    return true;
}

int embedding_params(const struct served_model *m, const char *name, json_t *prompts, struct gen_params *p,
                     struct api_error *e)
{
    json_t *body = json_pack("{s:o, s:i}", "prompt", prompts, "max_tokens", 0);
    int rc = body ? gen_params_parse(body, m, false, p, e) : foreign_no_memory(e);

    json_decref(body);
    if (rc) foreign_rename(e, "prompt", name);
    return rc;
}

/* ---- out ---- */

/* The vector's floats, little-endian. */
static void put_base64(const float *v, uint32_t n, struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *b = (const unsigned char *)v;
    size_t n_bytes = (size_t)n * sizeof(*v);

    buf_putc(out, '"');
    for (size_t i = 0; i < n_bytes; i += 3) {
        size_t left = n_bytes - i;
        unsigned bits = (unsigned)b[i] << 16 | (left > 1 ? (unsigned)b[i + 1] << 8 : 0) | (left > 2 ? b[i + 2] : 0);
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], left > 1 ? digits[bits >> 6 & 63] : '=',
                        left > 2 ? digits[bits & 63] : '='};

        buf_append(out, four, 4);
    }
    buf_putc(out, '"');
}

static void put_list(const float *v, uint32_t n, struct buf *out)
{
    buf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++) buf_printf(out, i ? ",%.9g" : "%.9g", (double)v[i]);
    buf_putc(out, ']');
}

static void embedding_options(struct generation *g, struct choice *c, struct rd_request_options *o)
{
    const struct embedding_state *s = g->state;
    enum rd_pooling pooling = g->server->pooling;

    (void)c;
    o->embed = pooling == RD_POOL_NONE ? RD_POOL_MODEL : pooling;
    o->truncate = s->truncate;
}

/* The choice's vector becomes text now, and the request goes: a thousand of them would be many. */
static void embedding_finish(struct generation *g, struct choice *c, struct buf *out)
{
    struct embedding_state *s = g->state;

    if (!embedding_take(c, s->vector, s->dimensions))
        out->failed = true;
    else if (s->base64)
        put_base64(s->vector, s->dimensions, &c->text);
    else
        put_list(s->vector, s->dimensions, &c->text);
    rd_request_release(c->request);
    c->request = NULL;
}

static void put_openai(struct generation *g, const struct rd_usage *u, struct buf *out)
{
    const char *model = g->served->info.model_id;

    buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < g->n_choices; i++) {
        buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
        buf_append(out, g->choices[i].text.data, g->choices[i].text.n);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"model\":");
    json_put_string(out, model, strlen(model));
    buf_printf(
        out, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u}}}",
        u->n_prompt, u->n_prompt, u->n_cached);
}

/* A text has one vector, where llama-server may have one for each token. */
static void put_llama_server(const struct generation *g, struct buf *out)
{
    buf_putc(out, '[');
    for (uint32_t i = 0; i < g->n_choices; i++) {
        buf_printf(out, "%s{\"index\":%u,\"embedding\":[", i ? "," : "", i);
        buf_append(out, g->choices[i].text.data, g->choices[i].text.n);
        buf_puts(out, "]}");
    }
    buf_putc(out, ']');
}

static void embedding_whole(struct generation *g, struct buf *out)
{
    struct choice *c = &g->choices[0];
    const struct embedding_state *s = g->state;
    const char *model = g->served->info.model_id;
    uint64_t ns = clock_now_ns(clock_system()) - g->begun_ns;
    struct rd_usage u = {0};

    for (uint32_t i = 0; i < g->n_choices; i++) {
        u.n_prompt += g->choices[i].usage.n_prompt;
        u.n_cached += g->choices[i].usage.n_cached;
        if (g->choices[i].text.failed) out->failed = true;
    }
    if (s->shape == EMBEDDING_OPENAI) {
        put_openai(g, &u, out);
    } else if (s->shape == EMBEDDING_LLAMA_SERVER) {
        put_llama_server(g, out);
    } else if (s->shape == EMBEDDING_OLLAMA_OLD) {
        buf_puts(out, "{\"embedding\":");
        buf_append(out, c->text.data, c->text.n);
        buf_putc(out, '}');
    } else {
        buf_puts(out, "{\"model\":");
        json_put_string(out, model, strlen(model));
        buf_puts(out, ",\"embeddings\":[");
        for (uint32_t i = 0; i < g->n_choices; i++) {
            if (i) buf_putc(out, ',');
            buf_append(out, g->choices[i].text.data, g->choices[i].text.n);
        }
        buf_printf(out, "],\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%u}",
                   (unsigned long long)ns, u.n_prompt);
    }
}

static const struct response_shape embedding_shape = {.id_prefix = "embd_",
                                                      .options = embedding_options,
                                                      .finish = embedding_finish,
                                                      .whole = embedding_whole,
                                                      .destroy = state_destroy};

/* ---- in ---- */

static int read_options(const json_t *body, const struct rd_info *info, struct embedding_state *s, struct api_error *e)
{
    const json_t *format = json_object_get(body, "encoding_format"), *d = json_object_get(body, "dimensions");
    const char *name = json_string_value(format);

    s->dimensions = info->hidden;
    if (s->shape == EMBEDDING_LLAMA_SERVER) return 0;
    s->truncate = s->shape != EMBEDDING_OPENAI;
    if (param_bool(body, "truncate", &s->truncate, e)) return -1;
    if (format && !json_is_null(format)) {
        if (!name || (strcmp(name, "float") != 0 && strcmp(name, "base64") != 0))
            return api_error_set(e, 400, "encoding_format", "encoding_format: \"float\" or \"base64\" wanted");
        s->base64 = strcmp(name, "base64") == 0 && s->shape == EMBEDDING_OPENAI;
    }
    if (!d || json_is_null(d) || (s->shape != EMBEDDING_OPENAI && json_integer_value(d) == 0)) return 0;
    if (!json_is_integer(d) || json_integer_value(d) < 1 || json_integer_value(d) > info->hidden)
        return api_error_set(e, 400, "dimensions", "dimensions: a whole number within 1 and %u wanted", info->hidden);
    s->dimensions = (uint32_t)json_integer_value(d);
    return 0;
}

static int read_body(const json_t *body, const char *input, const struct served_model *m, struct embedding_state *s,
                     struct gen_params *p, struct api_error *e)
{
    json_t *texts = json_object_get(body, input);

    if (param_check_alone(body, m, e) || read_options(body, &m->info, s, e)) return -1;
    if (!texts || json_is_null(texts)) return api_error_set(e, 400, input, "%s: missing", input);
    s->vector = mem_zalloc(s->dimensions, sizeof(*s->vector));
    if (!s->vector) return foreign_no_memory(e);
    return embedding_params(m, input, json_incref(texts), p, e);
}

void embedding_start(struct http_conn *c, const json_t *body, const char *input, enum embedding_shape shape)
{
    struct embedding_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    struct api_error e;
    int rc = s ? 0 : foreign_no_memory(&e);

    if (rc == 0) {
        s->shape = shape;
        rc = read_body(body, input, served_of(c), s, &p, &e);
    }
    if (rc == 0) {
        generation_start(c, &embedding_shape, &p, s);
        return;
    }
    gen_params_deinit(&p);
    state_destroy(s);
    http_reply_error(c, &e);
}
