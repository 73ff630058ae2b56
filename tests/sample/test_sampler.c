/* tests/sample/test_sampler.c - the sampler against an implementation that sorts everything and says what is meant in
 * the plainest way.
 *
 * The same draws: both take the random number of (seed, position). Sums run over sorted candidates here and over a heap
 * there, so a cut may differ where a sum lies within 1e-12 of its bound: such rows are counted, and none was ever seen.
 */
#include "sample/sampler.h"
#include <math.h>
#include <stdlib.h>
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "draw_reference.h"
#include "sample/vocab_scan.h"
#include "test.h"

#define N_VOCAB 200u

struct naive {
    double value;
    int32_t id;
};

struct history {
    int32_t tokens[64];
    bool is_prompt[64];
    uint32_t n;
};

static int by_value(const void *a, const void *b)
{
    const struct naive *x = a, *y = b;

    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void naive_adjust(const struct sampler_params *p, const struct history *h, float *logits)
{
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].bias <= -100)
            logits[p->bias[i].token] = -INFINITY;
        else
            logits[p->bias[i].token] += p->bias[i].bias;
    }
    for (int32_t t = 0; t < (int32_t)N_VOCAB; t++) {
        uint32_t n_seen = 0, n_out = 0;

        for (uint32_t i = 0; i < h->n; i++) {
            n_seen += h->tokens[i] == t;
            n_out += h->tokens[i] == t && !h->is_prompt[i];
        }
        if (n_seen) logits[t] = logits[t] > 0 ? logits[t] / p->repetition_penalty : logits[t] * p->repetition_penalty;
        if (n_out) logits[t] -= p->presence_penalty + p->frequency_penalty * (float)n_out;
    }
}

/* The token, or -1 where rounding decides. */
static int32_t naive_sample(const struct sampler_params *p, const struct history *h, const float *raw,
                            uint64_t position)
{
    float logits[N_VOCAB];
    struct naive c[N_VOCAB];
    double total = 0, kept = 0, at, weights[N_VOCAB];
    uint32_t n = 0, n_kept = 0;

    memcpy(logits, raw, sizeof(logits));
    naive_adjust(p, h, logits);
    for (uint32_t i = 0; i < N_VOCAB; i++) c[n++] = (struct naive){logits[i], (int32_t)i};
    qsort(c, n, sizeof(c[0]), by_value);
    if (p->temperature == 0) return c[0].id;
    if (p->top_k <= 0 && p->top_p >= 1)
        return draw_reference(logits, N_VOCAB, p->temperature, p->min_p, p->seed, (uint32_t)position);
    if (p->top_k > 0 && (uint32_t)p->top_k < n) n = (uint32_t)p->top_k;
    for (uint32_t i = 0; i < n; i++) total += weights[i] = exp((c[i].value - c[0].value) / p->temperature);
    while (n_kept < n) {
        double w = weights[n_kept];

        if (n_kept > 0 && fabs(kept - (double)p->top_p * total) < 1e-12 * total && p->top_p < 1) return -1;
        if (n_kept > 0 && ((p->top_p < 1 && kept >= (double)p->top_p * total) || w < (double)p->min_p * weights[0]))
            break;
        kept += w;
        n_kept++;
    }
    at = random_at_unit(p->seed, position) * kept;
    for (uint32_t i = 0; i < n_kept; i++) {
        at -= weights[i];
        if (fabs(at) < 1e-12 * kept) return -1;
        if (at < 0) return c[i].id;
    }
    return -1;
}

static void make_logits(struct random *r, float *logits)
{
    bool coarse = random_below(r, 3) == 0; /* many ties */

    for (uint32_t i = 0; i < N_VOCAB; i++) {
        logits[i] = (float)(random_unit(r) * 16 - 8);
        if (coarse) logits[i] = roundf(logits[i]);
        if (random_below(r, 40) == 0) logits[i] = -INFINITY;
    }
}

