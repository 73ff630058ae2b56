/* api/api_shift.c - a context that goes on when it is full: the oldest tokens behind a kept head are dropped, and what is
 * left is the prompt of a request that goes on where the one before ended.
 *
 *     head | oldest half of the rest | newest half         the sequence has reached the context's end
 *     head |                           newest half | ...   the prompt of the next, computed as any other
 *
 * The engine knows nothing of it: each part is a request of its own, whose tokens are a prefix of nothing longer, so what it
 * stores is right for whoever sends those tokens (promise 1). What the parts have in common is carried from here: the
 * grammar and the budget of thinking are given again what was generated so far; text, stop strings and calls are of the
 * consumer's side anyway. Penalties see what the shorter prompt holds.
 *
 * A prompt with images does not shift: its rows are whole images at places that are known, and half of one is none. Such a request
 * ends where its context does, or is told that it is too long.
 */
#include <string.h>
#include "api/api_state.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/random.h"

bool api_shift_is_on(const rd_engine *engine, const struct rd_request_options *o)
{
    bool on = o->context_shift > 0 || (o->context_shift == 0 && engine->context_shift);

    return on && o->max_tokens > 0 && !o->embed && !o->prompt_logprobs;
}

/* How many of n tokens are dropped behind the first n_keep: half of the rest. */
static uint32_t n_to_drop(uint32_t n, uint32_t n_keep)
{
    return u32_max((n - n_keep) / 2, 1);
}

static void drop_behind(int32_t *tokens, uint32_t *n, uint32_t n_keep, uint32_t n_drop)
{
    memmove(tokens + n_keep, tokens + n_keep + n_drop, (size_t)(*n - n_keep - n_drop) * sizeof(*tokens));
    *n -= n_drop;
}

static bool has_images(const int32_t *tokens, uint32_t n)
{
    const kv_key *keys = token_keys(tokens);

    while (n > 0 && key_is_token(keys[n - 1])) n--;
    return n > 0;
}

void api_shift_begin(struct rd_request *r, int32_t *tokens, uint32_t *n)
{
    struct api_shift *s = &r->shift;
    uint32_t n_max = engine_max_prompt(r->engine->engine), n_keep = r->o.n_keep;

    if (has_images(tokens, *n)) return;
    if (n_keep == RD_KEEP_HEAD) n_keep = r->o.messages_json ? api_head_tokens(r->engine, &r->o, tokens, *n) : 1;
    s->n_keep = u32_min(u32_min(n_keep, *n), n_max / 2);
    s->n_wanted = r->o.max_tokens == RD_NO_LIMIT ? r->engine->info.n_ctx : r->o.max_tokens;
    s->is_on = true;
    if (*n <= n_max) return;
    s->n_dropped = *n - (n_max - n_to_drop(n_max, s->n_keep));
    drop_behind(tokens, n, s->n_keep, s->n_dropped);
}

bool api_shift_is_due(const struct rd_request *r)
{
    const struct request *q = r->request;

    return r->shift.is_on && q->finish == REQUEST_LENGTH && q->n_generated < q->p.max_tokens && !api_output_is_cut(r) &&
           !atomic_load(&r->cancelled);
}

/* What the part that ended has generated: its keys behind the prompt, and the token that had no room. */
static rd_status note_generated(struct rd_request *r)
{
    const struct kv_seq *seq = &r->request->seq;
    uint32_t n_new = seq->n_keys - r->request->n_prompt + 1;
    struct api_shift *s = &r->shift;
    void *list = s->generated;

    if (!mem_grow(&list, &s->cap_generated, (size_t)s->n_generated + n_new, sizeof(*s->generated))) return RD_E_NOMEM;
    s->generated = list;
    memcpy(s->generated + s->n_generated, seq->keys + r->request->n_prompt, (n_new - 1) * sizeof(*s->generated));
    s->generated[s->n_generated + n_new - 1] = s->last_token;
    s->n_generated += n_new;
    return RD_OK;
}

static void add_usage(struct request_usage *sum, const struct request_usage *u)
{
    sum->n_generated += u->n_generated;
    sum->n_drafted += u->n_drafted;
    sum->n_draft_accepted += u->n_draft_accepted;
    sum->n_forced += u->n_forced;
}

/* The next part takes the place of the one that ended; the first one stays, which has the prompt. */
static struct request *swap(struct rd_request *r, struct request *next)
{
    struct request *old = r->request;

    mutex_lock(&r->lock);
    r->request = next;
    mutex_unlock(&r->lock);
    if (atomic_load(&r->cancelled)) request_cancel(next, CANCEL_GONE);
    return old;
}

static rd_status submit_next(struct rd_request *r, struct request *next, uint32_t n_drop)
{
    struct api_shift *s = &r->shift;
    struct request *old;
    rd_status st;

    atomic_store(&s->last_wake, false);
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed); /* the engine's, until the last wake */
    engine_keep_place(r->engine->engine);
    old = swap(r, next);
    st = engine_submit(r->engine->engine, next);
    if (st != RD_OK) {
        engine_give_place(r->engine->engine);
        atomic_fetch_sub_explicit(&r->refs, 1, memory_order_relaxed);
        request_unref(swap(r, old));
        return st;
    }
    add_usage(&s->sum, &old->usage);
    s->n_shifts++;
    s->n_dropped += n_drop;
    if (s->first)
        request_unref(old);
    else
        s->first = old;
    return RD_OK;
}

rd_status api_shift_go_on(struct rd_request *r)
{
    const struct kv_seq *seq = &r->request->seq;
    struct api_shift *s = &r->shift;
    uint32_t n = seq->n_keys + 1, n_drop = n_to_drop(n, s->n_keep);
    int32_t *tokens = mem_alloc(n, sizeof(*tokens));
    struct request_params p = {0};
    struct request *next = NULL;
    rd_status st = tokens ? note_generated(r) : RD_E_NOMEM;

    if (st == RD_OK) {
        memcpy(tokens, seq->keys, seq->n_keys * sizeof(*tokens));
        tokens[n - 1] = s->last_token;
        drop_behind(tokens, &n, s->n_keep, n_drop);
        st = api_request_params(r, tokens, n, s->thinks, &p, NULL);
    }
    if (st == RD_OK) st = api_form_fill(r, (enum api_thinking)s->thinks, false, &p.constraint, NULL); /* it is known */
    if (st == RD_OK) {
        p.continues = true;
        p.max_tokens = s->n_wanted - s->n_generated;
        p.min_tokens -= u32_min(p.min_tokens, s->n_generated);
        p.sampling.seed = random_at(p.sampling.seed, s->n_shifts + 1); /* positions come again, draws must not */
        p.primed = s->generated;
        p.n_primed = s->n_generated;
        st = request_create(&p, engine_cache(r->engine->engine), r->engine->info.n_vocab, tokens, n, &next, NULL);
        if (st == RD_OK) next->id = r->request->id; /* to those who look at it, it is the same */
    }
    grammar_unref(p.constraint.grammar);
    mem_free(tokens);
    if (st != RD_OK) return st;
    next->id = r->request->id;
    return submit_next(r, next, n_drop);
}

const struct request *api_shift_first(const struct rd_request *r)
{
    return r->shift.first ? r->shift.first : r->request;
}

void api_shift_deinit(struct rd_request *r)
{
    request_unref(r->shift.first);
    mem_free(r->shift.generated);
}
