/* backend/pin_map.c - a sorted array: there are some thousand ranges at most, and they come and go with their memory. */
#include "backend/pin_map.h"
#include <string.h>
#include "base/mem.h"

void pin_map_init(struct pin_map *m)
{
    *m = (struct pin_map){0};
    mutex_init(&m->lock);
}

void pin_map_deinit(struct pin_map *m)
{
    mem_free(m->ranges);
    mutex_deinit(&m->lock);
    m->ranges = NULL;
    m->n = m->cap = 0;
}

/* The first range that ends behind `at`: the one that has it, or the next one. Under the lock. */
static size_t find(const struct pin_map *m, uintptr_t at)
{
    size_t low = 0, high = m->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (m->ranges[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool pin_map_add(struct pin_map *m, const void *p, uint64_t n_bytes)
{
    uintptr_t begin = (uintptr_t)p;
    bool ok = n_bytes > 0 && n_bytes <= UINTPTR_MAX - begin;
    size_t i;

    mutex_lock(&m->lock);
    i = find(m, begin);
    ok = ok && (i == m->n || m->ranges[i].begin >= begin + n_bytes) &&
         mem_grow((void **)&m->ranges, &m->cap, m->n + 1, sizeof(*m->ranges));
    if (ok) {
        memmove(m->ranges + i + 1, m->ranges + i, (m->n - i) * sizeof(*m->ranges));
        m->ranges[i] = (struct pin_range){begin, begin + n_bytes};
        m->n++;
    }
    mutex_unlock(&m->lock);
    return ok;
}

bool pin_map_remove(struct pin_map *m, const void *p)
{
    bool there;
    size_t i;

    mutex_lock(&m->lock);
    i = find(m, (uintptr_t)p);
    there = i < m->n && m->ranges[i].begin == (uintptr_t)p;
    if (there) memmove(m->ranges + i, m->ranges + i + 1, (--m->n - i) * sizeof(*m->ranges));
    mutex_unlock(&m->lock);
    return there;
}

/* Where a copy that begins at `at` must have ended. */
static uintptr_t border(struct pin_map *m, uintptr_t at)
{
    uintptr_t end = UINTPTR_MAX;
    size_t i;

    mutex_lock(&m->lock);
    i = find(m, at);
    if (i < m->n) end = m->ranges[i].begin <= at ? m->ranges[i].end : m->ranges[i].begin;
    mutex_unlock(&m->lock);
    return end;
}

uint32_t pin_map_run(struct pin_map *m, uint32_t n, void *const *device, void *const *host, uint64_t n_bytes)
{
    uintptr_t end = border(m, (uintptr_t)host[0]);
    uint32_t k = 1;

    while (k < n && (char *)device[k] == (char *)device[k - 1] + n_bytes &&
           (char *)host[k] == (char *)host[k - 1] + n_bytes && (uintptr_t)host[k] + n_bytes <= end)
        k++;
    return k;
}
