/* engine/tiers/store_shared.c - lookups, the shared loader's thread, what is offered. */
#include "engine/tiers/store_shared.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define LOOKUP_NS      100000000ull  /* a request waits no longer for an answer; what comes later is for the next */
#define LOOKUP_HUNG_NS 1000000000ull /* a store that says nothing for so long is down */
#define LEAST_WORTH_NS 2000000ull    /* what computes in less time is not looked up */
#define FRESH_NS       600000000000ull

struct shared_lookup {
    struct shared_lookup *next;
    struct store_space *space; /* held */
    struct request *r;         /* NULL: it waits no more. Engine thread */
    uint64_t give_up_ns;
    uint32_t first, n, n_found; /* pages [first, n) of the chain are looked up */
    struct hash128 *digests;    /* [n] */
    uint32_t tokens[];          /* [n * page_tokens] */
};

/* ---- chains ---- */

struct hash128 store_shared_seed(const struct store_link *l, const struct store_space *space)
{
    size_t n;
    const void *name = page_store_space_name(space, &n);

    return shared_seed(shared_store_keys(l->shared->store), name, n);
}

struct hash128 store_shared_next(const struct store_link *l, struct hash128 before, const kv_key *keys)
{
    return shared_digest(shared_store_keys(l->shared->store), before, keys, l->o.page_tokens);
}

static uint64_t bytes_of(const struct store_link *l, uint32_t i)
{
    return store_link_packs(l, i) ? l->o.packed_bytes : l->o.page_bytes;
}

static void chain(const struct store_link *l, const struct store_space *space, const uint32_t *tokens, uint32_t n,
                  struct hash128 *digests)
{
    struct hash128 last = store_shared_seed(l, space);

    for (uint32_t i = 0; i < n; i++)
        digests[i] = last = store_shared_next(l, last, tokens + (size_t)i * l->o.page_tokens);
}

/* ---- lookups ---- */

static void free_lookup(struct store_link *l, struct shared_lookup *x)
{
    page_store_unref(l->store, x->space);
    mem_free(x->digests);
    mem_free(x);
}

bool store_shared_ask(struct engine *e, struct request *r, uint32_t n_here, uint32_t n_full, uint64_t compute_page_ns,
                      uint64_t now)
{
    struct store_link *l = e->o.store;
    struct shared_link *s = l->shared;
    struct shared_lookup *x;

    if (!s || r->store.was_asked || n_here >= n_full || s->n_in_flight == SHARED_MOST_LOOKUPS) return false;
    if (compute_page_ns > 0 && (n_full - n_here) * compute_page_ns < LEAST_WORTH_NS) return false;
    if (!shared_store_can_read(s->store)) return false;
    x = mem_zalloc(1, sizeof(*x) + (size_t)n_full * l->o.page_tokens * sizeof(*x->tokens));
    if (!x) return false;
    x->digests = mem_alloc(n_full, sizeof(*x->digests));
    if (!x->digests) {
        mem_free(x);
        return false;
    }
    x->space = page_store_ref(l->store, r->store.space);
    x->r = r;
    x->give_up_ns = now + LOOKUP_NS;
    x->first = n_here;
    x->n = n_full;
    memcpy(x->tokens, r->seq.keys, (size_t)n_full * l->o.page_tokens * sizeof(*x->tokens));
    r->store.lookup = x;
    r->store.was_asked = true;
    e->n_loading++;
    s->in_flight[s->n_in_flight++] = x;
    mutex_lock(&l->lock);
    *(s->tail ? &s->tail->next : &s->head) = x;
    s->tail = x;
    cond_signal(&s->bell);
    mutex_unlock(&l->lock);
    return true;
}

static void part(struct engine *e, struct shared_lookup *x)
{
    if (!x->r) return;
    x->r->store.lookup = NULL;
    x->r = NULL;
    e->n_loading--;
    e->blocked = false;
}

void store_shared_leave(struct engine *e, struct request *r)
{
    if (r->store.lookup) part(e, r->store.lookup);
}

void store_shared_collect(struct engine *e, uint64_t now)
{
    struct store_link *l = e->o.store;
    struct shared_link *s = l ? l->shared : NULL;
    struct shared_lookup *done;

    if (!s || s->n_in_flight == 0) return;
    mutex_lock(&l->lock);
    done = s->done;
    s->done = NULL;
    mutex_unlock(&l->lock);
    for (struct shared_lookup *next; done; done = next) {
        uint32_t i = 0;

        next = done->next;
        if (done->r) done->r->store.n_shared = done->n_found > 0 ? done->first + done->n_found : 0;
        part(e, done);
        while (s->in_flight[i] != done) i++;
        s->in_flight[i] = s->in_flight[--s->n_in_flight];
        free_lookup(l, done);
    }
    for (uint32_t i = 0; i < s->n_in_flight; i++) {
        if (!s->in_flight[i]->r || now < s->in_flight[i]->give_up_ns) continue;
        l->counts.n_shared_late++;
        part(e, s->in_flight[i]);
    }
}

