/* tests/vision/test_vision.c - keys and positions of images. */
#include "vision/vision.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "test.h"

static struct vision_image *image(uint32_t t, uint32_t h, uint32_t w, uint32_t merge, uint8_t mark)
{
    struct vision_image *v = mem_zalloc(1, sizeof(*v));

    if (!v) abort();
    v->n_refs = 1;
    v->t = t, v->h = h, v->w = w, v->merge = merge;
    v->n_rows = t * (h / merge) * (w / merge);
    v->digest[0] = mark;
    return v;
}

static int by_key(const void *a, const void *b)
{
    kv_key x = *(const kv_key *)a, y = *(const kv_key *)b;

    return (x > y) - (x < y);
}

TEST(keys_are_rows_and_tell_every_bit_of_a_digest)
{
    struct vision_image *a = image(1, 12, 8, 2, 1), *b = image(1, 12, 8, 2, 1);
    kv_key of_a[24], of_b[24];
    uint32_t n_same = 0;

    CHECK_OK(vision_image_keys(a, of_a));
    CHECK_OK(vision_image_keys(b, of_b));
    CHECK(memcmp(of_a, of_b, sizeof(of_a)) == 0);
    for (uint32_t i = 0; i < 24; i++) {
        CHECK(!key_is_token(of_a[i]) && of_a[i] != KV_NO_KEY);
        for (uint32_t j = 0; j < i; j++) n_same += of_a[i] == of_a[j];
    }
    CHECK_EQ(n_same, 0);
    for (uint32_t bit = 0; bit < 8 * VISION_DIGEST; bit++) {
        b->digest[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_OK(vision_image_keys(b, of_b));
        for (uint32_t i = 0; i < 24; i++) n_same += of_a[i] == of_b[i];
        b->digest[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK(n_same <= 1); /* of 6,144 pairs with 31 bits each */
    vision_image_unref(a);
    vision_image_unref(b);
}

/* Of 300,000 images about 20 pairs have the same 31 bits. */
TEST(no_two_images_have_the_same_first_key)
{
    enum { N = 300000 };
    struct vision_image *v = image(1, 4, 4, 2, 0);
    kv_key *first = malloc(N * sizeof(*first)), keys[4], again[4];
    uint32_t n_same = 0;

    CHECK(first);
    for (uint32_t i = 0; i < N; i++) {
        memcpy(v->digest + 1, &i, sizeof(i));
        CHECK_OK(vision_image_keys(v, keys));
        first[i] = keys[0];
    }
    for (uint32_t i = 0; i < N; i += 1000) { /* and they keep theirs */
        memcpy(v->digest + 1, &i, sizeof(i));
        CHECK_OK(vision_image_keys(v, again));
        n_same += again[0] != first[i];
    }
    qsort(first, N, sizeof(*first), by_key);
    for (uint32_t i = 1; i < N; i++) n_same += first[i] == first[i - 1];
    CHECK_EQ(n_same, 0);
    free(first);
    vision_image_unref(v);
}

/* Two words, an image of 2 x 3 rows, a word, two frames of 2 x 2 rows, a word: as the paper's figure counts. */
TEST(positions_of_an_image_follow_its_grid)
{
    struct vision_image *a = image(1, 4, 6, 2, 1), *b = image(2, 4, 4, 2, 2);
    const struct vision_place places[] = {{2, a, NULL}, {9, b, NULL}};
    static const uint32_t expected[3][18] = {
        {0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 6, 6, 7, 7, 7, 7, 8},
        {0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 7, 7, 6, 6, 7, 7, 8},
        {0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7, 8},
    };
    uint32_t axes[3 * 18];

    for (uint32_t from = 0; from < 18; from++) /* wherever a chunk begins */
        for (uint32_t n = 1; n <= 18 - from; n++) {
            vision_positions(places, 2, from, n, axes, n);
            for (uint32_t axis = 0; axis < 3; axis++)
                for (uint32_t i = 0; i < n; i++) CHECK_EQ(axes[axis * n + i], expected[axis][from + i]);
        }
    vision_image_unref(a);
    vision_image_unref(b);
}

/* A word, three pairs of frames of 2 x 1 rows that are 2.6 apart, a word: time is rounded down, and the word is behind all of it. */
TEST(positions_of_a_video_follow_its_seconds)
{
    struct vision_image *v = image(3, 4, 2, 2, 3);
    const struct vision_place place = {1, v, NULL};
    static const uint32_t expected[3][8] = {
        {0, 1, 1, 3, 3, 6, 6, 7}, {0, 1, 2, 1, 2, 1, 2, 7}, {0, 1, 1, 1, 1, 1, 1, 7}};
    uint32_t axes[3 * 8];

    v->t_step = 2.6f;
    for (uint32_t from = 0; from < 8; from++) {
        vision_positions(&place, 1, from, 8 - from, axes, 8);
        for (uint32_t axis = 0; axis < 3; axis++)
            for (uint32_t i = 0; i < 8 - from; i++) CHECK_EQ(axes[axis * 8 + i], expected[axis][from + i]);
    }
    vision_image_unref(v);
}
