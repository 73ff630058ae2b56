/* server/routes/classify.c - POST /classify, /v1/classify: how likely is each label to come next? Prefill only.
 *
 * A label is a text, a token id, or a list of token ids. Its log probability is the sum over its tokens, each given the
 * input and the tokens before it; `probs` are those of the labels alone. Labels of one token cost one prefill for all;
 * a longer label costs a step for each further beginning that no other label has, behind the input in the cache.
 */
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/dialects/foreign.h"
#include "server/dialects/generation.h"
#include "server/dialects/prompt_only.h"
#include "server/params/json_out.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

struct label {
    int32_t *ids;
    uint32_t n;
    uint32_t *nodes, *slots;
}; /* token k: score slots[k] of node nodes[k] */

/* A beginning that labels share (of labels[label], n tokens of it), and the tokens that follow it. */
struct node {
    uint32_t label, n, n_next;
    int32_t *next;
};

struct classify_state {
    json_t *names; /* the labels as the client sent them */
    struct label *labels;
    struct node *nodes;
    uint32_t n_labels, n_nodes, n_inputs, n_input_tokens;
    float **scores; /* [n_inputs * n_nodes] each [n_next] */
};

static void state_destroy(void *state)
{
    struct classify_state *s = state;

    if (!s) return;
    for (uint32_t i = 0; s->labels && i < s->n_labels; i++) {
        mem_free(s->labels[i].ids);
        mem_free(s->labels[i].nodes);
        mem_free(s->labels[i].slots);
    }
    for (uint32_t i = 0; s->nodes && i < s->n_nodes; i++) mem_free(s->nodes[i].next);
    for (uint32_t i = 0; s->scores && i < s->n_inputs * s->n_nodes; i++) mem_free(s->scores[i]);
    mem_free(s->labels);
    mem_free(s->nodes);
    mem_free(s->scores);
    json_decref(s->names);
    mem_free(s);
}

/* ---- the engine's part ---- */

static void classify_options(struct generation *g, struct choice *c, struct rd_request_options *o)
{
    const struct classify_state *s = g->state;
    const struct node *node = &s->nodes[c->index % s->n_nodes];

    o->score_tokens = node->next;
    o->n_score_tokens = node->n_next;
}

static void classify_finish(struct generation *g, struct choice *c, struct buf *out)
{
    struct classify_state *s = g->state;
    uint32_t n = 0;
    const float *scores = rd_request_scores(c->request, &n);

    if (scores && n == s->nodes[c->index % s->n_nodes].n_next)
        s->scores[c->index] = (float *)(void *)mem_memdup(scores, n * sizeof(*scores));
    if (!s->scores[c->index]) out->failed = true;
    rd_request_release(c->request);
    c->request = NULL;
}

/* ---- out ---- */

static double label_logprob(const struct classify_state *s, uint32_t input, const struct label *label)
{
    double sum = 0;

    for (uint32_t k = 0; k < label->n; k++)
        sum += (double)s->scores[input * s->n_nodes + label->nodes[k]][label->slots[k]];
    return sum;
}

static void put_name(const struct classify_state *s, uint32_t label, struct buf *out)
{
    char *text = json_dumps(json_array_get(s->names, label), JSON_COMPACT | JSON_ENCODE_ANY);

    if (!text)
        out->failed = true;
    else
        buf_puts(out, text);
    mem_free(text);
}

static void put_input(const struct classify_state *s, uint32_t input, struct buf *out)
{
    double most = -INFINITY, sum = 0;
    uint32_t best = 0;

    for (uint32_t i = 0; i < s->n_labels; i++) {
        double v = label_logprob(s, input, &s->labels[i]);

        if (v > most) {
            most = v;
            best = i;
        }
    }
    for (uint32_t i = 0; i < s->n_labels; i++) sum += exp(label_logprob(s, input, &s->labels[i]) - most);
    buf_printf(out, "{\"index\":%u,\"label\":", input);
    put_name(s, best, out);
    buf_puts(out, ",\"probs\":[");
    for (uint32_t i = 0; i < s->n_labels; i++) {
        if (i) buf_putc(out, ',');
        json_put_number(out, exp(label_logprob(s, input, &s->labels[i]) - most) / sum);
    }
    buf_puts(out, "],\"logprobs\":[");
    for (uint32_t i = 0; i < s->n_labels; i++) {
        if (i) buf_putc(out, ',');
        json_put_number(out, label_logprob(s, input, &s->labels[i]));
    }
    buf_printf(out, "],\"num_classes\":%u}", s->n_labels);
}

