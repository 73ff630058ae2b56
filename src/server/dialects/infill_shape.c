/* server/dialects/infill_shape.c - llama-server's answer to /infill: {content, stop, ...}, streamed as data lines of it. */
#include <string.h>
#include "base/mem.h"
#include "server/dialects/answer_parts.h"
#include "server/dialects/dialect.h"
#include "server/dialects/shapes.h"
#include "server/params/json_out.h"

void infill_state_destroy(void *state)
{
    struct infill_state *s = state;

    if (!s) return;
    buf_deinit(&s->text);
    mem_free(s);
}

static void put_content(const char *s, size_t n, bool stop, const struct choice *c, struct buf *out)
{
    buf_puts(out, "{\"index\":0,\"content\":");
    json_put_string(out, n ? s : "", n);
    buf_printf(out, ",\"tokens\":[],\"id_slot\":-1,\"stop\":%s,\"tokens_predicted\":%u,\"tokens_evaluated\":%u",
               stop ? "true" : "false", c->usage.n_generated, c->usage.n_prompt);
}

static void put_last(const struct generation *g, struct choice *c, const struct buf *text, struct buf *out)
{
    const char *model = generation_model(g);
    const struct rd_usage *u = &c->usage;

    put_content(text->data, text->n, true, c, out);
    buf_puts(out, ",\"model\":");
    json_put_string(out, model, strlen(model));
    buf_printf(out, ",\"stop_type\":\"%s\",\"stopping_word\":",
               c->finish == RD_FINISH_LENGTH ? "limit"
               : c->stop_string              ? "word"
                                             : "eos");
    json_put_string(out, c->stop_string ? c->stop_string : "", c->stop_string ? strlen(c->stop_string) : 0);
    buf_printf(out, ",\"truncated\":false,\"tokens_cached\":%u,\"timings\":{\"cache_n\":%u,\"prompt_n\":%u",
               u->n_cached, u->n_cached, u->n_prompt - u->n_cached);
    json_put_field(out, "prompt_ms", u->prompt_ms);
    buf_printf(out, ",\"predicted_n\":%u", u->n_generated);
    json_put_field(out, "predicted_ms", u->predicted_ms);
    buf_puts(out, "}");
    answer_put_collected(g, c, "completion_probabilities", out);
    buf_puts(out, "}");
}

static void infill_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    struct infill_state *s = g->state;

    if (d->text_bytes == 0) return;
    if (!g->streaming) {
        buf_append(&s->text, d->text, d->text_bytes);
        if (s->text.failed) out->failed = true;
        return;
    }
    buf_puts(out, "data: ");
    put_content(d->text, d->text_bytes, false, c, out);
    answer_put_collected(g, c, "completion_probabilities", out);
    buf_puts(out, "}\n\n");
}

static void infill_finish(struct generation *g, struct choice *c, struct buf *out)
{
    const struct infill_state *s = g->state;

    if (!g->streaming) return;
    buf_puts(out, "data: ");
    put_last(g, c, &s->text, out);
    buf_puts(out, "\n\n");
}

static void infill_whole(struct generation *g, struct buf *out)
{
    struct choice *c = &g->choices[0];
    const struct infill_state *s = g->state;

    put_last(g, c, &s->text, out);
}

static void infill_error(struct generation *g, const struct api_error *e, struct buf *out)
{
    (void)g;
    buf_puts(out, "data: ");
    dialect_openai.put_error(e, out);
    buf_puts(out, "\n\n");
}

const struct response_shape infill_shape = {.id_prefix = "infill_",
                                            .media = "text/event-stream",
                                            .ping = ": ping\n\n",
                                            .collect = answer_collect_ids,
                                            .delta = infill_delta,
                                            .finish = infill_finish,
                                            .whole = infill_whole,
                                            .error = infill_error,
                                            .destroy = infill_state_destroy};
