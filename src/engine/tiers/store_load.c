/* engine/tiers/store_load.c - a request's prompt goes on in the store: pages on loan, read, attached to the tree. */
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "engine/listener.h"
#include "engine/tiers/store_end.h"
#include "engine/tiers/store_link.h"
#include "engine/tiers/store_shared.h"
#include "vision/vision.h"

#define SHARED_GRACE_NS 50000000ull /* the loader keeps to its deadline; then its last pages are copied in */

/* ---- deciding ---- */

/* What the prompt has in the tree and, behind that, in the store. */
struct look {
    struct radix_match match;
    struct store_space *space;
    uint32_t first, n, n_disk; /* n_disk: of n, on disk; the others in the shared store */
    uint32_t n_full;
    bool has_end;
    struct store_end end;
};

static bool is_sure(const kv_key *keys, uint32_t n)
{
    uint32_t n_rows = 0;

    while (n_rows < u32_min(n, VISION_SURE_ROWS) && !key_is_token(keys[n - 1 - n_rows])) n_rows++;
    return n_rows == 0 || n_rows >= VISION_SURE_ROWS;
}

/* So many of n pages, first not counted, that their keys say which images they are of: the first rows of one alone do not
 * (vision/vision.h). */
static uint32_t sure_pages(const kv_key *keys, uint32_t first, uint32_t n, uint32_t page_tokens)
{
    while (n > 0 && !is_sure(keys, (first + n) * page_tokens)) n--;
    return n;
}

/* What the disk has of the prompt others shall find. */
static void refresh(struct engine *e, struct request *r, uint32_t n_full, uint64_t now)
{
    struct store_link *l = e->o.store;
    uint32_t n;

    if (!l->shared || r->store.was_refreshed || !store_link_space(e, r)) return;
    r->store.was_refreshed = true;
    page_store_chain(l->store, r->store.space, r->seq.keys, 0, n_full, l->digests);
    n = sure_pages(r->seq.keys, 0, page_store_find(l->store, l->digests, n_full), l->o.page_tokens);
    if (n > 0) store_shared_refresh(e, r, n, now);
}

/* False: there is nothing to look for. */
static bool look_up(struct engine *e, struct request *r, struct radix_node *root, uint64_t now, struct look *k)
{
    struct store_link *l = e->o.store;
    uint32_t P = l->o.page_tokens, n_full = u32_min(r->seq.n_keys / P, l->o.max_pages);

    refresh(e, r, n_full, now);
    k->match = radix_match(e->cache.tree, root, r->seq.keys, r->seq.n_keys, now);
    k->first = k->match.n_match / P;
    if (k->match.n_ready < k->match.n_match) return false; /* it joins what is in flight */
    if (k->match.n_match == r->seq.n_keys) return false;
    k->space = store_link_space(e, r);
    if (!k->space) return false;
    page_store_chain(l->store, k->space, r->seq.keys, 0, n_full, l->digests);
    k->n_full = n_full;
    k->n = page_store_find(l->store, l->digests + k->first, n_full - k->first);
    k->n = k->n_disk = sure_pages(r->seq.keys, k->first, k->n, P);
    if (r->store.n_shared > k->first + k->n)
        k->n = u32_max(sure_pages(r->seq.keys, k->first, u32_min(r->store.n_shared, n_full) - k->first, P), k->n_disk);
    k->has_end = k->n == k->n_disk && store_end_find(e, r, k->first + k->n, k->match.n_match, &k->end) &&
                 is_sure(r->seq.keys, (k->first + k->n) * P + k->end.t);
    if (l->o.lossy_from > 0) (void)store_link_packed_space(e, r);
    (void)page_store_find(l->store, l->digests, k->first); /* its beginning counts as used, too */
    return true;
}

/* Tokens up to which the store has it. */
static uint32_t end_of(const struct store_link *l, const struct look *k)
{
    return (k->first + k->n) * l->o.page_tokens + (k->has_end ? k->end.t : 0);
}

static uint64_t compute_ns(const struct engine *e, uint32_t n_tokens)
{
    return e->prefill_rate ? n_tokens * 1000000000000ull / e->prefill_rate : 0; /* milli-tokens per second */
}

