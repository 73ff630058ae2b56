/* engine/request.c - creation, reference count and token ring of a request. */
#include "engine/request.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"

#define RING_MIN 16u
#define RING_MAX 1024u

static uint32_t ring_capacity(uint32_t max_tokens)
{
    uint32_t cap = RING_MIN;

    while (cap < RING_MAX && cap < max_tokens) cap *= 2;
    return cap;
}

static void request_destroy(struct request *r)
{
    if (!r) return;
    kv_seq_deinit(&r->seq);
    sampler_destroy(r->sampler);
    constraint_deinit(&r->constraint);
    draft_index_destroy(r->draft.own);
    mem_free(r->ring);
    mem_free(r->ring_top);
    mem_free(r->prompt_logprobs);
    mem_free(r->prompt_top);
    mem_free(r->prompt_ranks);
    prefill_result_deinit(&r->prefill);
    mem_free(r->ends);
    mem_free(r->name);
    adapter_mix_unref(r->p.adapters);
    request_images_deinit(&r->images);
    request_pointers_deinit(&r->pointers);
    mem_free(r);
}

/* End and stop tokens as one list: what ends the text, and what min_tokens forbids. */
static rd_status join_ends(struct request *r)
{
    struct request_params *p = &r->p;
    size_t n = (size_t)p->n_end_tokens + p->n_stop_tokens;

    r->ends = mem_alloc(n ? n : 1, sizeof(*r->ends));
    if (!r->ends) return RD_E_NOMEM;
    if (p->n_end_tokens) memcpy(r->ends, p->end_tokens, p->n_end_tokens * sizeof(*r->ends));
    if (p->n_stop_tokens) memcpy(r->ends + p->n_end_tokens, p->stop_tokens, p->n_stop_tokens * sizeof(*r->ends));
    p->stop_tokens = NULL;
    return RD_OK;
}

/* The sampler has its copies. */
static void forget_lists(struct sampler_params *p)
{
    p->bias = NULL;
    p->allowed = NULL;
    p->dry_breakers = NULL;
    p->dry_break_words = p->bad_words = (struct sampler_words){NULL, NULL, 0};
}

static rd_status make_buffers(struct request *r)
{
    r->n_top_cap = r->p.sampling.n_top_logprobs;
    r->ring_cap = ring_capacity(r->p.max_tokens);
    r->ring = mem_zalloc(r->ring_cap, sizeof(*r->ring));
    if (!r->ring) return RD_E_NOMEM;
    if (r->n_top_cap) {
        r->ring_top = mem_zalloc(r->ring_cap, r->n_top_cap * sizeof(*r->ring_top));
        if (!r->ring_top) return RD_E_NOMEM;
    }
    if (!r->p.prompt_logprobs) return RD_OK;
    r->prompt_logprobs = mem_zalloc(r->n_prompt, sizeof(*r->prompt_logprobs));
    r->prompt_top = mem_zalloc((size_t)r->n_prompt * u32_max(r->n_top_cap, 1), sizeof(*r->prompt_top));
    r->prompt_ranks = mem_zalloc(r->n_prompt, sizeof(*r->prompt_ranks));
    return r->prompt_logprobs && r->prompt_top && r->prompt_ranks ? RD_OK : RD_E_NOMEM;
}

