/* backend/ranks.c - a counter that all ranks raise, and a generation that the last one of them raises.
 *
 *     rank:  slot[rank][generation & 1] = own -> here |= rank -> the last? here = 0, generation + 1, wake
 *                                                                  else    spin, then sleep until the generation changes
 *
 * Two slots: a fast rank may be at the next meeting while a slow one still reads what was shown at this one; it cannot be
 * at the one after that, which needs the slow one.
 * No wake-up is lost: a rank that sleeps counts itself, then looks at the generation again, under the mutex; the last one
 * writes the generation, then looks at the count (both sequentially consistent), and signals under the mutex.
 */
#include "backend/ranks.h"
#include <assert.h>
#include <stdatomic.h>
#include "backend/spin_pause.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/thread.h"

#define SLICE_NS    100000000u /* of a wait: a pause of the whole process counts as one */
#define WORDS_BYTES 4096u

struct slot {
    _Alignas(64) _Atomic(const void *) own[2]; /* released by here, acquired by the generation */
};

struct rank_group {
    uint32_t n, n_spin;
    uint64_t patience_ns;
    struct slot *slots; /* [n] */
    struct rank_words *words;
    _Alignas(64) _Atomic uint32_t here;     /* bits of the ranks that have come */
    _Alignas(64) _Atomic uint32_t meetings; /* generation: how many are over */
    _Atomic uint32_t n_asleep;              /* changed under the mutex */
    _Atomic int left;                       /* rd_status of who left first; RD_OK: nobody */
    struct mutex mutex;
    struct cond change; /* waits have deadlines */
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
    mutex_init(&g->mutex);
    cond_init(&g->change);
    *out = g;
    return RD_OK;
}

void rank_group_destroy(struct rank_group *g)
{
    if (!g) return;
    cond_deinit(&g->change);
    mutex_deinit(&g->mutex);
    mem_free_aligned(g->slots);
    mem_free_aligned(g->words);
    mem_free_aligned(g);
}

static bool is_over(const struct rank_group *g, uint32_t meeting)
{
    return atomic_load(&g->meetings) != meeting || atomic_load_explicit(&g->left, memory_order_acquire) != RD_OK;
}

static void wake(struct rank_group *g)
{
    if (atomic_load(&g->n_asleep) == 0) return;
    mutex_lock(&g->mutex);
    cond_broadcast(&g->change);
    mutex_unlock(&g->mutex);
}

/* Nobody came for too long: the group is lost with the first rank that is missing. */
static void give_up(struct rank_group *g)
{
    const uint32_t here = atomic_load(&g->here);
    uint32_t rank = 0, none = 0;

    while (here >> rank & 1) rank++;
    if (rank < g->n) atomic_compare_exchange_strong(&g->words->lost, &none, rank + 1);
    rank_group_leave(g, RD_E_DEVICE);
}

static void wait_for(struct rank_group *g, uint32_t meeting)
{
    uint64_t waited = 0;

    for (uint32_t i = 0; i < g->n_spin; i++) {
        if (is_over(g, meeting)) return;
        pause_briefly();
    }
    mutex_lock(&g->mutex);
    atomic_fetch_add(&g->n_asleep, 1);
    while (!is_over(g, meeting) && waited < g->patience_ns)
        if (!cond_wait_ns(&g->change, &g->mutex, u64_min(SLICE_NS, g->patience_ns))) waited += SLICE_NS;
    atomic_fetch_sub(&g->n_asleep, 1);
    mutex_unlock(&g->mutex);
    if (!is_over(g, meeting)) give_up(g);
}

rd_status rank_group_meet(struct rank_group *g, uint32_t rank, const void *own, const void *all[RANKS_MAX])
{
    const uint32_t meeting = atomic_load_explicit(&g->meetings, memory_order_relaxed), which = meeting & 1;
    const uint32_t everyone = (1u << g->n) - 1, bit = 1u << rank;
    int left = atomic_load_explicit(&g->left, memory_order_acquire);

    assert(rank < g->n);
    if (left != RD_OK) return (rd_status)left;
    atomic_store_explicit(&g->slots[rank].own[which], own, memory_order_relaxed);
    if ((atomic_fetch_or(&g->here, bit) | bit) == everyone) {
        atomic_store(&g->here, 0);
        atomic_store(&g->meetings, meeting + 1);
        wake(g);
    } else {
        wait_for(g, meeting);
    }
    if (atomic_load(&g->meetings) == meeting) return (rd_status)atomic_load_explicit(&g->left, memory_order_acquire);
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
    if (atomic_load(&g->words->lost)) return;
    atomic_store(&g->here, 0);
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
