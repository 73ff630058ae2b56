/* backend/ranks.c - every rank counts its own meetings, where the others look.
 *
 *     rank:  slot[rank].own[number & 1] = own -> slot[rank].came = number -> have all come as far?
 *                                    yes: wake who sleeps, go on     no: spin, then sleep until they have
 *
 * Two places: a fast rank may be at the next meeting while a slow one still reads what was shown at this one; it cannot be
 * at the one after that, which needs the slow one.
 * No locks: a rank that is stopped, wherever that is, keeps the others from nothing but the meetings that it has not come to, and
 * these end with their patience. Of ranks that come last together one at least sees that all are there (sequentially
 * consistent), and wakes; were it stopped before that, the sleepers look by themselves after a slice.
 */
#include "backend/ranks.h"
#include <assert.h>
#include <stdatomic.h>
#include "backend/spin_pause.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/word_wait.h"

#define SLICE_NS    100000000u /* of a wait: a pause of the whole process counts as one */
#define WORDS_BYTES 4096u

struct slot {
    _Alignas(64) _Atomic(const void *) own[2]; /* released by came */
    _Atomic uint32_t came;                     /* meetings; written by its rank alone, and by reset */
};

struct rank_group {
    uint32_t n, n_spin;
    uint64_t patience_ns;
    struct slot *slots; /* [n] */
    struct rank_words *words;
    _Alignas(64) _Atomic uint32_t change; /* of what sleepers wait for: raised after it */
    _Atomic uint32_t n_asleep;            /* or about to be */
    _Atomic int left;                     /* rd_status of who left first; RD_OK: nobody */
};

rd_status rank_group_create(uint32_t n, uint32_t n_spin, uint64_t patience_ns, struct rank_group **out)
{
    struct rank_group *g = mem_alloc_aligned(sizeof(*g));
    struct slot *slots = mem_alloc_aligned(n * sizeof(*slots));
    struct rank_words *words = mem_alloc_aligned(WORDS_BYTES);

    assert(n >= 1 && n <= RANKS_MAX);
    if (!g || !slots || !words) {
        mem_free_aligned(words);
        mem_free_aligned(g);
        mem_free_aligned(slots);
        return RD_E_NOMEM;
    }
    g->n = n;
    g->n_spin = n_spin;
    g->patience_ns = patience_ns;
    g->slots = slots;
    g->words = words;
    *out = g;
    return RD_OK;
}

void rank_group_destroy(struct rank_group *g)
{
    if (!g) return;
    mem_free_aligned(g->slots);
    mem_free_aligned(g->words);
    mem_free_aligned(g);
}

/* The first rank that has not come to that meeting; n: all have. */
static uint32_t first_missing(const struct rank_group *g, uint32_t number)
{
    for (uint32_t i = 0; i < g->n; i++)
        if ((int32_t)(atomic_load(&g->slots[i].came) - number) < 0) return i;
    return g->n;
}

static bool is_over(const struct rank_group *g, uint32_t number)
{
    return first_missing(g, number) == g->n || atomic_load(&g->left) != RD_OK;
}

static void wake(struct rank_group *g)
{
    atomic_fetch_add(&g->change, 1);
    if (atomic_load(&g->n_asleep) > 0) word_wake_all(&g->change);
}

/* Nobody came for too long: the group is lost with the first rank that is missing. */
static void give_up(struct rank_group *g, uint32_t number)
{
    const uint32_t rank = first_missing(g, number);
    uint32_t none = 0;

    if (rank == g->n) return; /* now it has come */
    atomic_compare_exchange_strong(&g->words->lost, &none, rank + 1);
    rank_group_leave(g, RD_E_DEVICE);
}

static void wait_for(struct rank_group *g, uint32_t number)
{
    uint64_t waited = 0;

    for (uint32_t i = 0; i < g->n_spin; i++) {
        if (is_over(g, number)) return;
        pause_briefly();
    }
    atomic_fetch_add(&g->n_asleep, 1);
    while (waited < g->patience_ns) {
        const uint32_t seen = atomic_load(&g->change);

        if (is_over(g, number)) break;
        if (!word_wait_ns(&g->change, seen, u64_min(SLICE_NS, g->patience_ns))) waited += SLICE_NS;
    }
    atomic_fetch_sub(&g->n_asleep, 1);
    if (!is_over(g, number)) give_up(g, number);
}

rd_status rank_group_meet(struct rank_group *g, uint32_t rank, const void *own, const void *all[RANKS_MAX])
{
    struct slot *slot = &g->slots[rank];
    const uint32_t number = atomic_load_explicit(&slot->came, memory_order_relaxed) + 1, which = number & 1;
    const int left = atomic_load(&g->left);

    assert(rank < g->n);
    if (left != RD_OK) return (rd_status)left;
    atomic_store_explicit(&slot->own[which], own, memory_order_relaxed);
    atomic_store(&slot->came, number);
    if (first_missing(g, number) == g->n)
        wake(g);
    else
        wait_for(g, number);
    if (first_missing(g, number) < g->n) return (rd_status)atomic_load(&g->left);
    for (uint32_t i = 0; i < g->n; i++) all[i] = atomic_load_explicit(&g->slots[i].own[which], memory_order_relaxed);
    return RD_OK;
}

void rank_group_leave(struct rank_group *g, rd_status why)
{
    int nobody = RD_OK;

    atomic_compare_exchange_strong(&g->left, &nobody, (int)why);
    atomic_store(&g->words->stop, 1);
    wake(g);
}

void rank_group_reset(struct rank_group *g)
{
    uint32_t most = atomic_load(&g->slots[0].came);

    if (atomic_load(&g->words->lost)) return;
    for (uint32_t i = 1; i < g->n; i++) /* who left has come to fewer; none is more than one behind another */
        if ((int32_t)(atomic_load(&g->slots[i].came) - most) > 0) most = atomic_load(&g->slots[i].came);
    for (uint32_t i = 0; i < g->n; i++) atomic_store(&g->slots[i].came, most);
    atomic_store(&g->left, RD_OK);
    atomic_store(&g->words->stop, 0);
}

bool rank_group_has_lost(const struct rank_group *g, uint32_t *rank)
{
    const uint32_t lost = atomic_load(&g->words->lost);

    if (lost) *rank = lost - 1;
    return lost != 0;
}

struct rank_words *rank_group_words(struct rank_group *g)
{
    return g->words;
}

uint64_t rank_group_patience(const struct rank_group *g)
{
    return g->patience_ns;
}