static void classify_whole(struct generation *g, struct buf *out)
{
    struct choice *c = &g->choices[0];
    const struct classify_state *s = g->state;
    const char *model = g->served->info.model_id;
    uint32_t n_prompt = 0;

    (void)c;
    for (uint32_t i = 0; i < g->n_choices; i += s->n_nodes) n_prompt += g->choices[i].usage.n_prompt;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", g->id, (long long)g->created_s);
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"labels\":[");
    for (uint32_t i = 0; i < s->n_labels; i++) {
        if (i) buf_putc(out, ',');
        put_name(s, i, out);
    }
    buf_puts(out, "],\"data\":[");
    for (uint32_t i = 0; i < s->n_inputs; i++) {
        if (i) buf_putc(out, ',');
        put_input(s, i, out);
    }
    buf_printf(out, "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":0}}", n_prompt,
               n_prompt);
}

static const struct response_shape classify_shape = {.id_prefix = "classify_",
                                                     .options = classify_options,
                                                     .finish = classify_finish,
                                                     .whole = classify_whole,
                                                     .destroy = state_destroy};

/* ---- labels ---- */

static int read_label(const rd_engine *engine, const json_t *v, uint32_t n_vocab, struct label *to, struct api_error *e)
{
    json_t *list = json_is_integer(v) ? json_pack("[O]", v) : json_incref((json_t *)(uintptr_t)v);
    int rc = -1;

    if (!list) return foreign_no_memory(e);
    if (json_is_string(list) && json_string_length(list) > 0) {
        rd_status st = rd_tokenize(engine, json_string_value(list), json_string_length(list), false, false, &to->ids,
                                   &to->n, NULL);

        if (st != RD_OK)
            api_error_from_status(e, st, NULL);
        else
            rc = 0;
    } else if (json_is_array(list) && json_array_size(list) > 0) {
        rc = param_tokens("labels", list, &to->ids, &to->n, e);
    } else {
        api_error_set(e, 400, "labels", "labels: texts, token ids, or lists of token ids wanted");
    }
    json_decref(list);
    for (uint32_t k = 0; rc == 0 && k < to->n; k++)
        if ((uint32_t)to->ids[k] >= n_vocab)
            rc = api_error_set(e, 400, "labels", "labels: %d is not in the vocabulary of %u", to->ids[k], n_vocab);
    if (rc == 0 && to->n == 0) rc = api_error_set(e, 400, "labels", "labels: one has no tokens");
    if (rc) return rc;
    to->nodes = mem_zalloc(to->n, sizeof(*to->nodes));
    to->slots = mem_zalloc(to->n, sizeof(*to->slots));
    return to->nodes && to->slots ? 0 : foreign_no_memory(e);
}

static uint32_t find_node(const struct classify_state *s, uint32_t label, uint32_t n)
{
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        const struct node *node = &s->nodes[i];

        if (node->n == n && memcmp(s->labels[node->label].ids, s->labels[label].ids, n * sizeof(int32_t)) == 0)
            return i;
    }
    return s->n_nodes;
}

/* A node for each different beginning of labels, the empty one first. */
static int make_nodes(struct classify_state *s, uint32_t n_tokens, struct api_error *e)
{
    s->nodes = mem_zalloc(n_tokens, sizeof(*s->nodes));
    if (!s->nodes) return foreign_no_memory(e);
    for (uint32_t i = 0; i < s->n_labels; i++) {
        struct label *label = &s->labels[i];

        for (uint32_t k = 0; k < label->n; k++) {
            uint32_t at = find_node(s, i, k), slot = 0;
            struct node *node = &s->nodes[at];

            if (at == s->n_nodes) {
                node->next = mem_zalloc(s->n_labels, sizeof(*node->next));
                if (!node->next) return foreign_no_memory(e);
                node->label = i;
                node->n = k;
                s->n_nodes++;
            }
            while (slot < node->n_next && node->next[slot] != label->ids[k]) slot++;
            if (slot == node->n_next) node->next[node->n_next++] = label->ids[k];
            label->nodes[k] = at;
            label->slots[k] = slot;
        }
    }
    return 0;
}

