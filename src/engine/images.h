/* engine/images.h - the images of requests: each encoded once, joined by all who want it now, kept for those who come later.
 *
 *     a prefill reaches an image's rows --wanted--> entry, by digest and cache salt --a piece between two steps--> rows --> batch.embeds
 *                                                     ^ least recently used first out, above a budget of bytes
 *
 * Rows go to the disk, too (tiers/image_store.h); a request whose image is there comes with them, and with no pixels.
 * Between images the encoder goes from one API key to the next.
 *
 * What the tree has of an image is never encoded again: its rows are not computed, so nobody asks for them. Who waits for an
 * encoder has no rows in the steps meanwhile; all others have theirs. A piece takes about as long as a step of those who
 * decode. Who leaves (hangs up, is preempted) lets go of its entries; one that nobody wants any more is not encoded on.
 *
 * Where a model's rows of one image see each other both ways, an image is computed in one chunk, alone in its run with text
 * before and behind it, and a match never ends inside (kv_seq.h, "kv_whole").
 *
 * Thread  engine thread.
 * Errors  An image that cannot be encoded (no memory, a device's error) ends those who wait for it, nobody else.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/hash.h"

struct engine;
struct request;
struct vision_image;

#define IMAGES_KEPT_BYTES (256ull << 20) /* of encoded rows that nobody wants now, where the options do not say */

/* Whether v's rows are probably here for that salt: nobody has to read them from the disk. Any thread. */
bool images_are_ready(const struct engine *e, const struct vision_image *v, struct hash128 salt);
/* How many of r's images begin before position n. */
uint32_t images_before(const struct request *r, uint32_t n);
/* Of the next n rows of r, as many as can run now; at most n_room. Images that they reach are wanted from now on. Where an
 * image has to come in one piece it may be more than n. */
uint32_t images_chunk(struct engine *e, struct request *r, uint32_t n, uint32_t n_room);
/* Rows that a decode step leaves free for an image that has to come in one piece; 0: there is none. */
uint32_t images_most_rows(const struct engine *e);
/* All of r's images have their rows; those that do not are wanted from now on. */
bool images_all_ready(struct engine *e, struct request *r);
/* Floating-point operations of a piece between two steps; 0: as the encoder wants. */
uint64_t images_piece_flops(const struct engine *e);
/* A row of r at pos, which is a row of an image: where its embedding lies. */
const float *images_row(struct engine *e, const struct request *r, uint32_t pos);
/* The both-ways span of r's rows [from, to): at most one; from == to: none. */
void images_span(const struct engine *e, const struct request *r, uint32_t from, uint32_t to, uint32_t span[2]);
/* After the plan: a piece of what is wanted, as long as a step of those who decode, or some tens of ms where none do. */
void images_encode(struct engine *e);
/* Something is wanted: the loop turns. */
bool images_wait(const struct engine *e);
