/* engine/engine.c - creation, the thread, the inbox, calls between steps, published statistics. */
#include "engine/engine.h"
#include <assert.h>
#include <string.h>
#include "backend/spin_pause.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/seq_words.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

#define WAITERS_PER_RUNNING 4u /* live sequences that only wait for others cost a slot, but no rows */
#define N_TASKS             256u

struct engine_task {
    void (*fn)(struct engine *e, void *arg);
    void *arg;
    bool posted; /* nobody waits for it: freed once done */
    struct mutex lock;
    struct cond cond;
    bool done;
};

static void copy_rows(void *arg, kv_page to, kv_page from, uint32_t n_rows)
{
    struct engine *e = arg;

    e->o.executor.copy_rows(e->o.executor.self, to, from, n_rows);
    ENGINE_TELL(page_copied, (e, to, from));
}

static void zero_page(void *arg, kv_page id)
{
    struct engine *e = arg;
    const struct executor *x = &e->o.executor;

    if (x->page)
        memset(x->page(x->self, id), 0, x->page_bytes);
    else
        (void)x->page_in(x->self, id, e->zeros); /* a device that cannot write it fails the step, too */
}

static rd_status isolate(struct engine *e)
{
    const struct executor *x = &e->o.executor;

    if (!e->o.isolate) return RD_OK;
    e->cache.zero_page = zero_page;
    e->cache.tenants = e->tenants = mem_zalloc((size_t)e->o.n_pages + x->n_windows, sizeof(*e->tenants));
    if (!e->tenants || x->page) return e->tenants ? RD_OK : RD_E_NOMEM;
    e->zeros = mem_map(x->page_bytes);
    return e->zeros ? RD_OK : RD_E_NOMEM;
}

/* The thread that calls next owns the engine, its tree and its pages. */
static void hand_over(struct engine *e)
{
    thread_owner_release(&e->owner);
    radix_hand_over(e->cache.tree);
    ENGINE_TELL(hand_over, (e));
}

rd_status engine_create(const struct engine_options *o, struct engine **out)
{
    struct engine *e = mem_zalloc(1, sizeof(*e));
    rd_status st = RD_E_NOMEM;

    assert(o->n_pages >= 2 && o->max_running > 0 && o->executor.max_rows >= o->max_running &&
           o->executor.max_logits > 0);
    assert(!o->executor.vision || !o->executor.vision->both_ways ||
           o->executor.max_rows > o->executor.vision->max_rows);
    if (!e) return st;
    e->o = *o;
    e->max_live = o->max_running * WAITERS_PER_RUNNING;
    e->logits_bytes = (uint64_t)o->executor.max_logits * o->executor.n_vocab * sizeof(float);
    random_init(&e->chunk_random, o->chunk_seed);
    meter_init(&e->meter);
    e->live = mem_zalloc(e->max_live, sizeof(struct request *));
    e->logits = mem_map(e->logits_bytes);
    e->space_name = mem_alloc(o->namespace_bytes + KV_SPACE_NAME_MAX, 1);
    if (!e->live || !e->logits || !e->space_name) goto fail;
    if (o->namespace_bytes > 0) memcpy(e->space_name, o->namespace_name, o->namespace_bytes);
    e->o.namespace_name = e->space_name; /* the caller's may be gone after this call */
    if ((st = page_pool_create(o->n_pages, o->page_tokens, &e->pool)) != RD_OK) goto fail;
    if ((st = radix_create(e->pool, &e->cache.tree)) != RD_OK) goto fail;
    if ((st = radix_namespace(e->cache.tree, o->namespace_name, o->namespace_bytes, &e->root)) != RD_OK) goto fail;
    radix_measure_evictions(e->cache.tree, &e->meter.of[RD_HIST_EVICTED_AGE], o->clock);
    if (o->executor.window) {
        if ((st = page_pool_make_windows(e->pool, o->executor.n_windows)) != RD_OK) goto fail;
        o->executor.use_windows(o->executor.self, page_pool_windows(e->pool));
        e->cache.window = o->executor.window;
    }
    e->cache.pool = e->pool;
    e->cache.copy_rows = copy_rows;
    e->cache.copy_arg = e;
    if ((st = isolate(e)) != RD_OK) goto fail;
    e->cache.state_bytes = o->executor.n_state * (uint32_t)sizeof(float);
    if ((st = sampler_scratch_create(o->executor.n_vocab, &e->scratch)) != RD_OK) goto fail;
    if ((st = plan_create(e)) != RD_OK) goto fail;
    if ((st = queue_create((size_t)o->max_queue + e->max_live, &e->inbox)) != RD_OK) goto fail;
    if ((st = queue_create(N_TASKS, &e->tasks)) != RD_OK) goto fail;
    if ((st = wake_create(&e->bell)) != RD_OK) goto fail;
    if ((st = engine_begin_all(e)) != RD_OK) goto fail;
    engine_publish_stats(e);
    hand_over(e);
    *out = e;
    return RD_OK;

fail:
    engine_destroy(e);
    return st;
}

