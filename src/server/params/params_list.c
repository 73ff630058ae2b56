/* server/params/params_list.c - the table of parameters as JSON, from which the documentation and the tests are made. */
#include <string.h>
#include "server/params/json_out.h"
#include "server/params/params.h"

static const struct endpoint_name {
    unsigned bit;
    const char *name;
} endpoint_names[] = {
    {FOR_CHAT, "chat"},
    {FOR_TEXT, "completions"},
    {FOR_COMPLETION, "completion"},
    {FOR_INFILL, "infill"},
    {FOR_MESSAGES, "messages"},
    {FOR_COUNT, "count_tokens"},
    {FOR_RESPONSES, "responses"},
    {FOR_TOKENIZE, "tokenize"},
    {FOR_DETOKENIZE, "detokenize"},
    {FOR_TEMPLATE, "apply-template"},
    {FOR_CACHE_NAMES, "cache_names"},
    {FOR_CACHE_NAME, "cache_name"},
    {FOR_EMBEDDINGS, "embeddings"},
    {FOR_EMBEDDING, "embedding"},
    {FOR_RERANK, "rerank"},
    {FOR_SCORE, "score"},
    {FOR_CLASSIFY, "classify"},
    {FOR_OLLAMA_CHAT, "ollama_chat"},
    {FOR_OLLAMA_GENERATE, "ollama_generate"},
    {FOR_OLLAMA_EMBED, "ollama_embed"},
    {FOR_OLLAMA_SHOW, "ollama_show"},
};
#define N_ENDPOINTS (sizeof(endpoint_names) / sizeof(endpoint_names[0]))

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
        if (!(bits & endpoint_names[i].bit)) continue;
        buf_printf(out, "%s\"%s\"", first ? "" : ",", endpoint_names[i].name);
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

/* NULL: no endpoint has these parameters. */
static const struct param_endpoint *endpoint_of(unsigned bit, const struct param_endpoint *endpoints, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (endpoints[i].bit == bit) return &endpoints[i];
    return NULL;
}

void params_list(const struct param_endpoint *endpoints, size_t n, struct buf *out)
{
    size_t n_rows;
    const struct param_spec *rows = param_table(&n_rows);
    bool first = true;

    buf_puts(out, "{\"endpoints\":[");
    for (size_t i = 0; i < N_ENDPOINTS; i++) {
        const struct param_endpoint *at = endpoint_of(endpoint_names[i].bit, endpoints, n);

        if (!at) continue;
        buf_printf(out, "%s\n{\"name\":\"%s\",\"method\":\"%s\",\"path\":\"%s\"}", first ? "" : ",",
                   endpoint_names[i].name, at->method, at->path);
        first = false;
    }
    buf_puts(out, "],\n\"parameters\":[");
    for (size_t i = 0; i < n_rows; i++) {
        buf_puts(out, i ? ",\n" : "\n");
        put_row(&rows[i], out);
    }
    buf_puts(out, "]}\n");
}
