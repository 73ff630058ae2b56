/* server/http/client_memory.c - counters, and the rule of who may raise them. */
#include "server/http/client_memory.h"
#include <string.h>
#include "base/hash.h"
#include "base/sysinfo.h"

#define DEFAULT_BYTES (256ull << 20)
#define LEAST_BYTES   (32ull << 20)
#define RESERVE_SHARE 16u
#define KEY_SHARE     3u /* times what stays free */
#define TIGHT_SHARE   8u

static const char *const part_names[CLIENT_PARTS] = {"bodies", "trees", "requests", "answers", "unread", "stored"};

static uint64_t load(const atomic_ullong *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

/* Adds n, which may be negative. */
static void add(atomic_ullong *v, int64_t n)
{
    atomic_fetch_add_explicit(v, (unsigned long long)n, memory_order_relaxed);
}

void client_memory_init(struct client_memory *m, uint64_t limit)
{
    uint64_t share = sysinfo_memory() / 16;

    memset(m, 0, sizeof(*m));
    m->limit = limit ? limit : share < DEFAULT_BYTES ? share : DEFAULT_BYTES;
    if (m->limit < LEAST_BYTES) m->limit = LEAST_BYTES;
}

void client_memory_put(const struct client_memory *m, struct buf *out)
{
    buf_printf(out, "{\"limit\":%llu,\"used\":%llu,\"peak\":%llu,\"refused\":%llu", (unsigned long long)m->limit,
               (unsigned long long)load(&m->used), (unsigned long long)load(&m->peak),
               (unsigned long long)load(&m->n_refused));
    for (unsigned i = 0; i < CLIENT_PARTS; i++)
        buf_printf(out, ",\"%s\":%llu", part_names[i], (unsigned long long)load(&m->parts[i]));
    buf_puts(out, "}");
}

bool client_memory_tight(const struct client_memory *m)
{
    return load(&m->used) > m->limit - m->limit / TIGHT_SHARE;
}

void client_charge_init(struct client_charge *c, struct client_memory *m, const char *tenant)
{
    memset(c, 0, sizeof(*c));
    c->memory = m->limit ? m : NULL; /* not initialised: nothing is counted */
    client_charge_owner(c, tenant);
}

void client_charge_owner(struct client_charge *c, const char *tenant)
{
    uint32_t key = tenant ? 1 + (uint32_t)(hash64_of(tenant, strlen(tenant)) % (CLIENT_KEYS - 1)) : 0;

    if (!c->memory || key == c->key) return;
    add(&c->memory->keys[c->key], -(int64_t)c->sum);
    add(&c->memory->keys[key], (int64_t)c->sum);
    c->key = key;
}

/* The part and its sums, once `used` has changed. */
static void count(struct client_charge *c, enum client_part part, uint64_t n)
{
    int64_t change = (int64_t)(n - c->parts[part]);

    add(&c->memory->parts[part], change);
    add(&c->memory->keys[c->key], change);
    c->parts[part] = n;
    c->sum += (uint64_t)change;
}

static void note_peak(struct client_memory *m, unsigned long long used)
{
    unsigned long long peak = load(&m->peak);

    while (used > peak &&
           !atomic_compare_exchange_weak_explicit(&m->peak, &peak, used, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Of the limit, what charges that are not small have together. */
static uint64_t for_large(const struct client_memory *m)
{
    return m->limit - m->limit / RESERVE_SHARE;
}

/* May the charge be `own` where `used` is all that would be used? */
static bool may_hold(const struct client_charge *c, uint64_t own, uint64_t more, uint64_t used)
{
    const struct client_memory *m = c->memory;
    uint64_t big = for_large(m), free;

    if (own <= CLIENT_SMALL_BYTES) return used <= m->limit;
    if (used > big) return false;
    free = big - used;
    return c->is_store || (own <= free && load(&m->keys[c->key]) + more <= KEY_SHARE * free);
}

static double mebibytes(uint64_t n)
{
    return (double)n / (1 << 20);
}

static int refuse(struct client_charge *c, uint64_t own, struct api_error *e)
{
    const struct client_memory *m = c->memory;

    if (!e) return -1; /* who asks so gives way himself */
    add(&c->memory->n_refused, 1);
    if (!may_hold(&(struct client_charge){.memory = c->memory, .key = c->key, .is_store = true}, 2 * own, 0, 2 * own)) {
        api_error_set(
            e, 413, NULL,
            "the request takes %.1f MiB of memory, and its share is %.1f MiB of the %.1f that all clients have "
            "(--client-memory)",
            mebibytes(own), mebibytes(for_large(m) / 2), mebibytes(m->limit));
        return -1;
    }
    api_error_set(e, 429, NULL, "the memory for requests is taken by others; try again later");
    e->code = "memory_full";
    return -1;
}

int client_charge_set(struct client_charge *c, enum client_part part, uint64_t n, struct api_error *e)
{
    unsigned long long used;
    uint64_t more;

    if (!c->memory) return 0;
    if (n <= c->parts[part]) {
        client_charge_force(c, part, n);
        return 0;
    }
    more = n - c->parts[part];
    used = load(&c->memory->used);
    do {
        if (!may_hold(c, c->sum + more, more, used + more)) return refuse(c, c->sum + more, e);
    } while (!atomic_compare_exchange_weak_explicit(&c->memory->used, &used, used + more, memory_order_relaxed,
                                                    memory_order_relaxed));
    note_peak(c->memory, used + more);
    count(c, part, n);
    return 0;
}

void client_charge_force(struct client_charge *c, enum client_part part, uint64_t n)
{
    int64_t change = (int64_t)(n - c->parts[part]);

    if (!c->memory || change == 0) return;
    add(&c->memory->used, change);
    count(c, part, n);
    if (change > 0) note_peak(c->memory, load(&c->memory->used));
}

void client_charge_move(struct client_charge *to, struct client_charge *from, enum client_part part)
{
    uint64_t n = from->parts[part];

    if (to == from || n == 0) return;
    add(&from->memory->keys[from->key], -(int64_t)n);
    add(&to->memory->keys[to->key], (int64_t)n);
    from->parts[part] = 0;
    from->sum -= n;
    to->parts[part] += n;
    to->sum += n;
}

void client_charge_clear(struct client_charge *c)
{
    for (unsigned i = 0; i < CLIENT_PARTS; i++) client_charge_force(c, (enum client_part)i, 0);
}
