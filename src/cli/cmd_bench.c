/* cli/cmd_bench.c - `radish bench`: tokens per second of prefill, of decode, and of several sequences at once.
 *
 *   prefill   --prompt random tokens with nothing cached and nothing generated: tokens / time from submit to the end
 *   decode    --gen tokens after --depth random tokens and one: (n - 1) / time between the first and the last token's
 *             event. The --depth tokens come from the cache, filled by the run that is thrown away.
 *   batched   n sequences at once, each --gen tokens after its own random tokens: --depth of them (--shared: the same for
 *             all) and one, which come from the cache, or 16 that are computed where --depth is 0. Tokens of all in the
 *             time when all run, which is from the last sequence's first token to the first sequence's last
 * Each figure is the median of --reps runs, after one run that is thrown away (of a prefill, its first 512 tokens).
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/thread.h"
#include "cli/bench_image.h"
#include "cli/bench_median.h"
#include "cli/bench_plot.h"
#include "cli/cli_flags.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/text_wrap.h"

enum { MAX_POINTS = 16, MAX_REPS = 101, BATCH_PROMPT = 16, MAX_BATCH = 256, WARM_UP_TOKENS = 512, MOST_TIMES = 16 };

struct bench_flags {
    struct rd_options engine;
    uint32_t n_gen, n_reps;
    const char *prompt, *depth, *batch;
    uint64_t seed;
    bool shared, json, plot;
    const char *svg, *image;
};

static const struct arg bench_args[] = {
    {.flag = "--prompt",
     .letter = 'p',
     .kind = ARG_TEXT,
     .value = "LIST",
     .at = offsetof(struct bench_flags, prompt),
     .fallback = "512",
     .help = "tokens of the prefill; several such as 128,512 for a figure each; 0: none"},
    {.flag = "--depth",
     .letter = 'd',
     .kind = ARG_TEXT,
     .value = "LIST",
     .at = offsetof(struct bench_flags, depth),
     .fallback = "0",
     .help = "tokens before those that decode generates; several such as 0,2048 for a figure each, of each batch too"},
    {.flag = "--gen",
     .letter = 'n',
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct bench_flags, n_gen),
     .fallback = "128",
     .min = 2,
     .max = LIMIT_CONTEXT,
     .help = "tokens to generate; a batch whose sequences begin one by one writes more, until all have run together"},
    {.flag = "--reps",
     .letter = 'r',
     .kind = ARG_U32,
     .value = "R",
     .at = offsetof(struct bench_flags, n_reps),
     .fallback = "5",
     .min = 1,
     .max = MAX_REPS,
     .help = "runs of each figure; the median counts"},
    {.flag = "--batch",
     .letter = 'b',
     .kind = ARG_TEXT,
     .value = "LIST",
     .at = offsetof(struct bench_flags, batch),
     .fallback_text = "none",
     .help = "numbers of sequences that generate at once, such as 1,4,16"},
    {.flag = "--shared",
     .kind = ARG_SWITCH,
     .at = offsetof(struct bench_flags, shared),
     .help = "the sequences of a batch have their --depth tokens in common"},
    {.flag = "--image",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct bench_flags, image),
     .fallback_text = "none",
     .help = "a picture, for a model that sees: milliseconds to the first token about it, never seen, seen before in "
             "another conversation, and asked again"},
    {.flag = "--seed",
     .kind = ARG_U64,
     .value = "N",
     .at = offsetof(struct bench_flags, seed),
     .fallback = "1",
     .help = "of the random prompt tokens"},
    {.flag = "--plot", .kind = ARG_SWITCH, .at = offsetof(struct bench_flags, plot), .help = "bars instead of a table"},
    {.flag = "--svg",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct bench_flags, svg),
     .fallback_text = "none",
     .help = "draws the figures into this file, too"},
    {.flag = "--json",
     .kind = ARG_SWITCH,
     .at = offsetof(struct bench_flags, json),
     .help = "one JSON object instead of a table"},
    {0}};

static const struct arg_group bench_groups[] = {
    {"Measurement", bench_args, 0},
    {"Steps", schedule_args, offsetof(struct bench_flags, engine)},
    {"Model and memory", context_args, offsetof(struct bench_flags, engine)},
    {"Model and memory", engine_args, offsetof(struct bench_flags, engine)},
    {NULL, NULL, 0}};

struct bench {
    rd_engine *engine;
    struct rd_info info;
    struct random random;
    uint32_t n_reps;
    bool shared;
};

/* ---- one run ---- */