static int read_labels(const rd_engine *engine, const json_t *body, uint32_t n_vocab, struct classify_state *s,
                       struct api_error *e)
{
    json_t *list = json_object_get(body, "labels");
    uint32_t n_tokens = 0;

    if (!list || json_is_null(list)) list = json_object_get(body, "label_token_ids");
    if (!list || json_is_null(list)) return api_error_set(e, 400, "labels", "labels: missing");
    s->names = json_incref(list);
    s->labels = mem_zalloc(json_array_size(list), sizeof(*s->labels));
    if (!s->labels) return foreign_no_memory(e);
    while (s->n_labels < json_array_size(list)) {
        struct label *label = &s->labels[s->n_labels];

        s->n_labels++; /* what there is of it is freed with the others */
        if (read_label(engine, json_array_get(list, s->n_labels - 1), n_vocab, label, e)) return -1;
        n_tokens += u32_min(label->n, LIMIT_LABEL_TOKENS + 1);
        if (n_tokens > LIMIT_LABEL_TOKENS)
            return api_error_set(e, 400, "labels", "labels: at most %u tokens in all", LIMIT_LABEL_TOKENS);
    }
    return make_nodes(s, n_tokens, e);
}

/* ---- inputs ---- */

static int add_ids(const rd_engine *engine, const json_t *v, struct prompt *to, struct api_error *e)
{
    int32_t *ids = NULL;
    rd_status st;

    if (json_is_array(v)) return param_tokens("input", v, &to->tokens, &to->n_tokens, e);
    st = rd_tokenize(engine, json_string_value(v), json_string_length(v), true, true, &ids, &to->n_tokens, NULL);
    if (st == RD_OK && to->n_tokens > 0) {
        to->tokens = ids;
        return 0;
    }
    rd_free(ids);
    if (st == RD_OK) return api_error_set(e, 400, "input", "input: empty");
    api_error_from_status(e, st, NULL);
    return -1;
}

/* A picture is no text that labels could stand behind. */
static int refuse_images(const json_t *messages, struct api_error *e)
{
    size_t i, k;

    if (!prompt_only_finds_image(messages, &i, &k)) return 0;
    return api_error_set(e, 400, "messages", "messages[%zu].content[%zu]: only text is classified", i, k);
}

/* messages as the one input, rendered by the chat template. */
static int add_chat(const struct http_conn *c, const json_t *body, struct prompt *to, struct api_error *e)
{
    struct gen_params p;
    int rc;

    gen_params_init(&p, true);
    rc = params_read(body, FOR_CLASSIFY, &p, e);
    if (rc == 0) rc = gen_params_rendering(body, &p, e);
    if (rc == 0) rc = refuse_images(json_object_get(body, "messages"), e);
    if (rc == 0) rc = prompt_only_tokens(c, &p, &to->tokens, &to->n_tokens, e);
    gen_params_deinit(&p);
    return rc;
}

/* Told here, before every beginning of labels gets a copy of it. */
static int too_long(const struct prompt *input, uint32_t n_ctx, struct api_error *e)
{
    api_error_set(e, 400, "input",
                  "This model's maximum context length is %u tokens. However, your input has %u tokens.", n_ctx,
                  input->n_tokens);
    e->code = "context_length_exceeded";
    return -1;
}

static int read_inputs(const struct http_conn *c, const json_t *body, struct prompt **inputs, uint32_t *n,
                       struct api_error *e)
{
    const rd_engine *engine = served_of(c)->engine;
    const uint32_t n_ctx = served_of(c)->info.n_ctx;
    const json_t *v = json_object_get(body, "input"), *first;
    bool many;

    *inputs = NULL;
    *n = 0;
    if (!v || json_is_null(v)) v = json_object_get(body, "prompt");
    if (json_is_null(v)) v = NULL;
    if (!v && !json_is_array(json_object_get(body, "messages")))
        return api_error_set(e, 400, "input", "input (or messages): missing");
    first = json_array_get(v, 0);
    many = json_is_string(first) || json_is_array(first);
    if (v && !many && !json_is_string(v) && !json_is_integer(first))
        return api_error_set(e, 400, "input", "input: string, token ids, or a list of either wanted");
    if (many && json_array_size(v) > LIMIT_PROMPTS)
        return api_error_set(e, 400, "input", "input: at most %u", LIMIT_PROMPTS);
    *inputs = mem_zalloc(many ? json_array_size(v) : 1, sizeof(**inputs));
    if (!*inputs) return foreign_no_memory(e);
    do {
        const json_t *one = many ? json_array_get(v, *n) : v;
        int rc;

        if (one && !json_is_string(one) && json_array_size(one) == 0)
            return api_error_set(e, 400, "input", "input: element %u is no text and no list of token ids", *n);
        rc = one ? add_ids(engine, one, &(*inputs)[*n], e) : add_chat(c, body, &(*inputs)[*n], e);
        if (rc) return rc;
        if ((*inputs)[(*n)++].n_tokens > n_ctx) return too_long(&(*inputs)[*n - 1], n_ctx, e);
    } while (many && *n < json_array_size(v));
    return 0;
}

