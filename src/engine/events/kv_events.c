/* engine/events/kv_events.c - names of pages, the queue, and the thread behind it. */
#include "engine/events/kv_events.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/engine_state.h"
#include "engine/events/event_batch.h"
#include "engine/listener.h"

#define QUEUE_BYTES (8ull << 20)
#define BATCH_MOST  1024u
#define REST_NS     20000000ull /* how long events wait for others, and a replay for its answer */
#define SEED        "0"         /* as PYTHONHASHSEED=0 */

struct page_name {
    struct block_hash hash;
    bool is_valid;
};

struct kv_events {
    struct kv_events_options o;
    struct event_socket *socket;
    struct thread thread;
    struct block_hash seed;

    /* engine thread */
    struct page_name *names; /* [n_pages] */
    uint64_t *table;         /* [n_table] numbers of hashes that pages have, open addressing; 0: free */
    uint32_t *n_holders;     /* [n_table] pages with it */
    uint32_t n_table;        /* a power of two, twice the pages or more */

    struct mutex lock; /* guards all below */
    struct cond bell;
    uint8_t *queue; /* [cap] of event_bytes */
    size_t event_bytes;
    uint32_t cap, head, n;
    bool closing, has_lost, anew; /* anew: a clear was told */
    struct kv_events_counts counts;
};

/* ---- how many pages have a hash ---- */

static uint64_t key_of(const struct block_hash *h)
{
    uint64_t n = block_hash_number(h);

    return n ? n : 1;
}

static uint32_t find(const struct kv_events *k, uint64_t key)
{
    uint32_t at = (uint32_t)key & (k->n_table - 1);

    while (k->table[at] && k->table[at] != key) at = (at + 1) & (k->n_table - 1);
    return at;
}

/* True: it is the first. */
static bool hold(struct kv_events *k, uint64_t key)
{
    uint32_t at = find(k, key);

    k->table[at] = key;
    return k->n_holders[at]++ == 0;
}

/* True: it was the last. What stands behind it moves up, so that it is found. */
static bool let_go_of(struct kv_events *k, uint64_t key)
{
    uint32_t mask = k->n_table - 1, gap = find(k, key);

    if (!k->table[gap] || --k->n_holders[gap] > 0) return false;
    for (uint32_t at = (gap + 1) & mask; k->table[at]; at = (at + 1) & mask) {
        uint32_t home = (uint32_t)k->table[at] & mask;

        if (((at - home) & mask) < ((at - gap) & mask)) continue;
        k->table[gap] = k->table[at];
        k->n_holders[gap] = k->n_holders[at];
        gap = at;
    }
    k->table[gap] = 0;
    k->n_holders[gap] = 0;
    return true;
}

/* ---- the queue ---- */

static struct kv_event *event_at(const struct kv_events *k, uint32_t i)
{
    return (struct kv_event *)(void *)(k->queue + (size_t)((k->head + i) % k->cap) * k->event_bytes);
}

/* A place at the end, under the lock; NULL: it is lost. */
static struct kv_event *push(struct kv_events *k)
{
    if (k->n == k->cap) k->has_lost = true;
    if (k->has_lost) {
        k->counts.n_dropped++;
        return NULL;
    }
    if (k->n == 0) cond_signal(&k->bell);
    return event_at(k, k->n++);
}

static void tell_stored(struct kv_events *k, const struct block_hash *hash, const struct block_hash *parent,
                        const char *extra, const kv_key *keys)
{
    struct kv_event *e;

    mutex_lock(&k->lock);
    e = push(k);
    if (e) {
        e->kind = KV_EVENT_STORED;
        e->hash = *hash;
        e->has_parent = parent != NULL;
        if (parent) e->parent = *parent;
        snprintf(e->extra, sizeof(e->extra), "%s", extra);
        memcpy(e->tokens, keys, k->o.page_tokens * sizeof(*keys));
        k->counts.n_stored++;
    }
    mutex_unlock(&k->lock);
}

