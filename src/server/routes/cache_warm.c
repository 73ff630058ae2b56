/* server/routes/cache_warm.c - POST /v1/cache/warm: the prompt of a body of any API that generates is computed into the tree, as
 * /v1/cache/explain takes it; nothing is generated.
 *
 * It runs as --warm's prompts do: only while nothing else is to do, a small piece at a time, so that whoever comes does not
 * wait for it. Several prompts of completions are all computed. A client that leaves ends it; what was computed stays.
 */
#include "base/mem.h"
#include "server/dialects/generation.h"
#include "server/dialects/request_body.h"
#include "server/params/json_out.h"
#include "server/routes/routes.h"

static void warm_options(struct generation *g, struct choice *c, struct rd_request_options *o)
{
    (void)g, (void)c;
    o->max_tokens = 0;
    o->idle = true;
    o->cache_prompt = true;
    o->context_shift = -1; /* a prompt that does not fit is an error, not another prompt */
    o->logprobs = o->prompt_logprobs = false;
    o->n_top_logprobs = 0;
    o->min_tokens = 0;
}

static void warm_finish(struct generation *g, struct choice *c, struct buf *out)
{
    (void)g, (void)c, (void)out;
}

static void warm_whole(struct generation *g, struct buf *out)
{
    uint64_t n_prompt = 0, n_cached = 0, n_disk = 0;

    for (uint32_t i = 0; i < g->n_choices; i++) {
        n_prompt += g->choices[i].usage.n_prompt;
        n_cached += g->choices[i].usage.n_cached;
        n_disk += g->choices[i].usage.n_disk;
    }
    buf_printf(out,
               "{\"object\":\"cache.warmed\",\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"computed_tokens\":%llu,"
               "\"disk_tokens\":%llu}",
               (unsigned long long)n_prompt, (unsigned long long)n_cached, (unsigned long long)(n_prompt - n_cached),
               (unsigned long long)n_disk);
}

static const struct response_shape warm_shape = {
    .id_prefix = "warm-", .options = warm_options, .finish = warm_finish, .whole = warm_whole};

/* What would be generated, and how, is as if it were not there. */
static void drop_answer(struct gen_params *p)
{
    mem_free(p->grammar);
    p->grammar = NULL;
    p->n_grammar = 0;
    p->grammar_kind = RD_GRAMMAR_NONE;
    p->stream = p->echo = p->logprobs = p->has_prompt_logprobs = p->return_progress = false;
    p->n = p->best_of = 1;
    p->top_logprobs = p->min_tokens = p->max_tokens = 0;
}

void route_cache_warm(struct http_conn *c)
{
    struct gen_params p = {0};
    struct api_error e;
    json_t *in = NULL;
    int rc = request_reserve_texts(c, &e) || request_json(c, &in, &e) ? -1 : 0;

    if (rc == 0) rc = cache_read_any(c, in, &p, &e);
    json_decref(in);
    if (rc == 0) {
        drop_answer(&p);
        generation_start(c, &warm_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}