static void end_everything(struct engine *e)
{
    struct request *r;

    if (e->plan.batch.tokens) step_ahead_drop(e);
    while (e->inbox && (r = queue_try_pop(e->inbox))) queue_put(e, r, false);
    while (e->queue_head) request_end(e, e->queue_head, REQUEST_ERROR, RD_E_CLOSED);
    while (e->n_live) request_end(e, e->live[e->n_live - 1], REQUEST_ERROR, RD_E_CLOSED);
}

void engine_destroy(struct engine *e)
{
    if (!e) return;
    engine_stop(e);
    ENGINE_TELL(let_go, (e));
    queue_destroy(e->inbox);
    queue_destroy(e->tasks);
    wake_destroy(e->bell);
    plan_destroy(e);
    sampler_scratch_destroy(e->scratch);
    radix_destroy(e->cache.tree);
    page_pool_destroy(e->pool);
    mem_unmap(e->logits, e->logits_bytes);
    mem_free(e->space_name);
    mem_free(e->tenants);
    if (e->zeros) mem_unmap(e->zeros, e->o.executor.page_bytes);
    mem_free(e->live);
    mem_free(e);
}

static void run_tasks(struct engine *e)
{
    struct engine_task *t;

    while ((t = queue_try_pop(e->tasks))) {
        t->fn(e, t->arg);
        if (t->posted) {
            mem_free(t);
            continue;
        }
        e->blocked = false;      /* a handle may have been given back */
        engine_publish_stats(e); /* what the caller reads next includes what fn did */
        mutex_lock(&t->lock);
        t->done = true;
        cond_signal(&t->cond);
        mutex_unlock(&t->lock);
    }
}

#define WARM_UP_AFTER_NS 10000000ull /* so that requests that follow each other closely do not meet it */
#define LOOK_NS          200000ull /* a thread that sleeps needs 50 us and more to wake: a GPU stands still meanwhile */

/* The bell rings soon after the last work has ended. */
static bool rings_soon(struct engine *e)
{
    const uint64_t until = clock_now_ns(clock_system()) + LOOK_NS;
    bool rings = false;

    while (!(rings = wake_wait(e->bell, 0)) && clock_now_ns(clock_system()) < until) pause_briefly();
    return rings;
}

/* Waits for something to do. As long as there is something to warm up, that is done in between, a piece at a time. */
static void wait_for_work(struct engine *e, bool *is_warm)
{
    const struct executor *x = &e->o.executor;

    *is_warm |= !x->warm_up;
    if (x->crosses_bus && rings_soon(e)) return;
    if (*is_warm)
        wake_wait(e->bell, 1000000000ull); /* once a second for TTL and accounting */
    else if (!wake_wait(e->bell, WARM_UP_AFTER_NS))
        *is_warm = x->warm_up(x->self) != RD_E_AGAIN;
}

static void engine_main(void *arg)
{
    struct engine *e = arg;
    bool is_warm = false;

    while (!atomic_load_explicit(&e->closed, memory_order_relaxed)) {
        run_tasks(e);
        if (!engine_step(e)) wait_for_work(e, &is_warm);
    }
    end_everything(e);
    run_tasks(e);
    engine_publish_stats(e);
    hand_over(e);
}

rd_status engine_start(struct engine *e)
{
    rd_status st;

    hand_over(e);
    st = thread_start(&e->thread, "engine", engine_main, e);
    e->started = st == RD_OK;
    return st;
}

void engine_stop(struct engine *e)
{
    atomic_store_explicit(&e->closed, true, memory_order_relaxed);
    if (e->inbox) queue_close(e->inbox); /* a submit that races with us fails or is ended below */
    if (e->started) {
        wake_ring(e->bell);
        thread_join(&e->thread);
        e->started = false;
    }
    if (e->tasks) {
        queue_close(e->tasks);
        run_tasks(e);
    }
    end_everything(e);
}

rd_status engine_take_place(struct engine *e)
{
    unsigned n = atomic_load_explicit(&e->n_places, memory_order_relaxed);

    if (atomic_load_explicit(&e->closed, memory_order_relaxed)) return RD_E_CLOSED;
    do {
        if (n >= e->o.max_queue) return RD_E_FULL;
    } while (
        !atomic_compare_exchange_weak_explicit(&e->n_places, &n, n + 1, memory_order_relaxed, memory_order_relaxed));
    return RD_OK;
}

