/* tests/sample/test_sampler_chain.c - every stage in every order, mirostat, bans and histories, against an
 * implementation that sorts all and says what is meant in the plainest way.
 *
 * The same draws: both take the random numbers of (seed, position). Where a sum or a bound is met within 1e-11, or two
 * surprises are nearly equal, rounding decides: such rows are counted and not compared.
 */
#include <math.h>
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "sample/sampler.h"
#include "test.h"

#define N_VOCAB  150u
#define MAX_HIST 120u
#define XTC_KEY  0x5854435f64726177ull

struct cand {
    double key, logit;
    int32_t id;
};
struct naive {
    const struct sampler_params *p;
    int32_t hist[MAX_HIST];
    uint32_t n_hist, n_prompt;
    double mu;
    float row[N_VOCAB];
    struct cand c[N_VOCAB];
    uint32_t n;
    double scale;
    bool close;
};

static int by_key(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;

    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-11 * (1 + fabs(a) + fabs(b));
}

static double most(const struct naive *m)
{
    double max = -INFINITY;

    for (uint32_t i = 0; i < m->n; i++) max = fmax(max, m->c[i].logit);
    return max;
}

static double prob(const struct naive *m, uint32_t at)
{
    double total = 0;

    for (uint32_t i = 0; i < m->n; i++) total += exp((m->c[i].logit - most(m)) / m->scale);
    return exp((m->c[at].logit - most(m)) / m->scale) / total;
}

static void probs(const struct naive *m, double *p)
{
    double total = 0, max = most(m);

    for (uint32_t i = 0; i < m->n; i++) total += p[i] = exp((m->c[i].logit - max) / m->scale);
    for (uint32_t i = 0; i < m->n; i++) p[i] /= total;
}

static double entropy_of(const struct naive *m)
{
    double p[N_VOCAB], h = 0;

    probs(m, p);
    for (uint32_t i = 0; i < m->n; i++) h -= p[i] > 0 ? p[i] * log(p[i]) : 0;
    return h;
}

static void naive_penalties(struct naive *m)
{
    const struct sampler_params *p = m->p;
    uint32_t first =
        p->repeat_last_n >= 0 && (uint32_t)p->repeat_last_n < m->n_hist ? m->n_hist - (uint32_t)p->repeat_last_n : 0;

    for (int32_t t = 0; t < (int32_t)N_VOCAB; t++) {
        uint32_t n = 0, n_out = 0;

        for (uint32_t i = first; i < m->n_hist; i++) {
            n += m->hist[i] == t;
            n_out += m->hist[i] == t && i >= m->n_prompt;
        }
        if (n) m->row[t] = m->row[t] > 0 ? m->row[t] / p->repetition_penalty : m->row[t] * p->repetition_penalty;
        if (n_out) m->row[t] -= p->presence_penalty + p->frequency_penalty * (float)n_out;
    }
}

static bool breaks(const struct sampler_params *p, const int32_t *h, uint32_t n)
{
    const struct sampler_words *w = &p->dry_break_words;

    if (p->dry_breakers && (p->dry_breakers[h[n - 1] / 64] >> (h[n - 1] % 64) & 1)) return true;
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t begin = i ? w->ends[i - 1] : 0, len = w->ends[i] - begin;

        if (len <= n && memcmp(h + n - len, w->tokens + begin, len * sizeof(*h)) == 0) return true;
    }
    return false;
}

