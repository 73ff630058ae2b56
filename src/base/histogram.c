/* base/histogram.c - a search for the first bound that is not below the value. */
#include "base/histogram.h"

static void bump(atomic_uint_fast64_t *n, uint64_t by)
{
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + by, memory_order_relaxed);
}

void histogram_add(struct histogram *h, uint64_t value)
{
    uint32_t lo = 0, hi = h->bounds->n;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (h->bounds->at[mid] < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    bump(&h->sum, value);
    bump(&h->counts[lo], 1);
}

void histogram_read(const struct histogram *h, uint64_t *counts, uint64_t *sum)
{
    for (uint32_t i = 0; i <= h->bounds->n; i++) counts[i] = atomic_load_explicit(&h->counts[i], memory_order_relaxed);
    *sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
}
