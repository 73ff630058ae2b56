/* engine/tiers/store_link.c - creation, the saver and the loader, emptying the store. */
#include "engine/tiers/store_link.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "engine/listener.h"
#include "engine/tiers/image_store.h"
#include "engine/tiers/store_end.h"
#include "engine/tiers/store_shared.h"

#define MIN_STAGED     4u
#define MAX_STAGED     4096u
#define FLUSH_IDLE_NS  200000000ull  /* nothing more came for so long: what is pending gets its records */
#define REFRESH_NS     2000000000ull /* a reader looks at the folder again */
#define WRITER_REST_NS 60000000000ull
#define DRAIN_NS       5000000000ull
#define CLEAR_NS       10000000000ull

static rd_status make_staging(struct store_link *l)
{
    l->n_jobs = (uint32_t)u64_min(u64_max(l->o.staging_bytes / l->o.page_bytes, MIN_STAGED), MAX_STAGED);
    l->jobs = mem_zalloc(l->n_jobs, sizeof(*l->jobs));
    l->staging_tokens = mem_alloc((size_t)l->n_jobs * l->o.page_tokens, sizeof(*l->staging_tokens));
    l->staging = mem_map(l->n_jobs * l->o.page_bytes);
    l->digests = mem_alloc((size_t)l->o.max_pages + 1, sizeof(*l->digests));
    if (!l->jobs || !l->staging_tokens || !l->staging || !l->digests) return RD_E_NOMEM;
    for (uint32_t i = l->n_jobs; i-- > 0;) {
        l->jobs[i].bytes = l->staging + i * l->o.page_bytes;
        l->jobs[i].tokens = l->staging_tokens + (size_t)i * l->o.page_tokens;
        l->jobs[i].next = l->free_jobs;
        l->free_jobs = &l->jobs[i];
    }
    return RD_OK;
}

/* ---- the saver ---- */

static void note_writable(struct store_link *l)
{
    struct store_counts c;

    page_store_get_counts(l->store, &c);
    atomic_store_explicit(&l->is_writable, c.is_writer != 0, memory_order_relaxed);
}

/* Copies of what is wrong, or is to go, may be among those that wait; under the lock. */
static void forget_staged(struct store_link *l)
{
    while (l->save_head) {
        struct save_job *job = l->save_head;

        l->save_head = job->next;
        store_save_free(l, job);
    }
    l->save_tail = NULL;
    store_end_forget(l);
}

static void clear_now(struct store_link *l)
{
    (void)page_store_drop(l->store, NULL); /* what could not be removed is counted by the store */
    store_shared_clear(l);                 /* again: the saver has offered what it was at meanwhile */
    mutex_lock(&l->lock);
    l->clear_wanted = false;
    cond_broadcast(&l->saver_idle);
    mutex_unlock(&l->lock);
}

void store_link_unref_job(struct store_link *l, struct saver_job *job)
{
    if (--job->n_refs > 0) return;
    for (uint32_t i = 0; i < N_CONDEMNED; i++) page_store_unref(l->store, job->spaces[i]);
    image_store_free(l, job->image);
    mem_free(job);
}

static void do_job(struct store_link *l, struct saver_job *job)
{
    if (job->work == SAVER_PRUNE) {
        store_shared_remove(l, job->spaces[0], job->texts->tokens, job->texts->n);
        job->st =
            page_store_prune(l->store, job->spaces, N_CONDEMNED, job->texts->tokens, job->texts->n, &job->n_dropped);
    } else if (job->work == SAVER_IMAGE)
        job->st = image_store_write(l, job->image); /* counted, and said once, by the store */
    else if (job->work == SAVER_OFFER)
        store_shared_offer_stored(l, (struct store_space *const[2]){job->spaces[0], job->spaces[2]}, job->texts->tokens,
                                  job->texts->n_keep / l->o.page_tokens, job->texts->n / l->o.page_tokens);
    else if (job->work == SAVER_RELEASE)
        job->st = page_store_release(l->store, job->spaces, N_CONDEMNED, job->texts, job->n_texts, &job->n_dropped);
    else
        job->st = page_store_sync(l->store);
}

