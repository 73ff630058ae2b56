/* examples/beams.c - the likeliest ways to go on, by radish/flat.h: a search that forks handles.
 *
 *     cc beams.c -o beams $(pkg-config --cflags --libs radish) -lm
 *     ./beams model.gguf "The capital of France is" 8
 *
 * The prompt is computed once; every step computes one token for each of the WIDTH beams, all of them in one pass, and keeps the
 * WIDTH likeliest of what could follow. A beam that two others go on from is forked: they share its pages.
 */
#include <math.h>
#include <radish/flat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 4
#define MOST  256

struct beam {
    rd_handle handle;
    double logprob; /* of all its tokens */
    uint32_t n;
    int32_t tokens[MOST];
};

struct next {
    double logprob;
    int beam;
    int32_t token;
};

/* Keeps the WIDTH likeliest of best and of what may follow this beam, the likeliest first. */
static void look(struct next *best, int *n_best, int beam, double logprob, const float *logits, uint32_t n_vocab)
{
    double most = -INFINITY, sum = 0;

    for (uint32_t t = 0; t < n_vocab; t++) most = logits[t] > most ? logits[t] : most;
    for (uint32_t t = 0; t < n_vocab; t++) sum += exp(logits[t] - most);
    for (uint32_t t = 0; t < n_vocab; t++) {
        struct next x = {logprob + logits[t] - most - log(sum), beam, (int32_t)t};
        int at = *n_best;

        while (at > 0 && best[at - 1].logprob < x.logprob) at--;
        if (at == WIDTH) continue;
        if (*n_best < WIDTH) ++*n_best;
        memmove(best + at + 1, best + at, (size_t)(*n_best - 1 - at) * sizeof(*best));
        best[at] = x;
    }
}

static rd_status search(rd_flat *f, struct beam *beams, const int32_t *prompt, uint32_t n, uint32_t n_steps,
                        struct rd_error *err)
{
    struct rd_flat_info info = {.size = sizeof(info)};
    struct next best[WIDTH];
    int n_beams = 1, n_best = 0;
    float *logits;
    rd_status st;

    rd_flat_get_info(f, &info);
    logits = malloc(WIDTH * (size_t)info.n_vocab * sizeof(*logits));
    if (!logits) return RD_E_NOMEM;
    st = rd_flat_forward(f, RD_EMPTY, prompt, n, logits, &beams[0].handle, err);
    for (uint32_t step = 0; st == RD_OK; step++) {
        struct rd_flat_run runs[WIDTH];
        struct beam after[WIDTH];

        n_best = 0;
        for (int i = 0; i < n_beams; i++)
            look(best, &n_best, i, beams[i].logprob, logits + (size_t)i * info.n_vocab, info.n_vocab);
        for (int i = 0; i < n_best; i++) {
            after[i] = beams[best[i].beam];
            after[i].tokens[after[i].n++] = best[i].token;
            after[i].logprob = best[i].logprob;
            runs[i] = (struct rd_flat_run){beams[best[i].beam].handle,
                                           &after[i].tokens[after[i].n - 1],
                                           1,
                                           1,
                                           logits + (size_t)i * info.n_vocab,
                                           &after[i].handle};
        }
        if (step + 1 < n_steps) st = rd_flat_forward_many(f, runs, (uint32_t)n_best, err);
        if (st != RD_OK) break;
        if (step + 1 == n_steps)
            for (int i = 0; i < n_best; i++) after[i].handle = RD_EMPTY; /* the last token needs no more */
        for (int i = 0; i < n_beams; i++) rd_flat_free(f, beams[i].handle);
        memcpy(beams, after, (size_t)n_best * sizeof(*beams));
        n_beams = n_best;
        if (step + 1 == n_steps) break;
    }
    free(logits);
    return st;
}

int main(int argc, char **argv)
{
    static struct beam beams[WIDTH];
    struct rd_flat_info info = {.size = sizeof(info)};
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    rd_engine *texts = NULL;
    rd_flat *f = NULL;
    int32_t *tokens = NULL;
    uint32_t n = 0, n_steps = argc > 3 ? (uint32_t)atoi(argv[3]) : 8;
    rd_status st;

    if (argc < 3 || n_steps < 1 || n_steps > MOST) {
        fprintf(stderr, "usage: %s MODEL.gguf TEXT [TOKENS, 1 to %d]\n", argv[0], MOST);
        return 2;
    }
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    rd_options_default(&o);
    o.model = argv[1];
    o.kv_tokens = 4096;
    st = rd_open_tokenizer(argv[1], NULL, &texts, &err);
    if (st == RD_OK) st = rd_flat_open(&o, &f, &err);
    if (st == RD_OK) st = rd_tokenize(texts, argv[2], strlen(argv[2]), true, false, &tokens, &n, &err);
    if (st == RD_OK) st = search(f, beams, tokens, n, n_steps, &err);
    for (int i = 0; i < WIDTH && st == RD_OK && beams[i].n; i++) {
        char *text = NULL;
        size_t n_text = 0;

        st = rd_detokenize(texts, beams[i].tokens, beams[i].n, true, &text, &n_text, &err);
        if (st == RD_OK) printf("%8.3f %.*s\n", beams[i].logprob, (int)n_text, text);
        rd_free(text);
    }
    if (st == RD_OK) {
        rd_flat_get_info(f, &info);
        printf("[%u of %u pages free, %u handles]\n", info.n_pages_free, info.n_pages, info.n_handles);
    }
    if (st != RD_OK) fprintf(stderr, "%s: %s\n", argv[1], err.text);
    rd_free(tokens);
    rd_flat_close(f);
    rd_close(texts);
    return st == RD_OK ? 0 : 1;
}
