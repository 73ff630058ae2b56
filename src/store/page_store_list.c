/* store/page_store_list.c - what is in a folder, namespace by namespace: for people who look at it. */
#include <stdlib.h>
#include "store/page_store_state.h"

static struct store_space_info *info_of(struct store_space_info *list, uint32_t n, struct hash128 space)
{
    for (uint32_t i = 0; i < n; i++)
        if (hash128_equal(list[i].space, space)) return &list[i];
    return NULL;
}

static int latest_first(const void *a, const void *b)
{
    const struct store_space_info *x = a, *y = b;

    return (x->used_s < y->used_s) - (x->used_s > y->used_s);
}

uint32_t page_store_list(struct page_store *s, struct store_space_info *list, uint32_t n_max)
{
    uint32_t n = 0;

    mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const struct store_segment *seg = s->segments[i];
        struct store_space_info *info = seg ? info_of(list, n, seg->head.space) : NULL;

        if (!seg || (!info && n == n_max)) continue;
        if (!info) {
            info = &list[n++];
            *info = (struct store_space_info){.space = seg->head.space};
        }
        info->n_segments++;
        info->n_pages += seg->n_taken;
        info->n_tokens += (uint64_t)seg->n_taken * seg->head.page_tokens;
        info->n_bytes += seg->file_bytes;
        if (seg->used_s > info->used_s) info->used_s = seg->used_s;
    }
    mutex_unlock(&s->lock);
    qsort(list, n, sizeof(*list), latest_first);
    return n;
}

struct hash128 page_store_space_digest(struct page_store *s, const struct store_space *space)
{
    struct hash128 digest;

    mutex_lock(&s->lock);
    digest = space->seed;
    mutex_unlock(&s->lock);
    return digest;
}

rd_status page_store_drop_listed(struct page_store *s, struct hash128 space)
{
    rd_status st = RD_OK;

    if (s->lock_file.fd < 0) return RD_E_AGAIN;
    for (uint32_t i = 0; i < s->n_segments; i++)
        if (s->segments[i] && hash128_equal(s->segments[i]->head.space, space) && store_drop_segment(s, i) != RD_OK)
            st = RD_E_IO;
    return st;
}
