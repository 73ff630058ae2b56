/* cli/cmd_perplexity.c - `radish perplexity`: how well a model predicts a text, by llama-perplexity's method.
 *
 * The file's tokens (BOS as the model wants, one newline at the end dropped) are cut into chunks of n_ctx; the rest is
 * left out. Where the model adds a BOS, it replaces each chunk's first token. Each chunk is computed on its own, and
 * the tokens n_ctx/2 + 1 .. n_ctx - 1 of it are scored, so that each has at least half a chunk before it.
 *     PPL = exp(mean nll);  its error = PPL * sqrt((mean nll^2 - (mean nll)^2) / (n - 1))
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli_flags.h"
#include "cli/cli_model.h"
#include "cli/cli_stream.h"
#include "cli/commands.h"

struct perplexity_flags {
    struct rd_options engine;
    uint32_t n_chunks;
};

static const struct arg perplexity_args[] = {
    {.flag = "--chunks",
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct perplexity_flags, n_chunks),
     .fallback_text = "all",
     .help = "only the first N chunks of the text"},
    {.flag = "--ctx",
     .letter = 'c',
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct perplexity_flags, engine) + offsetof(struct rd_options, n_ctx),
     .fallback = "512",
     .min = 8,
     .max = LIMIT_CONTEXT,
     .help = "tokens in one chunk"},
    {0},
};

static const struct arg_group perplexity_groups[] = {
    {"Text", perplexity_args, 0},
    {"Model and memory", engine_args, offsetof(struct perplexity_flags, engine)},
    {NULL, NULL, 0}};

struct sums {
    double nll, nll2;
    uint64_t n;
};

static void estimate(const struct sums *s, double *ppl, double *error)
{
    double mean = s->nll / (double)s->n, variance = s->nll2 / (double)s->n - mean * mean;

    *ppl = exp(mean);
    *error = s->n > 1 && variance > 0 ? *ppl * sqrt(variance / (double)(s->n - 1)) : 0;
}

/* One chunk of n_ctx tokens: computed alone, its second half scored. */
static rd_status score_chunk(rd_engine *engine, const int32_t *chunk, uint32_t n_ctx, float *logprobs, struct sums *s,
                             struct rd_error *err)
{
    rd_status st = rd_score(engine, chunk, n_ctx, logprobs, err);

    if (st != RD_OK) return st;
    for (uint32_t i = n_ctx / 2 + 1; i < n_ctx; i++) {
        double nll = -(double)logprobs[i];
        s->nll += nll;
        s->nll2 += nll * nll;
        s->n++;
    }
    return RD_OK;
}

static int score_all(rd_engine *engine, int32_t *tokens, uint32_t n_chunks, uint32_t n_ctx, int32_t bos)
{
    struct rd_error err = {RD_OK, ""};
    struct sums s = {0, 0, 0};
    double ppl = 0, error = 0;
    rd_status st = RD_OK;
    float *logprobs = mem_alloc(n_ctx, sizeof(*logprobs));

    if (!logprobs) return cli_fail("out of memory");
    for (uint32_t i = 0; i < n_chunks && st == RD_OK && !stream_interrupted(); i++) {
        int32_t *chunk = tokens + (size_t)i * n_ctx;
        if (bos >= 0) chunk[0] = bos;
        st = score_chunk(engine, chunk, n_ctx, logprobs, &s, &err);
        if (st != RD_OK) break;
        estimate(&s, &ppl, &error);
        fprintf(stderr, "%schunk %u of %u: PPL so far %.4f%s", isatty(STDERR_FILENO) ? "\r\033[K" : "", i + 1, n_chunks,
                ppl, isatty(STDERR_FILENO) && i + 1 < n_chunks ? "" : "\n");
    }
    mem_free(logprobs);
    if (st != RD_OK) return cli_fail("%s", *err.text ? err.text : rd_status_text(st));
    if (s.n == 0) return EXIT_INTERRUPTED;
    printf("PPL = %.4f +/- %.5f  (%llu tokens scored, chunks of %u)\n", ppl, error, (unsigned long long)s.n, n_ctx);
    return s.n == (uint64_t)n_chunks * (n_ctx - n_ctx / 2 - 1) ? EXIT_DONE : EXIT_INTERRUPTED;
}

/* The BOS that the model puts before a text; -1: it adds none. */
static int32_t added_bos(const rd_engine *engine)
{
    int32_t *tokens = NULL, bos = -1;
    struct rd_info info = {.size = sizeof(info)};
    uint32_t n = 0;

    rd_get_info(engine, &info);
    if (rd_tokenize(engine, "", 0, true, false, &tokens, &n, NULL) != RD_OK) return -1;
    if (n && tokens[0] == info.bos) bos = info.bos;
    rd_free(tokens);
    return bos;
}

static int score_file(rd_engine *engine, const struct perplexity_flags *f, const char *text, size_t n_bytes)
{
    struct rd_error err = {RD_OK, ""};
    int32_t *tokens = NULL;
    uint32_t n = 0, n_chunks, n_ctx = f->engine.n_ctx;
    rd_status st;
    int rc;

    if (n_bytes && text[n_bytes - 1] == '\n') n_bytes--;
    st = rd_tokenize(engine, text, n_bytes, true, false, &tokens, &n, &err);
    if (st != RD_OK) return cli_fail("%s", *err.text ? err.text : rd_status_text(st));
    n_chunks = n / n_ctx;
    if (f->n_chunks && n_chunks > f->n_chunks) n_chunks = f->n_chunks;
    if (n < 2 * (uint64_t)n_ctx)
        rc =
            cli_fail("the text has %u tokens; wanted at least %u (two chunks): take more text, or --ctx", n, 2 * n_ctx);
    else
        rc = score_all(engine, tokens, n_chunks, n_ctx, added_bos(engine));
    rd_free(tokens);
    return rc;
}

static int run_perplexity(const struct command *self, int argc, char **argv)
{
    struct perplexity_flags f;
    struct rd_error err = {RD_OK, ""};
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    rd_engine *engine;
    char *text = NULL;
    size_t n_bytes = 0;
    rd_status st;
    int rc;

    memset(&f, 0, sizeof(f));
    rd_options_default(&f.engine);
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    st = file_read_all(words[1], LIMIT_TEXT_BYTES, &text, &n_bytes, &err);
    if (st != RD_OK) return cli_fail_at(words[1], st, &err);
    f.engine.no_disk_cache = true;
    engine = cli_open(&f.engine, words[0]);
    rc = EXIT_FAILED;
    if (engine) {
        stream_catch_interrupt();
        rc = score_file(engine, &f, text, n_bytes);
    }
    rd_close(engine);
    mem_free(text);
    return rc;
}

const struct command cmd_perplexity = {
    .name = "perplexity",
    .section = "Measure",
    .summary = "how well a model predicts a text file",
    .words = "MODEL FILE",
    .about = "Cuts the text into chunks of --ctx tokens and scores the second half of each; the numbers compare with "
             "llama-perplexity's. Lower is better. Progress goes to stderr, the result to stdout.",
    .examples = "  radish perplexity smollm2 README.md --ctx 256\n"
                "  radish perplexity model.gguf wiki.test.raw --chunks 20\n",
    .groups = perplexity_groups,
    .min_words = 2,
    .max_words = 2,
    .run = run_perplexity,
};