/* What others want to be done, once all that was queued before is written. */
static void work_now(struct store_link *l)
{
    for (;;) {
        struct saver_job *job;

        mutex_lock(&l->lock);
        job = l->work;
        if (job) l->work = job->next;
        mutex_unlock(&l->lock);
        if (!job) return;
        while (store_save_one(l)) {}
        store_end_write(l, true);
        do_job(l, job);
        mutex_lock(&l->lock);
        job->done = true;
        store_link_unref_job(l, job);
        cond_broadcast(&l->saver_idle);
        mutex_unlock(&l->lock);
    }
}

/* Takes what is condemned, so that what the engine condemns meanwhile is not taken for dropped. */
static void drop_condemned(struct store_link *l)
{
    struct store_space *space[N_CONDEMNED];
    bool all;

    mutex_lock(&l->lock);
    memcpy(space, l->condemned, sizeof(space));
    memset(l->condemned, 0, sizeof(l->condemned));
    all = l->all_condemned;
    l->all_condemned = false;
    mutex_unlock(&l->lock);
    if (!space[0] && !all) return;
    store_shared_clear(l); /* again, as in clear_now() */
    if (all && page_store_drop(l->store, NULL) != RD_OK) page_store_forsake(l->store, NULL);
    for (uint32_t i = 0; i < N_CONDEMNED; i++) {
        if (!all && space[i] && page_store_drop(l->store, space[i]) != RD_OK) page_store_forsake(l->store, space[i]);
        page_store_unref(l->store, space[i]);
    }
    mutex_lock(&l->lock);
    if (!l->condemned[0] && !l->all_condemned) atomic_store_explicit(&l->is_condemned, false, memory_order_relaxed);
    mutex_unlock(&l->lock);
}

/* Something is to do at once; under the lock. */
static bool is_called(const struct store_link *l)
{
    return l->save_head || l->closing || l->clear_wanted || l->work || l->condemned[0] || l->all_condemned;
}

/* What to do while nothing is queued: flush, look at the folder, empty it. True: the link closes. */
static bool saver_rest(struct store_link *l)
{
    bool closing, clear;

    mutex_lock(&l->lock);
    if (!is_called(l) && !cond_wait_ns(&l->save_bell, &l->lock, FLUSH_IDLE_NS)) {
        mutex_unlock(&l->lock);
        store_end_write(l, true);
        (void)page_store_flush(l->store); /* counted, and said once, by the store */
        page_store_refresh(l->store);
        note_writable(l);
        mutex_lock(&l->lock);
        if (!is_called(l) && l->ends.n_waiting == 0)
            cond_wait_ns(&l->save_bell, &l->lock,
                         atomic_load_explicit(&l->is_writable, memory_order_relaxed) ? WRITER_REST_NS : REFRESH_NS);
    }
    closing = l->closing;
    clear = l->clear_wanted;
    mutex_unlock(&l->lock);
    drop_condemned(l);
    work_now(l);
    if (clear) clear_now(l);
    return closing;
}

static void saver_main(void *arg)
{
    struct store_link *l = arg;
    uint64_t closing_ns = 0;

    for (;;) {
        if (saver_rest(l)) {
            uint64_t now = clock_now_ns(clock_system());

            if (closing_ns == 0) closing_ns = now;
            if (now - closing_ns > DRAIN_NS) return;
            if (store_save_one(l)) continue;
            store_end_write(l, true);
            return;
        }
        store_save_one(l);
        store_end_write(l, false);
    }
}

/* ---- the loader ---- */

static void loader_main(void *arg)
{
    struct store_link *l = arg;

    for (;;) {
        mutex_lock(&l->lock);
        while (!l->load_head && !l->closing) cond_wait(&l->load_bell, &l->lock);
        if (!l->load_head) {
            mutex_unlock(&l->lock);
            return;
        }
        mutex_unlock(&l->lock);
        store_load_one(l);
    }
}

/* ---- life ---- */

rd_status store_link_create(const struct store_link_options *o, struct store_link **out)
{
    struct store_link *l = mem_zalloc(1, sizeof(*l));
    rd_status st;

    if (!l) {
        page_store_close(o->store);
        shared_store_close(o->shared);
        return RD_E_NOMEM;
    }
    l->o = *o;
    l->store = o->store;
    mutex_init(&l->lock);
    cond_init(&l->save_bell);
    cond_init(&l->load_bell);
    cond_init(&l->saver_idle);
    note_writable(l);
    st = store_shared_begin(l);
    if (st == RD_OK) st = make_staging(l);
    if (st == RD_OK && o->threads) st = thread_start(&l->saver, "saver", saver_main, l);
    if (st == RD_OK && o->threads) st = thread_start(&l->loader, "loader", loader_main, l);
    if (st != RD_OK) {
        store_link_destroy(l);
        return st;
    }
    *out = l;
    return RD_OK;
}

