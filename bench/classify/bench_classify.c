/* bench/classify/bench_classify.c - prompts per second, prefill only: one after another, as one batch, and as one batch
 * that also gives the logits of all tokens.
 *
 *     cmake -B build/bench -DCMAKE_BUILD_TYPE=Release -DRADISH_BENCH=ON -DRADISH_TESTS=OFF
 *     cmake --build build/bench --target bench_classify
 *     build/bench/bench/classify/bench_classify MODEL.gguf [PROMPTS [TOKENS [SHARED [ROUNDS]]]]
 *
 * PROMPTS (default 64) of TOKENS (default 128) random tokens; the first SHARED of them are the same in all (default 96).
 * Each way runs ROUNDS times (default 3), in turns, from an empty cache; the median counts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "radish/radish.h"

#define MAX_ROUNDS 99u

static const int32_t yes_and_no[] = {0, 1};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *seconds, uint32_t n)
{
    qsort(seconds, n, sizeof(*seconds), by_size);
    return seconds[n / 2];
}

/* Seconds for all of them; negative: an error, which was told. */
static double run_once(rd_engine *engine, struct rd_classify_item *items, uint32_t n, uint32_t n_at_once)
{
    struct rd_error err = {RD_OK, ""};
    double begun;

    rd_cache_clear(engine);
    begun = now_s();
    for (uint32_t i = 0; i < n; i += n_at_once) {
        const uint32_t left = n - i < n_at_once ? n - i : n_at_once;

        if (rd_classify_batch(engine, items + i, left, &err) == RD_OK) continue;
        fprintf(stderr, "bench_classify: %s\n", err.text);
        return -1;
    }
    return now_s() - begun;
}

static struct rd_classify_item *make_items(uint32_t n, uint32_t n_tokens, uint32_t n_shared, uint32_t n_vocab)
{
    struct rd_classify_item *items = calloc(n, sizeof(*items));
    int32_t *tokens = calloc((size_t)n * n_tokens, sizeof(*tokens));
    uint64_t state = 1;

    if (!items || !tokens) exit(1);
    for (uint32_t i = 0; i < n; i++) {
        int32_t *own = tokens + (size_t)i * n_tokens;

        for (uint32_t k = 0; k < n_tokens; k++)
            own[k] = i && k < n_shared ? tokens[k] : (int32_t)(random_next(&state) % n_vocab);
        items[i] = (struct rd_classify_item){.tokens = own, .n = n_tokens, .labels = yes_and_no, .n_labels = 2};
    }
    return items;
}

/* all NULL: none. */
static void want_logits(struct rd_classify_item *items, uint32_t n, float *all, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < n; i++) items[i].logits = all ? all + (size_t)i * n_vocab : NULL;
}

int main(int argc, char **argv)
{
    const uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : 64, n_tokens = argc > 3 ? (uint32_t)atoi(argv[3]) : 128;
    const uint32_t n_shared = argc > 4 ? (uint32_t)atoi(argv[4]) : 96,
                   n_rounds = argc > 5 ? (uint32_t)atoi(argv[5]) : 3;
    double alone[MAX_ROUNDS], together[MAX_ROUNDS], logits[MAX_ROUNDS];
    struct rd_classify_item *items;
    struct rd_error err = {RD_OK, ""};
    struct rd_options o;
    struct rd_info info = {.size = sizeof(info)};
    rd_engine *engine;
    float *all;

    if (argc < 2 || n == 0 || n_tokens == 0 || n_shared > n_tokens || n_rounds == 0 || n_rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_classify MODEL.gguf [PROMPTS [TOKENS [SHARED [ROUNDS]]]]\n");
        return 2;
    }
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_options_default(&o);
    o.model = argv[1];
    if (rd_open(&o, &engine, &err) != RD_OK) {
        fprintf(stderr, "bench_classify: %s\n", err.text);
        return 1;
    }
    rd_get_info(engine, &info);
    items = make_items(n, n_tokens, n_shared, info.n_vocab);
    all = calloc((size_t)n * info.n_vocab, sizeof(*all));
    if (!all) return 1;
    for (uint32_t i = 0; i < n_rounds; i++) {
        want_logits(items, n, NULL, 0);
        alone[i] = run_once(engine, items, n, 1);
        together[i] = run_once(engine, items, n, n);
        want_logits(items, n, all, info.n_vocab);
        logits[i] = run_once(engine, items, n, n);
        if (alone[i] < 0 || together[i] < 0 || logits[i] < 0) return 1;
    }
    printf(
        "%s, %u prompts of %u tokens, the first %u shared, %u rounds: one by one %.1f prompts/s, as a batch %.1f, with "
        "all logits %.1f\n",
        info.model_id, n, n_tokens, n_shared, n_rounds, n / median(alone, n_rounds), n / median(together, n_rounds),
        n / median(logits, n_rounds));
    free(all);
    rd_close(engine);
    free((void *)(uintptr_t)items[0].tokens);
    free(items);
    return 0;
}