static void naive_dry(struct naive *m)
{
    const struct sampler_params *p = m->p;
    uint32_t n = m->n_hist, limit = 0;
    const int32_t *h = m->hist;
    int32_t longest[N_VOCAB];

    if (p->dry_multiplier <= 0 || p->dry_last_n == 0) return;
    if (p->dry_last_n > 0 && (uint32_t)p->dry_last_n < n) {
        h += n - (uint32_t)p->dry_last_n;
        n = (uint32_t)p->dry_last_n;
    }
    if (n <= (uint32_t)p->dry_allowed_length) return;
    while (limit < n && !breaks(p, h, n - limit)) limit++;
    for (uint32_t t = 0; t < N_VOCAB; t++) longest[t] = -1;
    for (uint32_t j = 0; j + 1 < n; j++) {
        int32_t len = 0;

        while ((uint32_t)len < limit && (uint32_t)len <= j && h[j - (uint32_t)len] == h[n - 1 - (uint32_t)len]) len++;
        if (len > longest[h[j + 1]]) longest[h[j + 1]] = len;
    }
    for (uint32_t t = 0; t < N_VOCAB; t++)
        if (longest[t] >= p->dry_allowed_length)
            m->row[t] -= (float)fmin(
                (double)p->dry_multiplier * pow((double)p->dry_base, (double)longest[t] - p->dry_allowed_length), 1e30);
}

static void filter(struct naive *m, const bool *keep)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n; i++)
        if (keep[i]) m->c[n++] = m->c[i];
    m->n = n;
}

/* Keeps of the sorted list until the sum of probabilities passes p. */
static void until(struct naive *m, double bound, bool above)
{
    double p[N_VOCAB], sum = 0;
    uint32_t k = 0;

    qsort(m->c, m->n, sizeof(m->c[0]), by_key);
    probs(m, p);
    while (k < m->n && (k == 0 || (above ? sum <= bound : sum < bound))) {
        sum += p[k++];
        m->close |= near(sum, bound);
    }
    m->n = k;
}

static void naive_xtc(struct naive *m, double unit)
{
    double p[N_VOCAB], threshold = (double)m->p->xtc_threshold;
    bool keep[N_VOCAB];
    uint32_t n_above = 0, least = 0;

    if (unit >= (double)m->p->xtc_probability || threshold > 0.5 || m->n < 2) return;
    probs(m, p);
    for (uint32_t i = 0; i < m->n; i++) {
        keep[i] = p[i] < threshold;
        m->close |= near(p[i], threshold);
        if (keep[i]) continue;
        if (n_above++ == 0 || m->c[i].logit < m->c[least].logit ||
            (m->c[i].logit == m->c[least].logit && m->c[i].id > m->c[least].id))
            least = i;
    }
    if (n_above < 2) return;
    keep[least] = true;
    filter(m, keep);
}

static void naive_top_n_sigma(struct naive *m)
{
    double sum = 0, squares = 0, least;
    bool keep[N_VOCAB];

    if (m->p->top_n_sigma <= 0) return;
    for (uint32_t i = 0; i < m->n; i++) sum += m->c[i].logit / m->n;
    for (uint32_t i = 0; i < m->n; i++) squares += (m->c[i].logit - sum) * (m->c[i].logit - sum) / m->n;
    least = most(m) - (double)m->p->top_n_sigma * sqrt(squares);
    for (uint32_t i = 0; i < m->n; i++) {
        keep[i] = m->c[i].logit >= least;
        m->close |= near(m->c[i].logit, least) && m->n > 1;
    }
    filter(m, keep);
}

static void naive_typical(struct naive *m)
{
    double p[N_VOCAB], h = entropy_of(m), sum = 0;

    if (m->p->typical_p >= 1) return;
    probs(m, p);
    for (uint32_t i = 0; i < m->n; i++) sum += exp((m->c[i].logit - most(m)) / m->scale);
    for (uint32_t i = 0; i < m->n; i++) {
        m->c[i].key = -fabs((most(m) - m->c[i].logit) / m->scale + log(sum) - h);
        for (uint32_t k = 0; k < i; k++)
            m->close |= m->c[i].logit != m->c[k].logit && fabs(m->c[i].key - m->c[k].key) < 1e-6 * (1 - m->c[i].key);
        for (uint32_t k = 0; k < i; k++)
            if (m->c[i].logit == m->c[k].logit) m->c[i].key = m->c[k].key;
    }
    until(m, (double)m->p->typical_p, true);
}

static void naive_temperature(struct naive *m)
{
    double t = (double)m->p->temperature, range = (double)m->p->dynatemp_range, low = fmax(0, t - range);

    if (range > 0 && m->n < 2) return;
    if (range > 0) t = low + (t + range - low) * pow(entropy_of(m) / log(m->n), (double)m->p->dynatemp_exponent);
    m->scale *= t;
}