/* ---- what is on disk from longer ago ---- */

static struct shared_fresh *fresh_of(struct store_link *l, struct hash128 digest)
{
    return &l->shared->fresh[digest.low % SHARED_N_FRESH];
}

void store_shared_note(struct store_link *l, struct hash128 disk_digest, uint64_t now)
{
    if (l->shared) *fresh_of(l, disk_digest) = (struct shared_fresh){disk_digest.low, now + FRESH_NS};
}

/* How many of the first n pages, l->digests, are known to be there: all up to the last that is. */
static uint32_t n_fresh(struct store_link *l, uint32_t n, uint64_t now)
{
    uint64_t n_losses = shared_store_n_losses(l->shared->store);

    if (n_losses != l->shared->n_losses) memset(l->shared->fresh, 0, SHARED_N_FRESH * sizeof(*l->shared->fresh));
    l->shared->n_losses = n_losses;
    for (; n > 0; n--) {
        const struct shared_fresh *f = fresh_of(l, l->digests[n - 1]);

        if (f->digest == l->digests[n - 1].low && now < f->until_ns) break;
    }
    return n;
}

void store_shared_refresh(struct engine *e, struct request *r, uint32_t n, uint64_t now)
{
    struct store_link *l = e->o.store;
    struct shared_link *s = l->shared;
    struct store_text text = {r->seq.keys, n * l->o.page_tokens, 0};
    struct saver_job *job;
    bool is_full;

    if (!r->p.cached || n_fresh(l, n, now) == n || !shared_store_can_read(s->store)) return;
    mutex_lock(&l->lock);
    is_full = s->n_stale == SHARED_MOST_STALE;
    mutex_unlock(&l->lock);
    job = is_full ? NULL : store_link_make_job(e, SAVER_OFFER, &r->p.space, &text, 1);
    if (!job) return;
    job->n_refs = 1;
    store_shared_note(l, l->digests[n - 1], now);
    mutex_lock(&l->lock);
    *(s->stale_tail ? &s->stale_tail->next : &s->stale_head) = job;
    s->stale_tail = job;
    s->n_stale++;
    cond_signal(&s->bell);
    mutex_unlock(&l->lock);
}

void store_shared_finish(struct engine *e)
{
    struct store_link *l = e->o.store;

    while (l->shared && l->shared->n_in_flight > 0) {
        if (!l->o.threads)
            store_shared_work(l);
        else
            clock_sleep_ns(1000000);
        store_shared_collect(e, clock_now_ns(e->o.clock));
    }
}

/* ---- the shared loader ---- */

static bool look_up_one(struct store_link *l)
{
    struct shared_link *s = l->shared;
    struct shared_lookup *x;
    uint32_t n_plain;

    mutex_lock(&l->lock);
    x = s->head;
    if (x) {
        s->head = x->next;
        if (!s->head) s->tail = NULL;
    }
    mutex_unlock(&l->lock);
    if (!x) return false;
    chain(l, x->space, x->tokens, x->n, x->digests);
    for (n_plain = x->first; n_plain < x->n && !store_link_packs(l, n_plain);) n_plain++;
    if (!atomic_load_explicit(&l->stop, memory_order_relaxed)) {
        uint64_t deadline = clock_now_ns(clock_system()) + LOOKUP_HUNG_NS;

        x->n_found = shared_store_find(s->store, x->digests + x->first, n_plain - x->first, l->o.page_bytes, deadline);
        if (x->first + x->n_found == n_plain)
            x->n_found +=
                shared_store_find(s->store, x->digests + n_plain, x->n - n_plain, l->o.packed_bytes, deadline);
    }
    mutex_lock(&l->lock);
    x->next = s->done;
    s->done = x;
    if (l->engine_bell) wake_ring(l->engine_bell);
    mutex_unlock(&l->lock);
    return true;
}

