/* server/dialects/answer_parts.c - see the header. */
#include "server/dialects/answer_parts.h"
#include <string.h>
#include "base/clock.h"
#include "server/params/json_out.h"

/* {"token":..,"logprob":..,"bytes":[..], without its closing brace; with_id: "id" before them. */
static void put_token(const struct generation *g, int32_t token, float logprob, bool with_id, struct buf *out)
{
    size_t n = 0;
    const char *s = rd_token_bytes(g->served->engine, token, &n);

    buf_putc(out, '{');
    if (with_id) buf_printf(out, "\"id\":%d,", token);
    buf_puts(out, "\"token\":");
    json_put_string(out, s, n);
    json_put_field(out, "logprob", (double)logprob);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) buf_printf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)s[i]);
    buf_puts(out, "]");
}

static void collect(struct generation *g, struct choice *c, const struct rd_event *ev, bool with_id)
{
    struct buf *out = &c->logprobs;

    if (!ev) return; /* there is no echo */
    if (out->n) buf_putc(out, ',');
    put_token(g, ev->token, ev->logprob, with_id, out);
    buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < ev->n_top && i < (uint32_t)g->p.top_logprobs; i++) {
        if (i) buf_putc(out, ',');
        put_token(g, ev->top[i].token, ev->top[i].logprob, with_id, out);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

void answer_collect_tokens(struct generation *g, struct choice *c, const struct rd_event *ev)
{
    collect(g, c, ev, false);
}

void answer_collect_ids(struct generation *g, struct choice *c, const struct rd_event *ev)
{
    collect(g, c, ev, true);
}

void answer_put_collected(const struct generation *g, struct choice *c, const char *name, struct buf *out)
{
    if (!g->p.logprobs || (g->streaming && c->logprobs.n == 0)) return;
    buf_printf(out, ",\"%s\":[", name);
    buf_append(out, c->logprobs.data, c->logprobs.n);
    buf_puts(out, "]");
    buf_clear(&c->logprobs);
}

const char *answer_finish_text(const struct choice *c)
{
    if (c->finish == RD_FINISH_LENGTH) return "length";
    return c->n_calls ? "tool_calls" : "stop";
}

void answer_put_stop_reason(const struct choice *c, struct buf *out)
{
    buf_puts(out, "\"stop_reason\":");
    if (c->stop_string)
        json_put_string(out, c->stop_string, strlen(c->stop_string));
    else if (c->stop_token >= 0)
        buf_printf(out, "%d", c->stop_token);
    else
        buf_puts(out, "null");
}

void answer_put_prompt(struct generation *g, const struct choice *c, struct buf *out)
{
    const struct prompt *prompt = &g->p.prompts[c->prompt_index];
    char *text = NULL;
    size_t n = 0;

    if (prompt->text) {
        buf_append(out, prompt->text, prompt->n_text);
        return;
    }
    if (rd_detokenize(g->served->engine, prompt->tokens, prompt->n_tokens, true, &text, &n, NULL) == RD_OK)
        buf_append(out, text, n);
    else
        out->failed = true;
    rd_free(text);
}

static void put_ranked(const struct generation *g, const struct rd_logprob *t, uint32_t rank, struct buf *out)
{
    size_t n = 0;
    const char *s = rd_token_bytes(g->served->engine, t->token, &n);

    buf_printf(out, "\"%d\":{\"logprob\":", t->token);
    json_put_number(out, (double)t->logprob);
    buf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
    json_put_string(out, s, n);
    buf_putc(out, '}');
}

void answer_keep_prompt_logprobs(const struct generation *g, struct choice *c)
{
    uint32_t n, n_ranks, stride = generation_n_top(g), n_top = (uint32_t)g->p.prompt_logprobs;
    const struct rd_logprob *top, *own = rd_request_prompt_logprobs(c->request, &top, &n);
    const uint32_t *ranks = rd_request_prompt_ranks(c->request, &n_ranks);
    struct buf *out = &c->prompt_logprobs;

    if (!own || !ranks) return;
    buf_puts(out, "[null");
    for (uint32_t i = 1; i < n; i++) {
        buf_puts(out, ",{");
        put_ranked(g, &own[i], ranks[i], out);
        for (uint32_t k = 0; k < n_top; k++) {
            const struct rd_logprob *t = &top[(size_t)i * stride + k];

            if (t->token == own[i].token) continue;
            buf_putc(out, ',');
            put_ranked(g, t, k + 1, out);
        }
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

void answer_put_prompt_logprobs(const struct generation *g, const struct choice *c, struct buf *out)
{
    uint32_t first = c->prompt_index * (uint32_t)g->p.best_of;

    for (uint32_t i = first; g->p.has_prompt_logprobs && i < first + (uint32_t)g->p.best_of; i++) {
        const struct buf *list = &g->choices[i].prompt_logprobs;

        if (!list->n) continue;
        buf_puts(out, ",\"prompt_logprobs\":");
        buf_append(out, list->data, list->n);
        return;
    }
}

void answer_put_points(const struct choice *c, struct buf *out)
{
    uint32_t n, pointer = 0;
    const struct rd_point *p = rd_request_points(c->request, &n);

    if (n == 0) return;
    buf_puts(out, ",\"pointers\":[{\"points\":[");
    for (uint32_t i = 0; i < n; i++) {
        const bool begins = i == 0 || p[i - 1].pointer != p[i].pointer;

        for (; pointer < p[i].pointer; pointer++) buf_puts(out, "]},{\"points\":[");
        buf_puts(out, begins ? "{\"x\":" : ",{\"x\":");
        json_put_number(out, p[i].x);
        json_put_field(out, "y", p[i].y);
        json_put_field(out, "score", p[i].score);
        buf_printf(out, ",\"image\":%u}", p[i].image);
    }
    buf_puts(out, "]}]");
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Lines of the system prompt that the model did not get. */
static void put_left_out(const char *lines, struct buf *out)
{
    bool first = true;

    if (!lines) return;
    buf_puts(out, ",\"left_out\":[");
    for (const char *end; (end = strchr(lines, '\n')); lines = end + 1, first = false) {
        buf_puts(out, first ? "\"" : ",\"");
        buf_put_json(out, lines, (size_t)(end - lines));
        buf_putc(out, '"');
    }
    buf_putc(out, ']');
}

void answer_put_timings(const struct rd_usage *u, struct buf *out)
{
    uint32_t n = u->n_prompt - u->n_cached;

    buf_printf(out, "{\"cache_n\":%u,\"prompt_n\":%u", u->n_cached, n);
    json_put_field(out, "prompt_ms", u->prompt_ms);
    json_put_field(out, "prompt_per_token_ms", ratio(u->prompt_ms, n));
    json_put_field(out, "prompt_per_second", ratio(n * 1e3, u->prompt_ms));
    buf_printf(out, ",\"predicted_n\":%u", u->n_generated);
    json_put_field(out, "predicted_ms", u->predicted_ms);
    json_put_field(out, "predicted_per_token_ms", ratio(u->predicted_ms, u->n_generated));
    json_put_field(out, "predicted_per_second", ratio(u->n_generated * 1e3, u->predicted_ms));
    json_put_field(out, "queue_ms", u->queue_ms);
    if (u->n_ram) buf_printf(out, ",\"cache_ram_n\":%u", u->n_ram);
    if (u->n_disk) buf_printf(out, ",\"cache_disk_n\":%u", u->n_disk);
    if (u->n_shared) buf_printf(out, ",\"cache_shared_n\":%u", u->n_shared);
    if (u->n_lossy) buf_printf(out, ",\"cache_lossy_n\":%u", u->n_lossy);
    if (u->n_joined) buf_printf(out, ",\"cache_joined_n\":%u", u->n_joined);
    if (u->n_forced) buf_printf(out, ",\"forced_n\":%u", u->n_forced);
    if (u->n_drafted) buf_printf(out, ",\"draft_n\":%u,\"draft_n_accepted\":%u", u->n_drafted, u->n_draft_accepted);
    if (u->n_dropped) buf_printf(out, ",\"context_shifts\":%u,\"dropped_n\":%u", u->n_shifts, u->n_dropped);
    buf_printf(out, ",\"restored_n\":%u", u->n_restored);
    if (u->n_images) {
        buf_printf(out, ",\"images_n\":%u,\"images_encoded_n\":%u", u->n_images, u->n_images_encoded);
        json_put_field(out, "encoder_ms", u->encoder_ms);
        if (u->n_images_encoded) json_put_field(out, "images_ready_ms", u->images_ready_ms);
    }
    buf_printf(out, ",\"cache_miss\":\"%s\"", rd_miss_cause_name((enum rd_miss_cause)u->miss));
    put_left_out(u->left_out, out);
    buf_puts(out, "}");
}

void answer_put_progress(struct generation *g, struct choice *c, bool begins, struct buf *out)
{
    struct rd_progress p;

    rd_request_progress(c->request, &p);
    if (begins)
        p.n_done = p.n_cached = 0;
    else if (p.n_done == 0)
        p.n_done = p.n_cached = c->usage.n_cached; /* all of it was there */
    g->n_progress = p.n_done;
    buf_printf(out, ",\"prompt_progress\":{\"total\":%u,\"cache\":%u,\"processed\":%u,\"time_ms\":%llu}", p.n_prompt,
               p.n_cached, p.n_done, (unsigned long long)((clock_now_ns(clock_system()) - g->begun_ns) / 1000000));
}