static void naive_late(struct naive *m, bool dry)
{
    for (uint32_t i = 0; i < m->n; i++) {
        m->row[m->c[i].id] = (float)(m->c[i].logit / m->scale);
        m->close |= fabs(m->c[i].logit / m->scale) > 1e5; /* where the last bit of a float weighs in a draw */
    }
    m->scale = 1;
    if (dry)
        naive_dry(m);
    else
        naive_penalties(m);
    for (uint32_t i = 0; i < m->n; i++) m->c[i].logit = (double)m->row[m->c[i].id];
}

static void naive_stage(struct naive *m, enum sampler_stage stage, double xtc_unit)
{
    bool keep[N_VOCAB];
    double p[N_VOCAB];

    for (uint32_t i = 0; i < m->n; i++) m->c[i].key = m->c[i].logit;
    switch (stage) {
    case SAMPLER_PENALTIES:
        naive_late(m, false);
        break;
    case SAMPLER_DRY:
        naive_late(m, true);
        break;
    case SAMPLER_TEMPERATURE:
        naive_temperature(m);
        break;
    case SAMPLER_TOP_N_SIGMA:
        naive_top_n_sigma(m);
        break;
    case SAMPLER_TYPICAL_P:
        naive_typical(m);
        break;
    case SAMPLER_XTC:
        naive_xtc(m, xtc_unit);
        break;
    case SAMPLER_TOP_K:
        if (m->p->top_k <= 0 || (uint32_t)m->p->top_k >= m->n) break;
        qsort(m->c, m->n, sizeof(m->c[0]), by_key);
        m->n = (uint32_t)m->p->top_k;
        break;
    case SAMPLER_TOP_P:
        if (m->p->top_p < 1) until(m, (double)m->p->top_p, false);
        break;
    case SAMPLER_MIN_P:
        probs(m, p);
        for (uint32_t i = 0; i < m->n; i++) {
            double share = exp((m->c[i].logit - most(m)) / m->scale);

            keep[i] = share >= (double)m->p->min_p;
            m->close |= near(share, (double)m->p->min_p) && share < 1;
        }
        filter(m, keep);
        break;
    case SAMPLER_N_STAGES:
        break;
    }
}

static void naive_bans(struct naive *m, const float *logits)
{
    const struct sampler_params *p = m->p;
    const struct sampler_words *w = &p->bad_words;

    for (uint32_t t = 0; t < N_VOCAB; t++) m->row[t] = p->allowed ? -INFINITY : logits[t];
    for (uint32_t i = 0; i < p->n_allowed; i++) m->row[p->allowed[i]] = logits[p->allowed[i]];
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t begin = i ? w->ends[i - 1] : 0, n = w->ends[i] - begin - 1;

        if (n <= m->n_hist - m->n_prompt && memcmp(m->hist + m->n_hist - n, w->tokens + begin, n * 4) == 0)
            m->row[w->tokens[begin + n]] = -INFINITY;
    }
}

/* -1: where rounding decides. */
static int32_t naive_draw(struct naive *m, double unit)
{
    double p[N_VOCAB];

    probs(m, p);
    for (uint32_t i = 0; i < m->n; i++) {
        unit -= p[i];
        if (fabs(unit) < 1e-11 || m->close) return -1;
        if (unit < 0) return m->c[i].id;
    }
    return -1;
}

static int32_t naive_mirostat(struct naive *m, double unit)
{
    double p[N_VOCAB];
    bool keep[N_VOCAB];
    int32_t token;

    for (uint32_t i = 0; i < m->p->n_stages; i++) {
        if (m->p->stages[i] == SAMPLER_PENALTIES) naive_penalties(m);
        if (m->p->stages[i] == SAMPLER_DRY) naive_dry(m);
    }
    for (uint32_t i = 0; i < m->n; i++) m->c[i].logit = (double)m->row[m->c[i].id];
    m->scale = m->p->temperature > 0 ? (double)m->p->temperature : 1;
    probs(m, p);
    for (uint32_t i = 0; i < m->n; i++) {
        keep[i] = -log2(p[i]) <= m->mu || (m->c[i].logit == most(m));
        m->close |= near(-log2(p[i]), m->mu);
        for (uint32_t k = 0; k < i && m->c[i].logit == most(m); k++)
            if (m->c[k].logit == most(m) && -log2(p[i]) > m->mu) keep[i] = false;
    }
    filter(m, keep);
    token = naive_draw(m, unit);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->c[i].id == token) m->mu -= (double)m->p->mirostat_eta * (-log2(prob(m, i)) - (double)m->p->mirostat_tau);
    return token;
}