/* Every input with every beginning of labels behind it. */
static int cross(struct http_conn *c, struct classify_state *s, const struct prompt *inputs, struct gen_params *p,
                 struct api_error *e)
{
    uint64_t n_bytes = 0;

    if ((uint64_t)s->n_inputs * s->n_nodes > LIMIT_PROMPTS)
        return api_error_set(e, 400, "labels", "labels: inputs times different beginnings of labels: at most %u",
                             LIMIT_PROMPTS);
    for (uint32_t i = 0; i < s->n_inputs; i++)
        n_bytes += (inputs[i].n_tokens + (uint64_t)LIMIT_LABELS) * s->n_nodes * sizeof(*inputs[i].tokens);
    if (request_reserve(c, c->memory.parts[CLIENT_ANSWERS] + n_bytes, e)) return -1;
    s->scores = mem_zalloc((size_t)s->n_inputs * s->n_nodes, sizeof(*s->scores));
    p->prompts = mem_zalloc((size_t)s->n_inputs * s->n_nodes, sizeof(*p->prompts));
    if (!s->scores || !p->prompts) return foreign_no_memory(e);
    for (uint32_t i = 0; i < s->n_inputs * s->n_nodes; i++) {
        const struct prompt *in = &inputs[i / s->n_nodes];
        const struct node *node = &s->nodes[i % s->n_nodes];
        struct prompt *to = &p->prompts[p->n_prompts++];

        to->n_tokens = in->n_tokens + node->n;
        to->tokens = mem_alloc(to->n_tokens, sizeof(*to->tokens));
        if (!to->tokens) return foreign_no_memory(e);
        memcpy(to->tokens, in->tokens, in->n_tokens * sizeof(*to->tokens));
        memcpy(to->tokens + in->n_tokens, s->labels[node->label].ids, node->n * sizeof(*to->tokens));
    }
    return 0;
}

static int read_body(struct http_conn *c, const json_t *body, struct classify_state *s, struct gen_params *p,
                     struct api_error *e)
{
    const struct served_model *m = served_of(c);
    struct prompt *inputs = NULL;
    uint32_t n = 0;
    json_t *no_prompt = NULL;
    int rc;

    if (param_check_alone(body, m, e)) return -1;
    rc = read_labels(m->engine, body, m->info.n_vocab, s, e);
    if (rc == 0) rc = read_inputs(c, body, &inputs, &n, e);
    if (rc == 0) {
        no_prompt = json_pack("{s:s, s:i}", "prompt", "-", "max_tokens", 0);
        rc = no_prompt ? gen_params_parse(no_prompt, m, false, p, e) : foreign_no_memory(e);
    }
    if (rc == 0) {
        mem_free(p->prompts[0].text); /* the prompts are made here */
        mem_free(p->prompts);
        p->prompts = NULL;
        p->n_prompts = 0;
        s->n_inputs = n;
        rc = cross(c, s, inputs, p, e);
    }
    for (uint32_t i = 0; i < n; i++) mem_free(inputs[i].tokens);
    mem_free(inputs);
    json_decref(no_prompt);
    return rc;
}

void route_classify(struct http_conn *c)
{
    struct classify_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    json_t *body = NULL;
    struct api_error e;
    int rc = s ? request_reserve_texts(c, &e) : foreign_no_memory(&e);

    if (rc == 0) rc = request_body(c, route_of(c)->params, NULL, &body, &e);
    if (rc == 0) rc = read_body(c, body, s, &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &classify_shape, &p, s);
        return;
    }
    gen_params_deinit(&p);
    state_destroy(s);
    http_reply_error(c, &e);
}
