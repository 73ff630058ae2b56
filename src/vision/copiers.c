/* vision/copiers.c - see copiers.h. Starting threads for each block of rows took as long as their copies. */
#include "vision/copiers.h"
#include <stdbool.h>
#include "base/checked.h"
#include "base/mem.h"
#include "base/thread.h"

#define MOST_COPIERS 16u

struct copiers {
    struct mutex lock; /* of all that follows */
    struct cond begun, done;
    void (*fn)(void *arg, uint32_t from, uint32_t to);
    void *arg;
    uint32_t n, each, next; /* next: the first that nobody took */
    uint32_t n_busy;        /* threads that have a slice, or ask for one */
    uint64_t turn;          /* which call of copiers_share */
    bool ends;
    uint32_t n_threads;
    struct thread threads[MOST_COPIERS];
};

/* Locked; slices until none is left. */
static void copy_slices(struct copiers *c)
{
    while (c->next < c->n) {
        const uint32_t from = c->next, to = from + u32_min(c->each, c->n - from);

        c->next = to;
        mutex_unlock(&c->lock);
        c->fn(c->arg, from, to); /* stays while somebody is busy */
        mutex_lock(&c->lock);
    }
}

static void run_copier(void *arg)
{
    struct copiers *c = arg;
    uint64_t seen = 0;

    mutex_lock(&c->lock);
    for (;;) {
        while (!c->ends && c->turn == seen) cond_wait(&c->begun, &c->lock); /* until there is work, or never */
        if (c->ends) break;
        seen = c->turn;
        c->n_busy++;
        copy_slices(c);
        if (--c->n_busy == 0) cond_signal(&c->done);
    }
    mutex_unlock(&c->lock);
}

rd_status copiers_create(uint32_t n, struct copiers **out)
{
    struct copiers *c = mem_zalloc(1, sizeof(*c));

    if (!c) return RD_E_NOMEM;
    mutex_init(&c->lock);
    cond_init(&c->begun);
    cond_init(&c->done);
    for (n = u32_min(n, MOST_COPIERS); c->n_threads < n; c->n_threads++)
        if (thread_start(&c->threads[c->n_threads], "vision-copy", run_copier, c) != RD_OK) break;
    *out = c;
    return RD_OK;
}

void copiers_destroy(struct copiers *c)
{
    if (!c) return;
    mutex_lock(&c->lock);
    c->ends = true;
    cond_broadcast(&c->begun);
    mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_threads; i++) thread_join(&c->threads[i]);
    cond_deinit(&c->done);
    cond_deinit(&c->begun);
    mutex_deinit(&c->lock);
    mem_free(c);
}

void copiers_share(struct copiers *c, uint32_t n, uint32_t each, void (*fn)(void *arg, uint32_t from, uint32_t to),
                   void *arg)
{
    mutex_lock(&c->lock);
    c->fn = fn, c->arg = arg;
    c->n = n, c->each = each, c->next = 0;
    c->turn++;
    cond_broadcast(&c->begun);
    copy_slices(c);
    while (c->n_busy > 0) cond_wait(&c->done, &c->lock); /* for copies alone */
    mutex_unlock(&c->lock);
}