void engine_keep_place(struct engine *e)
{
    atomic_fetch_add_explicit(&e->n_places, 1, memory_order_relaxed);
}

void engine_give_place(struct engine *e)
{
    atomic_fetch_sub_explicit(&e->n_places, 1, memory_order_relaxed);
}

uint32_t engine_n_places(const struct engine *e, uint32_t *n_max)
{
    *n_max = e->o.max_queue;
    return atomic_load_explicit(&e->n_places, memory_order_relaxed);
}

uint32_t engine_max_prompt(const struct engine *e)
{
    /* one more page than the tokens fill: the copy of a shared first page */
    uint64_t by_pages = (uint64_t)(e->o.n_pages - 1) * e->o.page_tokens - 1;

    return (uint32_t)u64_min(by_pages, e->o.n_ctx - 1);
}

rd_status engine_submit(struct engine *e, struct request *r)
{
    rd_status st;

    if (r->n_prompt > engine_max_prompt(e) + (r->p.max_tokens == 0)) return RD_E_CONTEXT;
    r->usage.submitted_ns = clock_now_ns(e->o.clock);
    request_ref(r);
    atomic_fetch_add(&e->n_handed, 1);
    st = queue_push(e->inbox, r);
    if (st != RD_OK) {
        atomic_fetch_sub(&e->n_handed, 1);
        request_unref(r);
        return st;
    }
    wake_ring(e->bell);
    return RD_OK;
}

void engine_kick(struct engine *e)
{
    wake_ring(e->bell);
}

rd_status engine_call(struct engine *e, void (*fn)(struct engine *e, void *arg), void *arg)
{
    struct engine_task t = {.fn = fn, .arg = arg};
    rd_status st;

    mutex_init(&t.lock);
    cond_init(&t.cond);
    st = queue_push(e->tasks, &t);
    if (st == RD_E_CLOSED || !e->started) {
        if (st == RD_OK)
            run_tasks(e); /* no thread: we are it */
        else
            fn(e, arg);
        st = RD_OK;
    } else if (st == RD_OK) {
        wake_ring(e->bell);
        mutex_lock(&t.lock);
        while (!t.done)
            cond_wait(&t.cond, &t.lock); /* the engine thread runs every task, also the last ones when it stops */
        mutex_unlock(&t.lock);
    }
    cond_deinit(&t.cond);
    mutex_deinit(&t.lock);
    return st;
}

/* ---- holding a path for the next turn ---- */

struct hold_task {
    struct engine_task task;
    struct kv_space space;
    uint32_t n;
    kv_key keys[];
};

static void hold_next(struct engine *e, void *arg)
{
    struct hold_task *h = arg;
    struct radix_node *root = engine_root_of(e, &h->space);

    if (root) radix_hold_next(e->cache.tree, root, h->keys, h->n);
}

rd_status engine_hold_next(struct engine *e, const struct kv_space *space, const kv_key *keys, uint32_t n)
{
    struct hold_task *h = mem_alloc(sizeof(*h) + (size_t)n * sizeof(*keys), 1);
    rd_status st;

    if (!h) return RD_E_NOMEM;
    *h = (struct hold_task){.task = {.fn = hold_next, .arg = h, .posted = true}, .space = *space, .n = n};
    memcpy(h->keys, keys, (size_t)n * sizeof(*keys));
    st = queue_push(e->tasks, &h->task);
    if (st == RD_OK)
        wake_ring(e->bell);
    else
        mem_free(h);
    return st;
}

struct kv_cache *engine_cache(struct engine *e)
{
    return &e->cache;
}
struct radix_node *engine_root(struct engine *e)
{
    return e->root;
}

uint32_t engine_evict(struct engine *e, uint32_t n_pages)
{
    uint32_t n_free = page_pool_n_free(e->pool), n = radix_evict(e->cache.tree, n_pages);

    ENGINE_TELL(evicted, (e)); /* what left before is free now, too, when there was nothing more to evict */
    n_free = page_pool_n_free(e->pool) - u32_min(n_free, page_pool_n_free(e->pool));
    return u32_max(n, n_free);
}

uint64_t engine_clear_cache(struct engine *e)
{
    ENGINE_TELL(cleared, (e));
    return radix_clear(e->cache.tree, NULL);
}

uint32_t engine_n_lossy(struct engine *e, const struct radix_match *m)
{
    kv_page *pages = e->o.store ? mem_alloc(m->n_ready / e->o.page_tokens + 1, sizeof(*pages)) : NULL;
    const struct radix_node *node = m->node;
    uint32_t n;

    if (!pages) return 0;
    while (radix_node_start(node) >= m->n_ready && radix_node_parent(node)) node = radix_node_parent(node);
    radix_path_pages(e->cache.tree, node, m->n_ready, pages);
    n = engine_n_lossy_of(e, pages, m->n_ready);
    mem_free(pages);
    return n;
}

