/* engine/tiers/store_save.c - full pages are copied off the engine's hands, then written. */
#include <string.h>
#include "base/checked.h"
#include "engine/tiers/store_end.h"
#include "engine/tiers/store_link.h"
#include "engine/tiers/store_shared.h"

/* ---- engine thread ---- */

static struct save_job *take_job(struct store_link *l)
{
    struct save_job *job;

    mutex_lock(&l->lock);
    job = l->free_jobs;
    if (job) l->free_jobs = job->next;
    mutex_unlock(&l->lock);
    return job;
}

static void push_job(struct store_link *l, struct save_job *job)
{
    job->next = NULL;
    mutex_lock(&l->lock);
    *(l->save_tail ? &l->save_tail->next : &l->save_head) = job;
    l->save_tail = job;
    cond_signal(&l->save_bell);
    mutex_unlock(&l->lock);
}

void store_save_free(struct store_link *l, struct save_job *job)
{
    page_store_unref(l->store, job->space);
    job->space = NULL;
    job->next = l->free_jobs;
    l->free_jobs = job;
}

static void put_back(struct store_link *l, struct save_job *job)
{
    mutex_lock(&l->lock);
    store_save_free(l, job);
    mutex_unlock(&l->lock);
}

rd_status store_page_out(struct engine *e, kv_page id, void *to)
{
    if (!e->o.executor.page) return e->o.executor.page_out(e->o.executor.self, id, to);
    memcpy(to, e->o.executor.page(e->o.executor.self, id), e->o.executor.page_bytes);
    return RD_OK;
}

/* The digest of r's page i; r->store.last is that of the page before it. */
static struct hash128 next_digest(struct store_link *l, const struct request *r, uint32_t i)
{
    struct hash128 pair[2] = {r->store.last, {0, 0}};
    uint32_t P = l->o.page_tokens;

    if (i == 0)
        page_store_chain(l->store, r->store.space, r->seq.keys, 0, 1, &pair[1]);
    else
        page_store_chain(l->store, r->store.space, r->seq.keys + (size_t)(i - 1) * P, 1, 2, pair);
    return pair[1];
}

/* Digests of the page before, and of the page: on disk, and in the shared store. */
struct page_names {
    struct hash128 disk[2], shared[2];
};

/* Page i of a chain, of the keys and in the namespace where it is stored. False: no staging room. */
static bool stage_page(struct engine *e, struct store_space *space, kv_page page, uint32_t i, const kv_key *keys,
                       const struct page_names *names)
{
    struct store_link *l = e->o.store;
    struct save_job *job = space ? take_job(l) : NULL;

    if (!job) return false;
    if (store_page_out(e, page, job->bytes) != RD_OK) { /* the device failed: the next step will say so */
        put_back(l, job);
        return false;
    }
    job->is_packed = store_link_packs(l, i);
    job->space = page_store_ref(l->store, space);
    job->is_first = i == 0;
    memcpy(job->digests, names->disk, sizeof(job->digests));
    memcpy(job->shared, names->shared, sizeof(job->shared));
    memcpy(job->tokens, keys, l->o.page_tokens * sizeof(*job->tokens));
    push_job(l, job);
    l->counts.n_staged++;
    return true;
}

static bool stage(struct engine *e, struct request *r, uint32_t i, const struct page_names *names)
{
    struct store_link *l = e->o.store;
    struct store_space *space = store_link_packs(l, i) ? store_link_packed_space(e, r) : r->store.space;

    return stage_page(e, space, r->seq.pages[i], i, r->seq.keys + (size_t)i * l->o.page_tokens, names);
}

bool store_link_keeps(struct engine *e, const struct request *r)
{
    return r->p.cached && r->seq.cached && !r->p.prompt_logprobs && r->seq.state == KV_SEQ_RUNNABLE &&
           !atomic_load_explicit(&e->o.store->is_condemned, memory_order_relaxed);
}

