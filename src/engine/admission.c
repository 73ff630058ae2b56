/* engine/admission.c - the queue, round robin between API keys, and the decision to let a request in.
 *
 * A request is admitted when the pages that its prompt still needs, plus what admitted prompts were promised, plus one
 * page for every live sequence, are free or evictable. The match is locked first: its own prefix may be the oldest
 * leaf. Where some layers have windows of their own, those that all sequences use must fit, too. When the next request does not fit, nothing behind it is let in (no starvation), until a live sequence has
 * released something.
 */
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "engine/engine_state.h"
#include "engine/images.h"
#include "engine/listener.h"

void queue_put(struct engine *e, struct request *r, bool at_head)
{
    assert(!r->prev && !r->next);
    r->state = REQUEST_QUEUED;
    if (!e->queue_head) {
        e->queue_head = e->queue_tail = r;
    } else if (at_head) {
        r->next = e->queue_head;
        e->queue_head->prev = r;
        e->queue_head = r;
    } else {
        r->prev = e->queue_tail;
        e->queue_tail->next = r;
        e->queue_tail = r;
    }
    e->n_queue++;
}

void queue_remove(struct engine *e, struct request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        e->queue_head = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        e->queue_tail = r->prev;
    r->prev = r->next = NULL;
    e->n_queue--;
}

static struct fair_slot *fair_find(struct engine *e, uint64_t key)
{
    for (uint32_t i = 0; i < ENGINE_FAIR_SLOTS; i++)
        if (e->fair[i].last_tick && e->fair[i].key == key) return &e->fair[i];
    return NULL;
}

static void fair_touch(struct engine *e, struct request *r)
{
    const uint64_t key = r->p.fair_key;
    struct fair_slot *slot = fair_find(e, key);

    if (!slot) {
        slot = &e->fair[0]; /* the slot that was served longest ago gives way */
        for (uint32_t i = 1; i < ENGINE_FAIR_SLOTS; i++)
            if (e->fair[i].last_tick < slot->last_tick) slot = &e->fair[i];
        *slot = (struct fair_slot){.key = key};
    }
    slot->last_tick = ++e->fair_tick;
    memcpy(r->turns, slot->turns, sizeof(r->turns));
}

void fair_had_turn(struct engine *e, uint64_t key, enum request_turn turn)
{
    struct fair_slot *slot = fair_find(e, key);
    const uint64_t tick = ++e->turn_tick;

    if (slot) slot->turns[turn] = tick;
    for (uint32_t i = 0; i < e->n_live; i++)
        if (e->live[i]->p.fair_key == key) e->live[i]->turns[turn] = tick;
}

/* The first in the queue that is idle, or is not; those that load are passed. */
static struct request *first_of(const struct engine *e, bool idle)
{
    struct request *r = e->queue_head;

    while (r && (r->p.idle != idle || request_is_away(r))) r = r->next;
    return r;
}

/* The oldest request of the key that was served longest ago. Preempted requests come first: they have been served and
 * wait at the head. Idle ones come when there is no other. */
static struct request *next_in_turn(struct engine *e)
{
    struct request *best = first_of(e, false);
    uint64_t best_tick = UINT64_MAX;

    if (!best) return e->n_live == 0 ? first_of(e, true) : NULL;
    if (best->admitted_before) return best;
    for (struct request *r = best; r && best_tick > 0; r = r->next) {
        struct fair_slot *slot = fair_find(e, r->p.fair_key);
        uint64_t tick = slot ? slot->last_tick : 0;

        if (tick < best_tick && !r->p.idle && !request_is_away(r)) {
            best_tick = tick;
            best = r;
        }
    }
    return best;
}

/* Pages that this sequence will still take until its first sampled token has a place. */
static uint32_t pages_to_come(const struct kv_seq *seq, uint32_t page_tokens)
{
    uint32_t n_have = seq->state == KV_SEQ_WAITING ? seq->wait_until : seq->n_computed;
    uint32_t n_want = u32_ceil_div(seq->n_keys + 1, page_tokens);

    return n_want > n_have / page_tokens ? n_want - n_have / page_tokens : 0;
}

uint64_t admission_promised(const struct engine *e)
{
    uint64_t n = engine_promised(e);

    for (uint32_t i = 0; i < e->n_live; i++) {
        const struct kv_seq *seq = &e->live[i]->seq;
        bool decoding = seq->state == KV_SEQ_RUNNABLE && seq->n_computed + 1 >= seq->n_keys;

        n += decoding ? 1 : pages_to_come(seq, e->o.page_tokens);
    }
    return n;
}

