/* vision/vision.h - what an image is on its way into a sequence: pixels, keys, rows.
 *
 *     bytes --image_decode--> picture --processor--> vision_image --encoder (the model's)--> rows of the text model
 *     (jpeg, png, webp, gif)  RGB, 8 bit             values, grid, digest                    [n_rows, n_floats]
 *                                                        |
 *                                                        +--> n_rows keys of the sequence: the tree knows it by these
 *
 * A key of a row is KV_KEY_ROW and 31 bits of a SHA-256 over the image's digest and the row's number, so that the disk
 * and other machines know an image by the same keys. Within a process no two images have the same first key: where the 31
 * bits of two are equal, which happens, the later one takes the next number (vision_image_keys). So the tree, which compares
 * keys, never takes one for another, be they equal by chance or by craft. Keys that come from elsewhere say who they are
 * from VISION_SURE_ROWS on: nine rows are 279 bits. A tier that stops short of that stops before the image.
 *
 * Positions. A text row rotates by one number. A row of an image in a model with M-RoPE rotates by three (time, height,
 * width), which follow from its grid; the text behind goes on from the largest. vision_positions() is the one home of it.
 *
 * Thread  any thread; a vision_image is read-only once it is made, and counted.
 * Source  Qwen2-VL, arXiv:2409.12191, section 2.1 (M-RoPE); Gemma 3, arXiv:2503.19786 (soft tokens, both-way attention).
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kv/kv_key.h"
#include "radish/status.h"

#define VISION_SURE_ROWS   9u
#define VISION_DIGEST      32u
#define VISION_MOST_IMAGES (1u << 20)

/* What an encoder made of an image; read-only once it is made, and counted. */
struct vision_rows {
    atomic_uint n_refs;
    uint64_t n_bytes; /* of values: [n_rows, n_floats] */
    float values[];
};

/* Pixels of one image (or of the frames of a video) as its model's encoder reads them, and what they become. */
struct vision_image {
    atomic_uint n_refs;
    uint32_t t, h, w; /* the grid of patches: frames / temporal patch, rows, columns; before patches are merged */
    float
        t_step; /* of a video: by how many positions a pair of frames is ahead of the one before, rounded down; 0: by one */
    uint32_t merge;    /* patches of a side that become one row: 2 for the Qwens, 4 for Gemma 3 (pooled) */
    uint32_t n_rows;   /* keys: t * (h / merge) * (w / merge) */
    uint32_t n_values; /* floats: Qwens [t * h * w, channels * temporal * patch * patch] in the order of transformers'
                             pixel_values (blocks of merge x merge patches together); Gemma 3 [3, h * patch, w * patch] */
    float *values;     /* normalised; NULL: its rows are known elsewhere, or only its keys are */
    bool is_spent;     /* one request's alone: its values go once that has the rows */
    void (*freed)(void *arg, uint64_t owner, uint64_t n_bytes); /* told once, when values go; NULL */
    void *freed_arg;
    uint64_t owner;
    uint8_t digest[VISION_DIGEST]; /* of the decoded pixels and all that the processor did to them */
    uint32_t width, height;        /* of the picture as it came, turned upright */
};

/* What the model makes of images: of its file, read when it is opened. */
struct vision_traits {
    bool both_ways;    /* rows of one image see each other in both directions: it is computed in one piece */
    bool three_axes;   /* M-RoPE: positions by vision_positions; else a row's position is its place */
    bool points;       /* it has a pointer head (pointer.h) */
    uint32_t n_floats; /* of a row that the encoder gives: hidden * (1 + n_deep) */
    uint32_t n_deep;   /* DeepStack: what is added to the first n_deep layers' outputs, behind the row itself */
    uint32_t max_rows; /* of one image at most, by its processor */
};

/* n_bytes of values, undefined, one reference; NULL: no memory. */
struct vision_rows *vision_rows_create(uint64_t n_bytes);
struct vision_rows *vision_rows_ref(struct vision_rows *rows);
void vision_rows_unref(struct vision_rows *rows); /* NULL is fine */
/* Its request has the rows: frees the values of one that is_spent. By who alone looks at values: before the engine has it that
 * is who made it, then the engine's thread. */
void vision_image_spend(struct vision_image *v);

struct vision_image *vision_image_ref(struct vision_image *v);
void vision_image_unref(struct vision_image *v); /* NULL is fine */
/* Its n_rows keys: the same whenever it is asked. RD_E_NOMEM. Any thread; a process knows VISION_MOST_IMAGES at most, 36 bytes
 * each, and of those beyond it does not know whether their first keys are taken. */
rd_status vision_image_keys(const struct vision_image *v, kv_key *keys);

/* Where images lie in a sequence: begin is the key of the first row. Sorted, apart. */
struct vision_place {
    uint32_t begin;
    struct vision_image *image;
    struct vision_rows *rows; /* of this request, that may know them; NULL: it does not yet */
};

/* The three rotations of the sequence's positions [from, from + n): axes[axis * stride + i]; of text all three are equal. */
void vision_positions(const struct vision_place *places, uint32_t n_places, uint32_t from, uint32_t n, uint32_t *axes,
                      uint32_t stride);
