/* server/routes/rerank.c - POST /v1/rerank, /v2/rerank, /rerank: documents in the order of what they say to a query; POST /score,
 * /v1/score: what they say to it, in their own order, or each to a query of its own.
 *
 * Models that were made for it (rd_info.is_reranker) are asked in the form of Qwen3-Reranker whether the document meets
 * the query; the score is the probability of "yes" against "no" as the first token of the answer. Others give vectors of
 * query and documents (as /v1/embeddings does); the score is their cosine, and where documents are ranked 0 where that is
 * less, for relevance is 0 .. 1. --rerank chooses one of the two.
 * Source  huggingface.co/Qwen/Qwen3-Reranker-0.6B; the shapes are Jina's and Cohere's, that of /score is vLLM's.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "server/dialects/embedding.h"
#include "server/dialects/foreign.h"
#include "server/params/json_out.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

#define DEFAULT_TASK "Given a web search query, retrieve relevant passages that answer the query"

struct ranked {
    uint32_t index;
    double score;
};

struct rerank_state {
    bool by_answer, return_documents;
    char version; /* of the API: '1' or '2' */
    uint32_t n_queries, n_documents, top_n, hidden;
    json_t *queries;       /* one, or one for each document */
    json_t *documents;     /* as the client sent them */
    int32_t answers[2];    /* yes, no */
    float *vectors;        /* by cosine: [n_queries + n_documents, hidden] */
    struct ranked *ranked; /* [n_documents] */
};

static void state_destroy(void *state)
{
    struct rerank_state *s = state;

    if (!s) return;
    json_decref(s->queries);
    json_decref(s->documents);
    mem_free(s->vectors);
    mem_free(s->ranked);
    mem_free(s);
}

/* ---- the engine's part ---- */

static void rerank_options(struct generation *g, struct choice *c, struct rd_request_options *o)
{
    struct rerank_state *s = g->state;
    enum rd_pooling pooling = g->server->pooling;

    (void)c;
    if (s->by_answer) {
        o->score_tokens = s->answers;
        o->n_score_tokens = 2;
    } else {
        o->embed = pooling == RD_POOL_NONE ? RD_POOL_MODEL : pooling;
    }
}

static void rerank_finish(struct generation *g, struct choice *c, struct buf *out)
{
    struct rerank_state *s = g->state;

    if (s->by_answer) {
        uint32_t n = 0;
        const float *logprobs = rd_request_scores(c->request, &n);

        if (n != 2)
            out->failed = true;
        else
            s->ranked[c->index] = (struct ranked){c->index, 1 / (1 + exp((double)logprobs[1] - (double)logprobs[0]))};
    } else if (!embedding_take(c, s->vectors + (size_t)c->index * s->hidden, s->hidden)) {
        out->failed = true;
    }
    rd_request_release(c->request);
    c->request = NULL;
}

/* ---- out ---- */

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

/* By cosine: of document i. */
static double cosine(const struct rerank_state *s, uint32_t i)
{
    const float *q = s->vectors + (size_t)(s->n_queries > 1 ? i : 0) * s->hidden;
    const float *d = s->vectors + (size_t)(s->n_queries + i) * s->hidden;
    double dot = 0;

    for (uint32_t k = 0; k < s->hidden; k++) dot += (double)q[k] * (double)d[k];
    return dot;
}

static void find_scores(struct rerank_state *s)
{
    for (uint32_t i = 0; !s->by_answer && i < s->n_documents; i++) s->ranked[i] = (struct ranked){i, cosine(s, i)};
}

static void rank(struct rerank_state *s)
{
    find_scores(s);
    qsort(s->ranked, s->n_documents, sizeof(*s->ranked), compare_ranked);
    for (uint32_t i = 0; i < s->n_documents; i++) /* a NaN becomes 0, too */
        s->ranked[i].score = s->ranked[i].score > 0 ? fmin(s->ranked[i].score, 1) : 0;
}

static void sum_usage(const struct generation *g, uint32_t *n_prompt, uint32_t *n_cached)
{
    *n_prompt = *n_cached = 0;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        *n_prompt += g->choices[i].usage.n_prompt;
        *n_cached += g->choices[i].usage.n_cached;
    }
}

static const json_t *document_text(const json_t *document)
{
    return json_is_object(document) ? json_object_get(document, "text") : document;
}

static void rerank_whole(struct generation *g, struct buf *out)
{
    struct rerank_state *s = g->state;
    const char *model = g->served->info.model_id;
    uint32_t n_prompt, n_cached;

    rank(s);
    sum_usage(g, &n_prompt, &n_cached);
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"list\",\"model\":", g->id);
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"results\":[");
    for (uint32_t i = 0; i < s->top_n; i++) {
        const json_t *text = document_text(json_array_get(s->documents, s->ranked[i].index));

        buf_printf(out, "%s{\"index\":%u,\"relevance_score\":", i ? "," : "", s->ranked[i].index);
        json_put_number(out, s->ranked[i].score);
        if (s->return_documents) {
            buf_puts(out, ",\"document\":{\"text\":");
            json_put_string(out, json_string_value(text), json_string_length(text));
            buf_puts(out, "}");
        }
        buf_puts(out, "}");
    }
    buf_printf(
        out,
        "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u}},"
        "\"meta\":{\"api_version\":{\"version\":\"%c\"},\"billed_units\":{\"search_units\":1},\"tokens\":{\"input_"
        "tokens\":"
        "%u}}}",
        n_prompt, n_prompt, n_cached, s->version, n_prompt);
}

