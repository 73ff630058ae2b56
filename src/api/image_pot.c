/* api/image_pot.c - a sum, and one for each slot of tenants. */
#include "api/image_pot.h"
#include <assert.h>

void image_pot_init(struct image_pot *p)
{
    *p = (struct image_pot){.total = 0};
    mutex_init(&p->lock);
}

void image_pot_deinit(struct image_pot *p)
{
    assert(p->total == 0);
    mutex_deinit(&p->lock);
}

/* With a tenant's bytes and what is free, those of n counted as taken. */
static bool is_fair(uint64_t bytes, uint64_t n_free)
{
    return bytes <= IMAGE_POT_SHARE * n_free;
}

rd_status image_pot_take(struct image_pot *p, uint64_t tenant, uint64_t n)
{
    uint64_t *slot = &p->slots[tenant % IMAGE_POT_SLOTS];
    rd_status st = RD_E_FULL;

    if (n > IMAGE_POT_MOST) return RD_E_LIMIT;
    mutex_lock(&p->lock);
    if (n <= IMAGE_POT_BYTES - p->total && is_fair(*slot + n, IMAGE_POT_BYTES - p->total - n)) {
        *slot += n;
        p->total += n;
        st = RD_OK;
    }
    mutex_unlock(&p->lock);
    return st;
}

void image_pot_give(struct image_pot *p, uint64_t tenant, uint64_t n)
{
    mutex_lock(&p->lock);
    assert(p->slots[tenant % IMAGE_POT_SLOTS] >= n);
    p->slots[tenant % IMAGE_POT_SLOTS] -= n;
    p->total -= n;
    mutex_unlock(&p->lock);
}
