/* vision/vision.c - references and positions of images. */
#include "vision/vision.h"
#include "base/mem.h"

struct vision_rows *vision_rows_create(uint64_t n_bytes)
{
    struct vision_rows *rows = mem_alloc(sizeof(*rows) + n_bytes, 1);

    if (!rows) return NULL;
    atomic_init(&rows->n_refs, 1);
    rows->n_bytes = n_bytes;
    return rows;
}

struct vision_rows *vision_rows_ref(struct vision_rows *rows)
{
    atomic_fetch_add_explicit(&rows->n_refs, 1, memory_order_relaxed);
    return rows;
}

void vision_rows_unref(struct vision_rows *rows)
{
    if (rows && atomic_fetch_sub_explicit(&rows->n_refs, 1, memory_order_acq_rel) == 1) mem_free(rows);
}

static void free_values(struct vision_image *v)
{
    if (!v->values) return;
    mem_free(v->values);
    v->values = NULL;
    if (v->freed) v->freed(v->freed_arg, v->owner, (uint64_t)v->n_values * sizeof(*v->values));
}

void vision_image_spend(struct vision_image *v)
{
    if (v->is_spent) free_values(v);
}

struct vision_image *vision_image_ref(struct vision_image *v)
{
    atomic_fetch_add_explicit(&v->n_refs, 1, memory_order_relaxed);
    return v;
}

void vision_image_unref(struct vision_image *v)
{
    if (!v || atomic_fetch_sub_explicit(&v->n_refs, 1, memory_order_acq_rel) != 1) return;
    free_values(v);
    mem_free(v);
}

/* Of frame t on the axis of time: as the model's own code, in f32. */
static uint32_t time_of(const struct vision_image *v, uint32_t t)
{
    return v->t_step > 0 ? (uint32_t)((float)t * v->t_step) : t;
}

/* By how much the text behind an image is ahead of its place: beyond the largest position on any axis. */
static uint32_t longest_side(const struct vision_image *v)
{
    uint32_t h = v->h / v->merge, w = v->w / v->merge, side = h > w ? h : w, t = time_of(v, v->t - 1) + 1;

    return t > side ? t : side;
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
        axes[i] = places[place].begin - lag + time_of(v, row / (h * w));
        axes[stride + i] = places[place].begin - lag + row / w % h;
        axes[2 * stride + i] = places[place].begin - lag + row % w;
    }
}
