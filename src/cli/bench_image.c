/* cli/bench_image.c - rounds of three requests, each round under a salt of its own: what one stored no other finds. */
#include "cli/bench_image.h"
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "cli/bench_median.h"
#include "cli/image_part.h"

enum { MOST_ROUNDS = 101 };

static bool put_messages(struct buf *out, const char *path, const char *before)
{
    buf_printf(out, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"},", before);
    if (!image_part_put(out, path)) return false;
    buf_puts(out, ",{\"type\":\"text\",\"text\":\"What is this?\"}]}]");
    return true;
}

bool bench_image_read(const char *path, struct bench_image_file *out)
{
    buf_init(&out->first);
    buf_init(&out->second);
    if (!put_messages(&out->first, path, "Look.") || !put_messages(&out->second, path, "See here:")) return false;
    if (!out->first.failed && !out->second.failed) return true;
    fprintf(stderr, "radish bench: %s does not fit into memory\n", path);
    return false;
}

void bench_image_deinit(struct bench_image_file *f)
{
    buf_deinit(&f->first);
    buf_deinit(&f->second);
}

/* ---- a request ---- */

struct first_token {
    uint64_t begin_ns, at_ns;
    struct rd_usage usage;
};

static int note(void *user, uint32_t index, const struct rd_event *ev)
{
    struct first_token *f = user;

    (void)index;
    if (!f->at_ns && ev->type == RD_EVENT_TOKEN) f->at_ns = clock_now_ns(clock_system());
    if (ev->type == RD_EVENT_DONE) f->usage = ev->usage;
    return 0;
}

static rd_status ask(rd_engine *engine, const struct buf *messages, const char *salt, double *ms,
                     struct rd_usage *usage, struct rd_error *err)
{
    struct first_token f = {.begin_ns = clock_now_ns(clock_system())};
    struct rd_request_options q;
    rd_status st;

    rd_request_options_default(&q);
    q.messages_json = messages->data;
    q.max_tokens = 1;
    q.sampling.temperature = 0;
    q.ignore_eos = true;
    q.cache_salt = salt;
    st = rd_generate(engine, &q, note, &f, err);
    if (st == RD_OK && !f.at_ns) return error_set(err, RD_E_INVALID, "the model wrote nothing about the image");
    *ms = (double)(f.at_ns - f.begin_ns) / 1e6;
    *usage = f.usage;
    return st;
}

/* ---- rounds ---- */

rd_status bench_image_measure(rd_engine *engine, const struct bench_image_file *f, uint32_t n_reps,
                              struct bench_image *out, struct rd_error *err)
{
    double encode[MOST_ROUNDS], cold[MOST_ROUNDS], seen[MOST_ROUNDS], cached[MOST_ROUNDS];
    rd_status st = RD_OK;

    for (uint32_t i = 0; st == RD_OK && i <= n_reps; i++) {
        const uint32_t k = i > 0 ? i - 1 : 0; /* the first one is written over */
        struct rd_usage usage = {0}, other;
        char salt[32];

        snprintf(salt, sizeof(salt), "bench image %u", i);
        st = ask(engine, &f->first, salt, &cold[k], &usage, err);
        encode[k] = usage.encoder_ms;
        out->n_tokens = usage.n_prompt;
        if (st == RD_OK) st = ask(engine, &f->second, salt, &seen[k], &other, err);
        if (st == RD_OK) st = ask(engine, &f->first, salt, &cached[k], &other, err);
    }
    if (st != RD_OK) return st;
    out->encode_ms = bench_median(encode, n_reps);
    out->cold_ms = bench_median(cold, n_reps);
    out->seen_ms = bench_median(seen, n_reps);
    out->cached_ms = bench_median(cached, n_reps);
    return RD_OK;
}