static int32_t naive_sample(struct naive *m, const float *logits, uint64_t position)
{
    double unit = random_at_unit(m->p->seed, position), xtc = random_at_unit(m->p->seed ^ XTC_KEY, position);

    m->n = 0;
    m->scale = 1;
    m->close = false;
    naive_bans(m, logits);
    for (uint32_t t = 0; t < N_VOCAB; t++)
        if (m->row[t] > -INFINITY) m->c[m->n++] = (struct cand){0, (double)m->row[t], (int32_t)t};
    if (m->p->mirostat) return naive_mirostat(m, unit);
    for (uint32_t i = 0; i < m->p->n_stages; i++) naive_stage(m, (enum sampler_stage)m->p->stages[i], xtc);
    return naive_draw(m, unit);
}

/* ---- random parameters ---- */

struct extras {
    uint64_t breakers[(N_VOCAB + 63) / 64];
    int32_t tokens[24], break_tokens[24], allowed[N_VOCAB];
    uint32_t ends[8], break_ends[8];
};

static void make_words(struct random *r, int32_t *tokens, uint32_t *ends, struct sampler_words *w)
{
    *w = (struct sampler_words){tokens, ends, (uint32_t)random_below(r, 5)};
    for (uint32_t i = 0, at = 0; i < w->n; i++) {
        for (uint32_t n = 1 + (uint32_t)random_below(r, 3); n > 0; n--) tokens[at++] = (int32_t)random_below(r, 8);
        ends[i] = at;
    }
}

static float pick(struct random *r, float off, float low, float high)
{
    return random_below(r, 2) ? off : low + (float)random_unit(r) * (high - low);
}

static void make_params(struct random *r, struct sampler_params *p, struct extras *x)
{
    sampler_params_default(p);
    p->seed = random_u64(r);
    p->temperature = 0.2f + (float)random_unit(r) * 2;
    p->dynatemp_range = random_below(r, 4) ? 0 : (float)random_unit(r);
    p->dynatemp_exponent = pick(r, 1, 0.3f, 3);
    p->top_k = random_below(r, 2) ? 0 : (int32_t)random_below(r, N_VOCAB + 20);
    p->top_p = pick(r, 1, 0, 1);
    p->min_p = pick(r, 0, 0, 0.3f);
    p->typical_p = pick(r, 1, 0, 1);
    p->top_n_sigma = pick(r, -1, 0.1f, 3);
    p->xtc_probability = pick(r, 0, 0.2f, 1);
    p->xtc_threshold = (float)random_unit(r) * 0.6f;
    p->repetition_penalty = pick(r, 1, 0.5f, 2);
    p->presence_penalty = pick(r, 0, -2, 2);
    p->frequency_penalty = pick(r, 0, -2, 2);
    p->repeat_last_n = (int32_t)random_below(r, 40) - 1;
    p->dry_multiplier = pick(r, 0, 0.1f, 3);
    p->dry_base = 1 + (float)random_unit(r) * 2;
    p->dry_allowed_length = (int32_t)random_below(r, 5);
    p->dry_last_n = (int32_t)random_below(r, 60) - 1;
    for (uint32_t i = 0; i < 3; i++) x->breakers[i] = random_u64(r) & random_u64(r) & random_u64(r) & random_u64(r);
    if (random_below(r, 2)) p->dry_breakers = x->breakers;
    make_words(r, x->break_tokens, x->break_ends, &p->dry_break_words);
    make_words(r, x->tokens, x->ends, &p->bad_words);
    p->mirostat = random_below(r, 5) ? 0 : 2;
    p->mirostat_tau = 1 + (float)random_unit(r) * 5;
    p->mirostat_eta = (float)random_unit(r);
    if (random_below(r, 4) == 0) {
        p->n_allowed = 20 + (uint32_t)random_below(r, 60);
        for (uint32_t i = 0; i < p->n_allowed; i++) x->allowed[i] = (int32_t)random_below(r, N_VOCAB);
        p->allowed = x->allowed;
    }
    p->has_stages = random_below(r, 3) > 0;
    p->n_stages = p->has_stages ? (uint32_t)random_below(r, SAMPLER_MAX_STAGES + 1) : SAMPLER_N_STAGES;
    for (uint32_t i = 0; i < p->n_stages; i++)
        p->stages[i] = (uint8_t)(p->has_stages ? random_below(r, SAMPLER_N_STAGES) : i);
}

