/* server/dialects/llama_server_shape.c - llama-server's answer to /completion and /infill.
 *
 * A stream is data lines: pieces with "stop":false, each with the text, tokens and probabilities that came since the one
 * before; then for each answer the whole object with "stop":true, without text. Nothing comes behind them. What is no
 * stream is that object with the text, or a list of them where there are several answers.
 *
 * There are no slots here: id_slot is -1.
 */
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "server/dialects/answer_parts.h"
#include "server/dialects/dialect.h"
#include "server/dialects/shapes.h"
#include "server/params/json_out.h"

static void put_text(const char *s, struct buf *out)
{
    json_put_string(out, s ? s : "", s ? strlen(s) : 0);
}

static void put_bool(bool b, struct buf *out)
{
    buf_puts(out, b ? "true" : "false");
}

/* ---- generation_settings ---- */

#define REAL(x)  (double)(x)
#define WHOLE(x) (double)(x)
#define SETTING(kind, field, name, other, fallback, least, most, text)                                                 \
    json_put_field(out, name, kind(s->field));                                                                         \
    put_alias(other, kind(s->field), out);

static void put_alias(const char *name, double v, struct buf *out)
{
    if (name) json_put_field(out, name, v);
}

static void put_numbers(const struct rd_sampling *s, struct buf *out)
{
    RD_SAMPLING_NUMBERS(SETTING)
}

/* "top_k;temperature", with semicolons around or not. */
static void put_samplers(const char *names, struct buf *out)
{
    const char *comma = "";

    if (!names) return;
    buf_puts(out, ",\"samplers\":[");
    for (size_t n; *names; names += n + (names[n] == ';')) {
        n = strcspn(names, ";");
        if (n == 0) continue;
        buf_puts(out, comma);
        json_put_string(out, names, n);
        comma = ",";
    }
    buf_puts(out, "]");
}

static void put_texts(const struct gen_params *p, struct buf *out)
{
    buf_puts(out, ",\"stop\":[");
    for (uint32_t i = 0; i < p->n_stop; i++) {
        if (i) buf_putc(out, ',');
        put_text(p->stop[i], out);
    }
    buf_puts(out, "],\"logit_bias\":[");
    for (uint32_t i = 0; i < p->n_bias; i++) {
        buf_printf(out, "%s{\"bias\":", i ? "," : "");
        json_put_number(out, (double)p->bias[i].bias);
        buf_printf(out, ",\"token\":%d}", p->bias[i].token);
    }
    buf_puts(out, "],\"grammar\":");
    json_put_string(out, p->grammar ? p->grammar : "", p->grammar ? p->n_grammar : 0);
}

