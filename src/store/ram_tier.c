/* store/ram_tier.c - slots in one list by use, an index of digests, and a thread that prepares memory ahead. */
#include "store/ram_tier.h"
#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "store/digest_table.h"

#define CHUNK_BYTES   (16ull << 20) /* of a tier of 512 MiB or more; smaller ones have about 32 chunks */
#define LEAST_CHUNK   4096ull
#define AHEAD_CHUNKS  256u         /* pages leave faster (up to 55 GB/s) than memory is pinned (about 2 GB/s) */
#define URGENT_CHUNKS 64u          /* prepared without a rest, once there was no memory for a page */
#define REST_TIMES    9u           /* pinning keeps the driver from launching steps: a tenth of the time, while all */
#define REST_MOST_NS  200000000ull /* that is wanted is ahead of need */
#define NONE          RAM_NO_SLOT

struct ram_slot {
    struct hash128 digest;
    uint32_t newer, older; /* by use; free slots: older is the next free one */
    uint32_t n_holders;
    bool is_used;
};

struct ram_tier {
    struct ram_tier_options o;
    struct digest_table table; /* digest -> slot, in `slot`; segment is 0 */
    struct ram_slot *slots;    /* [n_slots] */
    uint32_t *tokens;          /* [n_slots, page_tokens] */
    uint32_t n_slots, n_fresh; /* slots below n_fresh were used once */
    uint32_t newest, oldest, free;
    struct ram_tier_counts counts;

    uint8_t *memory; /* [n_chunks * chunk_bytes], mapped, touched chunk by chunk */
    uint64_t chunk_bytes;
    uint32_t slots_per_chunk, n_chunks;
    atomic_uint n_ready; /* chunks prepared: the thread writes (release), its user reads (acquire) */

    struct thread thread;
    struct mutex lock; /* guards what follows, and pinning */
    struct cond bell;
    uint32_t n_wanted;
    uint32_t n_urgent; /* this many chunks without a rest */
    bool closing;
    void (*pin)(void *arg, void *p, uint64_t n_bytes, bool on);
    void *pin_arg;
};

/* ---- memory ---- */

static void *chunk_at(const struct ram_tier *t, uint32_t i)
{
    return t->memory + i * t->chunk_bytes;
}

/* Its pages are there before anything is copied to it, and pinned. */
static void prepare_chunk(struct ram_tier *t, uint32_t i)
{
    uint8_t *chunk = chunk_at(t, i);

    mem_advise_huge(chunk, t->chunk_bytes);
    for (uint64_t at = 0; at < t->chunk_bytes; at += 4096) *(volatile uint8_t *)(chunk + at) = 0;
    mutex_lock(&t->lock);
    if (t->pin) t->pin(t->pin_arg, chunk, t->chunk_bytes, true);
    atomic_store_explicit(&t->n_ready, i + 1, memory_order_release);
    mutex_unlock(&t->lock);
}

static void grow_main(void *arg)
{
    struct ram_tier *t = arg;
    uint64_t rest_ns = 0;

    for (;;) {
        uint32_t n = atomic_load_explicit(&t->n_ready, memory_order_relaxed);
        uint64_t begin;

        mutex_lock(&t->lock);
        if (!t->closing && n >= t->n_urgent && rest_ns > 0) cond_wait_ns(&t->bell, &t->lock, rest_ns);
        while (!t->closing && (n >= t->n_wanted || n >= t->n_chunks)) cond_wait(&t->bell, &t->lock);
        if (t->closing) {
            mutex_unlock(&t->lock);
            return;
        }
        mutex_unlock(&t->lock);
        begin = clock_now_ns(clock_system());
        prepare_chunk(t, n);
        rest_ns = u64_min((clock_now_ns(clock_system()) - begin) * REST_TIMES, REST_MOST_NS);
    }
}

static void call_for_memory(struct ram_tier *t)
{
    mutex_lock(&t->lock);
    t->n_urgent = t->n_fresh / t->slots_per_chunk + URGENT_CHUNKS;
    cond_signal(&t->bell);
    mutex_unlock(&t->lock);
}