/* When each token came: at_ns [n, n_gen]. */
struct arrivals {
    uint64_t *at_ns;
    uint32_t *n_tokens;
    uint32_t n_gen;
};

static int note_arrival(void *user, uint32_t index, const struct rd_event *ev)
{
    struct arrivals *a = user;

    if (ev->type == RD_EVENT_TOKEN && a->n_tokens[index] < a->n_gen)
        a->at_ns[(size_t)index * a->n_gen + a->n_tokens[index]++] = clock_now_ns(clock_system());
    return 0;
}

static void random_tokens(struct bench *b, int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)random_below(&b->random, b->info.n_vocab);
}

static struct rd_request_options uncached(const int32_t *tokens, uint32_t n_tokens, uint32_t n_gen)
{
    struct rd_request_options q;

    rd_request_options_default(&q);
    q.tokens = tokens;
    q.n_tokens = n_tokens;
    q.max_tokens = n_gen;
    q.sampling.temperature = 0;
    q.ignore_eos = true;
    q.cache_prompt = false;
    q.speculation = false; /* random tokens: the speed of the model, not of luck */
    return q;
}

static rd_status prefill_once(struct bench *b, int32_t *tokens, uint32_t n_prompt, double *tok_s, struct rd_error *err)
{
    struct rd_request_options q = uncached(tokens, n_prompt, 0);
    uint64_t start;
    rd_status st;

    random_tokens(b, tokens, n_prompt);
    start = clock_now_ns(clock_system());
    st = rd_generate(b->engine, &q, NULL, NULL, err);
    *tok_s = n_prompt * 1e9 / (double)u64_max(1, clock_now_ns(clock_system()) - start);
    return st;
}

/* Tokens per second of all sequences while all of them run; 0: they did not for as many tokens as n_least each. */
static double rate_together(const struct arrivals *a, uint32_t n, uint32_t n_least)
{
    uint64_t from = 0, to = UINT64_MAX, count = 0;

    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *at = a->at_ns + (size_t)i * a->n_gen;
        if (a->n_tokens[i] == 0) return 0;
        from = u64_max(from, at[0]);
        to = u64_min(to, at[a->n_tokens[i] - 1]);
    }
    if (to <= from) return 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < a->n_tokens[i]; j++) {
            uint64_t at = a->at_ns[(size_t)i * a->n_gen + j];
            count += at > from && at <= to;
        }
    return count < (uint64_t)n * n_least ? 0 : (double)count * 1e9 / (double)(to - from);
}

/* n sequences of prompts [n, n_prompt]. cached: the prompts are taken from the cache, and left there. *tok_s 0: they ran
 * all at once for less than n_least tokens each. */
static rd_status decode_once(struct bench *b, uint32_t n, const int32_t *prompts, uint32_t n_prompt, bool cached,
                             uint32_t n_least, struct arrivals *a, double *tok_s, struct rd_error *err)
{
    struct rd_request_options q[MAX_BATCH];
    rd_status st;

    for (uint32_t i = 0; i < n; i++) {
        q[i] = uncached(prompts + (size_t)i * n_prompt, n_prompt, a->n_gen);
        q[i].cache_prompt = cached;
    }
    memset(a->n_tokens, 0, n * sizeof(*a->n_tokens));
    st = rd_generate_batch(b->engine, q, n, note_arrival, a, err);
    if (st == RD_OK) *tok_s = rate_together(a, n, n_least);
    return st;
}

/* ---- medians ---- */

static rd_status measure_prefill(struct bench *b, uint32_t n_prompt, double *tok_s, struct rd_error *err)
{
    double v[MAX_REPS], warm_up;
    int32_t *tokens = mem_alloc(n_prompt, sizeof(*tokens));
    rd_status st = tokens ? prefill_once(b, tokens, u32_min(n_prompt, WARM_UP_TOKENS), &warm_up, err) : RD_E_NOMEM;

    for (uint32_t r = 0; st == RD_OK && r < b->n_reps; r++) st = prefill_once(b, tokens, n_prompt, &v[r], err);
    if (st == RD_OK) *tok_s = bench_median(v, b->n_reps);
    mem_free(tokens);
    return st;
}