/* Which pages of a prompt on disk are there; the saver offers the others. */
static bool look_at_stale(struct store_link *l)
{
    struct shared_link *s = l->shared;
    uint64_t deadline = clock_now_ns(clock_system()) + LOOKUP_HUNG_NS;
    uint32_t n, n_plain = 0, n_there = 0, n_packed = 0;
    struct hash128 *digests;
    struct saver_job *job;
    bool answered = false;

    mutex_lock(&l->lock);
    job = s->stale_head;
    if (job) {
        s->stale_head = job->next;
        if (!s->stale_head) s->stale_tail = NULL;
        s->n_stale--;
        job->next = NULL;
    }
    mutex_unlock(&l->lock);
    if (!job) return false;
    n = job->texts->n / l->o.page_tokens;
    digests = mem_alloc(n, sizeof(*digests));
    if (digests) {
        chain(l, job->spaces[0], job->texts->tokens, n, digests);
        while (n_plain < n && !store_link_packs(l, n_plain)) n_plain++;
        answered = shared_store_touch(s->store, digests, n_plain, l->o.page_bytes, deadline, &n_there);
        if (answered && n_there == n_plain && n > n_plain)
            answered =
                shared_store_touch(s->store, digests + n_plain, n - n_plain, l->o.packed_bytes, deadline, &n_packed);
    }
    mem_free(digests);
    job->texts->n_keep = (n_there + n_packed) * l->o.page_tokens;
    if (answered && n_there + n_packed < n) {
        store_link_push_work(l, job);
        return true;
    }
    mutex_lock(&l->lock);
    store_link_unref_job(l, job);
    mutex_unlock(&l->lock);
    return true;
}

/* Pages [at, n) of the job; returns how many came. A packed one goes through `unpacking`, one at a time. */
static uint32_t read_shared(struct store_link *l, const struct load_job *job, uint32_t at, uint32_t n)
{
    struct shared_want *wants = mem_zalloc(n - at, sizeof(*wants));
    struct hash128 *digests = mem_alloc(n, sizeof(*digests)), seed;
    uint32_t n_read = 0, P = l->o.page_tokens;

    if (wants && digests) {
        seed = store_shared_seed(l, job->space);
        chain(l, job->space, job->tokens, n, digests);
        for (uint32_t i = at; i < n; i++)
            wants[i - at] = (struct shared_want){
                {i ? digests[i - 1] : seed, digests[i], job->tokens + (size_t)i * P, P, bytes_of(l, i)},
                store_link_packs(l, i) ? l->shared->unpacking : job->bytes[i - job->first]};
        while (at + n_read < n) {
            uint32_t i = at + n_read, n_some = 1;

            if (!store_link_packs(l, i))
                while (i + n_some < n && !store_link_packs(l, i + n_some)) n_some++;
            n_some = shared_store_read(l->shared->store, wants + n_read, n_some, job->deadline_ns, &l->stop);
            if (n_some == 0) break;
            if (store_link_packs(l, i)) l->o.unpack(l->o.codec, l->shared->unpacking, job->bytes[i - job->first]);
            n_read += n_some;
            if (!store_link_packs(l, i) && i + n_some < n && !store_link_packs(l, i + n_some)) break; /* it ended */
        }
    }
    mem_free(wants);
    mem_free(digests);
    return n_read;
}

static bool load_one(struct store_link *l)
{
    struct shared_link *s = l->shared;
    struct load_job *job;

    mutex_lock(&l->lock);
    job = s->load_head;
    if (job) {
        s->load_head = job->next;
        if (!s->load_head) s->load_tail = NULL;
    }
    mutex_unlock(&l->lock);
    if (!job) return false;
    job->n_read = store_load_read_disk(l, job, job->n_disk);
    if (job->n_read == job->n_disk) {
        uint64_t begin = clock_now_ns(l->o.clock);

        job->n_read += read_shared(l, job, job->first + job->n_disk, job->first + job->n);
        job->took_ns = clock_now_ns(l->o.clock) - begin;
    }
    store_load_hand_back(l, job);
    return true;
}

static void loader_main(void *arg)
{
    struct store_link *l = arg;
    struct shared_link *s = l->shared;

    for (;;) {
        bool closing;

        mutex_lock(&l->lock);
        while (!s->head && !s->load_head && !s->stale_head && !l->closing) cond_wait(&s->bell, &l->lock);
        closing = l->closing && !s->head && !s->load_head;
        mutex_unlock(&l->lock);
        if (closing) return;
        while (look_up_one(l)) {}
        if (!load_one(l)) look_at_stale(l); /* nobody waits for that */
    }
}

void store_shared_work(struct store_link *l)
{
    while (l->shared && (look_up_one(l) || load_one(l) || look_at_stale(l))) {}
}