static const struct response_shape rerank_shape = {.id_prefix = "rerank_",
                                                   .options = rerank_options,
                                                   .finish = rerank_finish,
                                                   .whole = rerank_whole,
                                                   .destroy = state_destroy};

/* In the order of the pairs; a cosine may be below 0. */
static void score_whole(struct generation *g, struct buf *out)
{
    struct rerank_state *s = g->state;
    const char *model = g->served->info.model_id;
    uint32_t n_prompt, n_cached;

    find_scores(s);
    sum_usage(g, &n_prompt, &n_cached);
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", g->id, (long long)g->created_s);
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"data\":[");
    for (uint32_t i = 0; i < s->n_documents; i++) {
        double score = s->ranked[i].score;

        buf_printf(out, "%s{\"index\":%u,\"object\":\"score\",\"score\":", i ? "," : "", i);
        json_put_number(out, isnan(score) ? 0 : fmax(-1, fmin(score, 1)));
        buf_putc(out, '}');
    }
    buf_printf(
        out,
        "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":0,\"prompt_tokens_details\":{"
        "\"cached_tokens\":%u}}}",
        n_prompt, n_prompt, n_cached);
}

static const struct response_shape score_shape = {.id_prefix = "score-",
                                                  .options = rerank_options,
                                                  .finish = rerank_finish,
                                                  .whole = score_whole,
                                                  .destroy = state_destroy};

/* ---- in ---- */

static int read_documents(const json_t *body, struct rerank_state *s, struct api_error *e)
{
    json_t *list = json_object_get(body, "documents"), *d;
    size_t i;

    json_array_foreach(list, i, d) if (!json_is_string(document_text(d))) return api_error_set(
        e, 400, "documents", "documents: element %zu is neither a string nor {text}", i);
    s->documents = json_incref(list);
    s->n_documents = s->top_n = (uint32_t)json_array_size(list);
    return 0;
}

static int read_fields(const json_t *body, struct rerank_state *s, struct api_error *e)
{
    const json_t *top_n = json_object_get(body, "top_n"), *query = json_object_get(body, "query");

    if (read_documents(body, s, e)) return -1;
    if (json_string_length(query) == 0) return api_error_set(e, 400, "query", "query: empty");
    s->queries = json_pack("[O]", query);
    if (!s->queries) return foreign_no_memory(e);
    s->n_queries = 1;
    s->return_documents = json_is_true(json_object_get(body, "return_documents"));
    if (json_is_number(top_n) && json_number_value(top_n) < s->top_n) s->top_n = (uint32_t)json_number_value(top_n);
    return 0;
}

/* The field under the last of its names, as the table reads it. */
static const char *name_in(const json_t *body, const char *const names[3])
{
    for (int i = 2; i > 0; i--)
        if (json_object_get(body, names[i]) && !json_is_null(json_object_get(body, names[i]))) return names[i];
    return names[0];
}

static json_t *as_list(json_t *v)
{
    return json_is_array(v) ? json_incref(v) : json_pack("[O]", v);
}

/* A text with each of several, or pair by pair. */
static int read_pairs(const json_t *body, struct rerank_state *s, const char **name, struct api_error *e)
{
    static const char *const one[3] = {"text_1", "queries", "data_1"}, *const two[3] = {"text_2", "documents",
                                                                                        "data_2"};
    const char *first = name_in(body, one);

    *name = name_in(body, two);
    s->queries = as_list(json_object_get(body, first));
    s->documents = as_list(json_object_get(body, *name));
    if (!s->queries || !s->documents) return foreign_no_memory(e);
    s->n_queries = (uint32_t)json_array_size(s->queries);
    s->n_documents = (uint32_t)json_array_size(s->documents);
    if (s->n_queries > 1 && s->n_queries != s->n_documents)
        return api_error_set(e, 400, first, "%s: wanted one text, or as many as %s has, which are %u", first, *name,
                             s->n_documents);
    return 0;
}

/* An empty text has no tokens; a line end stands for it. */
static bool add_texts(json_t *prompts, const json_t *list)
{
    const json_t *d;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, d)
    {
        const json_t *text = document_text(d);

        if (!foreign_add(prompts,
                         json_string_length(text) ? json_incref((json_t *)(uintptr_t)text) : json_string("\n")))
            return false;
    }
    return true;
}

static json_t *vector_prompts(const struct rerank_state *s)
{
    json_t *prompts = json_array();

    if (prompts && add_texts(prompts, s->queries) && add_texts(prompts, s->documents)) return prompts;
    json_decref(prompts);
    return NULL;
}