static void make_params(struct random *r, struct sampler_params *p, struct rd_bias *bias)
{
    sampler_params_default(p);
    p->temperature = random_below(r, 5) == 0 ? 0 : (float)(0.1 + random_unit(r) * 2);
    if (random_below(r, 2)) p->top_k = (int32_t)random_below(r, N_VOCAB + 20);
    if (random_below(r, 2)) p->top_p = (float)random_unit(r);
    if (random_below(r, 2)) p->min_p = (float)(random_unit(r) * 0.3);
    if (random_below(r, 2)) p->repetition_penalty = (float)(0.5 + random_unit(r) * 1.5);
    if (random_below(r, 2)) p->presence_penalty = (float)(random_unit(r) * 4 - 2);
    if (random_below(r, 2)) p->frequency_penalty = (float)(random_unit(r) * 4 - 2);
    p->seed = random_u64(r);
    p->bias = bias;
    p->n_bias = (uint32_t)random_below(r, 6);
    for (uint32_t i = 0; i < p->n_bias; i++)
        bias[i] = (struct rd_bias){(int32_t)(i * 31 + random_below(r, 31)),
                                   random_below(r, 3) ? (float)(random_unit(r) * 20 - 10) : -100};
}

TEST(draws_are_those_of_the_plain_implementation)
{
    enum { N_ROUNDS = 4000 };
    struct random r;
    struct sampler_scratch *x = NULL;
    uint32_t n_draws = 0, n_close = 0;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N_VOCAB, &x));
    for (int round = 0; round < N_ROUNDS; round++) {
        float logits[N_VOCAB], best[VOCAB_N_BLOCKS(N_VOCAB)];
        struct rd_bias bias[6];
        struct sampler_params p;
        struct sampler_result out;
        struct sampler *s = NULL;
        struct history h = {.n = (uint32_t)random_below(&r, 30)};

        make_params(&r, &p, bias);
        CHECK_OK(sampler_params_check(&p, N_VOCAB, NULL));
        CHECK_OK(sampler_create(&p, N_VOCAB, 64, &s));
        for (uint32_t i = 0; i < h.n; i++) {
            h.tokens[i] = (int32_t)random_below(&r, random_below(&r, 2) ? 10 : N_VOCAB);
            h.is_prompt[i] = i < 10;
            sampler_accept(s, h.tokens[i], h.is_prompt[i]);
        }
        for (uint32_t step = 0; step < 8; step++) {
            int32_t want;

            make_logits(&r, logits);
            want = naive_sample(&p, &h, logits, step);
            for (uint32_t b = 0; b < VOCAB_N_BLOCKS(N_VOCAB); b++) best[b] = -INFINITY;
            for (uint32_t i = 0; i < N_VOCAB; i++) best[i / VOCAB_BLOCK] = fmaxf(best[i / VOCAB_BLOCK], logits[i]);
            sampler_scratch_know(x, logits, step % 2 ? best : NULL);
            CHECK_OK(sampler_sample(s, x, logits, NULL, step, &out));
            n_draws++;
            if (want < 0)
                n_close++;
            else
                CHECK_EQ(out.token, want);
            h.tokens[h.n] = out.token;
            h.is_prompt[h.n++] = false;
            sampler_accept(s, out.token, false);
        }
        sampler_destroy(s);
    }
    test_note("%u draws compared, %u too close to a bound to tell", n_draws, n_close);
    CHECK(n_close < n_draws / 1000);
    sampler_scratch_destroy(x);
}

/* One row of many tokens, all sorted. -1: where rounding decides. */
static int32_t naive_many(const struct sampler_params *p, const float *row, struct naive *c, uint32_t n,
                          uint64_t position)
{
    double total = 0, kept = 0, at;
    uint32_t n_kept = 0;

    if (p->top_p >= 1) return draw_reference(row, n, p->temperature, p->min_p, p->seed, (uint32_t)position);
    for (uint32_t i = 0; i < n; i++) c[i] = (struct naive){row[i], (int32_t)i};
    qsort(c, n, sizeof(c[0]), by_value);
    for (uint32_t i = 0; i < n; i++) total += exp((c[i].value - c[0].value) / p->temperature);
    for (; n_kept < n; n_kept++) {
        double w = exp((c[n_kept].value - c[0].value) / p->temperature), over = kept - (double)p->top_p * total;

        if (n_kept > 0 && p->top_p < 1 && fabs(over) < 1e-11 * total) return -1;
        if (fabs(w - (double)p->min_p) < 1e-11) return -1;
        if (n_kept > 0 && ((p->top_p < 1 && over >= 0) || w < (double)p->min_p)) break;
        kept += w;
    }
    at = random_at_unit(p->seed, position) * kept;
    for (uint32_t i = 0; i < n_kept; i++) {
        at -= exp((c[i].value - c[0].value) / p->temperature);
        if (fabs(at) < 1e-11 * kept) return -1;
        if (at < 0) return c[i].id;
    }
    return -1;
}

