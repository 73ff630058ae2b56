/* bench/monitoring/bench_meter.c - decodes when it is told to: for each line of standard input, sequences that decode together
 * (SEQUENCES TOKENS); prints the wall and CPU nanoseconds of each token. bench/monitoring/run starts it with the meter and
 * without.
 *
 *     bench_meter MODEL.gguf THREADS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "radish/radish.h"

#define MOST 64u

static double now_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int count(void *user, uint32_t index, const struct rd_event *ev)
{
    (void)index;
    if (ev->type == RD_EVENT_TOKEN) ++*(uint32_t *)user;
    return 0;
}

static rd_status decode(rd_engine *engine, uint32_t n, uint32_t n_tokens, struct rd_error *err)
{
    static struct rd_request_options q[MOST];
    static char prompts[MOST][64];
    uint32_t n_seen = 0;
    double wall, cpu;
    rd_status st;

    for (uint32_t i = 0; i < n; i++) {
        snprintf(prompts[i], sizeof(prompts[i]), "Story %u: once upon a time", i);
        rd_request_options_default(&q[i]);
        q[i].prompt = prompts[i];
        q[i].prompt_bytes = strlen(prompts[i]);
        q[i].max_tokens = 1;
        q[i].ignore_eos = true;
        q[i].speculation = false;
    }
    st = rd_generate_batch(engine, q, n, count, &n_seen, err); /* the prompts are stored now */
    if (st != RD_OK) return st;
    for (uint32_t i = 0; i < n; i++) q[i].max_tokens = n_tokens;
    n_seen = 0;
    wall = now_ns(CLOCK_MONOTONIC);
    cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    st = rd_generate_batch(engine, q, n, count, &n_seen, err);
    cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    wall = now_ns(CLOCK_MONOTONIC) - wall;
    if (st != RD_OK || n_seen == 0) return st;
    printf("%.1f %.1f\n", wall / n_seen, cpu / n_seen);
    fflush(stdout);
    return RD_OK;
}

int main(int argc, char **argv)
{
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;
    unsigned n, n_tokens;
    char line[64];
    rd_status st;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf THREADS\n", argv[0]);
        return 2;
    }
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_options_default(&o);
    o.model = argv[1];
    o.n_threads = (uint32_t)strtoul(argv[2], NULL, 10);
    o.kv_tokens = 32768;
    st = rd_open(&o, &engine, &err);
    while (st == RD_OK && fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "%u %u", &n, &n_tokens) != 2 || n == 0 || n > MOST || n_tokens == 0) break;
        st = decode(engine, n, n_tokens, &err);
    }
    if (st != RD_OK) fprintf(stderr, "bench_meter: %s\n", err.text);
    rd_close(engine);
    return st != RD_OK;
}