/* NUL characters as well. */
static struct rd_text_part foreign(const json_t *s)
{
    return (struct rd_text_part){json_string_value(s), json_string_length(s), true};
}

static struct rd_text_part own(const char *s)
{
    return (struct rd_text_part){s, strlen(s), false};
}

static json_t *text_of_parts(const struct rd_text_part *parts, size_t n)
{
    struct buf text = {0};
    json_t *out;

    for (size_t i = 0; i < n; i++) buf_append(&text, parts[i].text, parts[i].n_bytes);
    out = text.failed ? NULL : json_stringn(text.data, text.n);
    buf_deinit(&text);
    return out;
}

/* As ids, so that no document ends the question; as text where the model's backend tokenises. NULL: no memory, or too long. */
static json_t *prompt_of_parts(const rd_engine *engine, const struct rd_text_part *parts, size_t n)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    rd_status st = rd_tokenize_parts(engine, parts, n, true, &ids, &n_ids, NULL);
    json_t *out = st == RD_OK ? json_array() : NULL;

    if (st == RD_E_UNSUPPORTED || st == RD_E_LIMIT)
        return text_of_parts(parts, n); /* what is too long is refused as a text */
    for (uint32_t i = 0; out && i < n_ids; i++) {
        if (json_array_append_new(out, json_integer(ids[i])) == 0) continue;
        json_decref(out);
        out = NULL;
    }
    rd_free(ids);
    return out;
}

static json_t *question_prompts(const rd_engine *engine, const json_t *task, const struct rerank_state *s)
{
    json_t *prompts = json_array(), *d;
    bool ok = prompts != NULL;
    size_t i;

    json_array_foreach(s->documents, i, d)
    {
        const struct rd_text_part parts[] = {
            own("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
                "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
                "<|im_start|>user\n<Instruct>: "),
            json_string_length(task) ? foreign(task) : own(DEFAULT_TASK),
            own("\n<Query>: "),
            foreign(json_array_get(s->queries, s->n_queries > 1 ? i : 0)),
            own("\n<Document>: "),
            foreign(document_text(d)),
            own("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        };

        ok = ok && foreign_add(prompts, prompt_of_parts(engine, parts, sizeof(parts) / sizeof(parts[0])));
    }
    if (ok) return prompts;
    json_decref(prompts);
    return NULL;
}

static int find_answers(const rd_engine *engine, struct rerank_state *s, struct api_error *e)
{
    static const char *const words[2] = {"yes", "no"};

    for (int i = 0; i < 2; i++) {
        int32_t *ids = NULL;
        uint32_t n = 0;
        rd_status st = rd_tokenize(engine, words[i], strlen(words[i]), false, false, &ids, &n, NULL);

        if (st == RD_OK && n == 1) s->answers[i] = ids[0];
        rd_free(ids);
        if (st != RD_OK || n != 1)
            return api_error_set(e, 400, "model", "model: \"%s\" is no single token of this model", words[i]);
    }
    return 0;
}

/* Queries and documents are read. name: of the documents' field. */
static int make_prompts(struct http_conn *c, const json_t *body, const char *name, struct rerank_state *s,
                        struct gen_params *p, struct api_error *e)
{
    const struct server *server = server_of(c);
    const struct served_model *m = served_of(c);
    json_t *prompts;

    s->by_answer = server->rank_by_answer || (m->info.is_reranker && !server->rank_by_embedding);
    s->hidden = m->info.hidden;
    s->ranked = mem_zalloc(s->n_documents, sizeof(*s->ranked));
    if (!s->by_answer) s->vectors = mem_zalloc((size_t)s->n_queries + s->n_documents, s->hidden * sizeof(*s->vectors));
    if (!s->ranked || (!s->by_answer && !s->vectors)) return foreign_no_memory(e);
    if (s->by_answer && find_answers(m->engine, s, e)) return -1;
    prompts = s->by_answer ? question_prompts(m->engine, json_object_get(body, "instruction"), s) : vector_prompts(s);
    return prompts ? embedding_params(m, name, prompts, p, e) : foreign_no_memory(e);
}

/* version: of the API, which the answer names; 's': that of /score. */
static void run(struct http_conn *c, char version)
{
    struct rerank_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    const char *name = "documents";
    json_t *body = NULL;
    struct api_error e;
    int rc = s ? request_body(c, route_of(c)->params, NULL, &body, &e) : foreign_no_memory(&e);

    if (rc == 0) s->version = version;
    if (rc == 0) rc = param_check_alone(body, served_of(c), &e);
    if (rc == 0) rc = version == 's' ? read_pairs(body, s, &name, &e) : read_fields(body, s, &e);
    if (rc == 0) rc = make_prompts(c, body, name, s, &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, version == 's' ? &score_shape : &rerank_shape, &p, s);
        return;
    }
    gen_params_deinit(&p);
    state_destroy(s);
    http_reply_error(c, &e);
}

void route_rerank(struct http_conn *c)
{
    run(c, '1');
}

void route_rerank_v2(struct http_conn *c)
{
    run(c, '2');
}

void route_score(struct http_conn *c)
{
    run(c, 's');
}