TEST(thousands_of_candidates_are_drawn_as_if_all_were_sorted)
{
    enum { N = 6000 };
    static float row[N];
    static struct naive c[N];
    struct sampler_scratch *x = NULL;
    struct random r;
    uint32_t n_close = 0;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N, &x));
    for (int round = 0; round < 150; round++) {
        uint32_t n = 600 + (uint32_t)random_below(&r, N - 600);
        float spread = (float)(0.1 + random_unit(&r) * 6);
        struct sampler_params p;
        struct sampler_result out;
        struct sampler *s = NULL;
        int32_t want;

        sampler_params_default(&p);
        p.temperature = (float)(0.3 + random_unit(&r) * 3);
        p.top_p = random_below(&r, 3) ? 1 - (float)random_unit(&r) * 0.3f : 1;
        p.min_p = random_below(&r, 2) || p.top_p >= 1 ? (float)random_unit(&r) * 0.05f : 0;
        p.seed = random_u64(&r);
        for (uint32_t i = 0; i < n; i++) row[i] = (float)random_unit(&r) * spread;
        if (round % 4 == 0)
            for (uint32_t i = 0; i < n; i++) row[i] = roundf(row[i] * 2);
        CHECK_OK(sampler_create(&p, n, 8, &s));
        want = naive_many(&p, row, c, n, (uint64_t)round);
        CHECK_OK(sampler_sample(s, x, row, NULL, (uint64_t)round, &out));
        if (want < 0)
            n_close++;
        else
            CHECK_EQ(out.token, want);
        sampler_destroy(s);
    }
    CHECK(n_close < 8);
    sampler_scratch_destroy(x);
}

static rd_status sample_once(const struct sampler_params *p, const float *logits, uint32_t n, const int32_t *banned,
                             uint32_t n_banned, uint64_t position, struct sampler_result *out)
{
    struct sampler_scratch *x = NULL;
    struct sampler *s = NULL;
    rd_status st;

    if (sampler_scratch_create(n, &x) != RD_OK || sampler_create(p, n, 8, &s) != RD_OK) return RD_E_NOMEM;
    st = sampler_sample(s, x, logits, &(struct sampler_bounds){.banned = banned, .n_banned = n_banned}, position, out);
    sampler_destroy(s);
    sampler_scratch_destroy(x);
    return st;
}

TEST(greedy_takes_the_lowest_of_equal_ids)
{
    const float logits[6] = {1, 3, 2, 3, 3, -1};
    struct sampler_params p;
    struct sampler_result out;

    sampler_params_default(&p);
    p.temperature = 0;
    CHECK_OK(sample_once(&p, logits, 6, NULL, 0, 0, &out));
    CHECK_EQ(out.token, 1);
    p.temperature = 1;
    p.top_k = 1;
    CHECK_OK(sample_once(&p, logits, 6, NULL, 0, 5, &out));
    CHECK_EQ(out.token, 1);
}

TEST(a_bias_of_100_decides_and_of_minus_100_forbids)
{
    const float logits[4] = {9, 0, 0, 0};
    struct rd_bias bias[2] = {{2, 100}, {0, -100}};
    struct sampler_params p;
    struct sampler_result out;

    sampler_params_default(&p);
    p.bias = bias;
    p.n_bias = 1;
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_OK(sample_once(&p, logits, 4, NULL, 0, i, &out));
        CHECK_EQ(out.token, 2);
    }
    p.bias = bias + 1;
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_OK(sample_once(&p, logits, 4, NULL, 0, i, &out));
        CHECK(out.token != 0);
    }
}