void store_link_destroy(struct store_link *l)
{
    if (!l) return;
    mutex_lock(&l->lock);
    l->closing = true;
    cond_broadcast(&l->save_bell);
    cond_broadcast(&l->load_bell);
    store_shared_wake(l);
    mutex_unlock(&l->lock);
    thread_join(&l->loader);
    thread_join(&l->saver);
    store_shared_end(l);
    while (l->work) {
        struct saver_job *job = l->work;

        l->work = job->next;
        store_link_unref_job(l, job);
    }
    page_store_close(l->store);
    cond_deinit(&l->save_bell);
    cond_deinit(&l->load_bell);
    cond_deinit(&l->saver_idle);
    mutex_deinit(&l->lock);
    mem_free(l->jobs);
    mem_free(l->staging_tokens);
    if (l->staging) mem_unmap(l->staging, l->n_jobs * l->o.page_bytes);
    mem_free(l->digests);
    mem_free(l->packing);
    mem_free(l->unpacking);
    mem_free(l->is_lossy);
    store_end_deinit(l);
    mem_free(l);
}

void store_link_work(struct store_link *l)
{
    bool clear;

    drop_condemned(l);
    work_now(l);
    store_shared_work(l);
    while (store_load_one(l)) {}
    while (store_save_one(l)) {}
    store_end_write(l, true);
    (void)page_store_flush(l->store);
    mutex_lock(&l->lock);
    clear = l->clear_wanted;
    mutex_unlock(&l->lock);
    if (clear) clear_now(l);
    note_writable(l);
}

struct page_store *store_link_store(struct store_link *l)
{
    return l->store;
}

void store_link_clear(struct store_link *l)
{
    store_shared_clear(l);
    mutex_lock(&l->lock);
    forget_staged(l);
    l->clear_wanted = true;
    cond_signal(&l->save_bell);
    for (uint32_t i = 0; l->clear_wanted && l->o.threads && i < CLEAR_NS / 100000000; i++)
        cond_wait_ns(&l->saver_idle, &l->lock, 100000000);
    mutex_unlock(&l->lock);
    if (!l->o.threads) clear_now(l);
}

static void condemn_all(struct store_link *l)
{
    mutex_lock(&l->lock);
    forget_staged(l);
    l->all_condemned = true;
    atomic_store_explicit(&l->is_condemned, true, memory_order_relaxed);
    cond_signal(&l->save_bell);
    mutex_unlock(&l->lock);
}

/* What is stored of r's namespace (its parameters alone are looked at), or of all, may be wrong: nothing is loaded or
 * saved any more until all of it was dropped; where it cannot be, this process does not look at it again. No load is
 * under way, no request is live. */
static void condemn(struct engine *e, struct request *r)
{
    struct store_link *l = e->o.store;
    struct store_space *space, *ends = NULL, *packed = NULL;

    if (!l) return;
    store_shared_clear(l);
    space = r ? store_link_name_space(e, &r->p.space, "", l->o.page_bytes) : NULL;
    if (!space) {
        condemn_all(l);
        return;
    }
    if (l->ends.state_bytes)
        ends = store_link_name_space(e, &r->p.space, END_SUFFIX, l->o.page_bytes + l->ends.state_bytes);
    if (l->o.lossy_from) packed = store_link_name_space(e, &r->p.space, PACKED_SUFFIX, l->o.packed_bytes);
    mutex_lock(&l->lock);
    forget_staged(l);
    if (l->condemned[0] && l->condemned[0] != space) l->all_condemned = true;
    for (uint32_t i = 0; i < N_CONDEMNED; i++) page_store_unref(l->store, l->condemned[i]);
    l->condemned[0] = space;
    l->condemned[1] = ends;
    l->condemned[2] = packed;
    atomic_store_explicit(&l->is_condemned, true, memory_order_relaxed);
    cond_signal(&l->save_bell);
    mutex_unlock(&l->lock);
}

static void set_bell(struct store_link *l, struct wake *bell)
{
    mutex_lock(&l->lock);
    l->engine_bell = bell;
    mutex_unlock(&l->lock);
}