static void make_logits(struct random *r, float *logits)
{
    bool rounded = random_below(r, 4) == 0;
    float spread = (float)(1 + random_unit(r) * 12);

    for (uint32_t i = 0; i < N_VOCAB; i++) {
        logits[i] = (float)(random_unit(r) + random_unit(r) + random_unit(r) - 1.5) * spread;
        if (rounded) logits[i] = roundf(logits[i]);
        if (random_below(r, 40) == 0) logits[i] = -INFINITY;
    }
}

/* The simple way through a row draws in another order: test_sampler.c compares it. */
static bool is_simple(const struct sampler_params *p)
{
    return !p->has_stages && p->typical_p >= 1 && p->top_n_sigma <= 0 && p->xtc_probability <= 0 &&
           p->dynatemp_range <= 0 && !p->mirostat;
}

TEST(draws_are_those_of_the_plain_implementation)
{
    enum { N_ROUNDS = 1500 };
    struct random r;
    struct sampler_scratch *x = NULL;
    uint32_t n_draws = 0, n_close = 0;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N_VOCAB, &x));
    for (int round = 0; round < N_ROUNDS; round++) {
        struct sampler_params p;
        struct extras e;
        struct naive m = {.p = &p};
        struct sampler *s = NULL;

        make_params(&r, &p, &e);
        if (is_simple(&p)) continue;
        m.mu = 2 * (double)p.mirostat_tau;
        m.n_prompt = (uint32_t)random_below(&r, 80);
        CHECK_OK(sampler_params_check(&p, N_VOCAB, NULL));
        CHECK_OK(sampler_create(&p, N_VOCAB, MAX_HIST, &s));
        for (; m.n_hist < m.n_prompt; m.n_hist++) {
            m.hist[m.n_hist] = (int32_t)random_below(&r, random_below(&r, 8) ? 6 : N_VOCAB);
            sampler_accept(s, m.hist[m.n_hist], true);
        }
        for (uint32_t step = 0; step < 20; step++) {
            float logits[N_VOCAB];
            struct sampler_result out;
            int32_t want;

            make_logits(&r, logits);
            want = naive_sample(&m, logits, step);
            CHECK_OK(sampler_sample(s, x, logits, NULL, step, &out));
            n_draws++;
            if (want < 0)
                n_close++;
            else
                CHECK_EQ(out.token, want);
            if (want < 0 && p.mirostat) break; /* its state is not known any more */
            if (!p.mirostat && random_below(&r, 2)) out.token = (int32_t)random_below(&r, 6); /* repetitions */
            m.hist[m.n_hist++] = out.token;
            sampler_accept(s, out.token, false);
        }
        sampler_destroy(s);
    }
    test_note("%u draws compared, %u too close to a bound to tell", n_draws, n_close);
    CHECK(n_close < n_draws / 20);
    sampler_scratch_destroy(x);
}

