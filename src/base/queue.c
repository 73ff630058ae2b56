/* base/queue.c - a ring of pointers, and a doorbell, each under one mutex.
 *
 *     items: [ . . A B C . . . ]      head = 2 (oldest), n = 3, capacity 8; the next push goes to (head + n) % capacity
 */
#include "base/queue.h"
#include <assert.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

struct queue {
    struct mutex lock;
    struct cond filled; /* an item came, or the queue was closed */
    void **items;       /* [capacity] */
    size_t capacity, head, n;
    bool closed;
};

rd_status queue_create(size_t capacity, struct queue **out)
{
    struct queue *q = mem_zalloc(1, sizeof(*q));

    assert(capacity > 0 && out);
    if (!q) return RD_E_NOMEM;
    q->items = mem_zalloc(capacity, sizeof(*q->items));
    if (!q->items) {
        mem_free(q);
        return RD_E_NOMEM;
    }
    q->capacity = capacity;
    mutex_init(&q->lock);
    cond_init(&q->filled);
    *out = q;
    return RD_OK;
}

void queue_destroy(struct queue *q)
{
    if (!q) return;
    assert(q->n == 0);
    cond_deinit(&q->filled);
    mutex_deinit(&q->lock);
    mem_free(q->items);
    mem_free(q);
}

rd_status queue_push(struct queue *q, void *item)
{
    rd_status st = RD_OK;

    assert(item); /* NULL means empty to the one who pops */
    mutex_lock(&q->lock);
    if (q->closed) {
        st = RD_E_CLOSED;
    } else if (q->n == q->capacity) {
        st = RD_E_FULL;
    } else {
        q->items[(q->head + q->n++) % q->capacity] = item;
        cond_signal(&q->filled);
    }
    mutex_unlock(&q->lock);
    return st;
}

/* With the lock held. */
static void *take_oldest(struct queue *q)
{
    void *item = NULL;

    if (q->n > 0) {
        item = q->items[q->head];
        q->head = (q->head + 1) % q->capacity;
        q->n--;
    }
    return item;
}

void *queue_try_pop(struct queue *q)
{
    mutex_lock(&q->lock);
    void *item = take_oldest(q);
    mutex_unlock(&q->lock);
    return item;
}

void *queue_pop(struct queue *q)
{
    mutex_lock(&q->lock);
    while (q->n == 0 && !q->closed) cond_wait(&q->filled, &q->lock); /* queue_close() ends every wait */
    void *item = take_oldest(q);
    mutex_unlock(&q->lock);
    return item;
}

void queue_close(struct queue *q)
{
    mutex_lock(&q->lock);
    q->closed = true;
    cond_broadcast(&q->filled);
    mutex_unlock(&q->lock);
}

size_t queue_length(struct queue *q)
{
    mutex_lock(&q->lock);
    size_t n = q->n;
    mutex_unlock(&q->lock);
    return n;
}

struct wake {
    struct mutex lock;
    struct cond rung_cond;
    bool rung;
};

rd_status wake_create(struct wake **out)
{
    struct wake *w = mem_zalloc(1, sizeof(*w));

    if (!w) return RD_E_NOMEM;
    mutex_init(&w->lock);
    cond_init(&w->rung_cond);
    *out = w;
    return RD_OK;
}

void wake_destroy(struct wake *w)
{
    if (!w) return;
    cond_deinit(&w->rung_cond);
    mutex_deinit(&w->lock);
    mem_free(w);
}

void wake_ring(struct wake *w)
{
    mutex_lock(&w->lock);
    if (!w->rung) {
        w->rung = true;
        cond_signal(&w->rung_cond);
    }
    mutex_unlock(&w->lock);
}

bool wake_wait(struct wake *w, uint64_t timeout_ns)
{
    uint64_t start = clock_now_ns(clock_system()), waited = 0;
    bool rung;

    mutex_lock(&w->lock);
    while (!w->rung && waited < timeout_ns) {
        if (timeout_ns == UINT64_MAX)
            cond_wait(&w->rung_cond, &w->lock);
        else
            cond_wait_ns(&w->rung_cond, &w->lock, timeout_ns - waited);
        waited = clock_now_ns(clock_system()) - start;
    }
    rung = w->rung;
    w->rung = false;
    mutex_unlock(&w->lock);
    return rung;
}