/* n sequences that write n_most tokens each; rates of stretches in which all of them ran, for n_least tokens or more.
 * *tok_s 0: there was none. */
static rd_status measure_decode_of(struct bench *b, uint32_t n, const int32_t *prompts, uint32_t n_prompt, bool cached,
                                   uint32_t n_least, uint32_t n_most, double *tok_s, struct rd_error *err)
{
    double v[MAX_REPS];
    struct arrivals a = {mem_alloc((size_t)n * n_most, sizeof(*a.at_ns)), mem_alloc(n, sizeof(*a.n_tokens)), n_most};
    rd_status st = a.at_ns && a.n_tokens ? RD_OK : RD_E_NOMEM;

    if (st == RD_OK) st = decode_once(b, n, prompts, n_prompt, cached, n_least, &a, tok_s, err); /* warms up */
    for (uint32_t r = 0; st == RD_OK && *tok_s > 0 && r < b->n_reps; r++) {
        st = decode_once(b, n, prompts, n_prompt, cached, n_least, &a, &v[r], err);
        if (st != RD_OK || v[r] == 0) *tok_s = 0;
    }
    if (st == RD_OK && *tok_s > 0) *tok_s = bench_median(v, b->n_reps);
    mem_free(a.n_tokens);
    mem_free(a.at_ns);
    return st;
}

/* Many sequences begin one after the other, as their prompts are computed beside those that write already: they write more
 * than n_gen tokens then, until all have run together for half of n_gen. */
static rd_status measure_decode(struct bench *b, uint32_t n, uint32_t n_prompt, bool cached, uint32_t n_gen,
                                double *tok_s, struct rd_error *err)
{
    int32_t *prompts = mem_alloc((size_t)n * n_prompt, sizeof(*prompts));
    rd_status st = prompts ? RD_OK : RD_E_NOMEM;

    *tok_s = 0;
    if (st == RD_OK) random_tokens(b, prompts, n * n_prompt);
    for (uint32_t i = 1; st == RD_OK && b->shared && cached && i < n; i++) /* all but the last token */
        memcpy(prompts + (size_t)i * n_prompt, prompts, (n_prompt - 1) * sizeof(*prompts));
    for (uint32_t times = 1; st == RD_OK && *tok_s == 0 && times <= MOST_TIMES; times *= 2)
        st = measure_decode_of(b, n, prompts, n_prompt, cached, n_gen / 2, n_gen * times, tok_s, err);
    mem_free(prompts);
    if (st != RD_OK || *tok_s > 0) return st;
    return error_set(err, RD_E_INVALID, "%u sequences of %u tokens never ran all at once: take a larger --gen or --ctx",
                     n, n_gen * MOST_TIMES);
}

/* ---- the command ---- */

/* Figures over the points of one flag. */
struct series {
    uint32_t n, at[MAX_POINTS];
    double tok_s[MAX_POINTS];
};
struct figures {
    struct series prefill, decode, batched;
    double batched_tok_s[MAX_POINTS][MAX_POINTS]; /* of each depth, each batch */
    bool has_image;
    struct bench_image image;
};

/* "1,4,16", each min .. max; false: it is something else, and stderr says so. */
static bool parse_list(const char *flag, const char *list, uint32_t min, uint32_t max, struct series *out)
{
    uint64_t n;

    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        if (out->n == MAX_POINTS || !parse_u64(p, strcspn(p, ","), &n) || n < min || n > max) {
            fprintf(stderr, "radish bench: %s: got \"%s\", wanted up to %d numbers from %u to %u such as 1,4,16\n",
                    flag, list, MAX_POINTS, min, max);
            return false;
        }
        out->at[out->n++] = (uint32_t)n;
    }
    return true;
}

static rd_status measure(struct bench *b, const struct bench_flags *f, const struct bench_image_file *image,
                         struct figures *out, struct rd_error *err)
{
    struct series *p = &out->prefill, *d = &out->decode, *m = &out->batched;
    rd_status st = RD_OK;