/* What the shared store has pays: else it is as if it had nothing. As pays(). */
static void weigh_shared(struct engine *e, struct look *k)
{
    struct store_link *l = e->o.store;
    uint64_t compute = compute_ns(e, (k->n - k->n_disk) * l->o.page_tokens);

    if (k->n == k->n_disk || compute == 0 || l->shared->page_ns * (k->n - k->n_disk) < compute) return;
    l->shared->page_ns -= l->shared->page_ns / 16 + 1;
    l->counts.n_shared_declined++;
    k->n = k->n_disk;
}

/* A price that was once seen fades while it keeps loads from being tried. */
static bool pays(struct engine *e, const struct look *k)
{
    struct store_link *l = e->o.store;
    uint64_t compute = compute_ns(e, end_of(l, k) - k->match.n_match);

    if (k->n > k->n_disk) return true; /* weighed already */
    if (compute == 0 || l->load_page_ns * (k->n + k->has_end) < compute) return true;
    l->load_page_ns -= l->load_page_ns / 16 + 1;
    l->counts.n_declined++;
    return false;
}

/* It was chosen because it is quicker than computing; so much later that is known not to be so. */
static uint64_t shared_patience_ns(const struct engine *e, const struct load_job *job)
{
    return u64_max(compute_ns(e, (job->n - job->n_disk) * e->o.page_tokens), LOAD_LEAST_WAIT_NS);
}

/* A load under way that begins at or before page first of the same chain and reaches beyond it. */
static struct load_job *find_job(const struct store_link *l, const struct look *k)
{
    for (uint32_t i = 0; i < l->n_in_flight; i++) {
        struct load_job *job = l->in_flight[i];

        if (job->space == k->space && job->first <= k->first && k->first < job->first + job->n &&
            hash128_equal(job->digests[k->first], l->digests[k->first]))
            return job;
    }
    return NULL;
}

/* ---- jobs ---- */

static void free_job(struct store_link *l, struct load_job *job)
{
    if (!job) return;
    page_store_unref(l->store, job->space);
    page_store_unref(l->store, job->packed_space);
    page_store_unref(l->store, job->end ? job->end->space : NULL);
    mem_free(job->tokens);
    mem_free(job->digests);
    mem_free(job->pages);
    mem_free(job->bytes);
    mem_unmap(job->staging, job->staging_bytes);
    mem_free(job->end);
    mem_free(job->end_bytes);
    mem_free(job);
}

static struct load_job *make_job(struct store_link *l, const struct request *r, const struct look *k)
{
    struct load_job *job = mem_zalloc(1, sizeof(*job));
    size_t n_all = (size_t)k->first + k->n;
    uint32_t n_end = k->has_end ? k->end.t : 0;

    if (!job) return NULL;
    job->space = page_store_ref(l->store, k->space);
    if (l->o.lossy_from) job->packed_space = page_store_ref(l->store, r->store.packed_space);
    job->first = k->first;
    job->n = k->n;
    job->n_disk = k->n_disk;
    job->n_taken = k->n + (n_end > 0);
    job->tokens =
        (uint32_t *)(void *)mem_memdup(r->seq.keys, (n_all * l->o.page_tokens + n_end) * sizeof(*job->tokens));
    job->digests = mem_alloc(n_all + 1, sizeof(*job->digests));
    job->pages = mem_zalloc(n_all + 1, sizeof(*job->pages));
    job->bytes = mem_zalloc((size_t)k->n + 1, sizeof(*job->bytes));
    if (k->has_end) {
        job->end = (struct store_end *)(void *)mem_memdup(&k->end, sizeof(k->end));
        if (job->end) (void)page_store_ref(l->store, job->end->space);
        job->end_bytes = mem_alloc(l->o.page_bytes + l->ends.state_bytes, 1);
    }
    if (job->digests) memcpy(job->digests, l->digests, n_all * sizeof(*job->digests));
    if (job->tokens && job->digests && job->pages && job->bytes && (!k->has_end || (job->end && job->end_bytes)))
        return job;
    free_job(l, job);
    return NULL;
}

