/* engine/request_images.c - see the header. */
#include "engine/request_images.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"

/* One beside the next, from key on: all that is no token lies in one. */
static rd_status check_places(const struct vision_place *places, uint32_t n_places, const kv_key *keys, uint32_t n,
                              struct rd_error *err)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i <= n_places; i++) {
        uint32_t begin = i < n_places ? places[i].begin : n;

        if (begin < at || begin > n || (i < n_places && places[i].image->n_rows > n - begin))
            return error_set(err, RD_E_INVALID, "image %u lies outside of its prompt, or over another one", i + 1);
        for (; at < begin; at++)
            if (!key_is_token(keys[at]))
                return error_set(err, RD_E_INVALID, "key %u of the prompt is a row of no image", at);
        if (i == n_places) break;
        for (; at < begin + places[i].image->n_rows; at++)
            if (key_is_token(keys[at]))
                return error_set(err, RD_E_INVALID, "key %u of the prompt is a token, in an image", at);
    }
    return RD_OK;
}

struct kv_whole request_images_whole(const struct vision_place *place, const struct vision_traits *traits)
{
    const uint32_t n_rows = place->image->n_rows;

    return (struct kv_whole){place->begin,
                             place->begin + (traits->both_ways ? n_rows : u32_min(n_rows, VISION_SURE_ROWS))};
}

rd_status request_images_init(struct request_images *ri, const struct vision_place *places, uint32_t n_places,
                              const kv_key *keys, uint32_t n, const struct vision_traits *traits, struct rd_error *err)
{
    rd_status st;

    *ri = (struct request_images){.n = 0};
    if (n_places > 0 && !traits) return error_set(err, RD_E_UNSUPPORTED, "this model does not take images");
    st = check_places(places, n_places, keys, n, err);
    if (st != RD_OK || n_places == 0) return st;
    ri->places = (struct vision_place *)(void *)mem_memdup(places, n_places * sizeof(*places));
    ri->entries = mem_zalloc(n_places, sizeof(struct image_entry *));
    ri->wholes = mem_alloc(n_places, sizeof(*ri->wholes));
    if (!ri->places || !ri->entries || !ri->wholes) {
        mem_free(ri->places);
        ri->places = NULL;
        request_images_deinit(ri);
        return error_set(err, RD_E_NOMEM, "out of memory for a prompt with %u images", n_places);
    }
    ri->n = n_places;
    for (uint32_t i = 0; i < n_places; i++) {
        (void)vision_image_ref(places[i].image);
        if (places[i].rows) (void)vision_rows_ref(places[i].rows);
        ri->wholes[i] = request_images_whole(&places[i], traits);
    }
    return RD_OK;
}

void request_images_deinit(struct request_images *ri)
{
    for (uint32_t i = 0; i < ri->n; i++) {
        vision_image_unref(ri->places[i].image);
        vision_rows_unref(ri->places[i].rows);
    }
    mem_free(ri->places);
    mem_free(ri->entries);
    mem_free(ri->wholes);
    *ri = (struct request_images){.n = 0};
}
