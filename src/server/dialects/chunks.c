/* server/dialects/chunks.c - the frame, the choices in it, usage and timings. */
#include "server/dialects/chunks.h"
#include <string.h>
#include "base/mem.h"
#include "server/dialects/answer_parts.h"
#include "server/dialects/dialect.h"
#include "server/params/json_out.h"
#include "server/dialects/prompt_prints.h"

static void put_usage(const struct generation *g, struct buf *out)
{
    struct rd_usage u;

    generation_usage(g, &u);
    buf_printf(out,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_"
               "tokens\":%u},\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
               u.n_prompt, u.n_generated, u.n_prompt + u.n_generated, u.n_cached, u.n_reasoning);
}

/* Of the first choice: the others find what it stored. */
static void put_diagnostics(const struct generation *g, struct buf *out)
{
    prompt_prints_put_openai(g->server->prints, g->tenant, &g->p, &g->choices[0].usage, g->served->info.page_tokens,
                             out);
}

static void put_frame(const struct generation *g, const char *object, struct buf *out)
{
    const char *model = generation_model(g);

    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created_s);
    json_put_string(out, model, strlen(model));
    buf_printf(out, ",\"system_fingerprint\":\"radish-%s\",\"choices\":[", rd_version());
}

int chunks_accept(struct generation *g, struct api_error *e)
{
    (void)e; /* without memory the first chunk fails */
    buf_puts(&g->frame, "data: ");
    put_frame(g, g->shape->chunks->chunk_object, &g->frame);
    buf_puts(&g->frame, "{\"index\":");
    return 0;
}

/* Once per token: copies, no formatting. */
static void begin_chunk(const struct generation *g, const struct choice *c, struct buf *out)
{
    if (g->frame.failed) out->failed = true;
    buf_append(out, g->frame.data, g->frame.n);
    if (c->index < 10)
        buf_putc(out, (char)('0' + c->index));
    else
        buf_printf(out, "%u", c->index);
    buf_putc(out, ',');
}

static void put_ids(const struct choice *c, struct buf *out)
{
    uint32_t n;
    const int32_t *ids = rd_request_prompt(c->request, &n);

    for (uint32_t i = 0; i < n; i++) buf_printf(out, "%s%d", i ? "," : "", ids[i]);
}

/* ,"prompt_token_ids":[..] once; chat has it beside its choices, completions in each. */
static void put_prompt_ids(const struct generation *g, struct choice *c, bool beside, struct buf *out)
{
    if (!g->p.return_token_ids || c->sent_prompt_ids || beside != g->p.chat) return;
    c->sent_prompt_ids = true;
    buf_puts(out, ",\"prompt_token_ids\":[");
    if (c->prompt_ids.n) buf_append(out, c->prompt_ids.data, c->prompt_ids.n);
    if (!c->prompt_ids.n) put_ids(c, out);
    buf_putc(out, ']');
}

static void put_token_ids(const struct generation *g, struct choice *c, struct buf *out)
{
    if (!g->p.return_token_ids) return;
    buf_puts(out, ",\"token_ids\":[");
    if (c->token_ids.n) buf_append(out, c->token_ids.data, c->token_ids.n);
    buf_putc(out, ']');
    buf_clear(&c->token_ids);
    put_prompt_ids(g, c, false, out);
}

static void end_chunk(const struct generation *g, struct choice *c, struct buf *out)
{
    put_token_ids(g, c, out);
    buf_puts(out, "}]");
    put_prompt_ids(g, c, true, out);
    if (g->p.include_usage) buf_puts(out, ",\"usage\":null");
}

/* The lists of log probabilities went out with a chunk. */
static void clear_logprobs(struct choice *c)
{
    buf_clear(&c->logprobs);
    buf_clear(&c->lp_tokens);
    buf_clear(&c->lp_top);
    buf_clear(&c->lp_offsets);
}

void chunks_begin(struct generation *g, struct choice *c, struct buf *out)
{
    struct buf open = {0};

    if (!g->streaming) {
        if (g->p.echo) answer_put_prompt(g, c, &c->text);
        if (g->p.echo && g->p.logprobs) g->shape->collect(g, c, NULL);
        return;
    }
    if (g->shape->chunks->put_open(g, c, &open)) {
        begin_chunk(g, c, out);
        buf_append(out, open.data, open.n);
        end_chunk(g, c, out);
        buf_puts(out, "}\n\n");
        clear_logprobs(c);
    }
    if (open.failed) out->failed = true;
    buf_deinit(&open);
}

