/* engine/meter.h - how long requests take: told by the step loop (listener.h), kept as histograms.
 *
 * Times are the engine's clock. What a request asked for and when it asked is in its parameters: a request that goes on
 * from another (a context shift), and one that waits by intent (idle), tells its tokens and steps only.
 *
 * Thread  the engine thread adds; meter_read: any.
 */
#pragma once
#include "base/histogram.h"
#include "radish/inspect.h"

struct meter {
    struct histogram of[RD_N_HISTOGRAMS];
};

void meter_init(struct meter *m);
/* Values in seconds, tokens, tokens per second. */
void meter_read(const struct meter *m, enum rd_histogram_id id, struct rd_histogram *out);