static void forget(struct kv_events *k, kv_page page)
{
    struct page_name *name = &k->names[page];
    struct kv_event *e;

    if (!name->is_valid) return;
    name->is_valid = false;
    if (!let_go_of(k, key_of(&name->hash))) return;
    mutex_lock(&k->lock);
    e = push(k);
    if (e) {
        e->kind = KV_EVENT_REMOVED;
        e->hash = name->hash;
        k->counts.n_removed++;
    }
    mutex_unlock(&k->lock);
}

/* ---- what the engine tells ---- */

/* What keeps a namespace's blocks apart from others', in front of its first. */
static void extra_of(const struct kv_space *space, char extra[33])
{
    struct hash128 h = hash128_of(space, sizeof(*space));

    extra[0] = 0;
    if (space->salt.low | space->salt.high | space->adapter.low | space->adapter.high)
        snprintf(extra, 33, "%016" PRIx64 "%016" PRIx64, h.high, h.low);
}

/* r's pages that are full, those that it found among them. One that it found keeps the name that it has: pages of public
 * prompts are in several namespaces. */
static void name_pages(struct engine *e, struct request *r)
{
    struct kv_events *k = e->o.events;
    uint32_t P = e->o.page_tokens, n_full = r->seq.n_computed / P;
    char extra[33] = "";

    if (!r->seq.cached || r->seq.state != KV_SEQ_RUNNABLE || r->events.n_named >= n_full) return;
    if (r->events.n_named == 0) extra_of(&r->p.space, extra);
    for (uint32_t *i = &r->events.n_named; *i < n_full; (*i)++) {
        const kv_key *keys = r->seq.keys + (size_t)*i * P;
        struct block_hash before = k->seed, *last = (struct block_hash *)r->events.last;
        struct page_name *name = &k->names[r->seq.pages[*i]];

        if (*i) before = *last;
        block_hash_next(k->o.hash, &before, keys, P, *i == 0 && *extra ? extra : NULL, last);
        if (name->is_valid && (memcmp(&name->hash, last, sizeof(*last)) == 0 || (*i + 1) * P <= r->usage.n_match))
            continue;
        forget(k, r->seq.pages[*i]);
        *name = (struct page_name){*last, true};
        if (hold(k, key_of(last))) tell_stored(k, last, *i ? &before : NULL, *i == 0 ? extra : "", keys);
    }
}

/* Everything was cleared for those who listen: what is used from now on is told again. */
static void begin_anew(struct kv_events *k)
{
    bool anew;

    mutex_lock(&k->lock);
    anew = k->anew;
    k->anew = false;
    mutex_unlock(&k->lock);
    if (!anew) return;
    memset(k->names, 0, k->o.n_pages * sizeof(*k->names));
    memset(k->table, 0, k->n_table * sizeof(*k->table));
    memset(k->n_holders, 0, k->n_table * sizeof(*k->n_holders));
}

static void name_all(struct engine *e, uint64_t now)
{
    (void)now;
    if (e->o.events) begin_anew(e->o.events);
    for (uint32_t i = 0; e->o.events && i < e->plan.batch.n_runs; i++)
        if (e->plan.run_request[i]) name_pages(e, e->plan.run_request[i]);
}

static void name_rest(struct engine *e, struct request *r, bool is_kept)
{
    if (e->o.events && is_kept && r->state == REQUEST_LIVE) name_pages(e, r);
}

/* Its pages will be others. */
static void name_again(struct engine *e, struct request *r)
{
    (void)e;
    r->events.n_named = 0;
}

static void note_begun(struct engine *e, kv_page page)
{
    if (e->o.events) forget(e->o.events, page);
}

static void note_free(void *arg, kv_page page)
{
    forget(arg, page);
}

static rd_status begin(struct engine *e)
{
    if (e->o.events) page_pool_on_free(e->pool, note_free, e->o.events);
    return RD_OK;
}

static void gather(const struct engine *e, struct engine_stats *s)
{
    if (e->o.events) kv_events_get_counts(e->o.events, &s->events);
}

const struct engine_listener listens_events = {
    .begin = begin,
    .gather = gather,
    .committed = name_all,
    .preempting = name_again,
    .ending = name_rest,
    .page_begun = note_begun,
};

/* ---- the thread ---- */