/* The staging area is pinned for the executor's copies, or not any more. */
static void pin(struct engine *e, bool on)
{
    const struct executor *x = &e->o.executor;
    struct store_link *l = e->o.store;

    if (x->pin) x->pin(x->self, l->staging, l->n_jobs * l->o.page_bytes, on);
}

static rd_status begin(struct engine *e)
{
    struct store_link *l = e->o.store;

    if (!l) return RD_OK;
    store_end_init(l, e->cache.state_bytes); /* before the threads can be told of any */
    if (l->o.lossy_from > 0) {
        l->packing = mem_alloc(l->o.packed_bytes, 1);
        l->unpacking = mem_alloc(l->o.packed_bytes, 1);
        l->is_lossy = mem_zalloc(e->o.n_pages, 1);
        if (!l->packing || !l->unpacking || !l->is_lossy) return RD_E_NOMEM;
    }
    set_bell(l, e->bell);
    pin(e, true);
    return RD_OK;
}

static void let_go(struct engine *e)
{
    if (!e->o.store) return;
    store_load_finish(e);
    set_bell(e->o.store, NULL);
    pin(e, false);
}

static void note_begun(struct engine *e, kv_page page)
{
    if (e->o.store && e->o.store->is_lossy) e->o.store->is_lossy[page] = false; /* it is exact again */
}

static void note_copied(struct engine *e, kv_page to, kv_page from)
{
    struct store_link *l = e->o.store;

    if (l && l->is_lossy) l->is_lossy[to] = l->is_lossy[from];
}

uint32_t store_link_n_lossy(const struct store_link *l, const kv_page *pages, uint32_t n)
{
    uint32_t n_lossy = 0;

    for (uint32_t at = 0; l && l->is_lossy && at < n; at += l->o.page_tokens)
        if (l->is_lossy[pages[at / l->o.page_tokens]]) n_lossy += u32_min(l->o.page_tokens, n - at);
    return n_lossy;
}

/* The name: everything that decides a page's bytes, then the namespace, then the suffix. */
static struct store_space *name_space(struct store_link *l, const void *base, size_t n, const struct kv_space *kv_space,
                                      const char *suffix, uint64_t page_bytes)
{
    struct store_space *space = NULL;
    uint8_t name[LIMIT_STORE_NAME_BYTES];
    size_t n_suffix = strlen(suffix);

    if (n + KV_SPACE_NAME_MAX + n_suffix > sizeof(name)) return NULL;
    if (n > 0) memcpy(name, base, n);
    n += kv_space_name(kv_space, name + n);
    memcpy(name + n, suffix, n_suffix);
    if (page_store_space(l->store, name, n + n_suffix, l->o.page_tokens, page_bytes, &space) != RD_OK) return NULL;
    if (strcmp(suffix, END_SUFFIX) == 0) page_store_say(l->store, space, "ends");
    if (strcmp(suffix, PACKED_SUFFIX) == 0) page_store_say(l->store, space, "packed");
    return space;
}

struct store_space *store_link_name_space(struct engine *e, const struct kv_space *kv_space, const char *suffix,
                                          uint64_t page_bytes)
{
    return name_space(e->o.store, e->o.namespace_name, e->o.namespace_bytes, kv_space, suffix, page_bytes);
}

uint32_t store_link_n_stored(struct engine *e, const char *name, uint64_t page_bytes, const struct kv_space *kv_space,
                             const kv_key *keys, uint32_t n, uint32_t from)
{
    struct store_link *l = e->o.store;
    uint32_t P, first, n_full, i;
    struct store_space *space;

    if (!l) return from;
    P = l->o.page_tokens, first = i = from / P, n_full = u32_min(n / P, l->o.max_pages);
    space = name_space(l, name ? name : e->o.namespace_name, name ? strlen(name) : e->o.namespace_bytes, kv_space, "",
                       name ? page_bytes : l->o.page_bytes);
    if (!space || first >= n_full) {
        page_store_unref(l->store, space);
        return from;
    }
    page_store_chain(l->store, space, keys, 0, first + 1, l->digests);
    while (page_store_has(l->store, l->digests[i])) {
        if (++i == n_full) break;
        page_store_chain(l->store, space, keys, i, i + 1, l->digests);
    }
    page_store_unref(l->store, space);
    return i > first ? i * P : from;
}

