/* bench/train/bench_train.c - steps of training on tokens of no meaning: tokens a second, and memory.
 *
 *     bench_train MODEL DEVICE N_SAMPLES N_TOKENS RANK STEPS [MEMORY_BYTES]
 *
 * A step is N_SAMPLES of N_TOKENS in one pass, all tokens targets, all seven matrices. The first two steps are not counted. Prints
 * a line of JSON. bench/train/peer_gpu.py is what runs it beside torch. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "radish/train.h"

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    struct rd_trainer_options o;
    struct rd_train_result r = {0};
    struct rd_error err;
    rd_trainer *t;
    double begin = 0, loss = 0;

    if (argc < 7) return 2;
    const uint32_t n = (uint32_t)atoi(argv[3]), n_tokens = (uint32_t)atoi(argv[4]), steps = (uint32_t)atoi(argv[6]);
    struct rd_train_sample *samples = calloc(n, sizeof(*samples));
    int32_t *tokens = calloc((size_t)n * n_tokens, sizeof(*tokens));
    bool *targets = calloc(n_tokens, sizeof(*targets));

    for (uint32_t i = 0; i < n * n_tokens; i++) tokens[i] = (int32_t)((i * 2654435761u >> 8) % 32000);
    for (uint32_t i = 1; i < n_tokens; i++) targets[i] = true;
    for (uint32_t i = 0; i < n; i++)
        samples[i] = (struct rd_train_sample){tokens + (size_t)i * n_tokens, targets, n_tokens};
    rd_trainer_options_default(&o);
    o.model = argv[1];
    o.device = argv[2];
    o.rank = (uint32_t)atoi(argv[5]);
    o.pass_tokens = n * n_tokens;
    o.kv_type = "bf16";
    o.memory_bytes = argc > 7 ? strtoull(argv[7], NULL, 10) : 0;
    if (rd_trainer_open(&o, &t, &err) != RD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (uint32_t step = 0; step < steps + 2; step++) {
        if (step == 2) begin = now();
        if (rd_trainer_step(t, samples, n, 1e-4, &r, &err) != RD_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        if (step == 0) loss = r.loss;
    }
    const double took = (now() - begin) / steps;

    printf("{\"tokens_per_s\": %.0f, \"step_ms\": %.1f, \"tape_mib\": %.0f, \"first_loss\": %.4f, \"loss\": %.4f}\n",
           n * n_tokens / took, took * 1e3, (double)r.tape_bytes / 1048576, loss, r.loss);
    rd_trainer_close(t);
    free(samples);
    free(tokens);
    free(targets);
    return 0;
}
