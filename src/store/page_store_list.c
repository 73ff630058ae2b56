/* store/page_store_list.c - what is in a folder, namespace by namespace: for people who look at it. */
#include <stdlib.h>
#include <string.h>
#include "base/data_file.h"
#include "base/mem.h"
#include "base/utf8.h"
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

/* What the segment says that it holds; "" where it says nothing, or no text. */
static void read_about(const struct page_store *s, uint64_t id, char *about)
{
    char name[SEGMENT_NAME_BYTES];
    struct data_file f = DATA_FILE_CLOSED;

    segment_name(id, name);
    if (data_file_open(s->dir, name, DATA_FILE_READ, &f) != RD_OK ||
        data_file_read(&f, SEGMENT_ABOUT, about, SEGMENT_ABOUT_BYTES) != RD_OK)
        about[0] = 0;
    about[SEGMENT_ABOUT_BYTES - 1] = 0;
    if (!utf8_valid(about, strlen(about))) about[0] = 0;
    data_file_close(&f);
}

uint32_t page_store_list(struct page_store *s, struct store_space_info *list, uint32_t n_max)
{
    uint64_t *ids = mem_alloc(n_max, sizeof(*ids));
    uint32_t n = 0;

    _Static_assert(sizeof(list->about) == SEGMENT_ABOUT_BYTES, "a segment's text");
    if (!ids) return 0;

    mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const struct store_segment *seg = s->segments[i];
        struct store_space_info *info = seg ? info_of(list, n, seg->head.space) : NULL;

        if (!seg || (!info && n == n_max)) continue;
        if (!info) {
            info = &list[n++];
            *info = (struct store_space_info){.space = seg->head.space};
            ids[n - 1] = seg->head.id;
        }
        info->n_segments++;
        info->n_bytes += seg->file_bytes;
        if (seg->used_s > info->used_s) info->used_s = seg->used_s;
    }
    for (uint64_t i = 0; i < s->table.n_places; i++) {
        const struct store_segment *seg = store_segment_at(s, s->table.places[i].segment);
        struct store_space_info *info = seg ? info_of(list, n, seg->head.space) : NULL;

        if (!info) continue;
        info->n_pages++;
        info->n_tokens += seg->head.page_tokens;
    }
    mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < n; i++) read_about(s, ids[i], list[i].about);
    mem_free(ids);
    qsort(list, n, sizeof(*list), latest_first);
    return n;
}
