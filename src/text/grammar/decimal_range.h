/* text/grammar/decimal_range.h - the decimal texts of the numbers between two bounds, as nodes.
 *
 * Bounds are decimals, so no rounding is between a schema's text and what is accepted. A number's text has no exponent
 * here. A reader rounds it to a double, which keeps its order with an inclusive bound; so exclusive bounds are moved by one
 * unit in the 15th digit first (decimal_step), where doubles still differ.
 * Thread  any.
 */
#pragma once
#include <jansson.h>
#include "text/grammar/grammar_build.h"

#define DECIMAL_DIGITS 340u /* of a double's whole part; and a fraction's beyond that are an error */

/* [-]digits[.fraction]; whole without leading zeros ("0"), fraction without trailing ones (""). */
struct decimal {
    bool negative;
    char whole[DECIMAL_DIGITS + 2], fraction[DECIMAL_DIGITS + 2];
};

/* Of a JSON number; false: its digits do not fit. */
bool decimal_from(const json_t *number, struct decimal *out);
int decimal_compare(const struct decimal *a, const struct decimal *b);
/* To the next integer above, below; itself when it is one and not strict. */
void decimal_ceil(struct decimal *d, bool strict);
void decimal_floor(struct decimal *d, bool strict);
/* The next decimal above (up) or below that a double tells apart from d. */
void decimal_step(struct decimal *d, bool up);

/* low, high: integers, NULL: unbounded. */
grammar_node decimal_integers(struct grammar_builder *b, const struct decimal *low, const struct decimal *high);
/* Numbers, both bounds included. */
grammar_node decimal_numbers(struct grammar_builder *b, const struct decimal *low, const struct decimal *high);
/* Integers (scale 0) or decimals with at most `scale` digits behind the point that are multiples of step / 10^scale. The
 * integers among them can be bounded. step <= DECIMAL_MAX_STEP. */
#define DECIMAL_MAX_STEP 400u
grammar_node decimal_multiples(struct grammar_builder *b, uint32_t step, uint32_t scale, const struct decimal *low,
                               const struct decimal *high);
