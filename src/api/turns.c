/* api/turns.c - a list sorted by rounds. */
#include "api/turns.h"
#include <assert.h>

void turns_init(struct turns *t)
{
    *t = (struct turns){.first = NULL};
    mutex_init(&t->lock);
    cond_init(&t->filled);
}

void turns_deinit(struct turns *t)
{
    assert(!t->first);
    cond_deinit(&t->filled);
    mutex_deinit(&t->lock);
}

/* Behind all of its round. Locked. */
static void insert(struct turns *t, struct turn *item)
{
    struct turn **at = &t->first;

    while (*at && (*at)->round <= item->round) at = &(*at)->next;
    item->next = *at;
    *at = item;
}

bool turns_push(struct turns *t, struct turn *item, uint64_t owner, uint32_t most)
{
    uint32_t n = 0;

    mutex_lock(&t->lock);
    item->owner = owner;
    item->round = t->round;
    for (const struct turn *i = t->first; i; i = i->next) {
        if (i->owner != owner) continue;
        item->round = i->round + 1;
        n++;
    }
    if (n < most) {
        insert(t, item);
        cond_signal(&t->filled);
    }
    mutex_unlock(&t->lock);
    return n < most;
}

struct turn *turns_pop(struct turns *t)
{
    struct turn *item;

    mutex_lock(&t->lock);
    while (!t->first && !t->closed) cond_wait(&t->filled, &t->lock);
    item = t->first;
    if (item) {
        t->first = item->next;
        t->round = item->round;
    }
    mutex_unlock(&t->lock);
    return item;
}

void turns_close(struct turns *t)
{
    mutex_lock(&t->lock);
    t->closed = true;
    cond_broadcast(&t->filled);
    mutex_unlock(&t->lock);
}

bool turns_are_closed(struct turns *t)
{
    bool closed;

    mutex_lock(&t->lock);
    closed = t->closed;
    mutex_unlock(&t->lock);
    return closed;
}