struct saver_job *store_link_make_job(struct engine *e, enum saver_work work, const struct kv_space *kv_space,
                                      const struct store_text *texts, uint32_t n_texts)
{
    struct store_link *l = e->o.store;
    const void *base = e->o.namespace_name;
    size_t n_base = e->o.namespace_bytes, n_tokens = 0;
    struct saver_job *job;
    uint32_t *tokens;

    for (uint32_t i = 0; i < n_texts; i++) n_tokens += texts[i].n;
    job = mem_zalloc(1, sizeof(*job) + n_texts * sizeof(*texts) + n_tokens * sizeof(*tokens));
    if (!job) return NULL;
    job->work = work;
    job->n_refs = 2;
    job->texts = (struct store_text *)(void *)(job + 1);
    job->n_texts = n_texts;
    tokens = (uint32_t *)(void *)(job->texts + n_texts);
    for (uint32_t i = 0; i < n_texts; i++) {
        job->texts[i] = (struct store_text){tokens, texts[i].n, texts[i].n_keep};
        memcpy(tokens, texts[i].tokens, texts[i].n * sizeof(*tokens));
        tokens += texts[i].n;
    }
    if (work == SAVER_SYNC) return job;
    job->spaces[0] = name_space(l, base, n_base, kv_space, "", l->o.page_bytes);
    if (l->ends.state_bytes)
        job->spaces[1] = name_space(l, base, n_base, kv_space, END_SUFFIX, l->o.page_bytes + l->ends.state_bytes);
    if (l->o.lossy_from) job->spaces[2] = name_space(l, base, n_base, kv_space, PACKED_SUFFIX, l->o.packed_bytes);
    if (job->spaces[0]) return job;
    mutex_lock(&l->lock);
    job->n_refs = 1;
    store_link_unref_job(l, job);
    mutex_unlock(&l->lock);
    return NULL;
}

void store_link_push_work(struct store_link *l, struct saver_job *job)
{
    struct saver_job **at = &l->work;

    mutex_lock(&l->lock);
    while (*at) at = &(*at)->next;
    *at = job;
    cond_signal(&l->save_bell);
    mutex_unlock(&l->lock);
}

bool store_link_push_image(struct store_link *l, struct image_save *save)
{
    struct saver_job *job = mem_zalloc(1, sizeof(*job));

    if (!job) return false;
    job->work = SAVER_IMAGE;
    job->n_refs = 1;
    job->image = save;
    store_link_push_work(l, job);
    return true;
}

/* Queues the job and waits for it; RD_E_AGAIN: it is not done yet. */
static rd_status do_and_wait(struct store_link *l, struct saver_job *job, uint64_t *n_dropped)
{
    rd_status st;

    store_link_push_work(l, job);
    if (!l->o.threads) work_now(l);
    mutex_lock(&l->lock);
    for (uint32_t i = 0; !job->done && l->o.threads && i < CLEAR_NS / 100000000; i++)
        cond_wait_ns(&l->saver_idle, &l->lock, 100000000);
    st = job->done ? job->st : RD_E_AGAIN;
    *n_dropped = job->done ? job->n_dropped : 0;
    store_link_unref_job(l, job);
    mutex_unlock(&l->lock);
    return st;
}

uint64_t store_link_prune(struct engine *e, const struct kv_space *kv_space, const kv_key *keys, uint32_t n)
{
    struct store_link *l = e->o.store;
    const struct store_text text = {keys, n, 0};
    struct saver_job *job =
        l && n / l->o.page_tokens <= l->o.max_pages ? store_link_make_job(e, SAVER_PRUNE, kv_space, &text, 1) : NULL;
    uint64_t n_dropped = 0;

    if (job) (void)do_and_wait(l, job, &n_dropped);
    return n_dropped;
}

void store_link_release(struct engine *e, const struct kv_space *kv_space, const struct store_text *texts, uint32_t n)
{
    struct saver_job *job = e->o.store && n > 0 ? store_link_make_job(e, SAVER_RELEASE, kv_space, texts, n) : NULL;

    if (!job) return; /* the store's own order drops it some day */
    job->n_refs = 1;
    store_link_push_work(e->o.store, job);
}

rd_status store_link_sync(struct engine *e)
{
    struct saver_job *job = e->o.store ? store_link_make_job(e, SAVER_SYNC, NULL, NULL, 0) : NULL;
    uint64_t n_dropped;

    if (!e->o.store) return RD_E_UNSUPPORTED;
    return job ? do_and_wait(e->o.store, job, &n_dropped) : RD_E_NOMEM;
}

