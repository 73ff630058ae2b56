/* cli/instance_order.h - a JSON value with its members in the order in which a schema names them.
 *
 * A grammar accepts members in the schema's order, while a JSON value has none: before a value is found to be refused, it is
 * put in that order. Names rank by where the schema first has them as a property; those that it does not name stay behind,
 * as they stood. Whole numbers lose a point and zero (1.0 is the integer 1).
 * Thread  any.
 */
#pragma once
#include <jansson.h>
#include "base/buf.h"

/* A new value; NULL: out of memory, or nested beyond 200. */
json_t *instance_ordered(const json_t *schema, const json_t *value);
/* v as json.dumps writes it, reals with the fewest digits that give them back (15 to 17), into out. */
void instance_text(const json_t *v, struct buf *out);
