/* vision/vision.c - references and positions of images. */
#include "vision/vision.h"
#include "base/mem.h"

struct vision_image *vision_image_ref(struct vision_image *v)
{
    atomic_fetch_add_explicit(&v->n_refs, 1, memory_order_relaxed);
    return v;
}

void vision_image_unref(struct vision_image *v)
{
    if (!v || atomic_fetch_sub_explicit(&v->n_refs, 1, memory_order_acq_rel) != 1) return;
    mem_free(v->values);
    mem_free(v);
}

/* By how much the text behind an image is ahead of its place: an image of t x h x w rows takes max(t, h, w) positions. */
static uint32_t longest_side(const struct vision_image *v)
{
    uint32_t h = v->h / v->merge, w = v->w / v->merge, side = h > w ? h : w;

    return v->t > side ? v->t : side;
}

void vision_positions(const struct vision_place *places, uint32_t n_places, uint32_t from, uint32_t n, uint32_t *axes,
                      uint32_t stride)
{
    uint32_t place = 0, lag = 0; /* of positions behind places, by the images before */

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = from + i, row, w, h;
        const struct vision_image *v;

        for (; place < n_places && at >= places[place].begin + places[place].image->n_rows; place++)
            lag += places[place].image->n_rows - longest_side(places[place].image);
        axes[i] = axes[stride + i] = axes[2 * stride + i] = at - lag;
        if (place == n_places || at < places[place].begin) continue;
        v = places[place].image;
        row = at - places[place].begin;
        h = v->h / v->merge, w = v->w / v->merge;
        axes[i] = places[place].begin - lag + row / (h * w);
        axes[stride + i] = places[place].begin - lag + row / w % h;
        axes[2 * stride + i] = places[place].begin - lag + row % w;
    }
}
