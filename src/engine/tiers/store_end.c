/* engine/tiers/store_end.c - ends are staged, written, found and read. */
#include "engine/tiers/store_end.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define MIN_STAGED       2u
#define MAX_STAGED       64u
#define SHARE_OF_STAGING 8u /* beside the pages' own: an eighth of it */

void store_end_init(struct store_link *l, uint32_t state_bytes)
{
    struct end_staging *s = &l->ends;
    uint64_t n_bytes = l->o.page_bytes + state_bytes;

    if (state_bytes == 0) return;
    s->n_jobs = (uint32_t)u64_min(u64_max(l->o.staging_bytes / SHARE_OF_STAGING / n_bytes, MIN_STAGED), MAX_STAGED);
    s->jobs = mem_zalloc(s->n_jobs, sizeof(*s->jobs));
    s->tokens = mem_alloc((size_t)s->n_jobs * l->o.page_tokens, sizeof(*s->tokens));
    s->staging_bytes = s->n_jobs * n_bytes;
    s->staging = mem_map(s->staging_bytes);
    if (!s->jobs || !s->tokens || !s->staging) {
        store_end_deinit(l);
        return;
    }
    for (uint32_t i = 0; i < s->n_jobs; i++) {
        s->jobs[i].bytes = s->staging + i * n_bytes;
        s->jobs[i].tokens = s->tokens + (size_t)i * l->o.page_tokens;
        s->jobs[i].next = s->free_jobs;
        s->free_jobs = &s->jobs[i];
    }
    s->state_bytes = state_bytes;
}

void store_end_deinit(struct store_link *l)
{
    struct end_staging *s = &l->ends;

    mem_free(s->jobs);
    mem_free(s->tokens);
    if (s->staging) mem_unmap(s->staging, s->staging_bytes);
    *s = (struct end_staging){0};
}

static struct store_space *space_of(struct engine *e, struct request *r)
{
    struct store_link *l = e->o.store;

    if (!r->store.end_space)
        r->store.end_space = store_link_name_space(e, &r->p.space, END_SUFFIX, l->o.page_bytes + l->ends.state_bytes);
    return r->store.end_space;
}

/* The digests of an end of t tokens behind the page with digest before (NULL: there is none). */
static void make_end(struct store_link *l, struct store_space *space, const struct hash128 *before, const kv_key *keys,
                     uint32_t t, struct store_end *out)
{
    uint32_t tokens[2 * LIMIT_STORE_PAGE_TOKENS], P = l->o.page_tokens, i = before ? 1 : 0;

    out->space = space;
    out->t = t;
    out->is_first = !before;
    out->digests[0] = before ? *before : (struct hash128){0, 0};
    for (uint32_t k = 0; k < P; k++) tokens[i * P + k] = k < t ? keys[k] : KV_NO_KEY;
    page_store_chain(l->store, space, tokens, i, i + 1, before ? out->digests : out->digests + 1);
    memcpy(out->tokens, tokens + i * P, P * sizeof(*tokens));
}

bool store_end_find(struct engine *e, struct request *r, uint32_t n, uint32_t n_least, struct store_end *out)
{
    struct store_link *l = e->o.store;
    uint32_t P = l->o.page_tokens, n_keys = r->seq.n_keys, t = u32_min(n_keys - n * P, P - 1);
    struct store_space *space = l->ends.state_bytes ? space_of(e, r) : NULL;

    if (!space) return false;
    for (;; t--) {
        /* an end of no tokens has nothing but the state, for a text that ends there */
        if (n * P + t <= n_least || (t == 0 && (n == 0 || n_keys != n * P))) return false;
        make_end(l, space, n ? &l->digests[n - 1] : NULL, r->seq.keys + (size_t)n * P, t, out);
        if (page_store_find(l->store, &out->digests[1], 1) == 1) return true;
        if (t == 0) return false;
    }
}

/* Under the lock. */
static void free_job(struct store_link *l, struct save_job *job)
{
    page_store_unref(l->store, job->space);
    job->space = NULL;
    job->next = l->ends.free_jobs;
    l->ends.free_jobs = job;
}

void store_end_save(struct engine *e, struct request *r, const void *state)
{
    struct store_link *l = e->o.store;
    uint32_t n = r->seq.n_computed, P = e->o.page_tokens, t = n % P;
    struct store_space *space;
    struct store_end end;
    struct save_job *job;

    if (!l || !l->ends.state_bytes || !store_link_keeps(e, r) || n == r->store.end_at || n == 0) return;
    if (r->store.n_saved != n / P || !(space = space_of(e, r))) return; /* its pages had no room: nor has it */
    make_end(l, space, r->store.n_saved ? &r->store.last : NULL, r->seq.keys + (n - t), t, &end);
    r->store.end_at = n;
    if (page_store_find(l->store, &end.digests[1], 1) == 1) return;
    mutex_lock(&l->lock);
    job = l->ends.free_jobs;
    if (job) l->ends.free_jobs = job->next;
    mutex_unlock(&l->lock);
    if (!job) return;
    job->space = page_store_ref(l->store, space);
    job->is_first = end.is_first;
    memcpy(job->digests, end.digests, sizeof(job->digests));
    memcpy(job->tokens, end.tokens, P * sizeof(*job->tokens));
    if (t == 0) memset(job->bytes, 0, l->o.page_bytes);
    if (t > 0 && store_page_out(e, r->seq.pages[n / P], job->bytes) != RD_OK) {
        mutex_lock(&l->lock);
        free_job(l, job);
        mutex_unlock(&l->lock);
        return;
    }
    memcpy((uint8_t *)job->bytes + l->o.page_bytes, state, l->ends.state_bytes);
    mutex_lock(&l->lock);
    job->next = l->ends.waiting;
    l->ends.waiting = job;
    l->ends.n_waiting++;
    cond_signal(&l->save_bell);
    mutex_unlock(&l->lock);
}

void store_end_forget(struct store_link *l)
{
    for (struct save_job *job = l->ends.waiting, *next; job; job = next) {
        next = job->next;
        free_job(l, job);
    }
    l->ends.waiting = NULL;
    l->ends.n_waiting = 0;
}

void store_end_write(struct store_link *l, bool all)
{
    struct save_job *job, *next;

    mutex_lock(&l->lock);
    job = all || l->ends.n_waiting * 2 >= l->ends.n_jobs ? l->ends.waiting : NULL;
    if (job) l->ends.waiting = NULL, l->ends.n_waiting = 0;
    mutex_unlock(&l->lock);
    for (; job; job = next) {
        next = job->next;
        (void)page_store_put(l->store, job->space, job->is_first ? &job->digests[1] : job->digests, !job->is_first,
                             job->tokens, job->bytes);
        mutex_lock(&l->lock);
        free_job(l, job);
        mutex_unlock(&l->lock);
    }
}

bool store_end_read(struct store_link *l, const struct store_end *end, void *bytes)
{
    uint32_t tokens[2 * LIMIT_STORE_PAGE_TOKENS], P = l->o.page_tokens, i = end->is_first ? 0 : 1;

    memcpy(tokens + i * P, end->tokens, P * sizeof(*tokens));
    return page_store_read(l->store, end->space, end->is_first ? &end->digests[1] : end->digests, tokens, i, i + 1,
                           &bytes, &l->stop) == 1;
}