TEST(banned_tokens_are_never_drawn)
{
    const float logits[4] = {20, 20, 0, 0};
    const int32_t banned[4] = {0, 1, -5, 4000}, all[4] = {0, 1, 2, 3};
    struct sampler_params p;
    struct sampler_result out;

    sampler_params_default(&p);
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_OK(sample_once(&p, logits, 4, banned, 4, i, &out));
        CHECK(out.token >= 2);
    }
    p.temperature = 0;
    CHECK_OK(sample_once(&p, logits, 4, banned, 4, 0, &out));
    CHECK_EQ(out.token, 2);
    CHECK_EQ(sample_once(&p, logits, 4, all, 4, 0, &out), RD_E_INVALID); /* the model's numbers are sound */
}

/* As a row in which what is masked out is impossible: for every way of drawing, with end tokens beside the mask. */
TEST(a_mask_is_a_row_without_the_others)
{
    struct sampler_scratch *x = NULL;
    struct random r;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N_VOCAB, &x));
    for (uint32_t round = 0; round < 600; round++) {
        float logits[N_VOCAB], masked[N_VOCAB];
        uint32_t mask[(N_VOCAB + 31) / 32] = {0};
        const int32_t also[2] = {(int32_t)random_below(&r, N_VOCAB), (int32_t)random_below(&r, N_VOCAB)};
        const int32_t banned = (int32_t)random_below(&r, N_VOCAB);
        const struct sampler_bounds bounds = {.banned = &banned,
                                              .n_banned = round % 3 == 0,
                                              .mask = mask,
                                              .also = also,
                                              .n_also = (uint32_t)random_below(&r, 3)};
        struct sampler_params p;
        struct rd_bias bias[16];
        struct sampler *s = NULL;
        struct sampler_result a, b;

        make_logits(&r, logits);
        make_params(&r, &p, bias);
        p.want_logprob = true;
        p.n_top_logprobs = 5;
        if (round % 2) p.min_p = 0; /* under min_p a plain draw that the mask lets through stands: sampler.h */
        for (uint32_t n = 1 + (uint32_t)random_below(&r, 40); n > 0; n--) {
            uint32_t t = (uint32_t)random_below(&r, N_VOCAB);

            if ((int32_t)t != banned) mask[t / 32] |= 1u << t % 32;
        }
        for (int32_t t = 0; t < (int32_t)N_VOCAB; t++) {
            bool may = mask[t / 32] >> t % 32 & 1;

            for (uint32_t k = 0; k < bounds.n_also; k++) may |= also[k] == t;
            may &= !(bounds.n_banned && t == banned);
            CHECK_EQ(sampler_may_draw(&bounds, t), may);
            masked[t] = may ? logits[t] : -INFINITY;
        }
        CHECK_OK(sampler_create(&p, N_VOCAB, 8, &s));
        if (sampler_sample(s, x, masked, NULL, round, &b) != RD_OK) { /* nothing was left */
            CHECK(sampler_sample(s, x, logits, &bounds, round, &a) != RD_OK);
        } else {
            CHECK_OK(sampler_sample(s, x, logits, &bounds, round, &a));
            CHECK(sampler_may_draw(&bounds, a.token));
            if (p.min_p <= 0) CHECK_EQ(a.token, b.token);
            if (p.min_p <= 0 && !bounds.n_banned) CHECK(fabsf(a.logprob - b.logprob) < 1e-5f);
            for (uint32_t k = 0; k < a.n_top; k++)
                CHECK(a.top[k].token == banned || sampler_may_draw(&bounds, a.top[k].token));
        }
        sampler_destroy(s);
    }
    sampler_scratch_destroy(x);
}

TEST(the_same_seed_and_position_give_the_same_token)
{
    float logits[N_VOCAB];
    struct random r;
    struct sampler_params p;
    struct sampler_result a, b;
    uint32_t n_other_position = 0, n_other_seed = 0;

    random_init(&r, test_seed());
    for (uint32_t i = 0; i < N_VOCAB; i++) logits[i] = (float)random_unit(&r);
    sampler_params_default(&p);
    for (uint64_t i = 0; i < 200; i++) {
        p.seed = i;
        CHECK_OK(sample_once(&p, logits, N_VOCAB, NULL, 0, i, &a));
        CHECK_OK(sample_once(&p, logits, N_VOCAB, NULL, 0, i, &b));
        CHECK_EQ(a.token, b.token);
        CHECK_OK(sample_once(&p, logits, N_VOCAB, NULL, 0, i + 1, &b));
        n_other_position += a.token != b.token;
        p.seed = i + 1000;
        CHECK_OK(sample_once(&p, logits, N_VOCAB, NULL, 0, i, &b));
        n_other_seed += a.token != b.token;
    }
    CHECK(n_other_position > 150);
    CHECK(n_other_seed > 150);
}