/* Of the pages on loan: those that a sequence sees which goes on behind them get windows. */
static uint32_t first_window(const struct engine *e, const struct load_job *job)
{
    uint32_t P = e->o.page_tokens, end = (job->first + job->n) * P + (job->n_taken > job->n ? job->end->t : 0), first;

    if (!e->cache.window) return 0;
    first = kv_window_first(&e->cache, end - 1); /* of a prompt that ends there, its last row */
    return first > job->first ? first - job->first : 0;
}

static bool take_pages(struct engine *e, const struct request *r, struct load_job *job)
{
    uint32_t n = job->n_taken;

    if (!admission_make_loan_room(e, r, job->first, n - job->n, n)) return false;
    if (!e->o.executor.page) {
        job->staging_bytes = n * e->o.executor.page_bytes;
        job->staging = mem_map(job->staging_bytes);
        if (!job->staging) return false;
    }
    if (page_pool_take(e->pool, n, job->pages + job->first) != RD_OK) return false;
    kv_loan_begin(&e->cache, &job->loan, job->pages + job->first, n);
    if (kv_loan_open_windows(&e->cache, &job->loan, first_window(e, job)) != RD_OK) {
        kv_loan_end(&e->cache, &job->loan);
        return false;
    }
    kv_isolate(&e->cache, job->root, job->pages + job->first, n);
    for (uint32_t i = 0; i < n; i++)
        job->bytes[i] = job->staging ? job->staging + i * e->o.executor.page_bytes
                                     : e->o.executor.page(e->o.executor.self, job->pages[job->first + i]);
    return true;
}

static void submit(struct store_link *l, struct load_job *job)
{
    l->in_flight[l->n_in_flight++] = job;
    l->counts.n_loads++;
    l->counts.n_loading += job->n_taken;
    if (job->n > job->n_disk) {
        l->counts.n_shared_loads++;
        store_shared_submit(l, job);
        return;
    }
    mutex_lock(&l->lock);
    *(l->load_tail ? &l->load_tail->next : &l->load_head) = job;
    l->load_tail = job;
    cond_signal(&l->load_bell);
    mutex_unlock(&l->lock);
}

/* NULL: no memory or no room. */
static struct load_job *begin_load(struct engine *e, const struct request *r, struct radix_node *root,
                                   const struct look *k, uint64_t now)
{
    struct store_link *l = e->o.store;
    struct load_job *job = l->n_in_flight < LOAD_MAX_JOBS ? make_job(l, r, k) : NULL;

    if (!job) return NULL;
    job->root = root;
    job->hold = kv_hold(&e->cache, root, r->seq.keys, k->match.n_match, now, &job->n_held);
    job->deadline_ns = clock_now_ns(clock_system()) + shared_patience_ns(e, job);
    if (job->n_held == k->match.n_match && take_pages(e, r, job)) {
        submit(l, job);
        return job;
    }
    kv_unhold(&e->cache, job->hold);
    free_job(l, job);
    return NULL;
}

/* What r takes when it is admitted, beside the pages on loan. */
static uint32_t pages_beside(const struct engine *e, const struct request *r)
{
    return admission_pages_behind(e, r, r->store.job->first + r->store.job->n);
}

static void join(struct engine *e, struct request *r, struct load_job *job, uint64_t now)
{
    struct store_link *l = e->o.store;
    uint64_t compute = compute_ns(e, job->n * l->o.page_tokens);

    r->store.job = job;
    r->store.n_tries++;
    r->store.deadline_ns = now + (job->n > job->n_disk ? shared_patience_ns(e, job) + SHARED_GRACE_NS
                                                       : u64_max(compute * LOAD_PATIENCE, LOAD_LEAST_WAIT_NS));
    job->n_requests++;
    l->n_promised += pages_beside(e, r);
    e->n_loading++;
}

static void part(struct engine *e, struct request *r)
{
    e->o.store->n_promised -= pages_beside(e, r);
    r->store.job->n_requests--;
    r->store.job = NULL;
    e->n_loading--;
}

bool store_load_wait(struct engine *e, struct request *r, struct radix_node *root, uint64_t now)
{
    struct store_link *l = e->o.store;
    struct load_job *job;
    struct look k;

    if (!l || !root || r->store.n_tries >= LOAD_MAX_TRIES ||
        atomic_load_explicit(&l->is_condemned, memory_order_relaxed) || !look_up(e, r, root, now, &k))
        return false;
    if (store_shared_ask(e, r, k.first + k.n, k.n_full, compute_ns(e, l->o.page_tokens), now)) return true;
    weigh_shared(e, &k);
    if (k.n == 0 && !k.has_end) return false;
    job = find_job(l, &k);
    if (!job && pays(e, &k)) job = begin_load(e, r, root, &k, now);
    if (!job) return false;
    join(e, r, job, now);
    return true;
}

