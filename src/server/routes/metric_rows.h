/* server/routes/metric_rows.h - what /metrics tells, a row for each sample: radish's own names (metrics.c), and those that
 * other servers use for the same (metrics_foreign.c), so that their dashboards and routers read this one.
 *
 * Rows of one name stand together, and differ in their labels; the first says what it is. docs/metrics.md is the same
 * list for people, and a test compares the two.
 */
#pragma once
#include <stddef.h>
#include "radish/radish.h"
#include "server/routes/routes.h"

/* One scrape: everything is of the same moment, as far as the engine publishes it at once. */
struct metric_view {
    struct rd_stats s;
    struct rd_info info;
    const struct server *server;
    struct rd_histogram of[RD_N_HISTOGRAMS];
};

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metric {
    const char *name, *labels, *help; /* labels: as they are written, or ""; help: "" behind the first of a name */
    enum metric_type type;
    size_t offset; /* of an uint64_t in struct rd_stats; unless there is */
    double (*value)(const struct metric_view *v);
    enum rd_histogram_id histogram;
};

#define METRIC_COUNT(name, labels, field, help)                                                                        \
    {name, labels, help, METRIC_COUNTER, offsetof(struct rd_stats, field), NULL, 0},
#define METRIC_NOW(name, labels, field, help)                                                                          \
    {name, labels, help, METRIC_GAUGE, offsetof(struct rd_stats, field), NULL, 0},
#define METRIC_SUM(name, labels, fn, help)   {name, labels, help, METRIC_COUNTER, 0, fn, 0},
#define METRIC_VALUE(name, labels, fn, help) {name, labels, help, METRIC_GAUGE, 0, fn, 0},
#define METRIC_SPREAD(name, id, help)        {name, "", help, METRIC_HISTOGRAM, 0, NULL, id},

/* What is told under several names: prompt tokens, computed and cached; requests that wait for room, and for nothing that is
 * loaded; seconds of loading the model, and of loads from host memory; tokens per second of the latest steps. metrics.c */
double metric_prompt_tokens(const struct metric_view *v);
double metric_queued_for_room(const struct metric_view *v);
double metric_load_s(const struct metric_view *v);
double metric_ram_load_s(const struct metric_view *v);
double metric_prefill_speed(const struct metric_view *v);
double metric_decode_speed(const struct metric_view *v);

/* One server's names. by_model, by_engine: every sample has the label model_name, engine. */
struct metric_list {
    const struct metric *rows;
    size_t n;
    bool by_model, by_engine;
};
extern const struct metric_list metrics_of_vllm, metrics_of_sglang, metrics_of_llama_server;
