/* radish/inspect.h - how single requests fare in a running engine: as histograms of all, and one by one.
 *
 * rd_get_stats (radish.h) tells what is going on as sums and gauges. The step loop writes into memory of its own: nothing
 * is locked, and reading costs it nothing.
 *
 * Thread  any.
 * Errors  rd_cancel_request alone.
 */
#pragma once
#include <stdbool.h>
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
    X(RD_HIST_STEP_ROWS, "step_rows", RD_UNIT_ROWS, "Tokens of all requests that one step computed")                   \
    X(RD_HIST_EVICTED_AGE, "evicted_age_seconds", RD_UNIT_AGE,                                                         \
      "Pages that were given up for others, by how long they had not been used")
#define RD_HISTOGRAM_ENUM(id, name, unit, help) id,
enum rd_histogram_id { RD_HISTOGRAMS(RD_HISTOGRAM_ENUM) RD_N_HISTOGRAMS };
#undef RD_HISTOGRAM_ENUM
enum rd_unit { RD_UNIT_SECONDS, RD_UNIT_TOKENS, RD_UNIT_PER_SECOND, RD_UNIT_ROWS, RD_UNIT_AGE };

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

/* One request: as it is now, or was when it ended. Tokens of the prompt: n_prompt = n_computed + n_cached once it is known
 * whole; before that n_done of them are known. Times in ms; 0: it has not come so far. */
#define RD_RECORD_LABEL 40
struct rd_record {
    uint64_t number;             /* of those that ended: 0, 1, 2 .. */
    uint64_t id;                 /* for rd_cancel_request; unique */
    uint64_t asked_ns, at_ns;    /* engine's clock: the call; the end, or now */
    char label[RD_RECORD_LABEL]; /* rd_request_options.label, cut; or "" */
    int32_t phase;               /* enum rd_phase: where it is, or was when it ended */
    int32_t finish, status;      /* enum rd_finish, rd_status; of those that ended */
    int32_t match, miss;         /* RD_MATCH_ ..., enum rd_miss_cause; once it left the queue */
    uint32_t n_match;            /* tokens that the match found */
    uint32_t n_prompt, n_done, n_computed, n_cached, n_joined, n_ram, n_disk;
    uint32_t n_generated, n_drafted, n_draft_accepted, n_preempted;
    uint32_t max_tokens;            /* most that are generated; RD_NO_LIMIT: until the context is full */
    bool ended, is_idle, continues; /* of rd_warm; a later part of one whose context was shifted */
    double age_s;                   /* since the call; of those that ended: since the end */
    double prepare_ms, queue_ms, ttft_ms, prefill_ms, decode_ms, total_ms;
    double prefill_tok_s, decode_tok_s; /* computed tokens over prefill_ms; tokens behind the first over their time */
    double gap_p50_ms, gap_p99_ms;      /* between tokens, within 5 % */
};
/* Those that ended since *from (0: the first), the latest 256 of them at most, oldest first; *from: what to ask with next
 * (beyond the last: how many there were).
 * Returns how many are in out. */
RD_API uint32_t rd_ended_requests(const struct rd_engine *engine, uint64_t *from, struct rd_record *out,
                                  uint32_t n_max);
/* Those that are in the batch, then those in the queue: the first 64, as they were a quarter of a second ago at most. */
RD_API uint32_t rd_running_requests(const struct rd_engine *engine, struct rd_record *out, uint32_t n_max);
/* Cancels it within one step, whoever it belongs to: its client is told RD_E_CANCELLED. RD_E_NOT_FOUND: it is not there
 * any more. Waits for the step that runs. */
RD_API rd_status rd_cancel_request(struct rd_engine *engine, uint64_t id);

#ifdef __cplusplus
}
#endif