void store_load_leave(struct engine *e, struct request *r)
{
    if (r->store.job) part(e, r);
    store_shared_leave(e, r);
    if (e->o.store) store_link_unref_spaces(e, r);
}

/* ---- the loader's half ---- */

/* Those that are stored as they are, then those that are packed. */
uint32_t store_load_read_disk(struct store_link *l, const struct load_job *job, uint32_t n_most)
{
    uint32_t end = job->first + n_most, i = job->first;
    void *unpacking = job->n > job->n_disk ? l->shared->unpacking : l->unpacking; /* each loader has its own */

    while (i < end && !store_link_packs(l, i)) i++;
    if (i > job->first) {
        uint32_t n =
            page_store_read(l->store, job->space, job->digests, job->tokens, job->first, i, job->bytes, &l->stop);

        if (n < i - job->first) return n;
    }
    for (; i < end; i++) {
        if (!job->packed_space || page_store_read(l->store, job->packed_space, job->digests, job->tokens, i, i + 1,
                                                  &unpacking, &l->stop) != 1)
            break;
        l->o.unpack(l->o.codec, unpacking, job->bytes[i - job->first]);
    }
    return i - job->first;
}

void store_load_hand_back(struct store_link *l, struct load_job *job)
{
    mutex_lock(&l->lock);
    job->next = l->done_head;
    l->done_head = job;
    if (l->engine_bell) wake_ring(l->engine_bell);
    mutex_unlock(&l->lock);
}

bool store_load_one(struct store_link *l)
{
    struct load_job *job;
    uint64_t begin;

    mutex_lock(&l->lock);
    job = l->load_head;
    if (job) {
        l->load_head = job->next;
        if (!l->load_head) l->load_tail = NULL;
    }
    mutex_unlock(&l->lock);
    if (!job) return false;
    begin = clock_now_ns(l->o.clock);
    job->n_read = store_load_read_disk(l, job, job->n);
    job->end_read = job->end && job->n_read == job->n && store_end_read(l, job->end, job->end_bytes);
    if (job->end_read && job->end->t > 0) memcpy(job->bytes[job->n], job->end_bytes, l->o.page_bytes);
    job->took_ns = clock_now_ns(l->o.clock) - begin;
    store_load_hand_back(l, job);
    return true;
}

/* ---- attaching ---- */

/* Tokens of the chain that came. */
static uint32_t n_keys_read(const struct store_link *l, const struct load_job *job)
{
    return (job->first + job->n_read) * l->o.page_tokens + (job->end_read ? job->end->t : 0);
}

/* What came, from staging to the device's pages; what does not get there did not come. */
static void copy_in(struct engine *e, struct load_job *job)
{
    const struct executor *x = &e->o.executor;
    uint32_t n = job->n_read + (job->end_read && job->end->t > 0);

    for (uint32_t i = 0; job->staging && i < n; i++) {
        if (x->page_in(x->self, job->pages[job->first + i], job->bytes[i]) == RD_OK) {
            if (!executor_has_window(x, job->bytes[i])) kv_loan_close_windows(&e->cache, &job->loan, i + 1);
            continue;
        }
        job->n_read = u32_min(job->n_read, i);
        job->end_read = false;
        return;
    }
}

static void note_price(uint64_t *smoothed, uint64_t took_ns, uint32_t n_pages)
{
    if (n_pages > 0) *smoothed = *smoothed ? (*smoothed * 3 + took_ns / n_pages) / 4 : took_ns / n_pages;
}

