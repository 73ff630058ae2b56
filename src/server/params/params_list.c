/* server/params/params_list.c - the table of parameters as JSON, from which the documentation and the tests are made. */
#include <string.h>
#include "server/params/json_out.h"
#include "server/params/params.h"
#include "server/server.h"

static const struct endpoint_name { unsigned bit; const char *name, *method, *path; } endpoints[] = {
    {FOR_CHAT, "chat", "POST", "/v1/chat/completions"},
    {FOR_TEXT, "completions", "POST", "/v1/completions"},
    {FOR_MESSAGES, "messages", "POST", "/v1/messages"},
    {FOR_COUNT, "count_tokens", "POST", "/v1/messages/count_tokens"},
    {FOR_RESPONSES, "responses", "POST", "/v1/responses"},
    {FOR_TOKENIZE, "tokenize", "POST", "/tokenize"},
    {FOR_DETOKENIZE, "detokenize", "POST", "/detokenize"},
    {FOR_TEMPLATE, "apply-template", "POST", "/apply-template"},
    {FOR_EMBEDDINGS, "embeddings", "POST", "/v1/embeddings"},
    {FOR_RERANK, "rerank", "POST", "/v1/rerank"},
    {FOR_CLASSIFY, "classify", "POST", "/classify"},
    {FOR_OLLAMA_CHAT, "ollama_chat", "POST", "/api/chat"},
    {FOR_OLLAMA_GENERATE, "ollama_generate", "POST", "/api/generate"},
    {FOR_OLLAMA_EMBED, "ollama_embed", "POST", "/api/embed"},
    {FOR_OLLAMA_SHOW, "ollama_show", "POST", "/api/show"},
};
#define N_ENDPOINTS (sizeof(endpoints) / sizeof(endpoints[0]))

static const char *const kind_names[] = {"number", "integer", "bool", "string", "list", "object", "null"};

static void put_text(const char *s, struct buf *out)
{
    json_put_string(out, s, strlen(s));
}

/* "name":["a","b"] of the words in s, which are separated by mark. */
static void put_words(const char *name, const char *s, char mark, struct buf *out)
{
    const char separators[] = {mark, 0};

    buf_printf(out, ",\"%s\":[", name);
    for (size_t n; s && *s; s += n + (s[n] != 0)) {
        n = strcspn(s, separators);
        json_put_string(out, s, n);
        if (s[n]) buf_putc(out, ',');
    }
    buf_putc(out, ']');
}

static void put_kinds(const char *name, unsigned kinds, struct buf *out)
{
    bool first = true;

    buf_printf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < sizeof(kind_names) / sizeof(kind_names[0]); i++) {
        if (!(kinds & (1u << i))) continue;
        buf_printf(out, "%s\"%s\"", first ? "" : ",", kind_names[i]);
        first = false;
    }
    buf_putc(out, ']');
}

static void put_endpoints(const char *name, unsigned bits, struct buf *out)
{
    bool first = true;

    buf_printf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < N_ENDPOINTS; i++) {
        if (!(bits & endpoints[i].bit)) continue;
        buf_printf(out, "%s\"%s\"", first ? "" : ",", endpoints[i].name);
        first = false;
    }
    buf_putc(out, ']');
}

static void put_row(const struct param_spec *s, struct buf *out)
{
    static const unsigned plain[] = {[PARAM_NUMBER] = KIND_NUMBER,
                                     [PARAM_INT] = KIND_INT,
                                     [PARAM_REAL] = KIND_NUMBER,
                                     [PARAM_WHOLE] = KIND_INT,
                                     [PARAM_BOOL] = KIND_BOOL};
    unsigned kinds = s->type == PARAM_CUSTOM ? s->kinds : plain[s->type];

    buf_puts(out, "{\"name\":");
    put_text(s->name, out);
    put_words("aliases", s->alias, ' ', out);
    put_endpoints("endpoints", s->endpoints, out);
    put_endpoints("required", s->required, out);
    put_kinds("types", kinds, out);
    put_kinds("items", s->items, out);
    put_words("choices", s->choices, '|', out);
    if (kinds & (KIND_NUMBER | KIND_INT)) buf_printf(out, ",\"min\":%.17g,\"max\":%.17g", s->min, s->max);
    if (s->n_min) buf_printf(out, ",\"min_items\":%u", s->n_min);
    if (s->n_max) buf_printf(out, ",\"max_items\":%u", s->n_max);
    buf_puts(out, ",\"default\":");
    put_text(s->fallback, out);
    buf_puts(out, ",\"help\":");
    put_text(s->help, out);
    buf_putc(out, '}');
}

void server_list_parameters(struct buf *out)
{
    size_t n;
    const struct param_spec *rows = param_table(&n);

    buf_puts(out, "{\"endpoints\":[");
    for (size_t i = 0; i < N_ENDPOINTS; i++)
        buf_printf(out, "%s\n{\"name\":\"%s\",\"method\":\"%s\",\"path\":\"%s\"}", i ? "," : "", endpoints[i].name,
                   endpoints[i].method, endpoints[i].path);
    buf_puts(out, "],\n\"parameters\":[");
    for (size_t i = 0; i < n; i++) {
        buf_puts(out, i ? ",\n" : "\n");
        put_row(&rows[i], out);
    }
    buf_puts(out, "]}\n");
}