uint32_t admission_pages_behind(const struct engine *e, const struct request *r, uint32_t n_there)
{
    uint32_t n_all = u32_ceil_div(r->seq.n_keys + 1, e->o.page_tokens);

    return n_all > n_there ? n_all - n_there : 0;
}

/* Whether n pages are free, or held by nobody who works. */
static bool has_room(const struct engine *e, uint64_t n)
{
    struct page_counts c = page_pool_counts(e->pool);

    return n <= (uint64_t)c.n_free + c.n_ready;
}

bool admission_make_loan_room(struct engine *e, const struct request *r, uint32_t n_there, uint32_t n_beside,
                              uint32_t n)
{
    uint64_t need = (uint64_t)admission_pages_behind(e, r, n_there) + n_beside;

    if (!has_room(e, need + admission_promised(e))) return false;
    while (page_pool_n_free(e->pool) < n)
        if (engine_evict(e, n - page_pool_n_free(e->pool)) == 0) return false;
    return true;
}

/* Windows that a sequence uses at most, beside those of a chunk's pages. */
static uint64_t windows_of(const struct engine *e, const struct kv_seq *seq)
{
    uint32_t n = e->cache.window / e->o.page_tokens + 3;

    if (seq->n_wholes > 0)
        n += u32_ceil_div(images_most_rows(e), e->o.page_tokens) + 1; /* an image comes in one piece */
    return u32_min(u32_ceil_div(seq->n_keys + 1, e->o.page_tokens) + 1, n);
}

/* What all use, as if they shared none, and one of them alone always has enough. */
static bool fit_windows(const struct engine *e, const struct kv_seq *seq)
{
    uint64_t n = windows_of(e, seq);

    if (!e->cache.window || e->n_live == 0) return true;
    for (uint32_t i = 0; i < e->n_live; i++) n += windows_of(e, &e->live[i]->seq);
    return n <= page_pool_window_counts(e->pool).n_total;
}

static bool fits(const struct engine *e, const struct kv_seq *seq)
{
    if (!fit_windows(e, seq)) return false;
    return has_room(e, pages_to_come(seq, e->o.page_tokens) + (e->n_live > 0 ? admission_promised(e) : 0));
}

static void count_admission(struct engine *e, struct request *r, uint64_t now)
{
    if (r->admitted_before) return;
    r->admitted_before = true;
    r->usage.admitted_ns = now;
    r->usage.match = r->seq.match_kind;
    r->usage.n_match = r->seq.n_match;
    if (r->seq.cached) radix_count_hit(e->cache.tree, r->seq.node, r->seq.n_hit);
    if (r->p.cached) e->stats.matches[r->seq.match_kind]++;
    if (r->seq.cached)
        r->usage.miss =
            engine_miss_cause(e, r->seq.root, r->seq.keys, r->seq.n_keys, r->seq.n_match, r->seq.match_kind);
    if (e->cache.window && r->seq.n_again > r->seq.n_computed) r->usage.miss = MISS_WINDOW;
    e->stats.misses[r->usage.miss] += r->seq.cached;
    engine_give_place(e);
}

struct radix_node *engine_root_of(struct engine *e, const struct kv_space *space)
{
    struct radix_node *root = NULL;
    size_t n = kv_space_name(space, e->space_name + e->o.namespace_bytes);

    if (n == 0) return e->root;
    (void)radix_namespace(e->cache.tree, e->space_name, e->o.namespace_bytes + n, &root);
    return root;
}

struct radix_node *root_of(struct engine *e, const struct request *r)
{
    return engine_root_of(e, &r->p.space);
}

enum miss_cause engine_miss_cause(struct engine *e, const struct radix_node *root, const kv_key *keys, uint32_t n,
                                  uint32_t n_match, enum radix_match_kind kind)
{
    enum ghost_cause ghost = n_match < n ? radix_cause(e->cache.tree, root, keys, n_match) : GHOST_NONE;

    _Static_assert((int)MISS_CLEARED - (int)MISS_DIFFERENT == (int)GHOST_CLEARED, "causes go together");
    if (n_match == n) return MISS_NONE;
    if (ghost != GHOST_NONE) return (enum miss_cause)((int)MISS_DIFFERENT + (int)ghost);
    if (kind == RADIX_PREFIX) return MISS_NEW_END;
    return n_match == 0 ? MISS_NEW : MISS_DIFFERENT;
}