    out->has_image = f->image != NULL;
    if (out->has_image)
        st = bench_image_measure(b->engine, image, b->n_reps, &out->image, err); /* or is refused at once */
    for (uint32_t i = 0; st == RD_OK && i < p->n; i++)
        if (p->at[i] > 0) st = measure_prefill(b, p->at[i], &p->tok_s[i], err);
    for (uint32_t i = 0; st == RD_OK && i < d->n; i++)
        st = measure_decode(b, 1, d->at[i] + 1, d->at[i] > 0, f->n_gen, &d->tok_s[i], err);
    for (uint32_t k = 0; st == RD_OK && k < d->n; k++)
        for (uint32_t i = 0; st == RD_OK && i < m->n; i++)
            st = measure_decode(b, m->at[i], d->at[k] ? d->at[k] + 1 : BATCH_PROMPT, d->at[k] > 0, f->n_gen,
                                &out->batched_tok_s[k][i], err);
    return st;
}

static void put_series(struct buf *out, const char *name, const char *point, const struct series *s)
{
    buf_printf(out, "\"%s\": [", name);
    for (uint32_t i = 0; i < s->n; i++)
        buf_printf(out, "%s{\"%s\": %u, \"tok_s\": %.2f}", i ? ", " : "", point, s->at[i], s->tok_s[i]);
    buf_puts(out, "]");
}

static void print_json(const struct bench *b, const struct bench_flags *f, const struct figures *r, uint32_t n_threads)
{
    struct buf out;

    buf_init(&out);
    buf_puts(&out, "{\"model\": \"");
    buf_put_json(&out, b->info.model_id, strlen(b->info.model_id));
    buf_puts(&out, "\", \"backend\": \"");
    buf_put_json(&out, b->info.backend, strlen(b->info.backend));
    buf_printf(&out,
               "\", \"arch\": \"%s\", \"n_params\": %llu, \"threads\": %u, \"prompt\": %u, \"gen\": %u, \"reps\": %u, "
               "\"load_ms\": %.1f, \"weights_ms\": %.1f, \"tensor_bytes\": %llu, ",
               b->info.arch, (unsigned long long)b->info.n_params, n_threads, r->prefill.at[0], f->n_gen, f->n_reps,
               b->info.load_ms, b->info.weights_ms, (unsigned long long)b->info.tensor_bytes);
    buf_printf(&out, "\"prefill_tok_s\": %.2f, \"decode_tok_s\": %.2f, ", r->prefill.tok_s[0], r->decode.tok_s[0]);
    put_series(&out, "prefill", "n", &r->prefill);
    buf_puts(&out, ", ");
    put_series(&out, "decode", "depth", &r->decode);
    buf_puts(&out, ", ");
    buf_puts(&out, "\"batched\": [");
    for (uint32_t k = 0; k < r->decode.n; k++)
        for (uint32_t i = 0; i < r->batched.n; i++)
            buf_printf(&out, "%s{\"n\": %u, \"depth\": %u, \"shared\": %s, \"tok_s\": %.2f}", k + i ? ", " : "",
                       r->batched.at[i], r->decode.at[k], b->shared ? "true" : "false", r->batched_tok_s[k][i]);
    buf_puts(&out, "]");
    if (r->has_image)
        buf_printf(&out,
                   ", \"image\": {\"prompt_tokens\": %u, \"encode_ms\": %.2f, \"cold_ms\": %.2f, \"seen_ms\": %.2f, "
                   "\"cached_ms\": %.2f}",
                   r->image.n_tokens, r->image.encode_ms, r->image.cold_ms, r->image.seen_ms, r->image.cached_ms);
    buf_puts(&out, "}");
    puts(out.data ? out.data : "");
    buf_deinit(&out);
}

enum { MAX_ROWS = MAX_POINTS * (MAX_POINTS + 2) };

