/* engine/pointing.h - requests of a model that points (vision/pointer.h): what they wait for, and what they get.
 *
 *     .. <|pointer_start|>  --forced-->  <|pointer_pad|>  --forced-->  <|pointer_end|> ..
 *                                          | the state of its row is kept; the request has no rows in the steps, until
 *                                          v
 *     its images are encoded (kept, from the store, or again) --a piece between two steps--> scores --> points
 *
 * The head runs over the rows of all images of the request, in their order, as GUI-Actor's code does; videos are left out. One
 * request's run is there at a time: others wait for theirs in the order of admission. It stays for the request's next pointer
 * as long as nobody else wants one. Whoever leaves lets go of it. A preempted request keeps what it has.
 *
 * Text, and answers that do not point, have none of this. Points of <|pointer_pad|> in a prompt are not computed.
 *
 * Thread  engine thread; points: whoever saw that the request has ended.
 * Errors  a run that cannot be (memory, a device's error) ends the request that waits for it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct request;

/* What comes behind r's last token, instead of what was sampled. */
int32_t pointer_next(const struct request *r, int32_t sampled);
/* The state of r's last computed row. */
void pointer_note(struct engine *e, struct request *r, const float *state);
/* It has no rows until its points are there. */
bool pointer_holds(const struct request *r);
/* Of the live ones any waits: the loop turns. */
bool pointer_waits(const struct engine *e);
/* A piece, where no image is encoded in this turn. */
void pointer_work(struct engine *e);
