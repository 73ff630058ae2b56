/* sample/sampler.c - bias and penalties, then greedy, or temperature, top_k, top_p, min_p and one draw.
 *
 * Candidates are (logit, id) pairs ordered by logit, ties by the lower id. top_k and top_p take from a heap only as
 * many as they need, so a vocabulary of 150,000 is never sorted. Sums are doubles in the order of the candidates: the
 * outcome is a pure function of its inputs.
 */
#include "sample/sampler.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"

#define BIAS_NEVER (-100.0f)
#define LEAST_POWER (-60.0) /* e^-60 of the best: a million such tokens would be drawn once in 10^20 times */

struct seen_token { int32_t token; uint32_t n_out; };    /* token -1: an empty place */

struct sampler {
    struct sampler_params p;
    uint32_t n_vocab;
    struct sampler_bias *bias;
    struct seen_token *seen;             /* [n_places] open addressing; NULL when no penalty is on */
    uint32_t n_places;                   /* a power of two */
};

struct candidate { float logit; int32_t id; };

struct sampler_scratch {
    uint32_t n_vocab;
    float *logits;                       /* [n_vocab] adjusted */
    struct candidate *heap;              /* [n_vocab] */
    double *weights;                     /* [n_vocab] */
};

void sampler_params_default(struct sampler_params *p)
{
    *p = (struct sampler_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

rd_status sampler_params_check(const struct sampler_params *p, uint32_t n_vocab, struct rd_error *err)
{
    if (!(p->temperature >= 0 && p->temperature <= 100))
        return error_set(err, RD_E_INVALID, "temperature: must be within 0 and 100");
    if (!(p->top_p >= 0 && p->top_p <= 1)) return error_set(err, RD_E_INVALID, "top_p: must be within 0 and 1");
    if (!(p->min_p >= 0 && p->min_p <= 1)) return error_set(err, RD_E_INVALID, "min_p: must be within 0 and 1");
    if (!(p->repetition_penalty > 0 && p->repetition_penalty <= 100))
        return error_set(err, RD_E_INVALID, "repetition_penalty: must be above 0 and at most 100");
    if (!(p->presence_penalty >= -2 && p->presence_penalty <= 2))
        return error_set(err, RD_E_INVALID, "presence_penalty: must be within -2 and 2");
    if (!(p->frequency_penalty >= -2 && p->frequency_penalty <= 2))
        return error_set(err, RD_E_INVALID, "frequency_penalty: must be within -2 and 2");
    if (p->n_top_logprobs > LIMIT_TOP_LOGPROBS)
        return error_set(err, RD_E_INVALID, "top_logprobs: at most %u", LIMIT_TOP_LOGPROBS);
    if (p->n_bias > LIMIT_LOGIT_BIAS)
        return error_set(err, RD_E_INVALID, "logit_bias: at most %u entries", LIMIT_LOGIT_BIAS);
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < 0 || (uint32_t)p->bias[i].token >= n_vocab)
            return error_set(err, RD_E_INVALID, "logit_bias: token %d is not in the vocabulary of %u", p->bias[i].token,
                             n_vocab);
        if (!(p->bias[i].bias >= -100 && p->bias[i].bias <= 100))
            return error_set(err, RD_E_INVALID, "logit_bias: values must be within -100 and 100");
    }
    return RD_OK;
}

rd_status sampler_scratch_create(uint32_t n_vocab, struct sampler_scratch **out)
{
    struct sampler_scratch *s = mem_zalloc(1, sizeof(*s));

    if (!s) return RD_E_NOMEM;
    s->n_vocab = n_vocab;
    s->logits = mem_alloc(n_vocab, sizeof(*s->logits));
    s->heap = mem_alloc(n_vocab, sizeof(*s->heap));
    s->weights = mem_alloc(n_vocab, sizeof(*s->weights));
    if (!s->logits || !s->heap || !s->weights) {
        sampler_scratch_destroy(s);
        return RD_E_NOMEM;
    }
    *out = s;
    return RD_OK;
}

void sampler_scratch_destroy(struct sampler_scratch *s)
{
    if (!s) return;
    mem_free(s->logits);
    mem_free(s->heap);
    mem_free(s->weights);
    mem_free(s);
}