/* Hands over r's full pages that the store does not have; at most this many copies. */
static void save(struct engine *e, struct request *r, uint32_t n_most)
{
    struct store_link *l = e->o.store;
    uint32_t n_full = r->seq.n_computed / l->o.page_tokens;

    if (!store_link_keeps(e, r) || r->store.n_saved >= n_full || !store_link_space(e, r)) return;
    for (; r->store.n_saved < n_full; r->store.n_saved++) {
        struct page_names names = {.disk = {r->store.last, next_digest(l, r, r->store.n_saved)}};

        if (l->shared) {
            names.shared[0] = r->store.n_saved ? r->store.shared_last : store_shared_seed(l, r->store.space);
            names.shared[1] =
                store_shared_next(l, names.shared[0], r->seq.keys + (size_t)r->store.n_saved * l->o.page_tokens);
        }
        if (page_store_find(l->store, &names.disk[1], 1) == 0) {
            if (!atomic_load_explicit(&l->is_writable, memory_order_relaxed)) return;
            if (n_most == 0 || !stage(e, r, r->store.n_saved, &names)) return;
            n_most--;
            store_shared_note(l, names.disk[1], clock_now_ns(e->o.clock));
        }
        r->store.last = names.disk[1];
        r->store.shared_last = names.shared[1];
    }
}

uint32_t store_link_save_path(struct engine *e, const struct kv_space *kv_space, const kv_key *keys,
                              const kv_page *pages, uint32_t n, uint64_t *n_missing)
{
    struct store_link *l = e->o.store;
    uint32_t n_full = l ? u32_min(n / l->o.page_tokens, l->o.max_pages) : 0, n_left = 0;
    struct store_space *space, *packed = NULL;
    struct page_names names = {0};

    if (n_full == 0 || atomic_load_explicit(&l->is_condemned, memory_order_relaxed)) return n_full;
    space = store_link_name_space(e, kv_space, "", l->o.page_bytes);
    if (!space) return n_full;
    if (l->o.lossy_from > 0) packed = store_link_name_space(e, kv_space, PACKED_SUFFIX, l->o.packed_bytes);
    page_store_chain(l->store, space, keys, 0, n_full, l->digests);
    if (l->shared) names.shared[1] = store_shared_seed(l, space);
    for (uint32_t i = 0; i < n_full; i++) {
        names.disk[0] = i > 0 ? l->digests[i - 1] : (struct hash128){0, 0};
        names.disk[1] = l->digests[i];
        names.shared[0] = names.shared[1];
        if (l->shared) names.shared[1] = store_shared_next(l, names.shared[0], keys + (size_t)i * l->o.page_tokens);
        if (page_store_find(l->store, &l->digests[i], 1) == 1) continue;
        ++*n_missing;
        n_left += n_left > 0 || !stage_page(e, store_link_packs(l, i) ? packed : space, pages[i], i,
                                            keys + (size_t)i * l->o.page_tokens, &names);
    }
    page_store_unref(l->store, space);
    page_store_unref(l->store, packed);
    return n_left;
}

void store_save_step(struct engine *e, uint64_t now)
{
    uint64_t begin = e->o.store ? e->o.store->counts.n_staged : 0;
    uint32_t most = !e->o.executor.crosses_bus ? UINT32_MAX : SAVE_DEVICE_PAGES_PER_STEP, n;

    (void)now;
    if (!e->o.store) return;
    for (uint32_t i = 0; i < e->plan.batch.n_runs; i++) {
        n = (uint32_t)(e->o.store->counts.n_staged - begin);
        if (n >= most) return;
        if (e->plan.run_request[i]) save(e, e->plan.run_request[i], u32_min(most - n, SAVE_PAGES_PER_STEP));
    }
}

void store_save_rest(struct engine *e, struct request *r)
{
    struct store_link *l = e->o.store;
    uint32_t n_full;

    if (!l) return;
    save(e, r, l->n_jobs);
    if (r->seq.end_state_at > 0 && r->seq.end_state_at == r->seq.n_computed) store_end_save(e, r, r->seq.end_state);
    n_full = r->seq.n_computed / l->o.page_tokens;
    if (r->seq.cached && atomic_load_explicit(&l->is_writable, memory_order_relaxed) && r->store.n_saved < n_full)
        l->counts.n_unsaved += n_full - r->store.n_saved;
}

/* ---- saver thread ---- */

bool store_save_one(struct store_link *l)
{
    struct save_job *job;

    mutex_lock(&l->lock);
    job = l->save_head;
    if (job) {
        l->save_head = job->next;
        if (!l->save_head) l->save_tail = NULL;
    }
    mutex_unlock(&l->lock);
    if (!job) return false;
    if (job->is_packed) l->o.pack(l->o.codec, job->bytes, l->packing);
    /* what is not stored was counted by the store */
    (void)page_store_put(l->store, job->space, job->is_first ? &job->digests[1] : job->digests, !job->is_first,
                         job->tokens, job->is_packed ? l->packing : job->bytes);
    store_shared_offer(l, job, job->is_packed ? l->packing : job->bytes);
    put_back(l, job);
    return true;
}
