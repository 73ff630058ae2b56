/* api/inspect_eyes.h - what `radish inspect` says of an encoder of images: in a file by itself, or in a model's directory.
 * Thread  any.
 */
#pragma once
#include <stdbool.h>
#include "base/buf.h"
#include "format/model_file.h"

/* Whether g is nothing but an encoder (a mmproj file). */
bool inspect_is_encoder(const struct model_file *g);
/* The encoder that g is or has, as lines of text, or as a member of a JSON object (", \"images\": .."); nothing where there is
 * none. path: g's. */
void inspect_put_eyes(const struct model_file *g, const char *path, bool json, struct buf *out);