static bool has_penalty(const struct sampler_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

rd_status sampler_create(const struct sampler_params *p, uint32_t n_vocab, uint32_t max_tokens, struct sampler **out)
{
    struct sampler *s = mem_zalloc(1, sizeof(*s));
    uint32_t n_distinct = u32_min(max_tokens, n_vocab);

    if (!s) return RD_E_NOMEM;
    s->p = *p;
    s->n_vocab = n_vocab;
    if (p->n_bias) {
        s->bias = (struct sampler_bias *)(void *)mem_memdup(p->bias, p->n_bias * sizeof(*p->bias));
        if (!s->bias) goto fail;
        s->p.bias = s->bias;
    }
    if (has_penalty(p)) {
        for (s->n_places = 16; s->n_places < n_distinct * 2;) s->n_places *= 2;
        s->seen = mem_alloc(s->n_places, sizeof(*s->seen));
        if (!s->seen) goto fail;
        for (uint32_t i = 0; i < s->n_places; i++) s->seen[i] = (struct seen_token){-1, 0};
    }
    *out = s;
    return RD_OK;

fail:
    sampler_destroy(s);
    return RD_E_NOMEM;
}

void sampler_destroy(struct sampler *s)
{
    if (!s) return;
    mem_free(s->bias);
    mem_free(s->seen);
    mem_free(s);
}

void sampler_accept(struct sampler *s, int32_t token, bool is_prompt)
{
    uint32_t at;

    if (!s->seen || token < 0 || (uint32_t)token >= s->n_vocab) return;
    at = (uint32_t)token * 2654435761u & (s->n_places - 1);
    while (s->seen[at].token >= 0 && s->seen[at].token != token) at = (at + 1) & (s->n_places - 1);
    s->seen[at].token = token;
    if (!is_prompt) s->seen[at].n_out++;
}

#define LANES 16u

/* The largest logit; RD_E_MODEL_OUTPUT for NaN, +inf, or a row of -inf. Lanes of their own: the compiler may not change
 * the order of one chain of comparisons, and a quarter of a million of them is a fair part of a small model's step. */
static rd_status find_max(const float *logits, uint32_t n, float *max)
{
    float best[LANES], most = -INFINITY;
    uint32_t bad[LANES] = {0}, any_bad = 0, i = 0;

    for (uint32_t k = 0; k < LANES; k++) best[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) {
            float v = logits[i + k];

            bad[k] |= !(v < INFINITY);                      /* NaN compares false */
            best[k] = v > best[k] ? v : best[k];
        }
    for (; i < n; i++) {
        any_bad |= !(logits[i] < INFINITY);
        most = logits[i] > most ? logits[i] : most;
    }
    for (uint32_t k = 0; k < LANES; k++) {
        any_bad |= bad[k];
        most = best[k] > most ? best[k] : most;
    }
    *max = most;
    return any_bad || most == -INFINITY ? RD_E_MODEL_OUTPUT : RD_OK;
}

/* The first index of a value that is there. */
static int32_t index_of(const float *logits, uint32_t n, float value)
{
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        uint32_t hits = 0;

        for (uint32_t k = 0; k < LANES; k++) hits |= logits[i + k] == value;
        if (hits) break;
    }
    while (i + 1 < n && logits[i] != value) i++;
    return (int32_t)i;
}

rd_status sampler_check_logits(const float *logits, uint32_t n_vocab)
{
    float max;

    return find_max(logits, n_vocab, &max);
}

static double log_sum_exp(const float *logits, uint32_t n, float max)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += (double)expf(logits[i] - max);
    return (double)max + log(sum);
}

static bool before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void heap_down(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate c = heap[at];

    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], c)) break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

static void heap_build(struct candidate *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) heap_down(heap, n, i);
}

/* Takes the first candidate out; it lies at heap[n - 1] then. */
static struct candidate heap_take(struct candidate *heap, uint32_t n)
{
    struct candidate top = heap[0];

    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    if (n > 1) heap_down(heap, n - 1, 0);
    return top;
}

static void top_logprobs(struct sampler_scratch *scratch, const float *logits, uint32_t n, double norm, uint32_t n_top,
                         struct sampler_result *out)
{
    out->n_top = u32_min(u32_min(n_top, n), LIMIT_TOP_LOGPROBS);
    if (out->n_top == 0) return;
    for (uint32_t i = 0; i < n; i++) scratch->heap[i] = (struct candidate){logits[i], (int32_t)i};
    heap_build(scratch->heap, n);
    for (uint32_t i = 0; i < out->n_top; i++) {
        struct candidate c = heap_take(scratch->heap, n - i);

        out->top[i] = (struct token_logprob){c.id, (float)((double)c.logit - norm)};
    }
}