/* What is long is told where there is one answer: with thousands a small request would be answered by gigabytes. */
static void put_settings(struct generation *g, struct choice *c, struct buf *out)
{
    const struct gen_params *p = &g->p;

    (void)c;
    buf_printf(out, "{\"n_ctx\":%u,\"n_predict\":%lld,\"max_tokens\":%lld,\"seed\":%lld", g->served->info.n_ctx,
               (long long)p->max_tokens, (long long)p->max_tokens, p->has_seed ? (long long)p->seed : 0xFFFFFFFFll);
    put_numbers(&p->sampling, out);
    buf_printf(out, ",\"n_keep\":%lld,\"n_probs\":%lld,\"min_tokens\":%lld,\"ignore_eos\":", (long long)p->n_keep,
               p->logprobs ? (long long)p->top_logprobs : 0, (long long)p->min_tokens);
    put_bool(p->ignore_eos, out);
    buf_puts(out, ",\"stream\":");
    put_bool(p->stream, out);
    buf_puts(out, ",\"timings_per_token\":");
    put_bool(p->timings_per_token, out);
    put_samplers(p->samplers, out);
    if (g->n_choices == 1) put_texts(p, out);
    buf_puts(out, ",\"lora\":[");
    for (uint32_t i = 0; i < p->n_lora; i++) {
        buf_printf(out, "%s{\"id\":%lld", i ? "," : "", (long long)p->lora[i].id);
        json_put_field(out, "scale", p->lora[i].scale);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* ---- members of the whole object ---- */

static void put_index(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    buf_printf(out, "%u", c->index);
}

static void put_content(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    json_put_string(out, c->text.n ? c->text.data : "", c->text.n);
}

static void put_tokens(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    buf_putc(out, '[');
    if (c->token_ids.n) buf_append(out, c->token_ids.data, c->token_ids.n);
    buf_putc(out, ']');
}

static void put_id_slot(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    (void)c;
    buf_puts(out, "-1");
}

static void put_stop(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    (void)c;
    buf_puts(out, "true");
}

static void put_model(struct generation *g, struct choice *c, struct buf *out)
{
    (void)c;
    put_text(generation_model(g), out);
}

static void put_predicted(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    buf_printf(out, "%u", c->usage.n_generated);
}

static void put_evaluated(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    buf_printf(out, "%u", c->usage.n_prompt);
}

static void put_cached(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    buf_printf(out, "%u", c->usage.n_cached);
}

/* As it was computed: with the tokens that the model wants around a text. */
static void put_prompt(struct generation *g, struct choice *c, struct buf *out)
{
    uint32_t n;
    const int32_t *ids = rd_request_prompt(c->request, &n);
    struct buf given = {0};
    char *text = NULL;
    size_t n_text = 0;

    if (ids) {
        if (rd_detokenize(g->served->engine, ids, n, true, &text, &n_text, NULL) != RD_OK) out->failed = true;
        json_put_string(out, text ? text : "", n_text);
        rd_free(text);
        return;
    }
    answer_put_prompt(g, c, &given);
    if (given.failed) out->failed = true;
    json_put_string(out, given.n ? given.data : "", given.n);
    buf_deinit(&given);
}

static void put_new_line(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    put_bool(c->has_new_line, out);
}

/* The context was full, not the limit reached. */
static void put_truncated(struct generation *g, struct choice *c, struct buf *out)
{
    const struct rd_usage *u = &c->usage;
    bool has_limit = g->p.max_tokens >= 0 && u->n_generated >= (uint64_t)g->p.max_tokens;

    put_bool(u->n_shifts > 0 || (c->finish == RD_FINISH_LENGTH && !has_limit), out);
}

static bool ended_by_word(const struct choice *c)
{
    return c->finish != RD_FINISH_LENGTH && (c->stop_string || c->stop_token >= 0);
}

static void put_stop_type(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    put_text(c->finish == RD_FINISH_LENGTH ? "limit" : ended_by_word(c) ? "word" : "eos", out);
}

static void put_stopping_word(struct generation *g, struct choice *c, struct buf *out)
{
    size_t n = 0;
    const char *s = "";

    if (ended_by_word(c) && !c->stop_string) s = rd_token_bytes(g->served->engine, c->stop_token, &n);
    if (ended_by_word(c) && c->stop_string) s = c->stop_string, n = strlen(s);
    json_put_string(out, s, n);
}

static void put_timings(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    answer_put_timings(&c->usage, out);
}

static void put_probabilities(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g;
    buf_putc(out, '[');
    if (c->logprobs.n) buf_append(out, c->logprobs.data, c->logprobs.n);
    buf_putc(out, ']');
}

static const struct member {
    const char *name;
    void (*put)(struct generation *g, struct choice *c, struct buf *out);
    bool has_members; /* that response_fields may name */
} members[] = {
    {"index", put_index, false},
    {"content", put_content, false},
    {"tokens", put_tokens, false},
    {"id_slot", put_id_slot, false},
    {"stop", put_stop, false},
    {"model", put_model, false},
    {"tokens_predicted", put_predicted, false},
    {"tokens_evaluated", put_evaluated, false},
    {"tokens_cached", put_cached, false},
    {"generation_settings", put_settings, true},
    {"prompt", put_prompt, false},
    {"has_new_line", put_new_line, false},
    {"truncated", put_truncated, false},
    {"stop_type", put_stop_type, false},
    {"stopping_word", put_stopping_word, false},
    {"timings", put_timings, true},
    {"completion_probabilities", put_probabilities, false},
};
#define N_MEMBERS (sizeof(members) / sizeof(members[0]))

/* A stream has told them, piece by piece. */
static bool is_told(const struct generation *g, const struct member *m)
{
    return m->put == put_probabilities && (g->streaming || !g->p.logprobs);
}

static void put_named(const char *path, const char *value, size_t n, struct buf *out)
{
    buf_putc(out, ',');
    put_text(path, out);
    buf_putc(out, ':');
    buf_append(out, value, n);
}

/* A member of a member, of which *tree is made once. */
static void put_inner(const char *path, const char *inner, const struct buf *whole, json_t **tree, struct buf *out)
{
    json_t *v;
    char *text;

    if (!*tree) *tree = json_loadb(whole->data, whole->n, 0, NULL);
    if (!*tree) out->failed = true;
    v = json_object_get(*tree, inner);
    if (!v) return;
    text = json_text(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        put_named(path, text, strlen(text), out);
    else
        out->failed = true;
    mem_free(text);
}

/* ,"path":value of a member, or of a member of it. What is not there is left out. */
static void put_field(struct generation *g, struct choice *c, const char *path, json_t *trees[N_MEMBERS],
                      struct buf *out)
{
    size_t n_name = strcspn(path, "/"), i = 0;
    struct buf whole = {0};

    while (i < N_MEMBERS && (strlen(members[i].name) != n_name || memcmp(members[i].name, path, n_name) != 0)) i++;
    if (i == N_MEMBERS || is_told(g, &members[i]) || (path[n_name] && !members[i].has_members)) return;
    if (!path[n_name] || !trees[i]) members[i].put(g, c, &whole);
    if (whole.failed)
        out->failed = true;
    else if (path[n_name])
        put_inner(path, path + n_name + 1, &whole, &trees[i], out);
    else
        put_named(path, whole.data, whole.n, out);
    buf_deinit(&whole);
}

static bool is_repeated(const struct text_list *fields, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(fields->items[k], fields->items[i]) == 0) return true;
    return false;
}

static void put_whole(struct generation *g, struct choice *c, struct buf *out)
{
    const struct text_list *fields = &g->p.response_fields;
    json_t *trees[N_MEMBERS] = {NULL};
    size_t begin = out->n;

    for (uint32_t i = 0; i < fields->n; i++)
        if (!is_repeated(fields, i)) put_field(g, c, fields->items[i], trees, out);
    for (size_t i = 0; i < N_MEMBERS; i++) json_decref(trees[i]);
    for (size_t i = 0; fields->n == 0 && i < N_MEMBERS; i++) {
        if (is_told(g, &members[i])) continue;
        buf_printf(out, ",\"%s\":", members[i].name);
        members[i].put(g, c, out);
    }
    if (out->n == begin)
        buf_puts(out, "{}");
    else if (!out->failed)
        out->data[begin] = '{', buf_putc(out, '}');
}

/* ---- pieces ---- */

static void begin_piece(struct generation *g, struct choice *c, const char *s, size_t n, struct buf *out)
{
    buf_printf(out, "data: {\"index\":%u,\"content\":", c->index);
    json_put_string(out, n ? s : "", n);
    buf_puts(out, ",\"tokens\":");
    put_tokens(g, c, out);
    buf_clear(&c->token_ids);
    buf_printf(out, ",\"stop\":false,\"id_slot\":-1,\"tokens_predicted\":%u,\"tokens_evaluated\":%u",
               c->usage.n_generated, c->usage.n_prompt);
}

static void put_piece(struct generation *g, struct choice *c, const char *s, size_t n, struct buf *out)
{
    struct rd_usage so_far = c->usage;

    begin_piece(g, c, s, n, out);
    if (g->p.timings_per_token) {
        if (!c->ended) so_far.predicted_ms = (double)(clock_now_ns(clock_system()) - c->first_ns) / 1e6;
        buf_puts(out, ",\"timings\":");
        answer_put_timings(&so_far, out);
    }
    answer_put_collected(g, c, "completion_probabilities", out);
    buf_puts(out, "}\n\n");
}

/* ---- the shape ---- */

static void progress(struct generation *g, struct choice *c, bool begins, struct buf *out)
{
    begin_piece(g, c, "", 0, out);
    answer_put_progress(g, c, begins, out);
    buf_puts(out, "}\n\n");
}

/* A token without text goes with the piece that has its text. */
static void delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    if (d->text_bytes == 0) return;
    if (memchr(d->text, '\n', d->text_bytes)) c->has_new_line = true;
    if (g->streaming)
        put_piece(g, c, d->text, d->text_bytes, out);
    else
        buf_append(&c->text, d->text, d->text_bytes);
}

/* Not streaming, the object takes the place of the text that it has. */
static void finish(struct generation *g, struct choice *c, struct buf *out)
{
    struct buf whole = {0};

    if (g->streaming) {
        if (c->token_ids.n || c->logprobs.n) put_piece(g, c, "", 0, out);
        buf_puts(out, "data: ");
        put_whole(g, c, out);
        buf_puts(out, "\n\n");
        return;
    }
    put_whole(g, c, &whole);
    buf_deinit(&c->text);
    buf_deinit(&c->logprobs);
    buf_deinit(&c->token_ids);
    c->text = whole;
}

static void whole(struct generation *g, struct buf *out)
{
    if (g->n_choices > 1) buf_putc(out, '[');
    for (uint32_t i = 0; i < g->n_choices; i++) {
        if (i) buf_putc(out, ',');
        buf_append(out, g->choices[i].text.data, g->choices[i].text.n);
    }
    if (g->n_choices > 1) buf_putc(out, ']');
}

static void error(struct generation *g, const struct api_error *e, struct buf *out)
{
    (void)g;
    buf_puts(out, "data: ");
    dialect_openai.put_error(e, out);
    buf_puts(out, "\n\n");
}

const struct response_shape llama_server_shape = {.id_prefix = "cmpl-",
                                                  .media = "text/event-stream",
                                                  .ping = ": ping\n\n",
                                                  .collect = answer_collect_ids,
                                                  .progress = progress,
                                                  .delta = delta,
                                                  .finish = finish,
                                                  .whole = whole,
                                                  .error = error};