void store_shared_submit(struct store_link *l, struct load_job *job)
{
    struct shared_link *s = l->shared;

    mutex_lock(&l->lock);
    *(s->load_tail ? &s->load_tail->next : &s->load_head) = job;
    s->load_tail = job;
    cond_signal(&s->bell);
    mutex_unlock(&l->lock);
}

/* ---- life ---- */

rd_status store_shared_begin(struct store_link *l)
{
    struct shared_link *s;

    if (!l->o.shared) return RD_OK;
    s = mem_zalloc(1, sizeof(*s));
    if (!s) {
        shared_store_close(l->o.shared);
        return RD_E_NOMEM;
    }
    l->shared = s;
    s->store = l->o.shared;
    cond_init(&s->bell);
    s->digests = mem_alloc((size_t)l->o.max_pages + 1, sizeof(*s->digests));
    s->fresh = mem_zalloc(SHARED_N_FRESH, sizeof(*s->fresh));
    if (l->o.lossy_from) s->unpacking = mem_alloc(l->o.packed_bytes, 1);
    if (!s->digests || !s->fresh || (l->o.lossy_from && !s->unpacking)) return RD_E_NOMEM;
    return l->o.threads ? thread_start(&s->loader, "shared-loader", loader_main, l) : RD_OK;
}

void store_shared_wake(struct store_link *l)
{
    if (l->shared) cond_broadcast(&l->shared->bell);
}

void store_shared_end(struct store_link *l)
{
    struct shared_link *s = l->shared;

    if (!s) return;
    thread_join(&s->loader);
    while (s->stale_head) {
        struct saver_job *job = s->stale_head;

        s->stale_head = job->next;
        store_link_unref_job(l, job);
    }
    shared_store_close(s->store);
    cond_deinit(&s->bell);
    mem_free(s->digests);
    mem_free(s->fresh);
    mem_free(s->unpacking);
    mem_free(s);
    l->shared = NULL;
}

/* ---- writing ---- */

void store_shared_offer(struct store_link *l, const struct save_job *job, const void *bytes)
{
    const struct shared_page page = {job->shared[0], job->shared[1], job->tokens, l->o.page_tokens,
                                     job->is_packed ? l->o.packed_bytes : l->o.page_bytes};

    if (l->shared) shared_store_offer(l->shared->store, &page, bytes);
}

void store_shared_offer_stored(struct store_link *l, struct store_space *const *spaces, const uint32_t *tokens,
                               uint32_t first, uint32_t n)
{
    struct hash128 *digests = mem_alloc(n, sizeof(*digests)), *disk = mem_alloc(n, sizeof(*disk));
    void *page = mem_alloc(l->o.page_bytes, 1);
    uint32_t P = l->o.page_tokens;

    if (l->shared && digests && disk && page) {
        struct hash128 seed = store_shared_seed(l, spaces[0]);

        chain(l, spaces[0], tokens, n, digests);
        page_store_chain(l->store, spaces[0], tokens, 0, n, disk);
        for (uint32_t i = first; i < n && shared_store_has_room(l->shared->store, bytes_of(l, i)); i++) {
            const struct shared_page p = {i ? digests[i - 1] : seed, digests[i], tokens + (size_t)i * P, P,
                                          bytes_of(l, i)};
            struct store_space *space = spaces[store_link_packs(l, i)];

            if (!space || page_store_read(l->store, space, disk, tokens, i, i + 1, &page, &l->stop) != 1) break;
            shared_store_offer(l->shared->store, &p, page);
        }
    }
    mem_free(digests);
    mem_free(disk);
    mem_free(page);
}

void store_shared_remove(struct store_link *l, struct store_space *space, const uint32_t *tokens, uint32_t n)
{
    struct hash128 last;

    if (!l->shared) return;
    last = store_shared_seed(l, space);
    for (uint32_t i = 0; i < n / l->o.page_tokens; i++) {
        last = store_shared_next(l, last, tokens + (size_t)i * l->o.page_tokens);
        shared_store_remove(l->shared->store, last, bytes_of(l, i));
    }
}

void store_shared_clear(struct store_link *l)
{
    if (l->shared) shared_store_clear(l->shared->store);
}

void store_shared_gather(const struct engine *e, struct engine_stats *s)
{
    const struct store_link *l = e->o.store;

    if (!l->shared) return;
    shared_store_get_counts(l->shared->store, &s->shared);
    s->shared_loads = l->counts.n_shared_loads;
    s->shared_late = l->counts.n_shared_late;
    s->shared_declined = l->counts.n_shared_declined;
    s->shared_pages_loaded = l->counts.n_shared_pages;
    s->shared_page_us = l->shared->page_ns / 1000;
}