/* The figures one by one, in the order in which they were measured. */
static size_t make_rows(const struct bench *b, const struct figures *r, struct bench_row rows[MAX_ROWS])
{
    size_t n = 0;

    for (uint32_t i = 0; i < r->prefill.n; i++) {
        if (r->prefill.at[i] == 0) continue;
        rows[n] = (struct bench_row){.group = "prefill", .tok_s = r->prefill.tok_s[i]};
        snprintf(rows[n++].label, sizeof(rows->label), "%u tokens", r->prefill.at[i]);
    }
    for (uint32_t i = 0; i < r->decode.n; i++) {
        rows[n] = (struct bench_row){.group = "decode", .tok_s = r->decode.tok_s[i]};
        snprintf(rows[n++].label, sizeof(rows->label), "after %u tokens", r->decode.at[i]);
    }
    for (uint32_t k = 0; k < r->decode.n; k++)
        for (uint32_t i = 0; i < r->batched.n; i++) {
            int used;

            rows[n] = (struct bench_row){.group = "decode, several at once", .tok_s = r->batched_tok_s[k][i]};
            used = snprintf(rows[n].label, sizeof(rows->label), "%u sequence%s", r->batched.at[i],
                            r->batched.at[i] == 1 ? "" : "s");
            if (r->decode.at[k])
                snprintf(rows[n].label + used, sizeof(rows->label) - (size_t)used, " after %s%u",
                         b->shared ? "the same " : "", r->decode.at[k]);
            n++;
        }
    return n;
}

static void print_head(const struct bench *b, const struct bench_flags *f)
{
    printf("%s, %s, loaded in %.0f ms (weights %.0f ms", b->info.model_id, b->info.backend, b->info.load_ms,
           b->info.weights_ms);
    if (b->info.packed_bytes == 0) printf(", %.1f GB/s", (double)b->info.tensor_bytes / b->info.weights_ms / 1e6);
    printf("), medians of %u\n", f->n_reps);
}

static void print_image(const struct bench_image *i)
{
    printf("  image, %u tokens with its question; to the first token:\n", i->n_tokens);
    printf("  %-30s %10.2f ms (encoder %.2f)\n", "never seen", i->cold_ms, i->encode_ms);
    printf("  %-30s %10.2f ms\n", "seen in another conversation", i->seen_ms);
    printf("  %-30s %10.2f ms\n", "asked again", i->cached_ms);
}

static void print_table(const struct bench *b, const struct bench_flags *f, const struct figures *r)
{
    char name[64];

    print_head(b, f);
    for (uint32_t i = 0; i < r->prefill.n; i++) {
        snprintf(name, sizeof(name), "prefill, %u tokens", r->prefill.at[i]);
        if (r->prefill.at[i] > 0) printf("  %-30s %10.2f tok/s\n", name, r->prefill.tok_s[i]);
    }
    for (uint32_t i = 0; i < r->decode.n; i++) {
        snprintf(name, sizeof(name), "decode after %u tokens", r->decode.at[i]);
        printf("  %-30s %10.2f tok/s\n", r->decode.at[i] ? name : "decode", r->decode.tok_s[i]);
    }
    for (uint32_t k = 0; k < r->decode.n; k++)
        for (uint32_t i = 0; i < r->batched.n; i++) {
            int n = snprintf(name, sizeof(name), "decode, %u sequences", r->batched.at[i]);

            if (r->decode.at[k])
                snprintf(name + n, sizeof(name) - (size_t)n, " after %s%u", b->shared ? "the same " : "",
                         r->decode.at[k]);
            printf("  %-30s %10.2f tok/s\n", name, r->batched_tok_s[k][i]);
        }
    if (r->has_image) print_image(&r->image);
}

static bool print_plot(const struct bench *b, const struct bench_flags *f, const struct bench_row *rows, size_t n)
{
    uint32_t columns = text_wrap_columns(STDOUT_FILENO);
    struct buf out = {.limit = 0};
    bool ok;

    print_head(b, f);
    bench_plot_text(rows, n, columns ? columns : 80, &out);
    ok = !out.failed;
    if (ok) fputs(out.data ? out.data : "", stdout);
    buf_deinit(&out);
    return ok;
}

static int write_svg(const struct bench *b, const struct bench_flags *f, const struct bench_row *rows, size_t n)
{
    struct rd_error err = {RD_OK, ""};
    struct buf out = {.limit = 0};
    char subtitle[256];
    rd_status st;

    snprintf(subtitle, sizeof(subtitle), "%.120s, radish %s, medians of %u; tokens per second", b->info.backend,
             rd_version(), f->n_reps);
    bench_plot_svg(b->info.model_id, subtitle, rows, n, &out);
    st = out.failed ? error_set(&err, RD_E_NOMEM, "out of memory") : file_write_all(f->svg, out.data, out.n, &err);
    buf_deinit(&out);
    return st == RD_OK ? EXIT_DONE : cli_fail_at(f->svg, st, &err);
}