/* True: admitted, ended, or it loads; go on with the next. False: it does not fit now. */
static bool admit_one(struct engine *e, struct request *r, uint64_t now)
{
    struct radix_node *root = r->p.cached && !r->p.prompt_logprobs ? root_of(e, r) : NULL;
    rd_status st;

    if (root) ENGINE_TELL(matching, (e, r, root, now));
    if (engine_waits(e, r, root, now)) return true;
    st = kv_seq_admit(&r->seq, root, now);
    if (st == RD_E_NOMEM && root) {
        e->stats.insert_failed++;
        st = kv_seq_admit(&r->seq, NULL, now); /* no memory for a node never fails a request */
    }
    if (st != RD_OK) {
        request_end(e, r, REQUEST_ERROR, st);
        return true;
    }
    if (!fits(e, &r->seq)) {
        kv_seq_finish(&r->seq, false, now);
        if (e->n_live > 0 || engine_n_out(e) > 0) return false;
        if (r->p.idle) { /* not worth anything that is stored */
            request_end(e, r, REQUEST_ERROR, RD_E_NO_PAGES);
            return true;
        }
        if (radix_clear(e->cache.tree, NULL) > 0)
            return true;                                 /* forks on its own path took the room: once more, without */
        request_end(e, r, REQUEST_ERROR, RD_E_NO_PAGES); /* handles hold the rest: nothing would ever release it */
        return true;
    }
    queue_remove(e, r);
    r->state = REQUEST_LIVE;
    e->live[e->n_live++] = r;
    ENGINE_TELL(admitted, (e, r));
    fair_touch(e, r);
    count_admission(e, r, now);
    return true;
}

static uint32_t n_runnable(const struct engine *e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->n_live; i++) n += e->live[i]->seq.state == KV_SEQ_RUNNABLE;
    return n;
}

/* Idle requests go back to the queue; what they have computed stays in the tree. */
static void make_way(struct engine *e)
{
    if (!first_of(e, false)) return;
    for (uint32_t i = 0; i < e->n_live;) {
        if (!e->live[i]->p.idle) {
            i++;
            continue;
        }
        request_preempt(e, e->live[i]);
        e->blocked = false;
    }
}

static uint32_t n_of_key(const struct engine *e, uint64_t key)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->n_live; i++) n += e->live[i]->p.fair_key == key;
    return n;
}

/* The first in the queue of whose key nothing is live. */
static struct request *first_with_nothing(const struct engine *e)
{
    struct request *r = e->queue_head;

    while (r && (r->p.idle || request_is_away(r) || n_of_key(e, r->p.fair_key) > 0)) r = r->next;
    return r;
}

/* Of the key that has most of those that compute, two at least, the one that was admitted last. */
static struct request *newest_of_many(const struct engine *e)
{
    struct request *newest = NULL;
    uint32_t most = 1;

    for (uint32_t i = e->n_live; i-- > 0;) {
        struct request *r = e->live[i];
        uint32_t n = r->seq.state == KV_SEQ_RUNNABLE ? n_of_key(e, r->p.fair_key) : 0;

        if (n <= most) continue;
        most = n;
        newest = r;
    }
    return newest;
}

/* All places are taken. A key that has none does not wait for the end of long answers while another has several: it is
 * admitted beside them, and then one of those gives its place up. That one is the next to come back, and goes on from what
 * the tree keeps. A key that has one place keeps it, so that no two take it from each other. */
static void share_places(struct engine *e, uint64_t now)
{
    struct request *r, *giving;

    while (n_runnable(e) >= e->o.max_running && e->n_live < e->max_live && (r = first_with_nothing(e)) &&
           (giving = newest_of_many(e))) {
        uint32_t n_before = e->n_live;

        if (!admit_one(e, r, now)) {
            e->blocked = true;
            return;
        }
        if (e->n_live == n_before || e->live[n_before]->seq.state != KV_SEQ_RUNNABLE) continue;
        request_preempt(e, giving);
        e->blocked = false; /* it did fit */
    }
}

void admission_run(struct engine *e)
{
    uint64_t now = clock_now_ns(e->o.clock);
    struct request *r;

    make_way(e);
    if (e->blocked && e->n_live > 0) return;
    e->blocked = false;
    while (e->n_live < e->max_live && n_runnable(e) < e->o.max_running && (r = next_in_turn(e))) {
        if (!admit_one(e, r, now)) {
            e->blocked = true;
            return;
        }
    }
    share_places(e, now);
}
