/* radish/inspect.h - how long requests take, as histograms of a running engine.
 *
 * rd_get_stats (radish.h) tells what is going on as sums and gauges; this how single requests fared. The step loop counts
 * into memory of its own: nothing is locked, and reading costs it nothing.
 *
 * Thread  any.
 * Errors  none.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rd_engine;

/* Where a request is, or was when its client went away. */
#define RD_PHASES(X)                                                                                                   \
    X(RD_PHASE_PREPARING, "preparing", "template, tokens, grammar")                                                    \
    X(RD_PHASE_QUEUED, "queued", "for a place in the batch, or for pages")                                             \
    X(RD_PHASE_LOADING, "loading", "queued until its beginning is read from disk or host memory")                      \
    X(RD_PHASE_WAITING, "waiting", "for another request that computes the same tokens")                                \
    X(RD_PHASE_PREFILL, "prefill", "its prompt is computed")                                                           \
    X(RD_PHASE_DECODE, "decode", "it generates")
#define RD_PHASE_ENUM(id, name, note) id,
enum rd_phase { RD_PHASES(RD_PHASE_ENUM) RD_N_PHASES };
#undef RD_PHASE_ENUM

/* Identifier, name, unit of the values, meaning. "Ended by itself": not cancelled, and without an error. Requests of
 * rd_warm, which wait by intent, are in the token counts alone; so are the later parts of one whose context was shifted. */
#define RD_HISTOGRAMS(X)                                                                                               \
    X(RD_HIST_TTFT, "time_to_first_token_seconds", RD_UNIT_SECONDS, "From the call to the first token")                \
    X(RD_HIST_INTER_TOKEN, "inter_token_seconds", RD_UNIT_SECONDS,                                                     \
      "Between a token and the one before it; 0 for those that a step gave along with another")                        \
    X(RD_HIST_PREPARE, "request_prepare_seconds", RD_UNIT_SECONDS,                                                     \
      "From the call to the queue: template, tokens, grammar")                                                         \
    X(RD_HIST_QUEUE, "request_queue_seconds", RD_UNIT_SECONDS, "In the queue, loading from other tiers included")      \
    X(RD_HIST_PREFILL, "request_prefill_seconds", RD_UNIT_SECONDS, "From leaving the queue until the prompt is known") \
    X(RD_HIST_DECODE, "request_decode_seconds", RD_UNIT_SECONDS,                                                       \
      "From the first token to the end, of requests that ended by themselves")                                         \
    X(RD_HIST_RUN, "request_run_seconds", RD_UNIT_SECONDS,                                                             \
      "From leaving the queue to the end, of requests that ended by themselves")                                       \
    X(RD_HIST_E2E, "request_seconds", RD_UNIT_SECONDS,                                                                 \
      "From the call to the end, of requests that ended by themselves")                                                \
    X(RD_HIST_PER_TOKEN, "request_seconds_per_token", RD_UNIT_SECONDS,                                                 \
      "Decode time of a request over its tokens behind the first")                                                     \
    X(RD_HIST_PROMPT_TOKENS, "request_prompt_tokens", RD_UNIT_TOKENS, "Prompts that were known whole")                 \
    X(RD_HIST_COMPUTED_TOKENS, "request_computed_tokens", RD_UNIT_TOKENS, "Of those prompts: computed, not cached")    \
    X(RD_HIST_GENERATED_TOKENS, "request_generated_tokens", RD_UNIT_TOKENS, "Of requests that ended by themselves")    \
    X(RD_HIST_MAX_TOKENS, "request_max_tokens", RD_UNIT_TOKENS, "The most that a request could have generated")        \
    X(RD_HIST_PREFILL_SPEED, "request_prefill_tokens_per_second", RD_UNIT_PER_SECOND,                                  \
      "Computed prompt tokens over prefill time, where there were 16 at least")                                        \
    X(RD_HIST_DECODE_SPEED, "request_decode_tokens_per_second", RD_UNIT_PER_SECOND,                                    \
      "Tokens behind the first over decode time")                                                                      \
    X(RD_HIST_STEP_ROWS, "step_rows", RD_UNIT_ROWS, "Tokens of all requests that one step computed")
#define RD_HISTOGRAM_ENUM(id, name, unit, help) id,
enum rd_histogram_id { RD_HISTOGRAMS(RD_HISTOGRAM_ENUM) RD_N_HISTOGRAMS };
#undef RD_HISTOGRAM_ENUM
enum rd_unit { RD_UNIT_SECONDS, RD_UNIT_TOKENS, RD_UNIT_PER_SECOND, RD_UNIT_ROWS };

#define RD_HISTOGRAM_BOUNDS 24
struct rd_histogram {
    uint32_t n_bounds;
    double bounds[RD_HISTOGRAM_BOUNDS];       /* ascending */
    uint64_t counts[RD_HISTOGRAM_BOUNDS + 1]; /* [i]: above bounds[i - 1], up to bounds[i]; the last: above all */
    uint64_t count;                           /* of all values */
    double sum;                               /* of all values; beside a step that runs it may lack the latest */
};
/* Since the engine was opened. */
RD_API void rd_get_histogram(const struct rd_engine *engine, enum rd_histogram_id id, struct rd_histogram *out);

#ifdef __cplusplus
}
#endif