static int32_t sample_one(const struct sampler_params *p, const int32_t *prompt, uint32_t n_prompt, const int32_t *out,
                          uint32_t n_out, const float *logits, uint32_t n, uint64_t position)
{
    struct sampler_scratch *x = NULL;
    struct sampler *s = NULL;
    struct sampler_result result;
    rd_status st;

    if (sampler_scratch_create(n, &x) != RD_OK || sampler_create(p, n, 64, &s) != RD_OK) return RD_E_NOMEM;
    for (uint32_t i = 0; i < n_prompt; i++) sampler_accept(s, prompt[i], true);
    for (uint32_t i = 0; i < n_out; i++) sampler_accept(s, out[i], false);
    st = sampler_sample(s, x, logits, NULL, position, &result);
    sampler_destroy(s);
    sampler_scratch_destroy(x);
    return st == RD_OK ? result.token : (int32_t)st;
}

TEST(a_repetition_is_broken_and_breakers_protect)
{
    const int32_t prompt[] = {1, 2, 3, 4, 9, 1, 2, 3}; /* 4 would repeat 1 2 3 4 */
    const float logits[10] = {0, 0, 0, 0, 5, 4, 0, 0, 0, 0};
    const uint64_t breakers = 1 << 2;
    struct sampler_params p;

    sampler_params_default(&p);
    p.temperature = 0;
    CHECK_EQ(sample_one(&p, prompt, 8, NULL, 0, logits, 10, 0), 4);
    p.dry_multiplier = 0.8f; /* 3 equal tokens: 0.8 * 1.75^1 = 1.4 */
    CHECK_EQ(sample_one(&p, prompt, 8, NULL, 0, logits, 10, 0), 5);
    p.dry_breakers = &breakers; /* 1 equal token behind the breaker */
    CHECK_EQ(sample_one(&p, prompt, 8, NULL, 0, logits, 10, 0), 4);
    p.dry_breakers = NULL;
    p.dry_last_n = 3; /* the first 1 2 3 is not seen */
    CHECK_EQ(sample_one(&p, prompt, 8, NULL, 0, logits, 10, 0), 4);
    p.dry_last_n = -1;
    p.has_stages = true; /* an order without dry */
    p.stages[0] = SAMPLER_TEMPERATURE;
    p.n_stages = 1;
    CHECK_EQ(sample_one(&p, prompt, 8, NULL, 0, logits, 10, 0), 4);
}

TEST(the_end_of_a_bad_word_does_not_follow_its_beginning)
{
    const int32_t tokens[] = {3, 1, 2, 0}, out[] = {1, 2}, begun[] = {1};
    const uint32_t ends[] = {1, 4}; /* [3] and [1 2 0] */
    const float logits[5] = {9, 0, 1, 10, 2};
    struct sampler_params p;

    sampler_params_default(&p);
    p.temperature = 0;
    p.bad_words = (struct sampler_words){tokens, ends, 2};
    CHECK_EQ(sample_one(&p, NULL, 0, NULL, 0, logits, 5, 0), 0);
    CHECK_EQ(sample_one(&p, NULL, 0, begun, 1, logits, 5, 0), 0);
    CHECK_EQ(sample_one(&p, NULL, 0, out, 2, logits, 5, 0), 4);
    CHECK_EQ(sample_one(&p, out, 2, NULL, 0, logits, 5, 0), 0); /* the prompt's words are the client's */
}

TEST(nothing_but_allowed_tokens_is_drawn_and_nothing_left_is_an_error)
{
    const int32_t allowed[] = {2, 4, 2}, tokens[] = {2, 4};
    const uint32_t ends[] = {1, 2};
    const float logits[5] = {9, 0, 1, 10, 2};
    struct sampler_params p;

    sampler_params_default(&p);
    p.allowed = allowed;
    p.n_allowed = 3;
    for (uint64_t i = 0; i < 100; i++) {
        int32_t token = sample_one(&p, NULL, 0, NULL, 0, logits, 5, i);

        CHECK(token == 2 || token == 4);
    }
    p.bad_words = (struct sampler_words){tokens, ends, 2};
    CHECK_EQ(sample_one(&p, NULL, 0, NULL, 0, logits, 5, 0), RD_E_INVALID);
}

