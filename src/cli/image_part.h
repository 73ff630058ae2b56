/* cli/image_part.h - an image file as a part of a message: {"type":"image","data":BASE64}.
 * Thread  main thread.  Errors  a message on stderr. */
#pragma once
#include <stdbool.h>
#include "base/buf.h"

#define IMAGE_PART_MOST_BYTES ((size_t)64 << 20)

/* Appended to json; what the file holds is looked at by the model's library. false: it cannot be read. */
bool image_part_put(struct buf *json, const char *path);
