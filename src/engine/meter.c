/* engine/meter.c - which histogram has which bounds. */
#include "engine/meter.h"

#define US(n) ((n)*1000ull)
#define MS(n) ((n)*1000000ull)
#define S(n)  ((n)*1000000000ull)
#define K     1000ull

/* From the gap between two tokens of a small model to a prompt of a million tokens on a small machine. */
static const struct histogram_bounds seconds = {22, {US(100), US(200), US(500), MS(1),   MS(2),  MS(5),  MS(10), MS(20),
                                                     MS(50),  MS(100), MS(200), MS(500), S(1),   S(2),   S(5),   S(10),
                                                     S(20),   S(50),   S(100),  S(200),  S(500), S(1000)}};
static const struct histogram_bounds tokens = {19,
                                               {1, 2, 5, 10, 20, 50, 100, 200, 500, 1 * K, 2 * K, 5 * K, 10 * K, 20 * K,
                                                50 * K, 100 * K, 200 * K, 500 * K, 1000 * K}};
/* thousandths: a model that is larger than its machine takes seconds for a token */
static const struct histogram_bounds per_second = {
    20, {100,     200,     500,      1 * K,    2 * K,    5 * K,     10 * K,    20 * K,    50 * K,     100 * K,
         200 * K, 500 * K, 1000 * K, 2000 * K, 5000 * K, 10000 * K, 20000 * K, 50000 * K, 100000 * K, 200000 * K}};
/* From a pool that is too small for what runs to a text of last week. */
static const struct histogram_bounds age = {
    22, {MS(1),  MS(10), MS(100), S(1),    S(2),    S(5),    S(10),    S(20),    S(30),    S(60),     S(120),
         S(300), S(600), S(1200), S(1800), S(3600), S(7200), S(14400), S(28800), S(86400), S(259200), S(604800)}};
static const struct histogram_bounds rows = {15,
                                             {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}};

static const struct {
    const struct histogram_bounds *bounds;
    double scale;
} units[] = {
    [RD_UNIT_SECONDS] = {&seconds, 1e-9}, [RD_UNIT_TOKENS] = {&tokens, 1}, [RD_UNIT_PER_SECOND] = {&per_second, 1e-3},
    [RD_UNIT_ROWS] = {&rows, 1},          [RD_UNIT_AGE] = {&age, 1e-9},
};
#define UNIT_OF(id, name, unit, help) [id] = unit,
static const enum rd_unit unit_of[] = {RD_HISTOGRAMS(UNIT_OF)};
#undef UNIT_OF

_Static_assert(RD_HISTOGRAM_BOUNDS == HISTOGRAM_BOUNDS_MAX, "what is kept is what is told");

void meter_init(struct meter *m)
{
    for (uint32_t i = 0; i < RD_N_HISTOGRAMS; i++) m->of[i].bounds = units[unit_of[i]].bounds;
}

void meter_read(const struct meter *m, enum rd_histogram_id id, struct rd_histogram *out)
{
    const struct histogram *h = &m->of[id];
    double scale = units[unit_of[id]].scale;
    uint64_t sum;

    *out = (struct rd_histogram){.n_bounds = h->bounds->n};
    histogram_read(h, out->counts, &sum);
    for (uint32_t i = 0; i < h->bounds->n; i++) out->bounds[i] = (double)h->bounds->at[i] * scale;
    for (uint32_t i = 0; i <= h->bounds->n; i++) out->count += out->counts[i];
    out->sum = (double)sum * scale;
}