TEST(xtc_spares_the_last_of_the_likely_ones)
{
    const float logits[4] = {3, 2.9f, 2.8f, -5}; /* 0.37, 0.33, 0.30, 0 */
    struct sampler_params p;

    sampler_params_default(&p);
    p.xtc_probability = 1;
    p.xtc_threshold = 0.2f;
    for (uint64_t i = 0; i < 100; i++) CHECK(sample_one(&p, NULL, 0, NULL, 0, logits, 4, i) >= 2);
    p.xtc_threshold = 0.35f; /* one alone above it stays */
    for (uint64_t i = 0, n = 0; i < 100; i++) {
        n += sample_one(&p, NULL, 0, NULL, 0, logits, 4, i) == 0;
        if (i == 99) CHECK(n > 10);
    }
    p.xtc_probability = 0.5f;
    p.xtc_threshold = 0.2f;
    for (uint64_t i = 0, n = 0; i < 2000; i++) {
        n += sample_one(&p, NULL, 0, NULL, 0, logits, 4, i) < 2;
        if (i == 1999) CHECK(n > 600 && n < 800); /* half the time 0.7 */
    }
}

TEST(mirostat_keeps_to_its_surprise)
{
    enum { N = 4000 };
    struct sampler_scratch *x = NULL;
    struct sampler *s = NULL;
    struct sampler_params p;
    struct random r;
    double sum = 0;

    random_init(&r, test_seed());
    sampler_params_default(&p);
    p.mirostat = 2;
    p.mirostat_tau = 3;
    p.want_logprob = true;
    p.seed = 7;
    CHECK_OK(sampler_scratch_create(N_VOCAB, &x));
    CHECK_OK(sampler_create(&p, N_VOCAB, N, &s));
    for (uint64_t i = 0; i < N; i++) {
        float logits[N_VOCAB];
        struct sampler_result out;

        for (uint32_t t = 0; t < N_VOCAB; t++) logits[t] = (float)random_unit(&r) * 3;
        CHECK_OK(sampler_sample(s, x, logits, NULL, i, &out));
        sampler_accept(s, out.token, false);
        if (i >= 200) sum += -(double)out.logprob / log(2);
    }
    /* of the raw distribution a little more than of what was left of it */
    test_note("mean surprise %.2f bits", sum / (N - 200));
    CHECK(sum / (N - 200) > 3 && sum / (N - 200) < 8);
    sampler_destroy(s);
    sampler_scratch_destroy(x);
}

TEST(sampling_twice_without_accepting_changes_nothing)
{
    struct random r;
    struct sampler_scratch *x = NULL;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N_VOCAB, &x));
    for (int round = 0; round < 500; round++) {
        struct sampler_params p;
        struct extras e;
        struct sampler *s[2] = {NULL, NULL};

        make_params(&r, &p, &e);
        for (int i = 0; i < 2; i++) CHECK_OK(sampler_create(&p, N_VOCAB, 64, &s[i]));
        for (uint64_t i = 0; i < 30; i++) {
            float logits[N_VOCAB], other[N_VOCAB];
            struct sampler_result a, b;

            make_logits(&r, logits);
            make_logits(&r, other);
            if (random_below(&r, 2)) sampler_sample(s[1], x, other, NULL, i, &b); /* a draft thrown away */
            CHECK_OK(sampler_sample(s[0], x, logits, NULL, i, &a));
            CHECK_OK(sampler_sample(s[1], x, logits, NULL, i, &b));
            CHECK_EQ(a.token, b.token);
            for (int k = 0; k < 2; k++) sampler_accept(s[k], a.token, false);
        }
        for (int i = 0; i < 2; i++) sampler_destroy(s[i]);
    }
    sampler_scratch_destroy(x);
}