/* Takes events of the queue into a batch; NULL: there are none, or no memory. */
static char *take_batch(struct kv_events *k, size_t *n_bytes)
{
    const struct event_form f = {k->o.maps, k->o.numbers, k->o.page_tokens};
    struct kv_event cleared = {.kind = KV_EVENT_CLEARED};
    struct buf out = {0};
    bool clears;
    uint32_t n;

    mutex_lock(&k->lock);
    n = u32_min(k->n, BATCH_MOST);
    clears = k->has_lost && n == k->n; /* behind all that was told */
    mutex_unlock(&k->lock);
    if (n == 0 && !clears) return NULL;
    event_batch_begin(&out, (double)clock_wall_s(clock_system()), n + clears);
    for (uint32_t i = 0; i < n; i++) event_batch_put(&out, &f, event_at(k, i)); /* the engine only adds behind them */
    if (clears) event_batch_put(&out, &f, &cleared);
    event_batch_end(&out);
    mutex_lock(&k->lock);
    k->head = (k->head + n) % k->cap;
    k->n -= n;
    if (out.failed) k->has_lost = true;
    if (clears && !out.failed) {
        k->has_lost = false;
        k->anew = true;
        k->counts.n_cleared++;
    }
    k->counts.n_batches += !out.failed;
    mutex_unlock(&k->lock);
    return buf_take(&out, n_bytes);
}

static void events_main(void *arg)
{
    struct kv_events *k = arg;
    bool closing;

    do {
        uint32_t n_replays;
        size_t n;
        char *batch;

        mutex_lock(&k->lock);
        if (k->n == 0 && !k->has_lost && !k->closing) (void)cond_wait_ns(&k->bell, &k->lock, REST_NS);
        closing = k->closing;
        mutex_unlock(&k->lock);
        while ((batch = take_batch(k, &n))) event_socket_publish(k->socket, batch, n);
        n_replays = event_socket_replay(k->socket);
        mutex_lock(&k->lock);
        k->counts.n_replays += n_replays;
        mutex_unlock(&k->lock);
    } while (!closing);
}

/* ---- life ---- */

rd_status kv_events_create(const struct kv_events_options *o, struct kv_events **out, struct rd_error *err)
{
    struct kv_events *k = mem_zalloc(1, sizeof(*k));
    rd_status st = RD_E_NOMEM;

    if (!k) return st;
    k->o = *o;
    mutex_init(&k->lock);
    cond_init(&k->bell);
    block_hash_seed(o->hash, SEED, &k->seed);
    for (k->n_table = 64; k->n_table < 2 * o->n_pages;) k->n_table *= 2;
    k->event_bytes = (sizeof(struct kv_event) + 4 * (size_t)o->page_tokens + 7) / 8 * 8;
    k->cap = (uint32_t)u64_max(QUEUE_BYTES / k->event_bytes, 64);
    k->names = mem_zalloc(o->n_pages, sizeof(*k->names));
    k->table = mem_zalloc(k->n_table, sizeof(*k->table));
    k->n_holders = mem_zalloc(k->n_table, sizeof(*k->n_holders));
    k->queue = mem_zalloc(k->cap, k->event_bytes);
    if (!k->names || !k->table || !k->n_holders || !k->queue) goto fail;
    st = event_socket_open(&o->socket, &k->socket, err);
    if (st == RD_OK) st = thread_start(&k->thread, "kv-events", events_main, k);
    if (st != RD_OK) goto fail;
    memset(&k->o.socket, 0, sizeof(k->o.socket));
    *out = k;
    return RD_OK;

fail:
    kv_events_destroy(k);
    return st;
}

void kv_events_destroy(struct kv_events *k)
{
    if (!k) return;
    mutex_lock(&k->lock);
    k->closing = true;
    cond_signal(&k->bell);
    mutex_unlock(&k->lock);
    thread_join(&k->thread);
    event_socket_close(k->socket);
    cond_deinit(&k->bell);
    mutex_deinit(&k->lock);
    mem_free(k->names);
    mem_free(k->table);
    mem_free(k->n_holders);
    mem_free(k->queue);
    mem_free(k);
}

void kv_events_get_counts(struct kv_events *k, struct kv_events_counts *out)
{
    mutex_lock(&k->lock);
    *out = k->counts;
    out->is_on = 1;
    mutex_unlock(&k->lock);
}
