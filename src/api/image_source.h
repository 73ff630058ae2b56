/* api/image_source.h - the bytes of an image's file, from wherever its part of a message says that they are.
 *
 *     data:image/png;base64,..   base64                    sent along: any thread
 *     http://..  https://..      rd_options.fetch_image    \ far: waits for others, so on a thread of its own
 *     file:///DIR/..  /DIR/..    below rd_options.image_dir /
 *
 * Thread  read: as above; the rest any. init, deinit: open and close.
 * Errors  RD_E_INVALID a sentence that a client reads; RD_E_LIMIT; RD_E_CANCELLED; RD_E_NOMEM.
 */
#pragma once
#include <jansson.h>
#include <stdatomic.h>
#include "radish/radish.h"

#define IMAGES_FAR_MS 60000u /* of all that a request's URLs name, where rd_options do not say */

/* Of an engine. Zeroed: nothing is far. */
struct image_sources {
    rd_status (*fetch)(void *user, const char *url, const struct rd_image_sink *sink, struct rd_error *err);
    void *user;
    uint64_t most_ms;     /* that all images of a request may take */
    char *dir, *real_dir; /* as it was given, and without links; without a slash at the end. NULL: none */
    int dir_fd;           /* of dir */
    atomic_bool closing;  /* set by who closes: nobody waits for a fetch any more */
};

rd_status image_sources_init(struct image_sources *s, const struct rd_options *o, struct rd_error *err);
void image_sources_deinit(struct image_sources *s);
/* Whether any part of any message is far, and may be had: of such a request a thread is held up. */
bool image_sources_are_far(const struct image_sources *s, const json_t *messages);
bool image_part_is(const json_t *part);
/* *out: [*n], mem_free'd by the caller. cancelled: NULL: it is not. until_ns: what is far must be here by then; 0: it is not
 * got. */
rd_status image_source_read(const struct image_sources *s, const json_t *part, uint64_t until_ns,
                            const atomic_bool *cancelled, uint8_t **out, size_t *n, struct rd_error *err);