static void attach(struct engine *e, struct load_job *job, uint64_t now)
{
    struct store_link *l = e->o.store;
    uint32_t n_pages, n;
    struct radix_node *node;

    copy_in(e, job);
    if (job->n_read < job->n) job->n_read = sure_pages(job->tokens, job->first, job->n_read, l->o.page_tokens);
    n_pages = job->n_read + job->end_read;
    n = n_keys_read(l, job);
    for (uint32_t i = job->first; i < job->first + job->n_taken; i++) {
        if (i < job->first + job->n_read) page_pool_set_fill(e->pool, job->pages[i], l->o.page_tokens);
        ENGINE_TELL(page_begun, (e, job->pages[i]));
        if (l->is_lossy) l->is_lossy[job->pages[i]] = i < job->first + job->n && store_link_packs(l, i);
    }
    if (job->end_read && job->end->t > 0) page_pool_set_fill(e->pool, job->pages[job->first + job->n], job->end->t);
    /* the tree may have got some of it meanwhile; without memory the request computes */
    if (n_pages > 0 && radix_insert_ready(e->cache.tree, job->root, job->tokens, n, job->pages, now, &node) == RD_OK) {
        l->counts.n_pages_loaded += n_pages;
        if (job->end_read && radix_node_start(node) + radix_node_n_keys(node) == n &&
            radix_node_n_computed(node) == radix_node_n_keys(node))
            radix_set_state(e->cache.tree, node, job->end_bytes + l->o.page_bytes, l->ends.state_bytes);
    }
    kv_loan_end(&e->cache, &job->loan);
    kv_unhold(&e->cache, job->hold);
    l->counts.n_loading -= job->n_taken;
    if (job->n > job->n_disk)
        note_price(&l->shared->page_ns, job->took_ns, job->n_read > job->n_disk ? job->n_read - job->n_disk : 0);
    else
        note_price(&l->load_page_ns, job->took_ns, n_pages);
}

/* What of r came from the shared store; what did not come is not there. */
static void note_shared(const struct store_link *l, struct request *r, const struct load_job *job)
{
    if (job->n == job->n_disk) return;
    if (job->n_read < job->n) r->store.n_shared = 0;
    if (job->n_read <= job->n_disk) return;
    if (r->store.shared_to == 0) r->store.shared_from = (job->first + job->n_disk) * l->o.page_tokens;
    r->store.shared_to = u32_max(r->store.shared_to, (job->first + job->n_read) * l->o.page_tokens);
}

static void finish_job(struct engine *e, struct load_job *job, uint64_t now)
{
    struct store_link *l = e->o.store;
    uint32_t i = 0;
    bool came = job->n_read + job->end_read > 0;

    attach(e, job, now);
    if (job->n_read > job->n_disk) l->counts.n_shared_pages += job->n_read - job->n_disk;
    for (struct request *r = e->queue_head; r && job->n_requests > 0; r = r->next) {
        if (r->store.job != job) continue;
        if (came && (r->store.to == 0 || job->n_held < r->store.from)) r->store.from = job->n_held;
        if (came) r->store.to = u32_max(r->store.to, n_keys_read(l, job));
        note_shared(l, r, job);
        part(e, r);
    }
    assert(job->n_requests == 0);
    while (l->in_flight[i] != job) i++;
    l->in_flight[i] = l->in_flight[--l->n_in_flight];
    free_job(l, job);
    e->blocked = false;
}

void store_load_collect(struct engine *e, uint64_t now)
{
    struct store_link *l = e->o.store;
    struct load_job *done;

    store_shared_collect(e, now);
    if (!l || l->n_in_flight == 0) return;
    mutex_lock(&l->lock);
    done = l->done_head;
    l->done_head = NULL;
    mutex_unlock(&l->lock);
    for (struct load_job *next; done; done = next) {
        next = done->next;
        finish_job(e, done, now);
    }
    for (struct request *r = e->queue_head; r && e->n_loading > 0; r = r->next) {
        if (!r->store.job || now < r->store.deadline_ns) continue;
        part(e, r);
        r->store.n_tries = LOAD_MAX_TRIES;
        l->counts.n_loads_late++;
        e->blocked = false;
    }
}

void store_load_finish(struct engine *e)
{
    struct store_link *l = e->o.store;

    if (!l) return;
    atomic_store_explicit(&l->stop, true, memory_order_relaxed);
    while (l->n_in_flight > 0) {
        if (!l->o.threads)
            store_link_work(l);
        else
            clock_sleep_ns(1000000);
        store_load_collect(e, clock_now_ns(e->o.clock));
    }
    store_shared_finish(e);
}
