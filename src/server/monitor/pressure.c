/* server/monitor/pressure.c - see pressure.h. */
#include "server/monitor/pressure.h"
#include "base/log.h"

#define HIGH 0.8
#define LOW  0.7

static const struct {
    const char *name, *what;
} budgets[] = {
#define BUDGET_ROW(id, name, what) [id] = {name, what},
    BUDGETS(BUDGET_ROW)
#undef BUDGET_ROW
};

static const char *const advice[N_BUDGETS] = {
    [BUDGET_KV] = "soon the least recently used is dropped; a larger --kv-bytes keeps more",
    [BUDGET_KV_IN_USE] =
        "soon requests wait for others to end; a larger --kv-bytes, or fewer requests at once, would help",
    [BUDGET_RAM] = "soon the least recently used is dropped; a larger --cache-ram keeps more",
    [BUDGET_DISK] = "soon the least recently used is deleted; a larger --cache-disk keeps more",
    [BUDGET_MEMORY] = "soon requests fail; a larger --memory-limit, or a smaller --kv-bytes, would help",
};

const char *budget_name(enum budget b)
{
    return budgets[b].name;
}

void budget_uses(const struct rd_stats *s, struct budget_use uses[N_BUDGETS])
{
    uses[BUDGET_KV] = (struct budget_use){s->pages_total - s->pages_free, s->pages_total};
    uses[BUDGET_KV_IN_USE] =
        (struct budget_use){s->pages_locked + s->pages_pending + s->pages_quarantined, s->pages_total};
    uses[BUDGET_RAM] = (struct budget_use){s->ram_pages, s->ram_cap_pages};
    uses[BUDGET_DISK] = (struct budget_use){s->disk_bytes, s->disk_cap_bytes};
    uses[BUDGET_MEMORY] = (struct budget_use){s->memory_used_bytes, s->memory_limit_bytes};
}

static bool is_above(struct budget_use u, bool was)
{
    return u.limit > 0 && (double)u.used > (was ? LOW : HIGH) * (double)u.limit;
}

void pressure_look(struct pressure *p, const struct rd_stats *s)
{
    unsigned was = atomic_load_explicit(&p->above, memory_order_relaxed), now = 0;
    struct budget_use uses[N_BUDGETS];

    if (s) budget_uses(s, uses);
    for (unsigned i = 0; s && i < N_BUDGETS; i++) {
        if (!is_above(uses[i], was >> i & 1)) continue;
        now |= 1u << i;
        if (was >> i & 1) continue;
        log_event(LOG_WARN, "memory",
                  LOG_FIELDS(LOG_F_TEXT("budget", budgets[i].what), LOG_F_NUMBER("used", uses[i].used),
                             LOG_F_NUMBER("limit", uses[i].limit)),
                  "memory: %s: %llu of %llu (%.0f %%); %s", budgets[i].what, (unsigned long long)uses[i].used,
                  (unsigned long long)uses[i].limit, 100.0 * (double)uses[i].used / (double)uses[i].limit, advice[i]);
    }
    atomic_store_explicit(&p->above, now, memory_order_relaxed);
}

bool pressure_is_above(const struct pressure *p, enum budget b)
{
    return atomic_load_explicit(&p->above, memory_order_relaxed) >> b & 1;
}