/* Chunks for the slots in use and some ahead. */
static void want_chunks(struct ram_tier *t)
{
    uint32_t n = u32_min(t->n_fresh / t->slots_per_chunk + AHEAD_CHUNKS, t->n_chunks);

    if (n <= t->n_wanted) return;
    if (!t->o.thread) {
        t->n_wanted = n;
        for (uint32_t i = atomic_load_explicit(&t->n_ready, memory_order_relaxed); i < n; i++) prepare_chunk(t, i);
        return;
    }
    mutex_lock(&t->lock);
    t->n_wanted = n;
    cond_signal(&t->bell);
    mutex_unlock(&t->lock);
}

static void pin_all(struct ram_tier *t, bool on)
{
    uint32_t n = atomic_load_explicit(&t->n_ready, memory_order_relaxed);

    for (uint32_t i = 0; t->pin && i < n; i++) t->pin(t->pin_arg, chunk_at(t, i), t->chunk_bytes, on);
}

void ram_tier_pin(struct ram_tier *t, void (*pin)(void *arg, void *p, uint64_t n_bytes, bool on), void *arg)
{
    mutex_lock(&t->lock);
    t->pin = pin;
    t->pin_arg = arg;
    pin_all(t, true);
    mutex_unlock(&t->lock);
}

void ram_tier_unpin(struct ram_tier *t)
{
    mutex_lock(&t->lock);
    pin_all(t, false);
    t->pin = NULL;
    mutex_unlock(&t->lock);
}

/* ---- life ---- */

rd_status ram_tier_create(const struct ram_tier_options *o, struct ram_tier **out)
{
    struct ram_tier *t = mem_zalloc(1, sizeof(*t));
    rd_status st = RD_E_NOMEM;
    uint64_t chunk_bytes;

    assert(o->page_bytes > 0 && o->page_tokens > 0 && o->n_bytes >= o->page_bytes);
    if (!t) return st;
    t->o = *o;
    mutex_init(&t->lock);
    cond_init(&t->bell);
    t->newest = t->oldest = t->free = NONE;
    chunk_bytes = u64_max(u64_min(o->n_bytes / 32, CHUNK_BYTES), LEAST_CHUNK);
    t->slots_per_chunk = (uint32_t)u64_max(chunk_bytes / o->page_bytes, 1);
    t->slots_per_chunk = (uint32_t)u64_min(t->slots_per_chunk, o->n_bytes / o->page_bytes);
    if (!checked_align(t->slots_per_chunk * o->page_bytes, 4096, &t->chunk_bytes)) goto fail;
    t->n_chunks = (uint32_t)u64_min(u64_max(o->n_bytes / t->chunk_bytes, 1), UINT32_MAX / 2 / t->slots_per_chunk);
    t->n_slots = t->n_chunks * t->slots_per_chunk;
    t->slots = mem_zalloc(t->n_slots, sizeof(*t->slots));
    t->tokens = mem_zalloc((size_t)t->n_slots * o->page_tokens, sizeof(*t->tokens));
    t->memory = mem_map(t->n_chunks * t->chunk_bytes);
    if (!t->slots || !t->tokens || !t->memory) goto fail;
    t->counts.n_slots = t->n_slots;
    if (o->thread && (st = thread_start(&t->thread, "ram tier", grow_main, t)) != RD_OK) goto fail;
    want_chunks(t);
    *out = t;
    return RD_OK;

fail:
    ram_tier_destroy(t);
    return st;
}

void ram_tier_destroy(struct ram_tier *t)
{
    if (!t) return;
    mutex_lock(&t->lock);
    t->closing = true;
    cond_signal(&t->bell);
    mutex_unlock(&t->lock);
    thread_join(&t->thread);
    if (t->pin) ram_tier_unpin(t);
    cond_deinit(&t->bell);
    mutex_deinit(&t->lock);
    digest_table_deinit(&t->table);
    if (t->memory) mem_unmap(t->memory, t->n_chunks * t->chunk_bytes);
    mem_free(t->tokens);
    mem_free(t->slots);
    mem_free(t);
}

/* ---- slots ---- */

static void unlink_slot(struct ram_tier *t, uint32_t i)
{
    struct ram_slot *s = &t->slots[i];

    *(s->newer != NONE ? &t->slots[s->newer].older : &t->newest) = s->older;
    *(s->older != NONE ? &t->slots[s->older].newer : &t->oldest) = s->newer;
}

static void link_newest(struct ram_tier *t, uint32_t i)
{
    t->slots[i].newer = NONE;
    t->slots[i].older = t->newest;
    *(t->newest != NONE ? &t->slots[t->newest].newer : &t->oldest) = i;
    t->newest = i;
}

