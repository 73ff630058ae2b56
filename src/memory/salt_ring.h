/* memory/salt_ring.h - under which salts an API key has sent requests lately: for telling that a prompt is stored, but under
 * another salt, to the key alone that stored it. Requests without a key have no owner: several may use their salts.
 *
 * Thread  any thread.
 */
#pragma once
#include "memory/answer_memory.h"
#include "base/thread.h"

#define SALT_RING_SIZE 64u

struct salt_ring {
    struct mutex lock; /* guards the rest */
    struct {
        uint64_t tenant;
        struct kv_space owner;
    } items[SALT_RING_SIZE];
    uint32_t n, next;
};

void salt_ring_init(struct salt_ring *r);
void salt_ring_deinit(struct salt_ring *r);
/* tenant: the API key; NULL: nothing happens. */
void salt_ring_note(struct salt_ring *r, const char *tenant, struct kv_space owner);
/* Others of the same tenant: list of SALT_RING_SIZE; returns how many. */
uint32_t salt_ring_others(struct salt_ring *r, const char *tenant, struct kv_space owner, struct kv_space *list);