/* Makes the file, or leaves what is in it. */
static bool can_write(const char *path)
{
    FILE *file = fopen(path, "a");

    if (file) return fclose(file) == 0;
    cli_fail("%s cannot be written: %s", path, strerror(errno));
    return false;
}

/* All that was asked for. */
static int show(const struct bench *b, const struct bench_flags *f, const struct figures *figures, uint32_t n_threads)
{
    struct bench_row *rows = mem_zalloc(MAX_ROWS, sizeof(*rows));
    size_t n = rows ? make_rows(b, figures, rows) : 0;
    int rc = EXIT_DONE;

    if (!rows)
        rc = cli_fail("out of memory");
    else if (f->json)
        print_json(b, f, figures, n_threads);
    else if (!f->plot)
        print_table(b, f, figures);
    else if (!print_plot(b, f, rows, n))
        rc = cli_fail("out of memory");
    if (rc == EXIT_DONE && f->svg) rc = write_svg(b, f, rows, n);
    mem_free(rows);
    return rc;
}

static int run_bench(const struct command *self, int argc, char **argv)
{
    struct bench_flags f;
    struct figures figures;
    struct bench b;
    struct bench_image_file image;
    struct rd_error err = {RD_OK, ""};
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words, n_threads;
    rd_status st;
    int rc;

    memset(&f, 0, sizeof(f));
    memset(&figures, 0, sizeof(figures));
    memset(&b, 0, sizeof(b));
    memset(&image, 0, sizeof(image));
    rd_options_default(&f.engine);
    f.engine.no_warm_up = true; /* every measurement has a round before it that does not count */
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    if (!parse_list("--prompt", f.prompt, 0, LIMIT_CONTEXT, &figures.prefill) ||
        !parse_list("--depth", f.depth, 0, LIMIT_CONTEXT - 1, &figures.decode) ||
        !parse_list("--batch", f.batch, 1, MAX_BATCH, &figures.batched))
        return EXIT_USAGE;
    for (uint32_t i = 0; i < figures.batched.n; i++) /* a batched figure is of all sequences at once */
        f.engine.max_running = u32_max(f.engine.max_running, figures.batched.at[i]);
    f.engine.no_disk_cache = true;                      /* what is measured is computed */
    if (f.svg && !can_write(f.svg)) return EXIT_FAILED; /* said before minutes of measuring */
    if (f.image && !bench_image_read(f.image, &image)) {
        bench_image_deinit(&image);
        return EXIT_FAILED;
    }
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    b.engine = cli_open(&f.engine, words[0]);
    if (!b.engine) {
        bench_image_deinit(&image);
        return EXIT_FAILED;
    }
    rd_get_info(b.engine, &b.info);
    random_init(&b.random, f.seed);
    b.n_reps = f.n_reps;
    b.shared = f.shared;
    n_threads = f.engine.n_threads ? f.engine.n_threads : thread_n_physical_cores();
    st = measure(&b, &f, &image, &figures, &err);
    bench_image_deinit(&image);
    if (st != RD_OK)
        rc = cli_fail("%s", *err.text ? err.text : rd_status_text(st));
    else
        rc = show(&b, &f, &figures, n_threads);
    rd_close(b.engine);
    return rc;
}

const struct command cmd_bench = {
    .name = "bench",
    .section = "Measure",
    .summary = "tokens per second of prefill, decode and batched decode",
    .words = "MODEL",
    .about = "Random prompts. prefill: --prompt tokens, nothing cached, none generated. decode: --gen tokens after "
             "--depth cached ones and one more. batched: tokens of all sequences together, each after --depth cached "
             "ones of "
             "its own (--shared: the same for all) and one more, or after 16 tokens where that is 0. All figures in "
             "tokens per second, those of --image in milliseconds.",
    .examples = "  radish bench smollm2 --threads 2\n"
                "  radish bench smollm2 --prompt 512,2048 --depth 0,2048 --gen 64 --batch 1,4,16 --json\n"
                "  radish bench ./qwen2-vl -p 0 -n 2 -r 3 --image screen.png\n"
                "  radish bench smollm2 --prompt 0 --depth 0,1024,4096 --plot --svg depth.svg\n",
    .groups = bench_groups,
    .min_words = 1,
    .max_words = 1,
    .run = run_bench,
};