static void link_oldest(struct ram_tier *t, uint32_t i)
{
    t->slots[i].older = NONE;
    t->slots[i].newer = t->oldest;
    *(t->oldest != NONE ? &t->slots[t->oldest].older : &t->newest) = i;
    t->oldest = i;
}

uint32_t ram_tier_find(const struct ram_tier *t, struct hash128 digest, const uint32_t *tokens)
{
    const struct digest_place *p = digest_table_find(&t->table, digest);
    size_t n = t->o.page_tokens;

    return p && memcmp(t->tokens + p->slot * n, tokens, n * sizeof(*tokens)) == 0 ? p->slot : NONE;
}

void ram_tier_drop(struct ram_tier *t, uint32_t slot)
{
    assert(t->slots[slot].is_used && t->slots[slot].n_holders == 0);
    digest_table_remove(&t->table, t->slots[slot].digest);
    unlink_slot(t, slot);
    t->slots[slot].is_used = false;
    t->slots[slot].older = t->free;
    t->free = slot;
    t->counts.n_pages--;
}

/* A slot that nobody uses; NONE: there is none. */
static uint32_t free_slot(struct ram_tier *t)
{
    uint32_t slot = t->free, n_ready = atomic_load_explicit(&t->n_ready, memory_order_acquire);

    if (slot == NONE && t->n_fresh < n_ready * t->slots_per_chunk) {
        slot = t->n_fresh++;
        want_chunks(t);
        return slot;
    }
    if (slot == NONE && t->n_fresh < t->n_slots) { /* dropped for want of time, pages would go in circles */
        call_for_memory(t);
        return NONE;
    }
    if (slot == NONE) {
        for (slot = t->oldest; slot != NONE && t->slots[slot].n_holders > 0;) slot = t->slots[slot].newer;
        if (slot == NONE) return NONE;
        ram_tier_drop(t, slot);
        t->counts.n_dropped++;
    }
    t->free = t->slots[slot].older;
    return slot;
}

uint32_t ram_tier_take(struct ram_tier *t, struct hash128 digest, const uint32_t *tokens)
{
    uint32_t slot;

    if (digest_table_find(&t->table, digest)) return NONE; /* another page's, which two texts never share by chance */
    slot = free_slot(t);
    if (slot == NONE) return NONE;
    t->slots[slot] = (struct ram_slot){.digest = digest, .n_holders = 1, .is_used = true};
    if (digest_table_insert(&t->table, (struct digest_place){digest, 0, slot}) != RD_OK) {
        t->slots[slot] = (struct ram_slot){.older = t->free};
        t->free = slot;
        return NONE;
    }
    memcpy(t->tokens + (size_t)slot * t->o.page_tokens, tokens, t->o.page_tokens * sizeof(*tokens));
    link_newest(t, slot);
    t->counts.n_pages++;
    t->counts.n_put++;
    return slot;
}

void *ram_tier_bytes(const struct ram_tier *t, uint32_t slot)
{
    uint8_t *chunk = chunk_at(t, slot / t->slots_per_chunk);

    return chunk + slot % t->slots_per_chunk * t->o.page_bytes;
}

void ram_tier_hold(struct ram_tier *t, uint32_t slot)
{
    t->slots[slot].n_holders++;
}

void ram_tier_release(struct ram_tier *t, uint32_t slot)
{
    assert(t->slots[slot].n_holders > 0);
    t->slots[slot].n_holders--;
}

bool ram_tier_is_held(const struct ram_tier *t, uint32_t slot)
{
    return t->slots[slot].n_holders > 0;
}

void ram_tier_touch(struct ram_tier *t, uint32_t slot)
{
    unlink_slot(t, slot);
    link_newest(t, slot);
}

void ram_tier_retire(struct ram_tier *t, uint32_t slot)
{
    unlink_slot(t, slot);
    link_oldest(t, slot);
}

void ram_tier_clear(struct ram_tier *t)
{
    for (uint32_t slot = t->oldest, next; slot != NONE; slot = next) {
        next = t->slots[slot].newer;
        if (t->slots[slot].n_holders == 0) ram_tier_drop(t, slot);
    }
}

struct ram_tier_counts ram_tier_get_counts(const struct ram_tier *t)
{
    return t->counts;
}
