/* backend/load_ring.c - pieces counted from the start of the ring: sent <= taken <= put <= sent + n_stages. */
#include "backend/load_ring.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/thread.h"

struct load_stage {
    char *to;
    const char *from;
    uint64_t n_bytes, n_left; /* n_left: not filled yet */
};

struct load_ring {
    struct load_target target;
    struct load_stage *stages; /* [n_stages] */
    uint32_t n_stages, n_threads;
    struct thread *threads;          /* [n_threads] */
    struct mutex lock;               /* of all below, and of the stages */
    struct cond work, sent;          /* there are slices to take; n_sent grew */
    uint64_t n_put, n_taken, n_sent; /* pieces; taken: all their slices are */
    uint64_t at;                     /* of piece n_taken: bytes taken */
    int error;
    bool is_sending, stops;
};

static struct load_stage *stage_of(struct load_ring *ring, uint64_t piece)
{
    return &ring->stages[piece % ring->n_stages];
}

/* Under the lock, which it leaves meanwhile: one thread at a time sends what is filled, in order. */
static void send_filled(struct load_ring *ring)
{
    if (ring->is_sending) return; /* that thread looks again */
    ring->is_sending = true;
    while (ring->n_sent < ring->n_put && stage_of(ring, ring->n_sent)->n_left == 0) {
        uint32_t stage = (uint32_t)(ring->n_sent % ring->n_stages);
        uint64_t n_bytes = ring->stages[stage].n_bytes;
        bool failed = ring->error != 0;
        int error = 0;

        mutex_unlock(&ring->lock);
        if (!failed) error = ring->target.send(ring->target.arg, stage, n_bytes);
        mutex_lock(&ring->lock);
        if (error && !ring->error) ring->error = error;
        ring->n_sent++;
        cond_signal(&ring->sent); /* the putting thread alone waits for it */
    }
    ring->is_sending = false;
}

/* Under the lock, which it leaves meanwhile. false: every slice is taken. */
static bool fill_slice(struct load_ring *ring)
{
    struct load_stage *stage = stage_of(ring, ring->n_taken);
    uint64_t at = ring->at, n;

    if (ring->n_taken == ring->n_put) return false;
    n = u64_min(LOAD_SLICE_BYTES, stage->n_bytes - at);
    ring->at += n;
    if (ring->at == stage->n_bytes) {
        ring->n_taken++;
        ring->at = 0;
    }
    mutex_unlock(&ring->lock);
    file_populate(stage->from + at, n);
    memcpy(stage->to + at, stage->from + at, (size_t)n);
    mutex_lock(&ring->lock);
    stage->n_left -= n;
    if (stage->n_left == 0) send_filled(ring);
    return true;
}

static void load_main(void *arg)
{
    struct load_ring *ring = arg;

    mutex_lock(&ring->lock);
    while (!ring->stops)
        if (!fill_slice(ring)) cond_wait(&ring->work, &ring->lock);
    mutex_unlock(&ring->lock);
}

rd_status load_ring_create(char *const *stages, uint32_t n_stages, uint32_t n_threads, const struct load_target *target,
                           struct load_ring **out)
{
    struct load_ring *ring = mem_zalloc(1, sizeof(*ring));

    assert(n_stages > 0 && target && out);
    if (!ring) return RD_E_NOMEM;
    mutex_init(&ring->lock);
    cond_init(&ring->work);
    cond_init(&ring->sent);
    ring->target = *target;
    ring->n_stages = n_stages;
    ring->stages = mem_zalloc(n_stages, sizeof(*ring->stages));
    ring->threads = mem_zalloc(u32_max(n_threads, 1), sizeof(*ring->threads));
    if (!ring->stages || !ring->threads) {
        load_ring_destroy(ring);
        return RD_E_NOMEM;
    }
    for (uint32_t i = 0; i < n_stages; i++) ring->stages[i].to = stages[i];
    for (; ring->n_threads < n_threads; ring->n_threads++)
        if (thread_start(&ring->threads[ring->n_threads], "load", load_main, ring) != RD_OK) break;
    *out = ring;
    return RD_OK;
}

void load_ring_destroy(struct load_ring *ring)
{
    if (!ring) return;
    mutex_lock(&ring->lock);
    ring->stops = true;
    cond_broadcast(&ring->work);
    mutex_unlock(&ring->lock);
    for (uint32_t i = 0; i < ring->n_threads; i++) thread_join(&ring->threads[i]);
    cond_deinit(&ring->sent);
    cond_deinit(&ring->work);
    mutex_deinit(&ring->lock);
    mem_free(ring->threads);
    mem_free(ring->stages);
    mem_free(ring);
}

/* Under the lock: until n pieces are sent. */
static void wait_sent(struct load_ring *ring, uint64_t n)
{
    while (ring->n_sent < n)
        if (!fill_slice(ring)) cond_wait(&ring->sent, &ring->lock);
}

int load_ring_take(struct load_ring *ring, uint32_t *stage)
{
    int error;
    bool used;

    mutex_lock(&ring->lock);
    *stage = (uint32_t)(ring->n_put % ring->n_stages);
    used = ring->n_put >= ring->n_stages;
    if (used) wait_sent(ring, ring->n_put - ring->n_stages + 1);
    error = ring->error;
    mutex_unlock(&ring->lock);
    return error || !used ? error : ring->target.wait(ring->target.arg, *stage);
}

void load_ring_put(struct load_ring *ring, const void *bytes, uint64_t n_bytes)
{
    struct load_stage *stage = stage_of(ring, ring->n_put);

    assert(n_bytes > 0);
    mutex_lock(&ring->lock);
    assert(ring->n_put - ring->n_sent < ring->n_stages);
    stage->from = bytes;
    stage->n_bytes = stage->n_left = n_bytes;
    ring->n_put++;
    for (uint64_t at = 0; at < n_bytes && at / LOAD_SLICE_BYTES < ring->n_threads; at += LOAD_SLICE_BYTES)
        cond_signal(&ring->work);
    mutex_unlock(&ring->lock);
}

int load_ring_drain(struct load_ring *ring)
{
    int error;

    mutex_lock(&ring->lock);
    wait_sent(ring, ring->n_put);
    error = ring->error;
    mutex_unlock(&ring->lock);
    return error;
}

uint32_t load_ring_n_threads(const struct load_ring *ring)
{
    return ring->n_threads;
}