rd_status request_create(const struct request_params *p, struct kv_cache *cache, uint32_t n_vocab,
                         const int32_t *tokens, uint32_t n, struct request **out, struct rd_error *err)
{
    struct request *r;
    uint32_t max_keys;
    rd_status st;

    assert(n > 0 && p->max_keys >= n && p->prefill.pool_to <= n);
    assert(p->prefill.pool_to == 0 || (p->max_tokens == 0 && !p->prompt_logprobs && !p->logits_out));
    st = sampler_params_check(&p->sampling, n_vocab, err);
    if (st != RD_OK) return st;
    if (p->n_places > 0 && (p->prompt_logprobs || p->prefill.pool_to > 0))
        return error_set(err, RD_E_UNSUPPORTED, "a prompt with images has no %s",
                         p->prompt_logprobs ? "log probabilities" : "vector");
    r = mem_zalloc(1, sizeof(*r));
    if (!r) return error_set(err, RD_E_NOMEM, "out of memory for a request");
    r->p = *p;
    if (p->label) snprintf(r->label, sizeof(r->label), "%s", p->label);
    r->p.label = NULL;
    r->n_prompt = n;
    r->stop_token = -1;
    atomic_init(&r->refs, 1);
    max_keys = p->max_keys - n < p->max_tokens ? p->max_keys : n + p->max_tokens;

    st = request_images_init(&r->images, p->places, p->n_places, token_keys(tokens), n, p->vision, err);
    r->p.places = NULL;
    if (st != RD_OK) {
        mem_free(r);
        return st;
    }
    st = kv_seq_init(&r->seq, cache, token_keys(tokens), n, max_keys);
    if (st != RD_OK) {
        request_images_deinit(&r->images);
        mem_free(r);
        return error_set(err, st, "out of memory for a sequence of %u tokens", max_keys);
    }
    r->seq.user = r;
    r->seq.wholes = r->images.wholes;
    r->seq.n_wholes = r->images.n;
    (void)adapter_mix_ref(r->p.adapters);
    st = sampler_create(&p->sampling, n_vocab, max_keys, &r->sampler);
    if (st == RD_OK) st = constraint_init(&r->constraint, &p->constraint);
    if (st == RD_OK) st = make_buffers(r);
    if (st == RD_OK) st = join_ends(r);
    if (st == RD_OK && p->name && !(r->name = mem_strdup(p->name))) st = RD_E_NOMEM;
    r->p.name = NULL;
    if (st == RD_OK) st = prefill_result_init(&r->prefill, &p->prefill);
    if (st != RD_OK) {
        request_destroy(r);
        return error_set(err, st, "out of memory for a request");
    }
    for (uint32_t i = 0; i < p->n_primed && st == RD_OK; i++) {
        st = constraint_accept(&r->constraint, p->primed[i]);
        (void)think_budget_next(&r->p.think, p->primed[i]);
    }
    if (st != RD_OK) {
        request_destroy(r);
        return error_set(err, st, "what was generated is not of the form");
    }
    r->p.primed = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (key_is_token(token_keys(tokens)[i])) sampler_accept(r->sampler, tokens[i], true);
    forget_lists(&r->p.sampling);
    r->p.prefill.score_tokens = NULL; /* r->prefill has its copy */
    *out = r;
    return RD_OK;
}

void request_ref(struct request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void request_unref(struct request *r)
{
    /* acq_rel: the last one sees everything that the other did before it let go */
    if (r && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) request_destroy(r);
}

void request_cancel(struct request *r, enum request_cancel why)
{
    int none = CANCEL_NONE;

    atomic_compare_exchange_strong_explicit(&r->cancel, &none, (int)why, memory_order_relaxed, memory_order_relaxed);
}

uint32_t request_ring_room(const struct request *r)
{
    uint32_t pushed = atomic_load_explicit(&r->n_pushed, memory_order_relaxed);
    uint32_t popped = atomic_load_explicit(&r->n_popped, memory_order_seq_cst);

    return r->ring_cap - (pushed - popped);
}

bool request_ring_full(const struct request *r)
{
    return request_ring_room(r) == 0;
}

bool request_push(struct request *r, const struct sampler_result *t)
{
    uint32_t pushed = atomic_load_explicit(&r->n_pushed, memory_order_relaxed);
    uint32_t at = pushed & (r->ring_cap - 1);
    uint32_t n_top = u32_min(t->n_top, r->n_top_cap);

    if (request_ring_full(r)) return false;
    r->ring[at] = (struct token_out){t->token, t->logprob, n_top};
    if (n_top) memcpy(r->ring_top + (size_t)at * r->n_top_cap, t->top, n_top * sizeof(t->top[0]));
    atomic_store_explicit(&r->n_pushed, pushed + 1, memory_order_seq_cst);
    return true;
}

bool request_pop(struct request *r, struct token_out *t, struct token_logprob *top, bool *was_full)
{
    uint32_t popped = atomic_load_explicit(&r->n_popped, memory_order_relaxed);
    uint32_t pushed = atomic_load_explicit(&r->n_pushed, memory_order_acquire);
    uint32_t at = popped & (r->ring_cap - 1);

    *was_full = false;
    if (pushed == popped) return false;
    *t = r->ring[at];
    if (t->n_top) memcpy(top, r->ring_top + (size_t)at * r->n_top_cap, t->n_top * sizeof(top[0]));
    atomic_store_explicit(&r->n_popped, popped + 1, memory_order_seq_cst);
    /* Only now: an engine that filled the ring since our first look may have seen the old n_popped, and sleep. */
    *was_full = atomic_load_explicit(&r->n_pushed, memory_order_seq_cst) - popped >= r->ring_cap;
    return true;
}
