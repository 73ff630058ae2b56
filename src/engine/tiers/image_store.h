/* engine/tiers/image_store.h - what encoders made of images, on the disk: for a new conversation about an old image.
 *
 *     engine thread: an image is encoded --its rows, by reference--> saver thread: page_store_put
 *     preparing thread: a request has it, and nobody here has its rows --> page_store_read --> vision_image.rows
 *
 * Rows are entries of the page store, IMAGE_STORE_ROWS of them each, so they are bounded, verified and dropped as pages are. An
 * image's path is made of its digest (in full), how many rows and floats it has, and the entry's number; the namespace is that
 * of the model's pages (file, build, what computes) with the salt, and without an adapter, which changes no row.
 *
 * At most IMAGE_STORE_WAITING bytes wait to be written; what comes beyond is not stored.
 *
 * Errors  none: without memory, disk or whole entries an image is encoded.
 */
#pragma once
#include <stdatomic.h>
#include "base/hash.h"
#include "vision/vision.h"

#define IMAGE_STORE_ROWS    16u
#define IMAGE_STORE_WAITING (256ull << 20)

struct engine;
struct store_link;
struct image_save;

/* A listener's image_encoded. Engine thread. */
void image_store_save(struct engine *e, const struct hash128 *salt, const uint8_t digest[VISION_DIGEST],
                      uint32_t n_rows, struct vision_rows *rows);
/* All rows of v, verified, one reference; NULL: not there. Waits for the disk: any thread but the engine's. stop: gives up
 * soon; or NULL. */
struct vision_rows *image_store_read(struct engine *e, struct hash128 salt, const struct vision_image *v,
                                     const atomic_bool *stop);
/* The saver: writes it; lets go of it (NULL is fine; under the link's lock). */
rd_status image_store_write(struct store_link *l, const struct image_save *save);
void image_store_free(struct store_link *l, struct image_save *save);