static void gather_stats(struct engine *e)
{
    struct page_counts c = page_pool_counts(e->pool);
    struct window_counts w = page_pool_window_counts(e->pool);
    struct radix_counts t = radix_counts(e->cache.tree);
    struct engine_stats *s = &e->stats;

    s->n_queued = e->n_queue;
    s->n_loading = e->n_loading;
    s->n_waiting = s->n_prefill = s->n_decode = s->n_paused = 0;
    for (uint32_t i = 0; i < e->n_live; i++) {
        const struct request *r = e->live[i];

        if (r->seq.state == KV_SEQ_WAITING)
            s->n_waiting++;
        else if (r->n_generated > 0)
            s->n_decode++;
        else
            s->n_prefill++;
        s->n_paused += request_ring_full(r);
    }
    s->pages_total = c.n_total;
    s->pages_free = c.n_free;
    s->pages_ready = c.n_ready;
    s->pages_locked = c.n_locked;
    s->pages_pending = c.n_pending;
    s->pages_quarantined = c.n_quarantined;
    s->pages_evicted = t.n_pages_evicted;
    s->windows_total = w.n_total, s->windows_free = w.n_free, s->windows_kept = w.n_kept, s->windows_used = w.n_used;
    s->windows_dropped = w.n_dropped;
    s->window_cuts = e->cache.n_cut_short, s->window_cut_tokens = e->cache.n_cut_tokens;
    s->tree_nodes = t.n_nodes;
    s->tree_keys = t.n_keys;
    s->tree_bytes = t.node_bytes;
    s->rows_copied = e->cache.n_rows_copied;
    memcpy(s->class_keys, t.class_keys, sizeof(s->class_keys));
    memcpy(s->depth_nodes, t.depth_nodes, sizeof(s->depth_nodes));
    memcpy(s->depth_keys, t.depth_keys, sizeof(s->depth_keys));
    memcpy(s->pages_gone, t.pages_gone, sizeof(s->pages_gone));
    memcpy(s->keys_gone, t.keys_gone, sizeof(s->keys_gone));
    ENGINE_TELL(gather, (e, s));
    s->prefill_milli_tok_s = e->prefill_rate;
    s->decode_milli_tok_s = e->decode_rate;
}

void engine_publish_stats(struct engine *e)
{
    gather_stats(e);
    seq_words_write(&e->stats_version, e->stats_words, &e->stats, ENGINE_STATS_WORDS);
}

void engine_get_histogram(const struct engine *e, enum rd_histogram_id id, struct rd_histogram *out)
{
    meter_read(&e->meter, id, out);
}

void engine_get_stats(struct engine *e, struct engine_stats *out)
{
    while (!seq_words_read(&e->stats_version, e->stats_words, out, ENGINE_STATS_WORDS)) {}
    out->n_turns = atomic_load_explicit(&e->n_turns, memory_order_relaxed);
    out->n_beats = atomic_load_explicit(&e->n_beats, memory_order_relaxed);
    out->n_queued += atomic_load(&e->n_handed) - out->n_submitted; /* what the engine has not looked at waits, too */
}

rd_status engine_check(struct engine *e, struct rd_error *err)
{
    struct page_counts c = page_pool_counts(e->pool);
    uint32_t n = 0, n_ready_to_run = 0;
    rd_status st = kv_check(&e->cache, err);

    if (st == RD_OK) st = engine_check_all(e, err);
    if (st != RD_OK) return st;
    if (c.n_free + c.n_ready + c.n_locked + c.n_pending + c.n_quarantined != c.n_total)
        return error_set(err, RD_E_INTERNAL, "page states do not add up to %u", c.n_total);
    for (struct request *r = e->queue_head; r; r = r->next) {
        n++;
        if (r->state != REQUEST_QUEUED)
            return error_set(err, RD_E_INTERNAL, "queued request in state %d", (int)r->state);
    }
    if (n != e->n_queue) return error_set(err, RD_E_INTERNAL, "%u requests in the queue, %u counted", n, e->n_queue);
    for (uint32_t i = 0; i < e->n_live; i++) {
        if (e->live[i]->state != REQUEST_LIVE)
            return error_set(err, RD_E_INTERNAL, "live request in state %d", (int)e->live[i]->state);
        n_ready_to_run += e->live[i]->seq.state == KV_SEQ_RUNNABLE;
    }
    if (e->n_live > 0 && n_ready_to_run == 0)
        return error_set(err, RD_E_INTERNAL, "%u requests wait and nothing runs", e->n_live);
    return RD_OK;
}