uint32_t store_link_touch(struct engine *e, const struct kv_space *kv_space, const kv_key *keys, uint32_t n)
{
    struct store_link *l = e->o.store;
    uint32_t n_full = l ? u32_min(n / l->o.page_tokens, l->o.max_pages) : 0;
    struct store_space *space =
        n_full ? name_space(l, e->o.namespace_name, e->o.namespace_bytes, kv_space, "", l->o.page_bytes) : NULL;

    if (!space) return 0;
    page_store_chain(l->store, space, keys, 0, n_full, l->digests);
    page_store_unref(l->store, space);
    return page_store_find(l->store, l->digests, n_full) * l->o.page_tokens;
}

struct store_space *store_link_space(struct engine *e, struct request *r)
{
    if (!r->store.space) r->store.space = store_link_name_space(e, &r->p.space, "", e->o.store->o.page_bytes);
    return r->store.space;
}

struct store_space *store_link_packed_space(struct engine *e, struct request *r)
{
    if (!r->store.packed_space)
        r->store.packed_space = store_link_name_space(e, &r->p.space, PACKED_SUFFIX, e->o.store->o.packed_bytes);
    return r->store.packed_space;
}

void store_link_unref_spaces(struct engine *e, struct request *r)
{
    struct page_store *s = e->o.store->store;

    page_store_unref(s, r->store.space);
    page_store_unref(s, r->store.end_space);
    page_store_unref(s, r->store.packed_space);
    r->store.space = r->store.end_space = r->store.packed_space = NULL;
}

/* ---- what the engine tells ---- */

static void save_last(struct engine *e, struct request *r, bool is_kept)
{
    if (is_kept && r->state == REQUEST_LIVE) store_save_rest(e, r);
}

static void tell_usage(struct engine *e, struct request *r)
{
    r->usage.n_disk = u32_min(r->store.to, r->usage.n_cached) - u32_min(r->store.from, r->usage.n_cached);
    e->stats.prompt_disk += r->usage.n_disk;
    r->usage.n_shared =
        u32_min(r->store.shared_to, r->usage.n_cached) - u32_min(r->store.shared_from, r->usage.n_cached);
    e->stats.prompt_shared += r->usage.n_shared;
    r->usage.n_lossy = store_link_n_lossy(e->o.store, r->seq.pages, r->usage.n_cached);
}

static uint32_t n_lossy(const struct engine *e, const kv_page *pages, uint32_t n)
{
    return store_link_n_lossy(e->o.store, pages, n);
}

static bool may_differ(const struct engine *e, uint32_t n)
{
    return e->o.store && e->o.store->o.lossy_from > 0 && n > e->o.store->o.lossy_from;
}

static uint64_t promised(const struct engine *e)
{
    return e->o.store ? e->o.store->n_promised : 0;
}
static uint32_t n_loading(const struct engine *e)
{
    return e->o.store ? (uint32_t)e->o.store->counts.n_loading : 0;
}

static void gather(const struct engine *e, struct engine_stats *s)
{
    const struct store_link_counts *c;

    if (!e->o.store) return;
    c = &e->o.store->counts;
    s->disk_loads = c->n_loads;
    s->disk_loads_late = c->n_loads_late;
    s->disk_declined = c->n_declined;
    s->disk_pages_loaded = c->n_pages_loaded;
    s->disk_staged = c->n_staged;
    s->disk_unsaved = c->n_unsaved;
    s->pages_loading = c->n_loading;
    page_store_get_counts(e->o.store->store, &s->disk);
    store_shared_gather(e, s);
}

const struct engine_listener listens_store = {
    .begin = begin,
    .let_go = let_go,
    .gather = gather,
    .collect = store_load_collect,
    .wait = store_load_wait,
    .committed = store_save_step,
    .prompt_known = tell_usage,
    .at_end = store_end_save,
    .preempting = store_save_rest,
    .ending = save_last,
    .left = store_load_leave,
    .image_encoded = image_store_save,
    .page_begun = note_begun,
    .page_copied = note_copied,
    .condemned = condemn,
    .promised = promised,
    .n_out = n_loading,
    .n_lossy = n_lossy,
    .may_differ = may_differ,
};
