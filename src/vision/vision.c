/* vision/vision.c - references, keys and positions of images. */
#include "vision/vision.h"
#include <string.h>
#include "base/mem.h"
#include "base/sha.h"

#define KEYS_OF_DIGEST 8u /* 32 bytes, four a key */

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

static uint32_t word_at(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* KV_NO_KEY is no key of a row. */
static kv_key row_key(uint32_t bits)
{
    kv_key key = KV_KEY_ROW | bits;

    return key == KV_NO_KEY ? key - 1 : key;
}

void vision_image_keys(const struct vision_image *v, kv_key *keys)
{
    for (uint32_t block = 0; block * KEYS_OF_DIGEST < v->n_rows; block++) {
        uint8_t number[4] = {(uint8_t)(block >> 24), (uint8_t)(block >> 16), (uint8_t)(block >> 8), (uint8_t)block};
        uint8_t digest[VISION_DIGEST];
        struct sha s;

        sha256_begin(&s);
        sha_add(&s, v->digest, sizeof(v->digest));
        sha_add(&s, number, sizeof(number));
        sha_end_bytes(&s, digest);
        for (uint32_t i = 0; i < KEYS_OF_DIGEST && block * KEYS_OF_DIGEST + i < v->n_rows; i++)
            keys[block * KEYS_OF_DIGEST + i] = row_key(word_at(digest + (size_t)4 * i));
    }
}

/* By how much the text behind an image is ahead of its place: an image of t x h x w rows takes max(t, h, w) positions. */
static uint32_t longest_side(const struct vision_image *v)
{
    uint32_t h = v->h / v->merge, w = v->w / v->merge, side = h > w ? h : w;

    return v->t > side ? v->t : side;
}

void vision_positions(const struct vision_place *places, uint32_t n_places, uint32_t from, uint32_t n, uint32_t *axes)
{
    uint32_t place = 0, lag = 0; /* of positions behind places, by the images before */

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = from + i, row, w, h;
        const struct vision_image *v;

        for (; place < n_places && at >= places[place].begin + places[place].image->n_rows; place++)
            lag += places[place].image->n_rows - longest_side(places[place].image);
        axes[i] = axes[n + i] = axes[2 * n + i] = at - lag;
        if (place == n_places || at < places[place].begin) continue;
        v = places[place].image;
        row = at - places[place].begin;
        h = v->h / v->merge, w = v->w / v->merge;
        axes[i] = places[place].begin - lag + row / (h * w);
        axes[n + i] = places[place].begin - lag + row / w % h;
        axes[2 * n + i] = places[place].begin - lag + row % w;
    }
}