/* 7 degrees of freedom: 35 is exceeded once in 90,000 times, and the seeds are fixed. */
static void check_distribution(struct sampler_params *p, const float *logits, const double *want)
{
    enum { N = 40000 };
    struct sampler_scratch *x = NULL;
    struct sampler *s = NULL;
    uint32_t counts[8] = {0};
    double chi2 = 0;

    p->seed = 12345;
    CHECK_OK(sampler_scratch_create(8, &x));
    CHECK_OK(sampler_create(p, 8, 8, &s));
    for (uint64_t i = 0; i < N; i++) {
        struct sampler_result out;

        CHECK_OK(sampler_sample(s, x, logits, NULL, i, &out));
        counts[out.token]++;
    }
    for (int i = 0; i < 8; i++) {
        if (want[i] == 0)
            CHECK_EQ(counts[i], 0);
        else
            chi2 += (counts[i] - want[i] * N) * (counts[i] - want[i] * N) / (want[i] * N);
    }
    CHECK(chi2 < 35);
    sampler_destroy(s);
    sampler_scratch_destroy(x);
}

TEST(draws_follow_the_distribution)
{
    const double all[8] = {0.3, 0.05, 0.2, 0.1, 0.1, 0.05, 0.15, 0.05};
    const double top3[8] = {0.3 / 0.65, 0, 0.2 / 0.65, 0, 0, 0, 0.15 / 0.65, 0};
    float logits[8];
    struct sampler_params p;

    for (int i = 0; i < 8; i++) logits[i] = (float)log(all[i]);
    sampler_params_default(&p);
    check_distribution(&p, logits, all);
    p.top_k = 3;
    check_distribution(&p, logits, top3);
    p.top_k = 0;
    p.min_p = 0.4f; /* 0.12: keeps 0.3, 0.2 and 0.15 */
    check_distribution(&p, logits, top3);
    p.min_p = 0;
    p.top_p = 0.6f; /* 0.3 + 0.2 is not enough, the third completes it */
    check_distribution(&p, logits, top3);
}

TEST(numbers_that_are_none_are_the_models_fault)
{
    const float bad[] = {NAN, INFINITY};
    struct sampler_params p;
    struct sampler_result out;
    struct sampler_scratch *x = NULL;

    CHECK_OK(sampler_scratch_create(4, &x));
    sampler_params_default(&p);
    for (size_t b = 0; b < 2; b++) {
        for (int at = 0; at < 4; at++) {
            float logits[4] = {1, 2, 3, -INFINITY};

            logits[at] = bad[b];
            for (p.temperature = 0; p.temperature < 2; p.temperature += 1)
                CHECK_EQ(sample_once(&p, logits, 4, NULL, 0, 0, &out), RD_E_MODEL_OUTPUT);
            CHECK_EQ(sampler_logprobs(x, logits, 4, 0, 2, &out), RD_E_MODEL_OUTPUT);
            CHECK_EQ(sampler_check_logits(logits, 4), RD_E_MODEL_OUTPUT);
        }
    }
    CHECK_EQ(sampler_check_logits((const float[]){-INFINITY, -INFINITY}, 2), RD_E_MODEL_OUTPUT);
    CHECK_OK(sampler_check_logits((const float[]){-INFINITY, 0}, 2));
    sampler_scratch_destroy(x);
}

