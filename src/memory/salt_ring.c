/* memory/salt_ring.c - see the header. */
#include "memory/salt_ring.h"
#include <string.h>

void salt_ring_init(struct salt_ring *r)
{
    mutex_init(&r->lock);
}
void salt_ring_deinit(struct salt_ring *r)
{
    mutex_deinit(&r->lock);
}

static uint64_t tenant_of(const char *tenant)
{
    return hash64_of(tenant, strlen(tenant));
}

void salt_ring_note(struct salt_ring *r, const char *tenant, struct kv_space owner)
{
    uint64_t who = tenant ? tenant_of(tenant) : 0;
    uint32_t i = 0;

    if (!tenant) return;
    mutex_lock(&r->lock);
    while (i < r->n && (r->items[i].tenant != who || !kv_space_equal(&r->items[i].owner, &owner))) i++;
    if (i == r->n) {
        i = r->next++ % SALT_RING_SIZE;
        r->items[i].tenant = who;
        r->items[i].owner = owner;
        if (r->n < SALT_RING_SIZE) r->n++;
    }
    mutex_unlock(&r->lock);
}

uint32_t salt_ring_others(struct salt_ring *r, const char *tenant, struct kv_space owner, struct kv_space *list)
{
    uint64_t who = tenant ? tenant_of(tenant) : 0;
    uint32_t n = 0;

    if (!tenant) return 0;
    mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->n; i++)
        if (r->items[i].tenant == who && !kv_space_equal(&r->items[i].owner, &owner)) list[n++] = r->items[i].owner;
    mutex_unlock(&r->lock);
    return n;
}