rd_status sampler_logprobs(struct sampler_scratch *scratch, const float *logits, uint32_t n_vocab, int32_t token,
                           uint32_t n_top, struct sampler_result *out)
{
    float max;
    double norm;

    assert(n_vocab <= scratch->n_vocab && token >= 0 && (uint32_t)token < n_vocab);
    if (find_max(logits, n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;
    norm = log_sum_exp(logits, n_vocab, max);
    out->token = token;
    out->logprob = (float)((double)logits[token] - norm);
    top_logprobs(scratch, logits, n_vocab, norm, n_top, out);
    return RD_OK;
}

/* Bias and penalties, on a copy. */
static void adjust(const struct sampler *s, float *logits, const int32_t *banned, uint32_t n_banned)
{
    const struct sampler_params *p = &s->p;

    for (uint32_t i = 0; i < p->n_bias; i++) {
        const struct sampler_bias *b = &p->bias[i];

        logits[b->token] = b->bias <= BIAS_NEVER ? -INFINITY : logits[b->token] + b->bias;
    }
    for (uint32_t i = 0; i < s->n_places; i++) {
        const struct seen_token *t = &s->seen[i];

        if (t->token < 0) continue;
        if (logits[t->token] > 0) logits[t->token] /= p->repetition_penalty;
        else logits[t->token] *= p->repetition_penalty;
        if (t->n_out) logits[t->token] -= p->presence_penalty + p->frequency_penalty * (float)t->n_out;
    }
    for (uint32_t i = 0; i < n_banned; i++)
        if (banned[i] >= 0 && (uint32_t)banned[i] < s->n_vocab) logits[banned[i]] = -INFINITY;
}

/* Filters and orders candidates; returns how many are left, best first at heap[n_vocab-1], then downwards. */
static uint32_t select_candidates(const struct sampler *s, struct sampler_scratch *x, float max, uint32_t *n_all)
{
    const struct sampler_params *p = &s->p;
    uint32_t n = 0, n_kept = 0, n_most;
    double total = 0, sum = 0;

    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (x->logits[i] > -INFINITY) x->heap[n++] = (struct candidate){x->logits[i], (int32_t)i};
    *n_all = n;
    heap_build(x->heap, n);
    n_most = p->top_k > 0 ? u32_min((uint32_t)p->top_k, n) : n;
    if (n_most == n) {
        for (uint32_t i = 0; i < n; i++) total += exp(((double)x->heap[i].logit - max) / p->temperature);
    } else {
        for (uint32_t i = 0; i < n_most; i++)
            total += exp(((double)heap_take(x->heap, n - i).logit - max) / p->temperature);
        memmove(x->heap, x->heap + n - n_most, n_most * sizeof(*x->heap));
        heap_build(x->heap, n_most);
        *n_all = n = n_most;
    }
    while (n_kept < n) {
        double w = exp(((double)x->heap[0].logit - max) / p->temperature);

        if (n_kept > 0 && (sum >= (double)p->top_p * total || w < (double)p->min_p * x->weights[0])) break;
        heap_take(x->heap, n - n_kept);
        x->weights[n_kept++] = w;
        sum += w;
    }
    return n_kept;
}

static int32_t draw_all(const struct sampler *s, struct sampler_scratch *x, float max, double unit)
{
    double total = 0, at;
    int32_t last = 0;

    for (uint32_t i = 0; i < s->n_vocab; i++) {
        double power = ((double)x->logits[i] - max) / s->p.temperature;

        x->weights[i] = power > LEAST_POWER ? exp(power) : 0;
        total += x->weights[i];
    }
    at = unit * total;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (x->weights[i] <= 0) continue;
        last = (int32_t)i;
        at -= x->weights[i];
        if (at < 0) break;
    }
    return last;
}

static int32_t draw(const struct sampler *s, struct sampler_scratch *x, float max, double unit)
{
    double total = 0, at;
    uint32_t n_all, n;

    if (s->p.top_k <= 0 && s->p.top_p >= 1 && s->p.min_p <= 0) return draw_all(s, x, max, unit);
    n = select_candidates(s, x, max, &n_all);
    for (uint32_t i = 0; i < n; i++) total += x->weights[i];
    at = unit * total;
    for (uint32_t i = 0; i < n; i++) {
        at -= x->weights[i];
        if (at < 0 || i + 1 == n) return x->heap[n_all - 1 - i].id;
    }
    return 0;
}

static bool is_one_of(const int32_t *tokens, uint32_t n, int32_t token)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == token) return true;
    return false;
}

static rd_status with_logprobs(const struct sampler *s, struct sampler_scratch *scratch, const float *logits,
                               struct sampler_result *out)
{
    if (!s->p.want_logprob) return RD_OK;
    return sampler_logprobs(scratch, logits, s->n_vocab, out->token, s->p.n_top_logprobs, out);
}

rd_status sampler_sample(struct sampler *s, struct sampler_scratch *scratch, const float *logits, const int32_t *banned,
                         uint32_t n_banned, uint64_t position, struct sampler_result *out)
{
    float max;

    assert(s->n_vocab <= scratch->n_vocab);
    out->n_top = 0;
    out->logprob = 0;
    if (find_max(logits, s->n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;
    if (s->p.temperature <= 0 && s->p.n_bias == 0 && !s->seen) {
        out->token = index_of(logits, s->n_vocab, max);
        if (!is_one_of(banned, n_banned, out->token)) return with_logprobs(s, scratch, logits, out);     /* no copy */
    }
    memcpy(scratch->logits, logits, s->n_vocab * sizeof(float));
    adjust(s, scratch->logits, banned, n_banned);
    if (find_max(scratch->logits, s->n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;     /* everything was banned */
    if (s->p.temperature <= 0) out->token = index_of(scratch->logits, s->n_vocab, max);
    else out->token = draw(s, scratch, max, random_at_unit(s->p.seed, position));
    return with_logprobs(s, scratch, logits, out);
}