TEST(what_is_known_of_a_row_is_believed_until_it_is_forgotten)
{
    const float logits[4] = {1, 2, 3, -INFINITY}, bad = INFINITY, three = 3;
    struct sampler_params p;
    struct sampler_result out;
    struct sampler_scratch *x = NULL;
    struct sampler *s = NULL;

    CHECK_OK(sampler_scratch_create(4, &x));
    sampler_params_default(&p);
    p.temperature = 0;
    CHECK_OK(sampler_create(&p, 4, 0, &s));
    sampler_scratch_know(x, logits, &bad);
    CHECK_EQ(sampler_sample(s, x, logits, NULL, 0, &out), RD_E_MODEL_OUTPUT);
    sampler_scratch_know(x, logits, &three);
    CHECK_OK(sampler_sample(s, x, logits, NULL, 0, &out));
    CHECK_EQ(out.token, 2);
    sampler_scratch_know(x, logits + 1, &bad); /* of another row */
    CHECK_OK(sampler_sample(s, x, logits, NULL, 0, &out));
    sampler_scratch_know(x, NULL, NULL);
    CHECK_OK(sampler_sample(s, x, logits, NULL, 0, &out));
    CHECK_EQ(out.token, 2);
    sampler_destroy(s);
    sampler_scratch_destroy(x);
}

TEST(log_probabilities_are_of_the_raw_distribution)
{
    struct random r;
    struct sampler_scratch *x = NULL;
    struct rd_bias bias = {3, 100};
    struct sampler_params p;
    struct sampler *s = NULL;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N_VOCAB, &x));
    sampler_params_default(&p);
    p.bias = &bias; /* draws token 3; its log probability knows nothing of that */
    p.n_bias = 1;
    p.temperature = 0.3f;
    p.want_logprob = true;
    p.n_top_logprobs = LIMIT_TOP_LOGPROBS;
    CHECK_OK(sampler_create(&p, N_VOCAB, 8, &s));
    for (int round = 0; round < 200; round++) {
        float logits[N_VOCAB];
        struct naive c[N_VOCAB];
        struct sampler_result out;
        double sum = 0;

        make_logits(&r, logits);
        logits[3] = 0.5f;
        for (uint32_t i = 0; i < N_VOCAB; i++) {
            sum += exp(logits[i]);
            c[i] = (struct naive){logits[i], (int32_t)i};
        }
        qsort(c, N_VOCAB, sizeof(c[0]), by_value);
        CHECK_OK(sampler_sample(s, x, logits, NULL, 0, &out));
        CHECK_EQ(out.token, 3);
        CHECK(fabs(out.logprob - (0.5 - log(sum))) < 1e-5);
        CHECK_EQ(out.n_top, LIMIT_TOP_LOGPROBS);
        for (uint32_t i = 0; i < out.n_top; i++) {
            CHECK_EQ(out.top[i].token, c[i].id);
            CHECK(fabs(out.top[i].logprob - (c[i].value - log(sum))) < 1e-5);
        }
        CHECK_OK(sampler_logprobs(x, logits, N_VOCAB, c[50].id, 0, &out));
        CHECK_EQ(out.n_top, 0);
        CHECK(fabs(out.logprob - (c[50].value - log(sum))) < 1e-5);
    }
    sampler_destroy(s);
    sampler_scratch_destroy(x);
}

TEST(a_vocabulary_smaller_than_the_top_is_listed_whole)
{
    const float logits[3] = {0, 2, 1};
    struct sampler_scratch *x = NULL;
    struct sampler_result out;

    CHECK_OK(sampler_scratch_create(3, &x));
    CHECK_OK(sampler_logprobs(x, logits, 3, 0, 20, &out));
    CHECK_EQ(out.n_top, 3);
    CHECK_EQ(out.top[0].token, 1);
    CHECK_EQ(out.top[1].token, 2);
    CHECK_EQ(out.top[2].token, 0);
    sampler_scratch_destroy(x);
}