TEST(extreme_values_draw_a_token)
{
    static const float values[] = {0, -0.0f, 1e-30f, 1e30f, -1e30f, 3.4e38f, -3.4e38f, -INFINITY, 88, -104};
    struct random r;
    struct sampler_scratch *x = NULL;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N_VOCAB, &x));
    for (int round = 0; round < 1000; round++) {
        float logits[N_VOCAB];
        struct sampler_params p;
        struct extras e;
        struct sampler *s = NULL;

        make_params(&r, &p, &e);
        p.allowed = NULL;
        p.n_allowed = p.bad_words.n = 0;
        p.dry_multiplier *= 30;
        p.dry_base *= 30;
        p.temperature = random_below(&r, 2) ? 1e-30f : 100;
        CHECK_OK(sampler_create(&p, N_VOCAB, 64, &s));
        for (uint64_t i = 0; i < 30; i++) {
            struct sampler_result out = {.token = -1};
            rd_status st;

            for (uint32_t t = 0; t < N_VOCAB; t++) logits[t] = values[random_below(&r, 10)];
            logits[5] = 1;
            st = sampler_sample(s, x, logits, NULL, i, &out);
            CHECK(st == RD_OK || st == RD_E_MODEL_OUTPUT); /* a penalty may overflow to infinity */
            if (st != RD_OK) break;
            CHECK(out.token >= 0 && out.token < (int32_t)N_VOCAB && logits[out.token] > -INFINITY);
            sampler_accept(s, (int32_t)random_below(&r, 5), false);
        }
        sampler_destroy(s);
    }
    sampler_scratch_destroy(x);
}

TEST(every_failed_allocation_is_a_clean_error)
{
    uint64_t alive = mem_n_alive();
    struct sampler_params p;
    struct extras e;
    struct random r;
    int64_t i = 0;

    random_init(&r, 3);
    do make_params(&r, &p, &e);
    while (!p.allowed || !p.dry_breakers || p.dry_multiplier <= 0 || !p.bad_words.n || !p.dry_break_words.n ||
           p.repeat_last_n < 1 || p.presence_penalty == 0 || p.dry_last_n == 0 || p.has_stages);
    for (;; i++) {
        struct sampler *s = NULL;
        rd_status st;

        mem_fail_after(i);
        st = sampler_create(&p, N_VOCAB, 100, &s);
        mem_fail_after(-1);
        sampler_destroy(st == RD_OK ? s : NULL);
        CHECK_EQ(mem_n_alive(), alive);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
    }
    CHECK(i >= 9);
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
    static const float none[] = {NAN, INFINITY, -INFINITY, -1.5f, 100.5f};

    for (size_t i = 0; i < 5; i++) {
        CHECK_BAD(dynatemp_range, none[i]);
        CHECK_BAD(dynatemp_exponent, none[i]);
        CHECK_BAD(typical_p, none[i]);
        CHECK_BAD(top_n_sigma, none[i]);
        CHECK_BAD(xtc_probability, none[i]);
        CHECK_BAD(xtc_threshold, none[i]);
        CHECK_BAD(dry_multiplier, none[i]);
        CHECK_BAD(dry_base, none[i]);
        CHECK_BAD(mirostat_tau, none[i]);
        CHECK_BAD(mirostat_eta, none[i]);
    }
    CHECK_BAD(mirostat, 1);
    CHECK_BAD(mirostat, 3);
    CHECK_BAD(dry_allowed_length, -1);
}

TEST(every_bad_list_is_named)
{
    const int32_t outside[] = {-1, (int32_t)N_VOCAB};
    const uint32_t ends[] = {1, 1}, one = 1;
    struct sampler_params p;
    struct rd_error err = {RD_OK, ""};

    for (size_t i = 0; i < 2; i++) {
        sampler_params_default(&p);
        p.allowed = &outside[i];
        p.n_allowed = 1;
        CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
        CHECK(strstr(err.text, "allowed_token_ids"));
        sampler_params_default(&p);
        p.bad_words = (struct sampler_words){&outside[i], &one, 1};
        CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
        CHECK(strstr(err.text, "bad_words"));
    }
    p.bad_words = (struct sampler_words){outside, ends, 2}; /* the second one is empty */
    CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
    sampler_params_default(&p);
    p.allowed = outside;
    CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID); /* none allowed */
    sampler_params_default(&p);
    p.has_stages = true;
    p.n_stages = 1;
    p.stages[0] = SAMPLER_N_STAGES;
    CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "samplers"));
}