static void keep_delta(struct choice *c, const struct rd_delta *d)
{
    switch (d->type) {
    case RD_DELTA_CONTENT:
        buf_append(&c->text, d->text, d->text_bytes);
        break;
    case RD_DELTA_REASONING:
        buf_append(&c->reasoning, d->text, d->text_bytes);
        break;
    case RD_DELTA_CALL_BEGIN:
        buf_printf(&c->calls, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", d->index ? "," : "",
                   d->id);
        json_put_string(&c->calls, d->text, d->text_bytes);
        buf_puts(&c->calls, ",\"arguments\":\"");
        break;
    case RD_DELTA_CALL_ARGUMENTS:
        buf_put_json(&c->calls, d->text, d->text_bytes);
        break;
    case RD_DELTA_CALL_END:
        buf_puts(&c->calls, "\"}}");
        break;
    }
}

void chunks_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    if (!g->streaming) {
        keep_delta(c, d);
        return;
    }
    if (d->type == RD_DELTA_CALL_END) return;
    begin_chunk(g, c, out);
    g->shape->chunks->put_delta(g, c, d, out);
    end_chunk(g, c, out);
    buf_puts(out, "}\n\n");
    clear_logprobs(c);
}

void chunks_flush(struct generation *g, struct choice *c, struct buf *out)
{
    static const struct rd_delta nothing = {.type = RD_DELTA_CONTENT, .text = "", .id = ""};

    if (g->streaming && c->logprobs.n) chunks_delta(g, c, &nothing, out);
}

void chunks_progress(struct generation *g, struct choice *c, bool begins, struct buf *out)
{
    static const struct rd_delta nothing = {.type = RD_DELTA_CONTENT, .text = "", .id = ""};

    begin_chunk(g, c, out);
    g->shape->chunks->put_delta(g, c, &nothing, out);
    end_chunk(g, c, out);
    answer_put_progress(g, c, begins, out);
    buf_puts(out, "}\n\n");
}

void chunks_finish(struct generation *g, struct choice *c, struct buf *out)
{
    if (g->p.has_prompt_logprobs) answer_keep_prompt_logprobs(g, c);
    if (!g->streaming && g->p.return_token_ids && g->p.n_prompts > 1) put_ids(c, &c->prompt_ids);
    if (!g->streaming) return;
    begin_chunk(g, c, out);
    g->shape->chunks->put_finish(g, c, out);
    end_chunk(g, c, out);
    put_diagnostics(g, out);
    buf_puts(out, ",\"timings\":");
    answer_put_timings(&c->usage, out);
    buf_puts(out, "}\n\n");
}

void chunks_end(struct generation *g, struct buf *out)
{
    if (g->p.include_usage) {
        buf_puts(out, "data: ");
        put_frame(g, g->shape->chunks->chunk_object, out);
        buf_puts(out, "],\"usage\":");
        put_usage(g, out);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

void chunks_error(struct generation *g, const struct api_error *e, struct buf *out)
{
    (void)g;
    buf_puts(out, "data: ");
    dialect_openai.put_error(e, out);
    buf_puts(out, "\n\ndata: [DONE]\n\n");
}

/* Mean log probability per token: higher is better. */
static double score(const struct choice *c)
{
    return c->usage.n_generated ? c->sum_logprob / c->usage.n_generated : 0;
}

/* Of each prompt's best_of choices the n best move to the front, in the order of their scores. */
static void choose_best(struct generation *g)
{
    uint32_t per = (uint32_t)g->p.best_of;

    if (g->p.best_of == g->p.n) return;
    for (uint32_t first = 0; first < g->n_choices; first += per) {
        struct rd_usage prompt_usage = g->choices[first].usage;

        for (uint32_t i = 0; i < (uint32_t)g->p.n; i++) {
            uint32_t best = first + i;
            struct choice swap;

            for (uint32_t k = best + 1; k < first + per; k++)
                if (score(&g->choices[k]) > score(&g->choices[best])) best = k;
            swap = g->choices[first + i];
            g->choices[first + i] = g->choices[best];
            g->choices[best] = swap;
            g->choices[first + i].index = first / per * (uint32_t)g->p.n + i;
        }
        g->choices[first].usage.n_cached = prompt_usage.n_cached; /* usage tells what the first to run found */
    }
}

void chunks_whole(struct generation *g, struct buf *out)
{
    bool first = true;

    choose_best(g);
    put_frame(g, g->shape->chunks->object, out);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];

        if (i % (uint32_t)g->p.best_of >= (uint32_t)g->p.n) continue;
        buf_printf(out, "%s{\"index\":%u,", first ? "" : ",", c->index);
        g->shape->chunks->put_whole(g, c, out);
        put_token_ids(g, c, out);
        buf_puts(out, "}");
        first = false;
    }
    buf_putc(out, ']');
    put_prompt_ids(g, &g->choices[0], true, out);
    if (g->p.chat) answer_put_prompt_logprobs(g, &g->choices[0], out);
    buf_puts(out, ",\"usage\":");
    put_usage(g, out);
    put_diagnostics(g, out);
    buf_puts(out, ",\"timings\":");
    answer_put_timings(&g->choices[0].usage, out);
    buf_puts(out, "}");
}