#define CHECK_BAD(field, value)                                                                                        \
    do {                                                                                                               \
        struct rd_error bad_err = {RD_OK, ""};                                                                         \
        struct sampler_params bad;                                                                                     \
        sampler_params_default(&bad);                                                                                  \
        bad.field = (value);                                                                                           \
        CHECK_EQ(sampler_params_check(&bad, N_VOCAB, &bad_err), RD_E_INVALID);                                         \
        CHECK(strstr(bad_err.text, #field));                                                                           \
    } while (0)

TEST(every_parameter_out_of_range_is_named)
{
    static const float below_0[] = {-0.001f, -INFINITY, NAN, INFINITY},
                       beyond_2[] = {-2.01f, 2.01f, NAN, INFINITY, -INFINITY};

    for (size_t i = 0; i < 4; i++) {
        CHECK_BAD(temperature, below_0[i]);
        CHECK_BAD(top_p, below_0[i]);
        CHECK_BAD(min_p, below_0[i]);
        CHECK_BAD(repetition_penalty, below_0[i]);
    }
    CHECK_BAD(temperature, 100.5f);
    CHECK_BAD(top_p, 1.01f);
    CHECK_BAD(min_p, 1.01f);
    CHECK_BAD(repetition_penalty, 0.0f);
    CHECK_BAD(repetition_penalty, 101.0f);
    for (size_t i = 0; i < 5; i++) {
        CHECK_BAD(presence_penalty, beyond_2[i]);
        CHECK_BAD(frequency_penalty, beyond_2[i]);
    }
}

TEST(every_bad_bias_and_count_is_named)
{
    struct rd_bias bias = {0, 0};
    struct sampler_params p;
    struct rd_error err = {RD_OK, ""};
    static const int32_t bad_tokens[] = {-1, (int32_t)N_VOCAB, INT32_MAX, INT32_MIN};
    static const float bad_values[] = {-100.5f, 100.5f, NAN, INFINITY};

    sampler_params_default(&p);
    CHECK_OK(sampler_params_check(&p, N_VOCAB, &err));
    p.n_top_logprobs = LIMIT_TOP_LOGPROBS + 1;
    CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "top_logprobs"));
    p.n_top_logprobs = LIMIT_TOP_LOGPROBS;
    p.bias = &bias;
    p.n_bias = 1;
    CHECK_OK(sampler_params_check(&p, N_VOCAB, &err));
    for (size_t i = 0; i < 4; i++) {
        bias = (struct rd_bias){bad_tokens[i], 0};
        CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
        CHECK(strstr(err.text, "logit_bias"));
        bias = (struct rd_bias){1, bad_values[i]};
        CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
        CHECK(strstr(err.text, "logit_bias"));
    }
    p.n_bias = LIMIT_LOGIT_BIAS + 1;
    CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "logit_bias"));
}

static rd_status create_both(struct sampler_scratch **x, struct sampler **s)
{
    struct rd_bias bias = {1, 2};
    struct sampler_params p;
    rd_status st;

    sampler_params_default(&p);
    p.bias = &bias;
    p.n_bias = 1;
    p.presence_penalty = 1;
    st = sampler_scratch_create(N_VOCAB, x);
    if (st != RD_OK) return st;
    st = sampler_create(&p, N_VOCAB, 1000, s);
    if (st != RD_OK) sampler_scratch_destroy(*x);
    return st;
}

TEST(every_failed_allocation_is_a_clean_error)
{
    uint64_t alive = mem_n_alive();
    int64_t i = 0;

    for (;; i++) {
        struct sampler_scratch *x = NULL;
        struct sampler *s = NULL;
        rd_status st;

        mem_fail_after(i);
        st = create_both(&x, &s);
        mem_fail_after(-1);
        if (st == RD_OK) {
            sampler_destroy(s);
            sampler_scratch_destroy(x);
            break;
        }
        CHECK_EQ(st, RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK(i >= 7);
    CHECK_EQ(mem_n_alive(), alive);
    sampler_destroy(NULL);
    sampler_scratch_destroy(NULL);
}

TEST(sampling_and_accepting_allocate_nothing)
{
    struct sampler_scratch *x = NULL;
    struct sampler *s = NULL;
    struct random r;
    uint64_t before;

    random_init(&r, test_seed());
    CHECK_OK(create_both(&x, &s));
    before = mem_n_allocs();
    for (uint32_t i = 0; i < 1000; i++) {
        float logits[N_VOCAB];
        struct sampler_result out;

        make_logits(&r, logits);
        CHECK_OK(sampler_sample(s, x, logits, NULL, i, &out));
        CHECK_OK(sampler_logprobs(x, logits, N_VOCAB, out.token, 5, &out));
        sampler_accept(s, out.token, false);
    }
    CHECK_EQ(mem_n_allocs(), before);
    sampler_destroy(s);
    sampler_scratch_destroy(x);
}
